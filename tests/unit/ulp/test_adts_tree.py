"""Tree refuses hostile paths, and handles incomplete files and errors of the disk."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from harness.descriptors import count_open_descriptors

from siwarp.ulp.adts.tree import Entry, SystemCalls, Tree, split_path, temporary_name
from siwarp.ulp.adts.wire import FileKind

TIME = 1_600_000_000_123_456_789


@pytest.fixture(name="root")
def root_directory(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    inside.mkdir()
    (tmp_path / "secret").write_text("outside")
    return inside


def make_file_entry(path: str, size: int, **more: int) -> Entry:
    return Entry(path, FileKind.FILE, size, mtime_ns=TIME, mode=more.get("mode", 0o640))


def write_incoming_file(tree: Tree, path: str, data: bytes) -> None:
    incoming = tree.begin_file(make_file_entry(path, len(data)), resume=False)
    incoming.write(0, memoryview(data))
    incoming.finish()


def names_in_folder(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- paths


@pytest.mark.clause("ADTS-PATH-1#a", "ADTS-PATH-1#b", "ADTS-PATH-1#c")
@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "..", "../secret", "a/../../secret", "a//b", "a/", "./a", "a/.", "a\0b", "/"],
)
def test_a_path_that_could_leave_the_root_is_refused(root: Path, path: str) -> None:
    with Tree(root, writable=True) as tree:
        for use in (
            tree.entry,
            tree.open_for_send,
            tree.delete,
            tree.walk,
            tree.names,
            lambda path: tree.begin_file(make_file_entry(path, 1), resume=False),
            lambda path: tree.make_directory(
                replace(make_file_entry(path, 0), kind=FileKind.DIRECTORY)
            ),
        ):
            with pytest.raises(OSError, match="is refused") as error:
                use(path)
            assert error.value.errno == errno.EINVAL
    assert names_in_folder(root.parent) == ["root", "secret"]


@pytest.mark.clause("ADTS-PATH-1#d")
def test_paths_and_names_that_are_too_long_are_refused() -> None:
    assert split_path("a" * 255) == ["a" * 255]
    for path in ("a" * 256, "ü" * 128, "a/" * 2048 + "b"):
        with pytest.raises(OSError) as error:
            split_path(path)
        assert error.value.errno == errno.ENAMETOOLONG


@pytest.mark.clause("ADTS-PATH-2")
def test_symbolic_links_are_never_followed(root: Path) -> None:
    (root / "up").symlink_to("..")
    (root / "link").symlink_to("../secret")
    with Tree(root, writable=True) as tree:
        for path in ("up/secret", "up/new"):
            for use in (
                tree.open_for_send,
                tree.delete,
                tree.entry,
                lambda path: tree.begin_file(make_file_entry(path, 1), resume=False),
            ):
                with pytest.raises(NotADirectoryError, match="not followed"):
                    use(path)
        with pytest.raises(OSError, match="symbolic link, which is not followed"):
            tree.open_for_send("link")
        # the received file replaces the link, not the target of the link
        write_incoming_file(tree, "link", b"new")
    assert (root / "link").read_bytes() == b"new" and not (root / "link").is_symlink()
    assert (root.parent / "secret").read_text() == "outside"


def test_a_temporary_name_that_is_a_link_or_a_second_name_is_not_written(root: Path) -> None:
    one = make_file_entry("file", 3)
    temporary = root / temporary_name("file", one.tag())
    with Tree(root, writable=True) as tree:
        temporary.symlink_to("../secret")
        with pytest.raises(OSError) as error:
            tree.begin_file(one, resume=True)
        assert error.value.errno == errno.ELOOP
        temporary.unlink()
        os.link(root.parent / "secret", temporary)
        with pytest.raises(OSError, match="not a file of a transfer"):
            tree.begin_file(one, resume=True)
    assert (root.parent / "secret").read_text() == "outside"


@pytest.mark.clause("ADTS-PATH-3")
def test_devices_fifos_and_sockets_are_neither_opened_nor_listed_as_files(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(root / "socket"))
        with Tree(root) as tree:
            for name in ("fifo", "socket"):
                with pytest.raises(OSError, match="only files are transferred"):
                    tree.open_for_send(name)
            assert {e.path: e.kind for e in tree.walk() if e.path} == {"fifo": None, "socket": None}
            with pytest.raises(IsADirectoryError):
                tree.open_for_send("")


def test_an_error_names_the_path_below_the_root_but_not_the_root(root: Path) -> None:
    with Tree(root) as tree, pytest.raises(FileNotFoundError) as error:
        tree.open_for_send("a/b")
    assert error.value.strerror == "a: No such file or directory"
    assert str(root) not in str(error.value)


# ---- receiving


def test_a_received_file_replaces_the_old_one_with_mode_and_time(root: Path) -> None:
    (root / "file").write_text("an older version")
    with Tree(root, writable=True) as tree:
        write_incoming_file(tree, "file", b"new")
    status = (root / "file").stat()
    assert (root / "file").read_bytes() == b"new"
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o640, TIME)
    assert names_in_folder(root) == ["file"]


def test_set_user_id_and_sticky_bits_are_not_received(root: Path) -> None:
    with Tree(root, writable=True) as tree:
        tree.begin_file(make_file_entry("file", 0, mode=0o7755), resume=False).finish()
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0o755


@pytest.mark.parametrize("use", ["begin", "make_directory", "make_symlink", "delete"])
def test_a_tree_that_is_not_writable_changes_nothing(root: Path, use: str) -> None:
    (root / "file").write_text("old")
    one = replace(make_file_entry("file", 3), target="x")
    with Tree(root) as tree, pytest.raises(OSError, match="--write") as error:
        {
            "begin": lambda: tree.begin_file(one, resume=False),
            "make_directory": lambda: tree.make_directory(one),
            "make_symlink": lambda: tree.make_symlink(one),
            "delete": lambda: tree.delete("file"),
        }[use]()
    assert error.value.errno == errno.EROFS
    assert (root / "file").read_text() == "old" and names_in_folder(root) == ["file"]


@pytest.mark.clause("ADTS-FILE-6")
def test_the_final_name_never_has_a_part_of_a_file(root: Path) -> None:
    (root / "file").write_text("old")
    with Tree(root, writable=True) as tree:
        incoming = tree.begin_file(make_file_entry("file", 6), resume=False)
        incoming.write(0, memoryview(b"new"))
        with pytest.raises(OSError, match="3 octets are missing") as error:
            incoming.finish()
        assert error.value.errno == errno.EPROTO
    assert (root / "file").read_text() == "old" and names_in_folder(root) == ["file"]


@pytest.mark.clause("ADTS-FILE-4")
@pytest.mark.parametrize(("offset", "data"), [(1, b"x"), (0, b"12345"), (5, b"x"), (1 << 62, b"x")])
def test_octets_outside_of_the_announced_file_are_refused(
    root: Path, offset: int, data: bytes
) -> None:
    with Tree(root, writable=True) as tree:
        incoming = tree.begin_file(make_file_entry("file", 4), resume=False)
        with pytest.raises(OSError) as error:
            incoming.write(offset, memoryview(data))
        assert error.value.errno == errno.EPROTO
        with pytest.raises(OSError) as error:
            incoming.skip_hole(offset, len(data))
        assert error.value.errno == errno.EPROTO
        incoming.abandon(keep=False)
    assert names_in_folder(root) == []


@pytest.mark.clause("ADTS-RESUME-1", "ADTS-REQ-2")
def test_an_incomplete_file_is_resumed_only_by_the_same_version(root: Path) -> None:
    one = make_file_entry("file", 6)
    with Tree(root, writable=True) as tree:
        incoming = tree.begin_file(one, resume=True)
        incoming.write(0, memoryview(b"abc"))
        incoming.abandon(keep=True)
        assert names_in_folder(root) == [temporary_name("file", one.tag())]
        assert list(tree.walk()) == [tree.entry("")]  # incomplete files are not listed

        incoming = tree.begin_file(one, resume=True)
        assert incoming.position == 3
        prefix = bytearray(3)
        incoming.read(memoryview(prefix), 0)
        assert prefix == b"abc"
        incoming.abandon(keep=True)

        other = tree.begin_file(replace(one, mtime_ns=TIME + 1), resume=True)
        assert other.position == 0
        other.write(0, memoryview(b"ABCDEF"))
        other.finish()
    assert names_in_folder(root) == ["file"]  # the other version's incomplete file was deleted
    assert (root / "file").read_bytes() == b"ABCDEF"


@pytest.mark.clause("ADTS-RESUME-4")
def test_two_transfers_of_one_version_never_share_a_temporary_file(root: Path) -> None:
    with Tree(root, writable=True) as tree:
        first = tree.begin_file(make_file_entry("file", 3), resume=True)
        with pytest.raises(OSError, match="another transfer") as error:
            tree.begin_file(make_file_entry("file", 3), resume=True)
        assert error.value.errno == errno.EBUSY
        first.write(0, memoryview(b"abc"))
        first.finish()
    assert (root / "file").read_bytes() == b"abc"


def test_names_of_255_octets_are_received_and_resumed(root: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        with Tree(root, writable=True) as tree:
            incoming = tree.begin_file(make_file_entry(name, 2), resume=True)
            incoming.write(0, memoryview(b"a"))
            incoming.abandon(keep=True)
            assert all(len(os.fsencode(n)) <= 255 for n in names_in_folder(root))
            incoming = tree.begin_file(make_file_entry(name, 2), resume=True)
            incoming.write(1, memoryview(b"b"))
            incoming.finish()
        assert (root / name).read_bytes() == b"ab"


@pytest.mark.clause("ADTS-PATH-1#e")
def test_names_of_incomplete_files_are_refused(root: Path) -> None:
    with Tree(root, writable=True) as tree, pytest.raises(OSError, match="reserved"):
        tree.begin_file(make_file_entry(temporary_name("a", "0" * 16), 1), resume=False)


def test_directories_and_links_are_created_with_their_attributes(root: Path) -> None:
    folder = Entry("d", FileKind.DIRECTORY, mtime_ns=TIME, mode=0o750)
    link = Entry("d/link", FileKind.SYMLINK, mtime_ns=TIME, target="nowhere")
    with Tree(root, writable=True) as tree:
        tree.make_directory(folder)
        tree.make_symlink(link)
        tree.make_symlink(link)
        tree.make_directory(folder)
        assert [(e.path, e.kind, e.mtime_ns) for e in tree.walk("d")] == [
            ("d", FileKind.DIRECTORY, TIME),
            ("d/link", FileKind.SYMLINK, TIME),
        ]
        assert tree.entry("d/link").target == "nowhere"
        with pytest.raises(OSError, match="not empty"):
            tree.delete("d")
        tree.delete("d/link")
        tree.delete("d")
    assert names_in_folder(root) == []


def test_a_file_does_not_replace_a_directory(root: Path) -> None:
    (root / "d").mkdir()
    with Tree(root, writable=True) as tree, pytest.raises(IsADirectoryError):
        tree.begin_file(make_file_entry("d", 1), resume=False)
    assert names_in_folder(root) == ["d"]


# ---- sending


def test_a_file_that_shrinks_grows_or_is_written_is_reported(root: Path) -> None:
    file = root / "file"
    with Tree(root) as tree:
        file.write_bytes(b"123456")
        source = tree.open_for_send("file")
        os.truncate(file, 3)
        with pytest.raises(OSError, match=r"ends at 3 of 6.*changed while it was sent"):
            source.read(memoryview(bytearray(6)), 0)
        source.close()

        source = tree.open_for_send("file")
        source.check_unchanged()
        with file.open("ab") as more:
            more.write(b"more")
        with pytest.raises(OSError, match="has 7 octets instead of 3"):
            source.check_unchanged()
        source.close()

        source = tree.open_for_send("file")
        os.utime(file, ns=(TIME, TIME))
        with pytest.raises(OSError, match="was written"):
            source.check_unchanged()
        source.close()


def test_holes_are_found_and_stay_holes(root: Path) -> None:
    size = 5 << 30
    with (root / "sparse").open("wb") as file:
        file.truncate(size)
        os.pwrite(file.fileno(), b"x" * 4096, 1 << 30)
    with Tree(root, writable=True) as tree:
        source = tree.open_for_send("sparse")
        copy = tree.begin_file(make_file_entry("copy", size), resume=True)
        offset = 0
        kinds = []
        while offset < size:
            extent = source.extent_at(offset)
            kinds.append(extent.is_hole)
            if extent.is_hole:
                copy.skip_hole(offset, extent.length)
            else:
                data = bytearray(extent.length)
                source.read(memoryview(data), offset)
                copy.write(offset, memoryview(data))
            offset += extent.length
        source.close()
        copy.finish()
    assert kinds == [True, False, True]
    status = (root / "copy").stat()
    assert status.st_size == size and status.st_blocks * 512 < 1 << 20
    with (root / "copy").open("rb") as file:
        assert os.pread(file.fileno(), 4098, (1 << 30) - 1) == b"\0" + b"x" * 4096 + b"\0"


# ---- bad disks


class BadDisk(SystemCalls):
    """A fake disk with space for 4 octets: writes are short, then fail; reads fail."""

    def __init__(self, error: int) -> None:
        self.error = error
        self.room = 4

    def pread(self, fd: int, into: memoryview, offset: int) -> int:
        raise OSError(self.error, os.strerror(self.error))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        part = data[: self.room]
        self.room -= len(part)
        if not part:
            raise OSError(self.error, os.strerror(self.error))
        return super().pwrite(fd, part, offset)

    def rename(self, old: str, new: str, directory: int) -> None:
        raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_errors_of_the_disk_name_the_file_and_leave_nothing(root: Path, number: int) -> None:
    (root / "old").write_text("old")
    with Tree(root, writable=True, calls=BadDisk(number)) as tree:
        incoming = tree.begin_file(make_file_entry("old", 6), resume=False)
        with pytest.raises(OSError, match=rf"^.Errno {number}. old: ") as error:
            incoming.write(0, memoryview(b"123456"))
        assert error.value.errno == number
        incoming.abandon(keep=False)

        with pytest.raises(OSError, match="old: "):
            tree.begin_file(make_file_entry("old", 0), resume=False).finish()

        source = tree.open_for_send("old")
        with pytest.raises(OSError, match="old: "):
            source.read(memoryview(bytearray(3)), 0)
        source.close()
    assert (root / "old").read_text() == "old" and names_in_folder(root) == ["old"]


def test_descriptors_are_closed_after_every_kind_of_error(root: Path) -> None:
    (root / "d").mkdir()
    before = count_open_descriptors()
    for path in ("d", "d/a/b", "no/file", "../x", "d/" + "n" * 256):
        with Tree(root, writable=True) as tree:
            for use in (
                tree.open_for_send,
                lambda path: tree.begin_file(make_file_entry(path, 1), resume=True),
            ):
                with pytest.raises(OSError):
                    use(path)
    assert count_open_descriptors() == before
