"""Each test has two connected sides in this process: a is the program's, b acts as its peer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from transfer import answer_requests, send_request_until_answered, write_region_to_peer

import siwarp
from siwarp.testing import Pair, pair
from siwarp.verbs import MR, Context


def test_write_region_writes_the_complete_region(rc_pair: Pair) -> None:
    a, b = rc_pair
    with MR(a.pd, bytearray(range(256)) * 40) as data:
        assert write_region_to_peer(a.qp, a.cq, data, b.mr.remote()) == 3
    a.send(b"done")  # all Writes are visible to the peer before this message
    assert b.recv() == b"done"
    assert b.mr.read(10240) == bytes(range(256)) * 40


def test_a_write_to_a_closed_region_of_the_peer_fails(rc_pair: Pair) -> None:
    a, b = rc_pair
    stale = b.mr.remote()
    b.mr.close()
    with MR(a.pd, 4096) as data, pytest.raises(siwarp.ProtocolError):
        # The Write may complete before the peer's error message arrives. The receives of the
        # connection complete with the error then.
        write_region_to_peer(a.qp, a.cq, data, stale)
        a.recv()


def test_write_region_fails_when_the_connection_is_reset(
    rc_pair: Pair, faults: Callable[[str], str]
) -> None:
    a, b = rc_pair
    faults("reset=20KB")
    with MR(a.pd, 65536) as data, pytest.raises(siwarp.Error):
        write_region_to_peer(a.qp, a.cq, data, b.mr.remote())


@pytest.mark.parametrize("seed", range(3))
def test_a_request_is_answered_although_datagrams_are_lost(
    device: Context, faults: Callable[[str], str], seed: int
) -> None:
    # The pair posts no receives, because the program posts its own.
    with pair("ud", device, receives=0) as (a, b):
        faults(f"loss=30%,seed={seed}")
        stop = threading.Event()
        peer = threading.Thread(target=answer_requests, args=(b.qp, b.cq, b.mr, b.ah, stop))
        peer.start()
        try:
            for number, question in enumerate((b"who?", b"where?", b"when?")):
                said = send_request_until_answered(
                    a.qp, a.cq, a.mr, a.ah, question, number=number, tries=200, patience=0.05
                )
                assert said == question.upper()
        finally:
            stop.set()
            peer.join()


def test_a_request_without_an_answer_times_out(device: Context) -> None:
    with pair("ud", device, receives=0) as (a, _), pytest.raises(TimeoutError, match="3 tries"):
        send_request_until_answered(
            a.qp, a.cq, a.mr, a.ah, b"hello?", number=0, tries=3, patience=0.01
        )


def test_rd_messages_arrive_in_order_despite_loss_and_reordering(
    rd_pair: Pair, faults: Callable[[str], str]
) -> None:
    a, b = rd_pair
    faults("loss=10%,reorder=5%,dup=5%,seed=7")
    for i in range(50):
        a.send(i.to_bytes(2, "big"))
        assert b.recv() == i.to_bytes(2, "big")
