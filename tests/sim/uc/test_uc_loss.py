"""UC under loss, duplication, reordering and corruption: delivered messages are intact."""

from __future__ import annotations

import random
from collections.abc import Iterator

import net
import pytest
from harness.uc_harness import PlainUCPeer, UCPair
from harness.verbs_harness import Rig, counter_value, octet_pattern, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SLOT_OCTETS = 1024
SLOT_COUNT = 24
SEGMENT_OCTETS = 100
#: Target offset of Writes, after the slots of the receives.
WRITE_OFFSET = SLOT_OCTETS * SLOT_COUNT

#: A strategy for messages, each described by whether it is a Write and by its length.
messages = st.lists(
    st.tuples(st.booleans(), st.integers(0, 5 * SEGMENT_OCTETS)),
    min_size=1,
    max_size=SLOT_COUNT - 1,
)


@pytest.fixture
def uc_peer(rig: Rig) -> Iterator[PlainUCPeer]:
    made = PlainUCPeer(rig, size=2 * WRITE_OFFSET)
    yield made
    made.close()


def draw_arrival_order(datagrams: list[bytes], seed: int, trouble: float) -> list[int]:
    """Return the indices of the datagrams that arrive, in the order of arrival."""
    rng = random.Random(seed)
    arriving: list[tuple[float, int]] = []
    for i in range(len(datagrams)):
        if rng.random() < trouble:
            continue
        for _ in range(2 if rng.random() < trouble else 1):
            late = rng.uniform(0, 4) if rng.random() < trouble else 0.0
            arriving.append((i + late, i))
    return [i for _, i in sorted(arriving)]


@pytest.mark.clause("DGRAM-UC-7", "DGRAM-UC-8", "DGRAM-UC-10")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    what=messages,
    seed=st.integers(0, 1 << 32),
    trouble=st.sampled_from([0.0, 0.05, 0.2, 0.5]),
    jump=st.sampled_from([0, 1, 1 << 20]),
)
def test_a_uc_message_is_delivered_exactly_if_all_its_datagrams_arrive_in_order(
    uc_peer: PlainUCPeer, what: list[tuple[bool, int]], seed: int, trouble: float, jump: int
) -> None:
    # A receiver accepts a datagram only if its PSN is newer than all previous PSNs; a message is
    # complete if all of its datagrams with consecutive PSNs were accepted.
    uc_peer.psn = (uc_peer.psn + jump) % (1 << 32)
    memory = uc_peer.memory
    memory.view[WRITE_OFFSET:] = bytes(WRITE_OFFSET)
    said: list[bytes] = []
    parts: list[range] = []
    data = [octet_pattern(size, seed % 97 + i) for i, (_, size) in enumerate(what)]
    for i, (is_write, _) in enumerate(what):
        start = len(said)
        if is_write:
            said += uc_peer.build_write(
                data[i], memory.rkey, memory.addr + WRITE_OFFSET + SLOT_OCTETS * i, SEGMENT_OCTETS
            )
        else:
            said += uc_peer.build_send(data[i], SEGMENT_OCTETS)
        parts.append(range(start, len(said)))
    taken: set[int] = set()
    newest = -1
    arriving = draw_arrival_order(said, seed, trouble)
    for i in arriving:
        if i > newest:
            taken.add(i)
            newest = i
    sends = [i for i, (is_write, _) in enumerate(what) if not is_write]
    whole = [i for i in sends if all(n in taken for n in parts[i])]
    for slot in range(len(whole) + 1):
        uc_peer.post_receive(slot, slot * SLOT_OCTETS, SLOT_OCTETS)
    uc_peer.send_datagrams(*(said[i] for i in arriving))
    # All earlier datagrams have been processed when the following message arrives.
    uc_peer.send_datagrams(*uc_peer.build_send(b"the end"))
    got = uc_peer.poll_completions(len(whole) + 1)
    assert all(wc.ok for wc in got)
    found = [memory.read(wc.byte_len, wc.wr_id * SLOT_OCTETS) for wc in got]
    assert found == [data[i] for i in whole] + [b"the end"]
    for i, (is_write, size) in enumerate(what):
        here = memory.read(SLOT_OCTETS, WRITE_OFFSET + SLOT_OCTETS * i)
        assert not any(here[size:])
        for n, part in enumerate(parts[i]) if is_write else ():
            octets = data[i][n * SEGMENT_OCTETS : (n + 1) * SEGMENT_OCTETS]
            assert here[n * SEGMENT_OCTETS : n * SEGMENT_OCTETS + len(octets)] == (
                octets if part in taken else bytes(len(octets))
            )


@pytest.mark.clause("DGRAM-UC-8")
@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        ("tx:loss=5%", "uc_missing"),
        ("tx:loss=5%,burst=4", "uc_missing"),
        ("rx:dup=10%", "drop_late"),
        ("tx:reorder=10%", "drop_late"),
        ("tx:corrupt=5%", "drop_crc"),
        ("tx:loss=2%,dup=2%,reorder=2%,corrupt=2%; rx:loss=1%", "uc_missing"),
    ],
)
def test_uc_messages_delivered_over_an_unreliable_network_are_intact_and_in_order(
    rig: Rig, plan: str, shown: str
) -> None:
    size, count = 2000, 400
    ends = UCPair(rig, attrs={"path_mtu": 512}, max_recv_wr=64, max_send_wr=64)
    before = counter_value(shown)
    done = -1
    delivered: list[int] = []

    def make_numbered_message(number: int) -> bytes:
        return octet_pattern(number * 7 % size, number)

    def check_completions() -> None:
        nonlocal done
        for wc in ends.rcq.poll(64):
            assert wc.ok
            here = ends.into.read(wc.byte_len, wc.wr_id * 2048)
            number = int.from_bytes(here[:4], "big")
            assert number > done, "the message is a duplicate or out of order"
            done = number
            delivered.append(number)
            assert here[4:] == (b"" if number == count else make_numbered_message(number))
            ends.post_receive(wc.wr_id, 2048, wc.wr_id * 2048)

    for slot in range(48):
        ends.post_receive(slot, 2048, slot * 2048)
    with net.apply_fault_plan(plan):
        for i in range(count):
            ends.send(i.to_bytes(4, "big") + make_numbered_message(i), i)
            assert ends.poll_sends()[0].wr_id == i
            # The sender does not run ahead of the posted receives, because a message without a
            # receive is lost even without a fault plan. No fault plan loses so many messages in a
            # row.
            wait_until(lambda i=i: check_completions() or i - done < 40)
    # The plan has ended and has released its delayed datagrams, so this message arrives last.
    ends.send(count.to_bytes(4, "big"))
    wait_until(lambda: check_completions() or done == count)
    assert counter_value(shown) > before
    assert len(delivered) > count // 4
    assert (len(delivered) == count + 1) == (plan == "rx:dup=10%")
