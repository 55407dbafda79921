"""Files as records: sender and receiver on real directories, without a network."""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from unit.ulp.transfer_harness import (
    Pump,
    copy_tree,
    encode_unit,
    fill_units,
    make_file_plan,
    read_tree_contents,
)

from siwarp.ulp.adts import wire
from siwarp.ulp.adts.local import MAX_ZEROS, MemoryOrigin, ObjectDestination
from siwarp.ulp.adts.transfer import SMALL_FILE, FilePlan, ListPlan, Outcome, Receiver, Sender
from siwarp.ulp.adts.tree import Entry, SystemCalls, Tree
from siwarp.ulp.adts.wire import UNIT_HEADER_SIZE, DigestKind, ErrorCode, FileKind, Option

TIME = 1_600_000_000_123_456_789


@pytest.fixture(name="source")
def directory_to_send(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "d" / "e").mkdir(parents=True)
    draw = random.Random(1)
    for name, size in {
        "empty": 0,
        "one": 1,
        "d/small": 1000,
        "d/limit": SMALL_FILE,
        "d/above": SMALL_FILE + 1,
        "d/e/large": 900_001,
    }.items():
        (root / name).write_bytes(draw.randbytes(size))
    (root / "d" / "empty").mkdir()
    (root / "d" / "small").chmod(0o751)
    (root / "d" / "empty").chmod(0o500)
    for path in (root / "one", root / "d" / "empty", root / "d" / "e", root / "d"):
        os.utime(path, ns=(TIME, TIME))
    return root


@pytest.fixture(name="target")
def target_directory(tmp_path: Path) -> Path:
    root = tmp_path / "target"
    root.mkdir()
    return root


@pytest.mark.parametrize("unit", [2048, 4096 + 7, 1 << 16, 1 << 20])
@pytest.mark.parametrize("digest", list(DigestKind))
def test_a_tree_arrives_with_contents_modes_and_times(
    source: Path, target: Path, unit: int, digest: DigestKind
) -> None:
    pump = copy_tree(source, target, unit=unit, digest=digest)
    assert read_tree_contents(target) == read_tree_contents(source)
    assert pump.sent.failures == pump.received.failures == []
    assert pump.sent.done == pump.received.done == 6
    assert pump.sent.octets == pump.received.octets


@pytest.mark.clause("ADTS-FILE-3")
def test_many_small_files_are_packed_into_few_units(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "many"
    source.mkdir()
    for i in range(200):
        (source / f"{i:04}").write_bytes(b"x" * 100)
    pump = copy_tree(source, target, unit=1 << 20)
    assert read_tree_contents(target) == read_tree_contents(source)
    # At most 64 transfers are open at a time, so the receiver replies four times.
    assert pump.units == 4


@pytest.mark.clause("ADTS-FILE-3")
@pytest.mark.parametrize("update", [Option.NONE, Option.UPDATE])
def test_only_small_files_are_sent_at_once_and_with_update_none(
    source: Path, target: Path, update: Option
) -> None:
    opened: dict[str, bool] = {}

    class Noting(Receiver):
        def process_records(self, records: Iterable[wire.Record]) -> Outcome:
            kept = list(records)
            for record in kept:
                if record.type == wire.Type.OPEN:
                    message = wire.Open.unpack(record)
                    at_once = bool(message.options & Option.AT_ONCE)
                    if message.kind == FileKind.FILE:
                        opened[os.fsdecode(message.path)] = at_once
            return super().process_records(kept)

    with Tree(source) as origin, Tree(target, True) as destination:
        pump = Pump(destination)
        pump.receiver = Noting({0: destination}, 64)
        pump.send_all_units_of_plan(make_file_plan(origin, options=Option.RESUME | update))
        pump.close()
    small = {"empty", "one", "d/small", "d/limit"}
    assert opened == {
        path: path in small and not update for path in (*small, "d/above", "d/e/large")
    }
    assert read_tree_contents(target) == read_tree_contents(source)


def test_files_with_size_and_time_of_the_receivers_are_skipped_with_update(
    source: Path, target: Path
) -> None:
    copy_tree(source, target)
    (source / "one").write_bytes(b"y")
    pump = copy_tree(source, target, options=Option.RESUME | Option.UPDATE)
    assert (pump.sent.skipped, pump.sent.done) == (5, 1)
    assert read_tree_contents(target) == read_tree_contents(source)


def test_symbolic_links_are_failures_unless_they_are_wanted(source: Path, target: Path) -> None:
    (source / "link").symlink_to("one")
    os.mkfifo(source / "fifo")
    pump = copy_tree(source, target)
    assert sorted(f.text for f in pump.sent.failures) == [
        "fifo: skipped, because it is a device, FIFO or socket",
        "link: skipped, because it is a symbolic link (give --links)",
    ]
    assert [f.code for f in pump.received.failures] == [ErrorCode.KIND] * 2
    pump = copy_tree(source, target, symlinks=True)
    assert [f.path for f in pump.sent.failures] == ["fifo"]
    assert (target / "link").readlink() == Path("one")


# ---- interrupted transfers


class Killed(BaseException):
    """Raised by a fake system call, to simulate that the process is killed in the call."""


class KilledDisk(SystemCalls):
    """A fake disk that raises Killed when a number of octets has been written."""

    def __init__(self, octets: int) -> None:
        self.left = octets

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        part = data[: self.left]
        self.left -= len(part)
        done = super().pwrite(fd, part, offset) if part else 0
        if done < len(data):
            raise Killed
        return done


class CountsWrittenOctets(SystemCalls):
    """The calls of the real disk, with a count of the octets that are written."""

    written = 0

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        done = super().pwrite(fd, data, offset)
        self.written += done
        return done


@pytest.mark.clause("ADTS-RESUME-1", "ADTS-RESUME-2", "ADTS-RESUME-3")
@pytest.mark.parametrize("seed", range(60))
def test_a_transfer_that_is_cut_at_any_octet_is_resumed(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    size = SMALL_FILE + draw.randrange(1, 200_000)
    data = draw.randrange(1, size)
    with (source / "file").open("wb") as file:
        file.write(draw.randbytes(data))
        file.truncate(size)  # the rest of the file is a hole
    written = draw.randrange(data)
    with pytest.raises(Killed):
        copy_tree(source, target, unit=8192, calls=KilledDisk(written))
    assert not (target / "file").exists()
    calls = CountsWrittenOctets()
    pump = copy_tree(source, target, unit=8192, calls=calls)
    assert read_tree_contents(target) == read_tree_contents(source)
    assert calls.written <= data - written + 8192 and pump.sent.failures == []


@pytest.mark.clause("ADTS-RESUME-3")
def test_an_incomplete_file_with_other_octets_is_replaced(source: Path, target: Path) -> None:
    def raise_at_unit_60(number: int) -> None:
        if number == 60:
            raise Killed

    with pytest.raises(Killed):
        copy_tree(source / "d" / "e", target, unit=8192, before=raise_at_unit_60)
    (incomplete,) = target.iterdir()
    with incomplete.open("r+b") as file:
        file.write(b"changed")
    copy_tree(source / "d" / "e", target, unit=8192)
    assert read_tree_contents(target) == read_tree_contents(source / "d" / "e")


# ---- failures of one file


class Failing(SystemCalls):
    """The calls of the real file system, which fail for files of one size."""

    def __init__(self, size: int, error: int) -> None:
        self.size = size
        self.error = error

    def _raise_if_end_at_size(self, fd: int, end: int) -> None:
        if end == self.size:
            raise OSError(self.error, os.strerror(self.error))

    def pread(self, fd: int, into: memoryview, offset: int) -> int:
        self._raise_if_end_at_size(fd, offset + len(into))
        return super().pread(fd, into, offset)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._raise_if_end_at_size(fd, offset + len(data))
        return super().pwrite(fd, data, offset)


@pytest.mark.clause("ADTS-FILE-8")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, ErrorCode.NO_SPACE),
        (errno.EDQUOT, ErrorCode.QUOTA),
        (errno.EIO, ErrorCode.IO),
        (errno.EACCES, ErrorCode.PERMISSION),
    ],
)
@pytest.mark.parametrize("size", [1000, 900_001])
@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_a_failure_of_one_file_is_reported_to_both_ends_and_ends_no_other_file(
    source: Path, target: Path, number: int, code: ErrorCode, size: int, end: str
) -> None:
    failing = Failing(size, number)
    pump = (
        copy_tree(source, target, calls=failing)
        if end == "receiver"
        else copy_tree(source, target, source_calls=failing)
    )
    name = {1000: "d/small", 900_001: "d/e/large"}[size]
    for outcome in (pump.sent, pump.received):
        assert [f.code for f in outcome.failures] == [code]
        assert name in outcome.failures[0].text
    left = {path: data for path, data in read_tree_contents(source).items() if path != name}
    assert read_tree_contents(target) == left


@pytest.mark.clause("ADTS-FILE-7")
def test_a_file_that_changes_while_it_is_sent_fails_alone(source: Path, target: Path) -> None:
    changed = iter([source / "d" / "e" / "large"])

    def append_at_unit_80(number: int) -> None:
        if number == 80:
            with next(changed).open("ab") as file:
                file.write(b"more")

    pump = copy_tree(source, target, unit=8192, before=append_at_unit_80)
    assert [f.code for f in pump.sent.failures] == [ErrorCode.CHANGED]
    assert [f.code for f in pump.received.failures] == [ErrorCode.CHANGED]
    assert not (target / "d" / "e" / "large").exists()
    assert list((target / "d" / "e").iterdir()) == []
    assert (target / "one").exists()


def test_a_directory_that_cannot_be_created_fails_with_what_is_in_it(
    source: Path, target: Path
) -> None:
    (target / "d").write_text("a file")
    pump = copy_tree(source, target)
    assert {f.path for f in pump.sent.failures} >= {"d", "d/small", "d/e/large"}
    assert (target / "d").read_text() == "a file"
    assert (target / "one").exists() and (target / "empty").exists()


# ---- a sender that lies


def make_open_message(path: str, size: int, **more: object) -> wire.Open:
    message = wire.Open(path=os.fsencode(path), size=size, mtime_ns=TIME, mode=0o644)
    return replace(message, **more)  # type: ignore[arg-type]


def process_messages(receiver: Receiver, *messages: tuple[int, wire.Message]) -> list[wire.Message]:
    outcome = receiver.process_records(wire.parse_records(encode_unit(*messages)))
    return [message for _, message in outcome.replies]


def error_codes_in_replies(replies: list[wire.Message]) -> list[ErrorCode]:
    return [message.code for message in replies if isinstance(message, wire.Error)]


@pytest.fixture(name="receiver")
def receiver_of_target_directory(target: Path) -> Receiver:
    return Receiver({0: Tree(target, True)}, 2)


@pytest.mark.parametrize(
    "path", ["../out", "/out", "a/../../out", "a//b", ".x.adts-0123456789abcdef", "n" * 256]
)
def test_hostile_paths_are_refused_and_nothing_is_created(
    receiver: Receiver, target: Path, path: str
) -> None:
    for i, kind in enumerate(FileKind):
        message = make_open_message(path, 0, kind=kind, target=b"x", options=Option.AT_ONCE)
        codes = error_codes_in_replies(process_messages(receiver, (2 * i + 1, message)))
        assert codes == [ErrorCode.NAME]
    assert list(target.parent.rglob("out*")) == [] and list(target.iterdir()) == []


@pytest.mark.clause("ADTS-FILE-4", "ADTS-FILE-5", "ADTS-FILE-6")
def test_a_wrong_digest_or_size_leaves_no_file(receiver: Receiver, target: Path) -> None:
    at_once = Option.AT_ONCE
    zeros = wire.Hole(0, 8)
    assert (
        error_codes_in_replies(
            process_messages(
                receiver,
                (1, make_open_message("a", 8, options=at_once)),
                (1, zeros),
                (1, wire.End(8, b"\0\0\0\0")),
                (3, make_open_message("b", 8, options=at_once)),
                (3, zeros),
                (3, wire.End(9, b"\0\0\0\0")),
                (5, make_open_message("c", 8, options=at_once)),
                (5, wire.Hole(1, 7)),
                (7, make_open_message("e", 8, options=at_once)),
                (7, wire.Hole(0, 9)),
                (9, make_open_message("f", 8, options=at_once)),
                (9, wire.End(8, b"\0\0\0\0")),
            )
        )
        == [ErrorCode.DIGEST] + [ErrorCode.PROTOCOL] * 4
    )
    assert list(target.iterdir()) == [] and receiver.open_transfer_count == 0


@pytest.mark.clause("ADTS-FILE-2")
def test_more_open_transfers_than_agreed_violate_the_protocol(receiver: Receiver) -> None:
    with pytest.raises(wire.WireError, match="more than 2 open transfers"):
        process_messages(receiver, *((2 * i + 1, make_open_message(f"{i}", 9)) for i in range(3)))
    receiver.close()


def test_records_of_an_unknown_transfer_violate_the_protocol(receiver: Receiver) -> None:
    with pytest.raises(wire.WireError, match="never opened"):
        process_messages(receiver, (9, wire.End(0, b"\0\0\0\0")))


@pytest.mark.clause("ADTS-REQ-5")
def test_an_open_for_a_request_that_was_not_made_is_refused(receiver: Receiver) -> None:
    replies = process_messages(receiver, (1, make_open_message("a", 1, request=5)))
    assert error_codes_in_replies(replies) == [ErrorCode.CANCELLED]


# ---- a receiver that lies


@pytest.mark.parametrize(
    "reply", [wire.Accept(1 << 40, b"1234"), wire.Hole(0, 1), wire.RequestDone(1, 0)]
)
def test_a_reply_that_makes_no_sense_violates_the_protocol(
    source: Path, reply: wire.Message
) -> None:
    with Tree(source) as tree:
        sender = Sender(1, 64)
        sender.add_plan(make_file_plan(tree, "d/e/large", "large"))
        (unit,) = fill_units(sender, 1 << 16)
        assert [record.type for record in wire.parse_records(unit)] == [wire.Type.OPEN]
        for record in wire.parse_records(encode_unit((1, reply))):
            sender.queue_reply(record)
        with pytest.raises(wire.WireError):
            list(fill_units(sender, 1 << 16))
        sender.close()


@pytest.mark.clause("ADTS-RESUME-3")
def test_a_prefix_that_the_receiver_does_not_have_is_sent_again(source: Path, target: Path) -> None:
    with Tree(source) as tree, Tree(target, True) as destination:
        pump = Pump(destination)
        pump.sender.add_plan(make_file_plan(tree, "d/e/large", "large"))
        (unit,) = fill_units(pump.sender, 1 << 16)
        pump.receiver.process_records(wire.parse_records(unit))
        for record in wire.parse_records(encode_unit((1, wire.Accept(1000, b"lies")))):
            pump.sender.queue_reply(record)
        first = next(fill_units(pump.sender, 1 << 16))
        assert next(iter(wire.parse_records(first))).offset == 0
        pump.close()


def test_the_tag_of_a_version_changes_with_path_size_and_time() -> None:
    one = Entry("a", FileKind.FILE, 1, TIME)
    others = [replace(one, path="b"), replace(one, size=2), replace(one, mtime_ns=TIME + 1)]
    assert len({entry.tag() for entry in (one, *others)}) == 4
    assert one.tag() == replace(one, mode=0o600).tag()


def test_holes_are_written_to_an_open_file_as_zeros_up_to_a_limit() -> None:
    written = io.BytesIO()
    destination = ObjectDestination(written, "file")
    entry = Entry("file", FileKind.FILE, 1 << 40)
    file = destination.begin_file(entry, resume=False)
    file.write(0, memoryview(b"x"))
    file.skip_hole(1, 3_000_000)
    assert written.getvalue() == b"x" + bytes(3_000_000)
    for length in (MAX_ZEROS, (1 << 40) - 3_000_001):
        with pytest.raises(OSError, match="give a local path") as error:
            file.skip_hole(3_000_001, length)
        assert error.value.errno == errno.EFBIG
    assert len(written.getvalue()) == 3_000_001


@pytest.mark.clause("ADTS-REQ-1")
def test_an_answer_ends_with_request_done_however_full_the_last_unit_is() -> None:
    entries = [Entry(f"{i}" * 10, FileKind.FILE, i) for i in range(9)]
    for size in range(120, 220):  # an entry needs fewer than a hundred octets
        sender = Sender(1, 64)
        sender.add_plan(ListPlan(iter(entries), 1))
        types: list[wire.Type] = []
        while sender.is_busy:
            for unit in fill_units(sender, size):
                types += [record.type for record in wire.parse_records(unit)]
        assert types == [wire.Type.ENTRY] * 9 + [wire.Type.REQUEST_DONE]


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("unit", [2048, 9000, 1 << 14, 1 << 16])
@pytest.mark.parametrize("size", [1, 8192, 16_327, 16_328, 16_329, 65_536, 300_000])
def test_memory_of_the_program_arrives_whether_or_not_it_is_copied_into_units(
    size: int, unit: int, gathers: bool
) -> None:
    octets = bytearray(random.Random(size).randbytes(size))
    into = bytearray(size)
    pump = Pump(ObjectDestination(into, "file"), unit)
    pump.gathers = gathers
    origin = MemoryOrigin(memoryview(octets))
    pump.send_all_units_of_plan(FilePlan(origin, iter([origin.entry]), prefix="file"))
    assert (pump.received.done, pump.received.failures) == (1, [])
    assert into == octets


def test_only_the_octets_that_fill_the_end_of_a_unit_are_not_copied_into_it() -> None:
    origin = MemoryOrigin(memoryview(bytearray(100_000)))
    sender = Sender(1, 64)
    sender.add_plan(FilePlan(origin, iter([origin.entry]), prefix="file"))
    filled = []
    for _ in range(3):
        view = memoryview(bytearray(1 << 15))
        filled.append(sender.fill_unit_with_records(view, UNIT_HEADER_SIZE, gathers=True))
    payloads = [payload for _, payload in filled if payload is not None]
    assert [payload.memory for payload in payloads] == [origin.memory] * 3
    assert payloads[0].offset == 0
    assert payloads[1].offset == payloads[0].length
    for length, payload in filled:
        assert payload is not None
        assert length + payload.length == 1 << 15
    view = memoryview(bytearray(1 << 15))
    length, payload = sender.fill_unit_with_records(view, UNIT_HEADER_SIZE, gathers=True)
    assert payload is None
    assert length > 100_000 - sum(payload.length for payload in payloads)
