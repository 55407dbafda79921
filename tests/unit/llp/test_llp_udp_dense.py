"""UDP sockets that receive many short datagrams: batches are requested and split."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

UDP_SEGMENT, UDP_GRO = 103, 104
DENSE, SPARSE = 32, 64
ROOM = 65536


class Watched:
    """A socket of the layer whose descriptor the test has, too, and a socket that sends to it."""

    def __init__(self, port: Any, kit: SimpleNamespace) -> None:
        self.kit, self.port = kit, port
        self.own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.own.bind(("127.0.0.1", 0))
        self.sock = port.adopt(os.dup(self.own.fileno()))
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.connect(self.own.getsockname())
        self.source = kit.ffi.new("struct siw_addr *")
        self.at = kit.ffi.new("uint8_t **")

    def close(self) -> None:
        self.own.close()
        self.sender.close()

    @property
    def asks(self) -> bool:
        return bool(self.own.getsockopt(socket.IPPROTO_UDP, UDP_GRO))

    @property
    def more(self) -> bool:
        return bool(self.kit.lib.siw_llp_port_more(self.port.c))

    def batch(self, *datagrams: bytes) -> None:
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", len(datagrams[0])))]
        octets = b"".join(datagrams)
        assert self.sender.sendmsg([octets], control) == len(octets)

    def next(self) -> bytes | int:
        """Return the next datagram, which must be from the sender's address; or -errno."""
        n = self.kit.lib.siw_llp_udp_next(self.sock.c, self.source, self.at)
        if n < 0:
            return int(n)
        name = "{}:{}".format(*self.sender.getsockname())
        assert self.kit.text_of(self.source) == name
        return bytes(self.kit.buffer(self.at[0], n))

    def make_dense(self) -> None:
        for i in range(DENSE):
            assert not self.asks
            self.sender.send(b"%d" % i)
        assert [self.next() for _ in range(DENSE)] == [b"%d" % i for i in range(DENSE)]
        assert self.asks

    def lull(self) -> None:
        self.sender.send(b"alone")
        assert self.next() == b"alone"
        assert self.next() == -errno.EAGAIN


@pytest.fixture
def watched(port: Any, kit: SimpleNamespace) -> Iterator[Watched]:
    w = Watched(port, kit)
    yield w
    w.close()


def test_while_many_short_ones_come_batches_are_asked_for_and_taken_apart(watched: Watched) -> None:
    watched.make_dense()
    sent = [bytes([i]) * 50 for i in range(40)] + [b"a shorter last"]
    watched.batch(*sent)
    watched.sender.send(b"alone")
    for i, datagram in enumerate(sent):
        assert watched.next() == datagram
        assert watched.more == (i < 40)
    assert watched.next() == b"alone"
    assert watched.next() == -errno.EAGAIN


def test_a_batch_of_the_largest_is_taken_apart(watched: Watched) -> None:
    watched.make_dense()
    sent = [os.urandom(32_753), os.urandom(32_753)]
    watched.batch(*sent)
    assert [watched.next(), watched.next()] == sent
    assert not watched.more


def test_long_ones_ask_for_no_batches(watched: Watched) -> None:
    for _ in range(DENSE + 1):
        watched.sender.send(bytes(33_000))
        assert watched.next() == bytes(33_000)
    assert not watched.asks


def test_when_hardly_anything_comes_batches_are_not_asked_for_any_more(watched: Watched) -> None:
    watched.make_dense()
    assert watched.next() == -errno.EAGAIN
    for _ in range(SPARSE - 1):
        watched.lull()
        assert watched.asks
    watched.lull()
    assert not watched.asks
    watched.make_dense()


def test_bursts_between_pauses_keep_batching_on(watched: Watched) -> None:
    watched.make_dense()
    for i in range(3 * SPARSE):
        if i % (SPARSE // 2) == 0:
            for _ in range(3):
                watched.sender.send(b"x")
            while watched.next() != -errno.EAGAIN:
                pass
        watched.lull()
        assert watched.asks


@pytest.fixture(params=["faults", "a capture"])
def each_alone(
    request: pytest.FixtureRequest, kit: SimpleNamespace, tmp_path: Any
) -> Iterator[Callable[[], None]]:
    """Yield a function that starts a fault plan or a capture; both process datagrams one by one."""

    def begin() -> None:
        if request.param == "faults":
            assert kit.lib.siw_faults_install(b"peer=192.0.2.1,loss=100%") == 0
        else:
            assert kit.lib.siw_capture_open(f"{tmp_path}/x.pcapng".encode()) == 0

    yield begin
    kit.lib.siw_faults_install(b"")
    kit.lib.siw_capture_close()


def test_batches_end_where_each_datagram_is_handled_alone(
    watched: Watched, each_alone: Callable[[], None]
) -> None:
    watched.make_dense()
    each_alone()
    assert watched.next() == -errno.EAGAIN
    assert not watched.asks
    sent = [b"%03d" % i for i in range(DENSE + 10)]
    watched.batch(*sent)
    assert [watched.next() for _ in sent] == sent
    assert not watched.asks


def test_a_batch_that_had_come_before_that_is_not_lost(
    watched: Watched, each_alone: Callable[[], None]
) -> None:
    watched.make_dense()
    sent = [b"%03d" % i for i in range(20)]
    watched.batch(*sent)
    each_alone()
    assert [watched.next() for _ in sent] == sent
    assert watched.next() == -errno.EAGAIN
    assert not watched.asks


def test_the_user_gets_the_socket_back_as_it_was(watched: Watched) -> None:
    watched.make_dense()
    watched.sock.close()
    assert not watched.asks
