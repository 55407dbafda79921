# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The sending and the receiving of files as records at one end of a session.

``Sender`` fills units with records, and ``Receiver`` carries out the records of units. Both call
the file system, so they run in the session's disk thread, one call at a time; neither does network
I/O. A failure of one file ends only the transfer of that file.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from siwarp.ulp.adts import wire
from siwarp.ulp.adts.digest import Digest, create_empty_digest
from siwarp.ulp.adts.registrations import Payload, ProgramMemory
from siwarp.ulp.adts.tree import Entry, Extent
from siwarp.ulp.adts.wire import (
    RECORD_HEADER_SIZE,
    UNIT_HEADER_SIZE,
    DigestKind,
    ErrorCode,
    FileKind,
    Message,
    Option,
    Record,
    Type,
)

__all__ = [
    "SMALL_FILE",
    "Destination",
    "Failure",
    "FilePlan",
    "Filled",
    "ListPlan",
    "Outcome",
    "OutgoingFile",
    "Readable",
    "ReceivedFile",
    "Receiver",
    "Sender",
    "clip_error_text",
    "errno_of_error_code",
    "error_code",
    "failure_of_os_error",
]

#: Maximum size of a file that is sent without waiting for the receiver's ACCEPT.
SMALL_FILE = 256 << 10
#: Number of files whose OPEN is sent in advance, so that their ACCEPTs arrive in time.
AHEAD = 4
#: Minimum length of a hole that is announced as a hole; shorter ones are sent as zeros.
_SMALLEST_HOLE = 4096
#: Minimum octets of a file for which the end of a unit is used; less space there stays unused.
_SMALLEST_PART = 512
#: Minimum octets of the program's memory that are sent without a copy.
_SMALLEST_PAYLOAD = 8 << 10
#: Octets that are read at a time to compute the digest of what arrived before.
_PREFIX_STEP = 1 << 20

_CODES = {
    errno.ENOENT: ErrorCode.NOT_FOUND,
    errno.EACCES: ErrorCode.PERMISSION,
    errno.EPERM: ErrorCode.PERMISSION,
    errno.EROFS: ErrorCode.READ_ONLY,
    errno.EEXIST: ErrorCode.EXISTS,
    errno.ENOTEMPTY: ErrorCode.EXISTS,
    errno.EBUSY: ErrorCode.EXISTS,
    errno.EINVAL: ErrorCode.NAME,
    errno.ENAMETOOLONG: ErrorCode.NAME,
    errno.EILSEQ: ErrorCode.NAME,
    errno.EISDIR: ErrorCode.KIND,
    errno.ENOTDIR: ErrorCode.KIND,
    errno.ELOOP: ErrorCode.KIND,
    errno.ENOSPC: ErrorCode.NO_SPACE,
    errno.EFBIG: ErrorCode.NO_SPACE,
    errno.EDQUOT: ErrorCode.QUOTA,
    errno.EAGAIN: ErrorCode.CHANGED,
    errno.EPROTO: ErrorCode.PROTOCOL,
    errno.EBADMSG: ErrorCode.DIGEST,
    errno.ECANCELED: ErrorCode.CANCELLED,
    errno.EOPNOTSUPP: ErrorCode.UNSUPPORTED,
}
_NUMBERS = {code: number for number, code in reversed(_CODES.items())} | {
    ErrorCode.REFUSED: errno.ECONNREFUSED,
    ErrorCode.BUSY: errno.EBUSY,
    ErrorCode.TIMEOUT: errno.ETIMEDOUT,
    ErrorCode.SHUTDOWN: errno.ESHUTDOWN,
}


def error_code(error: OSError) -> ErrorCode:
    """Return the code by which an error of the file system is reported to the peer."""
    return _CODES.get(error.errno or 0, ErrorCode.IO)


def errno_of_error_code(code: ErrorCode) -> int:
    """Return the errno for a code."""
    return _NUMBERS.get(code, errno.EIO if code == ErrorCode.IO else errno.EPROTO)


@dataclass(frozen=True)
class Failure:
    """A file that was not transferred."""

    #: The path of the file; empty if this end does not know it.
    path: str
    code: ErrorCode
    #: What happened, in one sentence that names the file.
    text: str


def failure_of_os_error(path: str, error: OSError) -> Failure:
    """Return the Failure that describes an error of the file system."""
    text = error.strerror or str(error)
    return Failure(path, error_code(error), text if path in text else f"{path}: {text}")


@dataclass
class Outcome:
    """The result of a call: replies for the peer, and counts and failures for this end.

    ``replies`` has the id of the transfer and the message.
    """

    replies: list[tuple[int, Message]] = field(default_factory=list)
    #: Number of files that are complete, and number of those that the receiver already had.
    done: int = 0
    skipped: int = 0
    #: Octets of files that were transferred, holes included, and the path of the last of them.
    octets: int = 0
    #: Octets of files that are complete.
    complete: int = 0
    path: str = ""
    failures: list[Failure] = field(default_factory=list)


_NO_EXTENT = Extent(0, 0, False)


class Readable(Protocol):
    """The readable octets of a file that is sent, or of one that has arrived in part."""

    def extent_at(self, offset: int) -> Extent:
        """Return the data or the hole that begins at an offset."""

    def read(self, into: memoryview, offset: int) -> None:
        """Fill a buffer with octets of the file. Raises OSError."""


# ---- sending


class OutgoingFile(Readable, Protocol):
    """A file that is sent: ``tree.Source``, or octets of the program."""

    entry: Entry

    @property
    def memory(self) -> ProgramMemory | None:
        """The file, if it is memory of the program that can be sent without a copy."""

    def check_unchanged(self) -> None:
        """Raise OSError if the file was changed since it was opened."""

    def close(self) -> None:
        """Close the file."""


class Origin(Protocol):
    """The place from which the files of a plan are read: a directory, memory or an open file."""

    def open_for_send(self, path: str) -> OutgoingFile:
        """Open a file. Raises OSError."""


@dataclass
class FilePlan:
    """Files to send, in the order of ``entries``.

    Attributes:
        origin: opens the files, by the path of their entry.
        entries: the files; an error stands for a file that cannot be read.
        base: the path of the first entry, for which the receiver has ``prefix``.
        options: UPDATE, RESUME and SYNC.
        digest: the kind of digest.
        request: the id of the GET, or 0.
        symlinks: send symbolic links as such; otherwise they are reported as failures.

    """

    origin: Origin
    entries: Iterator[Entry | Failure]
    base: str = ""
    prefix: str = ""
    options: Option = Option.RESUME
    digest: DigestKind = DigestKind.CRC32C
    request: int = 0
    symlinks: bool = False
    #: Numbers of files that were sent or failed so far.
    files: int = 0
    failed: int = 0
    is_finished: bool = False

    def remote_path(self, path: str) -> str:
        """Return the path at the receiver: ``prefix`` in place of ``base``."""
        below = path[len(self.base) :].lstrip("/")
        return f"{self.prefix}/{below}" if self.prefix and below else self.prefix or below

    def is_sent_at_once(self, entry: Entry) -> bool:
        """Return whether the octets of a file follow its OPEN without waiting for an ACCEPT."""
        small = entry.kind == FileKind.FILE and entry.size <= SMALL_FILE
        return small and not self.options & Option.UPDATE


@dataclass
class ListPlan:
    """Entries to list, in answer to the LIST with the id ``request``."""

    entries: Iterator[Entry | Failure]
    request: int
    files: int = 0
    failed: int = 0
    is_finished: bool = False


@dataclass
class _Sending:
    """A transfer that this end has begun."""

    entry: Entry
    plan: FilePlan
    at_once: bool = False
    #: The id of the transfer; 0 until its OPEN has been written.
    id: int = 0
    accepted: bool = False
    source: OutgoingFile | None = None
    digest: Digest | None = None
    position: int = 0
    extent: Extent = _NO_EXTENT
    prefix: bytes = b""


class Filled(NamedTuple):
    """The octets of a filled unit: ``length`` of them in it, followed by those of ``payload``."""

    length: int
    payload: Payload | None = None


class Sender:
    """The sending half of a session.

    All methods but ``add`` and ``reply`` are called by the disk thread. ``add`` and ``reply`` only
    queue, so the thread of the event loop may call them meanwhile.

    Args:
        first: the id of the first transfer; further ids are 2 higher each.
        files: transfers that may be open at a time.

    """

    def __init__(self, first: int, files: int) -> None:
        self._ids = itertools.count(first, 2)
        self._files = files
        self._plans: deque[FilePlan | ListPlan] = deque()
        self._plan: FilePlan | ListPlan | None = None
        self._replies: deque[Record] = deque()
        self._open: dict[int, _Sending] = {}
        self._ready: deque[_Sending] = deque()
        self._current: _Sending | None = None
        self._unsent: deque[tuple[int, Message]] = deque()
        self._directories: list[Entry] = []
        self._peeked: Entry | Failure | None = None
        self._is_finishing = False
        self._gathers = False
        self._payload: Payload | None = None
        self.outcome = Outcome()

    # ---- called by the thread of the event loop

    def take_transfer_id(self) -> int:
        """Return a new id for a transfer or request."""
        return next(self._ids)

    def add_plan(self, plan: FilePlan | ListPlan) -> None:
        """Send the files or entries of a plan, after those of earlier plans."""
        self._plans.append(plan)

    def queue_reply(self, record: Record) -> None:
        """Queue a reply of the peer to a transfer of this end; the record's body may be a view.

        Raises:
            WireError: more records wait than a receiver can have a reason to send.

        """
        if len(self._replies) > 4 * self._files:
            raise wire.WireError(f"more than {4 * self._files} replies about {self._files} files")
        self._replies.append(record._replace(body=memoryview(bytes(record.body))))

    @property
    def waiting_plan_count(self) -> int:
        """The number of plans that wait for an earlier plan."""
        return len(self._plans)

    @property
    def is_busy(self) -> bool:
        """Whether a plan is not finished, or its last messages are not sent."""
        return self._plan is not None or bool(self._plans) or bool(self._unsent)

    # ---- called by the disk thread

    def take_outcome(self) -> Outcome:
        """Return the counts, failures and replies since the last call."""
        outcome, self.outcome = self.outcome, Outcome()
        return outcome

    def fill_unit_with_records(self, view: memoryview, at: int, *, gathers: bool = False) -> Filled:
        """Write records into a unit, from a position on; return the length of the unit's octets.

        The length is ``at`` if there is nothing to send until the peer has replied. ``gathers``:
        the octets of the last record may be a payload outside of the unit.
        """
        self._gathers, self._payload = gathers, None
        return Filled(self._write_records_into_unit(view, at), self._payload)

    def _write_records_into_unit(self, view: memoryview, at: int) -> int:
        while self._replies:
            self._handle_reply(self._replies.popleft())
        while True:
            before = at
            while self._unsent and self._unsent[0][1].record_length() <= len(view) - at:
                transfer, message = self._unsent.popleft()
                at = message.put(view, at, transfer)
            if self._unsent:
                return at
            if self._plan is None:
                if not self._plans:
                    return at
                self._begin_plan(self._plans.popleft())
            if isinstance(self._plan, ListPlan):
                at = self._encode_entries(self._plan, view, at)
            else:
                at = self._fill_unit_with_files(view, at)
            if self._payload is not None:
                return at  # the payload is the end of the unit, so no record may follow
            if at == before and not self._unsent and (self._plan is not None or not self._plans):
                return at

    def close(self) -> None:
        """Close the open files after the end of the session."""
        for sending in self._open.values():
            if sending.source is not None:
                sending.source.close()
        self._open.clear()

    def _begin_plan(self, plan: FilePlan | ListPlan) -> None:
        self._plan = plan
        self._directories = []
        self._peeked = None
        self._is_finishing = False

    def _end_plan(self, plan: FilePlan | ListPlan) -> None:
        self._plan = None
        plan.is_finished = True
        if plan.request:
            self._unsent.append((plan.request, wire.RequestDone(plan.files, plan.failed)))

    def _record_failure(self, transfer: int, plan: FilePlan, failure: Failure) -> None:
        """Record a failure, and report it to the receiver unless ``transfer`` is 0."""
        plan.failed += 1
        self.outcome.failures.append(failure)
        if transfer:
            self._unsent.append((transfer, wire.Error(failure.code, clip_error_text(failure.text))))

    def _encode_entries(self, plan: ListPlan, view: memoryview, at: int) -> int:
        while True:
            if self._peeked is None:
                self._peeked = next(plan.entries, None)
            found = self._peeked
            if found is None:
                self._end_plan(plan)
                return at
            if isinstance(found, Failure) or found.kind is None:
                plan.failed += 1
            else:
                message = wire.Entry(
                    path=os.fsencode(found.path),
                    kind=found.kind,
                    size=found.size,
                    mtime_ns=found.mtime_ns,
                    mode=found.mode,
                    target=os.fsencode(found.target),
                )
                if message.record_length() > len(view) - UNIT_HEADER_SIZE:
                    plan.failed += 1  # the path is too long for a unit of this session
                elif message.record_length() > len(view) - at:
                    return at
                else:
                    at = message.put(view, at, plan.request)
                    plan.files += 1
            self._peeked = None

    def _fill_unit_with_files(self, view: memoryview, at: int) -> int:
        plan = self._plan
        assert isinstance(plan, FilePlan)
        while True:
            at = self._announce_files(plan, view, at)
            if self._current is None and self._ready:
                self._current = self._ready.popleft()
            current = self._current
            if current is None:
                if self._is_finishing and not self._directories and not self._open:
                    self._end_plan(plan)
                return at
            try:
                at, complete = self._put_file_octets(current, view, at)
            except OSError as e:
                self._drop_transfer(current)
                failure = failure_of_os_error(current.entry.path, e)
                self._record_failure(current.id or next(self._ids), plan, failure)
                return at
            if not complete:
                return at
            self._current = None

    def _announce_files(self, plan: FilePlan, view: memoryview, at: int) -> int:
        """Begin transfers of the plan's next files; write the OPEN of files that need an ACCEPT."""
        while not self._is_finishing and self._may_take_more_files(plan):
            if self._peeked is None:
                self._peeked = next(plan.entries, None)
            found = self._peeked
            if found is None:
                if self._open or self._ready or self._current:
                    return at
                self._is_finishing = True
                break
            if isinstance(found, Entry):
                found = self._entry_or_failure(plan, found, len(view) - UNIT_HEADER_SIZE)
            if isinstance(found, Entry):
                if plan.is_sent_at_once(found):
                    self._ready.append(_Sending(found, plan, at_once=True))
                elif plan.remote_path(found.path):
                    sending = _Sending(
                        _entry_with_owner_write_permission(found),
                        plan,
                        at_once=found.kind != FileKind.FILE,
                    )
                    if not self._open_message_fits(sending, view, at):
                        return at
                    at = self._put_open_message(sending, view, at)
                if found.kind == FileKind.DIRECTORY and plan.remote_path(found.path):
                    self._directories.append(found)
            else:
                self._record_failure(next(self._ids), plan, found)
            self._peeked = None
        # Set the mode and time of directories last, when nothing is created in them any more.
        while self._is_finishing and self._directories and len(self._open) < self._files:
            sending = _Sending(self._directories[-1], plan, at_once=True)
            if not self._open_message_fits(sending, view, at):
                return at
            at = self._put_open_message(sending, view, at)
            self._directories.pop()
        return at

    def _entry_or_failure(self, plan: FilePlan, entry: Entry, room: int) -> Entry | Failure:
        """Return the entry, or the reason why it is not sent."""
        path = entry.path
        if entry.kind is None or (entry.kind == FileKind.SYMLINK and not plan.symlinks):
            what = "a symbolic link (give --links)" if entry.kind else "a device, FIFO or socket"
            return Failure(path, ErrorCode.KIND, f"{path}: skipped, because it is {what}")
        try:
            needed = self._make_open_message(_Sending(entry, plan)).record_length()
        except wire.WireError as e:
            return Failure(path, ErrorCode.NAME, f"{path}: {e}")
        if needed > room:
            text = f"the path does not fit into a unit of this session: {path}"
            return Failure(path, ErrorCode.NAME, text)
        return entry

    def _may_take_more_files(self, plan: FilePlan) -> bool:
        if len(self._open) + len(self._ready) >= self._files or len(self._ready) >= AHEAD:
            return False
        if plan.options & Option.UPDATE:
            return True
        return sum(not s.at_once and not s.accepted for s in self._open.values()) < AHEAD

    def _make_open_message(self, sending: _Sending) -> wire.Open:
        entry, plan = sending.entry, sending.plan
        assert entry.kind is not None
        return wire.Open(
            path=os.fsencode(plan.remote_path(entry.path)),
            size=entry.size,
            mtime_ns=entry.mtime_ns,
            mode=entry.mode,
            kind=entry.kind,
            target=os.fsencode(entry.target),
            options=Option.AT_ONCE | plan.options & Option.SYNC
            if sending.at_once
            else plan.options,
            digest=plan.digest,
            request=plan.request,
        )

    def _open_message_fits(self, sending: _Sending, view: memoryview, at: int) -> bool:
        return self._make_open_message(sending).record_length() <= len(view) - at

    def _put_open_message(self, sending: _Sending, view: memoryview, at: int) -> int:
        sending.id = next(self._ids)
        self._open[sending.id] = sending
        return self._make_open_message(sending).put(view, at, sending.id)

    def _put_file_octets(self, sending: _Sending, view: memoryview, at: int) -> tuple[int, bool]:
        """Write as much of a file as fits; return the new position, and whether the file is
        complete.
        """
        if sending.source is None:
            self._open_source(sending, view)
        source, digest = sending.source, sending.digest
        assert source is not None and digest is not None
        entry = sending.entry
        if not sending.id:
            if not self._open_message_fits(sending, view, at):
                return at, False
            at = self._put_open_message(sending, view, at)
        self.outcome.path = entry.path
        while sending.position < entry.size:
            extent = sending.extent
            left = extent.offset + extent.length - sending.position
            if left <= 0:
                sending.extent = source.extent_at(sending.position)
                continue
            room = len(view) - at - RECORD_HEADER_SIZE
            if room < min(_SMALLEST_PART, left):
                return at, False
            if extent.is_hole and left >= _SMALLEST_HOLE:
                hole = wire.Hole(offset=sending.position, length=left)
                if hole.record_length() > len(view) - at:
                    return at, False
                at = hole.put(view, at, sending.id)
                digest.add_zeros(left)
            else:
                left = min(left, room)
                start = at + RECORD_HEADER_SIZE
                at = wire.put_data_header(
                    view, at, transfer=sending.id, offset=sending.position, length=left
                )
                # The rest of a file is copied, so that its END is in the same unit.
                if self._gathers and source.memory and left == room >= _SMALLEST_PAYLOAD:
                    self._payload = Payload(source.memory, sending.position, left)
                    octets, at = self._payload.view, start
                else:
                    octets = view[start:at]
                    source.read(octets, sending.position)
                digest.update(octets)
            sending.position += left
            self.outcome.octets += left
            if self._payload is not None:
                return at, False
        end = wire.End(size=entry.size, digest=digest.value())
        if end.record_length() > len(view) - at:
            return at, False
        source.check_unchanged()
        source.close()
        sending.source = None
        return end.put(view, at, sending.id), True

    def _open_source(self, sending: _Sending, scratch: memoryview) -> None:
        """Open the file, and compare its first octets with those that the receiver already has."""
        path = sending.entry.path
        source = sending.plan.origin.open_for_send(path)
        sending.source = source
        sending.digest = create_empty_digest(sending.plan.digest)
        if sending.at_once:
            # The OPEN message is not written yet, so it gets the attributes of the file as opened.
            sending.entry = source.entry
        elif (source.entry.size, source.entry.mtime_ns) != (
            sending.entry.size,
            sending.entry.mtime_ns,
        ):
            raise OSError(
                errno.EAGAIN, f"{path}: was written since it was announced: send it again"
            )
        prefix = sending.position
        if prefix:
            add_first_octets_to_digest(
                sending.digest, source, prefix, memoryview(bytearray(_PREFIX_STEP))
            )
            if sending.digest.value() != sending.prefix:
                sending.digest = create_empty_digest(sending.plan.digest)
                sending.position = 0
            else:
                self.outcome.octets += prefix

    def _handle_reply(self, record: Record) -> None:
        sending = self._open.get(record.transfer)
        if sending is None:
            return  # this end has already ended the transfer, because it failed
        plan = sending.plan
        message = wire.parse_message(record)
        match message:
            case wire.Accept() if not sending.at_once and not sending.accepted:
                if message.offset > sending.entry.size:
                    raise wire.WireError(
                        f"an ACCEPT from offset {message.offset} of {sending.entry.size} octets"
                    )
                sending.accepted = True
                sending.position = message.offset
                sending.prefix = bytes(message.digest)
                self._ready.append(sending)
            case wire.Skip():
                self._drop_transfer(sending)
                self.outcome.skipped += 1
                plan.files += 1
            case wire.Done():
                self._drop_transfer(sending)
                if sending.entry.kind != FileKind.DIRECTORY:
                    plan.files += 1
                    self.outcome.done += 1
                if sending.entry.kind == FileKind.FILE:
                    self.outcome.complete += sending.entry.size
            case wire.Error():
                self._drop_transfer(sending)
                text = message.text
                path = sending.entry.path
                if sending.entry.kind == FileKind.DIRECTORY:
                    self._directories = [d for d in self._directories if d.path != path]
                self._record_failure(0, plan, Failure(path, message.code, text or path))
            case wire.Cancel():
                self._drop_transfer(sending)
                text = f"{sending.entry.path}: the receiver cancelled the transfer"
                self._record_failure(
                    0, plan, Failure(sending.entry.path, ErrorCode.CANCELLED, text)
                )
            case _:
                raise wire.WireError(f"an unexpected {record.type.name} for transfer {sending.id}")

    def _drop_transfer(self, sending: _Sending) -> None:
        self._open.pop(sending.id, None)
        if sending is self._current:
            self._current = None
        elif sending in self._ready:
            self._ready.remove(sending)
        if sending.source is not None:
            sending.source.close()
            sending.source = None


# ---- receiving


class ReceivedFile(Protocol):
    """A file that is received: ``tree.Incoming``, or memory of the program.

    ``position``: the number of octets that have arrived, in this session and before.
    """

    position: int

    def find_stored_prefix(self) -> Readable | None:
        """Return the octets that an earlier transfer has stored; None if there are none."""

    def write(self, offset: int, data: memoryview) -> None:
        """Write the next octets. Raises OSError."""

    def skip_hole(self, offset: int, length: int) -> None:
        """Skip octets, which become a hole that reads as zeros. Raises OSError."""

    def finish(self, *, sync: bool) -> None:
        """Give the complete file its final name; ``sync``: in stable storage. Raises OSError."""

    def abandon(self, *, keep: bool) -> None:
        """End the transfer of an incomplete file; ``keep``: a later transfer may resume it."""


class Destination(Protocol):
    """The place where received files are stored: a directory, memory or an open file."""

    def entry(self, path: str) -> Entry:
        """Return the entry at a path. Raises OSError."""

    def begin_file(self, entry: Entry, resume: bool) -> ReceivedFile:
        """Begin to receive a file; ``resume``: continue an incomplete one. Raises OSError."""

    def make_directory(self, entry: Entry, *, sync: bool) -> None:
        """Create a directory, unless it exists; ``sync``: in stable storage. Raises OSError."""

    def make_symlink(self, entry: Entry, *, sync: bool) -> None:
        """Create a symbolic link; ``sync``: in stable storage. Raises OSError."""


@dataclass
class _Receiving:
    """A transfer that the peer has begun."""

    entry: Entry
    destination: Destination
    file: ReceivedFile
    kind: DigestKind
    digest: Digest
    sync: bool
    #: Whether no octets have arrived since the ACCEPT, so that the sender may begin at 0.
    fresh: bool = True


class Receiver:
    """The receiving half of a session.

    ``destinations`` has the destination of each request (0: files that the peer puts); it may be
    changed between calls. ``process`` and ``close`` are called by the disk thread.

    Args:
        destinations: a request that is missing is refused.
        files: transfers that may be open at a time.

    """

    def __init__(self, destinations: dict[int, Destination], files: int) -> None:
        self.destinations = destinations
        self._files = files
        self._open: dict[int, _Receiving] = {}
        self._highest = 0
        self.outcome = Outcome()

    @property
    def open_transfer_count(self) -> int:
        """The number of files that are being received."""
        return len(self._open)

    def process_records(self, records: Iterable[Record]) -> Outcome:
        """Process the records of a unit; return the replies.

        Raises:
            WireError: the peer violates the protocol.

        """
        self.outcome = outcome = Outcome()
        for record in records:
            if record.type == Type.OPEN:
                self._begin_transfer(record)
                continue
            receiving = self._open.get(record.transfer)
            if receiving is None:
                if record.type == Type.ERROR:
                    message = wire.Error.unpack(record)
                    outcome.failures.append(Failure("", message.code, message.text))
                elif record.transfer > self._highest:
                    raise wire.WireError(
                        f"{record.type.name} of transfer {record.transfer}, which was never opened"
                    )
                continue  # ignored, because this end has already ended the transfer after a failure
            outcome.path = receiving.entry.path
            try:
                self._process_transfer_record(record, receiving)
            except OSError as e:
                # The incomplete file is deleted, because it may have filled the disk.
                self._end_transfer(record.transfer, keep=False)
                self._refuse_transfer(record.transfer, failure_of_os_error(receiving.entry.path, e))
        return outcome

    def close(self, *, keep: bool = True) -> None:
        """End all transfers; ``keep``: a later session may resume them."""
        for transfer in list(self._open):
            self._end_transfer(transfer, keep=keep)

    def _end_transfer(self, transfer: int, *, keep: bool) -> None:
        self._open.pop(transfer).file.abandon(keep=keep)

    def _refuse_transfer(self, transfer: int, failure: Failure) -> None:
        self.outcome.failures.append(failure)
        self.outcome.replies.append(
            (transfer, wire.Error(failure.code, clip_error_text(failure.text)))
        )

    def _begin_transfer(self, record: Record) -> None:
        message = wire.Open.unpack(record)
        if len(self._open) >= self._files:
            raise wire.WireError(f"more than {self._files} open transfers")
        self._highest = record.transfer
        path = os.fsdecode(message.path)
        destination = self.destinations.get(message.request)
        entry = Entry(
            path,
            message.kind,
            message.size,
            message.mtime_ns,
            message.mode,
            os.fsdecode(message.target),
        )
        try:
            if destination is None:
                raise OSError(errno.ECANCELED, f"{path}: this end has not asked for the file")
            self._begin_receiving_entry(record.transfer, entry, destination, message)
        except OSError as e:
            self._refuse_transfer(record.transfer, failure_of_os_error(path, e))

    def _begin_receiving_entry(
        self, transfer: int, entry: Entry, destination: Destination, message: wire.Open
    ) -> None:
        replies = self.outcome.replies
        sync = bool(message.options & Option.SYNC)
        if entry.kind == FileKind.DIRECTORY:
            destination.make_directory(entry, sync=sync)
            replies.append((transfer, wire.Done()))
            return
        if entry.kind == FileKind.SYMLINK:
            destination.make_symlink(entry, sync=sync)
            replies.append((transfer, wire.Done()))
            return
        if message.options & Option.UPDATE and _is_same_version(destination, entry):
            self.outcome.skipped += 1
            replies.append((transfer, wire.Skip()))
            return
        resume = bool(message.options & Option.RESUME)
        file = destination.begin_file(entry, resume)
        digest = create_empty_digest(message.digest)
        try:
            if (prefix := file.find_stored_prefix()) is not None:
                scratch = memoryview(bytearray(_PREFIX_STEP))
                add_first_octets_to_digest(digest, prefix, file.position, scratch)
        except BaseException:
            file.abandon(keep=False)
            raise
        self._open[transfer] = _Receiving(entry, destination, file, message.digest, digest, sync)
        if not message.options & Option.AT_ONCE:
            value = digest.value() if file.position else b""
            replies.append((transfer, wire.Accept(file.position, value)))

    def _process_transfer_record(self, record: Record, receiving: _Receiving) -> None:
        file, digest = receiving.file, receiving.digest
        if record.type in {Type.DATA, Type.HOLE}:
            if receiving.fresh:
                receiving.fresh = False
                # the octets that arrived before differ from those of the sender's file
                if record.offset == 0 and file.position:
                    file.abandon(keep=False)
                    file = receiving.file = receiving.destination.begin_file(receiving.entry, False)
                    digest = receiving.digest = create_empty_digest(receiving.kind)
                else:
                    self.outcome.octets += file.position
            if record.type == Type.DATA:
                file.write(record.offset, record.body)
                digest.update(record.body)
                self.outcome.octets += len(record.body)
            else:
                file.skip_hole(record.offset, record.aux)
                digest.add_zeros(record.aux)
                self.outcome.octets += record.aux
        elif record.type == Type.END:
            if receiving.fresh:
                self.outcome.octets += file.position
            self._complete_file(record.transfer, wire.End.unpack(record), receiving)
        elif record.type == Type.CANCEL:
            self._end_transfer(record.transfer, keep=True)
        elif record.type == Type.ERROR:
            message = wire.Error.unpack(record)
            self._end_transfer(record.transfer, keep=False)
            text = message.text or receiving.entry.path
            self.outcome.failures.append(Failure(receiving.entry.path, message.code, text))
        else:
            raise wire.WireError(f"an unexpected {record.type.name} for a transfer")

    def _complete_file(self, transfer: int, end: wire.End, receiving: _Receiving) -> None:
        entry = receiving.entry
        if end.size != entry.size:
            raise OSError(
                errno.EPROTO, f"{entry.path}: ends with {end.size} octets instead of {entry.size}"
            )
        if end.digest != receiving.digest.value():
            raise OSError(
                errno.EBADMSG,
                f"{entry.path}: the {receiving.kind.name} digest of the received octets is "
                f"{receiving.digest.value().hex()}, the sender's {end.digest.hex()}: send it again",
            )
        receiving.file.finish(sync=receiving.sync)
        del self._open[transfer]
        self.outcome.done += 1
        self.outcome.complete += entry.size
        self.outcome.replies.append((transfer, wire.Done()))


def add_first_octets_to_digest(
    digest: Digest, file: Readable, length: int, scratch: memoryview
) -> None:
    """Add the first ``length`` octets of a file to a digest, holes without reading them."""
    at = 0
    while at < length:
        extent = file.extent_at(at)
        end = min(extent.offset + extent.length, length)
        if extent.is_hole:
            digest.add_zeros(end - at)
            at = end
        while at < end:
            part = scratch[: min(len(scratch), end - at)]
            file.read(part, at)
            digest.update(part)
            at += len(part)


def _entry_with_owner_write_permission(entry: Entry) -> Entry:
    """Return an entry; a directory's with the mode that it has while files are created in it."""
    if entry.kind == FileKind.DIRECTORY:
        return replace(entry, mode=entry.mode | 0o700)
    return entry


def _is_same_version(destination: Destination, entry: Entry) -> bool:
    try:
        here = destination.entry(entry.path)
    except OSError:
        return False
    return (here.kind, here.size, here.mtime_ns) == (entry.kind, entry.size, entry.mtime_ns)


def clip_error_text(text: str) -> str:
    """Return a text for an ERROR, shortened to its maximum and without control characters."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown.encode(errors="replace")[: wire.MAX_TEXT].decode(errors="ignore")
