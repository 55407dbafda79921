# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Access to the files below one directory for a peer whose paths and sizes are not trusted.

A path of a peer is relative and separated by ``/``. Each component is opened from the descriptor
of the directory before it, with O_NOFOLLOW, so that neither ``..`` nor a symbolic link, even one
that is created meanwhile, leads out of the root. Only regular files are opened: devices, FIFOs and
sockets are refused before and after opening.

A file is received under a temporary name in its directory, ``.NAME.adts-TAG``, and renamed when
it is complete. TAG is a hash of path, size and modification time, so that only the same version
of the file is resumed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from siwarp.ulp.adts.wire import MAX_PATH, FileKind

__all__ = [
    "Entry",
    "Extent",
    "Incoming",
    "Source",
    "SystemCalls",
    "Tree",
    "split_path",
    "temporary_name",
]

#: Maximum octets of a name in a directory, on all file systems of Linux.
NAME_MAX = 255
#: Number of hexadecimal digits of a tag, which identifies a version of a file.
TAG_DIGITS = 16
_TEMPORARY = re.compile(rf"\..*\.adts-[0-9a-f]{{{TAG_DIGITS}}}", re.DOTALL)

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True)
class Entry:
    """A file, directory or symbolic link, with the attributes that are transferred."""

    #: The path relative to the root; ``""`` is the root itself.
    path: str
    #: The kind of file; None: a device, FIFO or socket, which is never transferred.
    kind: FileKind | None
    #: Size of the file in octets; 0 unless the entry is a regular file.
    size: int = 0
    #: Modification time in nanoseconds since 1970.
    mtime_ns: int = 0
    #: The nine permission bits.
    mode: int = 0o644
    #: The target of a symbolic link.
    target: str = ""

    def tag(self) -> str:
        """Return the part of the temporary name that names this version of the file."""
        version = f"{self.size} {self.mtime_ns} ".encode() + os.fsencode(self.path)
        return hashlib.sha256(version).hexdigest()[:TAG_DIGITS]


@dataclass(frozen=True)
class Extent:
    """Consecutive octets of a file: data, or a hole, which reads as zeros."""

    offset: int
    length: int
    is_hole: bool


class SystemCalls:
    """The system calls on file contents; tests replace the object to inject errors."""

    def pread(self, fd: int, into: memoryview, offset: int) -> int:
        """Read into a buffer; return the number of octets, 0 at the end of the file."""
        return os.preadv(fd, [into], offset)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write octets; return how many were written."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Set the size of a file."""
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        """Write a file or directory to stable storage."""
        os.fsync(fd)

    def rename(self, old: str, new: str, directory: int) -> None:
        """Rename a file within a directory; an existing file is replaced."""
        os.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)


def split_path(path: str) -> list[str]:
    """Return the components of a path of a peer; ``""`` is the root, without components.

    Raises:
        OSError: the path is absolute, too long (ENAMETOOLONG), or has a component that is empty,
            ``.``, ``..``, contains NUL, or is the name of an incomplete file (EINVAL).

    """
    encoded = os.fsencode(path)
    if len(encoded) > MAX_PATH:
        raise OSError(
            errno.ENAMETOOLONG, f"a path has at most {MAX_PATH} octets, not {len(encoded)}"
        )
    if not path:
        return []
    parts = path.split("/")
    for part in parts:
        if part in {"", ".", ".."} or "\0" in part:
            raise OSError(
                errno.EINVAL,
                f"the path {path!r} is refused: give a relative path without empty parts, '.' "
                "and '..'",
            )
        if len(os.fsencode(part)) > NAME_MAX:
            raise OSError(
                errno.ENAMETOOLONG,
                f"a name has at most {NAME_MAX} octets: {part!r:.40} is too long",
            )
        if _TEMPORARY.fullmatch(part):
            raise OSError(
                errno.EINVAL,
                f"the name {part!r} is reserved for incomplete files: use another name",
            )
    return parts


def temporary_name(name: str, tag: str) -> str:
    """Return the name under which a file is received; a long name is shortened to fit."""
    room = NAME_MAX - len(f"..adts-{tag}")
    short = os.fsencode(name)[:room].decode("utf-8", "ignore")
    return f".{short}.adts-{tag}"


class Tree:
    """The files below a root directory. Several threads may use the object; close it afterwards.

    Args:
        root: the directory. Symbolic links in this path itself are followed.
        writable: whether files may be created, replaced and deleted.
        calls: the system calls on file contents.

    Raises:
        OSError: the root is not a directory that can be read.

    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        writable: bool = False,
        calls: SystemCalls | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.writable = writable
        self.calls = calls or SystemCalls()
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the root's descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _open_directory(self, parts: list[str]) -> Iterator[int]:
        """Open a directory component by component; yield its descriptor (O_PATH)."""
        fd = os.open(".", os.O_PATH | _DIRECTORY, dir_fd=self._fd)
        try:
            for i, part in enumerate(parts):
                try:
                    below = os.open(part, os.O_PATH | _DIRECTORY, dir_fd=fd)
                except OSError as e:
                    where = "/".join(parts[: i + 1])
                    if e.errno in {errno.ELOOP, errno.ENOTDIR}:
                        raise OSError(
                            errno.ENOTDIR,
                            f"{where} is not a directory, or a symbolic link, which is not "
                            "followed: give the path without links",
                        ) from None
                    raise _error_with_peer_path(e, where) from None
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    # ---- reading

    def entry(self, path: str) -> Entry:
        """Return the attributes of a file, directory or symbolic link.

        Raises:
            OSError: the path is refused (see ``split_path``) or does not exist.

        """
        parts = split_path(path)
        if not parts:
            return _make_entry("", os.fstat(self._fd))
        with self._open_directory(parts[:-1]) as directory, _add_path_to_errors(path):
            status = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
            target = ""
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(parts[-1], dir_fd=directory)
            return _make_entry(path, status, target)

    def walk(self, path: str = "") -> Iterator[Entry]:
        """Yield an entry and, if it is a directory, all entries below it, parents first.

        Names of incomplete files are left out. The order is that of the names.

        Raises:
            OSError: the path is refused or does not exist. A directory below it that cannot be
                read raises the error when the iteration reaches it; call ``next`` again to go on.

        """
        return _Walk(self, self.entry(path))

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory, without those of incomplete files."""
        with (
            self._open_directory(split_path(path)) as directory,
            _add_path_to_errors(path or self.root),
        ):
            fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=directory)
            try:
                return sorted(
                    name for name in _names_in_directory(fd) if not _TEMPORARY.fullmatch(name)
                )
            finally:
                os.close(fd)

    def open_for_send(self, path: str) -> Source:
        """Open a regular file for reading.

        Raises:
            OSError: the path is refused, does not exist, or is not a regular file (EINVAL, EISDIR).

        """
        parts = split_path(path)
        if not parts:
            raise OSError(errno.EISDIR, "the root is a directory: name a file in it")
        with self._open_directory(parts[:-1]) as directory, _add_path_to_errors(path):
            _check_regular(path, os.stat(parts[-1], dir_fd=directory, follow_symlinks=False))
            fd = os.open(parts[-1], os.O_RDONLY | _FILE, dir_fd=directory)
        try:
            status = os.fstat(fd)
            _check_regular(path, status)
            return Source(self.calls, fd, _make_entry(path, status), status.st_blocks * 512)
        except BaseException:
            os.close(fd)
            raise

    # ---- writing

    def _check_writable(self, path: str) -> None:
        if not self.writable:
            raise OSError(
                errno.EROFS, f"{path}: this end is read-only: start it with --write to change files"
            )

    def begin_file(self, entry: Entry, resume: bool) -> Incoming:
        """Create, or with ``resume`` continue, the temporary file of a file that is received.

        Raises:
            OSError: this end is read-only (EROFS), the path is refused or is a directory, another
                transfer writes the same version (EBUSY), or the file system refuses it.

        """
        parts = split_path(entry.path)
        self._check_writable(entry.path)
        if not parts:
            raise OSError(errno.EISDIR, "the root is a directory: name a file in it")
        name, temporary = parts[-1], temporary_name(parts[-1], entry.tag())
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(self._open_directory(parts[:-1]))
            stack.enter_context(_add_path_to_errors(entry.path))
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    raise OSError(errno.EISDIR, "is a directory at the receiver: use another name")
            if resume:
                _remove_stale_incomplete_files(directory, name, temporary)
            fd = _open_temporary(directory, temporary)
            try:
                place = os.open(".", os.O_PATH | _DIRECTORY, dir_fd=directory)
                try:
                    return Incoming(self.calls, fd, place, temporary, entry, resume)
                except BaseException:
                    os.close(place)
                    raise
            except BaseException:
                os.close(fd)
                raise

    def make_directory(self, entry: Entry, *, sync: bool = False) -> None:
        """Create a directory unless it exists, and set its mode and time.

        ``sync``: return when its name is in stable storage.

        Raises:
            OSError: this end is read-only (EROFS), the path is refused, a file has the name
                (ENOTDIR), or the file system refuses it.

        """
        parts = split_path(entry.path)
        self._check_writable(entry.path or self.root)
        if parts:
            with self._open_directory(parts[:-1]) as above, _add_path_to_errors(entry.path):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(parts[-1], 0o700, dir_fd=above)
                if sync:
                    _sync_directory(self.calls, above)
        with self._open_directory(parts) as directory, _add_path_to_errors(entry.path or self.root):
            if parts:  # a peer must not change the mode of the tree's root directory
                Path(f"/proc/self/fd/{directory}").chmod(entry.mode & 0o777)
            _set_modification_time(directory, entry.mtime_ns)

    def make_symlink(self, entry: Entry, *, sync: bool = False) -> None:
        """Create a symbolic link, in place of a file or link of that name.

        ``sync``: return when it is in stable storage.

        Raises:
            OSError: this end is read-only (EROFS), the path is refused, a directory has the name,
                or the file system refuses it.

        """
        parts = split_path(entry.path)
        self._check_writable(entry.path)
        if not parts or not entry.target or "\0" in entry.target:
            raise OSError(errno.EINVAL, f"{entry.path!r}: not a symbolic link that can be created")
        temporary = temporary_name(parts[-1], entry.tag())
        with self._open_directory(parts[:-1]) as directory, _add_path_to_errors(entry.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            os.symlink(entry.target, temporary, dir_fd=directory)
            times = (entry.mtime_ns, entry.mtime_ns)
            os.utime(temporary, ns=times, dir_fd=directory, follow_symlinks=False)
            try:
                self.calls.rename(temporary, parts[-1], directory)
            except BaseException:
                os.unlink(temporary, dir_fd=directory)
                raise
            if sync:
                _sync_directory(self.calls, directory)

    def delete(self, path: str) -> None:
        """Delete a file, a symbolic link or an empty directory.

        Raises:
            OSError: this end is read-only (EROFS), the path is refused or does not exist, a
                directory is not empty, or the file system refuses it.

        """
        parts = split_path(path)
        self._check_writable(path)
        if not parts:
            raise OSError(errno.EINVAL, "the root cannot be deleted: name what is in it")
        with self._open_directory(parts[:-1]) as directory, _add_path_to_errors(path):
            status = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                os.rmdir(parts[-1], dir_fd=directory)
            else:
                os.unlink(parts[-1], dir_fd=directory)


class _Walk(Iterator[Entry]):
    """An iterator over a tree that continues after an error; a generator could not."""

    def __init__(self, tree: Tree, first: Entry) -> None:
        self._tree = tree
        self._waiting = [first]

    def __next__(self) -> Entry:
        while self._waiting:
            entry = self._waiting.pop()
            if entry.kind != FileKind.DIRECTORY:
                return entry
            below: list[Entry] = []
            for name in self._tree.names(entry.path):
                path = f"{entry.path}/{name}" if entry.path else name
                # It is no error if the file was deleted after its name was read.
                with contextlib.suppress(FileNotFoundError):
                    below.append(self._tree.entry(path))
            self._waiting += reversed(below)
            return entry
        raise StopIteration


class _Extents:
    """Finds the extents of data and the holes of an open file."""

    def __init__(self, fd: int, *, may_have_holes: bool) -> None:
        self._fd = fd
        self._may_have_holes = may_have_holes

    def find(self, offset: int, end: int) -> Extent:
        """Return the extent that begins at an offset, up to ``end``."""
        if not self._may_have_holes:
            return Extent(offset, end - offset, False)
        try:
            data = min(os.lseek(self._fd, offset, os.SEEK_DATA), end)
            if data > offset:
                return Extent(offset, data - offset, True)
            hole = min(os.lseek(self._fd, offset, os.SEEK_HOLE), end)
            return Extent(offset, hole - offset, False)
        except OSError as e:
            if e.errno == errno.ENXIO:  # the file has no data after the offset
                return Extent(offset, end - offset, True)
            # The file system does not report holes, so the whole file counts as data.
            self._may_have_holes = False
            return Extent(offset, end - offset, False)


class Source:
    """A regular file that is sent. Not usable by two threads at a time."""

    memory = None

    def __init__(self, calls: SystemCalls, fd: int, entry: Entry, allocated: int) -> None:
        self._calls = calls
        self.fd = fd
        self.entry = entry
        self._extents = _Extents(fd, may_have_holes=allocated < entry.size)

    def extent_at(self, offset: int) -> Extent:
        """Return the data or the hole that begins at an offset below the file's size."""
        return self._extents.find(offset, self.entry.size)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill a buffer with the octets at an offset.

        Raises:
            OSError: the file has become shorter (EAGAIN), or the file system refuses it.

        """
        with _add_path_to_errors(self.entry.path):
            got = _fill_buffer(self._calls, self.fd, into, offset)
        if got < len(into):
            raise _changed_file_error(
                self.entry.path, f"ends at {offset + got} of {self.entry.size}"
            )

    def check_unchanged(self) -> None:
        """Raise OSError (EAGAIN) if the file was written since it was opened."""
        status = os.fstat(self.fd)
        if status.st_size != self.entry.size:
            raise _changed_file_error(
                self.entry.path, f"has {status.st_size} octets instead of {self.entry.size}"
            )
        if status.st_mtime_ns != self.entry.mtime_ns:
            raise _changed_file_error(self.entry.path, "was written")

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Incoming:
    """A file that is received under a temporary name. Not usable by two threads at a time.

    Octets arrive in order: ``position`` is where the next ones belong. Exactly one of ``finish``
    and ``abandon`` ends the transfer.
    """

    def __init__(
        self,
        calls: SystemCalls,
        fd: int,
        directory: int,
        temporary: str,
        entry: Entry,
        resume: bool,
    ) -> None:
        self._calls = calls
        self._fd = fd
        self._directory = directory
        self._temporary = temporary
        self.entry = entry
        self._extents = _Extents(fd, may_have_holes=True)
        self.position = min(os.fstat(fd).st_size, entry.size) if resume else 0
        calls.truncate(fd, self.position)

    def _check_range(self, offset: int, length: int) -> None:
        if offset != self.position or length > self.entry.size - offset:
            raise OSError(
                errno.EPROTO,
                f"{self.entry.path}: {length} octets for offset {offset}, but {self.position} of "
                f"{self.entry.size} have arrived",
            )

    def find_stored_prefix(self) -> Incoming | None:
        """Return this object if octets have arrived in an earlier transfer, otherwise None."""
        return self if self.position else None

    def extent_at(self, offset: int) -> Extent:
        """Return the data or the hole that begins at an offset below the position."""
        return self._extents.find(offset, self.position)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill a buffer with octets that have arrived before; errors as for ``Source.read``."""
        with _add_path_to_errors(self.entry.path):
            got = _fill_buffer(self._calls, self._fd, into, offset)
        if got < len(into):
            raise _changed_file_error(
                self.entry.path, "another program has shortened the incomplete file"
            )

    def write(self, offset: int, data: memoryview) -> None:
        """Write the next octets.

        Raises:
            OSError: the offset is not the position, or the octets exceed the announced size
                (EPROTO); the disk is full (ENOSPC, EDQUOT), or another error of the file system.

        """
        self._check_range(offset, len(data))
        done = 0
        with _add_path_to_errors(self.entry.path):
            while done < len(data):
                done += self._calls.pwrite(self._fd, data[done:], offset + done)
        self.position += done

    def skip_hole(self, offset: int, length: int) -> None:
        """Skip octets, which become a hole that reads as zeros; errors as for ``write``."""
        self._check_range(offset, length)
        with _add_path_to_errors(self.entry.path):
            self._calls.truncate(self._fd, offset + length)
        self.position += length

    def finish(self, *, sync: bool = False) -> None:
        """Set mode and time, and rename the file to its final name.

        ``sync``: return when the file and its name are in stable storage.

        Raises:
            OSError: octets are missing (EPROTO), or the file system refuses it; the temporary file
                is then deleted.

        """
        if self.position != self.entry.size:
            missing = self.entry.size - self.position
            self.abandon(keep=False)
            raise OSError(
                errno.EPROTO, f"{self.entry.path}: {missing} octets are missing at its end"
            )
        try:
            with _add_path_to_errors(self.entry.path):
                os.fchmod(self._fd, self.entry.mode & 0o777)
                _set_modification_time(self._fd, self.entry.mtime_ns)
                name = self.entry.path.rpartition("/")[2]
                if sync:
                    self._calls.fsync(self._fd)
                self._calls.rename(self._temporary, name, self._directory)
                if sync:
                    _sync_directory(self._calls, self._directory)
        except BaseException:
            self.abandon(keep=False)
            raise
        self._close_descriptors()

    def abandon(self, *, keep: bool) -> None:
        """End an incomplete transfer; ``keep``: do not delete the temporary file, so it can be
        resumed.
        """
        if self._fd < 0:
            return
        if not keep:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        os.close(self._fd)
        os.close(self._directory)
        self._fd = self._directory = -1


def _make_entry(path: str, status: os.stat_result, target: str = "") -> Entry:
    kind = None
    if stat.S_ISREG(status.st_mode):
        kind = FileKind.FILE
    elif stat.S_ISDIR(status.st_mode):
        kind = FileKind.DIRECTORY
    elif stat.S_ISLNK(status.st_mode):
        kind = FileKind.SYMLINK
    size = status.st_size if kind == FileKind.FILE else 0
    return Entry(path, kind, size, status.st_mtime_ns, status.st_mode & 0o777, target)


def _check_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "is a directory: give -r to copy it")
    if stat.S_ISLNK(status.st_mode):
        raise OSError(
            errno.ELOOP, "is a symbolic link, which is not followed: give the path of its target"
        )
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is a device, FIFO or socket: only files are transferred")


def _open_temporary(directory: int, name: str) -> int:
    """Open a temporary file and lock it, so that two transfers never write the same one."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise OSError(errno.EEXIST, f"{name} is not a file of a transfer: remove it")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                errno.EBUSY, "another transfer receives this file: wait until it has ended"
            ) from None
        # The transfer that held the lock before may have renamed or deleted the file.
        here = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (here.st_dev, here.st_ino) != (status.st_dev, status.st_ino):
            raise OSError(errno.EBUSY, "another transfer has just received this file: try again")
    except FileNotFoundError:
        os.close(fd)
        raise OSError(
            errno.EBUSY, "another transfer has just received this file: try again"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove_stale_incomplete_files(directory: int, name: str, temporary: str) -> None:
    """Delete incomplete files of other versions of a file that no transfer writes."""
    start, _, _ = temporary.rpartition(".adts-")
    if start != f".{name}":
        return  # the name was shortened, so such files may be versions of a different file
    fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=directory)
    try:
        others = [
            other
            for other in _names_in_directory(fd)
            if other != temporary
            and other.startswith(f"{start}.adts-")
            and _TEMPORARY.fullmatch(other)
        ]
    finally:
        os.close(fd)
    for other in others:
        with contextlib.suppress(OSError):
            held = os.open(other, os.O_RDONLY | _FILE, dir_fd=directory)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(other, dir_fd=directory)
            finally:
                os.close(held)


def _sync_directory(calls: SystemCalls, directory: int) -> None:
    """Write a directory to stable storage; its descriptor may be one of O_PATH."""
    fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=directory)
    try:
        calls.fsync(fd)
    finally:
        os.close(fd)


def _names_in_directory(fd: int) -> list[str]:
    """Return the names in an open directory."""
    return os.listdir(fd)


def _fill_buffer(calls: SystemCalls, fd: int, into: memoryview, offset: int) -> int:
    """Read until the buffer is full or the file ends; return the number of octets read."""
    done = 0
    while done < len(into):
        got = calls.pread(fd, into[done:], offset + done)
        if not got:
            break
        done += got
    return done


def _set_modification_time(fd: int, mtime_ns: int) -> None:
    """Set the modification time; a descriptor of O_PATH is accepted."""
    os.utime(f"/proc/self/fd/{fd}", ns=(mtime_ns, mtime_ns))


def _changed_file_error(path: str, how: str) -> OSError:
    return OSError(
        errno.EAGAIN, f"{path}: {how}: the file changed while it was sent; send it again"
    )


def _error_with_peer_path(error: OSError, path: str) -> OSError:
    """Return an error whose text has the peer's path instead of the local path."""
    text = error.strerror or str(error)
    if not text.startswith(f"{path}: "):
        text = f"{path}: {text}"
    return OSError(error.errno or errno.EIO, text)


@contextlib.contextmanager
def _add_path_to_errors(path: str) -> Iterator[None]:
    """Add the peer's path to the text of each OSError that the block raises."""
    try:
        yield
    except OSError as e:
        raise _error_with_peer_path(e, path) from None
