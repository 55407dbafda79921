"""A fault plan when memory or socket buffer space is short."""

from __future__ import annotations

from pathlib import Path

from failing import run_with_failing_calls

BEGIN = """
p = Port()
a, b = p.open_udp(), p.open_udp()
dest = b.local_addr()
c = Counters()
def plan(text):
    assert lib.siw_faults_install(text) == 0
BAD = ffi.new("struct iovec *", {"iov_base": ffi.cast("void *", 8), "iov_len": 10})
"""


def test_without_memory_a_datagram_is_refused_as_by_a_full_socket(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        BEGIN
        + """
plan(b"tx:corrupt=100%")
with failing("calloc", errno.ENOMEM):  # the socket's own state
    assert a.sendto(dest, b"hello") == -errno.EAGAIN
with failing("malloc", errno.ENOMEM):  # the copy in which a bit is changed
    assert a.sendto(dest, b"hello") == -errno.EAGAIN
assert c["tx_eagain"] == 2 and c["fault_corrupt"] == 0
lib.siw_guard_install()
assert lib.siw_llp_udp_send(a.c, dest, BAD, 1) == -errno.EFAULT
lib.siw_guard_remove()
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


def test_without_memory_what_would_be_held_is_lost_and_counted(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        BEGIN
        + """
plan(b"tx:delay=1ms")
assert a.sendto(dest, b"first") == 0
with failing("malloc", errno.ENOMEM):
    assert a.sendto(dest, b"lost") == 0
assert c["fault_limit"] == 1
wait_until(lambda: b in p.poll())
assert b.recvfrom()[1] == b"first"
plan(b"rx:delay=10s")
assert a.sendto(dest, b"lost") == 0
assert b.recvfrom()[0] == -errno.EAGAIN  # held
assert a.sendto(dest, b"lost, too") == 0
with failing("malloc", errno.ENOMEM):
    b.recvfrom()
assert c["fault_limit"] == 2
p.close()
""",
    )


def test_a_held_datagram_is_sent_when_the_socket_has_room(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        BEGIN
        + """
plan(b"tx:delay=1ms,dup=100%")
assert a.sendto(dest, b"late") == 0
time.sleep(0.003)
with failing("sendto", errno.EAGAIN):
    p.poll()
assert b.recvfrom()[0] == -errno.EAGAIN, "not yet"
# Before a millisecond is over it is not tried again.
wait_until(lambda: b in p.poll())
assert b.recvfrom()[1] == b"late" and wait_until(lambda: b.recvfrom()[1] == b"late")
plan(b"tx:dup=100%")
with failing("sendto", errno.EAGAIN, nth=2):  # the copy is the network's to lose
    assert a.sendto(dest, b"once") == 0
assert wait_until(lambda: b.recvfrom()[1] == b"once") and b.recvfrom()[0] == -errno.EAGAIN
with failing("sendto", errno.EAGAIN):
    assert a.sendto(dest, b"once") == -errno.EAGAIN
p.close()
""",
    )


STREAM = """
p = Port()
a, b = p.connected_pair()
c = Counters()
def plan(text):
    assert lib.siw_faults_install(text) == 0
BAD = ffi.new("struct iovec *", {"iov_base": ffi.cast("void *", 8), "iov_len": 10})
lib.siw_guard_install()
"""


def test_without_memory_a_streams_octets_are_not_taken_yet(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM
        + """
plan(b"tx:corrupt=100%")
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
plan(b"tx:delay=1ms")
with failing("malloc", errno.ENOMEM):
    assert a.send(b"y" * 10) == -errno.EAGAIN
assert a.send(b"", b"y" * 10) == 10
p.close()
""",
    )


def test_a_hold_that_ends_midway_has_taken_what_it_could(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM
        + """
plan(b"tx:delay=1ms")
octets = os.urandom(200_000)
with failing("malloc", errno.ENOMEM, nth=3):  # pieces of 64 KiB
    assert a.send(octets) == 2 * (64 << 10)
assert a.send(octets[2 << 16:]) == len(octets) - (2 << 16)
a.want_write(False)
got = bytearray()
def more():
    p.poll()
    got.extend(b.recv()[1])
    return len(got) == len(octets)
wait_until(more)
assert got == octets
p.close()
""",
    )


def test_a_stream_is_received_as_far_as_there_is_memory(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM
        + """
assert a.send(b"x" * 1460) == 1460
plan(b"rx:corrupt=100%")
with failing("calloc", errno.ENOMEM):
    assert b.recv()[0] == -errno.ENOBUFS
with failing("malloc", errno.ENOMEM):
    assert b.recv()[0] == -errno.ENOMEM
assert len(b.recv()[1]) == 1460, "nothing of it is gone"
assert a.send(b"x" * 1460) == 1460
BAD.iov_len = 1460
assert lib.siw_llp_tcp_recvv(b.c, BAD, 1) == -errno.EFAULT
plan(b"rx:delay=1ms")
assert a.send(b"held") == 4
assert b.recv()[0] == -errno.EAGAIN
time.sleep(0.003)
BAD.iov_len = 4
assert lib.siw_llp_tcp_recvv(b.c, BAD, 1) == -errno.EFAULT
p.close()
""",
    )


def test_octets_that_cannot_be_held_end_the_stream(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM
        + """
plan(b"rx:delay=10s")
assert a.send(b"first") == 5
assert b.recv()[0] == -errno.EAGAIN
assert a.send(b"second") == 6
with failing("malloc", errno.ENOMEM):
    assert b.recv()[0] == -errno.ENOMEM
assert b.recv()[0] == -errno.ENOMEM, "the same each time"
p.close()
""",
    )


def test_an_error_of_a_held_stream_is_reported_to_the_sender(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        STREAM
        + """
plan(b"tx:delay=1ms")
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
