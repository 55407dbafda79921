"""Descriptors for event loops of programs: when they are readable."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator

import pytest
from unit.llp.llp_harness import LlpSocket, LoopDescriptor, Poller, lib, list_open_descriptors

#: A time of the monotonic clock in ns that has passed, and one that does not come.
PASSED, NEVER = 1, 1 << 62


@pytest.fixture(name="loop")
def loop_descriptor(poller: Poller) -> Iterator[LoopDescriptor]:
    loop = LoopDescriptor(poller)
    yield loop
    loop.close()


def send_one(poller: Poller, sock: LlpSocket) -> None:
    assert poller.open_udp().sendto(sock.local_addr(), b"x") == 0


def test_data_of_a_cold_socket_makes_the_descriptor_readable_until_a_poll(
    poller: Poller, loop: LoopDescriptor
) -> None:
    sock = poller.open_udp()
    assert not loop.readable()
    send_one(poller, sock)
    assert loop.wait_until_readable()
    poller.wait_until_socket_ready(sock)
    assert sock.receive_all() == 1
    poller.drain_ready_sockets()
    assert not loop.readable()


def test_data_of_a_hot_socket_makes_the_descriptor_readable_if_the_poller_is_armed(
    poller: Poller,
) -> None:
    sock = poller.open_udp()
    send_one(poller, sock)
    poller.wait_until_socket_ready(sock)
    assert sock.receive_all() == 1
    poller.drain_ready_sockets()
    assert poller.hot_fds() == [sock.fd]
    loop = LoopDescriptor(poller)
    poller.arm()
    assert not loop.readable()
    send_one(poller, sock)
    assert loop.wait_until_readable()
    loop.close()


def test_sockets_become_hot_only_while_no_event_loop_waits_on_the_poller(poller: Poller) -> None:
    sock = poller.open_udp()
    loop = LoopDescriptor(poller)
    send_one(poller, sock)
    poller.wait_until_socket_ready(sock)
    assert sock.receive_all() == 1
    assert poller.hot_fds() == []
    loop.close()
    send_one(poller, sock)
    poller.wait_until_socket_ready(sock)
    assert poller.hot_fds() == [sock.fd]


def test_the_descriptor_is_readable_from_the_wake_of_the_poller_to_the_next_poll(
    poller: Poller, loop: LoopDescriptor
) -> None:
    poller.wake()
    assert loop.readable()
    poller.poll()
    assert not loop.readable()


def test_the_descriptor_is_readable_between_set_and_clear(loop: LoopDescriptor) -> None:
    for _ in range(3):
        lib.siw_llp_event_loop_fd_signal(loop.c)
        lib.siw_llp_event_loop_fd_signal(loop.c)
        assert loop.readable()
        lib.siw_llp_event_loop_fd_clear(loop.c)
        assert not loop.readable()


def test_the_descriptor_is_readable_from_the_time_of_its_timer_on(loop: LoopDescriptor) -> None:
    loop.set_timer(NEVER)
    assert not loop.readable()
    loop.set_timer(PASSED)  # a timer keeps the earlier of its times
    assert loop.wait_until_readable()
    loop.set_timer(NEVER)
    assert not loop.readable()


def test_a_timer_that_has_expired_is_reset_although_no_other_time_follows(
    loop: LoopDescriptor,
) -> None:
    loop.set_timer(0)
    assert not loop.readable()
    for _ in range(2):
        loop.set_timer(PASSED)
        assert loop.wait_until_readable()
        loop.set_timer(0)
        assert not loop.readable()


def test_a_timer_of_a_socket_that_is_set_makes_the_descriptor_readable_until_the_next_poll(
    poller: Poller, loop: LoopDescriptor
) -> None:
    sock = poller.open_udp()
    lib.siw_llp_sock_enable_timer(sock.c)
    lib.siw_llp_sock_set_timer(sock.c, NEVER)
    assert loop.readable()
    poller.poll()
    assert not loop.readable()


def test_no_descriptor_of_an_event_loop_is_inherited_by_a_program_that_the_process_starts(
    loop: LoopDescriptor,
) -> None:
    assert len(loop.made) == 3
    for fd in loop.made:
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_forked_child_closes_the_descriptors_of_an_event_loop(loop: LoopDescriptor) -> None:
    child = os.fork()
    if not child:
        os._exit(len(loop.made & set(list_open_descriptors())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- streams whose reader has handled all octets


@pytest.fixture(name="pair")
def connected_pair(poller: Poller, loop: LoopDescriptor) -> tuple[LlpSocket, LlpSocket]:
    """A connection; polls report its second end, which has the octet `x`."""
    del loop  # with a descriptor for an event loop, a poller has no hot sockets
    a, b = poller.connected_pair()
    assert a.send(b"x") == 1
    poller.wait_until_socket_ready(b)
    return a, b


Pair = tuple[LlpSocket, LlpSocket]


def test_a_stream_whose_reader_has_handled_all_octets_is_not_reported_until_more_arrive(
    poller: Poller, pair: Pair
) -> None:
    a, b = pair
    for _ in range(3):
        assert b.recv() == (1, b"x")
        assert b in poller.poll()
        b.note_all_handled()
        assert b not in poller.poll()
        assert a.send(b"x") == 1
        poller.wait_until_socket_ready(b)


def test_octets_reported_after_the_last_read_are_not_lost(poller: Poller, pair: Pair) -> None:
    a, b = pair
    assert b.recv() == (1, b"x")
    assert a.send(b"y") == 1
    poller.poll()  # the poll consumes the epoll event of `b`
    b.note_all_handled()
    poller.wait_until_socket_ready(b)
    assert b.recv() == (1, b"y")


def test_the_end_of_a_stream_reported_before_the_last_read_is_not_lost(
    poller: Poller, pair: Pair
) -> None:
    a, b = pair
    assert lib.siw_llp_tcp_shutdown(a.c) == 0
    poller.poll()  # the poll consumes the epoll event of `b`
    assert b.recv() == (1, b"x")
    b.note_all_handled()
    poller.wait_until_socket_ready(b)
    assert b.recv() == (0, b"")


def test_octets_after_urgent_data_are_not_lost(poller: Poller, pair: Pair) -> None:
    """A read ends before urgent data, which no siwarp peer sends."""
    a, b = pair
    with socket.socket(fileno=os.dup(a.fd)) as s:
        s.send(b"!", socket.MSG_OOB)
        s.send(b"y")
    poller.poll()  # the poll consumes the epoll events of `b`
    assert b.recv() == (1, b"x")
    b.note_all_handled()
    poller.wait_until_socket_ready(b)
    assert b.recv() == (1, b"y")
