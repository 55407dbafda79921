"""Re-registration: new keys are immediately valid, old keys invalid; failures change nothing."""

from __future__ import annotations

import contextlib

import net
from harness.peer_harness import connected_plain_peer
from harness.rc_harness import ListenerAndConnector

from siwarp.verbs import (
    AccessFlag,
)


def test_re_registration_stops_a_read_response_that_tcp_has_not_accepted_yet(
    connector: ListenerAndConnector,
) -> None:
    """Check a Read Response larger than both sockets can hold while the access right is removed."""
    size = 1 << 25
    with connected_plain_peer(connector, size=size) as (a, peer):
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
    assert len(came) > 1 << 16, "the peer received too little of the response for the check"
    assert b"\x5a" * 64 not in came
