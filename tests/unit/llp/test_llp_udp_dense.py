"""UDP sockets that receive many short datagrams, which the kernel coalesces (UDP_GRO)."""

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


class ReceivingSocket:
    """A socket of the llp layer with a second descriptor for the test, and a sending socket."""

    def __init__(self, poller: Any, llp_helpers: SimpleNamespace) -> None:
        self.llp_helpers, self.poller = llp_helpers, poller
        self.own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.own.bind(("127.0.0.1", 0))
        self.sock = poller.adopt_udp(os.dup(self.own.fileno()))
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.connect(self.own.getsockname())
        self.source = llp_helpers.ffi.new("struct siw_addr *")
        self.at = llp_helpers.ffi.new("uint8_t **")

    def close(self) -> None:
        self.own.close()
        self.sender.close()

    @property
    def gro_is_enabled(self) -> bool:
        return bool(self.own.getsockopt(socket.IPPROTO_UDP, UDP_GRO))

    @property
    def has_more_datagrams(self) -> bool:
        return bool(self.llp_helpers.lib.siw_llp_poller_has_more_datagrams(self.poller.c))

    def send_batch(self, *datagrams: bytes) -> None:
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", len(datagrams[0])))]
        octets = b"".join(datagrams)
        assert self.sender.sendmsg([octets], control) == len(octets)

    def next_datagram(self) -> bytes | int:
        """Return the next datagram, which must be from the address of the sender, or -errno."""
        n = self.llp_helpers.lib.siw_llp_udp_recv_in_poller_buffer(
            self.sock.c, self.source, self.at
        )
        if n < 0:
            return int(n)
        name = "{}:{}".format(*self.sender.getsockname())
        assert self.llp_helpers.address_text(self.source) == name
        return bytes(self.llp_helpers.buffer(self.at[0], n))

    def send_and_receive_dense_traffic(self) -> None:
        for i in range(DENSE):
            assert not self.gro_is_enabled
            self.sender.send(b"%d" % i)
        assert [self.next_datagram() for _ in range(DENSE)] == [b"%d" % i for i in range(DENSE)]
        assert self.gro_is_enabled

    def send_and_receive_lone_datagram(self) -> None:
        self.sender.send(b"alone")
        assert self.next_datagram() == b"alone"
        assert self.next_datagram() == -errno.EAGAIN


@pytest.fixture
def receiving_socket(poller: Any, llp_helpers: SimpleNamespace) -> Iterator[ReceivingSocket]:
    w = ReceivingSocket(poller, llp_helpers)
    yield w
    w.close()


def test_under_dense_traffic_coalesced_datagrams_are_split(
    receiving_socket: ReceivingSocket,
) -> None:
    receiving_socket.send_and_receive_dense_traffic()
    sent = [bytes([i]) * 50 for i in range(40)] + [b"a shorter last"]
    receiving_socket.send_batch(*sent)
    receiving_socket.sender.send(b"alone")
    for i, datagram in enumerate(sent):
        assert receiving_socket.next_datagram() == datagram
        assert receiving_socket.has_more_datagrams == (i < 40)
    assert receiving_socket.next_datagram() == b"alone"
    assert receiving_socket.next_datagram() == -errno.EAGAIN


def test_a_batch_of_the_largest_datagrams_is_split(receiving_socket: ReceivingSocket) -> None:
    receiving_socket.send_and_receive_dense_traffic()
    sent = [os.urandom(32_753), os.urandom(32_753)]
    receiving_socket.send_batch(*sent)
    assert [receiving_socket.next_datagram(), receiving_socket.next_datagram()] == sent
    assert not receiving_socket.has_more_datagrams


def test_long_datagrams_do_not_enable_coalescing(receiving_socket: ReceivingSocket) -> None:
    for _ in range(DENSE + 1):
        receiving_socket.sender.send(bytes(33_000))
        assert receiving_socket.next_datagram() == bytes(33_000)
    assert not receiving_socket.gro_is_enabled


def test_sparse_traffic_disables_coalescing(
    receiving_socket: ReceivingSocket,
) -> None:
    receiving_socket.send_and_receive_dense_traffic()
    assert receiving_socket.next_datagram() == -errno.EAGAIN
    for _ in range(SPARSE - 1):
        receiving_socket.send_and_receive_lone_datagram()
        assert receiving_socket.gro_is_enabled
    receiving_socket.send_and_receive_lone_datagram()
    assert not receiving_socket.gro_is_enabled
    receiving_socket.send_and_receive_dense_traffic()


def test_bursts_between_pauses_keep_coalescing_enabled(receiving_socket: ReceivingSocket) -> None:
    receiving_socket.send_and_receive_dense_traffic()
    for i in range(3 * SPARSE):
        if i % (SPARSE // 2) == 0:
            for _ in range(3):
                receiving_socket.sender.send(b"x")
            while receiving_socket.next_datagram() != -errno.EAGAIN:
                pass
        receiving_socket.send_and_receive_lone_datagram()
        assert receiving_socket.gro_is_enabled


@pytest.fixture(params=["faults", "a capture"])
def disable_coalescing(
    request: pytest.FixtureRequest, llp_helpers: SimpleNamespace, tmp_path: Any
) -> Iterator[Callable[[], None]]:
    """A function that disables coalescing by starting a fault plan or a capture."""

    def start_fault_plan_or_capture() -> None:
        if request.param == "faults":
            assert llp_helpers.lib.siw_faults_install_plan(b"peer=192.0.2.1,loss=100%") == 0
        else:
            assert llp_helpers.lib.siw_capture_open(f"{tmp_path}/x.pcapng".encode()) == 0

    yield start_fault_plan_or_capture
    llp_helpers.lib.siw_faults_install_plan(b"")
    llp_helpers.lib.siw_capture_close()


def test_a_fault_plan_or_a_capture_disables_coalescing(
    receiving_socket: ReceivingSocket, disable_coalescing: Callable[[], None]
) -> None:
    receiving_socket.send_and_receive_dense_traffic()
    disable_coalescing()
    assert receiving_socket.next_datagram() == -errno.EAGAIN
    assert not receiving_socket.gro_is_enabled
    sent = [b"%03d" % i for i in range(DENSE + 10)]
    receiving_socket.send_batch(*sent)
    assert [receiving_socket.next_datagram() for _ in sent] == sent
    assert not receiving_socket.gro_is_enabled


def test_a_batch_received_before_coalescing_is_disabled_is_not_lost(
    receiving_socket: ReceivingSocket, disable_coalescing: Callable[[], None]
) -> None:
    receiving_socket.send_and_receive_dense_traffic()
    sent = [b"%03d" % i for i in range(20)]
    receiving_socket.send_batch(*sent)
    disable_coalescing()
    assert [receiving_socket.next_datagram() for _ in sent] == sent
    assert receiving_socket.next_datagram() == -errno.EAGAIN
    assert not receiving_socket.gro_is_enabled


def test_closing_an_adopted_socket_disables_coalescing_on_it(
    receiving_socket: ReceivingSocket,
) -> None:
    receiving_socket.send_and_receive_dense_traffic()
    receiving_socket.sock.close()
    assert not receiving_socket.gro_is_enabled
