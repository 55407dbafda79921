"""The poller: when each socket is reported as ready, and at what cost."""

from __future__ import annotations

import errno
import socket
import time
from pathlib import Path

import pytest

ASK_EVERY, STALE, COOL = 32, 256, 1024


def make_hot(port, sender, sock):
    """Make a socket hot and drain it."""
    assert sender.sendto(sock.local(), b"x") == 0
    port.poll_until(sock)
    assert sock.drain() == 1


@pytest.fixture
def sender():
    """A plain socket that belongs to no port."""

    class Sender:
        def __init__(self):
            self.s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.s.bind(("127.0.0.1", 0))

        def sendto(self, dest, data):
            self.s.sendto(data, ("127.0.0.1", socket.ntohs(dest.port_be)))
            return 0

    one = Sender()
    with one.s:
        yield one


# ---- cost


def test_while_nothing_is_hot_each_poll_asks_epoll(port, kit):
    port.udp()
    c = kit.Counters()
    assert all(port.poll() == [] for _ in range(100))
    assert c["epoll_waits"] == 100


def test_a_hot_socket_is_handed_out_unasked_and_epoll_asked_every_32nd_time(port, kit, sender):
    a = port.udp()
    make_hot(port, sender, a)
    c = kit.Counters()
    assert all(port.poll() == [a] for _ in range(ASK_EVERY * 10))
    assert c["epoll_waits"] == 10


def test_a_cold_socket_waits_for_microseconds_and_not_for_32_long_polls(kit, sender):
    with kit.setting("hot_sockets", 1):
        port = kit.Port()
    flooded, quiet = port.udp(), port.udp()
    make_hot(port, sender, flooded)
    for _ in range(20):
        sender.sendto(flooded.local(), b"x")
        sender.sendto(quiet.local(), b"x")
        time.sleep(0.0001)  # stands for the time that a program spends between two polls
        assert port.poll() == [flooded, quiet]
        for s in (flooded, quiet):
            s.drain()
        assert port.poll() == [flooded]
    port.close()


def test_a_hot_socket_is_out_of_the_epoll_set(port, sender):
    a = port.udp()
    make_hot(port, sender, a)
    s = port.fill()
    assert [s.fds[i] for i in range(s.n - 1)] == [a.fd]
    info = Path(f"/proc/self/fdinfo/{s.fds[s.n - 1]}").read_text()
    watched = [int(line.split()[1]) for line in info.splitlines() if line.startswith("tfd:")]
    assert a.fd not in watched
    assert len(watched) == 1, "the wake descriptor"


def test_a_ping_pong_of_two_sockets_hardly_ever_asks_epoll(port, kit):
    a, b = port.udp(), port.udp()
    a.sendto(b.local(), b"x")
    make_hot(port, b, a)
    c = kit.Counters()
    rounds = polls = 0
    while rounds < 1000:
        for s in port.poll():
            if s.recvfrom()[0] > 0:
                assert s.sendto((a if s is b else b).local(), b"x") == 0
                rounds += 1
        polls += 1
    assert c["epoll_waits"] <= polls // ASK_EVERY + 1


def test_idle_cold_sockets_are_checked_less_and_less_often(port, kit, sender):
    """The interval between checks of an idle cold socket grows from 10 us to 20, 40 and 80 us."""
    hot, _cold = port.udp(), port.udp()
    make_hot(port, sender, hot)
    c = kit.Counters()
    began = time.monotonic()
    for _ in range(200):
        pause = time.monotonic() + 15e-6
        while time.monotonic() < pause:
            pass
        port.poll()
    asks = (time.monotonic() - began) / 80e-6 + 200 / ASK_EVERY
    assert c["epoll_waits"] <= asks + 5


# ---- hot and cold


@pytest.mark.parametrize("most", [1, 4, 16])
def test_no_more_sockets_are_hot_than_the_setting_says(kit, sender, most):
    with kit.setting("hot_sockets", most):
        port = kit.Port()
    socks = [port.udp() for _ in range(20)]
    for _ in range(5):
        for s in socks:
            sender.sendto(s.local(), b"x")
        for _ in range(ASK_EVERY + 1):
            for s in port.poll():
                s.drain()
        # The first sockets had data within fewer than 256 polls, so they stay hot.
        assert sorted(port.hot_fds()) == sorted(s.fd for s in socks[:most])
    port.close()


def test_a_hot_socket_that_had_nothing_for_256_polls_gives_up_its_place(kit, sender):
    with kit.setting("hot_sockets", 2):
        port = kit.Port()
    a, b, c = (port.udp() for _ in range(3))
    for s in (a, b):
        make_hot(port, sender, s)
    make_hot(port, sender, c)
    assert c.fd not in port.hot_fds()
    for _ in range(STALE):
        port.poll()
    make_hot(port, sender, b)
    make_hot(port, sender, c)
    assert sorted(port.hot_fds()) == sorted([b.fd, c.fd])
    make_hot(port, sender, a)  # the poller still reports a cold socket
    port.close()


def test_a_hot_socket_that_is_idle_while_another_works_turns_cold(port, sender):
    a, b = port.udp(), port.udp()
    make_hot(port, sender, a)
    make_hot(port, sender, b)
    for _ in range(COOL // 10 + 20):
        sender.sendto(b.local(), b"x")
        for _ in range(10):
            for s in port.poll():
                s.drain()
    assert port.hot_fds() == [b.fd]
    make_hot(port, sender, a)
    assert sorted(port.hot_fds()) == sorted([a.fd, b.fd])


def test_a_hot_socket_stays_hot_while_nobody_has_anything(port, sender):
    a = port.udp()
    make_hot(port, sender, a)
    for _ in range(COOL * 5):
        assert port.poll() == [a]


def test_a_socket_that_wants_to_write_stays_hot(port, sender):
    a, b = port.udp(), port.udp()
    make_hot(port, sender, a)
    make_hot(port, sender, b)
    a.want(True)
    for _ in range(COOL // 10 + 20):
        sender.sendto(b.local(), b"x")
        for _ in range(10):
            for s in port.poll():
                s.drain()
    assert sorted(port.hot_fds()) == sorted([a.fd, b.fd])
    a.want(False)


def test_a_datagram_that_comes_while_its_socket_turns_cold_is_handed_out(kit, sender):
    with kit.setting("hot_sockets", 1):
        port = kit.Port()
    a, b = port.udp(), port.udp()
    make_hot(port, sender, a)
    for _ in range(STALE):
        port.poll()
    sender.sendto(a.local(), b"unread")
    make_hot(port, sender, b)
    assert port.hot_fds() == [b.fd]
    port.poll_until(a)
    assert a.recvfrom()[1] == b"unread"
    port.close()


# ---- the ring


@pytest.fixture
def busy_port(kit, sender):
    """A port whose only hot slot is occupied, so that all further sockets are cold."""
    with kit.setting("hot_sockets", 1):
        port = kit.Port()
    port.hot = port.udp()
    make_hot(port, sender, port.hot)
    yield port
    port.close()


def test_a_cold_socket_is_handed_out_until_a_receive_said_eagain(busy_port, sender):
    port, a = busy_port, busy_port.udp()
    for _ in range(3):
        sender.sendto(a.local(), b"x")
    port.poll_until(a)
    for _ in range(3):
        assert a in port.poll()
        assert a.recvfrom()[0] == 1
    assert a in port.poll()
    assert a.recvfrom()[0] == -errno.EAGAIN
    assert all(a not in port.poll() for _ in range(100))


def test_a_cold_socket_is_handed_out_again_when_asked_for(busy_port, sender):
    port, a = busy_port, busy_port.udp()
    assert all(a not in port.poll() for _ in range(50))
    a.again()
    assert a in port.poll()
    assert a.recvfrom()[0] == -errno.EAGAIN
    assert a not in port.poll()


def test_the_ready_ring_is_fair(busy_port, sender):
    port = busy_port
    socks = [port.udp() for _ in range(5)]
    for s in socks:
        sender.sendto(s.local(), b"x")
    port.poll_until(socks[0])
    for _ in range(40):
        port.poll()
    # Each poll returns one cold socket besides the hot one; with nothing received, all cold ones
    # take equal turns.
    seen = [next(s for s in port.poll(2) if s is not port.hot) for _ in range(50)]
    assert all(seen.count(s) == 10 for s in socks)
    assert seen[:5] == seen[5:10]


@pytest.mark.parametrize("room", [1, 2, 3, 64])
def test_hot_sockets_and_the_ring_both_get_their_share_of_any_room(kit, sender, room):
    with kit.setting("hot_sockets", 4):
        port = kit.Port()
    hot, cold = [port.udp() for _ in range(4)], [port.udp() for _ in range(4)]
    for s in hot:
        make_hot(port, sender, s)
    for s in cold:
        s.again()
    seen = [s for _ in range(64) for s in port.poll(room)]
    assert len(seen) == 64 * min(room, 8)
    assert min(seen.count(s) for s in hot + cold) >= 64 * min(room, 8) // 16
    port.close()


@pytest.mark.parametrize("room", [4, 16, 64])
@pytest.mark.parametrize("hot", [1, 4])
def test_200_quiet_sockets_are_served_beside_one_that_floods(kit, sender, room, hot):
    with kit.setting("hot_sockets", hot):
        port = kit.Port()
    flooding, quiet = port.udp(), [port.udp() for _ in range(200)]
    make_hot(port, sender, flooding)
    waiting, polls, served = set(quiet), 0, 0
    for s in quiet:
        sender.sendto(s.local(), b"hello")
    # The check comes within 32 polls and finds 64 sockets at a time; then the ring gets half of the
    # room.
    bound = ASK_EVERY + 200 // 64 + 1 + -(-200 // (room // 2)) * 2
    while waiting and polls <= bound:
        for _ in range(8):
            sender.sendto(flooding.local(), b"x" * 100)
        polls += 1
        for s in port.poll(room):
            if s is flooding:
                served += [s.recvfrom()[0] for _ in range(4)].count(100)
                s.again()
            else:
                if s in waiting:
                    assert s.recvfrom()[1] == b"hello"
                    waiting.remove(s)
                assert s.recvfrom()[0] == -errno.EAGAIN
    assert not waiting, f"{len(waiting)} not served in {polls} polls"
    assert served >= polls, "the flooding one was served too"
    port.close()


# ---- handlers, closing


def test_the_handler_can_be_changed(port, kit, sender):
    a = port.udp()
    make_hot(port, sender, a)
    port.socks[777] = a
    port.lib.siw_llp_set_handler(a.c, kit.ffi.cast("void *", 777))
    handlers = kit.ffi.new("struct siw_io_handler *[]", 8)
    assert port.lib.siw_llp_port_poll(port.c, handlers, 8) == 1
    assert int(kit.ffi.cast("intptr_t", handlers[0])) == 777
    del port.socks[777]


@pytest.mark.parametrize("hot", [1, 16])
def test_sockets_may_be_closed_while_the_tokens_of_a_poll_are_served(kit, sender, hot):
    with kit.setting("hot_sockets", hot):
        port = kit.Port()
    for turn in range(20):
        socks = [port.udp() for _ in range(30)]
        for s in socks:
            sender.sendto(s.local(), b"x")
        handed, closed = [], set()
        for _ in range(40):
            for s in port.poll(8):
                if s in closed:
                    continue  # skips a socket that a handler has closed during this pass
                handed.append(s)
                # Close the socket itself and another one that this pass has or has not yet
                # reported.
                for victim in (s, socks[(socks.index(s) + turn) % 30]):
                    if victim not in closed:
                        victim.close()
                        closed.add(victim)
        assert handed
        for s in socks:
            if s not in closed:
                s.close()
        assert port.poll() == []
    port.close()


def test_a_port_without_sockets_hands_out_nothing(port):
    assert [port.poll() for _ in range(5)] == [[]] * 5


def test_no_descriptor_is_left_after_a_thousand_sockets_and_a_hundred_ports(kit, sender):
    before = kit.open_fds()
    for _ in range(100):
        port = kit.Port()
        socks = [port.udp() for _ in range(10)]
        for s in socks[:6]:
            make_hot(port, sender, s)
        port.arm()
        port.close()
    assert kit.open_fds() == before


def test_a_port_that_finds_no_descriptor_says_so_and_leaves_none(child):
    child("""
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = len(open_fds())
for spare in (0, 1):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
    try:
        Port()
        raise SystemExit("opened without descriptors")
    except OSError as e:
        assert e.errno == 24, e
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
p = Port()
try:
    p.udp()
    raise SystemExit("bound without a descriptor")
except OSError as e:
    assert e.errno == 24, e
p.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert len(open_fds()) == used
""")


def test_a_forked_child_that_closes_its_copies_leaves_the_parent_s_epoll_set_alone(child):
    child("""
p = Port()
a, b = p.udp(), p.udp()
pid = os.fork()
if pid == 0:
    p.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
for _ in range(50):
    assert p.poll() == []
assert a.sendto(b.local(), b"x") == 0
p.poll_until(b)
assert b.recvfrom()[1] == b"x"
p.close()
""")
