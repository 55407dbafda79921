"""Waits for sockets, which must end if and only if a socket is ready."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pace import scale_limit

EACH_SOCKET_STATE = pytest.mark.parametrize("state", ["cold", "hot", "armed"])


def bring_socket_to_poll_state(poller, sender, sock, state):
    """Make a socket cold, hot, or hot while the poller is armed."""
    if state != "cold":
        sender.sendto(sock.local_addr(), b"x")
        poller.poll_until_ready(sock)
        sock.receive_all()
        assert poller.hot_fds() == [sock.fd]
    poller.drain_ready_sockets()
    if state == "armed":
        poller.arm()
    assert poller.lib.siw_llp_poller_is_armed(poller.c) == (state == "armed")


@pytest.fixture
def second_poller(llp_helpers):
    p = llp_helpers.Poller()
    yield p
    p.close()


@EACH_SOCKET_STATE
@pytest.mark.parametrize("ms", [0, 5, 50])
def test_a_wait_for_sockets_ends_at_its_time_out(poller, second_poller, state, ms):
    bring_socket_to_poll_state(poller, second_poller.open_udp(), poller.open_udp(), state)
    start = time.monotonic()
    assert poller.wait(ms * 1000) == 0
    assert ms / 1000 <= time.monotonic() - start < ms / 1000 + scale_limit(1)


@EACH_SOCKET_STATE
def test_a_wait_for_sockets_ends_when_a_datagram_arrives(poller, second_poller, state):
    sender, a = second_poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, a, state)
    t = threading.Timer(0.05, lambda: sender.sendto(a.local_addr(), b"wake up"))
    t.start()
    start = time.monotonic()
    assert poller.wait(10_000_000) == 1
    assert time.monotonic() - start < 5
    t.join()
    poller.poll_until_ready(a)
    assert a.recvfrom()[1] == b"wake up"


@EACH_SOCKET_STATE
def test_a_wait_for_sockets_ends_immediately_if_a_datagram_is_queued(poller, second_poller, state):
    sender, a = second_poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, a, state)
    sender.sendto(a.local_addr(), b"x")
    assert poller.wait(-1) == 1


@EACH_SOCKET_STATE
def test_a_wait_for_sockets_ends_when_a_connection_request_arrives(poller, second_poller, state):
    bring_socket_to_poll_state(poller, second_poller.open_udp(), poller.open_udp(), state)
    listener = poller.listen()
    asleep = poller.fill_waitset()
    client = second_poller.connect(listener.local_addr())
    assert poller.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1
    poller.poll_until_ready(listener)
    poller.accept(listener)
    client.close()


def test_a_wake_call_of_another_thread_ends_a_wait_for_sockets(poller):
    waker = threading.Timer(0.05, poller.wake)
    waker.start()
    start = time.monotonic()
    assert poller.wait(10_000_000) == 1
    waker.join()
    assert 0.03 < time.monotonic() - start < 5


def test_a_wake_call_ends_the_next_waits_until_a_poll_clears_the_wake_up(poller):
    poller.wake()
    poller.wake()
    assert poller.wait(10_000_000) == 1
    assert poller.wait(10_000_000) == 1, "the wake-up was cleared without a poll"
    poller.poll()
    assert poller.wait(1000) == 0


def test_a_wake_call_ends_a_later_wait_on_a_wait_set_that_was_filled_before_the_call(poller):
    """Check a thread that falls asleep only after another thread has polled the poller."""
    asleep = poller.fill_waitset()
    poller.wake()
    poller.poll()
    assert poller.lib.siw_llp_wait(asleep, -1, 10_000_000) == 1
    assert poller.wait(1000) == 0


def test_a_wake_call_ends_every_wait_in_progress(poller):
    got, begun = [], threading.Barrier(5)

    def wait_in_thread(asleep):
        begun.wait()
        got.append(poller.lib.siw_llp_wait(asleep, -1, 10_000_000))

    threads = [
        threading.Thread(target=wait_in_thread, args=(poller.fill_waitset(),)) for _ in range(4)
    ]
    for t in threads:
        t.start()
    begun.wait()
    time.sleep(0.05)
    poller.wake()
    for _ in range(50):
        # A poll must not consume the wake-up of threads that still wait.
        poller.poll()
    for t in threads:
        t.join()
    assert got == [1] * 4
    poller.poll()
    assert poller.wait(1000) == 0


def test_an_event_on_an_additional_descriptor_ends_a_wait_for_sockets(poller, llp_helpers):
    fd = llp_helpers.lib.siw_llp_event_fd_open()
    assert poller.wait(1000, fd) == 0
    llp_helpers.lib.siw_llp_event_fd_set(fd)
    llp_helpers.lib.siw_llp_event_fd_set(fd)
    assert poller.wait(-1, fd) == 1
    llp_helpers.lib.siw_llp_event_fd_clear(fd)
    # Clearing an event that is already clear does not block.
    llp_helpers.lib.siw_llp_event_fd_clear(fd)
    assert poller.wait(1000, fd) == 0
    assert not os.get_inheritable(fd)
    llp_helpers.lib.siw_llp_event_fd_close(fd)
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_wait_with_an_empty_wait_set_ends_by_time_out_or_additional_descriptor(
    poller, llp_helpers
):
    nothing, fd = (
        llp_helpers.ffi.new("struct siw_llp_waitset *"),
        llp_helpers.lib.siw_llp_event_fd_open(),
    )
    start = time.monotonic()
    assert llp_helpers.lib.siw_llp_wait(nothing, fd, 20_000) == 0
    assert time.monotonic() - start >= 0.02
    llp_helpers.lib.siw_llp_event_fd_set(fd)
    assert llp_helpers.lib.siw_llp_wait(nothing, fd, -1) == 1
    llp_helpers.lib.siw_llp_event_fd_close(fd)


def test_a_signal_ends_a_wait_for_sockets_with_eintr(run_in_child):
    run_in_child("""
p = Poller()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05)
assert p.wait(10_000_000) == -4, "EINTR"
p.close()
""")


def test_a_poll_after_a_wait_that_a_hot_socket_ended_does_not_call_epoll_wait(
    poller, llp_helpers, second_poller
):
    sender, a = second_poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, a, "hot")
    for turn in range(321):
        if turn == 1:
            # The first iteration is not counted, because no wait has ended before it.
            c = llp_helpers.Counters()
        sender.sendto(a.local_addr(), b"x")
        assert poller.wait(-1) == 1
        assert poller.poll() == [a]
        assert a.receive_all() == 1
    assert c["epoll_waits"] == 10, (
        "epoll_wait was called although the hot socket had ended the wait"
    )


def test_a_cold_socket_is_reported_soon_after_a_wait_that_the_socket_ended(poller, second_poller):
    sender, a, b = second_poller.open_udp(), poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, a, "hot")
    sender.sendto(b.local_addr(), b"x")
    turns = 0
    while b not in (poller.poll() if poller.wait(-1) == 1 else []):
        assert a.receive_all() == 0
        turns += 1
    assert turns <= 2
    assert b.receive_all() == 1


# ---- activity of other threads during a wait


@EACH_SOCKET_STATE
def test_arming_or_disarming_a_poller_during_a_wait_hides_no_datagram(poller, second_poller, state):
    sender, a = second_poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, a, state)
    asleep = poller.fill_waitset()
    poller.disarm()
    sender.sendto(a.local_addr(), b"x")
    assert poller.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1
    a.receive_all()
    poller.drain_ready_sockets()
    asleep = poller.fill_waitset()
    poller.arm()
    sender.sendto(a.local_addr(), b"x")
    assert poller.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1


def test_a_socket_that_becomes_hot_during_a_wait_still_ends_the_wait(poller, second_poller):
    sender, a = second_poller.open_udp(), poller.open_udp()
    # A cold socket is watched through epoll.
    asleep = poller.fill_waitset()
    sender.sendto(a.local_addr(), b"x")
    # A poll of another thread consumes the event and the epoll edge of the socket.
    poller.poll_until_ready(a)
    a.receive_all()
    sender.sendto(a.local_addr(), b"y")
    assert poller.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1


@pytest.mark.parametrize("armed", [False, True])
def test_a_cold_socket_with_an_unread_datagram_ends_all_waits(llp_helpers, second_poller, armed):
    with llp_helpers.temporary_setting("hot_sockets", 1):
        poller = llp_helpers.Poller()
    sender, hot, a = second_poller.open_udp(), poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, hot, "armed" if armed else "hot")
    asleep = poller.fill_waitset()
    for _ in range(2):
        sender.sendto(a.local_addr(), b"x")
    poller.poll_until_ready(a)
    # One datagram is left unread, and the epoll edge of the socket is consumed.
    assert a.recvfrom()[0] == 1
    assert poller.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1, "the earlier wait did not end"
    for _ in range(3):
        poller.poll()
        assert poller.wait(5_000_000) == 1, "the new wait did not end"
    assert a.receive_all() == 1
    poller.drain_ready_sockets()
    assert poller.wait(1000) == 0
    poller.close()


def test_a_hot_socket_with_an_unread_datagram_ends_waits_on_an_armed_poller(poller, second_poller):
    sender, a = second_poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, a, "armed")
    for _ in range(2):
        sender.sendto(a.local_addr(), b"x")
    poller.poll_until_ready(a)
    assert a.recvfrom()[0] == 1
    for _ in range(3):
        poller.poll()
        assert poller.wait(5_000_000) == 1
    a.receive_all()
    poller.drain_ready_sockets()
    assert poller.wait(1000) == 0


@pytest.mark.parametrize("state", ["hot", "armed"])
def test_a_hot_socket_that_was_not_read_until_eagain_ends_all_waits(poller, second_poller, state):
    sender, a = second_poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, a, state)
    asleep = poller.fill_waitset()
    sender.sendto(a.local_addr(), b"x")
    poller.poll_until_ready(a)
    # The test reads the last datagram without a further receive that returns EAGAIN.
    assert a.recvfrom()[0] == 1
    poller.wake_threads_for_remaining_work()
    assert poller.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1, "the earlier wait did not end"
    poller.arm()
    assert poller.wait(5_000_000) == 1, "the new wait did not end"
    poller.drain_ready_sockets()
    asleep = poller.fill_waitset()
    poller.wake_threads_for_remaining_work()
    assert poller.lib.siw_llp_wait(asleep, -1, 1000) == 0
    poller.wake_threads_for_remaining_work(more=True)
    assert poller.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1


def test_want_write_wakes_a_thread_that_waits_on_the_hot_sockets(poller, second_poller):
    sender, a = second_poller.open_udp(), poller.open_udp()
    bring_socket_to_poll_state(poller, sender, a, "hot")
    asleep = poller.fill_waitset()
    t = threading.Timer(0.05, lambda: a.want_write(True))
    t.start()
    assert poller.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1
    t.join()
    s = poller.fill_waitset()
    assert [s.out[i] for i in range(s.n)] == [True, False]
    a.want_write(False)
    poller.poll()
    s = poller.fill_waitset()
    assert [s.out[i] for i in range(s.n)] == [False, False]


N = 6
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, N - 1), st.integers(1, 3)),
        st.tuples(st.just("serve"), st.sampled_from([1, 2, 3, 64]), st.integers(0, 2)),
        st.tuples(st.just("spin"), st.sampled_from([1, 31, 300, 1100]), st.just(0)),
        st.tuples(
            st.sampled_from(["arm", "disarm", "fill", "wake", "again"]), st.just(0), st.just(0)
        ),
    ),
    max_size=30,
)


# The fixture `llp_helpers` has no state, so all examples may share the fixture.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=OPS, hot=st.integers(1, 4))
def test_no_order_of_polls_arming_and_waits_loses_a_datagram(llp_helpers, ops, hot):
    with llp_helpers.temporary_setting("hot_sockets", hot):
        poller = llp_helpers.Poller()
    other = llp_helpers.Poller()
    try:
        sender = other.open_udp()
        socks = [poller.open_udp() for _ in range(N)]
        unread = dict.fromkeys(socks, 0)
        asleep = poller.fill_waitset()

        def receive_from_ready_sockets(room, most):
            """Receive at most `most` datagrams from each ready socket, or all if `most` is 0."""
            for s in poller.poll(room):
                for _ in range(most or 1000):
                    rv = s.recvfrom()[0]
                    if rv == -errno.EAGAIN:
                        assert unread[s] == 0
                        break
                    assert rv == 1
                    unread[s] -= 1

        for what, x, y in ops:
            if what == "send":
                for _ in range(y):
                    assert sender.sendto(socks[x].local_addr(), b"x") == 0
                unread[socks[x]] += y
            elif what == "serve":
                receive_from_ready_sockets(x, y)
            elif what == "spin":
                for _ in range(x):
                    receive_from_ready_sockets(64, 1)
            elif what == "fill":
                asleep = poller.fill_waitset()
            elif what == "again":
                socks[0].resume()
            else:
                getattr(poller, what)()
            if any(unread.values()):
                # A new wait and the wait with the earlier wait set must both end.
                assert poller.wait(2_000_000) == 1
                assert poller.lib.siw_llp_wait(asleep, -1, 2_000_000) == 1
        for _ in range(400):
            receive_from_ready_sockets(64, 0)
        assert not any(unread.values()), "the socket of an unread datagram was not reported"
        assert poller.wait(0) == 0, "the wait ended although no datagram is unread"
    finally:
        poller.close()
        other.close()


class PollerThreads:
    """Threads that poll, wait, wake or request writability on the sockets of one poller."""

    def __init__(self, poller, sockets):
        self.poller = poller
        self.lock = threading.Lock()
        self.socks = [poller.open_udp() for _ in range(sockets)]
        self.addrs = [s.local_addr() for s in self.socks]
        self.got = [0] * sockets
        self.failed = []
        self.done = threading.Event()

    def make_thread(self, what, *args):
        def run_and_keep_exception():
            try:
                what(*args)
            except BaseException as e:
                self.failed.append(e)
                raise

        return threading.Thread(target=run_and_keep_exception)

    def receive_from_ready_sockets(self, most):
        for s in self.poller.poll(16):
            for _ in range(most):
                rv = s.recvfrom(64)[0]
                if rv < 0:
                    assert rv == -errno.EAGAIN
                    break
                self.got[self.socks.index(s)] += 1

    def wait_and_receive_until_done(self, armed):
        while not self.done.is_set():
            with self.lock:
                (self.poller.arm if armed else self.poller.disarm)()
                self.receive_from_ready_sockets(3)
                asleep = self.poller.fill_waitset()
            rv = self.poller.lib.siw_llp_wait(asleep, -1, 5_000_000)
            assert rv == 1, "a wait lasted 5 s although datagrams arrived"

    def poll_and_receive_until_done(self):
        while not self.done.is_set():
            for _ in range(20):
                with self.lock:
                    self.receive_from_ready_sockets(2)
            time.sleep(0.002)

    def send_round_robin(self, first, own, total, senders):
        # At most 100 datagrams are in flight, so that no socket buffer overflows.
        for i in range(total):
            assert own.sendto(self.addrs[(i + first) % len(self.addrs)], b"x") == 0
            while i * senders - sum(self.got) > 100:
                time.sleep(0.0005)
                assert not self.failed

    def toggle_want_write(self):
        while not self.done.is_set():
            for s in self.socks:
                s.want_write(True)
                s.want_write(False)
            self.poller.wake()
            time.sleep(0.001)

    def stop_threads(self, threads):
        self.done.set()
        for t in threads:
            while t.is_alive():
                self.poller.wake()
                t.join(0.01)


def test_threads_that_send_poll_wait_and_wake_on_one_poller_lose_no_datagram(llp_helpers):
    """Two threads wait, one polls with pauses, three send, and one requests writability."""
    with llp_helpers.temporary_setting("hot_sockets", 2):
        poller = llp_helpers.Poller()
    outside = llp_helpers.Poller()
    total, n = 1500, 3
    crowd = PollerThreads(poller, 8)
    senders = [
        crowd.make_thread(crowd.send_round_robin, k, outside.open_udp(), total, n) for k in range(n)
    ]
    others = [
        crowd.make_thread(crowd.wait_and_receive_until_done, armed) for armed in (True, False)
    ]
    others += [
        crowd.make_thread(crowd.poll_and_receive_until_done),
        crowd.make_thread(crowd.toggle_want_write),
    ]
    for t in senders + others:
        t.start()
    for t in senders:
        t.join()
    try:
        llp_helpers.wait_until(lambda: sum(crowd.got) == total * n or crowd.failed, 20)
    finally:
        crowd.stop_threads(others)
    assert not crowd.failed
    assert sum(crowd.got) == total * n
    poller.close()
    outside.close()
