"""The poller: when each socket is reported as ready, and how many system calls the poller makes."""

from __future__ import annotations

import errno
import socket
import time
from pathlib import Path

import pytest

ASK_EVERY, STALE, COOL = 32, 256, 1024


def make_socket_hot(poller, sender, sock):
    """Make a socket hot by a datagram, and receive the datagram."""
    assert sender.sendto(sock.local_addr(), b"x") == 0
    poller.poll_until_ready(sock)
    assert sock.receive_all() == 1


@pytest.fixture
def plain_sender():
    """A sender with a plain UDP socket that belongs to no poller."""

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


def test_without_hot_sockets_each_poll_calls_epoll_wait(poller, llp_helpers):
    poller.open_udp()
    c = llp_helpers.Counters()
    assert all(poller.poll() == [] for _ in range(100))
    assert c["epoll_waits"] == 100


def test_a_hot_socket_is_reported_by_each_poll_and_epoll_called_by_every_32nd_poll(
    poller, llp_helpers, plain_sender
):
    a = poller.open_udp()
    make_socket_hot(poller, plain_sender, a)
    c = llp_helpers.Counters()
    assert all(poller.poll() == [a] for _ in range(ASK_EVERY * 10))
    assert c["epoll_waits"] == 10


def test_a_cold_socket_is_reported_within_microseconds_even_if_polls_are_rare(
    llp_helpers, plain_sender
):
    with llp_helpers.temporary_setting("hot_sockets", 1):
        poller = llp_helpers.Poller()
    flooded, quiet = poller.open_udp(), poller.open_udp()
    make_socket_hot(poller, plain_sender, flooded)
    for _ in range(20):
        plain_sender.sendto(flooded.local_addr(), b"x")
        plain_sender.sendto(quiet.local_addr(), b"x")
        # The sleep represents the time that a program spends between two polls.
        time.sleep(0.0001)
        assert poller.poll() == [flooded, quiet]
        for s in (flooded, quiet):
            s.receive_all()
        assert poller.poll() == [flooded]
    poller.close()


def test_a_hot_socket_is_removed_from_the_epoll_set(poller, plain_sender):
    a = poller.open_udp()
    make_socket_hot(poller, plain_sender, a)
    s = poller.fill_waitset()
    assert [s.fds[i] for i in range(s.n - 1)] == [a.fd]
    info = Path(f"/proc/self/fdinfo/{s.fds[s.n - 1]}").read_text()
    watched = [int(line.split()[1]) for line in info.splitlines() if line.startswith("tfd:")]
    assert a.fd not in watched
    assert len(watched) == 1, "the epoll set has more than the wake-up descriptor"


def test_a_ping_pong_between_two_hot_sockets_rarely_calls_epoll_wait(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    a.sendto(b.local_addr(), b"x")
    make_socket_hot(poller, b, a)
    c = llp_helpers.Counters()
    rounds = polls = 0
    while rounds < 1000:
        for s in poller.poll():
            if s.recvfrom()[0] > 0:
                assert s.sendto((a if s is b else b).local_addr(), b"x") == 0
                rounds += 1
        polls += 1
    assert c["epoll_waits"] <= polls // ASK_EVERY + 1


def test_the_interval_between_checks_of_idle_cold_sockets_grows(poller, llp_helpers, plain_sender):
    """The interval between checks of an idle cold socket grows from 10 us to 20, 40 and 80 us."""
    hot, _cold = poller.open_udp(), poller.open_udp()
    make_socket_hot(poller, plain_sender, hot)
    c = llp_helpers.Counters()
    began = time.monotonic()
    for _ in range(200):
        pause = time.monotonic() + 15e-6
        while time.monotonic() < pause:
            pass
        poller.poll()
    asks = (time.monotonic() - began) / 80e-6 + 200 / ASK_EVERY
    assert c["epoll_waits"] <= asks + 5


# ---- hot and cold


@pytest.mark.parametrize("most", [1, 4, 16])
def test_no_more_sockets_are_hot_than_the_setting_says(llp_helpers, plain_sender, most):
    with llp_helpers.temporary_setting("hot_sockets", most):
        poller = llp_helpers.Poller()
    socks = [poller.open_udp() for _ in range(20)]
    for _ in range(5):
        for s in socks:
            plain_sender.sendto(s.local_addr(), b"x")
        for _ in range(ASK_EVERY + 1):
            for s in poller.poll():
                s.receive_all()
        # Each of the first sockets had data less than 256 polls ago and therefore stays hot.
        assert sorted(poller.hot_fds()) == sorted(s.fd for s in socks[:most])
    poller.close()


def test_a_hot_socket_without_data_for_256_polls_gives_its_hot_slot_to_another_socket(
    llp_helpers, plain_sender
):
    with llp_helpers.temporary_setting("hot_sockets", 2):
        poller = llp_helpers.Poller()
    a, b, c = (poller.open_udp() for _ in range(3))
    for s in (a, b):
        make_socket_hot(poller, plain_sender, s)
    make_socket_hot(poller, plain_sender, c)
    assert c.fd not in poller.hot_fds()
    for _ in range(STALE):
        poller.poll()
    make_socket_hot(poller, plain_sender, b)
    make_socket_hot(poller, plain_sender, c)
    assert sorted(poller.hot_fds()) == sorted([b.fd, c.fd])
    make_socket_hot(poller, plain_sender, a)  # the poller still reports a cold socket
    poller.close()


def test_a_hot_socket_that_is_idle_while_another_is_busy_becomes_cold(poller, plain_sender):
    a, b = poller.open_udp(), poller.open_udp()
    make_socket_hot(poller, plain_sender, a)
    make_socket_hot(poller, plain_sender, b)
    for _ in range(COOL // 10 + 20):
        plain_sender.sendto(b.local_addr(), b"x")
        for _ in range(10):
            for s in poller.poll():
                s.receive_all()
    assert poller.hot_fds() == [b.fd]
    make_socket_hot(poller, plain_sender, a)
    assert sorted(poller.hot_fds()) == sorted([a.fd, b.fd])


def test_a_hot_socket_stays_hot_while_no_socket_has_data(poller, plain_sender):
    a = poller.open_udp()
    make_socket_hot(poller, plain_sender, a)
    for _ in range(COOL * 5):
        assert poller.poll() == [a]


def test_a_hot_socket_that_waits_for_buffer_space_stays_hot(poller, plain_sender):
    a, b = poller.open_udp(), poller.open_udp()
    make_socket_hot(poller, plain_sender, a)
    make_socket_hot(poller, plain_sender, b)
    a.want_write(True)
    for _ in range(COOL // 10 + 20):
        plain_sender.sendto(b.local_addr(), b"x")
        for _ in range(10):
            for s in poller.poll():
                s.receive_all()
    assert sorted(poller.hot_fds()) == sorted([a.fd, b.fd])
    a.want_write(False)


def test_a_socket_with_an_unread_datagram_that_becomes_cold_is_reported(llp_helpers, plain_sender):
    with llp_helpers.temporary_setting("hot_sockets", 1):
        poller = llp_helpers.Poller()
    a, b = poller.open_udp(), poller.open_udp()
    make_socket_hot(poller, plain_sender, a)
    for _ in range(STALE):
        poller.poll()
    plain_sender.sendto(a.local_addr(), b"unread")
    make_socket_hot(poller, plain_sender, b)
    assert poller.hot_fds() == [b.fd]
    poller.poll_until_ready(a)
    assert a.recvfrom()[1] == b"unread"
    poller.close()


# ---- the ring of ready sockets


@pytest.fixture
def poller_with_occupied_hot_slot(llp_helpers, plain_sender):
    """A poller whose only hot slot is occupied, so that all further sockets are cold."""
    with llp_helpers.temporary_setting("hot_sockets", 1):
        poller = llp_helpers.Poller()
    poller.hot = poller.open_udp()
    make_socket_hot(poller, plain_sender, poller.hot)
    yield poller
    poller.close()


def test_a_cold_socket_is_reported_until_a_receive_returns_eagain(
    poller_with_occupied_hot_slot, plain_sender
):
    poller, a = poller_with_occupied_hot_slot, poller_with_occupied_hot_slot.open_udp()
    for _ in range(3):
        plain_sender.sendto(a.local_addr(), b"x")
    poller.poll_until_ready(a)
    for _ in range(3):
        assert a in poller.poll()
        assert a.recvfrom()[0] == 1
    assert a in poller.poll()
    assert a.recvfrom()[0] == -errno.EAGAIN
    assert all(a not in poller.poll() for _ in range(100))


def test_a_resumed_cold_socket_is_reported_again(poller_with_occupied_hot_slot, plain_sender):
    poller, a = poller_with_occupied_hot_slot, poller_with_occupied_hot_slot.open_udp()
    assert all(a not in poller.poll() for _ in range(50))
    a.resume()
    assert a in poller.poll()
    assert a.recvfrom()[0] == -errno.EAGAIN
    assert a not in poller.poll()


def test_polls_report_ready_cold_sockets_in_turn(poller_with_occupied_hot_slot, plain_sender):
    poller = poller_with_occupied_hot_slot
    socks = [poller.open_udp() for _ in range(5)]
    for s in socks:
        plain_sender.sendto(s.local_addr(), b"x")
    poller.poll_until_ready(socks[0])
    for _ in range(40):
        poller.poll()
    # Each poll returns one cold socket besides the hot socket; if no datagram is received, the
    # polls return all cold sockets equally often.
    seen = [next(s for s in poller.poll(2) if s is not poller.hot) for _ in range(50)]
    assert all(seen.count(s) == 10 for s in socks)
    assert seen[:5] == seen[5:10]


@pytest.mark.parametrize("room", [1, 2, 3, 64])
def test_hot_and_cold_sockets_both_get_a_share_of_each_poll(llp_helpers, plain_sender, room):
    with llp_helpers.temporary_setting("hot_sockets", 4):
        poller = llp_helpers.Poller()
    hot, cold = [poller.open_udp() for _ in range(4)], [poller.open_udp() for _ in range(4)]
    for s in hot:
        make_socket_hot(poller, plain_sender, s)
    for s in cold:
        s.resume()
    seen = [s for _ in range(64) for s in poller.poll(room)]
    assert len(seen) == 64 * min(room, 8)
    assert min(seen.count(s) for s in hot + cold) >= 64 * min(room, 8) // 16
    poller.close()


@pytest.mark.parametrize("room", [4, 16, 64])
@pytest.mark.parametrize("hot", [1, 4])
def test_200_quiet_sockets_are_reported_beside_a_socket_with_constant_traffic(
    llp_helpers, plain_sender, room, hot
):
    with llp_helpers.temporary_setting("hot_sockets", hot):
        poller = llp_helpers.Poller()
    flooding, quiet = poller.open_udp(), [poller.open_udp() for _ in range(200)]
    make_socket_hot(poller, plain_sender, flooding)
    waiting, polls, served = set(quiet), 0, 0
    for s in quiet:
        plain_sender.sendto(s.local_addr(), b"hello")
    # epoll is called at least in every 32nd poll, and reports up to 64 of the 200 sockets.
    # At least half of the handlers that a poll returns are those of sockets that epoll reported.
    bound = ASK_EVERY + 200 // 64 + 1 + -(-200 // (room // 2)) * 2
    while waiting and polls <= bound:
        for _ in range(8):
            plain_sender.sendto(flooding.local_addr(), b"x" * 100)
        polls += 1
        for s in poller.poll(room):
            if s is flooding:
                served += [s.recvfrom()[0] for _ in range(4)].count(100)
                s.resume()
            else:
                if s in waiting:
                    assert s.recvfrom()[1] == b"hello"
                    waiting.remove(s)
                assert s.recvfrom()[0] == -errno.EAGAIN
    assert not waiting, f"{len(waiting)} sockets were not reported in {polls} polls"
    assert served >= polls, "the socket with constant traffic was not received from"
    poller.close()


# ---- handlers and closing


def test_the_handler_of_a_socket_can_be_changed(poller, llp_helpers, plain_sender):
    a = poller.open_udp()
    make_socket_hot(poller, plain_sender, a)
    poller.socks[777] = a
    poller.lib.siw_llp_set_handler(a.c, llp_helpers.ffi.cast("void *", 777))
    handlers = llp_helpers.ffi.new("struct siw_io_handler *[]", 8)
    assert poller.lib.siw_llp_poller_poll(poller.c, handlers, 8) == 1
    assert int(llp_helpers.ffi.cast("intptr_t", handlers[0])) == 777
    del poller.socks[777]


@pytest.mark.parametrize("hot", [1, 16])
def test_sockets_may_be_closed_while_the_results_of_a_poll_are_handled(
    llp_helpers, plain_sender, hot
):
    with llp_helpers.temporary_setting("hot_sockets", hot):
        poller = llp_helpers.Poller()
    for turn in range(20):
        socks = [poller.open_udp() for _ in range(30)]
        for s in socks:
            plain_sender.sendto(s.local_addr(), b"x")
        handed, closed = [], set()
        for _ in range(40):
            for s in poller.poll(8):
                if s in closed:
                    # The socket has been closed earlier in this pass over the poll's results.
                    continue
                handed.append(s)
                # The test closes the reported socket and another socket of this poll or a later
                # poll.
                for victim in (s, socks[(socks.index(s) + turn) % 30]):
                    if victim not in closed:
                        victim.close()
                        closed.add(victim)
        assert handed
        for s in socks:
            if s not in closed:
                s.close()
        assert poller.poll() == []
    poller.close()


def test_a_poll_of_a_poller_without_sockets_reports_nothing(poller):
    assert [poller.poll() for _ in range(5)] == [[]] * 5


def test_opening_a_thousand_sockets_and_a_hundred_pollers_leaks_no_descriptor(
    llp_helpers, plain_sender
):
    before = llp_helpers.list_open_descriptors()
    for _ in range(100):
        poller = llp_helpers.Poller()
        socks = [poller.open_udp() for _ in range(10)]
        for s in socks[:6]:
            make_socket_hot(poller, plain_sender, s)
        poller.arm()
        poller.close()
    assert set(llp_helpers.list_open_descriptors()) <= set(before)


def test_opening_a_poller_without_free_descriptors_fails_with_emfile_without_a_leak(run_in_child):
    run_in_child("""
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = len(list_open_descriptors())
for spare in (0, 1):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
    try:
        Poller()
        raise SystemExit("opened without descriptors")
    except OSError as e:
        assert e.errno == 24, e
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
p = Poller()
try:
    p.open_udp()
    raise SystemExit("bound without a descriptor")
except OSError as e:
    assert e.errno == 24, e
p.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert len(list_open_descriptors()) == used
""")


def test_closing_a_poller_in_a_forked_child_does_not_change_the_parents_epoll_set(run_in_child):
    run_in_child("""
p = Poller()
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
