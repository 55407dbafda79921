"""Listening at every local address of the device, on one port."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path

import pytest
from harness.rc_harness import SEND, End, Wire, plain_connect
from harness.verbs_harness import Rig, assert_counter_grows, errno_raised_by, octet_pattern, poll

from siwarp._siwarp import lib
from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.verbs._ffi import addr_to_c

HOSTS = ["127.0.0.1", "::1"]


class Everywhere(Wire):
    """Like Wire; the listener is bound to every address."""

    def __init__(self, rig: Rig, port: int = 0) -> None:
        self.active = self.passive = rig
        self.a_channel, self.p_channel = CMEventChannel(rig.ctx), CMEventChannel(rig.ctx)
        self.listener = CMID(self.p_channel)
        self.listener.listen(("", port), every_addr=True)
        self.port = self.listener.local_addr[1]

    def connect_to_host(self, host: str) -> tuple[End, End]:
        a = End(self.active, CMID(self.a_channel), self.a_channel, size=4096)
        a.id.connect((host, self.port))
        b = End(self.passive, self.next_request().id, self.p_channel, size=4096)
        b.id.accept()
        for end in (a, b):
            assert end.next_cm_event().type == CMEventType.ESTABLISHED
        return a, b


def open_descriptor_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_requests_come_to_each_address_and_tell_which(rig: Rig) -> None:
    wire = Everywhere(rig)
    assert wire.listener.local_addr == ("127.0.0.1", wire.port)
    for host in (*HOSTS, *HOSTS):
        a, b = wire.connect_to_host(host)
        assert b.id.local_addr == a.id.peer_addr == (host, wire.port)
        assert b.id.peer_addr == a.id.local_addr
        a.mem.write(octet_pattern(100))
        b.post_receive(wr_id=1, length=100)
        a.post(SEND, 2, length=100)
        assert poll(b.rcq)[0].byte_len == 100


def test_closing_closes_each_listener_and_its_pending_requests(rig: Rig) -> None:
    wire = Everywhere(rig)
    before = open_descriptor_count()
    clients = [plain_connect((host, wire.port)) for host in HOSTS]
    wire.listener.close()
    for host, client in zip(HOSTS, clients, strict=True):
        client.close()
        with pytest.raises(ConnectionRefusedError):
            plain_connect((host, wire.port))
    assert open_descriptor_count() == before - 2
    Everywhere(rig, wire.port).listener.close()  # the port is free again at every address


def test_the_port_must_be_free_at_each_address(rig: Rig) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        id = CMID(CMEventChannel(rig.ctx))
        before = open_descriptor_count()
        assert errno_raised_by(id.listen, ("", port), every_addr=True) == errno.EADDRINUSE
        assert open_descriptor_count() == before
        # Nothing is left over: the id may listen on another port.
        id.listen(("", 0), every_addr=True)
        assert id.local_addr[1] != port


def test_the_interface_in_c_takes_an_address_without_a_family(rig: Rig) -> None:
    id = CMID(CMEventChannel(rig.ctx))
    assert lib.siw_cm_listen(id._c_object(), addr_to_c(None), 8) == 0
    assert id.local_addr[0] == "127.0.0.1"
    bad = addr_to_c(None)
    bad.family = 99
    assert lib.siw_cm_listen(CMID(CMEventChannel(rig.ctx))._c_object(), bad, 8) == -errno.EINVAL


def test_an_invalid_request_at_one_address_does_not_disturb_other_addresses(rig: Rig) -> None:
    wire = Everywhere(rig)
    liars = [plain_connect((host, wire.port)) for host in HOSTS for _ in range(5)]
    for liar in liars:
        liar.sendall(b"GET / HTTP/1.1\r\n\r\nand more than twenty octets")
    with assert_counter_grows("accepts", 2):
        for host in HOSTS:
            wire.connect_to_host(host)
    for liar in liars:
        with contextlib.suppress(ConnectionResetError):
            assert liar.recv(100) == b""  # the connection is closed, with or without a reset
        liar.close()
