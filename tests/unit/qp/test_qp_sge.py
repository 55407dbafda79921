"""Scatter and gather: any split of a message on either side gives the same octets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from harness.verbs_harness import Rig, octet_pattern, poll
from hypothesis import given
from hypothesis import strategies as st

from siwarp.verbs import RecvWR, SendWR

CANARY = 0xA5
GAP = 8
AREA = 1 << 17


class ScatterGatherPair:
    """Two UD queue pairs with up to 16 elements per request, and memory to split into pieces."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.out = self.rig.reg_mr(bytearray(AREA))
        self.into = self.rig.reg_mr(bytearray(AREA))
        self.scq, self.rcq = self.rig.create_cq(), self.rig.create_cq()
        self.a = self.rig.create_ud_qp(self.scq, max_send_sge=16)
        self.b = self.rig.create_ud_qp(self.rcq, max_recv_sge=16)
        self.to_b = self.rig.create_ah(self.b)

    def piece_offsets(self, lengths: list[int], misalign: int) -> list[int]:
        """Return offsets of pieces of these lengths, with canaries before and after each piece."""
        at, offsets = GAP + misalign, []
        for n in lengths:
            offsets.append(at)
            at += n + GAP
        assert at <= AREA
        return offsets


@pytest.fixture(scope="module")
def qp_pair_for_split_messages() -> Iterator[ScatterGatherPair]:
    made = ScatterGatherPair()
    yield made
    made.rig.close()


def piece_length_list_strategy(most: int) -> st.SearchStrategy[list[int]]:
    size = st.one_of(st.integers(0, 8), st.integers(0, most // 16))
    return st.lists(size, min_size=0, max_size=16)


@given(
    st.one_of(
        piece_length_list_strategy(300),
        piece_length_list_strategy(16000),
        piece_length_list_strategy(65000),
    ),
    st.lists(st.integers(0, 1 << 16), max_size=15),
    st.integers(0, 15),
    st.integers(0, 15),
    st.integers(0, 40),
)
def test_any_split_into_elements_is_gathered_and_scattered_correctly(
    qp_pair_for_split_messages: ScatterGatherPair,
    pieces: list[int],
    marks: list[int],
    out_at: int,
    in_at: int,
    spare: int,
) -> None:
    total = sum(pieces)
    data = octet_pattern(total, total)
    bounds = [0, *sorted(m % (total + 1) for m in marks), total]
    holes = [b - a for a, b in itertools.pairwise(bounds)]
    holes[-1] += spare  # buffer space that the message does not fill

    qp_pair_for_split_messages.out.view[:] = bytes(AREA)
    sources = qp_pair_for_split_messages.piece_offsets(pieces, out_at)
    done = 0
    for offset, n in zip(sources, pieces, strict=True):
        qp_pair_for_split_messages.out.write(data[done : done + n], offset=offset)
        done += n
    qp_pair_for_split_messages.into.view[:] = bytes([CANARY]) * AREA
    sinks = qp_pair_for_split_messages.piece_offsets(holes, in_at)

    qp_pair_for_split_messages.b.post_recv(
        RecvWR(
            1,
            sg=[
                qp_pair_for_split_messages.into.sge(o, n) for o, n in zip(sinks, holes, strict=True)
            ],
        )
    )
    qp_pair_for_split_messages.a.post_send(
        SendWR(
            2,
            sg=[
                qp_pair_for_split_messages.out.sge(o, n)
                for o, n in zip(sources, pieces, strict=True)
            ],
            ah=qp_pair_for_split_messages.to_b,
        )
    )
    assert poll(qp_pair_for_split_messages.scq)[0].ok
    (wc,) = poll(qp_pair_for_split_messages.rcq)
    assert (wc.ok, wc.byte_len) == (True, total)

    wanted = bytearray([CANARY]) * AREA
    done = 0
    for offset, n in zip(sinks, holes, strict=True):
        part = data[done : done + n]
        wanted[offset : offset + len(part)] = part
        done += len(part)
    assert done == total
    assert qp_pair_for_split_messages.into.read() == wanted


def test_sixteen_elements_on_both_sides_carry_the_largest_message(
    qp_pair_for_split_messages: ScatterGatherPair,
) -> None:
    most = qp_pair_for_split_messages.rig.ctx.query_device().max_ud_msg
    data = octet_pattern(most)
    qp_pair_for_split_messages.out.write(data)
    step = most // 16
    bounds = [i * step for i in range(16)] + [most]
    parts = list(itertools.pairwise(bounds))
    qp_pair_for_split_messages.b.post_recv(
        RecvWR(1, sg=[qp_pair_for_split_messages.into.sge(a, b - a) for a, b in parts])
    )
    qp_pair_for_split_messages.a.post_send(
        SendWR(
            2,
            sg=[qp_pair_for_split_messages.out.sge(a, b - a) for a, b in parts],
            ah=qp_pair_for_split_messages.to_b,
        )
    )
    assert poll(qp_pair_for_split_messages.rcq)[0].byte_len == most
    assert poll(qp_pair_for_split_messages.scq)[0].ok
    assert qp_pair_for_split_messages.into.read(most) == data
