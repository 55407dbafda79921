"""Listeners at every local address of a device with the same port."""

from __future__ import annotations

import contextlib
import errno
import socket

import pytest
from harness.descriptors import count_open_descriptors
from harness.rc_harness import SEND, End, ListenerAndConnector, connect_plain_socket
from harness.verbs_harness import Rig, assert_counter_grows, errno_raised_by, octet_pattern, poll

from siwarp._siwarp import lib
from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.verbs._ffi import addr_to_c

HOSTS = ["127.0.0.1", "::1"]


class WildcardListenerAndConnector(ListenerAndConnector):
    """A ListenerAndConnector whose listener is bound to every address of the device."""

    def __init__(self, rig: Rig, port: int = 0) -> None:
        self.active = self.passive = rig
        self.a_channel, self.p_channel = CMEventChannel(rig.ctx), CMEventChannel(rig.ctx)
        self.listener = CMID(self.p_channel)
        self.listener.listen(("", port), every_addr=True)
        self.port = self.listener.local_addr[1]

    def connect_to_host(self, host: str) -> tuple[End, End]:
        a = End(self.active, CMID(self.a_channel), self.a_channel, size=4096)
        a.id.connect((host, self.port))
        b = End(self.passive, self.next_connection_request().id, self.p_channel, size=4096)
        b.id.accept()
        for end in (a, b):
            assert end.next_cm_event().type == CMEventType.ESTABLISHED
        return a, b


def test_a_wildcard_listener_accepts_at_each_address_and_the_id_reports_the_address(
    rig: Rig,
) -> None:
    connector = WildcardListenerAndConnector(rig)
    assert connector.listener.local_addr == ("127.0.0.1", connector.port)
    for host in (*HOSTS, *HOSTS):
        a, b = connector.connect_to_host(host)
        assert b.id.local_addr == a.id.peer_addr == (host, connector.port)
        assert b.id.peer_addr == a.id.local_addr
        a.mem.write(octet_pattern(100))
        b.post_receive(wr_id=1, length=100)
        a.post(SEND, 2, length=100)
        assert poll(b.rcq)[0].byte_len == 100


def test_closing_a_wildcard_listener_closes_all_its_sockets_and_pending_requests(rig: Rig) -> None:
    connector = WildcardListenerAndConnector(rig)
    before = count_open_descriptors()
    clients = [connect_plain_socket((host, connector.port)) for host in HOSTS]
    connector.listener.close()
    for host, client in zip(HOSTS, clients, strict=True):
        client.close()
        with pytest.raises(ConnectionRefusedError):
            connect_plain_socket((host, connector.port))
    assert count_open_descriptors() == before - 2
    # The second listener raises OSError if the port is still in use.
    WildcardListenerAndConnector(rig, connector.port).listener.close()


def test_the_port_of_a_wildcard_listener_must_be_free_at_each_address(rig: Rig) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        id = CMID(CMEventChannel(rig.ctx))
        before = count_open_descriptors()
        assert errno_raised_by(id.listen, ("", port), every_addr=True) == errno.EADDRINUSE
        assert count_open_descriptors() == before
        # After the failure, the id may listen on another port.
        id.listen(("", 0), every_addr=True)
        assert id.local_addr[1] != port


def test_siw_cm_listen_accepts_an_address_without_a_family_as_wildcard(rig: Rig) -> None:
    id = CMID(CMEventChannel(rig.ctx))
    assert lib.siw_cm_listen(id._c_object(), addr_to_c(None), 8) == 0
    assert id.local_addr[0] == "127.0.0.1"
    bad = addr_to_c(None)
    bad.family = 99
    assert lib.siw_cm_listen(CMID(CMEventChannel(rig.ctx))._c_object(), bad, 8) == -errno.EINVAL


def test_invalid_requests_to_a_wildcard_listener_do_not_affect_valid_requests(rig: Rig) -> None:
    connector = WildcardListenerAndConnector(rig)
    liars = [connect_plain_socket((host, connector.port)) for host in HOSTS for _ in range(5)]
    for liar in liars:
        liar.sendall(b"GET / HTTP/1.1\r\n\r\nand more than twenty octets")
    with assert_counter_grows("accepts", 2):
        for host in HOSTS:
            connector.connect_to_host(host)
    for liar in liars:
        with contextlib.suppress(ConnectionResetError):
            # The listener closes the connection of a client that sends no MPA Request.
            assert liar.recv(100) == b""
        liar.close()
