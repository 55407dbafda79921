"""Terminates sent by a peer, and the completion status that each error gives the requests."""

from __future__ import annotations

import pytest
from conformance.rfc5040.test_s4_8_table import ALL
from harness.rc_harness import READ, ListenerAndConnector
from harness.verbs_harness import assert_counter_grows, poll
from harness.wire_peer import ScriptedRCPeer, build_send, build_terminate
from scapy.packet import Packet

from siwarp.cm import CMEventType
from siwarp.inspect import Opcode, QuotedReadRequest, QuotedTagged, QuotedUntagged
from siwarp.verbs import ProtocolError, RemoteBuffer, WCStatus

ACCESS, INVALID, OPERATION = (
    WCStatus.REM_ACCESS_ERR,
    WCStatus.REM_INV_REQ_ERR,
    WCStatus.REM_OP_ERR,
)
RNR, FLUSHED = WCStatus.RNR_RETRY_EXC_ERR, WCStatus.WR_FLUSH_ERR

#: The completion status of the request that a Terminate quotes.
STATUS = {
    (0, 0, 0x00): OPERATION,
    (0, 1, 0x00): ACCESS,
    (0, 1, 0x01): ACCESS,
    (0, 1, 0x02): ACCESS,
    (0, 1, 0x03): ACCESS,
    (0, 1, 0x04): ACCESS,
    (0, 1, 0x09): ACCESS,
    (0, 1, 0xFF): ACCESS,
    (0, 2, 0x05): OPERATION,
    (0, 2, 0x06): INVALID,
    (0, 2, 0x07): OPERATION,
    (0, 2, 0x08): OPERATION,
    (0, 2, 0x09): OPERATION,
    (0, 2, 0xFF): OPERATION,
    (1, 0, 0x00): OPERATION,
    (1, 1, 0x00): ACCESS,
    (1, 1, 0x01): ACCESS,
    (1, 1, 0x02): ACCESS,
    (1, 1, 0x03): ACCESS,
    (1, 1, 0x04): ACCESS,
    (1, 2, 0x01): INVALID,
    (1, 2, 0x02): RNR,
    (1, 2, 0x03): INVALID,
    (1, 2, 0x04): INVALID,
    (1, 2, 0x05): INVALID,
    (1, 2, 0x06): INVALID,
    (2, 0, 0x01): OPERATION,
    (2, 0, 0x02): OPERATION,
    (2, 0, 0x03): OPERATION,
    (2, 0, 0x04): OPERATION,
    (2, 0, 0x05): OPERATION,
    (2, 0, 0x06): OPERATION,
    (2, 0, 0x07): OPERATION,
}
ALL_FLUSHED = {1: FLUSHED, 2: FLUSHED, 3: FLUSHED}


def test_the_table_of_completion_statuses_has_every_terminate_error() -> None:
    assert STATUS.keys() == ALL


def expected_vendor_err(error: tuple[int, int, int]) -> int:
    # a vendor_err of 0 would mean that no Terminate was received, so error 0/0/0 has 0xFF
    if error == (0, 0, 0):
        return 0xFF
    return error[0] << 16 | error[1] << 8 | error[2]


def peer_that_received_reads(connector: ListenerAndConnector) -> tuple[ScriptedRCPeer, list[bytes]]:
    """Return a peer to which siwarp sends three Read Requests, and the requests' segments."""
    peer = ScriptedRCPeer.accept_from_siwarp(connector)
    for wr_id in (1, 2, 3):
        peer.end.post(READ, wr_id, length=8, remote=RemoteBuffer(0x100 * wr_id, 8, 0x77))
    segments = [bytes(peer.receive_fpdu().ulpdu) for _ in range(3)]
    assert all(s[1] & 0xF == Opcode.RDMA_READ_REQUEST for s in segments)
    return peer, segments


def send_terminate_and_check_reports(
    peer: ScriptedRCPeer, message: Packet, error: tuple[int, int, int]
) -> dict[int, int]:
    """Send a Terminate and check all reports of it; return the statuses of the Reads by wr_id."""
    end = peer.end
    end.post_receive(9)
    with assert_counter_grows("terminate_rx", 1), assert_counter_grows("terminate_tx", 0):
        peer.send_segments(message)
        wcs = poll(end.scq, 3)
        (flushed,) = poll(end.rcq)
    assert (flushed.wr_id, flushed.status) == (9, FLUSHED)
    assert {wc.vendor_err for wc in [*wcs, flushed]} == {expected_vendor_err(error)}
    event = end.next_cm_event()
    assert (event.type, event.wire_error) == (CMEventType.DISCONNECTED, expected_vendor_err(error))
    assert peer.receive_to_end().fpdus[3:] == []  # a Terminate is not answered by a Terminate
    peer.close()
    with pytest.raises(ProtocolError) as e:
        wcs[0].check()
    assert e.value.layer << 16 | e.value.type << 8 | e.value.code == expected_vendor_err(error)
    assert [wc.wr_id for wc in wcs] == [1, 2, 3]
    return {wc.wr_id: wc.status for wc in wcs}


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("error", STATUS, ids=lambda e: "/".join(f"{n:x}" for n in e))
@pytest.mark.clause("RFC5040-5.4-06", "RFC5040-6.2.1-02")
def test_the_quoted_request_completes_with_the_errors_status_and_others_are_flushed(
    connector: ListenerAndConnector, error: tuple[int, int, int], which: int
) -> None:
    peer, segments = peer_that_received_reads(connector)
    quoted = {
        "m": 1,
        "d": 1,
        "r": 1,
        "ddp_seg_len": len(segments[which]),
        "quoted_ddp": QuotedUntagged(segments[which][:18]),
        "quoted_rdma": QuotedReadRequest(segments[which][18:]),
    }
    found = send_terminate_and_check_reports(peer, build_terminate(*error, **quoted), error)
    assert found == {i: STATUS[error] if i == which + 1 else FLUSHED for i in (1, 2, 3)}


@pytest.mark.parametrize("error", STATUS, ids=lambda e: "/".join(f"{n:x}" for n in e))
@pytest.mark.clause("RFC5040-7-02", "RFC5041-3-12")
def test_a_terminate_without_a_quoted_header_flushes_all_requests(
    connector: ListenerAndConnector, error: tuple[int, int, int]
) -> None:
    peer, _ = peer_that_received_reads(connector)
    assert send_terminate_and_check_reports(peer, build_terminate(*error), error) == ALL_FLUSHED


@pytest.mark.parametrize("error", [(3, 0, 0), (0, 3, 1), (1, 2, 0x77), (2, 1, 0x77), (15, 15, 255)])
def test_undefined_error_codes_of_a_terminate_are_reported_unchanged(
    connector: ListenerAndConnector, error: tuple[int, int, int]
) -> None:
    peer, _ = peer_that_received_reads(connector)
    assert send_terminate_and_check_reports(peer, build_terminate(*error), error) == ALL_FLUSHED


@pytest.mark.parametrize("what", ["another MSN", "another queue", "tagged"])
def test_a_terminate_that_quotes_no_outstanding_request_flushes_all_requests(
    connector: ListenerAndConnector, what: str
) -> None:
    peer, _ = peer_that_received_reads(connector)
    header = {
        "another MSN": QuotedUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=4),
        "another queue": QuotedUntagged(opcode=Opcode.SEND, qn=0, msn=1),
        "tagged": QuotedTagged(opcode=Opcode.RDMA_WRITE, stag=0x77, to=0x100),
    }[what]
    message = build_terminate(0, 2, 6, m=1, d=1, ddp_seg_len=46, quoted_ddp=header)
    assert send_terminate_and_check_reports(peer, message, (0, 2, 6)) == ALL_FLUSHED


@pytest.mark.clause("RFC5040-6.2.1-03")
def test_both_sides_close_the_stream_after_a_terminate(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector) as peer:
        peer.send_segments(build_terminate(0, 1, 0))
        assert peer.receive_to_end().fpdus == []  # siwarp has closed, while the peer's side is open
        peer.end.wait_for_error_state()
    with ScriptedRCPeer.accept_from_siwarp(connector) as peer:
        peer.send_segments(build_send(msn=7))
        # the Terminate is directly followed by the end of the stream
        assert peer.receive_terminate().code == 3
        peer.end.wait_for_error_state()
