"""Re-registration: new keys are valid and old ones invalid at once; failed calls change nothing."""

from __future__ import annotations

import contextlib

import net
from harness.peer_harness import connected_plain_peer
from harness.rc_harness import Wire

from siwarp.verbs import (
    AccessFlag,
)


def test_what_tcp_has_not_taken_of_a_response_does_not_leave(wire: Wire) -> None:
    """The peer reads more than both sockets hold; the access right is removed meanwhile."""
    size = 1 << 25
    with connected_plain_peer(wire, size=size) as (a, peer):
        a.mem.view[:] = b"\xa5" * size
        a.rcq.poll()
        peer.send_segments(peer.build_read_request(size, a.mem.rkey, a.mem.addr))
        net.sleep(1)  # wait until both sockets are full
        a.mem.rereg(access=AccessFlag.LOCAL_WRITE)
        a.mem.view[:] = b"\x5a" * size
        came = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while part := peer.sock.recv(1 << 20):
                came += part
    assert len(came) > 1 << 16, "nothing was framed: nothing is shown"
    assert b"\x5a" * 64 not in came
