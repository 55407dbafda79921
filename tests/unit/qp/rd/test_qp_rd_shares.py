"""RD messages in several segments leave receives for messages of other peers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from harness.rd_harness import RDEnd
from harness.rd_stranger import ScriptedRDPeer
from harness.verbs_harness import Rig, poll, wait_until

from siwarp.inspect import Opcode

RECEIVES = 8


@contextlib.contextmanager
def create_half_message_peers(end: RDEnd, n: int, host: str) -> Iterator[list[ScriptedRDPeer]]:
    """Create peers that have each sent the first half of a message."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(n):
            one = ScriptedRDPeer(end, host)
            stack.callback(one.close)
            one.connect()
            one.send_segment(one.build_untagged(Opcode.SEND, b"half", l=0))
            made.append(one)
        yield made


def send_second_half_of_message(one: ScriptedRDPeer) -> None:
    """Send the second half of the peer's message, which completes the message."""
    one.send_segment(one.build_untagged(Opcode.SEND, b"more", mo=4, msn=1))


def assert_new_peer_message_is_received(end: RDEnd, host: str) -> None:
    """Send a single-segment message from a new peer; assert that it is received immediately."""
    with contextlib.closing(ScriptedRDPeer(end, host)) as one:
        one.connect()
        one.send_and_wait(one.build_untagged(Opcode.SEND, b"whole"))


@pytest.fixture
def receiving_peer(rig: Rig) -> RDEnd:
    made = RDEnd(rig, 1 << 12)
    for i in range(RECEIVES):
        made.post_receive(i, 64, 64 * i)
    return made


@pytest.mark.clause("DGRAM-FAIR-1")
def test_multi_segment_messages_leave_a_quarter_of_the_receives_and_all_complete(
    receiving_peer: RDEnd,
) -> None:
    with (
        create_half_message_peers(receiving_peer, 6, "127.0.0.2") as some,
        create_half_message_peers(receiving_peer, 6, "127.0.0.3") as others,
    ):
        assert_new_peer_message_is_received(receiving_peer, "127.0.0.2")
        assert_new_peer_message_is_received(receiving_peer, "127.0.0.4")
        assert [w.byte_len for w in poll(receiving_peer.rcq, 2)] == [5, 5]
        assert receiving_peer.rcq.poll() == []
        for one in (*some, *others):
            send_second_half_of_message(one)
        # Six multi-segment messages occupy receives, and single-segment messages used the other
        # two. As the first six messages end, the next ones begin.
        assert [w.byte_len for w in poll(receiving_peer.rcq, 6)] == [8] * 6
        for i in range(6):
            receiving_peer.post_receive(i, 64, 64 * i)
        assert [w.byte_len for w in poll(receiving_peer.rcq, 6)] == [8] * 6


@pytest.mark.clause("DGRAM-FAIR-1")
def test_multi_segment_messages_of_one_source_use_at_most_half_of_the_receives(
    receiving_peer: RDEnd,
) -> None:
    with (
        create_half_message_peers(receiving_peer, 7, "127.0.0.2"),
        create_half_message_peers(receiving_peer, 1, "127.0.0.3") as others,
    ):
        for _ in range(3):
            assert_new_peer_message_is_received(receiving_peer, "127.0.0.2")
        send_second_half_of_message(others[0])
        assert sorted(w.byte_len for w in poll(receiving_peer.rcq, 4)) == [5, 5, 5, 8]


@pytest.mark.clause("DGRAM-FAIR-1")
def test_multi_segment_messages_use_the_last_receive_one_at_a_time(rig: Rig) -> None:
    end = RDEnd(rig, 1 << 12)
    end.post_receive(1, 64)
    with create_half_message_peers(end, 2, "127.0.0.2") as both:
        for one in both:
            send_second_half_of_message(one)
        assert poll(end.rcq)[0].byte_len == 8
        end.post_receive(2, 64)
        assert poll(end.rcq)[0].byte_len == 8
    assert wait_until(lambda: end.rcq.poll() == [])
