"""RC queue pairs in error: deregistered memory, killed peers, and simultaneous closing.

This file's tests use real sockets; others are in tests/sim/verbs/test_verbs_rc_errors.py.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from harness.rc_harness import READ, WRITE, End, ListenerAndConnector
from harness.siwarp_process import SiwarpProcess
from harness.verbs_harness import ALL_ACCESS, poll, wait_until
from hostile.peer import accept_raw_initiator

from siwarp.cm import CMEventType
from siwarp.inspect import DDPUntagged, Opcode, ReadRequest
from siwarp.verbs import (
    RemoteBuffer,
    WCStatus,
)

FLUSHED = WCStatus.WR_FLUSH_ERR


def test_deregistering_a_region_that_the_peer_reads_stops_the_response_and_ends_the_stream(
    two_device_connector: ListenerAndConnector,
) -> None:
    size = 16 << 20  # more octets than TCP accepts while the peer does not read
    peer, end = accept_raw_initiator(two_device_connector)
    mr = end.rig.reg_mr(bytearray(b"\x11") * size, ALL_ACCESS)
    memory = mr.view.obj
    peer.send_fpdus(
        DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1)
        / ReadRequest(sink_stag=1, size=size, src_stag=mr.rkey, src_to=mr.addr)
    )
    wait_until(lambda: peer.count_unread_octets() > 0)
    mr.close()
    memory[:] = b"\x22" * size  # after deregistration, the program may change the memory
    got = peer.read_until_end()
    assert b"\x11" * 1000 in got
    assert b"\x22" * 16 not in got
    assert len(got) < size
    end.wait_for_error_state()
    peer.close()


PEER = """
import sys
from siwarp import cm
from siwarp.verbs import *
conn = cm.connect((sys.argv[1], int(sys.argv[2])))
mr = conn.register(64 << 20)
conn.send(mr.remote().pack())
print("ready", flush=True)
while True:
    conn.recv(60)
"""


@pytest.mark.parametrize("opcode", [WRITE, READ], ids=["write", "read"])
def test_killing_the_peer_process_during_transfers_moves_the_queue_pair_to_err(
    two_device_connector: ListenerAndConnector, opcode: int
) -> None:
    host, port = two_device_connector.address
    peer = SiwarpProcess(
        [sys.executable, "-c", PEER, host, str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        request = two_device_connector.next_connection_request(20)
        b = End(
            two_device_connector.passive, request.id, two_device_connector.p_channel, size=64 << 20
        )
        b.post_receive(wr_id=1, length=4096)
        b.id.accept()
        assert b.next_cm_event().type == CMEventType.ESTABLISHED
        assert poll(b.rcq)[0].ok
        remote = RemoteBuffer.unpack(b.mem.read(20))
        for i in range(20):
            b.post(opcode, 10 + i, length=64 << 20, remote=remote)
        poll(b.scq, 1, 20)
        peer.kill()
        rest = poll(b.scq, 19, 20)
        assert [w.wr_id for w in rest] == [11 + i for i in range(19)]
        assert rest[-1].status == FLUSHED
        event = b.next_cm_event()
        assert event.type == CMEventType.DISCONNECTED
        b.wait_for_error_state()
    finally:
        peer.kill()
        peer.wait()
        if peer.stdout:
            peer.stdout.close()


def test_two_threads_may_close_both_ends_of_a_connection_at_the_same_time(
    two_device_connector: ListenerAndConnector,
) -> None:
    for _ in range(20):
        a, b = two_device_connector.connect(size=1 << 16)
        a.post(WRITE, 1, length=1 << 16, remote=b.mem.remote())
        barrier = threading.Barrier(2)

        def close_at_barrier(which: End, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            which.close()

        threads = [threading.Thread(target=close_at_barrier, args=(x,)) for x in (a, b)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(10)
            assert not t.is_alive()
        a.mem.close()
        b.mem.close()
