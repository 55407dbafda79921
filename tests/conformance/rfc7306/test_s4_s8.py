"""RFC 7306 sections 4 and 8: header fields common to all its messages, and the checks on them."""

from __future__ import annotations

from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from conformance.rfc7306.test_s6_immediate import build_immediate, post_write_with_imm
from hostile.vanishing import PAGE, RemovableMemory
from unit.rdmap.rdmap_harness import (
    ALL,
    PD,
    RdmapPoller,
    Stream,
    build_atomic_request,
    build_atomic_response,
    build_tagged_segment,
    build_untagged_segment,
    check_result,
)

from siwarp.inspect import AtomicRequest, ImmediateData, Opcode, Queue

ADD = 0
#: The kinds of message that `header_of_message_sent` can have siwarp send on a stream.
MESSAGE_KINDS = ["request", "response", "immediate", "immediate with event"]


def header_of_message_sent(layer_poller: RdmapPoller, stream: Stream, which: str) -> Any:
    """Have siwarp send one message of this kind, and return its header."""
    m = layer_poller.register_new_memory(8)
    if which == "request":
        stream.request_atomic(m.sge(), kind=ADD)
        return stream.read_sent_segment()[0]
    if which == "response":
        stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr))
        assert stream.next_event().kind == "REQUESTED"
        stream.flush()
        return stream.read_sent_segment()[0]
    post_write_with_imm(
        stream, 1, Opcode.IMMEDIATE if which == "immediate" else Opcode.IMMEDIATE_SE
    )
    stream.read_sent_segment()
    return stream.read_sent_segment()[0]


OPCODE_OF = dict(
    zip(
        MESSAGE_KINDS,
        (Opcode.ATOMIC_REQUEST, Opcode.ATOMIC_RESPONSE, Opcode.IMMEDIATE, Opcode.IMMEDIATE_SE),
        strict=True,
    )
)


@pytest.mark.parametrize("which", MESSAGE_KINDS)
@pytest.mark.clause("RFC7306-4.1-01")
def test_each_rfc_7306_message_is_sent_with_its_opcode_version_one_and_no_stag(
    layer_poller: RdmapPoller, which: str
) -> None:
    head = header_of_message_sent(layer_poller, layer_poller.create_initiator(), which)
    assert (head.rv, head.opcode, head.inv_stag) == (1, OPCODE_OF[which], 0)
    assert (head.t, head.dv, head.ddp_rsvd, head.rdmap_rsvd) == (0, 1, 0, 0)


@pytest.mark.clause("RFC7306-4.1-01")
def test_the_invalidate_stag_field_of_rfc_7306_messages_is_ignored(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8, bytes(8))
    stream.recvs.post(1)
    stream.inject_segments(
        build_immediate(inv_stag=0xFFFFFFFF),
        build_atomic_request(stag=m.stag, to=m.addr, data=1, inv_stag=m.stag),
    )
    assert stream.next_event().kind == "RECV"
    assert stream.next_event().kind == "REQUESTED"
    stream.flush()
    assert stream.read_sent_atomic_response()[1].old == 0
    stream.request_atomic(layer_poller.register_new_memory(8).sge(), kind=ADD)
    number = stream.read_sent_atomic_request()[1].request
    stream.inject_segments(build_atomic_response(number, inv_stag=0xFFFFFFFF))
    assert stream.next_event().kind == "READ_DONE"


# ---- section 8: errors


def build_valid_bodies(layer_poller: RdmapPoller, stream: Stream) -> dict[str, bytes]:
    """Return, for each message, the valid octets after its DDP header."""
    m = layer_poller.register_new_memory(8, bytes(8))
    stream.recvs.post(1, layer_poller.register_new_memory(100).sge())
    stream.request_atomic(layer_poller.register_new_memory(8).sge(), kind=ADD)
    number = stream.read_sent_atomic_request()[1].request
    return {
        "request": bytes(AtomicRequest(stag=m.stag, to=m.addr)),
        "response": build_atomic_response(number)[18:],
        "immediate": bytes(ImmediateData()),
        "immediate with event": bytes(ImmediateData()),
    }


QUEUE_OF = dict(
    zip(
        MESSAGE_KINDS,
        (Queue.READ_REQUEST, Queue.ATOMIC_RESPONSE, Queue.SEND, Queue.SEND),
        strict=True,
    )
)
DDP_FIELDS: list[tuple[dict[str, int], int]] = [
    ({"dv": 2}, lib.SIW_DDP_UNTAGGED_VERSION),
    ({"qn": 4}, lib.SIW_DDP_INVALID_QN),
    ({"msn": 2}, lib.SIW_DDP_MSN_RANGE),
    ({"mo": 1}, lib.SIW_DDP_INVALID_MO),
]


@pytest.mark.parametrize("which", MESSAGE_KINDS)
@pytest.mark.parametrize(("fields", "code"), DDP_FIELDS, ids=["dv", "qn", "msn", "mo"])
@pytest.mark.clause("RFC7306-8.2-01#a", "RFC7306-8.2-02")
def test_the_ddp_header_fields_of_rfc_7306_messages_are_checked(
    layer_poller: RdmapPoller, which: str, fields: dict[str, int], code: int
) -> None:
    stream = layer_poller.create_initiator()
    body = build_valid_bodies(layer_poller, stream)[which]
    good = {"opcode": OPCODE_OF[which], "qn": QUEUE_OF[which]}
    stream.inject_segments(build_untagged_segment(body, **{**good, **fields}))
    stream.assert_terminates_with((1, 2, code))


@pytest.mark.parametrize("which", MESSAGE_KINDS)
@pytest.mark.parametrize("where", ["tagged", 0, 1, 2, 3])
@pytest.mark.clause("RFC7306-8.1-01#b", "RFC7306-8.2-01#b", "RFC7306-8.2-03")
def test_an_rfc_7306_opcode_on_a_wrong_queue_is_unexpected_and_quotes_the_ddp_header(
    layer_poller: RdmapPoller, which: str, where: str | int
) -> None:
    if where == QUEUE_OF[which]:
        where = "tagged"
    stream = layer_poller.create_initiator()
    body = build_valid_bodies(layer_poller, stream)[which][: 12 if where == 3 else 52]
    if where == "tagged":
        segment = build_tagged_segment(body, stag=1, opcode=OPCODE_OF[which])
    else:
        segment = build_untagged_segment(body, qn=where, opcode=OPCODE_OF[which])
    stream.inject_segments(segment)
    t = stream.assert_terminates_with((0, 2, lib.SIW_RDMAP_OPCODE))
    assert (t.m, t.d, t.r, t.ddp_seg_len) == (1, 1, 0, len(segment))
    assert bytes(t.quoted_ddp) == segment[: 14 if where == "tagged" else 18]


@pytest.mark.parametrize("which", MESSAGE_KINDS)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.clause("RFC7306-8.2-01#c", "RFC7306-8.2-04")
def test_rfc_7306_messages_with_an_unknown_rdmap_version_are_refused(
    layer_poller: RdmapPoller, which: str, version: int
) -> None:
    stream = layer_poller.create_initiator()
    body = build_valid_bodies(layer_poller, stream)[which]
    stream.inject_segments(
        build_untagged_segment(body, opcode=OPCODE_OF[which], qn=QUEUE_OF[which], rv=version)
    )
    stream.assert_terminates_with((0, 2, lib.SIW_RDMAP_VERSION))


@pytest.mark.clause("RFC7306-8.1-01#a")
def test_an_error_while_making_an_atomic_response_is_reported_without_a_quote(
    layer_poller: RdmapPoller,
) -> None:
    gone = RemovableMemory(PAGE, "unmapped")
    stag = ffi.new("uint32_t *")
    where = {"addr": ffi.cast("uint8_t *", gone.addr), "to_base": gone.addr, "length": PAGE}
    where |= {"rights": ALL, "pd": PD}
    check_result(
        lib.siw_mem_stag_alloc(layer_poller.mem, ffi.new("struct siw_mem_region *", where), stag)
    )
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_atomic_request(stag=stag[0], to=gone.addr))
    assert stream.next_event().kind == "REQUESTED"
    lib.siw_guard_install_handlers()
    try:
        gone.remove_pages()
        assert lib.siw_rdmap_flush_tx(stream.handle, ffi.new("uint64_t *")) < 0
        t = stream.assert_terminates_with((0, 0, 0))
        assert (t.m, t.d, t.r) == (0, 0, 0)
    finally:
        lib.siw_guard_remove_handlers()
        gone.close()


@pytest.mark.parametrize("size", [0, 28, 51])
def test_an_atomic_request_that_is_too_short_is_an_error(
    layer_poller: RdmapPoller, size: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8, bytes(8))
    stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr, data=1)[: 18 + size])
    t = stream.assert_terminates_with((0, 2, 0xFF))
    assert (t.d, t.r) == (1, 0)
    assert m.octets() == bytes(8)


def test_an_atomic_request_that_is_too_long_is_an_error(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8, bytes(8))
    stream.inject_segments(build_atomic_request(stag=m.stag, to=m.addr, data=1) + b"x")
    stream.assert_terminates_with((1, 2, lib.SIW_DDP_TOO_LONG))
    assert m.octets() == bytes(8)
