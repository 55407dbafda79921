"""Plain sockets in a simulated network, by which a test sends any octets and checks the replies."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable

import pytest

from siwarp.inspect.rd import RDDatagram, RDType
from siwarp.sim import World
from siwarp.verbs import AH, Context, QPType, SendWR, StateError

from .conftest import End

MakeEnd = Callable[[Context, QPType], End]


def test_a_datagram_and_its_answer_each_take_the_delay_of_the_link(world: World) -> None:
    world.faults("delay=30ms")
    a, b = world.udp("10.0.0.9"), world.udp("10.0.0.8", 4000)

    def echo_reversed() -> None:
        data, source = b.recvfrom()
        b.sendto(data[::-1], source)

    world.spawn(echo_reversed)
    assert a.sendto(b"abc", ("10.0.0.8", 4000)) == 3
    assert a.recvfrom() == (b"cba", ("10.0.0.8", 4000))
    assert world.now_ns == 60_000_000


def test_a_receive_of_a_simulated_socket_ends_exactly_at_its_timeout(world: World) -> None:
    with world.udp("10.0.0.9") as a:
        a.settimeout(0.25)
        with pytest.raises(TimeoutError):
            a.recv()
        assert world.now_ns == 250_000_000
        a.setblocking(False)
        with pytest.raises(BlockingIOError):
            a.recv()


def test_a_long_datagram_is_truncated_and_a_port_cannot_be_bound_twice(world: World) -> None:
    a, b = world.udp("fd00::9"), world.udp("fd00::8")
    a.sendto(b"0123456789", b.getsockname())
    assert b.recvfrom(4) == (b"0123", a.getsockname())
    with pytest.raises(OSError) as error:
        world.udp("fd00::8", b.getsockname()[1])
    assert error.value.errno == errno.EADDRINUSE
    with pytest.raises(OSError) as error:
        a.sendto(bytes(65536), b.getsockname())
    assert error.value.errno == errno.EMSGSIZE


def test_a_simulated_socket_transmits_and_receives_ecn_codes(world: World) -> None:
    a, b = world.udp("10.0.0.9"), world.udp("10.0.0.8")
    seen = []
    for code in (0, 1, 3):
        a.ecn = code
        a.sendto(b"", b.getsockname())
        assert b.recv() == b""
        seen.append(b.received_ecn)
    assert seen == [0, 1, 3]


def test_a_socket_of_a_crashed_host_raises_estale(world: World) -> None:
    a = world.udp("10.0.0.9")
    waiter = world.spawn(a.recv)
    world.run_for("1s")
    world.crash("10.0.0.9")
    with pytest.raises(StateError) as error:
        world.run_for("1s")
    assert error.value.errno == errno.ESTALE and waiter.done()
    with pytest.raises(StateError):
        a.sendto(b"", ("10.0.0.8", 1))


def test_a_device_sends_datagrams_to_a_scripted_peer(
    world: World, create_rdma_endpoint: MakeEnd
) -> None:
    ours = create_rdma_endpoint(world.device("10.0.0.1"), QPType.RD)
    ours.qp.to_rts()
    peer = world.udp("10.0.0.9")
    with AH(ours.pd, peer.getsockname()) as ah:
        ours.qp.post_send(SendWR(1, sg=[ours.mr.sge(0, 8)], ah=ah))
        datagram, source = peer.recvfrom()
    assert source == ours.qp.addr
    assert RDDatagram(datagram).type == RDType.HELLO


def test_a_tcp_stream_arrives_complete_before_its_end(world: World) -> None:
    data = bytes(range(256)) * 4096
    with world.tcp_listen("10.0.0.8") as listener:

        def receive_until_end() -> tuple[bytes, bytes]:
            sock, source = listener.accept()
            assert source == sock.getpeername()
            got = bytearray()
            while part := sock.recv(1 << 16):
                got += part
            sock.sendall(b"bye")
            sock.close()
            return bytes(got), sock.__class__.__name__.encode()

        server = world.spawn(receive_until_end)
        with world.tcp_connect("10.0.0.9", listener.getsockname()) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) + sock.recv(1) + sock.recv(1) == b"bye"
            assert sock.recv(1) == b""
    world.run_tasks()
    assert server.result()[0] == data


def test_a_tcp_connection_attempt_is_refused_or_times_out(world: World) -> None:
    world.udp("10.0.0.8")
    with pytest.raises(ConnectionRefusedError):
        world.tcp_connect("10.0.0.9", ("10.0.0.8", 99))
    world.partition("10.0.0.8", "10.0.0.9")
    before = world.now
    with pytest.raises(TimeoutError):
        world.tcp_connect("10.0.0.9", ("10.0.0.8", 99), within="3s")
    assert world.now - before == 3


def test_closing_a_tcp_socket_with_a_linger_time_of_zero_resets_the_connection(
    world: World,
) -> None:
    listener = world.tcp_listen("10.0.0.8")
    client = world.tcp_connect("10.0.0.9", listener.getsockname())
    server, _ = listener.accept()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with pytest.raises(ConnectionResetError):
        server.recv(1)
    with pytest.raises(OSError) as error:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert error.value.errno == errno.ENOPROTOOPT


def test_closing_a_world_closes_its_open_sockets() -> None:
    with World(seed=3) as world:
        kept = world.udp("10.0.0.9", 7)
        listener = world.tcp_listen("10.0.0.9", 7)
        world.spawn(listener.accept)
        world.run_for(1)
    with pytest.raises(OSError) as error:
        kept.recv()
    assert error.value.errno == errno.EBADF
    with World(seed=3) as world:
        world.udp("10.0.0.9", 7)
