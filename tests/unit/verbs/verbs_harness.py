"""What the tests of verbs/ and cm/ share: a device with what stands on it, and bounded waits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import net
from pace import over

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
#: The port of all multicast groups here: not that of another run of the suite beside this one, as
#: both are members of the groups of one host. Below those that are given out.
MCAST_PORT = 20_000 + os.getpid() % 12_000
#: Seconds: whatever is waited for comes long before. A world's cost nothing.
LIMIT = 60.0 if net.SIMULATED else 10.0


def counter(name: str) -> int:
    """Return one of the process's counters."""
    for i in range(lib.siw_counters_count()):
        if ffi.string(lib.siw_counter_name(i)).decode() == name:
            return int(lib.siw_counter_get(i))
    raise KeyError(name)


@contextlib.contextmanager
def counted(name: str, by: int) -> Iterator[None]:
    """Assert that a counter grows by exactly so much in the block, or soon after it.

    What the block sent may be in the hands of the device's thread, which has to wait for a CPU.
    """
    before, began = counter(name), net.now()
    yield
    while counter(name) - before < by and not over(began, LIMIT):
        net.sleep(0.001)
    assert counter(name) - before == by, f"{name} grew by {counter(name) - before}, not {by}"


@contextlib.contextmanager
def settings(**values: int) -> Iterator[None]:
    """Set these for what is made in the block."""
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


def until(ready: Callable[[], Any], limit: float = LIMIT) -> Any:
    """Return the first true value of ``ready()``; fail when ``limit`` seconds are over."""
    began = net.now()
    while True:
        value = ready()
        if value:
            return value
        assert not over(began, limit), f"nothing within {limit} s"
        if net.SIMULATED:
            net.sleep(1e-5)


def poll(cq: CQ, n: int = 1, limit: float = LIMIT) -> list[WC]:
    """Return exactly ``n`` completions of ``cq``, in their order."""
    found: list[WC] = []
    until(lambda: found.extend(cq.poll(n - len(found))) or len(found) == n, limit)
    return found


def nothing(cq: CQ, seconds: float = 0.02) -> None:
    """Assert that no completion comes for a while."""
    end = net.now() + seconds
    while net.now() < end:
        assert cq.poll(16) == []


def pattern(n: int, seed: int = 1) -> bytes:
    """Return ``n`` octets whose order shows."""
    return bytes((i * 7 + (i >> 8) * 13 + seed * 31) & 0xFF for i in range(n))


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> int | None:
    """Return the errno with which a call fails."""
    try:
        call(*args, **kwargs)
    except OSError as e:
        return e.errno
    raise AssertionError("the call succeeded")


class Rig:
    """An open device with a PD; what it makes closes with it, in reverse."""

    def __init__(self, name: str | None = None, ctx: Context | None = None) -> None:
        self.ctx = ctx or Context(name or (net.HERE if net.SIMULATED else None))
        self.pd = PD(self.ctx)

    def channel(self) -> CompChannel:
        return CompChannel(self.ctx)

    def cq(self, cqe: int = 256, channel: CompChannel | None = None) -> CQ:
        return CQ(self.ctx, cqe, channel=channel)

    def mr(self, buffer: Any, access: int = AccessFlag.LOCAL_WRITE) -> MR:
        return MR(self.pd, buffer, access)

    def srq(self, max_wr: int = 16, max_sge: int = 1) -> SRQ:
        return SRQ(self.pd, SrqAttr(max_wr, max_sge))

    def event(self, limit: float = LIMIT) -> AsyncEvent:
        """Wait for the device's next asynchronous event."""
        found = self.ctx.get_async_event(limit)
        assert found is not None, f"no asynchronous event within {limit} s"
        return found

    def qp(
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
        """Make a queue pair in RESET."""
        cq = cq or (None if scq or rcq else self.cq())
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
                qkey=0,  # as strangers have it, unless a test says otherwise
                shared_socket_qp=shared_socket_qp,
                max_write_records=max_write_records,
                keep_unexpected=keep_unexpected,
                by_qpn=by_qpn,
                grh=grh,
                every_addr=every_addr,
                private_messages=private_messages,
            ),
        )

    def ud(self, cq: CQ | None = None, *, qkey: int = 0, **kwargs: Any) -> QP:
        """Make a UD queue pair in RTS."""
        qp = self.qp(cq, **kwargs)
        qp.to_rts(QPAttr(qkey=qkey))
        return qp

    def ah(self, where: QP | tuple[str, int]) -> AH:
        return AH(self.pd, where.addr if isinstance(where, QP) else where)

    def close(self) -> None:
        self.ctx.__exit__(None, None, None)


def threadless() -> Rig:
    """Open a device of which only calls of the program make progress."""
    with settings(progress=0):
        return Rig()


class Pair:
    """Two UD queue pairs of one device, each with its own queues and memory of ``size`` octets."""

    def __init__(self, rig: Rig, size: int = 1 << 17, host: str = net.HERE, **cap: int) -> None:
        self.rig = rig
        self.size = size
        self.out = rig.mr(bytearray(size))
        self.into = rig.mr(bytearray(size))
        self.scq, self.rcq, self.idle = rig.cq(), rig.cq(), rig.cq()
        self.a = rig.ud(scq=self.scq, rcq=self.idle, addr=(host, 0), **cap)
        self.b = rig.ud(scq=self.idle, rcq=self.rcq, addr=(host, 0), **cap)
        self.to_b = rig.ah(self.b)

    def recv(self, wr_id: int = 1, length: int | None = None, offset: int = 0) -> None:
        self.b.post_recv(RecvWR(wr_id, sg=[self.into.sge(offset, length)]))

    def send(self, data: bytes, wr_id: int = 2, flags: int = SendFlag.SIGNALED, **kw: Any) -> None:
        if self.out.read(len(data)) != data:  # or it may be on its way, out of this very memory
            self.out.write(data)
        self.a.post_send(
            SendWR(wr_id, sg=[self.out.sge(0, len(data))], send_flags=flags, ah=self.to_b, **kw)
        )


def bad_keys(pair: Pair) -> dict[str, tuple[int, int, int]]:
    """Return elements (address, length, key) that must not be used, of the sending side."""
    rig, mr = pair.rig, pair.out
    stale = rig.mr(bytearray(16))
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
