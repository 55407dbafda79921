"""Completion queues of an event loop: the descriptor, and progress by the thread of the loop."""

from __future__ import annotations

import errno
import select
import socket
import threading

import pytest
from harness.descriptors import count_open_descriptors
from harness.rc_harness import SEND, End, ListenerAndConnector
from harness.rd_harness import RDEnd
from harness.uc_harness import UCPair
from harness.verbs_harness import (
    LIMIT,
    Pair,
    Rig,
    open_device_without_progress_thread,
    poll,
    temporary_settings,
    wait_until,
)
from net import HERE

from siwarp.base import system
from siwarp.base.system import readable_now
from siwarp.cm import CMID, CMEventChannel, CMEventType, ConnParam
from siwarp.verbs import CQ, WC, AccessFlag, Error, QPState, QPType, SendWR, WROpcode


def poll_completions_like_event_loop(cq: CQ, n: int) -> list[WC]:
    """Return n completions, as an event loop with this queue takes them."""
    fd = cq.wait_fileno()
    deadline = system.monotonic() + LIMIT
    wcs = cq.poll_and_arm(n)
    while len(wcs) < n:
        # Another thread may serve the sockets before this one wakes up: then the descriptor is no
        # longer readable, and the poll finds nothing.
        system.sleep_on([fd], deadline)
        assert system.monotonic() < deadline, f"{len(wcs)} of {n} completions came"
        wcs += cq.poll_and_arm(n - len(wcs))
    return wcs


def test_a_loop_receives_messages_on_a_queue_without_a_channel() -> None:
    rig = Rig()
    pair = Pair(rig)
    for i in range(20):
        pair.post_receive(i)
        pair.send(b"%d" % i)
        assert [wc.wr_id for wc in poll_completions_like_event_loop(pair.rcq, 1)] == [i]
        assert pair.into.read(len(b"%d" % i)) == b"%d" % i
    rig.close()


def test_the_descriptor_is_the_same_at_each_call_and_unreadable_while_nothing_comes() -> None:
    rig = Rig()
    pair = Pair(rig)
    fd = pair.rcq.wait_fileno()
    assert pair.rcq.wait_fileno() == fd
    wait_until(lambda: not pair.rcq.poll_and_arm() and not readable_now(fd))
    pair.post_receive()
    pair.send(b"x")
    wait_until(lambda: readable_now(fd))
    assert len(poll_completions_like_event_loop(pair.rcq, 1)) == 1
    wait_until(lambda: not pair.rcq.poll_and_arm() and not readable_now(fd))
    rig.close()


def test_completions_beyond_the_limit_of_a_poll_are_left_for_the_next_one() -> None:
    rig = Rig()
    pair = Pair(rig)
    pair.rcq.wait_fileno()
    for i in range(10):
        pair.post_receive(i)
    for _ in range(10):
        pair.send(b"x")
    wait_until(lambda: pair.rcq.pending == 10)
    assert [wc.wr_id for wc in pair.rcq.poll_and_arm(4)] == [0, 1, 2, 3]
    assert [wc.wr_id for wc in pair.rcq.poll_and_arm(4)] == [4, 5, 6, 7]
    assert [wc.wr_id for wc in pair.rcq.poll_and_arm(4)] == [8, 9]
    rig.close()


def test_a_completion_that_another_thread_queues_makes_the_descriptor_readable() -> None:
    rig = Rig()
    pair = Pair(rig)
    fd = pair.scq.wait_fileno()
    wait_until(lambda: not pair.scq.poll_and_arm() and not readable_now(fd))
    thread = threading.Thread(target=pair.send, args=(b"x", 7))
    thread.start()
    thread.join()
    assert readable_now(fd)
    assert [wc.wr_id for wc in poll_completions_like_event_loop(pair.scq, 1)] == [7]
    wait_until(lambda: not pair.scq.poll_and_arm() and not readable_now(fd))
    rig.close()


def test_a_poll_without_a_descriptor_is_refused() -> None:
    rig = Rig()
    with pytest.raises(Error, match="wait_fileno") as caught:
        rig.create_cq().poll_and_arm()
    assert caught.value.errno == errno.EINVAL
    rig.close()


def test_two_loops_on_one_device_receive_their_own_messages() -> None:
    rig = Rig()
    pairs = [Pair(rig), Pair(rig)]
    found: list[list[int]] = [[], []]

    def receive_100_messages(n: int) -> None:
        while len(found[n]) < 100:
            found[n] += [wc.wr_id for wc in poll_completions_like_event_loop(pairs[n].rcq, 1)]

    for pair in pairs:
        for i in range(100):
            pair.post_receive(i, 8)
    threads = [threading.Thread(target=receive_100_messages, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        for pair in pairs:
            pair.send(b"x")
            poll(pair.scq)
    for thread in threads:
        thread.join()
    assert found == [list(range(100))] * 2
    rig.close()


@pytest.mark.parametrize(
    ("waiting", "polled"), [(1, False), (250, False), (1, True)], ids=["1", "250", "1 after polls"]
)
def test_a_loop_alone_receives_messages_on_a_device_without_progress_thread(
    waiting: int, polled: bool
) -> None:
    # With this budget a call receives fewer than the 250 messages that wait.
    with temporary_settings(lanes=1, budget=1):
        rig = open_device_without_progress_thread()
        pair = Pair(rig, max_send_wr=256, max_recv_wr=256)
    if polled:  # receiving a message makes the socket hot
        pair.post_receive()
        pair.send(b"x")
        poll(pair.rcq)
        poll(pair.scq)
    fd = pair.rcq.wait_fileno()
    for _ in range(3):
        for i in range(waiting):
            pair.post_receive(i, 8)
        assert pair.rcq.poll_and_arm() == []
        for _ in range(waiting):
            pair.send(b"x")
        found: list[int] = []
        calls = 0
        while len(found) < waiting:
            system.sleep_on([fd], system.monotonic() + LIMIT)
            assert readable_now(fd), f"{len(found)} of {waiting} messages were received"
            found += [wc.wr_id for wc in pair.rcq.poll_and_arm(256)]
            calls += 1
        assert found == list(range(waiting))
        assert calls > 1 or waiting == 1
        pair.scq.poll(waiting)
    rig.close()


def test_a_loop_alone_ends_the_start_up_of_a_connection_when_its_time_has_passed() -> None:
    with temporary_settings(lanes=1):
        rig = open_device_without_progress_thread()
    cq = rig.create_cq()
    fd = cq.wait_fileno()
    assert cq.poll_and_arm() == []
    with socket.create_server((HERE, 0)) as silent, CMEventChannel(rig.ctx) as channel:
        cm_id = CMID(channel)
        cm_id.bind_qp(rig.create_qp(cq, qp_type=QPType.RC))
        cm_id.connect(silent.getsockname(), ConnParam(timeout=0.05))
        while not readable_now(channel.fileno()):
            system.sleep_on([fd], system.monotonic() + LIMIT)
            assert readable_now(fd), "no timer made the descriptor readable"
            assert cq.poll_and_arm() == []
        event = channel.get_event(0)
        assert event is not None
        assert event.type == CMEventType.UNREACHABLE
    rig.ctx.close(force=True)


def test_a_destroyed_cq_leaves_no_descriptor_and_no_entry_in_the_set_of_an_event_loop() -> None:
    rig = Rig()
    kept = rig.create_cq()
    kept.wait_fileno()
    before = count_open_descriptors()
    cq = rig.create_cq()
    loop = select.epoll()
    loop.register(cq.wait_fileno(), select.EPOLLIN)
    assert cq.poll_and_arm() == []
    cq.close()
    assert loop.poll(0) == []
    loop.close()
    assert count_open_descriptors() == before
    rig.close()


@pytest.mark.parametrize("armed_first", [False, True])
def test_a_message_of_a_device_without_progress_thread_is_sent_again_when_its_timer_is_due(
    armed_first: bool,
) -> None:
    # Nothing but the timer makes the descriptor readable: there is no other thread, and the peer
    # is a socket that does not answer.
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind((HERE, 0))
    rig = open_device_without_progress_thread()
    end = RDEnd(rig, cq=rig.create_cq(64))
    fd = end.scq.wait_fileno()
    if armed_first:
        assert end.scq.poll_and_arm() == []
    with rig.create_ah(silent.getsockname()) as ah:
        end.qp.post_send(SendWR(1, sg=[end.out.sge(0, 8)], ah=ah))
    if not armed_first:
        assert end.scq.poll_and_arm() == []
    for _ in range(3):
        while not readable_now(silent.fileno()):
            system.sleep_on([fd], system.monotonic() + LIMIT)
            assert readable_now(fd), "no timer made the descriptor readable"
            assert end.scq.poll_and_arm() == []
        silent.recv(2048)
    rig.ctx.close(force=True)
    silent.close()


def connect_and_arm_receive_cq(connector: ListenerAndConnector) -> tuple[End, End]:
    """Return connected endpoints; a loop has polled the queue of the second one."""
    a, b = connector.connect()
    b.rcq.wait_fileno()
    b.rcq.poll_and_arm()
    return a, b


def test_the_progress_thread_serves_one_sided_traffic_while_the_loop_does_not_poll(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_and_arm_receive_cq(two_device_connector)
    access = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ
    with two_device_connector.passive.reg_mr(bytearray(64), access) as there:
        for i in range(20):
            a.mem.write(b"%02d" % i)
            a.post(WROpcode.RDMA_WRITE, i, length=2, remote=there.remote())
            a.post(WROpcode.RDMA_READ, 100 + i, offset=64, length=2, remote=there.remote())
            assert all(wc.ok for wc in poll(a.scq, 2))
            assert a.mem.read(2, 64) == b"%02d" % i
    a.close()
    b.close()


def test_a_poll_fails_after_a_forced_close() -> None:
    rig = Rig()
    pair = Pair(rig)
    pair.rcq.wait_fileno()
    pair.rcq.poll_and_arm()
    closing = threading.Thread(target=rig.ctx.close, kwargs={"force": True})
    closing.start()
    closing.join()
    with pytest.raises(Error):
        pair.rcq.poll_and_arm()


def test_a_send_without_a_memory_region_completes_during_the_call(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(max_inline_data=64)
    for i in range(40):  # more messages than the send queue has slots
        b.post_receive(i)
        data = b"message %d" % i
        assert a.qp.send_inline(data, wr_id=i)
        wc = poll(b.rcq)[0]
        assert (wc.wr_id, b.mem.read(wc.byte_len)) == (i, data)
    assert a.scq.pending == 0
    a.close()
    b.close()


def test_a_send_without_a_memory_region_queues_a_completion_after_unpolled_ones(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(max_inline_data=64)
    for i in range(3):
        b.post_receive(i)
    a.post(SEND, 1)
    wait_until(lambda: a.scq.pending == 1)
    assert not a.qp.send_inline(b"second", wr_id=2)
    assert [wc.wr_id for wc in poll(a.scq, 2)] == [1, 2]
    assert a.qp.send_inline(b"third", wr_id=3)
    assert [wc.byte_len for wc in poll(b.rcq, 3)] == [0, 6, 5]
    a.close()
    b.close()


def test_a_send_without_a_memory_region_is_refused_like_a_posted_one(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(max_inline_data=64)
    with pytest.raises(Error, match="max_inline_data"):
        a.qp.send_inline(bytes(a.qp.cap.max_inline_data + 1))
    ud = two_device_connector.active.create_ud_qp()
    with pytest.raises(Error, match="RC and UC"):
        ud.send_inline(b"x")
    b.close()
    a.wait_for_error_state()
    assert a.qp.qp_state == QPState.ERR
    assert not a.qp.send_inline(b"x", wr_id=9)
    assert [(wc.wr_id, wc.ok) for wc in poll(a.scq)] == [(9, False)]
    a.close()


def test_a_turn_that_leaves_datagrams_unread_makes_other_descriptors_readable() -> None:
    """A turn takes the socket events of the whole lane, and may be the last one of its loop."""
    with temporary_settings(lanes=1, budget=1):
        rig = open_device_without_progress_thread()
    pair, other = Pair(rig), UCPair(rig, max_send_wr=256)
    fds = [cq.wait_fileno() for cq in (pair.rcq, other.rcq)]
    assert pair.rcq.poll_and_arm() == other.rcq.poll_and_arm() == []
    assert not any(readable_now(fd) for fd in fds)
    for i in range(250):  # Writes: no completion makes the descriptor of the second loop readable
        other.write(bytes([i]), i)
    pair.post_receive()
    pair.send(b"x")
    assert len(pair.rcq.poll_and_arm(1)) == 1
    turns = 0
    while other.into.read(250) != bytes(range(250)):
        assert readable_now(fds[1]), "datagrams are left, but the second loop sleeps"
        assert other.rcq.poll_and_arm() == []
        turns += 1
    assert turns > 0, "the turn of the first loop received all Writes"
    rig.ctx.close(force=True)
