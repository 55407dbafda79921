"""Lists of Sends that wait for a batch, on a connection whose peer does not read.

The first Sends fill the connection. The lists after them wait for a batch, and then for the peer.
"""

from __future__ import annotations

from collections.abc import Iterator

import net
import pytest
from harness.flush_harness import FLUSHED
from harness.peer_harness import PlainPeer, connected_plain_peer
from harness.rc_harness import End, ListenerAndConnector, read_to_end
from harness.verbs_harness import Rig, poll, temporary_settings

from siwarp.verbs import WC, QPAttr, QPState, SendFlag, SendWR

ALWAYS = 2
LINGER_S = 0.3
SIZE = 16 << 10
#: The number of Sends that fill the connection, the number of lists after them, and their length.
FILLING, LISTS, EACH = 64, 8, 4
POSTED = FILLING + LISTS * EACH


@pytest.fixture(name="stalled")
def connection_to_peer_that_does_not_read(
    connector: ListenerAndConnector,
) -> Iterator[tuple[End, PlainPeer]]:
    """Yield a connection to a peer that reads nothing, with all requests posted."""
    with (
        temporary_settings(batching=ALWAYS, linger_ms=int(LINGER_S * 1000)),
        connected_plain_peer(connector, gone=True, size=POSTED * SIZE, max_send_wr=POSTED) as (
            a,
            peer,
        ),
    ):
        for number in range(POSTED):
            a.mem.write(number.to_bytes(4, "big"), offset=number * SIZE)
        post_numbered_sends(a, 0, FILLING)
        net.sleep(1)
        for i in range(LISTS):
            post_numbered_sends(a, FILLING + i * EACH, EACH)
        yield a, peer


def post_numbered_sends(a: End, first: int, n: int) -> None:
    """Post a list of n Sends, each of which begins with its number, which is also its wr_id."""
    a.qp.post_send(
        [
            SendWR(i, sg=[a.mem.sge(i * SIZE, SIZE)], send_flags=SendFlag.SIGNALED)
            for i in range(first, first + n)
        ]
    )


def numbers_of_sends(octets: bytes) -> list[int]:
    """Return the numbers of the Sends whose first segment begins in these FPDUs."""
    numbers, at = [], 0
    while at + 24 <= len(octets):
        if octets[at + 16 : at + 20] == bytes(4):  # the MO of the segment
            numbers.append(int.from_bytes(octets[at + 20 : at + 24], "big"))
        size = 2 + int.from_bytes(octets[at : at + 2], "big")
        at += size + -size % 4 + 4
    return numbers


def assert_completed_or_flushed(completions: list[WC]) -> None:
    """Assert that each request completed once, in order: some successfully, then all flushed."""
    assert [wc.wr_id for wc in completions] == list(range(POSTED))
    successful = sum(wc.ok for wc in completions)
    assert successful < FILLING
    assert all(wc.ok for wc in completions[:successful])
    assert {wc.status for wc in completions[successful:]} == {FLUSHED}


def test_lists_that_waited_arrive_in_order_once_the_peer_reads(
    stalled: tuple[End, PlainPeer],
) -> None:
    a, peer = stalled
    completions: list[WC] = []
    octets = b""
    while len(numbers_of_sends(octets)) < POSTED or len(completions) < POSTED:
        completions += a.scq.poll(16)
        octets += net.receive_within(peer.sock, 0.001) or b""
    assert numbers_of_sends(octets) == list(range(POSTED))
    assert [(wc.wr_id, wc.ok) for wc in completions] == [(i, True) for i in range(POSTED)]


def test_the_state_err_flushes_lists_that_waited_after_the_linger_time(
    stalled: tuple[End, PlainPeer],
) -> None:
    a, _ = stalled
    began = net.now()
    a.qp.modify(QPAttr(qp_state=QPState.ERR))
    completions = poll(a.scq, POSTED)
    assert net.now() - began < LINGER_S + 0.01
    assert_completed_or_flushed(completions)


def test_a_reset_of_the_peer_flushes_lists_that_waited(stalled: tuple[End, PlainPeer]) -> None:
    a, peer = stalled
    peer.sock.close()  # a close with unread octets resets the connection
    assert_completed_or_flushed(poll(a.scq, POSTED))


@pytest.mark.parametrize("what", ["queue pair", "device"])
def test_closing_with_lists_that_waited_takes_no_longer_than_the_linger_time(
    rig: Rig, stalled: tuple[End, PlainPeer], what: str
) -> None:
    a, peer = stalled
    began = net.now()
    if what == "queue pair":
        a.close()
        assert net.now() - began < 0.001
    rig.close()
    assert net.now() - began < LINGER_S + 0.01
    # The peer reads too late, and gets a prefix of the messages.
    numbers = numbers_of_sends(read_to_end(peer.sock))
    assert numbers == list(range(len(numbers)))
    assert len(numbers) < POSTED
