"""TCP sockets of the llp layer when system calls fail or are interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
from failing import run_with_failing_calls

ERRORS_OF_A_PENDING_CONNECTION = (
    "EINTR ECONNABORTED EPROTO ENOPROTOOPT EHOSTDOWN ENONET EHOSTUNREACH EOPNOTSUPP "
    "ENETUNREACH ENETDOWN"
)
LISTENER_SETUP = """
p = Poller()
listener = p.listen()
out = ffi.new("struct siw_llp_sock **")
def accept_connection():
    return lib.siw_llp_tcp_accept(listener.c, ffi.NULL, out)
client = socket.create_connection(("127.0.0.1", addr_port(listener.local_addr())))
p.poll_until_ready(listener)
"""
LISTENER_CLEANUP = """
lib.siw_llp_close(out[0])
client.close()
p.close()
"""


def test_accept_skips_pending_connections_that_have_ended(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        LISTENER_SETUP
        + f"""
for name in {ERRORS_OF_A_PENDING_CONNECTION.split()}:
    # The first pending connection has ended, and another one follows.
    with failing("accept4", getattr(errno, name)):
        assert accept_connection() == 0, name
    lib.siw_llp_close(out[0])
    # With more ended connections than one call examines, the listener stays ready.
    client = socket.create_connection(("127.0.0.1", addr_port(listener.local_addr())))
    p.poll_until_ready(listener)
    with failing("accept4", getattr(errno, name), times=1000):
        assert accept_connection() == -errno.EAGAIN, name
    assert listener in p.poll()
assert accept_connection() == 0
"""
        + LISTENER_CLEANUP,
    )


@pytest.mark.parametrize("error", ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"])
def test_accept_without_resources_is_retried_after_a_pause(build_dir: Path, error: str) -> None:
    run_with_failing_calls(
        build_dir,
        LISTENER_SETUP
        + f"""
began = time.monotonic()
with failing("accept4", errno.{error}, times=2):
    assert accept_connection() == -errno.{error}
    assert accept_connection() == -errno.{error}, "accept was not called again"
assert listener not in p.poll()
assert p.wait(10_000_000) == 1
wait_until(lambda: listener in p.poll())
assert 0.09 < time.monotonic() - began, "the listener was reported again before 100 ms"
assert accept_connection() == 0
"""
        + LISTENER_CLEANUP,
    )


def test_accept_returns_the_error_of_a_failed_system_call_without_a_leak(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        LISTENER_SETUP
        + """
with failing("accept4", errno.EBADF):
    assert accept_connection() == -errno.EBADF
before = list_open_descriptors()
with failing("epoll_ctl", errno.ENOSPC):
    assert accept_connection() == -errno.ENOSPC
assert list_open_descriptors() == before
client = socket.create_connection(("127.0.0.1", addr_port(listener.local_addr())))
assert accept_connection() == 0
"""
        + LISTENER_CLEANUP,
    )


def test_an_interrupted_connect_continues_and_an_error_is_returned_each_time(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        """
p = Poller()
listener = p.listen()
dest = listener.local_addr()
with failing("connect", errno.EINPROGRESS):
    a = p.connect(dest)  # no connection attempt is made
assert a.connect_result() == -errno.EAGAIN
with failing("getsockopt", errno.ENOTSOCK):
    assert a.connect_result() == -errno.ENOTSOCK
assert a.connect_result() == -errno.ENOTSOCK, "a second call returned another error"
a.close()
with failing("connect", errno.EINTR):
    c = p.connect(dest)
c.close()
p.close()
""",
    )


@pytest.mark.parametrize("captured", [False, True])
def test_interrupted_tcp_calls_are_repeated_and_other_errors_are_returned(
    build_dir: Path, tmp_path: Path, captured: bool
) -> None:
    run_with_failing_calls(
        build_dir,
        f"""
p = Poller()
a, b = p.connected_pair()
if {captured}:
    assert lib.siw_capture_open(b"{tmp_path}/x.pcapng") == 0
for n, name in ((1, "sendto"), (2, "sendmsg")):
    parts = [b"x" * 10] * n
    with failing(name, errno.EINTR, times=3):
        assert a.send(*parts) == 10 * n
for n, name in ((1, "recvfrom"), (2, "readv")):
    with failing(name, errno.EINTR, times=3):
        assert b.recv(*[5] * n)[0] == 5 * n
with failing("sendto", errno.EAGAIN):
    assert a.send(b"x") == -errno.EAGAIN
with failing("sendto", errno.EPIPE):
    assert a.send(b"x") == -errno.EPIPE
with failing("recvfrom", errno.ECONNRESET):
    assert b.recv()[0] == -errno.ECONNRESET
with failing("recvfrom", errno.ETIMEDOUT):
    assert a.recv()[0] == -errno.ETIMEDOUT
with failing("shutdown", errno.ENOTCONN):
    assert lib.siw_llp_tcp_shutdown(a.c) == -errno.ENOTCONN
assert not lib.siw_llp_tcp_is_closed(a.c)
with failing("getsockopt", errno.EBADF):
    assert not lib.siw_llp_tcp_is_closed(a.c)
lib.siw_capture_close()
p.close()
""",
    )


def test_an_event_descriptor_is_set_and_cleared_despite_interrupted_calls(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        """
import select
fd = lib.siw_llp_event_fd_open()
def is_set():
    return bool(select.select([fd], [], [], 0)[0])
with failing("write", errno.EINTR, times=3):
    lib.siw_llp_event_fd_set(fd)
assert is_set()
with failing("preadv2", errno.EINTR, times=3):
    lib.siw_llp_event_fd_clear(fd)
assert not is_set()
lib.siw_llp_event_fd_set(fd)
with failing("preadv2", errno.EOPNOTSUPP, times=2):
    lib.siw_llp_event_fd_clear(fd)  # as on kernels before 5.8
    lib.siw_llp_event_fd_clear(fd)  # clearing a clear event does not block
assert not is_set()
with failing("write", errno.EAGAIN):  # a full eventfd counts as set
    lib.siw_llp_event_fd_set(fd)
assert not is_set()
lib.siw_llp_event_fd_close(fd)
""",
    )


def test_a_socket_that_could_not_join_a_poller_can_join_another_poller_or_be_closed(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        """
p, q = Poller(), Poller()
before = list_open_descriptors()
a, b = p.connected_pair()
assert a.send(b"unread") == 6

def move_b_without_memory():
    b.leave_poller()
    with failing("epoll_ctl", errno.ENOMEM):
        assert b.join_poller(q) == -errno.ENOMEM

move_b_without_memory()
assert b.join_poller(p) == 0
p.wait_until_socket_ready(b)
assert b.recv()[1] == b"unread"
move_b_without_memory()
b.close()
wait_until(lambda: a.recv()[0] == 0)
a.close()
assert list_open_descriptors() == before
p.close()
q.close()
""",
    )
