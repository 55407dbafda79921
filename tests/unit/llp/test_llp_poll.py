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
    assert sender.sendto(sock.local_addr(), b"x") == 0
    port.poll_until_ready(sock)
    assert sock.drain() == 1


@pytest.fixture
def plain_sender():
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


def test_while_nothing_is_hot_each_poll_asks_epoll(port, helpers):
    port.open_udp()
    c = helpers.Counters()
    assert all(port.poll() == [] for _ in range(100))
    assert c["epoll_waits"] == 100


def test_a_hot_socket_is_handed_out_unasked_and_epoll_asked_every_32nd_time(
    port, helpers, plain_sender
):
    a = port.open_udp()
    make_hot(port, plain_sender, a)
    c = helpers.Counters()
    assert all(port.poll() == [a] for _ in range(ASK_EVERY * 10))
    assert c["epoll_waits"] == 10


def test_a_cold_socket_waits_for_microseconds_and_not_for_32_long_polls(helpers, plain_sender):
    with helpers.temporary_setting("hot_sockets", 1):
        port = helpers.Port()
    flooded, quiet = port.open_udp(), port.open_udp()
    make_hot(port, plain_sender, flooded)
    for _ in range(20):
        plain_sender.sendto(flooded.local_addr(), b"x")
        plain_sender.sendto(quiet.local_addr(), b"x")
        time.sleep(0.0001)  # stands for the time that a program spends between two polls
        assert port.poll() == [flooded, quiet]
        for s in (flooded, quiet):
            s.drain()
        assert port.poll() == [flooded]
    port.close()


def test_a_hot_socket_is_out_of_the_epoll_set(port, plain_sender):
    a = port.open_udp()
    make_hot(port, plain_sender, a)
    s = port.fill_waitset()
    assert [s.fds[i] for i in range(s.n - 1)] == [a.fd]
    info = Path(f"/proc/self/fdinfo/{s.fds[s.n - 1]}").read_text()
    watched = [int(line.split()[1]) for line in info.splitlines() if line.startswith("tfd:")]
    assert a.fd not in watched
    assert len(watched) == 1, "the wake descriptor"


def test_a_ping_pong_of_two_sockets_hardly_ever_asks_epoll(port, helpers):
    a, b = port.open_udp(), port.open_udp()
    a.sendto(b.local_addr(), b"x")
    make_hot(port, b, a)
    c = helpers.Counters()
    rounds = polls = 0
    while rounds < 1000:
        for s in port.poll():
            if s.recvfrom()[0] > 0:
                assert s.sendto((a if s is b else b).local_addr(), b"x") == 0
                rounds += 1
        polls += 1
    assert c["epoll_waits"] <= polls // ASK_EVERY + 1


def test_idle_cold_sockets_are_checked_less_and_less_often(port, helpers, plain_sender):
    """The interval between checks of an idle cold socket grows from 10 us to 20, 40 and 80 us."""
    hot, _cold = port.open_udp(), port.open_udp()
    make_hot(port, plain_sender, hot)
    c = helpers.Counters()
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
def test_no_more_sockets_are_hot_than_the_setting_says(helpers, plain_sender, most):
    with helpers.temporary_setting("hot_sockets", most):
        port = helpers.Port()
    socks = [port.open_udp() for _ in range(20)]
    for _ in range(5):
        for s in socks:
            plain_sender.sendto(s.local_addr(), b"x")
        for _ in range(ASK_EVERY + 1):
            for s in port.poll():
                s.drain()
        # The first sockets had data within fewer than 256 polls, so they stay hot.
        assert sorted(port.hot_fds()) == sorted(s.fd for s in socks[:most])
    port.close()


def test_a_hot_socket_that_had_nothing_for_256_polls_gives_up_its_place(helpers, plain_sender):
    with helpers.temporary_setting("hot_sockets", 2):
        port = helpers.Port()
    a, b, c = (port.open_udp() for _ in range(3))
    for s in (a, b):
        make_hot(port, plain_sender, s)
    make_hot(port, plain_sender, c)
    assert c.fd not in port.hot_fds()
    for _ in range(STALE):
        port.poll()
    make_hot(port, plain_sender, b)
    make_hot(port, plain_sender, c)
    assert sorted(port.hot_fds()) == sorted([b.fd, c.fd])
    make_hot(port, plain_sender, a)  # the poller still reports a cold socket
    port.close()


def test_a_hot_socket_that_is_idle_while_another_works_turns_cold(port, plain_sender):
    a, b = port.open_udp(), port.open_udp()
    make_hot(port, plain_sender, a)
    make_hot(port, plain_sender, b)
    for _ in range(COOL // 10 + 20):
        plain_sender.sendto(b.local_addr(), b"x")
        for _ in range(10):
            for s in port.poll():
                s.drain()
    assert port.hot_fds() == [b.fd]
    make_hot(port, plain_sender, a)
    assert sorted(port.hot_fds()) == sorted([a.fd, b.fd])


def test_a_hot_socket_stays_hot_while_nobody_has_anything(port, plain_sender):
    a = port.open_udp()
    make_hot(port, plain_sender, a)
    for _ in range(COOL * 5):
        assert port.poll() == [a]


def test_a_socket_that_wants_to_write_stays_hot(port, plain_sender):
    a, b = port.open_udp(), port.open_udp()
    make_hot(port, plain_sender, a)
    make_hot(port, plain_sender, b)
    a.want_write(True)
    for _ in range(COOL // 10 + 20):
        plain_sender.sendto(b.local_addr(), b"x")
        for _ in range(10):
            for s in port.poll():
                s.drain()
    assert sorted(port.hot_fds()) == sorted([a.fd, b.fd])
    a.want_write(False)


def test_a_datagram_that_comes_while_its_socket_turns_cold_is_handed_out(helpers, plain_sender):
    with helpers.temporary_setting("hot_sockets", 1):
        port = helpers.Port()
    a, b = port.open_udp(), port.open_udp()
    make_hot(port, plain_sender, a)
    for _ in range(STALE):
        port.poll()
    plain_sender.sendto(a.local_addr(), b"unread")
    make_hot(port, plain_sender, b)
    assert port.hot_fds() == [b.fd]
    port.poll_until_ready(a)
    assert a.recvfrom()[1] == b"unread"
    port.close()


# ---- the ring


@pytest.fixture
def busy_port(helpers, plain_sender):
    """A port whose only hot slot is occupied, so that all further sockets are cold."""
    with helpers.temporary_setting("hot_sockets", 1):
        port = helpers.Port()
    port.hot = port.open_udp()
    make_hot(port, plain_sender, port.hot)
    yield port
    port.close()


def test_a_cold_socket_is_handed_out_until_a_receive_said_eagain(busy_port, plain_sender):
    port, a = busy_port, busy_port.open_udp()
    for _ in range(3):
        plain_sender.sendto(a.local_addr(), b"x")
    port.poll_until_ready(a)
    for _ in range(3):
        assert a in port.poll()
        assert a.recvfrom()[0] == 1
    assert a in port.poll()
    assert a.recvfrom()[0] == -errno.EAGAIN
    assert all(a not in port.poll() for _ in range(100))


def test_a_cold_socket_is_handed_out_again_when_asked_for(busy_port, plain_sender):
    port, a = busy_port, busy_port.open_udp()
    assert all(a not in port.poll() for _ in range(50))
    a.resume()
    assert a in port.poll()
    assert a.recvfrom()[0] == -errno.EAGAIN
    assert a not in port.poll()


def test_the_ready_ring_is_fair(busy_port, plain_sender):
    port = busy_port
    socks = [port.open_udp() for _ in range(5)]
    for s in socks:
        plain_sender.sendto(s.local_addr(), b"x")
    port.poll_until_ready(socks[0])
    for _ in range(40):
        port.poll()
    # Each poll returns one cold socket besides the hot one; with nothing received, all cold ones
    # take equal turns.
    seen = [next(s for s in port.poll(2) if s is not port.hot) for _ in range(50)]
    assert all(seen.count(s) == 10 for s in socks)
    assert seen[:5] == seen[5:10]


@pytest.mark.parametrize("room", [1, 2, 3, 64])
def test_hot_sockets_and_the_ring_both_get_their_share_of_any_room(helpers, plain_sender, room):
    with helpers.temporary_setting("hot_sockets", 4):
        port = helpers.Port()
    hot, cold = [port.open_udp() for _ in range(4)], [port.open_udp() for _ in range(4)]
    for s in hot:
        make_hot(port, plain_sender, s)
    for s in cold:
        s.resume()
    seen = [s for _ in range(64) for s in port.poll(room)]
    assert len(seen) == 64 * min(room, 8)
    assert min(seen.count(s) for s in hot + cold) >= 64 * min(room, 8) // 16
    port.close()


@pytest.mark.parametrize("room", [4, 16, 64])
@pytest.mark.parametrize("hot", [1, 4])
def test_200_quiet_sockets_are_served_beside_one_that_floods(helpers, plain_sender, room, hot):
    with helpers.temporary_setting("hot_sockets", hot):
        port = helpers.Port()
    flooding, quiet = port.open_udp(), [port.open_udp() for _ in range(200)]
    make_hot(port, plain_sender, flooding)
    waiting, polls, served = set(quiet), 0, 0
    for s in quiet:
        plain_sender.sendto(s.local_addr(), b"hello")
    # The check comes within 32 polls and finds 64 sockets at a time; then the ring gets half of the
    # room.
    bound = ASK_EVERY + 200 // 64 + 1 + -(-200 // (room // 2)) * 2
    while waiting and polls <= bound:
        for _ in range(8):
            plain_sender.sendto(flooding.local_addr(), b"x" * 100)
        polls += 1
        for s in port.poll(room):
            if s is flooding:
                served += [s.recvfrom()[0] for _ in range(4)].count(100)
                s.resume()
            else:
                if s in waiting:
                    assert s.recvfrom()[1] == b"hello"
                    waiting.remove(s)
                assert s.recvfrom()[0] == -errno.EAGAIN
    assert not waiting, f"{len(waiting)} not served in {polls} polls"
    assert served >= polls, "the flooding one was served too"
    port.close()


# ---- handlers, closing


def test_the_handler_can_be_changed(port, helpers, plain_sender):
    a = port.open_udp()
    make_hot(port, plain_sender, a)
    port.socks[777] = a
    port.lib.siw_llp_set_handler(a.c, helpers.ffi.cast("void *", 777))
    handlers = helpers.ffi.new("struct siw_io_handler *[]", 8)
    assert port.lib.siw_llp_port_poll(port.c, handlers, 8) == 1
    assert int(helpers.ffi.cast("intptr_t", handlers[0])) == 777
    del port.socks[777]


@pytest.mark.parametrize("hot", [1, 16])
def test_sockets_may_be_closed_while_the_tokens_of_a_poll_are_served(helpers, plain_sender, hot):
    with helpers.temporary_setting("hot_sockets", hot):
        port = helpers.Port()
    for turn in range(20):
        socks = [port.open_udp() for _ in range(30)]
        for s in socks:
            plain_sender.sendto(s.local_addr(), b"x")
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


def test_no_descriptor_is_left_after_a_thousand_sockets_and_a_hundred_ports(helpers, plain_sender):
    before = helpers.open_fds()
    for _ in range(100):
        port = helpers.Port()
        socks = [port.open_udp() for _ in range(10)]
        for s in socks[:6]:
            make_hot(port, plain_sender, s)
        port.arm()
        port.close()
    assert helpers.open_fds() == before


def test_a_port_that_finds_no_descriptor_says_so_and_leaves_none(run_in_child):
    run_in_child("""
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
    p.open_udp()
    raise SystemExit("bound without a descriptor")
except OSError as e:
    assert e.errno == 24, e
p.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert len(open_fds()) == used
""")


def test_a_forked_child_that_closes_its_copies_leaves_the_parent_s_epoll_set_alone(run_in_child):
    run_in_child("""
p = Port()
a, b = p.open_udp(), p.open_udp()
pid = os.fork()
if pid == 0:
    p.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
for _ in range(50):
    assert p.poll() == []
assert a.sendto(b.local_addr(), b"x") == 0
p.poll_until_ready(b)
assert b.recvfrom()[1] == b"x"
p.close()
""")
