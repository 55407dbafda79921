"""RFC 5044 sections 1.2 to 7.1, RFC 6581 section 9.1, RFC 5041 section 6.2, with scripted peers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.rc_harness import (
    End,
    ListenerAndConnector,
    connect_plain_socket,
)
from harness.verbs_harness import Rig, assert_no_completion, poll
from harness.wire_peer import ScriptedRCPeer, build_send, recv_startup_frame
from scapy.packet import Raw

from siwarp.inspect import FPDU, MPAReply, MPARequest


@pytest.fixture
def connectable_listener() -> Iterator[ListenerAndConnector]:
    """A listener on 127.0.0.1 and a helper to connect to the listener."""
    rig = Rig()
    yield ListenerAndConnector(rig)
    rig.close()


@pytest.mark.clause("RFC5044-7.1-04")
def test_the_first_fpdu_is_delivered_to_the_queue_pair_that_accepted_the_request(
    connectable_listener: ListenerAndConnector,
) -> None:
    """Check that only the accepting queue pair receives the first FPDU, after it has accepted."""
    with connect_plain_socket(connectable_listener.address) as s:
        first = bytes(FPDU(ulpdu=build_send(1) / Raw(b"abc")))
        s.sendall(bytes(MPARequest(rev=2, s=1, ird=4, ord=4)) + first)
        end = End(
            connectable_listener.passive,
            connectable_listener.next_connection_request().id,
            connectable_listener.p_channel,
            size=8,
        )
        with ScriptedRCPeer.connect_to_siwarp(connectable_listener) as other:
            other.end.post_receive(1)
            end.post_receive(2)
            assert_no_completion(end.rcq)
            end.id.accept()
            assert MPAReply(recv_startup_frame(s)).r == 0
            (wc,) = poll(end.rcq)
            assert (wc.wr_id, wc.qp_num, wc.byte_len) == (2, end.qp.qp_num, 3)
            assert end.mem.read(3) == b"abc"
            assert_no_completion(other.end.rcq)
