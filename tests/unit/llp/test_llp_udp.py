"""UDP sockets: datagrams and all errors that a UDP socket can report."""

from __future__ import annotations

import errno
import fcntl
import os
import socket

import pytest

BOTH_FAMILIES = pytest.mark.parametrize("family", ["v4", "v6"])


@BOTH_FAMILIES
@pytest.mark.parametrize("size", [0, 1, 64, 1473, 65507])
def test_a_datagram_arrives_complete_with_its_source_address(poller, llp_helpers, family, size):
    a, b = (
        poller.open_udp(llp_helpers.loopback[family]),
        poller.open_udp(llp_helpers.loopback[family]),
    )
    data = os.urandom(size)
    assert a.sendto(b.local_addr(), data) == 0
    poller.poll_until_ready(b)
    rv, got, source = b.recvfrom()
    assert (rv, got) == (size, data)
    assert llp_helpers.address_text(source) == llp_helpers.address_text(a.local_addr())
    # The comparison covers all octets of the address, also those without a counterpart in a
    # sockaddr_in.
    assert bytes(llp_helpers.buffer(source)) == bytes(llp_helpers.buffer(a.local_addr()))


@pytest.mark.parametrize("size", [0, 1, 10, 63])
def test_a_truncated_datagram_reports_its_full_length(poller, size):
    a, b = poller.open_udp(), poller.open_udp()
    assert a.sendto(b.local_addr(), b"x" * 64) == 0
    rv, got, _ = b.recvfrom(size)
    assert rv == 64
    assert got == b"x" * size
    assert b.recvfrom()[0] == -errno.EAGAIN


def test_several_iovecs_are_sent_as_one_datagram(poller):
    a, b = poller.open_udp(), poller.open_udp()
    assert a.sendto(b.local_addr(), b"head", b"", b"payload", b"crc!") == 0
    assert b.recvfrom()[1] == b"headpayloadcrc!"
    assert b.recvfrom()[0] == -errno.EAGAIN


def test_a_datagram_longer_than_udp_allows_is_refused_and_counted(poller, llp_helpers):
    a = poller.open_udp()
    c = llp_helpers.Counters()
    assert a.sendto(a.local_addr(), b"x" * 65508) == -errno.EMSGSIZE
    assert c["send_errors"] == 1


def test_a_destination_of_another_address_family_is_refused(poller, llp_helpers):
    assert (
        poller.open_udp("127.0.0.1").sendto(llp_helpers.siw_addr("::1", 9), b"x")
        == -errno.EAFNOSUPPORT
    )


def test_a_udp_port_cannot_be_bound_twice(poller, llp_helpers):
    a = poller.open_udp()
    with pytest.raises(OSError) as e:
        poller.open_udp(port=llp_helpers.addr_port(a.local_addr()))
    assert e.value.errno == errno.EADDRINUSE


@pytest.mark.clause("DGRAM-UD-17")
def test_another_socket_cannot_bind_a_bound_udp_port_with_so_reuseaddr(poller, llp_helpers):
    a = poller.open_udp()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError) as e:
            thief.bind(("127.0.0.1", llp_helpers.addr_port(a.local_addr())))
        assert e.value.errno == errno.EADDRINUSE


def test_an_ipv6_socket_does_not_occupy_the_udp_port_for_ipv4(poller, llp_helpers):
    six = poller.open_udp("::")
    four = poller.open_udp("0.0.0.0", llp_helpers.addr_port(six.local_addr()))
    assert llp_helpers.addr_port(four.local_addr()) == llp_helpers.addr_port(six.local_addr())


def test_binding_an_address_without_a_family_is_refused(poller, llp_helpers):
    nowhere = llp_helpers.siw_addr("127.0.0.1")
    nowhere.family = 0
    with pytest.raises(OSError) as e:
        llp_helpers.LlpSocket(
            poller, lambda t, out: llp_helpers.lib.siw_llp_udp_open(poller.c, nowhere, t, out)
        )
    assert e.value.errno == errno.EAFNOSUPPORT


def test_binding_an_address_of_another_host_is_refused(poller):
    with pytest.raises(OSError) as e:
        poller.open_udp("192.0.2.1")
    assert e.value.errno == errno.EADDRNOTAVAIL


def test_a_udp_socket_is_nonblocking_and_close_on_exec(poller):
    fd = poller.open_udp().fd
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_udp_socket_buffers_have_the_sizes_of_the_settings(poller, llp_helpers):
    with (
        llp_helpers.temporary_setting("rcvbuf", 20000),
        llp_helpers.temporary_setting("sndbuf", 30000),
    ):
        fd = poller.open_udp().fd
    with socket.socket(fileno=os.dup(fd)) as s:
        # The kernel doubles both values to account for its own overhead.
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 40000
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60000


# ---- sockets adopted from the program


@BOTH_FAMILIES
def test_a_bound_udp_socket_of_the_program_can_be_adopted(poller, llp_helpers, family):
    s = socket.socket({"v4": socket.AF_INET, "v6": socket.AF_INET6}[family], socket.SOCK_DGRAM)
    s.bind((llp_helpers.loopback[family], 0))
    os.set_inheritable(s.fileno(), True)
    number, fd = s.getsockname()[1], s.detach()
    mine, other = poller.adopt_udp(fd), poller.open_udp(llp_helpers.loopback[family])
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert llp_helpers.addr_port(mine.local_addr()) == number
    assert other.sendto(mine.local_addr(), b"hello") == 0
    poller.poll_until_ready(mine)
    assert mine.recvfrom()[1] == b"hello"
    mine.close()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_datagram_received_before_its_socket_was_adopted_is_reported(poller, llp_helpers):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.sendto(b"early", s.getsockname())
        mine = poller.adopt_udp(os.dup(s.fileno()))
    assert poller.poll_until_ready(mine) == 1
    assert mine.recvfrom()[1] == b"early"


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("a file", errno.ENOTSOCK),
        ("a stream", errno.EINVAL),
        ("an unbound socket", errno.EINVAL),
        ("a socket of another family", errno.EINVAL),
        ("a closed descriptor", errno.EBADF),
    ],
)
def test_adopting_a_descriptor_other_than_a_bound_udp_socket_is_refused(poller, what, error):
    make = {
        "a file": lambda: os.open("/dev/null", os.O_RDONLY),
        "a stream": lambda: socket.create_server(("127.0.0.1", 0)).detach(),
        "an unbound socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach(),
        "a socket of another family": lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].detach(),
        "a closed descriptor": lambda: 99999,
    }
    fd = make[what]()
    with pytest.raises(OSError) as e:
        poller.adopt_udp(fd)
    assert e.value.errno == error
    if fd != 99999:
        # os.close() raises OSError if siwarp has closed the descriptor.
        os.close(fd)


def test_an_adopted_socket_does_not_coalesce_segments_even_with_udp_gro_set(poller):
    udp_segment, udp_gro = 103, 104
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.IPPROTO_UDP, udp_gro, 1)
        to = s.getsockname()
        mine = poller.adopt_udp(os.dup(s.fileno()))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_UDP, udp_segment, 100)
            sender.sendto(b"x" * 300, to)
        assert [mine.recvfrom()[0] for _ in range(4)] == [100, 100, 100, -errno.EAGAIN]


# ---- ICMP errors


@pytest.fixture
def socket_to_closed_port(poller):
    """A UDP socket connected to a port that no socket is bound to, and the address of the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        dest = gone.getsockname()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(dest)
    return poller.adopt_udp(s.detach()), dest


def test_sends_after_an_icmp_error_succeed(socket_to_closed_port, llp_helpers):
    mine, dest = socket_to_closed_port
    c = llp_helpers.Counters()
    # The ICMP error of each send arrives before the next send, so every send except the first
    # finds an error.
    assert [mine.sendto(llp_helpers.siw_addr(*dest), b"x") for _ in range(5)] == [0] * 5
    assert c["icmp_errors"] == 4
    assert c["send_errors"] == 0


def test_a_receive_after_an_icmp_error_returns_eagain(socket_to_closed_port, llp_helpers, poller):
    mine, dest = socket_to_closed_port
    c = llp_helpers.Counters()
    assert mine.sendto(llp_helpers.siw_addr(*dest), b"x") == 0
    poller.poll_until_ready(mine)
    assert mine.recvfrom()[0] == -errno.EAGAIN
    assert c["icmp_errors"] == 1


def test_icmp_errors_are_not_reported_on_unconnected_sockets(
    poller, llp_helpers, socket_to_closed_port
):
    dest = llp_helpers.siw_addr(*socket_to_closed_port[1])
    a = poller.open_udp()
    c = llp_helpers.Counters()
    assert [a.sendto(dest, b"x") for _ in range(3)] == [0] * 3
    assert a.recvfrom()[0] == -errno.EAGAIN
    assert c["icmp_errors"] == 0


def test_an_unread_socket_error_queue_does_not_keep_a_udp_socket_ready(
    poller, llp_helpers, socket_to_closed_port
):
    dest = socket_to_closed_port[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
        s.sendto(b"x", dest)
        mine = poller.adopt_udp(os.dup(s.fileno()))
    mine.sendto(llp_helpers.siw_addr(*dest), b"x")
    for _ in range(40):
        for ready in poller.poll():
            assert ready.recvfrom()[0] == -errno.EAGAIN
    assert poller.wait(1000) == 0


def test_a_send_to_a_destination_without_a_route_fails_and_later_sends_succeed(run_in_namespace):
    run_in_namespace(
        "ip link set lo up",
        """
p = Poller()
c = Counters()
a = p.open_udp("0.0.0.0")
assert a.sendto(siw_addr("192.0.2.1", 9), b"x") == -101, "ENETUNREACH"
assert c["icmp_errors"] == 0 and c["send_errors"] == 1
assert a.sendto(a.local_addr(), b"x") == 0
p.close()
""",
    )


# ---- the MTU of a route


def test_the_route_mtu_depends_on_the_local_address_of_the_socket(
    run_in_namespace,
):
    run_in_namespace(
        """ip link set lo up
for i in 0 1; do
    ip link add a$i type veth peer name b$i
    ip link set a$i up
    ip link set b$i up
    ip addr add 10.9.$i.1/24 dev a$i
done
ip link add v type veth peer name w
ip link set v mtu 65535 up
ip link set w mtu 65535 up
ip addr add 10.9.2.1/24 dev v
ip rule add from 10.9.0.1 table 10
ip route add default dev a0 mtu 1400 table 10
ip rule add from 10.9.1.1 table 11
ip route add default dev a1 mtu 1300 table 11""",
        """
p = Poller()
mtu = lib.siw_llp_udp_route_mtu
for host, expected in (("10.9.0.1", 1400), ("10.9.1.1", 1300), ("127.0.0.1", 0)):
    assert mtu(p.open_udp(host).c, siw_addr("192.0.2.1", 9)) == expected
at = p.open_udp("10.9.2.1")
assert mtu(at.c, siw_addr("10.9.2.9", 9)) == 65534
for own in ("10.9.2.1", "10.9.1.1"):
    assert mtu(at.c, siw_addr(own, 9)) >= 65535
p.close()
""",
    )


# ---- full buffers


@pytest.mark.clause("DGRAM-UD-13")
def test_datagrams_that_the_kernel_dropped_are_counted_when_the_socket_is_closed(
    poller, llp_helpers
):
    c = llp_helpers.Counters()
    a = poller.open_udp()
    with llp_helpers.temporary_setting("rcvbuf", 4096):
        b = poller.open_udp()
    for _ in range(100):
        assert a.sendto(b.local_addr(), b"x" * 1000) == 0
    got = 0
    while b.recvfrom()[0] > 0:
        got += 1
    assert 0 < got < 100
    b.close()
    assert c["drop_rxq_overflow"] == 100 - got


def test_datagrams_that_the_kernel_dropped_are_counted_by_occasional_polls(poller, llp_helpers):
    c = llp_helpers.Counters()
    a = poller.open_udp()
    with llp_helpers.temporary_setting("rcvbuf", 4096):
        b = poller.open_udp()
    for _ in range(100):
        a.sendto(b.local_addr(), b"x" * 1000)
    got = b.receive_all() // 1000
    for _ in range(4096 * 33):
        if c["drop_rxq_overflow"]:
            break
        poller.poll()
    assert c["drop_rxq_overflow"] == 100 - got
    b.close()
    assert c["drop_rxq_overflow"] == 100 - got


def test_datagrams_dropped_before_a_socket_was_adopted_are_not_counted(poller, llp_helpers):
    c = llp_helpers.Counters()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        for _ in range(100):
            s.sendto(b"x" * 1000, s.getsockname())
        poller.adopt_udp(os.dup(s.fileno())).close()
    assert c["drop_rxq_overflow"] == 0


SLOW_LOOPBACK = (
    "ip link set lo up; tc qdisc add dev lo root tbf rate 800kbit burst 3000 limit 1000000"
)


@pytest.mark.parametrize("state", ["cold", "hot", "armed"])
def test_space_in_a_full_udp_send_buffer_wakes_a_waiting_thread(run_in_namespace, state):
    run_in_namespace(
        SLOW_LOOPBACK,
        f"""
p, other, c = Poller(), Poller(), Counters()
with temporary_setting("sndbuf", 4096):
    a = p.open_udp()
b = other.open_udp()
if {state!r} != "cold":
    b.sendto(a.local_addr(), b"x")
    wait_until(lambda: a in p.poll())
    a.receive_all()
    assert a.fd in p.hot_fds()
for _ in range(100):
    rv = a.sendto(b.local_addr(), b"y" * 1000)
    if rv:
        break
assert rv == -11 and c["tx_eagain"] == 1 and c["send_errors"] == 0
if {state!r} == "armed":
    p.arm()
start = time.monotonic()
assert p.wait(5_000_000) == 1
assert 0.002 < time.monotonic() - start < 2.0, "the wait did not last until there was buffer space"
wait_until(lambda: a in p.poll())
assert wait_until(lambda: a.sendto(b.local_addr(), b"y" * 1000) == 0)
p.drain_ready_sockets()
assert p.wait(1000) == 0, "the socket still waits for buffer space"
p.close()
other.close()
""",
    )


@pytest.mark.parametrize("shared", [True, False])
def test_a_send_that_succeeds_on_a_shared_socket_wakes_blocked_senders(run_in_namespace, shared):
    # A thread that waits for space in the socket's buffer is woken by no other event.
    run_in_namespace(
        SLOW_LOOPBACK,
        f"""
p, other = Poller(), Poller()
with temporary_setting("sndbuf", 4096):
    a = p.open_udp()
b = other.open_udp()
if {shared}:
    lib.siw_llp_allow_concurrent_sends(a.c)
p.drain_ready_sockets()
for _ in range(100):
    if a.sendto(b.local_addr(), b"y" * 1000):
        break
assert wait_until(lambda: a.sendto(b.local_addr(), b"y") == 0)
assert p.wait(1000) == {int(shared)}
p.drain_ready_sockets()
assert p.wait(1000) == 0, "the socket was reported twice"
p.close()
other.close()
""",
    )


def test_enobufs_is_handled_as_eagain_and_the_udp_socket_is_reported_repeatedly(run_in_namespace):
    # The fragments exceed twice the buffer, so no event reports buffer space.
    run_in_namespace(
        "ip link set lo up mtu 1500",
        """
p, other, c = Poller(), Poller(), Counters()
with temporary_setting("sndbuf", 4096):
    a = p.open_udp()
b = other.open_udp()
for n in range(1, 4):
    assert a.sendto(b.local_addr(), b"y" * 60000) == -11
    assert c["tx_eagain"] == n and c["send_errors"] == 0
    assert p.wait(5_000_000) == 1
    p.poll_until_ready(a)
    assert a.recvfrom()[0] == -11
assert a.sendto(b.local_addr(), b"y" * 1000) == 0
p.drain_ready_sockets()
assert p.wait(1000) == 0
p.close()
other.close()
""",
    )


def test_datagrams_are_exchanged_between_link_local_addresses_with_a_scope(run_in_namespace):
    run_in_namespace(
        "ip link set lo up; ip addr add fe80::1/64 dev lo nodad",
        """
p = Poller()
a, b = p.open_udp("fe80::1%lo"), p.open_udp("fe80::1%1")
assert a.sendto(b.local_addr(), b"hello") == 0
p.poll_until_ready(b)
rv, got, source = b.recvfrom()
assert got == b"hello" and source.scope == 1
text = address_text(source)
assert text == address_text(a.local_addr()) and text.startswith("[fe80::1%lo]:")
p.close()
""",
    )


@BOTH_FAMILIES
@pytest.mark.parametrize(("bits", "marked"), [(0, False), (1, False), (2, False), (3, True)])
def test_datagrams_are_sent_with_ect_and_a_ce_mark_is_reported_with_its_datagram(
    poller, llp_helpers, family, bits, marked
):
    mine = poller.open_udp(llp_helpers.loopback[family])
    assert llp_helpers.lib.siw_llp_udp_enable_ecn(mine.c) == 0
    there = (llp_helpers.loopback[family], llp_helpers.addr_port(mine.local_addr()))
    v6 = family == "v6"
    level = socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP
    kind = socket.AF_INET6 if v6 else socket.AF_INET
    with socket.socket(kind, socket.SOCK_DGRAM) as s:
        s.setsockopt(level, socket.IPV6_TCLASS if v6 else socket.IP_TOS, bits)
        s.setsockopt(level, socket.IPV6_RECVTCLASS if v6 else socket.IP_RECVTOS, 1)
        s.settimeout(5)
        s.sendto(b"x", there)
        poller.poll_until_ready(mine)
        seg, source = llp_helpers.ffi.new("uint32_t *"), llp_helpers.ffi.new("struct siw_addr *")
        room = llp_helpers.ffi.new("char[]", 100)
        assert llp_helpers.lib.siw_llp_udp_recv_with_gro(mine.c, source, room, 100, seg) == 1
        assert llp_helpers.lib.siw_llp_udp_ce_received(mine.c) == marked
        assert seg[0] == 1
        assert mine.sendto(source, b"y") == 0
        data, control, _, _ = s.recvmsg(10, 100)
        assert data == b"y"
        assert [c[2][0] for c in control if c[0] == level] == [2]
