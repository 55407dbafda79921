"""TCP sockets that move to another poller: no octet, no event and no timer is lost."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from scapy.layers.inet import TCP
from unit.llp.llp_harness import LlpSocket, Poller, addr_port, wait_any
from unit.llp.test_llp_capture import (
    OCTETS,
    assert_sequence_numbers_continue,
    capture_to_file,
    read_packets,
    transfer_stream,
)
from unit.llp.test_llp_faults import temporarily_install_fault_plan

from siwarp.inspect import tcp_streams

EACH_STATE = pytest.mark.parametrize("state", ["cold", "ready", "hot", "armed"])
#: Times of the monotonic clock in ns.
PAST, FAR_FUTURE = 1, 1 << 62


@pytest.fixture
def other_poller(llp_helpers: SimpleNamespace) -> Iterator[Poller]:
    p = llp_helpers.Poller()
    yield p
    p.close()


def bring_stream_to_poll_state(poller: Poller, a: LlpSocket, b: LlpSocket, state: str) -> None:
    """Make `b` cold, cold and marked ready, hot, or hot while the poller is armed.

    No octet is left. A socket stays cold until octets arrive.
    """
    poller.drain_ready_sockets()
    if state in {"hot", "armed"}:
        assert a.send(b"x") == 1
        poller.wait_until_socket_ready(b)
        assert b.receive_all() == 1
        assert b.fd in poller.hot_fds()
    if state == "armed":
        poller.arm()
    if state == "ready":
        b.resume()


@EACH_STATE
def test_octets_that_arrived_before_a_move_are_reported_by_the_new_poller(
    poller: Poller, other_poller: Poller, state: str
) -> None:
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, a, b, state)
    assert a.send(b"unread") == 6
    b.move_to(other_poller)
    other_poller.wait_until_socket_ready(b)
    assert b.recv()[1] == b"unread"
    assert b.recv()[0] == -errno.EAGAIN
    poller.drain_ready_sockets()  # fails if the former poller still reports the socket


@EACH_STATE
def test_octets_that_arrive_after_a_move_end_a_wait_on_the_new_poller(
    poller: Poller, other_poller: Poller, state: str
) -> None:
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, a, b, state)
    asleep = other_poller.fill_waitset()
    b.move_to(other_poller)
    assert a.send(b"later") == 5
    assert other_poller.lib.siw_llp_wait(asleep, -1, 10_000_000) == 1
    other_poller.wait_until_socket_ready(b)
    assert b.recv()[1] == b"later"


@EACH_STATE
def test_octets_that_arrive_while_a_socket_is_in_no_poller_are_reported_afterwards(
    poller: Poller, other_poller: Poller, state: str
) -> None:
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, a, b, state)
    b.leave_poller()
    assert a.send(b"between") == 7
    assert b.join_poller(other_poller) == 0
    other_poller.wait_until_socket_ready(b)
    assert b.recv()[1] == b"between"


def test_an_idle_socket_is_not_reported_after_a_move(poller: Poller, other_poller: Poller) -> None:
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, a, b, "hot")
    b.move_to(other_poller)
    assert all(b not in other_poller.poll() for _ in range(100))
    assert other_poller.wait(1000) == 0
    assert other_poller.hot_fds() == []


def test_a_socket_that_was_marked_ready_without_octets_in_the_kernel_is_still_ready(
    poller: Poller, other_poller: Poller
) -> None:
    """Check a socket whose octets the upper layer has read but not handled."""
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, a, b, "ready")
    asleep = other_poller.fill_waitset()
    b.move_to(other_poller)
    assert other_poller.lib.siw_llp_wait(asleep, -1, 10_000_000) == 1
    assert other_poller.wait(10_000_000) == 1
    assert b in other_poller.poll()
    assert b.recv()[0] == -errno.EAGAIN
    assert b not in other_poller.poll()


def test_a_partly_read_hot_socket_is_ready_after_a_move(
    poller: Poller, other_poller: Poller
) -> None:
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, a, b, "hot")
    assert a.send(b"12") == 2
    poller.wait_until_socket_ready(b)
    assert b.recv(1)[1] == b"1"
    b.move_to(other_poller)
    assert b in other_poller.poll()
    assert b.recv()[1] == b"2"


def test_the_end_of_a_stream_is_reported_by_the_new_poller(
    poller: Poller, other_poller: Poller
) -> None:
    a, b = poller.connected_pair()
    b.move_to(other_poller)
    a.close()
    other_poller.wait_until_socket_ready(b)
    assert b.recv()[0] == 0


def send_until_socket_buffer_is_full(a: LlpSocket) -> int:
    """Send until the socket is full; return the number of octets sent."""
    sent = 0
    while (rv := a.send(bytes(1 << 16))) > 0:
        sent += rv
    assert rv == -errno.EAGAIN
    return sent


def receive_and_discard_octets(poller: Poller, b: LlpSocket, octets: int) -> None:
    """Receive exactly this number of octets."""
    while octets:
        rv = b.recv()[0]
        if rv == -errno.EAGAIN:
            poller.wait_until_socket_ready(b)
        else:
            assert 0 < rv <= octets
            octets -= rv


@pytest.mark.parametrize("state", ["cold", "hot"])
@pytest.mark.parametrize("emptied", ["before", "between", "after"])
def test_a_full_stream_that_moves_is_reported_when_it_has_space(
    poller: Poller, other_poller: Poller, state: str, emptied: str
) -> None:
    """Check space that appears before the socket leaves, in no poller, and after it has joined."""
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, b, a, state)
    sent = send_until_socket_buffer_is_full(a)
    if emptied == "before":
        receive_and_discard_octets(poller, b, sent)
    a.leave_poller()
    if emptied == "between":
        receive_and_discard_octets(poller, b, sent)
    assert a.join_poller(other_poller) == 0
    if emptied == "after":
        receive_and_discard_octets(poller, b, sent)
    other_poller.wait_until_socket_ready(a)
    assert a.send(b"x") == 1
    a.want_write(False)


def test_a_paused_socket_that_moves_reports_octets_only_after_it_is_resumed(
    poller: Poller, other_poller: Poller
) -> None:
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, a, b, "hot")
    b.pause()
    assert a.send(b"held") == 4
    b.move_to(other_poller)
    assert a.send(b" back") == 5
    assert all(b not in other_poller.poll() for _ in range(100))
    assert other_poller.wait(1000) == 0
    b.resume()
    assert b in other_poller.poll()
    assert b.recv()[1] == b"held back"
    b.pause()
    b.move_to(poller)
    a.close()
    poller.wait_until_socket_ready(b)
    assert b.recv()[0] == 0


@pytest.mark.parametrize("at", [PAST, FAR_FUTURE])
def test_a_timer_moves_with_its_socket(poller: Poller, other_poller: Poller, at: int) -> None:
    a, _ = poller.connected_pair()
    poller.drain_ready_sockets()
    a.set_timer(at)
    asleep = other_poller.fill_waitset()
    a.move_to(other_poller)
    assert other_poller.lib.siw_llp_wait(asleep, -1, 10_000_000) == 1, "the wait was not shortened"
    assert other_poller.fill_waitset().due_ns == at
    assert (a in other_poller.poll()) == (at == PAST)
    assert other_poller.lib.siw_llp_sock_timer_is_pending(a.c) == (at != PAST)


def test_a_timer_can_be_set_after_a_move(poller: Poller, other_poller: Poller) -> None:
    a, _ = poller.connected_pair()
    poller.drain_ready_sockets()
    other_poller.lib.siw_llp_sock_enable_timer(a.c)
    a.move_to(other_poller)
    assert other_poller.fill_waitset().due_ns == 0
    a.set_timer(PAST)
    assert a in other_poller.poll()
    assert a.recv()[0] == -errno.EAGAIN
    poller.drain_ready_sockets()


# ---- fault plans and captures


def poll_until_reported(pollers: list[Poller], sock: LlpSocket) -> None:
    """Poll all pollers, and wait for all of them, until one of them reports the socket."""
    while sock not in [s for p in pollers for s in p.poll()]:
        assert wait_any(pollers, 10_000_000) == 1


@pytest.mark.parametrize("way", ["tx", "rx"])
@pytest.mark.parametrize("removed", [False, True])
def test_octets_that_a_fault_plan_holds_back_move_with_their_socket(
    poller: Poller, other_poller: Poller, llp_helpers: SimpleNamespace, way: str, removed: bool
) -> None:
    """Check octets that become due, and octets that are released because the plan is removed."""
    a, b = poller.connected_pair()
    poller.drain_ready_sockets()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(
        llp_helpers, f"{way}:delay={'1000s' if removed else '100ms'}"
    ):
        assert a.send(b"delayed") == 7
        llp_helpers.wait_until(
            lambda: b.recv()[0] == -errno.EAGAIN and counters["fault_delay"] == 1
        )
        asleep = other_poller.fill_waitset()
        (a if way == "tx" else b).move_to(other_poller)
        assert other_poller.lib.siw_llp_wait(asleep, -1, 10_000_000) == 1
        if not removed:
            assert other_poller.wait(10_000_000) == 1
            poll_until_reported([poller, other_poller], b)
            assert b.recv()[1] == b"delayed"
    if removed:
        poll_until_reported([poller, other_poller], b)
        assert b.recv()[1] == b"delayed"


def test_octets_that_are_held_back_are_dropped_if_their_socket_is_closed_in_no_poller(
    poller: Poller, llp_helpers: SimpleNamespace
) -> None:
    a, b = poller.connected_pair()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, "tx:delay=1000s"):
        assert a.send(b"delayed") == 7
        a.leave_poller()
        a.close()
        assert counters["fault_closed"] == 1
    poller.wait_until_socket_ready(b)
    assert b.recv()[0] == 0


@pytest.mark.parametrize(
    "plan", ["", "short=40%", "tx:delay=2ms", "rx:delay=2ms,limit=20KB,short=50%"]
)
def test_a_stream_whose_ends_move_between_pollers_arrives_complete(
    poller: Poller, other_poller: Poller, llp_helpers: SimpleNamespace, plan: str
) -> None:
    """Check that a wait on both pollers ends whenever either end can make progress."""
    pollers, ends = (poller, other_poller), poller.connected_pair()
    a, b = ends
    data = OCTETS * (1 + 2_000_000 // len(OCTETS))
    sent = turn = 0
    got = bytearray()
    with temporarily_install_fault_plan(llp_helpers, plan):
        while len(got) < len(data):
            idle = True
            while sent < len(data) and (rv := a.send(data[sent : sent + 50000])) != -errno.EAGAIN:
                assert rv > 0
                sent += rv
                idle = False
            if sent == len(data):
                a.want_write(False)
            for s in [s for p in pollers for s in p.poll()]:
                while s is b and (part := s.recv()[1]):
                    got += part
                    idle = False
            turn += 1
            if turn % 3 == 0:
                ends[turn % 2].move_to(pollers[turn // 6 % 2])
            if idle:
                assert wait_any(list(pollers), 10_000_000) == 1, (sent, len(got))
    assert got == data


def test_a_captured_stream_continues_in_the_capture_after_a_move(
    poller: Poller, other_poller: Poller, tmp_path: Path
) -> None:
    with capture_to_file(tmp_path / "x.pcapng") as path:
        a, b = poller.connected_pair()
        name = addr_port(a.local_addr())
        transfer_stream(poller, a, b, OCTETS[:1000])
        a.move_to(other_poller)
        transfer_stream(poller, a, b, OCTETS[1000:2000])
        b.move_to(other_poller)
        transfer_stream(other_poller, a, b, OCTETS[2000:3000])
        b.close()
    packets = read_packets(path)
    assert_sequence_numbers_continue(packets)
    assert str(packets[0][TCP].flags) == "S"
    assert {d.source_port: octets for d, octets in tcp_streams(packets).items()}[name] == (
        OCTETS[:3000]
    )


# ---- the pollers


@pytest.mark.parametrize("how", ["moves", "is closed"])
def test_a_thread_that_sleeps_on_a_hot_socket_wakes_up_when_the_socket_leaves_the_poller(
    poller: Poller, other_poller: Poller, how: str
) -> None:
    """The thread would keep the connection of the closed socket open."""
    a, b = poller.connected_pair()
    bring_stream_to_poll_state(poller, a, b, "hot")
    poller.drain_ready_sockets()
    asleep = poller.fill_waitset()
    assert poller.lib.siw_llp_wait(asleep, -1, 1000) == 0
    if how == "moves":
        b.move_to(other_poller)
    else:
        b.close()
    assert poller.lib.siw_llp_wait(asleep, -1, 10_000_000) == 1


def test_a_poller_whose_cold_sockets_have_left_calls_epoll_wait_rarely(
    poller: Poller, other_poller: Poller, llp_helpers: SimpleNamespace
) -> None:
    a, b = poller.connected_pair()
    hot, sender = poller.open_udp(), other_poller.open_udp()
    assert sender.sendto(hot.local_addr(), b"x") == 0
    poller.wait_until_socket_ready(hot)
    assert hot.receive_all() == 1
    poller.drain_ready_sockets()
    for s in (a, b):
        s.move_to(other_poller)
    counters = llp_helpers.Counters()
    for _ in range(320):
        assert poller.poll() == [hot]
    assert counters["epoll_waits"] == 10


def test_a_connecting_socket_can_move(poller: Poller, other_poller: Poller) -> None:
    listener = poller.listen()
    a = poller.connect(listener.local_addr())
    a.move_to(other_poller)
    while (rv := a.connect_result()) != 0:
        assert rv == -errno.EAGAIN
        other_poller.wait_until_socket_ready(a)
    poller.wait_until_socket_ready(listener)
    b = poller.accept(listener)
    assert b.send(b"hello") == 5
    other_poller.wait_until_socket_ready(a)
    assert a.recv()[1] == b"hello"
