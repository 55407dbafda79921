"""A post held back for a batch is sent, at the latest, when the program makes another call.

In these tests the progress thread naps for the longest time that can be set, so that it does not
transmit a held back post during a test.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.peer_harness import PlainPeer, connected_plain_peer
from harness.rc_harness import End, ListenerAndConnector
from harness.rd_harness import RDEnd as RDPeer
from harness.rd_stranger import ScriptedRDPeer
from harness.uc_harness import PlainUCPeer as UCPeer
from harness.verbs_harness import Rig, multiply_pauses_temporarily, temporary_settings, wait_until

from siwarp.inspect.rd import RDType
from siwarp.verbs import CQ, QP, CompChannel, QPAttr, QPState, QPType, SendFlag, SendWR

NAP_US = 100_000
#: The pause between posts after which batching ends, in microseconds, within
#: multiply_pauses_temporarily().
SILENCE_US = 20_000
AUTO, NEVER, ALWAYS = range(3)


class Sender:
    """A queue pair that sends numbered messages to a plain socket of the test."""

    def __init__(self, rig: Rig, kind: QPType) -> None:
        self.rig, self.kind = rig, kind
        self.channel: CompChannel = rig.create_channel()
        self.cq: CQ = rig.create_cq(4096, self.channel)
        self.mr = rig.reg_mr(bytearray(8 * 4096))
        self.posted = 0
        self.seen: set[int] = set()
        self.stranger: ScriptedRDPeer | None = None
        self.plain: tuple[End, PlainPeer] | None = None
        self.open = contextlib.ExitStack()
        self.wr: dict[str, Any] = {}
        self.qp: QP
        if kind == QPType.UC:
            peer = UCPeer(rig)
            self.qp, self.sock, self.cq = peer.qp, peer.sock, peer.cq
        elif kind == QPType.RD:
            end = RDPeer(rig, cq=self.cq)
            self.stranger = ScriptedRDPeer(end)
            self.stranger.connect()
            self.qp, self.sock = end.qp, self.stranger.sock
            self.wr = {"ah": rig.create_ah(self.stranger.addr)}
        elif kind == QPType.RC:
            self.plain = self.open.enter_context(
                connected_plain_peer(ListenerAndConnector(rig), gone=True, max_send_wr=256)
            )
            end, peer = self.plain
            self.qp, self.sock, self.cq, self.channel = end.qp, peer.sock, end.scq, end.events
        else:
            self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.sock.bind(("127.0.0.1", 0))
            self.qp = rig.create_ud_qp(self.cq, max_send_wr=256)
            self.wr = {"ah": rig.create_ah(self.sock.getsockname())}
        self.sock.setblocking(False)

    def close(self) -> None:
        self.sock.close()
        self.open.close()

    def post_next_message(self) -> int:
        """Post the next numbered message; return its number."""
        return self.post_list(1)

    def post_list(self, n: int) -> int:
        """Post the next ``n`` numbered messages with one call; return the number of the last."""
        wrs = []
        for _ in range(n):
            number = self.posted = self.posted + 1
            at = 8 * (number % 4096)
            self.mr.view[at : at + 8] = b"no%06d" % number
            sge = self.mr.sge(at, 8)
            wrs.append(SendWR(number, sg=[sge], send_flags=SendFlag.SIGNALED, **self.wr))
        self.qp.post_send(wrs)
        return self.posted

    def has_message_arrived(self, number: int) -> bool:
        """Return whether the message with this number has arrived at the test's socket."""
        with contextlib.suppress(BlockingIOError):
            while octets := self.sock.recv(1 << 16):
                self.seen |= {int(found) for found in re.findall(rb"no(\d{6})", octets)}
        return number in self.seen

    def inject_datagram_or_segment(self) -> None:
        """Send the queue pair a datagram or, on RC, a segment."""
        if self.plain:
            end, peer = self.plain
            peer.send_segments(peer.build_write(b"x", end.mem.rkey, end.mem.addr))
        else:
            self.sock.sendto(b"x", self.qp.addr)

    def message_number_if_held_back(self, number: int) -> int:
        """Return the number of the message if it is held back. Otherwise return 0, on RD after
        an acknowledgement of the message.
        """
        if not self.has_message_arrived(number):
            return number
        if self.stranger:
            other = self.stranger
            other.next[0] = other.other + len(self.seen)
            other.send_datagram(RDType.ACK)
            # A thread must read the ACK, which completes the message and frees its queue slot.
            wait_until(lambda: number in [wc.wr_id for wc in self.cq.poll(64)])
        return 0

    def post_until_held_back(self) -> int:
        """Post messages until one is held back for a batch; return its number."""

        def post_and_check_if_held_back() -> int:
            # The progress thread sleeps for nap_us only if the program polls while data arrives.
            self.inject_datagram_or_segment()
            while self.cq.poll(64):
                pass
            self.post_next_message()
            last = self.message_number_if_held_back(self.post_next_message())
            if not last:
                time.sleep(0.005)
            return last

        return int(wait_until(post_and_check_if_held_back))


KINDS = [QPType.UD, QPType.UC, QPType.RD, QPType.RC]


@pytest.fixture(params=KINDS, ids=["ud", "uc", "rd", "rc"])
def sender(request: pytest.FixtureRequest) -> Iterator[Sender]:
    with temporary_settings(nap_us=NAP_US, batching=ALWAYS):
        made = Sender(Rig(), request.param)
        yield made
        made.close()
        made.rig.close()


def arm_cq(s: Sender) -> None:
    s.cq.req_notify()


def poll_cq(s: Sender) -> None:
    while s.cq.poll(64):
        pass


def read_channel_without_event(s: Sender) -> None:
    assert s.channel.get_cq_event(0) is None


def take_pending_cq_event(s: Sender) -> None:
    assert s.channel.get_cq_event(0) is not None


def modify_to_same_state(s: Sender) -> None:
    s.qp.modify(QPAttr(qp_state=QPState.RTS))


def move_qp_to_error(s: Sender) -> None:
    s.qp.modify(QPAttr(qp_state=QPState.ERR))


def move_qp_to_reset(s: Sender) -> None:
    s.qp.modify(QPAttr(qp_state=QPState.RESET))


def destroy_qp(s: Sender) -> None:
    if s.plain:
        s.plain[0].id.close()
    s.qp.close()


@pytest.mark.parametrize(
    "act",
    [
        arm_cq,
        poll_cq,
        read_channel_without_event,
        modify_to_same_state,
        move_qp_to_error,
        move_qp_to_reset,
        destroy_qp,
    ],
)
def test_a_held_back_post_is_transmitted_when_the_program_makes_another_call(
    sender: Sender, act: Callable[[Sender], None]
) -> None:
    if act is arm_cq and sender.kind == QPType.UC:
        # arming any CQ of a device ends batching, because the arming thread may sleep afterwards
        sender.cq = sender.rig.create_cq(16, sender.channel)
    last = sender.post_until_held_back()
    act(sender)
    assert sender.has_message_arrived(last)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_post_of_a_queue_pair_is_sent_immediately(kind: QPType) -> None:
    with temporary_settings(nap_us=NAP_US, batching=ALWAYS):
        made = Sender(Rig(), kind)
        assert made.has_message_arrived(made.post_next_message())
        made.close()
        made.rig.close()


def test_a_post_after_a_cq_was_armed_is_sent_immediately(sender: Sender) -> None:
    cq = sender.rig.create_cq(16, sender.channel)
    sender.post_until_held_back()
    cq.req_notify()
    for _ in range(3):
        assert sender.has_message_arrived(sender.post_next_message())
    cq.close()  # no thread can wait on the closed CQ any more
    sender.post_until_held_back()


def test_reading_a_pending_cq_event_transmits_held_back_posts(sender: Sender) -> None:
    other = sender.rig.create_cq(16, sender.channel)
    qp = sender.rig.create_ud_qp(other)
    other.req_notify()
    qp.post_send(SendWR(1, ah=sender.rig.create_ah(qp)))
    wait_until(lambda: select.select([sender.channel], [], [], 0)[0])
    last = sender.post_until_held_back()
    take_pending_cq_event(sender)
    assert sender.has_message_arrived(last)


def test_posts_are_held_back_again_if_the_program_keeps_polling_after_arming_a_cq(
    sender: Sender,
) -> None:
    # A program that sleeps polls once or twice after arming a CQ, to find completions that were
    # created before the arming.
    other = sender.rig.create_cq(16, sender.channel)
    for _ in range(200):
        sender.cq.poll(1)
    other.req_notify()
    for _ in range(2):
        sender.cq.poll(1)
    assert all(sender.has_message_arrived(sender.post_next_message()) for _ in range(20))
    # UCX's threads keep a CQ armed while the program polls all the time.
    for _ in range(200):
        sender.cq.poll(1)
    last = sender.post_until_held_back()
    poll_cq(sender)
    assert sender.has_message_arrived(last)


@pytest.fixture(params=KINDS, ids=["ud", "uc", "rd", "rc"])
def sender_with_defaults(request: pytest.FixtureRequest) -> Iterator[Sender]:
    """Provide a Sender with default settings except for nap_us and the pause between posts."""
    with temporary_settings(nap_us=NAP_US), multiply_pauses_temporarily():
        made = Sender(Rig(), request.param)
        yield made
        made.close()
        made.rig.close()


def post_densely_until_held_back(s: Sender) -> int:
    """Post twice per round without a pause until a post is held back; return its number."""

    def post_and_check_if_held_back() -> int:
        s.inject_datagram_or_segment()
        for _ in range(8):
            poll_cq(s)
            s.post_next_message()
            last = s.post_next_message()
        return s.message_number_if_held_back(last)

    return int(wait_until(post_and_check_if_held_back))


def test_posts_are_held_back_in_dense_traffic_and_not_after_a_pause(
    sender_with_defaults: Sender,
) -> None:
    last = post_densely_until_held_back(sender_with_defaults)
    poll_cq(sender_with_defaults)
    assert sender_with_defaults.message_number_if_held_back(last) == 0
    poll_cq(
        sender_with_defaults
    )  # all requests have completed, so nothing is retransmitted during the pause
    # After a pause, the next two posts are sent immediately, before any poll and before the
    # progress thread wakes.
    time.sleep(1.5 * SILENCE_US / 1e6)
    assert sender_with_defaults.has_message_arrived(sender_with_defaults.post_next_message())
    assert sender_with_defaults.has_message_arrived(sender_with_defaults.post_next_message())


def test_lists_are_held_back_in_dense_traffic_and_sent_by_the_next_poll(
    sender_with_defaults: Sender,
) -> None:
    s = sender_with_defaults

    def post_lists_and_check_if_held_back() -> int:
        s.inject_datagram_or_segment()
        for _ in range(8):
            poll_cq(s)
            last = s.post_list(2)
        return s.message_number_if_held_back(last)

    last = int(wait_until(post_lists_and_check_if_held_back))
    poll_cq(s)
    assert s.has_message_arrived(last)


def test_posts_are_not_held_back_for_a_while_after_the_progress_thread_had_to_send_some(
    sender_with_defaults: Sender,
) -> None:
    s = sender_with_defaults
    last = post_densely_until_held_back(s)
    # the requests are transmitted although the program does not poll
    wait_until(lambda: s.has_message_arrived(last))
    s.message_number_if_held_back(last)
    # Posts are held back again after a second (multiply_pauses_temporarily), and a thousand posts
    # take a tenth of that on a slow machine.
    for _ in range(8):
        poll_cq(s)
        for _ in range(3):
            assert not s.message_number_if_held_back(s.post_next_message())
    post_densely_until_held_back(s)


# requests of UD, UC and RC complete as soon as they are sent
@pytest.mark.parametrize("kind", [QPType.UD, QPType.UC, QPType.RC])
def test_posts_are_held_back_also_if_every_poll_finds_a_completion(kind: QPType) -> None:
    """The progress thread sleeps on idle sockets until the program's polls are reported to it."""
    with temporary_settings(nap_us=NAP_US), multiply_pauses_temporarily():
        made = Sender(Rig(), kind)

        def post_and_check_if_some_held_back() -> bool:
            before = made.cq.pending
            for _ in range(16):
                made.post_next_message()
            came = made.cq.pending - before
            made.has_message_arrived(
                0
            )  # reading the socket frees buffer space for the next message
            assert made.cq.poll(max(came, 1))
            return came < 16

        wait_until(post_and_check_if_some_held_back)
        poll_cq(made)
        assert made.has_message_arrived(made.posted)
        made.close()
        made.rig.close()


def test_a_single_message_is_sent_immediately_after_dense_traffic(
    sender_with_defaults: Sender,
) -> None:
    post_densely_until_held_back(sender_with_defaults)
    for _ in range(20):
        poll_cq(sender_with_defaults)
        assert sender_with_defaults.has_message_arrived(sender_with_defaults.post_next_message())


def test_three_rounds_of_dense_posts_do_not_start_batching(sender_with_defaults: Sender) -> None:
    sender_with_defaults.inject_datagram_or_segment()
    for _ in range(4):  # four rounds, because the first dense round only starts the count
        poll_cq(sender_with_defaults)
        sender_with_defaults.post_next_message()
        assert sender_with_defaults.has_message_arrived(sender_with_defaults.post_next_message())


@pytest.mark.parametrize("kind", KINDS)
def test_with_batching_disabled_every_post_is_sent_immediately(kind: QPType) -> None:
    with temporary_settings(nap_us=NAP_US, batching=NEVER):
        made = Sender(Rig(), kind)
        for _ in range(20):
            poll_cq(made)
            for _ in range(3):
                assert made.has_message_arrived(made.post_next_message())
        made.close()
        made.rig.close()


# RD is not tested, because its handshake needs the progress thread
@pytest.mark.parametrize("kind", [QPType.UD, QPType.UC, QPType.RC])
def test_without_a_progress_thread_posts_are_not_batched(kind: QPType) -> None:
    with temporary_settings(progress_thread=0, batching=ALWAYS):
        made = Sender(Rig(), kind)
        for _ in range(3):
            assert made.has_message_arrived(made.post_next_message())
        made.close()
        made.rig.close()


@pytest.mark.parametrize(("kind", "size", "fit"), [(QPType.UD, 15_000, 4), (QPType.RC, 60_000, 4)])
def test_a_full_batch_is_sent_immediately(kind: QPType, size: int, fit: int) -> None:
    """A batch is sent when it has 60 KiB of datagrams or 256 KiB of a stream."""
    with temporary_settings(nap_us=NAP_US, batching=ALWAYS):
        made = Sender(Rig(), kind)
        big = made.rig.reg_mr(bytearray(size))

        def post_large_and_count_completions() -> list[int]:
            made.post_until_held_back()
            poll_cq(made)
            made.has_message_arrived(
                0
            )  # reading the socket frees buffer space for the next message
            wr = {"sg": [big.sge()], "send_flags": SendFlag.SIGNALED, **made.wr}
            counts = []
            for n in range(fit + 2):
                made.qp.post_send(SendWR(n, **wr))
                counts.append(made.cq.pending)
            return counts

        # The first post is sent alone and completes; later posts are held back until one more would
        # exceed the limit. If the progress thread wakes meanwhile, no post is held back, and the
        # test repeats.
        wait_until(lambda: post_large_and_count_completions() == [1] * (fit + 1) + [fit + 2])
        made.close()
        made.rig.close()


def test_arming_a_cq_transmits_held_back_posts_of_a_program_that_uses_select() -> None:
    with temporary_settings(nap_us=NAP_US, batching=ALWAYS):
        sender, events = Sender(Rig(), QPType.UD), 0
        for _ in range(20):
            while select.select([sender.channel], [], [], 0)[0]:
                assert sender.channel.get_cq_event(0) is not None
            last = sender.post_until_held_back()
            sender.cq.req_notify()
            # If the progress thread woke before the arming, the request completed without an event.
            told = select.select([sender.channel], [], [], 0)[0]
            assert told or last in [w.wr_id for w in sender.cq.poll(4096)]
            assert sender.has_message_arrived(last)
            events += bool(told)
        assert events > 10
        sender.close()
        sender.rig.close()


@pytest.mark.parametrize("program", ["batching", "rounds"])
def test_the_c_programs_that_test_batching_succeed(build_dir: Path, program: str) -> None:
    done = subprocess.run(
        [build_dir / f"tests/c/siw-test-{program}"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
