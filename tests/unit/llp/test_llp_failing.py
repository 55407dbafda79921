"""Tests that calls of the llp layer return the errors of system calls and leak no descriptor."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from failing import run_with_failing_calls
from unit.llp.test_llp_capture import packet_flow, read_packets

SO_RCVBUFFORCE = 33


def expected_buffer_setsockopt_count() -> int:
    """Return the number of setsockopt calls for the buffers of a new UDP socket.

    A process without privilege makes twice as many calls.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 16)
        except PermissionError:
            return 4
        return 2


#: Code in which `call` must return -`error` when a call of `name` fails, and leave no descriptor
#: open.
ERROR_CHECK = """
p = Poller()
u4, u6 = p.open_udp("127.0.0.1"), p.open_udp("::1")
group, group6 = siw_addr("239.192.7.11", 40000), siw_addr("ff02::1:2", 40001)
out, dest4, dest6 = ffi.new("struct siw_llp_sock **"), u4.local_addr(), u6.local_addr()
before = list_open_descriptors()
with failing({name!r}, {error}, nth={nth}):
    rv = {call}
assert rv == -{error}, rv
assert list_open_descriptors() == before
p.close()
"""
#: Calls of the layer, each with system calls that fail: `name#2` is the second call of `name`, and
#: `name+2` is the second call of `name` after the calls that set the buffers of a new socket.
CALLS = [
    ("lib.siw_llp_udp_open(p.c, siw_addr('127.0.0.1'), ffi.NULL, out)", "socket bind epoll_ctl"),
    ("lib.siw_llp_udp_open(p.c, siw_addr('::1'), ffi.NULL, out)", "setsockopt+1"),
    ("lib.siw_llp_udp_path_max_payload(u4.c, dest4)", "getsockname socket bind connect getsockopt"),
    ("lib.siw_llp_udp_path_max_payload(u6.c, dest6)", "bind connect getsockopt"),
    ("lib.siw_llp_udp_disable_fragmentation(u4.c)", "getsockname setsockopt"),
    ("lib.siw_llp_udp_set_fragmentation_allowed(u6.c, True)", "getsockname setsockopt"),
    ("lib.siw_llp_udp_send_fragmented(u4.c, dest4, ffi.NULL, 0)", "setsockopt"),
    ("lib.siw_llp_udp_enable_ecn(u4.c)", "getsockopt setsockopt setsockopt#2"),
    ("lib.siw_llp_udp_enable_ecn(u6.c)", "getsockopt setsockopt setsockopt#2"),
    (
        "lib.siw_llp_udp_open_group_member(p.c, group, b'lo', ffi.NULL, out)",
        "socket ioctl setsockopt+1 setsockopt+2 setsockopt+3 bind epoll_ctl",
    ),
    (
        "lib.siw_llp_udp_open_group_member(p.c, group6, b'lo', ffi.NULL, out)",
        "socket setsockopt+1 setsockopt+2 setsockopt+3 setsockopt+4 bind",
    ),
    (
        "lib.siw_llp_udp_enable_multicast_sending(u4.c, b'lo', 1)",
        "ioctl getsockname setsockopt setsockopt#2 setsockopt#3",
    ),
    (
        "lib.siw_llp_udp_enable_multicast_sending(u6.c, b'lo', 1)",
        "setsockopt setsockopt#2 setsockopt#3",
    ),
    (
        "lib.siw_llp_interface_watch_open(p.c, b'lo', ffi.NULL, "
        "ffi.new('struct siw_llp_watch **'))",
        "calloc socket bind epoll_ctl",
    ),
    ("lib.siw_llp_tcp_listen(p.c, siw_addr('127.0.0.1'), 9, ffi.NULL, out)", "socket bind listen"),
    (
        "lib.siw_llp_tcp_connect(p.c, dest4, siw_addr('127.0.0.1'), ffi.NULL, out)",
        "socket setsockopt bind connect epoll_ctl",
    ),
    ("lib.siw_llp_local_addr(u4.c, siw_addr('::1'))", "getsockname"),
    ("lib.siw_llp_peer_addr(u4.c, siw_addr('::1'))", "getpeername"),
    ("lib.siw_llp_list_interfaces(ffi.new('struct siw_llp_interface[8]'), 8)", "getifaddrs socket"),
    (
        "lib.siw_llp_poller_open(ffi.NULL, ffi.new('struct siw_llp_poller **'))",
        "epoll_create1 eventfd epoll_ctl",
    ),
    ("lib.siw_llp_event_fd_open()", "eventfd"),
]


@pytest.mark.parametrize(
    ("call", "name"), [(call, name) for call, names in CALLS for name in names.split()]
)
def test_an_llp_call_returns_the_error_of_a_failed_system_call_without_a_leak(
    build_dir: Path, call: str, name: str
) -> None:
    name, behind, nth = name.partition("+") if "+" in name else name.partition("#")
    n = int(nth or 1) + (expected_buffer_setsockopt_count() if behind == "+" else 0)
    error = 12 if name == "calloc" else 105  # ENOMEM, ENOBUFS
    run_with_failing_calls(build_dir, ERROR_CHECK.format(name=name, error=error, nth=n, call=call))


def test_errors_of_sending_a_batch_are_mapped_to_the_documented_errors(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        """
p = Poller()
a, b = p.open_udp(), p.open_udp()
octets = ffi.from_buffer(bytes(2500))

def send_failing_batch(error, times=1):
    with failing("sendmsg", error, times=times):
        return lib.siw_llp_udp_send_batch(a.c, b.local_addr(), octets, 2500, 1000)

for error in (errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT):
    assert send_failing_batch(error) == -errno.EOPNOTSUPP, error
c = Counters()
for error in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN,
              errno.ENONET, errno.EPROTO):
    assert send_failing_batch(error) == -errno.ECONNREFUSED, error
assert c["icmp_errors"] == 6 and c["send_errors"] == 0
assert send_failing_batch(errno.EACCES) == -errno.EPERM and c["send_errors"] == 1
assert send_failing_batch(errno.ENOBUFS) == -errno.EAGAIN and c["tx_eagain"] == 1
assert send_failing_batch(errno.EINTR, times=3) == 0
assert [len(b.recvfrom()[1]) for _ in range(3)] == [1000, 1000, 500]
p.close()
""",
    )


def test_a_datagram_is_sent_despite_the_icmp_error_of_an_earlier_datagram(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        """
p = Poller()
a, b = p.open_udp(), p.open_udp()
c = Counters()
dest = b.local_addr()
for error in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENONET,
              errno.ENOPROTOOPT, errno.EPROTO):
    with failing("sendto", error):
        assert a.sendto(dest, b"x") == 0, error
assert c["icmp_errors"] == 6
with failing("sendto", errno.EHOSTUNREACH, times=2):  # an error of this datagram: no route
    assert a.sendto(dest, b"x") == -errno.EHOSTUNREACH
assert (c["icmp_errors"], c["send_errors"]) == (6, 1)
with failing("sendto", errno.ECONNREFUSED, times=2):  # an error that only ICMP causes
    assert a.sendto(dest, b"x") == -errno.ECONNREFUSED
assert (c["icmp_errors"], c["send_errors"]) == (7, 2)
with failing("recvfrom", errno.ECONNREFUSED, times=2):
    assert b.recvfrom()[0] == -errno.ECONNREFUSED
assert c["icmp_errors"] == 9
with failing("recvfrom", errno.ENOMEM):
    assert b.recvfrom()[0] == -errno.ENOMEM
with failing("recvfrom", errno.EINTR, times=2):
    assert b.recvfrom()[0] == 1
p.close()
""",
    )


def test_an_ipv6_group_is_joined_without_the_privilege_to_bind_to_an_interface(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        f"nth = {expected_buffer_setsockopt_count() + 3}"
        """
p = Poller()
out = ffi.new("struct siw_llp_sock **")
with failing("setsockopt", errno.EPERM, nth=nth):
    rv = lib.siw_llp_udp_open_group_member(p.c, siw_addr("ff02::1:2", 40001), b"lo", ffi.NULL, out)
assert rv == 0
lib.siw_llp_close(out[0])
p.close()
""",
    )


def test_an_interface_that_disappears_during_the_query_is_reported_as_down(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        """
found = ffi.new("struct siw_llp_interface[8]")
n = lib.siw_llp_list_interfaces(found, 8)
assert n >= 1 and found[0].up and found[0].mtu
with failing("ioctl", errno.ENODEV):
    assert lib.siw_llp_list_interfaces(found, 8) == n
assert not found[0].up and not found[0].mtu
# On a machine without IPv4 the layer queries interfaces through an IPv6 socket.
with failing("socket", errno.EAFNOSUPPORT):
    assert lib.siw_llp_list_interfaces(found, 8) == n
assert found[0].up and found[0].mtu
""",
    )


def test_a_path_mtu_or_buffer_size_that_cannot_be_determined_is_0(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        """
p = Poller()
a = p.open_udp()
dest = a.local_addr()
assert lib.siw_llp_udp_route_mtu(a.c, dest) > 65000
for name in ("socket", "connect", "getsockopt"):
    with failing(name, errno.EMFILE):
        assert lib.siw_llp_udp_route_mtu(a.c, dest) == 0, name
assert lib.siw_llp_udp_rx_buffer_size(a.c) > 0
with failing("getsockopt", errno.EBADF):
    assert lib.siw_llp_udp_rx_buffer_size(a.c) == 0
p.close()
""",
    )


def test_an_interface_watch_retries_after_eintr_and_reports_lost_notifications(
    build_dir: Path,
) -> None:
    run_with_failing_calls(
        build_dir,
        """
p = Poller()
out = ffi.new("struct siw_llp_watch **")
assert lib.siw_llp_interface_watch_open(p.c, b"lo", ffi.NULL, out) == 0
with failing("recvfrom", errno.EINTR, times=5):
    assert lib.siw_llp_interface_watch_read(out[0]) == 0
with failing("recvfrom", errno.ENOBUFS, times=3):  # two of them while the watch discards its queue
    assert lib.siw_llp_interface_watch_read(out[0]) == lib.SIW_LLP_WATCH_LOST
assert lib.siw_llp_interface_watch_read(out[0]) == 0
lib.siw_llp_interface_watch_close(out[0])
p.close()
""",
    )


SEND_CAPTURED_DATAGRAM = """
p = Poller()
a, b = p.open_udp("0.0.0.0"), p.open_udp()
dest = b.local_addr()
assert lib.siw_capture_open(b"{file}") == 0
{how}
    assert a.sendto(dest, b"x") == 0
lib.siw_capture_close()
p.close()
"""


@pytest.mark.parametrize("name", ["socket", "connect", "getsockname#3"])
def test_a_capture_has_the_bound_address_if_the_source_address_cannot_be_queried(
    build_dir: Path, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "x.pcapng"
    name, _, nth = name.partition("#")
    how = f'with failing("{name}", errno.EMFILE, nth={nth or 1}):'
    run_with_failing_calls(build_dir, SEND_CAPTURED_DATAGRAM.format(file=file, how=how))
    assert [packet_flow(packet)[0] for packet in read_packets(file)] == ["0.0.0.0"]


def test_a_capture_can_query_the_source_address_with_descriptor_0(
    build_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "x.pcapng"
    run_with_failing_calls(
        build_dir, SEND_CAPTURED_DATAGRAM.format(file=file, how="os.close(0)\nif True:")
    )
    assert [packet_flow(packet)[0] for packet in read_packets(file)] == ["127.0.0.1"]


ADOPT_FAILS = """
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
p = Poller()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 0))
fd = os.dup(s.fileno())
high = fcntl.fcntl(fd, fcntl.F_DUPFD, 3000)
for name, error, number in (
    ("getsockname", errno.ENOBUFS, fd), ("epoll_ctl", errno.ENOSPC, fd), ("realloc", 12, high),
):
    with failing(name, error):
        try:
            p.adopt_udp(number)
        except OSError as e:
            assert e.errno == error
        else:
            raise AssertionError(name)
    os.fstat(number)  # the caller still owns the descriptor
    s.sendto(b"x", s.getsockname())
    assert s.recv(9) == b"x"
p.socks.clear()
mine = p.adopt_udp(high)
mine.close()
os.fstat(fd)
p.close()
"""


def test_a_socket_that_cannot_be_adopted_stays_open_for_the_caller(build_dir: Path) -> None:
    run_with_failing_calls(build_dir, "import fcntl, resource\n" + ADOPT_FAILS)


def test_receiving_a_batch_handles_errors_like_receiving_a_datagram(
    build_dir: Path, tmp_path: Path
) -> None:
    run_with_failing_calls(
        build_dir,
        f"""
p = Poller()
a, b = p.open_udp(), p.open_udp()
dest, c = b.local_addr(), Counters()
source, seg = ffi.new("struct siw_addr *"), ffi.new("uint32_t *")
buf = ffi.new("char[65536]")
assert lib.siw_llp_udp_enable_ecn(b.c) == 0  # with ECN, the layer receives with recvmsg
def receive_batch():
    return lib.siw_llp_udp_recv_with_gro(b.c, source, buf, 65536, seg)
for turn in range(2):  # the second time with a capture
    c = Counters()
    with failing("recvmsg", errno.ECONNREFUSED, times=2):
        assert receive_batch() == -errno.ECONNREFUSED
    with failing("recvmsg", errno.ECONNREFUSED):
        assert receive_batch() == -errno.EAGAIN
    assert c["icmp_errors"] == 3
    with failing("recvmsg", errno.ENOMEM):
        assert receive_batch() == -errno.ENOMEM
    with failing("recvmsg", errno.EINTR, times=3):
        assert receive_batch() == -errno.EAGAIN
    assert a.sendto(dest, b"one") == 0
    assert (receive_batch(), seg[0]) == (3, 3)
    with failing("recvfrom", errno.ECONNREFUSED, times=2):
        assert b.recvfrom()[0] == -errno.ECONNREFUSED
    with failing("recvfrom", errno.EINTR, times=2):
        assert b.recvfrom()[0] == -errno.EAGAIN
    with failing("sendto", errno.EINTR):
        assert a.sendto(dest, b"two") == 0
    with failing("sendmsg", errno.EINTR):
        assert a.sendto(dest, b"th", b"ree") == 0
    with failing("sendto", errno.EHOSTUNREACH):
        assert a.sendto(dest, b"four") == 0
    assert [b.recvfrom()[1] for _ in range(3)] == [b"two", b"three", b"four"]
    lib.siw_capture_open(b"{tmp_path}/x.pcapng")
lib.siw_capture_close()
# The errors are the same under a fault plan that affects no packet of the test.
lib.siw_faults_install_plan(b"peer=192.0.2.1,loss=100%")
with failing("recvmsg", errno.ECONNREFUSED, times=2):
    assert receive_batch() == -errno.ECONNREFUSED
with failing("recvmsg", errno.EINTR):
    assert receive_batch() == -errno.EAGAIN
with failing("recvmsg", errno.ENOMEM):
    assert receive_batch() == -errno.ENOMEM
for error in (errno.EHOSTUNREACH, errno.EINTR):
    with failing("sendto", error):
        assert a.sendto(dest, b"x") == 0
with failing("sendto", errno.EMSGSIZE):
    assert a.sendto(dest, b"x") == -errno.EMSGSIZE
p.close()
""",
    )


@pytest.mark.parametrize("name", ["aligned_alloc", "malloc"])
def test_opening_a_poller_or_socket_without_memory_fails_without_a_leak(
    build_dir: Path, name: str
) -> None:
    run_with_failing_calls(
        build_dir,
        f"""
before = list_open_descriptors()
with failing({name!r}, errno.ENOMEM):
    try:
        Poller()
    except OSError as e:
        assert e.errno == errno.ENOMEM
    else:
        raise AssertionError("a poller was opened")
assert list_open_descriptors() == before
p = Poller()
with failing("aligned_alloc", errno.ENOMEM):
    try:
        p.open_udp()
    except OSError as e:
        assert e.errno == errno.ENOMEM
    else:
        raise AssertionError("a socket was opened")
batch = lib.siw_llp_batch_buffer_acquire(p.c)
with failing("malloc", errno.ENOMEM):
    assert lib.siw_llp_batch_buffer_acquire(p.c) == ffi.NULL
lib.siw_llp_batch_buffer_return(p.c, batch)
lib.siw_llp_close(ffi.NULL)
lib.siw_llp_poller_close(ffi.NULL)
p.socks.clear()
p.close()
assert list_open_descriptors() == before
""",
    )
