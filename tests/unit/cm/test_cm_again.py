"""A connection attempt that a listener resets, as for a used-up source share, is repeated."""

from __future__ import annotations

import socket
import struct

import pytest
from harness.rc_harness import End, ListenerAndConnector, create_plain_listener

from siwarp.cm import CMID, CMEventType, ConnParam
from siwarp.inspect import MPAReply

#: The value of SO_LINGER with which closing resets the connection.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def accept_and_reset(s: socket.socket) -> None:
    peer, _ = s.accept()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    peer.close()


def test_a_connect_that_the_listener_resets_is_retried_and_succeeds(
    connector: ListenerAndConnector,
) -> None:
    with create_plain_listener() as s:
        a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
        a.id.connect(s.getsockname(), ConnParam(refused=0.001))
        for _ in range(3):
            accept_and_reset(s)
        peer, _ = s.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(bytes(MPAReply(rev=2, s=1, ird=1, ord=1)))
            assert a.next_cm_event().type == CMEventType.ESTABLISHED


@pytest.mark.parametrize("refused", [0, 0.001])
def test_a_reset_connect_fails_after_its_time_out_or_immediately_without_retries(
    connector: ListenerAndConnector, refused: float
) -> None:
    with create_plain_listener() as s:
        s.settimeout(1)
        a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
        a.id.connect(s.getsockname(), ConnParam(refused=refused, timeout=0.2))
        tries = 0
        while not (event := connector.a_channel.get_event(timeout=0)):
            try:
                s.settimeout(0.01)
                accept_and_reset(s)
                tries += 1
            except TimeoutError:
                continue
        assert event.type == CMEventType.CONNECT_ERROR
        assert tries > 1 if refused else tries == 1
