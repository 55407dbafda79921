"""DDP streams on reliable datagrams: when a new stream is visible to the receiving side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from unit.ddp.ddp_harness import DdpPoller, check_result, wait_until
from unit.llp.llp_harness import siw_addr

QKEY = 0x51A5


class RDEnd:
    """An RD endpoint (siw_rd) with its DDP layer (siw_ddp_rd)."""

    def __init__(self, layer_poller: DdpPoller) -> None:
        self.poller = layer_poller.poller
        attr = ffi.new("struct siw_rd_attr *", {"fd": -1, "qkey": QKEY, "ird": 1})
        attr.local = siw_addr("127.0.0.1")[0]
        attr.handler = ffi.cast("void *", 1)
        rd, out = ffi.new("struct siw_rd **"), ffi.new("struct siw_ddp_rd **")
        check_result(lib.siw_rd_open(layer_poller.poller, attr, rd))
        check_result(lib.siw_ddp_rd_open(layer_poller.mem, rd[0], out))
        self.rd, self.c = rd[0], out[0]
        self.streams: list[Any] = []
        self.handlers = ffi.new("struct siw_io_handler *[]", 4)

    @property
    def local_addr(self) -> Any:
        made = ffi.new("struct siw_addr *")
        check_result(lib.siw_llp_local_addr(lib.siw_rd_sock(self.rd), made))
        return made

    def get_or_create_peer(self, where: Any) -> Any:
        out = ffi.new("struct siw_ddp_rd_peer **")
        check_result(lib.siw_ddp_rd_find_or_create_peer(self.c, where, out))
        return out[0]

    def open_stream(self, peer: Any, user: Any) -> Any:
        out = ffi.new("struct siw_ddp_stream **")
        check_result(lib.siw_ddp_rd_stream_create(self.c, peer, user, out))
        self.streams.append(out[0])
        return out[0]

    def poll_event(self) -> Any:
        """Poll the poller; return the endpoint's next event, or None."""
        lib.siw_llp_poller_poll(self.poller, self.handlers, 4)
        event = ffi.new("struct siw_ddp_rd_event *")
        return event if lib.siw_ddp_rd_recv(self.c, event) == 1 else None

    def close(self) -> None:
        for stream in self.streams:
            lib.siw_ddp_rd_end_stream(stream, lib.SIW_DDP_RD_KEEP)
        lib.siw_ddp_rd_close(self.c)
        lib.siw_rd_close(self.rd)


@pytest.fixture
def make_rd_endpoint(layer_poller: DdpPoller) -> Iterator[Callable[[], RDEnd]]:
    made: list[RDEnd] = []

    def create_rd_endpoint() -> RDEnd:
        made.append(RDEnd(layer_poller))
        return made[-1]

    yield create_rd_endpoint
    for one in made:
        one.close()


def test_an_rd_stream_is_invisible_to_the_receiver_until_siw_ddp_rd_publish(
    make_rd_endpoint: Callable[[], RDEnd],
) -> None:
    """The receiving side must not see a stream that the sending side is still setting up."""
    a, b = make_rd_endpoint(), make_rd_endpoint()
    out = a.open_stream(a.get_or_create_peer(b.local_addr), ffi.cast("void *", 1))
    lib.siw_ddp_rd_publish_stream(out)
    msg = lib.siw_ddp_tx_get_msg_to_fill(out, False)
    msg[0] = ffi.new("struct siw_ddp_msg *", {"internal": True, "ulp_octet": 0x43, "qn": 0})[0]
    assert lib.siw_ddp_tx(out, msg, ffi.new("struct siw_wire_err *")) == 1

    def poll_segment_event() -> Any:
        a.poll_event()
        return b.poll_event()

    event = wait_until(poll_segment_event)
    assert event.kind == lib.SIW_DDP_RD_NO_STREAM and event.user == ffi.NULL
    user = ffi.cast("void *", 2)
    stream = b.open_stream(event.peer, user)
    assert lib.siw_ddp_rd_upper_layer_object(event.peer) == ffi.NULL
    assert wait_until(poll_segment_event).kind == lib.SIW_DDP_RD_NO_STREAM
    lib.siw_ddp_rd_publish_stream(stream)
    assert lib.siw_ddp_rd_upper_layer_object(event.peer) == user
    event = wait_until(poll_segment_event)
    # The segment is refused, because the stream has no queue of buffers.
    assert event.kind == lib.SIW_DDP_RD_REFUSED and event.user == user
