"""Tests of fault plans when memory or socket buffer space is short."""

from __future__ import annotations

from pathlib import Path

from failing import run_with_failing_calls

DATAGRAM_SETUP = """
p = Poller()
a, b = p.open_udp(), p.open_udp()
dest = b.local_addr()
c = Counters()
def install_plan(text):
    assert lib.siw_faults_install_plan(text) == 0
BAD = ffi.new("struct iovec *", {"iov_base": ffi.cast("void *", 8), "iov_len": 10})
"""


def test_under_a_fault_plan_a_send_without_memory_fails_like_a_full_socket(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        DATAGRAM_SETUP
        + """
install_plan(b"tx:corrupt=100%")
with failing("calloc", errno.ENOMEM):  # the allocation of the state of the socket fails
    assert a.sendto(dest, b"hello") == -errno.EAGAIN
with failing("malloc", errno.ENOMEM):  # the allocation of the corrupted copy fails
    assert a.sendto(dest, b"hello") == -errno.EAGAIN
assert c["tx_eagain"] == 2 and c["fault_corrupt"] == 0
lib.siw_guard_install_handlers()
assert lib.siw_llp_udp_send(a.c, dest, BAD, 1) == -errno.EFAULT
lib.siw_guard_remove_handlers()
assert a.sendto(dest, b"hello") == 0 and c["fault_corrupt"] == 1
p.poll_until_ready(b)
assert b.recvfrom()[1] != b"hello"
assert a.sendto(dest, bytes(65508)) == -errno.EMSGSIZE
fresh = p.open_udp()
with failing("calloc", errno.ENOMEM):
    assert fresh.recvfrom()[0] == -errno.ENOBUFS
assert fresh.recvfrom()[0] == -errno.EAGAIN
p.close()
""",
    )


def test_without_memory_a_datagram_that_a_fault_plan_would_delay_is_dropped_and_counted(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        DATAGRAM_SETUP
        + """
install_plan(b"tx:delay=1ms")
assert a.sendto(dest, b"first") == 0
with failing("malloc", errno.ENOMEM):
    assert a.sendto(dest, b"lost") == 0
assert c["fault_limit"] == 1
wait_until(lambda: b in p.poll())
assert b.recvfrom()[1] == b"first"
install_plan(b"rx:delay=10s")
assert a.sendto(dest, b"lost") == 0
assert b.recvfrom()[0] == -errno.EAGAIN  # the fault plan delays the datagram
assert a.sendto(dest, b"lost, too") == 0
with failing("malloc", errno.ENOMEM):
    b.recvfrom()
assert c["fault_limit"] == 2
p.close()
""",
    )


def test_a_delayed_datagram_is_sent_when_the_socket_has_buffer_space(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        DATAGRAM_SETUP
        + """
install_plan(b"tx:delay=1ms,dup=100%")
assert a.sendto(dest, b"late") == 0
time.sleep(0.003)
with failing("sendto", errno.EAGAIN):
    p.poll()
assert b.recvfrom()[0] == -errno.EAGAIN, "the datagram was sent although the socket had no space"
# The layer tries to send the datagram again after a millisecond.
wait_until(lambda: b in p.poll())
assert b.recvfrom()[1] == b"late" and wait_until(lambda: b.recvfrom()[1] == b"late")
install_plan(b"tx:dup=100%")
with failing("sendto", errno.EAGAIN, nth=2):  # a duplicate that cannot be sent is dropped
    assert a.sendto(dest, b"once") == 0
assert wait_until(lambda: b.recvfrom()[1] == b"once") and b.recvfrom()[0] == -errno.EAGAIN
with failing("sendto", errno.EAGAIN):
    assert a.sendto(dest, b"once") == -errno.EAGAIN
p.close()
""",
    )


STREAM_SETUP = """
p = Poller()
a, b = p.connected_pair()
c = Counters()
def install_plan(text):
    assert lib.siw_faults_install_plan(text) == 0
BAD = ffi.new("struct iovec *", {"iov_base": ffi.cast("void *", 8), "iov_len": 10})
lib.siw_guard_install_handlers()
"""


def test_under_a_fault_plan_a_tcp_send_without_memory_returns_eagain(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM_SETUP
        + """
install_plan(b"tx:corrupt=100%")
with failing("calloc", errno.ENOMEM):
    assert a.send(b"x" * 1460) == -errno.EAGAIN
with failing("malloc", errno.ENOMEM):
    assert a.send(b"x" * 1460) == -errno.EAGAIN
assert (c["tx_eagain"], c["fault_corrupt"]) == (2, 0)
BAD.iov_len = 1460
assert lib.siw_llp_tcp_sendv(a.c, BAD, 1) == -errno.EFAULT
assert a.send(b"x" * 1460, b"") == 1460 and c["fault_corrupt"] == 1
got = wait_until(lambda: b.recv(1460)[1])
assert len(got) == 1460 and sum(x != y for x, y in zip(got, b"x" * 1460)) == 1
install_plan(b"tx:delay=1ms")
with failing("malloc", errno.ENOMEM):
    assert a.send(b"y" * 10) == -errno.EAGAIN
assert a.send(b"", b"y" * 10) == 10
p.close()
""",
    )


def test_a_delayed_tcp_send_that_runs_out_of_memory_accepts_a_part_of_the_data(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM_SETUP
        + """
install_plan(b"tx:delay=1ms")
octets = os.urandom(200_000)
with failing("malloc", errno.ENOMEM, nth=3):  # pieces of 64 KiB
    assert a.send(octets) == 2 * (64 << 10)
assert a.send(octets[2 << 16:]) == len(octets) - (2 << 16)
a.want_write(False)
got = bytearray()
def receive_completely():
    p.poll()
    got.extend(b.recv()[1])
    return len(got) == len(octets)
wait_until(receive_completely)
assert got == octets
p.close()
""",
    )


def test_under_a_fault_plan_a_tcp_receive_without_memory_fails_without_data_loss(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM_SETUP
        + """
assert a.send(b"x" * 1460) == 1460
install_plan(b"rx:corrupt=100%")
with failing("calloc", errno.ENOMEM):
    assert b.recv()[0] == -errno.ENOBUFS
with failing("malloc", errno.ENOMEM):
    assert b.recv()[0] == -errno.ENOMEM
assert len(b.recv()[1]) == 1460, "octets of the stream were lost"
assert a.send(b"x" * 1460) == 1460
BAD.iov_len = 1460
assert lib.siw_llp_tcp_recvv(b.c, BAD, 1) == -errno.EFAULT
install_plan(b"rx:delay=1ms")
assert a.send(b"held") == 4
assert b.recv()[0] == -errno.EAGAIN
time.sleep(0.003)
BAD.iov_len = 4
assert lib.siw_llp_tcp_recvv(b.c, BAD, 1) == -errno.EFAULT
p.close()
""",
    )


def test_received_octets_that_cannot_be_delayed_for_lack_of_memory_end_the_tcp_stream(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM_SETUP
        + """
install_plan(b"rx:delay=10s")
assert a.send(b"first") == 5
assert b.recv()[0] == -errno.EAGAIN
assert a.send(b"second") == 6
with failing("malloc", errno.ENOMEM):
    assert b.recv()[0] == -errno.ENOMEM
assert b.recv()[0] == -errno.ENOMEM, "a later receive returned another error"
p.close()
""",
    )


def test_an_error_of_a_delayed_tcp_send_is_returned_by_the_next_send(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM_SETUP
        + """
install_plan(b"tx:delay=1ms")
assert a.send(b"x" * 10) == 10
time.sleep(0.003)
with failing("sendto", errno.EAGAIN):
    p.poll()
assert a.send(b"y" * 10) == 10
time.sleep(0.003)
with failing("sendto", errno.EPIPE):
    for _ in range(100):
        p.poll()
assert a.send(b"z") == -errno.EPIPE
p.close()
""",
    )
