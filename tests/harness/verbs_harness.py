"""For the tests of device, qp and cm: a device with its objects, and waits with a time limit."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import net
from pace import limit_exceeded

from siwarp.base.library import ffi, lib
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    WC,
    AccessFlag,
    AsyncEvent,
    CompChannel,
    Context,
    ErrorPolicy,
    Persona,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    SrqAttr,
)

ALL_ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)
OWN_QKEY = 0x80000000
#: The UDP port of all multicast groups in this process. Another run of the suite on this host joins
#: the same groups and needs another port. The port is below the ephemeral ports.
MCAST_PORT = 20_000 + os.getpid() % 12_000
#: Time limit of a wait in seconds; an operation that works ends long before the limit. In a
#: simulated network the wait takes no real time.
LIMIT = 60.0 if net.SIMULATED else 10.0


def counter_value(name: str) -> int:
    """Return the value of a counter of this process."""
    for i in range(lib.siw_counters_count()):
        if ffi.string(lib.siw_counter_name(i)).decode() == name:
            return int(lib.siw_counter_get(i))
    raise KeyError(name)


@contextlib.contextmanager
def assert_counter_grows(name: str, by: int) -> Iterator[None]:
    """Assert that a counter grows by exactly `by` in the block, or soon after the block.

    At the end of the block, the thread of the device may not have handled all traffic yet.
    """
    before, began = counter_value(name), net.now()
    yield
    while counter_value(name) - before < by and not limit_exceeded(began, LIMIT):
        net.sleep(0.001)
    assert counter_value(name) - before == by, (
        f"{name} grew by {counter_value(name) - before}, not {by}"
    )


@contextlib.contextmanager
def temporary_settings(**values: int) -> Iterator[None]:
    """Change settings for objects that are created in the block."""
    count = lib.siw_settings_count()
    names = [ffi.string(lib.siw_setting_name(i)).decode() for i in range(count)]
    before = {name: int(lib.siw_setting_value(names.index(name))) for name in values}
    try:
        for name, value in values.items():
            assert lib.siw_setting_set(name.encode(), value) == 0
        yield
    finally:
        for name, value in before.items():
            lib.siw_setting_set(name.encode(), value)


@contextlib.contextmanager
def multiply_pauses_temporarily(factor: int = 100) -> Iterator[None]:
    """Multiply the pauses after which batching and watchdogs end, for tests on slow machines."""
    lib.siw_settings_scale_pauses_for_tests(factor)
    try:
        yield
    finally:
        lib.siw_settings_scale_pauses_for_tests(1)


def wait_until(ready: Callable[[], Any], limit: float = LIMIT) -> Any:
    """Return the first true value of ``ready()``; fail after ``limit`` seconds."""
    began, turns = net.now(), 0
    while True:
        value = ready()
        if value:
            return value
        assert not limit_exceeded(began, limit), f"the condition was not met within {limit} s"
        turns += 1
        # At first without a pause, because most conditions are met soon. Later the pauses are a
        # twentieth of the time waited, so that long waits need little CPU time.
        if net.SIMULATED:
            net.sleep(1e-5)
        elif turns > 100:
            net.sleep(min((net.now() - began) / 20, 0.01))


def poll(cq: CQ, n: int = 1, limit: float = LIMIT) -> list[WC]:
    """Return the next ``n`` completions of a completion queue, in order."""
    found: list[WC] = []
    wait_until(lambda: found.extend(cq.poll(n - len(found))) or len(found) == n, limit)
    return found


def assert_no_completion(cq: CQ, seconds: float = 0.02) -> None:
    """Assert that a completion queue stays empty for some seconds."""
    end = net.now() + seconds
    while net.now() < end:
        assert cq.poll(16) == []


def octet_pattern(n: int, seed: int = 1) -> bytes:
    """Return ``n`` octets whose order can be verified."""
    rows = (_octet_pattern_block((block * 13 + seed * 31) & 0xFF) for block in range((n >> 8) + 1))
    return b"".join(rows)[:n]


@functools.cache
def _octet_pattern_block(first: int) -> bytes:
    """Return a block of 256 octets of ``octet_pattern`` whose first octet is ``first``."""
    return bytes((first + i * 7) & 0xFF for i in range(256))


def errno_raised_by(call: Callable[..., Any], *args: Any, **kwargs: Any) -> int | None:
    """Return the errno with which a call fails; fail if the call succeeds."""
    try:
        call(*args, **kwargs)
    except OSError as e:
        return e.errno
    raise AssertionError("the call succeeded")


class Rig:
    """An open device with a protection domain, which closes all objects created from it."""

    def __init__(self, name: str | None = None, ctx: Context | None = None) -> None:
        self.ctx = ctx or Context(name or (net.HERE if net.SIMULATED else None))
        self.pd = PD(self.ctx)
        self._open_all_lanes()

    def _open_all_lanes(self) -> None:
        """Open the lanes now, because tests count descriptors, and an open lane keeps two."""
        for lane in range(1, self.ctx.num_comp_vectors):
            with CQ(self.ctx, 1, comp_vector=lane) as cq, QP(self.pd, QPInitAttr(scq=cq, rcq=cq)):
                pass

    def create_channel(self) -> CompChannel:
        return CompChannel(self.ctx)

    def create_cq(self, cqe: int = 256, channel: CompChannel | None = None) -> CQ:
        return CQ(self.ctx, cqe, channel=channel)

    def reg_mr(self, buffer: Any, access: int = AccessFlag.LOCAL_WRITE) -> MR:
        return MR(self.pd, buffer, access)

    def create_srq(self, max_wr: int = 16, max_sge: int = 1) -> SRQ:
        return SRQ(self.pd, SrqAttr(max_wr, max_sge))

    def next_async_event(self, limit: float = LIMIT) -> AsyncEvent:
        """Return the next asynchronous event of the device."""
        found = self.ctx.get_async_event(limit)
        assert found is not None, f"no asynchronous event within {limit} s"
        return found

    def create_qp(
        self,
        cq: CQ | None = None,
        *,
        scq: CQ | None = None,
        rcq: CQ | None = None,
        qp_type: QPType = QPType.UD,
        addr: tuple[str, int] | None = None,
        sig_all: bool = False,
        crc: bool = True,
        srq: SRQ | None = None,
        persona: int = Persona.AUTO,
        error_policy: int | str = ErrorPolicy.AUTO,
        shared_socket_qp: QP | None = None,
        max_write_records: int = 0,
        keep_unexpected: bool = False,
        by_qpn: bool = False,
        grh: bool = False,
        every_addr: bool = False,
        private_messages: bool = False,
        **cap: int,
    ) -> QP:
        """Create a queue pair in state RESET."""
        cq = cq or (None if scq or rcq else self.create_cq())
        return QP(
            self.pd,
            QPInitAttr(
                qp_type,
                cap=QPCap(**cap),
                scq=scq or cq,
                rcq=rcq or cq,
                addr=addr,
                sq_sig_all=sig_all,
                crc=crc,
                srq=srq,
                persona=persona,
                error_policy=error_policy,
                qkey=0,  # the Q_Key that plain sockets in the tests use, unless a test sets another
                shared_socket_qp=shared_socket_qp,
                max_write_records=max_write_records,
                keep_unexpected=keep_unexpected,
                by_qpn=by_qpn,
                grh=grh,
                every_addr=every_addr,
                private_messages=private_messages,
            ),
        )

    def create_ud_qp(self, cq: CQ | None = None, *, qkey: int = 0, **kwargs: Any) -> QP:
        """Create a UD queue pair in state RTS."""
        qp = self.create_qp(cq, **kwargs)
        qp.to_rts(QPAttr(qkey=qkey))
        return qp

    def create_ah(self, where: QP | tuple[str, int]) -> AH:
        return AH(self.pd, where.addr if isinstance(where, QP) else where)

    def close(self) -> None:
        self.ctx.__exit__(None, None, None)


def open_device_without_progress_thread() -> Rig:
    """Return an open device without a progress thread: only calls of the program make progress."""
    with temporary_settings(progress_thread=0):
        return Rig()


class Pair:
    """Two UD queue pairs of one device; `a` sends, `b` receives, with CQs and memory."""

    def __init__(self, rig: Rig, size: int = 1 << 17, host: str = net.HERE, **cap: int) -> None:
        self.rig = rig
        self.size = size
        self.out = rig.reg_mr(bytearray(size))
        self.into = rig.reg_mr(bytearray(size))
        self.scq, self.rcq, self.idle = rig.create_cq(), rig.create_cq(), rig.create_cq()
        self.a = rig.create_ud_qp(scq=self.scq, rcq=self.idle, addr=(host, 0), **cap)
        self.b = rig.create_ud_qp(scq=self.idle, rcq=self.rcq, addr=(host, 0), **cap)
        self.to_b = rig.create_ah(self.b)

    def post_receive(self, wr_id: int = 1, length: int | None = None, offset: int = 0) -> None:
        self.b.post_recv(RecvWR(wr_id, sg=[self.into.sge(offset, length)]))

    def send(self, data: bytes, wr_id: int = 2, flags: int = SendFlag.SIGNALED, **kw: Any) -> None:
        # equal data is not rewritten, because an earlier send from the memory may be in flight
        if self.out.read(len(data)) != data:
            self.out.write(data)
        self.a.post_send(
            SendWR(wr_id, sg=[self.out.sge(0, len(data))], send_flags=flags, ah=self.to_b, **kw)
        )


#: The kinds of invalid scatter/gather elements that make_invalid_sges() returns.
INVALID_SGE_KINDS = [
    "no such key",
    "key zero",
    "deregistered",
    "another PD",
    "before its start",
    "past its end",
    "far away",
    "wraps",
]


def make_invalid_sges(pair: Pair) -> dict[str, tuple[int, int, int]]:
    """Return invalid scatter/gather elements (address, length, key), by the kind of error."""
    rig, mr = pair.rig, pair.out
    stale = rig.reg_mr(bytearray(16))
    elsewhere = MR(PD(rig.ctx), bytearray(16))
    dead = (stale.addr, 4, stale.lkey)
    stale.close()
    return {
        "no such key": (mr.addr, 4, mr.lkey ^ 1),
        "key zero": (mr.addr, 4, 0),
        "deregistered": dead,
        "another PD": (elsewhere.addr, 4, elsewhere.lkey),
        "before its start": (mr.addr - 1, 4, mr.lkey),
        "past its end": (mr.addr + mr.length - 3, 4, mr.lkey),
        "far away": (mr.addr + (1 << 40), 4, mr.lkey),
        "wraps": (2**64 - 2, 4, mr.lkey),
    }
