"""Memory windows compared with a model of the accesses that are allowed after random binds."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from harness.rc_harness import READ, WRITE, End, ListenerAndConnector
from harness.verbs_harness import Rig, poll
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from siwarp.verbs import (
    MR,
    MW,
    AccessFlag,
    MWBind,
    MWBindInfo,
    MWType,
    RemoteBuffer,
    SendWR,
    StateError,
    WCStatus,
    WROpcode,
)

SIZE = 64
LOCAL, BIND = AccessFlag.LOCAL_WRITE, AccessFlag.MW_BIND
WRITES, READS, ZERO = AccessFlag.REMOTE_WRITE, AccessFlag.REMOTE_READ, AccessFlag.ZERO_BASED

#: The layer, type and code of the error of a refused Write and of a refused Read.
EXPECTED_ERRORS = {
    "invalid": (0x010100, 0x000100),
    "bounds": (0x010101, 0x000101),
    "right": (0x000102, 0x000102),
    "stream": (0x010102, 0x000103),
}
CANNOT_INVALIDATE = 0x000109


@dataclass(eq=False)
class Region:
    """A memory region and its expected content."""

    mr: MR
    access: AccessFlag
    content: bytearray = field(default_factory=lambda: bytearray(SIZE))


@dataclass(eq=False)
class Binding:
    """The region, the range and the access rights with which a memory window is bound."""

    region: Region
    offset: int
    length: int
    access: AccessFlag
    rkey: int
    # The endpoint whose peer may use a type 2 window, or None for type 1.
    end: End | None


@dataclass(eq=False)
class Window:
    """A memory window and its state in the model."""

    mw: MW
    binding: Binding | None = None


INDEX = st.integers(0, 99)
RIGHTS = st.sampled_from([WRITES, READS, WRITES | READS, WRITES | READS | ZERO])


class WindowModelMachine(RuleBasedStateMachine):
    """Two connections in one protection domain, with memory regions and windows."""

    @initialize()
    def open_devices(self) -> None:
        self.rigs = Rig(), Rig()
        self.connector = ListenerAndConnector(*self.rigs)
        self.pd = self.rigs[1].pd
        self.ends = [self.connect(), self.connect()]
        self.regions: list[Region] = []
        self.windows: list[Window] = []
        #: All keys used so far, and the offset at which each binding began.
        self.keys: list[tuple[int, int]] = []

    def connect(self) -> tuple[End, End]:
        a, b = self.connector.connect(size=256)
        a.post(WRITE, 1)
        assert poll(a.scq)[0].ok
        return a, b

    def replace_failed_connection(self, which: int, why: int | None) -> None:
        """Replace a connection that ended with the error code ``why``, and its queue pairs."""
        a, b = self.ends[which]
        for end in (a, b):
            end.wait_for_error_state()
        a.next_cm_event()
        told = b.next_cm_event().wire_error
        assert why is None or told == why, f"error code {told:#08x} instead of {why:#08x}"
        a.close()
        b.close()
        for end in (a, b):
            end.mem.close()
        self.ends[which] = self.connect()

    # ---- regions and windows

    @precondition(lambda self: len(self.regions) < 4)
    @rule(access=st.sampled_from([LOCAL | BIND, LOCAL | BIND, BIND, LOCAL]))
    def register_region(self, access: AccessFlag) -> None:
        self.regions.append(Region(MR(self.pd, bytearray(SIZE), access), access))

    @precondition(lambda self: len(self.windows) < 5)
    @rule(kind=st.sampled_from(list(MWType)))
    def allocate_memory_window(self, kind: MWType) -> None:
        self.windows.append(Window(MW(self.pd, kind)))

    @precondition(lambda self: self.regions)
    @rule(i=INDEX)
    def deregister_region(self, i: int) -> None:
        region = self.regions[i % len(self.regions)]
        held = any(w.binding and w.binding.region is region for w in self.windows)
        try:
            region.mr.close()
        except StateError as e:
            assert held and e.errno == errno.EBUSY
        else:
            assert not held
            self.regions.remove(region)

    @precondition(lambda self: self.windows)
    @rule(i=INDEX)
    def deallocate_memory_window(self, i: int) -> None:
        self.windows.pop(i % len(self.windows)).mw.close()

    # ---- requests

    @precondition(lambda self: self.windows and self.regions)
    @rule(
        i=INDEX,
        j=INDEX,
        which=st.integers(0, 1),
        offset=st.integers(0, SIZE - 1),
        length=st.integers(0, SIZE),
        access=RIGHTS,
    )
    def bind_memory_window(
        self, i: int, j: int, which: int, offset: int, length: int, access: AccessFlag
    ) -> None:
        window, region = self.windows[i % len(self.windows)], self.regions[j % len(self.regions)]
        mw, b = window.mw, self.ends[which][1]
        two = mw.type == MWType.TYPE_2
        info = MWBindInfo(region.mr, region.mr.addr + offset, length, access)
        if two:
            wr = SendWR(1, WROpcode.BIND_MW)
            wr.set_bind_wr(mw, info)
            b.qp.post_send(wr)
            rkey = wr.rkey
        else:
            b.qp.bind_mw(mw, MWBind(info))
            rkey = mw.rkey
        fits = (
            BIND in region.access
            and offset + length <= SIZE
            and (WRITES not in access or LOCAL in region.access)
        )
        may = not (two and (window.binding or not length)) and (fits or not length)
        wc = poll(b.scq)[0]
        assert wc.status == (WCStatus.SUCCESS if may else WCStatus.MW_BIND_ERR)
        if not may:
            self.replace_failed_connection(which, None)
            return
        mw.rkey = rkey
        window.binding = None
        if length:
            window.binding = Binding(region, offset, length, access, rkey, b if two else None)
            self.keys.append((rkey, 0 if ZERO in access else info.addr))

    @precondition(lambda self: self.windows)
    @rule(i=INDEX, which=st.integers(0, 1))
    def invalidate_memory_window(self, i: int, which: int) -> None:
        window = self.windows[i % len(self.windows)]
        b = self.ends[which][1]
        one = window.mw.type == MWType.TYPE_1
        may = one or (window.binding is not None and window.binding.end is b)
        window.mw.invalidate(b.qp)
        assert poll(b.scq)[0].status == (WCStatus.SUCCESS if may else WCStatus.LOC_PROT_ERR)
        if may:
            window.binding = None
        else:
            self.replace_failed_connection(which, None)

    @precondition(lambda self: self.keys)
    @rule(i=INDEX, which=st.integers(0, 1))
    def invalidate_memory_window_from_peer(self, i: int, which: int) -> None:
        rkey = self.keys[-1 - i % min(len(self.keys), 8)][0]
        a, b = self.ends[which]
        bound = [w for w in self.windows if w.binding and w.binding.rkey == rkey]
        may = bool(bound) and bound[0].binding is not None and bound[0].binding.end is b
        b.post_receive(5)
        a.qp.post_send(SendWR(3, WROpcode.SEND_WITH_INV, invalidate_rkey=rkey))
        if may:
            assert poll(b.rcq)[0].invalidated_rkey == rkey
            assert poll(a.scq)[0].ok
            bound[0].binding = None
        else:
            self.replace_failed_connection(which, CANNOT_INVALIDATE)

    @rule(which=st.integers(0, 1))
    def close_and_replace_connection(self, which: int) -> None:
        a, b = self.ends[which]
        a.close()
        b.wait_for_error_state()
        b.next_cm_event()
        b.close()
        for end in (a, b):
            end.mem.close()
        self.ends[which] = self.connect()

    # ---- the peers

    def find_binding_or_failed_check(
        self, rkey: int, b: End, to: int, length: int, right: AccessFlag
    ) -> str | Binding:
        for window in self.windows:
            bound = window.binding
            if bound is None or bound.rkey != rkey:
                continue
            if bound.end not in (None, b):
                return "stream"
            if right not in bound.access:
                return "right"
            start = 0 if ZERO in bound.access else bound.region.mr.addr + bound.offset
            inside = start <= to and to + length <= start + bound.length
            return bound if inside else "bounds"
        return "invalid"

    @precondition(lambda self: self.keys)
    @rule(
        i=INDEX,
        which=st.integers(0, 1),
        skip=st.integers(-1, SIZE),
        length=st.integers(1, 8),
        op=st.sampled_from([READ, WRITE]),
        octet=st.integers(1, 255),
    )
    def access_memory_from_peer(
        self, i: int, which: int, skip: int, length: int, op: WROpcode, octet: int
    ) -> None:
        rkey, start = self.keys[-1 - i % min(len(self.keys), 6)]
        a, b = self.ends[which]
        to = max(0, start + skip)
        found = self.find_binding_or_failed_check(
            rkey, b, to, length, READS if op == READ else WRITES
        )
        a.mem.write(bytes([octet]) * length)
        a.post(op, 7, length=length, remote=RemoteBuffer(to, length, rkey))
        if isinstance(found, str):
            self.replace_failed_connection(which, EXPECTED_ERRORS[found][op == READ])
        else:
            base = 0 if ZERO in found.access else found.region.mr.addr + found.offset
            at = found.offset + to - base
            if op == WRITE:
                # A Read of zero octets completes only after earlier Writes have been placed.
                a.post(READ, 8, remote=RemoteBuffer(0, 0, 1))
                assert [w.ok for w in poll(a.scq, 2)] == [True, True]
                found.region.content[at : at + length] = bytes([octet]) * length
            else:
                assert poll(a.scq)[0].ok
                assert a.mem.read(length) == found.region.content[at : at + length]
        for region in self.regions:
            assert region.mr.read() == region.content

    def teardown(self) -> None:
        if hasattr(self, "rigs"):
            for rig in self.rigs:
                rig.close()


WindowModelMachine.TestCase.settings = settings(
    max_examples=6 if "SANITIZER" in os.environ else 20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWindows = WindowModelMachine.TestCase
