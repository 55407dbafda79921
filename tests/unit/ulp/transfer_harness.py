"""A sender and a receiver that exchange units in one process, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from siwarp.ulp.adts import wire
from siwarp.ulp.adts.server import entry_and_entries_below
from siwarp.ulp.adts.transfer import Destination, FilePlan, Outcome, Receiver, Sender
from siwarp.ulp.adts.tree import SystemCalls, Tree
from siwarp.ulp.adts.wire import UNIT_HEADER_SIZE, DigestKind, Message, Option

FILES = 64


def encode_unit(*messages: tuple[int, Message], room: int = 1 << 16) -> memoryview:
    """Return a unit with messages, each with the id of its transfer."""
    view = memoryview(bytearray(room))
    at = UNIT_HEADER_SIZE
    for transfer, message in messages:
        at = message.put(view, at, transfer)
    wire.put_unit_header(view, at)
    return view[:at]


def fill_units(sender: Sender, size: int, *, gathers: bool = False) -> Iterator[memoryview]:
    """Let the sender fill units, and yield them until it waits for the receiver."""
    while True:
        view = memoryview(bytearray(size))
        at, payload = sender.fill_unit_with_records(view, UNIT_HEADER_SIZE, gathers=gathers)
        if payload is not None:
            view[at : at + payload.length] = payload.view
            at += payload.length
        if at == UNIT_HEADER_SIZE:
            return
        wire.put_unit_header(view, at)
        yield view[:at]


class Pump:
    """Sends a plan to a destination; counts units and collects outcomes of both ends."""

    def __init__(self, destination: Destination, unit: int = 1 << 16) -> None:
        self.sender = Sender(1, FILES)
        self.receiver = Receiver({0: destination}, FILES)
        self.unit = unit
        self.gathers = False
        self.units = 0
        self.sent = Outcome()
        self.received = Outcome()

    def send_all_units_of_plan(
        self, plan: FilePlan, before: Callable[[int], None] = lambda _: None
    ) -> None:
        """Send all units of a plan; call ``before`` with the number of each unit before it is
        delivered."""
        self.sender.add_plan(plan)
        while not plan.is_finished:
            progressed = False
            for unit in fill_units(self.sender, self.unit, gathers=self.gathers):
                before(self.units)
                self.units += 1
                progressed = True
                self._deliver_unit(unit)
            _add_outcome(self.sent, self.sender.take_outcome())
            assert progressed or plan.is_finished, "sender and receiver wait for each other"

    def _deliver_unit(self, unit: memoryview) -> None:
        outcome = self.receiver.process_records(wire.parse_records(unit))
        _add_outcome(self.received, outcome)
        if outcome.replies:
            for record in wire.parse_records(encode_unit(*outcome.replies, room=1 << 20)):
                self.sender.queue_reply(record)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


def _add_outcome(total: Outcome, more: Outcome) -> None:
    total.done += more.done
    total.skipped += more.skipped
    total.octets += more.octets
    total.failures += more.failures


def make_file_plan(
    tree: Tree,
    path: str = "",
    prefix: str = "",
    *,
    options: Option = Option.RESUME,
    digest: DigestKind = DigestKind.CRC32C,
    symlinks: bool = False,
) -> FilePlan:
    return FilePlan(
        tree,
        entry_and_entries_below(tree, path, True),
        base=path,
        prefix=prefix,
        options=options,
        digest=digest,
        symlinks=symlinks,
    )


def copy_tree(
    source: Path,
    target: Path,
    *,
    unit: int = 1 << 16,
    calls: SystemCalls | None = None,
    source_calls: SystemCalls | None = None,
    before: Callable[[int], None] = lambda _: None,
    options: Option = Option.RESUME,
    digest: DigestKind = DigestKind.CRC32C,
    symlinks: bool = False,
) -> Pump:
    """Copy the contents of a directory to another one; return the Pump, which has the outcomes."""
    with Tree(source, calls=source_calls) as origin, Tree(target, True, calls) as destination:
        pump = Pump(destination, unit)
        try:
            plan = make_file_plan(origin, options=options, digest=digest, symlinks=symlinks)
            pump.send_all_units_of_plan(plan, before)
        finally:
            pump.close()
    return pump


def read_tree_contents(root: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Return mode, time and octets of everything below a directory."""
    found: dict[str, tuple[int, int, bytes | None]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, data)
    return found
