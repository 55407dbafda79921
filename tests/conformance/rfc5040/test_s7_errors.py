"""RFC 5040 section 7: which errors are detected, their numbers, and that the peer is informed."""

from __future__ import annotations

from typing import Any

import pytest
from _siwarp_layers import lib
from unit.rdmap.rdmap_harness import (
    ALL,
    PD,
    REMOTE_READ,
    REMOTE_WRITE,
    RdmapPoller,
    StreamError,
    build_read_request,
    build_send,
    build_tagged_segment,
    build_terminate,
    build_untagged_segment,
    build_write,
    octet_pattern,
)

OPCODE = (0, 2, lib.SIW_RDMAP_OPCODE)
VERSION = (0, 2, lib.SIW_RDMAP_VERSION)
#: The opcodes that may be tagged, and the queue of each other opcode (RFC 5040 figure 4, RFC 7306).
TAGGED = {0, 2}
QUEUE = {1: 1, 3: 0, 4: 0, 5: 0, 6: 0, 7: 2, 8: 0, 9: 0, 10: 1, 11: 3}
PROTECTION = (0, 1)


MISPLACED = [
    (opcode, where)
    for opcode in range(16)
    for where in ("tagged", 0, 1, 2)
    if (opcode not in TAGGED if where == "tagged" else QUEUE.get(opcode) != where)
]


@pytest.mark.parametrize(("opcode", "where"), MISPLACED)
@pytest.mark.clause("RFC5040-7.2-02", "RFC5040-7.2-07")
def test_an_opcode_on_a_wrong_queue_or_buffer_model_is_unexpected(
    layer_poller: RdmapPoller, opcode: int, where: str | int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100)
    stream.recvs.post(1, m.sge())
    if where == "tagged":
        stream.inject_segments(
            build_tagged_segment(bytes(28), stag=m.stag, to=m.addr, opcode=opcode)
        )
    else:
        stream.inject_segments(build_untagged_segment(bytes(28), qn=where, opcode=opcode))
    t = stream.assert_terminates_with(OPCODE)
    assert t.quoted_ddp.opcode == opcode
    assert m.is_untouched()
    assert stream.recvs.take_buffer() == 1


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["send", "write", "read", "terminate"])
@pytest.mark.clause("RFC5040-7.2-03", "RFC5040-7.2-08")
def test_a_segment_with_an_unknown_rdmap_version_is_refused(
    layer_poller: RdmapPoller, kind: str, version: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100)
    stream.recvs.post(1, m.sge())
    stream.inject_segments(
        {
            "send": build_send(b"abc", rv=version),
            "write": build_write(b"abc", stag=m.stag, to=m.addr, rv=version),
            "read": build_read_request(size=1, src_stag=m.stag, src_to=m.addr, rv=version),
            "terminate": build_terminate(bytes(4), rv=version),
        }[kind]
    )
    stream.assert_terminates_with(VERSION)
    assert m.is_untouched()


@pytest.mark.clause("RFC5040-7.2-01", "RFC5040-7.2-06")
def test_ddp_errors_are_detected_before_rdmap_errors_and_have_ddp_numbers(
    layer_poller: RdmapPoller,
) -> None:
    for segment, error in [
        (build_send(b"abc", msn=7, opcode=9, rv=3), (1, 2, lib.SIW_DDP_MSN_RANGE)),
        (build_send(b"abc", qn=4, opcode=9), (1, 2, lib.SIW_DDP_INVALID_QN)),
        (build_write(b"abc", dv=3, rv=3), (1, 1, lib.SIW_DDP_TAGGED_VERSION)),
        (build_send(octet_pattern(101), rv=1), (1, 2, lib.SIW_DDP_TOO_LONG)),
        (build_send(b"abc", mo=3), (1, 2, lib.SIW_DDP_INVALID_MO)),
    ]:
        stream = layer_poller.create_initiator()
        m = layer_poller.register_new_memory(100)
        stream.recvs.post(1, m.sge())
        stream.inject_segments(segment)
        stream.assert_terminates_with(error)


@pytest.mark.clause("RFC5040-7.1-01", "RFC5040-7.1-02#b")
def test_a_send_without_a_posted_receive_is_reported_at_both_ends(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    stream.inject_segments(build_send(b"abc"))
    e = stream.receive_until_error()
    assert e.err == (1, 2, lib.SIW_DDP_NO_BUFFER)
    assert (e.quoted, e.quoted_tagged, e.quoted_qn, e.quoted_msn) == (True, False, 0, 1)
    stream.send_terminate()
    t = stream.read_sent_terminate()
    assert (t.layer, t.etype, t.code) == e.err
    assert bytes(t.quoted_ddp) == build_send()


@pytest.mark.parametrize("rights", [0, 1, REMOTE_READ, REMOTE_READ | 1])
def test_memory_without_remote_write_access_is_not_written(
    layer_poller: RdmapPoller, rights: int
) -> None:
    for size in (100, 20_000):
        stream = layer_poller.create_initiator()
        m = layer_poller.register_new_memory(20_000, rights=rights)
        stream.inject_segments(build_write(octet_pattern(size), stag=m.stag, to=m.addr))
        t = stream.assert_terminates_with((*PROTECTION, lib.SIW_RDMAP_ACCESS))
        assert (t.m, t.d, t.r, t.quoted_ddp.stag) == (1, 1, 0, m.stag)
        assert m.is_untouched()


@pytest.mark.parametrize("rights", [0, 1, REMOTE_WRITE | 1])
def test_memory_without_remote_read_access_is_not_read(
    layer_poller: RdmapPoller, rights: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(100, b"a secret", rights=rights)
    stream.inject_segments(build_read_request(size=8, src_stag=m.stag, src_to=m.addr))
    stream.assert_terminates_with(
        (*PROTECTION, lib.SIW_RDMAP_ACCESS)
    )  # nothing is sent before the Terminate


@pytest.mark.clause("RFC5040-7.2-09", "RFC5040-5.2.1-15")
def test_a_read_from_an_invalid_source_stag_is_refused(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    layer_poller.free_stag(m.stag)
    stream.inject_segments(build_read_request(size=1, src_stag=m.stag, src_to=m.addr))
    stream.assert_terminates_with((*PROTECTION, lib.SIW_RDMAP_INVALID_STAG))


@pytest.mark.clause("RFC5040-7.2-10")
def test_a_read_from_a_source_in_another_protection_domain_is_refused(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10, pd=PD + 1)
    stream.inject_segments(build_read_request(size=1, src_stag=m.stag, src_to=m.addr))
    stream.assert_terminates_with((*PROTECTION, lib.SIW_RDMAP_STAG_NOT_OF_STREAM))


@pytest.mark.parametrize(("at", "size"), [(-1, 1), (-1, 12), (0, 11), (9, 2), (10, 1), (11, 1)])
@pytest.mark.clause("RFC5040-7.2-11", "RFC5040-7.2-12")
def test_a_read_from_a_source_that_exceeds_the_region_is_refused(
    layer_poller: RdmapPoller, at: int, size: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.inject_segments(build_read_request(size=size, src_stag=m.stag, src_to=m.addr + at))
    stream.assert_terminates_with((*PROTECTION, lib.SIW_RDMAP_BOUNDS))


@pytest.mark.clause("RFC5040-7.2-13")
def test_a_read_from_a_source_that_wraps_around_is_refused(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(10)
    stream.inject_segments(build_read_request(size=2**32 - 1, src_stag=m.stag, src_to=2**64 - 5))
    stream.assert_terminates_with((*PROTECTION, lib.SIW_RDMAP_TO_WRAP))


@pytest.mark.clause("RFC5040-7.1-03", "RFC5040-7.1-02#d")
def test_only_the_first_error_is_reported(layer_poller: RdmapPoller) -> None:
    stream = layer_poller.create_initiator()
    first = build_write(b"abc", stag=0x77)
    stream.inject_segments(first, build_send(b"abc", msn=9), build_write(b"abc", dv=3))
    t = stream.assert_terminates_with((1, 1, lib.SIW_DDP_INVALID_STAG))
    assert bytes(t.quoted_ddp) == first[:14]


@pytest.mark.clause("RFC5040-7.1-02#a", "RFC5040-7.1-01")
def test_a_local_error_while_sending_is_reported_without_a_quoted_header(
    layer_poller: RdmapPoller,
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(4 << 20)
    stream.begin_operation(lib.SIW_RDMAP_SEND, [m.sge()])
    layer_poller.free_stag(m.stag)
    with pytest.raises(StreamError, match="EACCES"):
        stream.flush_once()
    e = stream.next_event()
    assert (e.kind, e.err, e.quoted) == ("ERROR", (0, 0, 0), False)


@pytest.mark.clause("RFC5040-7.2-04", "RFC5040-7.2-05")
@pytest.mark.parametrize("which", ["ours", "other domain", "freed", "never"])
def test_an_stag_that_is_not_bound_to_the_stream_cannot_be_invalidated(
    layer_poller: RdmapPoller, which: str
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(
        10, rights=ALL, pd=PD + 1 if which == "other domain" else PD
    )
    if which == "freed":
        layer_poller.free_stag(m.stag)
    stag = 0x1234 if which == "never" else m.stag
    into = layer_poller.register_new_memory(10)
    stream.recvs.post(1, into.sge())
    stream.inject_segments(build_send(b"abc", opcode=4, inv_stag=stag))
    t = stream.assert_terminates_with((*PROTECTION, lib.SIW_RDMAP_CANNOT_INVALIDATE))
    assert t.quoted_ddp.inv_stag == stag


@pytest.mark.parametrize("rights", [REMOTE_READ, REMOTE_WRITE | 1, REMOTE_READ | REMOTE_WRITE | 1])
@pytest.mark.parametrize("way", [REMOTE_READ, REMOTE_WRITE])
@pytest.mark.clause("RFC5040-8.1.1-06#a", "RFC5041-8.3.1-06#a")
def test_memory_can_be_read_or_written_only_as_its_access_rights_allow(
    layer_poller: RdmapPoller, rights: int, way: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8, b"a secret", rights=rights)
    access_memory_from_peer(stream, m, way)
    if not rights & way:
        stream.assert_terminates_with((*PROTECTION, lib.SIW_RDMAP_ACCESS))
        assert m.octets() == b"a secret"
    elif way == REMOTE_READ:
        assert stream.next_event().kind == "REQUESTED"
        stream.flush()
        assert stream.read_sent_message()[1] == b"a secret"
    else:
        stream.recvs.post(1, layer_poller.register_new_memory(8).sge())
        stream.inject_segments(build_send(b"done"))
        assert stream.next_event().kind == "RECV"
        assert m.octets() == b"replaced"


@pytest.mark.parametrize("way", [REMOTE_READ, REMOTE_WRITE])
@pytest.mark.clause("RFC5040-8.1.1-06#b", "RFC5041-8.3.1-06#b")
def test_after_an_stag_is_freed_its_memory_can_be_neither_read_nor_written(
    layer_poller: RdmapPoller, way: int
) -> None:
    stream = layer_poller.create_initiator()
    m = layer_poller.register_new_memory(8, b"a secret")
    assert layer_poller.free_stag(m.stag) == 0
    access_memory_from_peer(stream, m, way)
    layer = PROTECTION if way == REMOTE_READ else (1, 1)
    stream.assert_terminates_with((*layer, lib.SIW_RDMAP_INVALID_STAG))
    assert m.octets() == b"a secret"


def access_memory_from_peer(stream: Any, m: Any, way: int) -> None:
    """Have the peer read or write all of the memory."""
    if way == REMOTE_READ:
        stream.inject_segments(build_read_request(size=8, src_stag=m.stag, src_to=m.addr))
    else:
        stream.inject_segments(build_write(b"replaced", stag=m.stag, to=m.addr))
