"""The type of service that the ends of a connection set on their sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from harness.rc_harness import End, ListenerAndConnector

from siwarp.cm import CMID, CMEventType, ConnParam
from siwarp.verbs import Error


def count_sockets_with_tos(tos: int) -> int:
    """Return how many connected TCP sockets of the process have the type of service ``tos``."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        try:
            s = socket.socket(fileno=os.dup(int(path.name)))
        except OSError:
            # The descriptor is not a socket or has been closed.
            continue
        with s:
            try:
                s.getpeername()
            except OSError:
                continue
            if s.family == socket.AF_INET and s.type == socket.SOCK_STREAM:
                found += s.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == tos
    return found


def test_each_end_sets_the_type_of_service_of_its_own_socket(
    connector: ListenerAndConnector,
) -> None:
    a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
    a.id.connect(connector.address, ConnParam(tos=0x28))
    request = connector.next_connection_request()
    b = End(connector.passive, request.id, connector.p_channel)
    b.id.accept(ConnParam(tos=0x10))
    event = connector.a_channel.get_event(timeout=5)
    assert event and event.type is CMEventType.ESTABLISHED
    assert (count_sockets_with_tos(0x28), count_sockets_with_tos(0x10)) == (1, 1)


@pytest.mark.parametrize("tos", [-1, 256])
def test_a_type_of_service_outside_of_eight_bits_is_refused(
    connector: ListenerAndConnector, tos: int
) -> None:
    a = End(connector.active, CMID(connector.a_channel), connector.a_channel)
    with pytest.raises(Error, match="tos"):
        a.id.connect(connector.address, ConnParam(tos=tos))
    a.id.connect(connector.address, ConnParam())
    b = End(connector.passive, connector.next_connection_request().id, connector.p_channel)
    with pytest.raises(Error, match="tos"):
        b.id.accept(ConnParam(tos=tos))
