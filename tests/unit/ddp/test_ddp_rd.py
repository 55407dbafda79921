"""DDP streams on reliable datagrams: when the two sides of an endpoint know of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from unit.ddp.ddp_harness import DdpWorld, checked, until
from unit.llp.llp_harness import addr

QKEY = 0x51A5


class RDEnd:
    """An RD endpoint."""

    def __init__(self, w: DdpWorld) -> None:
        self.port = w.port
        attr = ffi.new("struct siw_rd_attr *", {"fd": -1, "qkey": QKEY, "ird": 1})
        attr.local = addr("127.0.0.1")[0]
        attr.handler = ffi.cast("void *", 1)
        rd, out = ffi.new("struct siw_rd **"), ffi.new("struct siw_ddp_rd **")
        checked(lib.siw_rd_open(w.port, attr, rd))
        checked(lib.siw_ddp_rd_open(w.mem, rd[0], out))
        self.rd, self.c = rd[0], out[0]
        self.streams: list[Any] = []
        self.handlers = ffi.new("struct siw_io_handler *[]", 4)

    @property
    def addr(self) -> Any:
        made = ffi.new("struct siw_addr *")
        checked(lib.siw_llp_local(lib.siw_rd_sock(self.rd), made))
        return made

    def peer(self, where: Any) -> Any:
        out = ffi.new("struct siw_ddp_rd_peer **")
        checked(lib.siw_ddp_rd_peer(self.c, where, out))
        return out[0]

    def stream(self, peer: Any, user: Any) -> Any:
        out = ffi.new("struct siw_ddp_stream **")
        checked(lib.siw_ddp_rd_stream(self.c, peer, user, out))
        self.streams.append(out[0])
        return out[0]

    def news(self) -> Any:
        """Return the next event, or None."""
        lib.siw_llp_port_poll(self.port, self.handlers, 4)
        event = ffi.new("struct siw_ddp_rd_event *")
        return event if lib.siw_ddp_rd_recv(self.c, event) == 1 else None

    def close(self) -> None:
        for stream in self.streams:
            lib.siw_ddp_rd_end(stream, lib.SIW_DDP_RD_KEEP)
        lib.siw_ddp_rd_close(self.c)
        lib.siw_rd_close(self.rd)


@pytest.fixture
def end(w: DdpWorld) -> Iterator[Callable[[], RDEnd]]:
    made: list[RDEnd] = []

    def make() -> RDEnd:
        made.append(RDEnd(w))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_stream_is_invisible_to_receive_until_siw_ddp_rd_show(end: Callable[[], RDEnd]) -> None:
    """The receiving side must not see a stream that the sending side is still setting up."""
    a, b = end(), end()
    out = a.stream(a.peer(b.addr), ffi.cast("void *", 1))
    lib.siw_ddp_rd_publish(out)
    msg = ffi.new("struct siw_ddp_msg *", {"internal": True, "ulp_octet": 0x43, "qn": 0})
    assert lib.siw_ddp_tx(out, msg, ffi.new("struct siw_wire_err *")) == 1

    def came() -> Any:
        a.news()
        return b.news()

    event = until(came)
    assert event.kind == lib.SIW_DDP_RD_NO_STREAM and event.user == ffi.NULL
    user = ffi.cast("void *", 2)
    stream = b.stream(event.peer, user)
    assert lib.siw_ddp_rd_user(event.peer) == ffi.NULL
    assert until(came).kind == lib.SIW_DDP_RD_NO_STREAM
    lib.siw_ddp_rd_publish(stream)
    assert lib.siw_ddp_rd_user(event.peer) == user
    event = until(came)
    # The stream has no queue for the segment.
    assert event.kind == lib.SIW_DDP_RD_REFUSED and event.user == user
