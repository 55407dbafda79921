"""The processor time of RD's timers, which virtual time cannot show."""

from __future__ import annotations

import socket
import time

from unit.llp.llp_harness import siw_addr
from unit.rd.rd_kit import Endpoint, ScapyRdPeer, poll_until

from siwarp.inspect.rd import RDType

MANY = 3000


def cpu_seconds_of_receiving_segments(e: Endpoint, s: ScapyRdPeer, first: int, n: int) -> float:
    """Return the CPU seconds of receiving n segments whose ACKs are each sent by a timer."""
    used = time.process_time()
    for i in range(first, first + n):
        s.send_datagram(RDType.DATA, psn=s.epoch + i, body=b"x")
        while s.receive_datagram(RDType.ACK).acknowledged != s.epoch + i + 1:
            pass
    return time.process_time() - used


def test_3000_pending_timers_do_not_make_an_expiring_timer_expensive(make_endpoint):
    e = make_endpoint()
    s = ScapyRdPeer(e)
    s.connect()
    cpu_seconds_of_receiving_segments(e, s, 0, 100)
    alone = min(cpu_seconds_of_receiving_segments(e, s, 100 + 200 * i, 200) for i in range(3))
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("0.0.0.0", 0))
    port = sink.getsockname()[1]
    for i in range(MANY):
        peer = e.get_or_create_peer(siw_addr(f"127.1.{i // 250}.{i % 250 + 1}", port))
        assert e.send(peer, b"x") == 1
    # After 1.3 s, the endpoint sends each of these peers a HELLO every half second.
    stop = time.monotonic() + 1.3
    poll_until(lambda: time.monotonic() > stop, e)
    beside = min(cpu_seconds_of_receiving_segments(e, s, 700 + 200 * i, 200) for i in range(3))
    assert beside < 4 * alone
    sink.close()
