"""Descriptors for event loops of programs: when they are readable."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Iterator

import pytest
from unit.llp.llp_harness import LlpSocket, Port, ffi, lib, list_open_descriptors

#: A time of the monotonic clock in ns that has passed, and one that does not come.
PASSED, NEVER = 1, 1 << 62
#: Milliseconds after which a test fails; a descriptor that has become readable ends the wait.
LIMIT_MS = 60_000


class LoopDescriptor:
    """A descriptor of a port for an event loop."""

    def __init__(self, port: Port) -> None:
        out = ffi.new("struct siw_llp_loop_fd **")
        before = set(list_open_descriptors())
        assert lib.siw_llp_loop_fd_open(port.c, out) == 0
        self.c = out[0]
        self.fd = lib.siw_llp_loop_fd_number(self.c)
        #: The descriptors that it consists of.
        self.made = set(list_open_descriptors()) - before

    def wait_until_readable(self) -> bool:
        return self.readable(LIMIT_MS)

    def readable(self, limit_ms: int = 0) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(limit_ms))

    def set_timer(self, due_ns: int) -> None:
        lib.siw_llp_loop_fd_set_timer(self.c, due_ns)

    def close(self) -> None:
        lib.siw_llp_loop_fd_close(self.c)


@pytest.fixture(name="loop")
def loop_descriptor(port: Port) -> Iterator[LoopDescriptor]:
    loop = LoopDescriptor(port)
    yield loop
    loop.close()


def send_one(port: Port, sock: LlpSocket) -> None:
    assert port.open_udp().sendto(sock.local_addr(), b"x") == 0


def test_data_of_a_cold_socket_makes_the_descriptor_readable_until_a_poll(
    port: Port, loop: LoopDescriptor
) -> None:
    sock = port.open_udp()
    assert not loop.readable()
    send_one(port, sock)
    assert loop.wait_until_readable()
    port.wait_until_ready(sock)
    assert sock.receive_all() == 1
    port.drain_ready_sockets()
    assert not loop.readable()


def test_data_of_a_hot_socket_makes_the_descriptor_readable_if_the_port_is_armed(
    port: Port, loop: LoopDescriptor
) -> None:
    sock = port.open_udp()
    send_one(port, sock)
    port.wait_until_ready(sock)
    assert sock.receive_all() == 1
    port.drain_ready_sockets()
    port.arm()
    assert not loop.readable()
    send_one(port, sock)
    assert loop.wait_until_readable()


def test_the_descriptor_is_readable_from_the_wake_of_the_port_to_the_next_poll(
    port: Port, loop: LoopDescriptor
) -> None:
    port.wake()
    assert loop.readable()
    port.poll()
    assert not loop.readable()


def test_the_descriptor_is_readable_between_set_and_clear(loop: LoopDescriptor) -> None:
    for _ in range(3):
        lib.siw_llp_loop_fd_set(loop.c)
        lib.siw_llp_loop_fd_set(loop.c)
        assert loop.readable()
        lib.siw_llp_loop_fd_clear(loop.c)
        assert not loop.readable()


def test_the_descriptor_is_readable_from_the_time_of_its_timer_on(loop: LoopDescriptor) -> None:
    loop.set_timer(NEVER)
    assert not loop.readable()
    loop.set_timer(PASSED)  # earlier than the time that was set
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
    port: Port, loop: LoopDescriptor
) -> None:
    sock = port.open_udp()
    lib.siw_llp_sock_enable_timer(sock.c)
    lib.siw_llp_sock_set_timer(sock.c, NEVER)
    assert loop.readable()
    port.poll()
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
