"""Every error of RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section 8.

A scapy peer provokes each error over TCP, and the test compares the octets of the resulting
Terminate. The tables give a reason for each error that cannot be provoked.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from harness.rc_harness import (
    End,
    ListenerAndConnector,
    connect_plain_socket,
    create_plain_listener,
    read_to_end,
)
from harness.verbs_harness import ALL_ACCESS, Rig, octet_pattern, poll, wait_until
from harness.wire_peer import (
    CONNECT,
    ScriptedRCPeer,
    build_read_request,
    build_read_response,
    build_send,
    build_write,
    recv_startup_frame,
)
from scapy.packet import Packet, Raw

from siwarp.cm import CMID, RTR, CMEventChannel, CMEventType, ConnParam
from siwarp.inspect import (
    AtomicRequest,
    DDPTagged,
    DDPUntagged,
    MPAReply,
    MPARequest,
    Opcode,
    QuotedReadRequest,
    QuotedTagged,
    QuotedUntagged,
    ReadRequest,
    Terminate,
    crc32c,
)
from siwarp.inspect.names import TERM_CODES, AtomicCode
from siwarp.verbs import (
    MR,
    PD,
    AccessFlag,
    QPAttr,
    QPState,
    RecvWR,
    RemoteBuffer,
    SendWR,
    WCStatus,
    WROpcode,
)

#: The errors that the RFCs list; the local catastrophic error of RDMAP has no defined code.
FIGURE_9 = {(0, 0, 0)}
FIGURE_9 |= {(0, 1, code) for code in (0, 1, 2, 3, 4, 9, 0xFF)}
FIGURE_9 |= {(0, 2, code) for code in (5, 6, 7, 8, 9, 0xFF)}
DDP_7_2 = {(1, 0, 0)} | {(1, 1, code) for code in range(5)} | {(1, 2, c) for c in range(1, 7)}
MPA_8 = {(2, 0, code) for code in (1, 2, 3, 4)}
ENHANCED_8 = {(2, 0, code) for code in (5, 6, 7)}
ALL = FIGURE_9 | DDP_7_2 | MPA_8 | ENHANCED_8

#: A function that sends the octets which provoke an error, and returns the segment that the
#: Terminate must quote.
Provoke = Callable[[ScriptedRCPeer, int], Packet | None]


@dataclass(frozen=True)
class ErrorCase:
    """An error: its RFC, its numbers, how it is provoked, and what its Terminate quotes."""

    rfc: str
    error: tuple[int, int, int]
    provoke: Provoke
    quotes: str  # the quoted part: "nothing", "segment" or "request"
    small_only: bool = False

    def __str__(self) -> str:
        return "/".join(f"{n:x}" for n in self.error) + f"-{self.provoke.__name__.strip('_')}"


def send_segment_and_return_it(peer: ScriptedRCPeer, segment: Packet) -> Packet:
    peer.send_segments(segment)
    return segment


KEPT_REGIONS: list[MR] = []


def keep_mr_and_return_remote(mr: MR) -> RemoteBuffer:
    """Return what a peer needs to access a region, which stays registered until the end of the
    test.
    """
    KEPT_REGIONS.append(mr)
    return mr.remote()


def register_memory(
    peer: ScriptedRCPeer, access: int = ALL_ACCESS, *, foreign: bool = False
) -> RemoteBuffer:
    """Return registered memory of 40,000 octets, in the peer's protection domain or in another
    one.
    """
    rig = peer.end.rig
    return keep_mr_and_return_remote(
        MR(PD(rig.ctx) if foreign else rig.pd, bytearray(40_000), access)
    )


# ---- RDMAP: source of a Read Request, STag to invalidate, operations


def _read_with_invalid_stag(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(peer, build_read_request(size, there.rkey ^ 0x40, there.addr))


def _read_out_of_bounds(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(
        peer, build_read_request(size, there.rkey, there.addr + 40_001 - size)
    )


def _read_without_access_right(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE)
    return send_segment_and_return_it(peer, build_read_request(size, there.rkey, there.addr))


def _read_region_of_other_pd(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer, foreign=True)
    return send_segment_and_return_it(peer, build_read_request(size, there.rkey, there.addr))


def _send_read_with_wrapping_offset(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(peer, build_read_request(size, there.rkey, 2**64 - size + 1))


def _invalidate_forbidden_stag(peer: ScriptedRCPeer, size: int) -> Packet:
    segment = build_send(opcode=Opcode.SEND_INVALIDATE, inv_stag=register_memory(peer).rkey)
    return send_segment_and_return_it(peer, segment / Raw(octet_pattern(size)))


def _write_without_access_right(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ)
    return send_segment_and_return_it(
        peer, build_write(there.rkey, there.addr) / Raw(octet_pattern(size))
    )


def _send_wrong_rdmap_version(peer: ScriptedRCPeer, size: int) -> Packet:
    return send_segment_and_return_it(peer, build_send(rv=2) / Raw(octet_pattern(size)))


def _write_wrong_rdmap_version(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(
        peer, build_write(there.rkey, there.addr, rv=3) / Raw(octet_pattern(size))
    )


def _send_unknown_opcode(peer: ScriptedRCPeer, size: int) -> Packet:
    return send_segment_and_return_it(peer, build_send(opcode=0xB) / Raw(octet_pattern(size)))


def _send_on_wrong_queue(peer: ScriptedRCPeer, size: int) -> Packet:
    return send_segment_and_return_it(peer, build_send(qn=2) / Raw(octet_pattern(min(size, 100))))


def _send_unsolicited_read_response(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(
        peer, build_read_response(there.rkey, there.addr) / Raw(octet_pattern(size))
    )


def _send_short_read_response(peer: ScriptedRCPeer, size: int) -> Packet:
    request = make_siwarp_send_read_request(peer, size)
    return send_segment_and_return_it(
        peer, build_read_response(request.sink_stag, request.sink_to) / Raw(octet_pattern(size - 1))
    )


def _send_truncated_read_request(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    segment = build_read_request(size, there.rkey, there.addr)
    segment = DDPUntagged(bytes(segment)[:-1])
    return send_segment_and_return_it(peer, segment)


def _send_misaligned_atomic(peer: ScriptedRCPeer, size: int) -> Packet:
    """Send a misaligned atomic, for which RFC 7306 uses an error code of RFC 5040."""
    there = register_memory(peer)
    request = AtomicRequest(
        code=AtomicCode.FETCH_ADD, request=7, stag=there.rkey, to=there.addr | 1, data=1
    )
    return send_segment_and_return_it(
        peer, DDPUntagged(opcode=Opcode.ATOMIC_REQUEST, qn=1, msn=1) / request
    )


def make_siwarp_send_read_request(peer: ScriptedRCPeer, size: int) -> ReadRequest:
    """Have the siwarp end post an RDMA Read of this size, and return its Read Request."""
    end = peer.end
    there = RemoteBuffer(0x1000, 1 << 20, 0x77)
    end.qp.post_send(SendWR(5, WROpcode.RDMA_READ, sg=[end.mem.sge(0, size)], remote=there))
    fpdu = peer.receive_fpdu()
    assert fpdu.ulpdu.opcode == Opcode.RDMA_READ_REQUEST
    return ReadRequest(bytes(fpdu.ulpdu.payload))


def _invalidate_source_of_blocked_write(peer: ScriptedRCPeer, size: int) -> None:
    """Have siwarp send a long Write, which blocks because the peer reads nothing, and invalidate
    the source of the Write.
    """
    mr = register_invalidatable_memory(peer, 64 << 20)
    peer.end.qp.post_send(
        SendWR(5, WROpcode.RDMA_WRITE, sg=[mr.sge()], remote=RemoteBuffer(0, 1 << 30, 0x77))
    )
    peer.send_segments(build_send(opcode=Opcode.SEND_INVALIDATE, inv_stag=mr.rkey))


def register_invalidatable_memory(peer: ScriptedRCPeer, size: int) -> MR:
    """Return memory that the peer may invalidate, even while the siwarp end uses it."""
    access = ALL_ACCESS | AccessFlag.REMOTE_INVALIDATE
    mr = MR(peer.end.rig.pd, size, access, qp=peer.end.qp)
    KEPT_REGIONS.append(mr)
    return mr


# ---- DDP


def _write_with_invalid_stag(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(
        peer, build_write(there.rkey ^ 0x40, there.addr) / Raw(octet_pattern(size))
    )


def _write_out_of_bounds(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(
        peer, build_write(there.rkey, there.addr + 40_001 - size) / Raw(octet_pattern(size))
    )


def _write_below_region(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(
        peer, build_write(there.rkey, there.addr - 1) / Raw(octet_pattern(size))
    )


def _write_region_of_other_pd(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer, foreign=True)
    return send_segment_and_return_it(
        peer, build_write(there.rkey, there.addr) / Raw(octet_pattern(size))
    )


def _write_region_of_other_qp(peer: ScriptedRCPeer, size: int) -> Packet:
    end = peer.end
    other = end.rig.create_qp(qp_type=end.qp.qp_type)
    there = keep_mr_and_return_remote(MR(end.rig.pd, bytearray(40_000), ALL_ACCESS, qp=other))
    return send_segment_and_return_it(
        peer, build_write(there.rkey, there.addr) / Raw(octet_pattern(size))
    )


def _send_write_with_wrapping_offset(peer: ScriptedRCPeer, size: int) -> Packet:
    return send_segment_and_return_it(
        peer, build_write(register_memory(peer).rkey, 2**64 - size + 1) / Raw(octet_pattern(size))
    )


def _write_wrong_ddp_version(peer: ScriptedRCPeer, size: int) -> Packet:
    there = register_memory(peer)
    return send_segment_and_return_it(
        peer, build_write(there.rkey, there.addr, dv=2) / Raw(octet_pattern(size))
    )


def _send_read_response_out_of_order(peer: ScriptedRCPeer, size: int) -> Packet:
    """Send a response to the second Read while the first Read is unanswered."""
    make_siwarp_send_read_request(peer, size)
    second = make_siwarp_send_read_request(peer, size)
    return send_segment_and_return_it(
        peer, build_read_response(second.sink_stag, second.sink_to) / Raw(octet_pattern(size))
    )


def _send_read_response_with_gap(peer: ScriptedRCPeer, size: int) -> Packet:
    request = make_siwarp_send_read_request(peer, size)
    return send_segment_and_return_it(
        peer, build_read_response(request.sink_stag, request.sink_to + 1) / Raw(octet_pattern(size))
    )


def _send_long_read_response(peer: ScriptedRCPeer, size: int) -> Packet:
    request = make_siwarp_send_read_request(peer, size)
    return send_segment_and_return_it(
        peer, build_read_response(request.sink_stag, request.sink_to) / Raw(octet_pattern(size + 1))
    )


def _send_on_unknown_queue(peer: ScriptedRCPeer, size: int) -> Packet:
    return send_segment_and_return_it(peer, build_send(qn=4) / Raw(octet_pattern(size)))


def _send_without_posted_receive(peer: ScriptedRCPeer, size: int) -> Packet:
    peer.send_segments(build_send(1))
    return send_segment_and_return_it(peer, build_send(2) / Raw(octet_pattern(size)))


def _send_too_many_reads(peer: ScriptedRCPeer, size: int) -> Packet:
    """Send a fifth Read Request while four Reads are outstanding, because the peer does not read
    their responses of 64 MiB.
    """
    there = keep_mr_and_return_remote(MR(peer.end.rig.pd, 64 << 20, ALL_ACCESS))
    for msn in (1, 2, 3, 4):
        peer.send_segments(build_read_request(64 << 20, there.rkey, there.addr, msn=msn))
    return send_segment_and_return_it(peer, build_read_request(size, there.rkey, there.addr, msn=5))


def _send_wrong_msn(peer: ScriptedRCPeer, size: int) -> Packet:
    return send_segment_and_return_it(peer, build_send(2) / Raw(octet_pattern(size)))


def _send_mo_with_gap(peer: ScriptedRCPeer, size: int) -> Packet:
    peer.send_segments(build_send(l=0) / Raw(b"abc"))
    return send_segment_and_return_it(peer, build_send(mo=4) / Raw(octet_pattern(size)))


def _send_decreasing_message_offset(peer: ScriptedRCPeer, size: int) -> Packet:
    peer.send_segments(build_send(l=0) / Raw(b"abc"))
    return send_segment_and_return_it(peer, build_send(mo=2) / Raw(octet_pattern(size)))


def _send_first_mo_not_zero(peer: ScriptedRCPeer, size: int) -> Packet:
    return send_segment_and_return_it(peer, build_send(mo=1) / Raw(octet_pattern(size)))


def _send_too_long_message(peer: ScriptedRCPeer, size: int) -> Packet:
    peer.send_segments(build_send(l=0) / Raw(bytes(30_000)))
    return send_segment_and_return_it(peer, build_send(mo=30_000) / Raw(bytes(1)))


def _send_wrong_ddp_version(peer: ScriptedRCPeer, size: int) -> Packet:
    return send_segment_and_return_it(peer, build_send(dv=0) / Raw(octet_pattern(size)))


def _send_to_invalidated_receive(peer: ScriptedRCPeer, size: int) -> None:
    """Send a message for which siwarp must use a receive whose local key is invalidated."""
    mr = register_invalidatable_memory(peer, 40_000)
    peer.end.qp.post_recv(RecvWR(2, sg=[mr.sge()]))
    peer.send_segments(build_send(1, opcode=Opcode.SEND_INVALIDATE, inv_stag=mr.rkey))
    peer.send_segments(build_send(2) / Raw(octet_pattern(size)))


def _send_truncated_ddp_header(peer: ScriptedRCPeer, size: int) -> None:
    peer.send_segments(b"\x41\x43" + bytes(15))


# ---- MPA


def _send_wrong_crc(peer: ScriptedRCPeer, size: int) -> None:
    peer.send_segments(build_send() / Raw(octet_pattern(size)), crc=0x12345678)


def _send_wrong_marker(peer: ScriptedRCPeer, size: int) -> None:
    octets = bytearray(peer.frame_segment(build_send() / Raw(octet_pattern(max(size, 600)))))
    octets[octets.index(b"\0\0", 500) + 3] ^= 4
    octets[-4:] = crc32c(bytes(octets[:-4])).to_bytes(4, "little")
    peer.sock.sendall(octets)


PROVOKED = [
    ErrorCase("RFC 5040 4.8", (0, 0, 0), _invalidate_source_of_blocked_write, "nothing", True),
    ErrorCase("RFC 5040 7.2", (0, 1, 0), _read_with_invalid_stag, "request"),
    ErrorCase("RFC 5040 7.2", (0, 1, 1), _read_out_of_bounds, "request"),
    ErrorCase("RFC 5040 4.8", (0, 1, 2), _read_without_access_right, "request"),
    ErrorCase("RFC 5040 4.8", (0, 1, 2), _write_without_access_right, "segment"),
    ErrorCase("RFC 5040 7.2", (0, 1, 3), _read_region_of_other_pd, "request"),
    ErrorCase("RFC 5040 7.2", (0, 1, 4), _send_read_with_wrapping_offset, "request"),
    ErrorCase("RFC 5040 5.3", (0, 1, 9), _invalidate_forbidden_stag, "segment"),
    ErrorCase("RFC 5040 7.2", (0, 2, 5), _send_wrong_rdmap_version, "segment"),
    ErrorCase("RFC 5040 7.2", (0, 2, 5), _write_wrong_rdmap_version, "segment"),
    ErrorCase("RFC 5040 7.2", (0, 2, 6), _send_unknown_opcode, "segment"),
    ErrorCase("RFC 5040 7.2", (0, 2, 6), _send_on_wrong_queue, "segment"),
    ErrorCase("RFC 5040 7.2", (0, 2, 6), _send_unsolicited_read_response, "segment"),
    ErrorCase("RFC 5040 4.8", (0, 2, 7), _send_misaligned_atomic, "segment"),
    ErrorCase("RFC 5040 4.8", (0, 2, 0xFF), _send_short_read_response, "segment"),
    ErrorCase("RFC 5040 4.8", (0, 2, 0xFF), _send_truncated_read_request, "segment"),
    ErrorCase("RFC 5041 7.2", (1, 0, 0), _send_to_invalidated_receive, "nothing"),
    ErrorCase("RFC 5041 7.2", (1, 0, 0), _send_truncated_ddp_header, "nothing", True),
    ErrorCase("RFC 5041 7.1", (1, 1, 0), _write_with_invalid_stag, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 1, 0), _send_read_response_out_of_order, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 1, 1), _write_out_of_bounds, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 1, 1), _write_below_region, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 1, 1), _send_read_response_with_gap, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 1, 1), _send_long_read_response, "segment"),
    ErrorCase("RFC 5041 7.2", (1, 1, 2), _write_region_of_other_pd, "segment"),
    ErrorCase("RFC 5041 7.2", (1, 1, 2), _write_region_of_other_qp, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 1, 3), _send_write_with_wrapping_offset, "segment"),
    ErrorCase("RFC 5041 7.2", (1, 1, 4), _write_wrong_ddp_version, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 2, 1), _send_on_unknown_queue, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 2, 2), _send_without_posted_receive, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 2, 2), _send_too_many_reads, "segment", True),
    ErrorCase("RFC 5041 7.1", (1, 2, 3), _send_wrong_msn, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 2, 4), _send_mo_with_gap, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 2, 4), _send_decreasing_message_offset, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 2, 4), _send_first_mo_not_zero, "segment"),
    ErrorCase("RFC 5041 7.1", (1, 2, 5), _send_too_long_message, "segment", True),
    ErrorCase("RFC 5041 7.2", (1, 2, 6), _send_wrong_ddp_version, "segment"),
    ErrorCase("RFC 5044 8", (2, 0, 2), _send_wrong_crc, "nothing"),
    ErrorCase("RFC 5044 8", (2, 0, 3), _send_wrong_marker, "nothing"),
]

#: The errors during start-up, each of which has a test of its own.
STARTUP_ERRORS = {(2, 0, 4), (2, 0, 5), (2, 0, 6), (2, 0, 7)}

#: The reasons why siwarp never sends a Terminate with these numbers.
NEVER_SENT = {
    (0, 1, 0xFF): "every protection error here is one of those that have a code of their own",
    (0, 2, 8): "nothing in a process of user space fails for all its streams and leaves them alive",
    (0, 2, 9): "figure 9 has the error twice; figure 10 gives Sends with Invalidate to type 1",
    (2, 0, 1): "a lost connection carries no Terminate; the program is told by the event",
}


def test_the_tables_list_every_error_of_the_rfcs_exactly_once() -> None:
    provoked = {row.error for row in PROVOKED}
    assert provoked | STARTUP_ERRORS | NEVER_SENT.keys() == ALL
    assert not provoked & STARTUP_ERRORS
    assert not (provoked | STARTUP_ERRORS) & NEVER_SENT.keys()
    assert set(TERM_CODES) | {(0, 0, 0)} == ALL  # siwarp.inspect lists the same error codes


@pytest.fixture(name="connector")
def listener_and_connector() -> Iterator[ListenerAndConnector]:
    """Yield a listener on 127.0.0.1 and a way to connect to the listener."""
    rig = Rig()
    yield ListenerAndConnector(rig)
    KEPT_REGIONS.clear()
    rig.close()


def expected_terminate(row: ErrorCase, segment: Packet | None) -> bytes:
    """Return the expected octets of the Terminate according to RFC 5040 section 4.8."""
    layer, etype, code = row.error
    fields = {"layer": layer, "etype": etype, "code": code}
    if row.quotes == "nothing":
        return bytes(Terminate(**fields))
    assert segment is not None
    octets = bytes(segment)
    fields |= {"m": 1, "d": 1, "ddp_seg_len": len(octets)}
    if isinstance(segment, DDPTagged):
        fields["quoted_ddp"] = QuotedTagged(octets[:14])
    else:
        fields["quoted_ddp"] = QuotedUntagged(octets[:18])
    if row.quotes == "request":
        fields |= {"r": 1, "quoted_rdma": QuotedReadRequest(octets[18:46])}
    return bytes(Terminate(**fields))


def provoke_error_and_check_reports(row: ErrorCase, peer: ScriptedRCPeer, size: int) -> None:
    """Provoke an error, and check the reports to the peer and to the program."""
    end = peer.end
    canary = bytes(end.mem.view)
    end.post_receive(1, 0, 30_000)
    segment = row.provoke(peer, size)
    terminate = peer.receive_terminate()
    assert bytes(terminate) == expected_terminate(row, segment)
    assert (terminate.layer, terminate.etype, terminate.code) == row.error
    number = row.error[0] << 16 | row.error[1] << 8 | row.error[2] or 0xFF
    end.wait_for_error_state()
    event = end.next_cm_event()
    assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, number)
    for wc in wait_until(lambda: end.rcq.poll(8)):
        assert wc.ok or wc.vendor_err == number or wc.status != WCStatus.WR_FLUSH_ERR
    assert bytes(end.mem.view)[30_000:] == canary[30_000:]


@pytest.mark.parametrize("row", PROVOKED, ids=str)
@pytest.mark.parametrize("size", [600, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("how", ["asking", "answering"])
@pytest.mark.clause("RFC5040-4.8-03", "RFC5040-7.1-02#b", "RFC5040-7.1-02#c")
def test_each_error_causes_a_terminate_with_its_numbers_and_the_required_quotes(
    connector: ListenerAndConnector, row: ErrorCase, size: int, how: str
) -> None:
    param = ConnParam(markers=row.error == (2, 0, 3), responder_resources=4)
    with CONNECT[how](connector, param=param) as peer:
        if how == "asking":
            # The peer sends an empty FPDU, because a responder may send only after it has received
            # an FPDU.
            peer.send_segments(None)
        provoke_error_and_check_reports(row, peer, size)


@pytest.mark.parametrize(
    "row", [row for row in PROVOKED if row.quotes != "nothing" and not row.small_only], ids=str
)
@pytest.mark.clause("RFC5040-4.8-04", "RFC5040-4.8-05", "RFC5040-4.8-06")
def test_each_quoted_error_causes_the_same_terminate_with_markers_in_both_directions(
    connector: ListenerAndConnector, row: ErrorCase
) -> None:
    reply = MPAReply(rev=2, m=1, s=1, ird=4, ord=4)
    with ScriptedRCPeer.accept_from_siwarp(connector, reply, ConnParam(markers=True)) as peer:
        provoke_error_and_check_reports(row, peer, 700)


# ---- start-up


@pytest.mark.parametrize(
    "octets",
    [
        b"GET / HTTP/1.1\r\n\r\n....",
        bytes(MPAReply()),
        bytes(MPARequest(rev=9)),
        bytes(MPARequest(pd_length=513)),
    ],
    ids=["noise", "reply", "revision", "length"],
)
@pytest.mark.clause("RFC5044-8-05", "RFC5044-7.1.2-04")
def test_an_invalid_mpa_request_closes_tcp_immediately_without_an_answer(
    connector: ListenerAndConnector, octets: bytes
) -> None:
    with connect_plain_socket(connector.address) as s:
        s.sendall(octets)
        assert read_to_end(s) == b""


@pytest.mark.parametrize(
    "octets",
    [b"HTTP/1.1 200 OK\r\n\r\n....", bytes(MPARequest()), bytes(MPAReply(rev=1))],
    ids=["noise", "request", "revision"],
)
@pytest.mark.clause("RFC5044-8-05", "RFC5044-7.1.2-08", "RFC5044-7.1.2-12")
def test_an_invalid_mpa_reply_is_error_code_4_and_closes_tcp_immediately(
    connector: ListenerAndConnector, octets: bytes
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector, Raw(octets), established=False) as peer:
        event = peer.end.next_cm_event()
        assert (event.type, event.wire_error) == (CMEventType.CONNECT_ERROR, 0x020004)
        assert read_to_end(peer.sock) == b""


def receive_terminate_fields(peer: ScriptedRCPeer) -> tuple[int, int, int, int, int, int]:
    t = peer.receive_terminate()
    return (t.layer, t.etype, t.code, t.m, t.d, t.r)


@pytest.mark.clause("RFC6581-9.3-01")
def test_a_queue_pair_in_err_at_the_mpa_reply_causes_a_local_catastrophic_error(
    connector: ListenerAndConnector,
) -> None:
    with create_plain_listener() as listener:
        channel = CMEventChannel(connector.active.ctx)
        end = End(connector.active, CMID(channel), channel)
        end.id.connect(listener.getsockname())
        sock, _ = listener.accept()
        sock.settimeout(5)
        request = MPARequest(recv_startup_frame(sock))
        end.qp.modify(QPAttr(qp_state=QPState.ERR))
        reply = MPAReply(rev=2, s=1, ird=4, ord=4)
        sock.sendall(bytes(reply))
        with ScriptedRCPeer(sock, end, reply, request) as peer:
            event = end.next_cm_event()
            assert (event.type, event.wire_error) == (CMEventType.CONNECT_ERROR, 0x020005)
            assert receive_terminate_fields(peer) == (2, 0, 5, 0, 0, 0)


@pytest.mark.clause("RFC6581-9.1-09", "RFC6581-9.1-06")
def test_a_responder_with_an_ord_above_the_maximum_ird_causes_insufficient_ird(
    connector: ListenerAndConnector,
) -> None:
    reply = MPAReply(rev=2, s=1, ird=4, ord=1000)
    with ScriptedRCPeer.accept_from_siwarp(connector, reply, established=False) as peer:
        assert peer.end.next_cm_event().wire_error == 0x020006
        assert receive_terminate_fields(peer) == (2, 0, 6, 0, 0, 0)


@pytest.mark.parametrize("ours", [RTR.WRITE, RTR.READ, RTR.FPDU, RTR.WRITE | RTR.READ])
@pytest.mark.clause("RFC6581-9.2-10", "RFC6581-9.2-11")
def test_a_responder_that_supports_no_offered_rtr_causes_the_error_no_matching_rtr(
    connector: ListenerAndConnector, ours: RTR
) -> None:
    bits = {"b": 1} if ours != RTR.FPDU else {"c_rtr": 1, "d_rtr": 1}
    reply = MPAReply(rev=2, s=1, a=1, ird=4, ord=4, **bits)
    with ScriptedRCPeer.accept_from_siwarp(
        connector, reply, ConnParam(peer_to_peer=ours), established=False
    ) as peer:
        assert peer.end.next_cm_event().wire_error == 0x020007
        assert receive_terminate_fields(peer) == (2, 0, 7, 0, 0, 0)


@pytest.mark.parametrize("sent", ["nothing", "send", "long write"])
@pytest.mark.clause("RFC6581-9.2-11")
def test_an_initiator_that_sends_another_rtr_causes_the_error_no_matching_rtr(
    connector: ListenerAndConnector, sent: str
) -> None:
    request = MPARequest(rev=2, s=1, a=1, c_rtr=1, ird=4, ord=4)
    with ScriptedRCPeer.connect_to_siwarp(connector, request, established=False) as peer:
        there = register_memory(peer)
        peer.end.post_receive(1)
        peer.send_segments(
            {
                "nothing": None,
                "send": build_send() / Raw(b"abc"),
                "long write": build_write(there.rkey, there.addr) / Raw(b"abc"),
            }[sent]
        )
        assert receive_terminate_fields(peer) == (2, 0, 7, 0, 0, 0)
        assert poll(peer.end.rcq)[0].vendor_err == 0x020007


@pytest.mark.parametrize("after", [b"", b"\0", b"\0\x40" + bytes(20)])
@pytest.mark.clause("RFC5044-8-01#a")
def test_a_connection_that_the_peer_closes_causes_no_terminate(
    connector: ListenerAndConnector, after: bytes
) -> None:
    """A connection that the peer closes (error 2/0/1) causes no Terminate, even within an FPDU."""
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        peer.send_segments(None)
        peer.end.post_receive(1)
        peer.sock.sendall(after)
        peer.sock.shutdown(socket.SHUT_WR)
        assert peer.receive_to_end().fpdus == []
        peer.end.wait_for_error_state()
        event = peer.end.next_cm_event()
        assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, 0)
        assert (event.status == 0) == (after == b"")
