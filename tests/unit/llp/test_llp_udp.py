"""UDP sockets: datagrams and all errors that a UDP socket can have."""

from __future__ import annotations

import errno
import fcntl
import os
import socket

import pytest

BOTH = pytest.mark.parametrize("family", ["v4", "v6"])


@BOTH
@pytest.mark.parametrize("size", [0, 1, 64, 1473, 65507])
def test_a_datagram_arrives_whole_and_names_its_source(port, helpers, family, size):
    a, b = port.open_udp(helpers.loopback[family]), port.open_udp(helpers.loopback[family])
    data = os.urandom(size)
    assert a.sendto(b.local_addr(), data) == 0
    port.poll_until_ready(b)
    rv, got, source = b.recvfrom()
    assert (rv, got) == (size, data)
    assert helpers.address_text(source) == helpers.address_text(a.local_addr())
    # All octets of the address, including those that a sockaddr_in does not have.
    assert bytes(helpers.buffer(source)) == bytes(helpers.buffer(a.local_addr()))


@pytest.mark.parametrize("size", [0, 1, 10, 63])
def test_a_datagram_that_is_cut_tells_its_true_length(port, size):
    a, b = port.open_udp(), port.open_udp()
    assert a.sendto(b.local_addr(), b"x" * 64) == 0
    rv, got, _ = b.recvfrom(size)
    assert rv == 64
    assert got == b"x" * size
    assert b.recvfrom()[0] == -errno.EAGAIN


def test_several_iovecs_make_one_datagram(port):
    a, b = port.open_udp(), port.open_udp()
    assert a.sendto(b.local_addr(), b"head", b"", b"payload", b"crc!") == 0
    assert b.recvfrom()[1] == b"headpayloadcrc!"
    assert b.recvfrom()[0] == -errno.EAGAIN


def test_a_datagram_that_is_too_long_is_refused_and_counted(port, helpers):
    a = port.open_udp()
    c = helpers.Counters()
    assert a.sendto(a.local_addr(), b"x" * 65508) == -errno.EMSGSIZE
    assert c["send_errors"] == 1


def test_a_destination_of_the_other_family_is_refused(port, helpers):
    assert (
        port.open_udp("127.0.0.1").sendto(helpers.siw_addr("::1", 9), b"x") == -errno.EAFNOSUPPORT
    )


def test_a_port_is_bound_once(port, helpers):
    a = port.open_udp()
    with pytest.raises(OSError) as e:
        port.open_udp(port=helpers.port_of(a.local_addr()))
    assert e.value.errno == errno.EADDRINUSE


@pytest.mark.clause("DGRAM-UD-17")
def test_no_other_socket_can_take_the_port_by_asking_for_reuse(port, helpers):
    a = port.open_udp()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError) as e:
            thief.bind(("127.0.0.1", helpers.port_of(a.local_addr())))
        assert e.value.errno == errno.EADDRINUSE


def test_an_ipv6_socket_leaves_the_port_to_ipv4(port, helpers):
    six = port.open_udp("::")
    four = port.open_udp("0.0.0.0", helpers.port_of(six.local_addr()))
    assert helpers.port_of(four.local_addr()) == helpers.port_of(six.local_addr())


def test_an_address_of_no_family_is_refused(port, helpers):
    nowhere = helpers.siw_addr("127.0.0.1")
    nowhere.family = 0
    with pytest.raises(OSError) as e:
        helpers.Sock(port, lambda t, out: helpers.lib.siw_llp_udp_open(port.c, nowhere, t, out))
    assert e.value.errno == errno.EAFNOSUPPORT


def test_a_foreign_address_cannot_be_bound(port):
    with pytest.raises(OSError) as e:
        port.open_udp("192.0.2.1")
    assert e.value.errno == errno.EADDRNOTAVAIL


def test_the_descriptor_is_non_blocking_and_closed_on_exec(port):
    fd = port.open_udp().fd
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_buffers_are_as_large_as_the_settings_ask(port, helpers):
    with helpers.temporary_setting("rcvbuf", 20000), helpers.temporary_setting("sndbuf", 30000):
        fd = port.open_udp().fd
    with socket.socket(fileno=os.dup(fd)) as s:
        # The kernel doubles both values to account for its own overhead.
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 40000
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60000


# ---- sockets adopted from the user


@BOTH
def test_a_user_s_bound_socket_is_taken_over(port, helpers, family):
    s = socket.socket({"v4": socket.AF_INET, "v6": socket.AF_INET6}[family], socket.SOCK_DGRAM)
    s.bind((helpers.loopback[family], 0))
    os.set_inheritable(s.fileno(), True)
    number, fd = s.getsockname()[1], s.detach()
    mine, other = port.adopt_udp(fd), port.open_udp(helpers.loopback[family])
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert helpers.port_of(mine.local_addr()) == number
    assert other.sendto(mine.local_addr(), b"hello") == 0
    port.poll_until_ready(mine)
    assert mine.recvfrom()[1] == b"hello"
    mine.close()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_what_came_before_a_socket_was_taken_over_is_handed_out(port, helpers):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.sendto(b"early", s.getsockname())
        mine = port.adopt_udp(os.dup(s.fileno()))
    assert port.poll_until_ready(mine) == 1
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
def test_what_is_no_bound_udp_socket_is_refused_and_stays_the_caller_s(port, what, error):
    make = {
        "a file": lambda: os.open("/dev/null", os.O_RDONLY),
        "a stream": lambda: socket.create_server(("127.0.0.1", 0)).detach(),
        "an unbound socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach(),
        "a socket of another family": lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].detach(),
        "a closed descriptor": lambda: 99999,
    }
    fd = make[what]()
    with pytest.raises(OSError) as e:
        port.adopt_udp(fd)
    assert e.value.errno == error
    if fd != 99999:
        os.close(fd)  # raises OSError if siwarp had closed the descriptor


def test_segments_are_not_merged_on_a_socket_whose_user_had_asked_for_that(port):
    udp_segment, udp_gro = 103, 104
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.IPPROTO_UDP, udp_gro, 1)
        to = s.getsockname()
        mine = port.adopt_udp(os.dup(s.fileno()))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_UDP, udp_segment, 100)
            sender.sendto(b"x" * 300, to)
        assert [mine.recvfrom()[0] for _ in range(4)] == [100, 100, 100, -errno.EAGAIN]


# ---- ICMP errors


@pytest.fixture
def socket_to_closed_port(port):
    """Return a socket connected to a port on which no socket listens, and that address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        dest = gone.getsockname()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(dest)
    return port.adopt_udp(s.detach()), dest


def test_sending_goes_on_after_an_icmp_error(socket_to_closed_port, helpers):
    mine, dest = socket_to_closed_port
    c = helpers.Counters()
    # The ICMP error of each send arrives before the next one: every send except the first meets an
    # error.
    assert [mine.sendto(helpers.siw_addr(*dest), b"x") for _ in range(5)] == [0] * 5
    assert c["icmp_errors"] == 4
    assert c["send_errors"] == 0


def test_receiving_goes_on_after_an_icmp_error(socket_to_closed_port, helpers, port):
    mine, dest = socket_to_closed_port
    c = helpers.Counters()
    assert mine.sendto(helpers.siw_addr(*dest), b"x") == 0
    port.poll_until_ready(mine)
    assert mine.recvfrom()[0] == -errno.EAGAIN
    assert c["icmp_errors"] == 1


def test_icmp_errors_are_not_reported_on_unconnected_sockets(port, helpers, socket_to_closed_port):
    dest = helpers.siw_addr(*socket_to_closed_port[1])
    a = port.open_udp()
    c = helpers.Counters()
    assert [a.sendto(dest, b"x") for _ in range(3)] == [0] * 3
    assert a.recvfrom()[0] == -errno.EAGAIN
    assert c["icmp_errors"] == 0


def test_an_error_queue_that_nobody_reads_does_not_keep_a_socket_ready(
    port, helpers, socket_to_closed_port
):
    dest = socket_to_closed_port[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
        s.sendto(b"x", dest)
        mine = port.adopt_udp(os.dup(s.fileno()))
    mine.sendto(helpers.siw_addr(*dest), b"x")
    for _ in range(40):
        for ready in port.poll():
            assert ready.recvfrom()[0] == -errno.EAGAIN
    assert port.wait(1000) == 0


def test_a_destination_without_a_route_is_an_error_of_that_send(run_in_namespace):
    run_in_namespace(
        "ip link set lo up",
        """
p = Port()
c = Counters()
a = p.open_udp("0.0.0.0")
assert a.sendto(siw_addr("192.0.2.1", 9), b"x") == -101, "ENETUNREACH"
assert c["icmp_errors"] == 0 and c["send_errors"] == 1
assert a.sendto(a.local_addr(), b"x") == 0
p.close()
""",
    )


# ---- the MTU of a route


def test_the_mtu_of_a_route_is_that_of_the_socket_s_address_and_loopback_s_only_within_the_host(
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
p = Port()
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
def test_what_the_kernel_drops_is_counted_when_the_socket_is_closed(port, helpers):
    c = helpers.Counters()
    a = port.open_udp()
    with helpers.temporary_setting("rcvbuf", 4096):
        b = port.open_udp()
    for _ in range(100):
        assert a.sendto(b.local_addr(), b"x" * 1000) == 0
    got = 0
    while b.recvfrom()[0] > 0:
        got += 1
    assert 0 < got < 100
    b.close()
    assert c["drop_rxq_overflow"] == 100 - got


def test_what_the_kernel_drops_is_counted_now_and_then_while_the_socket_is_open(port, helpers):
    c = helpers.Counters()
    a = port.open_udp()
    with helpers.temporary_setting("rcvbuf", 4096):
        b = port.open_udp()
    for _ in range(100):
        a.sendto(b.local_addr(), b"x" * 1000)
    got = b.drain() // 1000
    for _ in range(4096 * 33):
        if c["drop_rxq_overflow"]:
            break
        port.poll()
    assert c["drop_rxq_overflow"] == 100 - got
    b.close()
    assert c["drop_rxq_overflow"] == 100 - got


def test_drops_before_a_socket_was_taken_over_are_not_ours(port, helpers):
    c = helpers.Counters()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        for _ in range(100):
            s.sendto(b"x" * 1000, s.getsockname())
        port.adopt_udp(os.dup(s.fileno())).close()
    assert c["drop_rxq_overflow"] == 0


SLOW = "ip link set lo up; tc qdisc add dev lo root tbf rate 800kbit burst 3000 limit 1000000"


@pytest.mark.parametrize("state", ["cold", "hot", "armed"])
def test_a_full_send_buffer_wakes_the_sleeper_when_it_has_room(run_in_namespace, state):
    run_in_namespace(
        SLOW,
        f"""
p, other, c = Port(), Port(), Counters()
with temporary_setting("sndbuf", 4096):
    a = p.open_udp()
b = other.open_udp()
if {state!r} != "cold":
    b.sendto(a.local_addr(), b"x")
    wait_until(lambda: a in p.poll())
    a.drain()
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
assert 0.002 < time.monotonic() - start < 2.0, "it slept until there was room"
wait_until(lambda: a in p.poll())
assert wait_until(lambda: a.sendto(b.local_addr(), b"y" * 1000) == 0)
p.drain_ready_sockets()
assert p.wait(1000) == 0, "it wants to write no more"
p.close()
other.close()
""",
    )


@pytest.mark.parametrize("shared", [True, False])
def test_a_send_that_succeeds_on_a_shared_socket_wakes_blocked_senders(run_in_namespace, shared):
    # Another thread may have asked for writability first; nothing else would wake that thread.
    run_in_namespace(
        SLOW,
        f"""
p, other = Port(), Port()
with temporary_setting("sndbuf", 4096):
    a = p.open_udp()
b = other.open_udp()
if {shared}:
    lib.siw_llp_shared(a.c)
p.drain_ready_sockets()
for _ in range(100):
    if a.sendto(b.local_addr(), b"y" * 1000):
        break
assert wait_until(lambda: a.sendto(b.local_addr(), b"y") == 0)
assert p.wait(1000) == {int(shared)}
p.drain_ready_sockets()
assert p.wait(1000) == 0, "and once is enough"
p.close()
other.close()
""",
    )


def test_enobufs_is_taken_for_eagain_and_the_socket_handed_out_again_and_again(run_in_namespace):
    # Many fragments exceed twice the buffer: no event will report that there is room.
    run_in_namespace(
        "ip link set lo up mtu 1500",
        """
p, other, c = Port(), Port(), Counters()
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


def test_datagrams_travel_between_link_local_addresses_with_a_scope(run_in_namespace):
    run_in_namespace(
        "ip link set lo up; ip addr add fe80::1/64 dev lo nodad",
        """
p = Port()
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


@BOTH
@pytest.mark.parametrize(("bits", "marked"), [(0, False), (1, False), (2, False), (3, True)])
def test_ecn_is_sent_and_a_mark_is_told_with_the_datagram_that_has_it(
    port, helpers, family, bits, marked
):
    mine = port.open_udp(helpers.loopback[family])
    assert helpers.lib.siw_llp_udp_ecn(mine.c) == 0
    there = (helpers.loopback[family], helpers.port_of(mine.local_addr()))
    v6 = family == "v6"
    level = socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP
    kind = socket.AF_INET6 if v6 else socket.AF_INET
    with socket.socket(kind, socket.SOCK_DGRAM) as s:
        s.setsockopt(level, socket.IPV6_TCLASS if v6 else socket.IP_TOS, bits)
        s.setsockopt(level, socket.IPV6_RECVTCLASS if v6 else socket.IP_RECVTOS, 1)
        s.settimeout(5)
        s.sendto(b"x", there)
        port.poll_until_ready(mine)
        seg, source = helpers.ffi.new("uint32_t *"), helpers.ffi.new("struct siw_addr *")
        room = helpers.ffi.new("char[]", 100)
        assert helpers.lib.siw_llp_udp_recv_dense(mine.c, source, room, 100, seg) == 1
        assert helpers.lib.siw_llp_udp_ce(mine.c) == marked
        assert seg[0] == 1
        assert mine.sendto(source, b"y") == 0
        data, control, _, _ = s.recvmsg(10, 100)
        assert data == b"y"
        assert [c[2][0] for c in control if c[0] == level] == [2]
