"""Scatter and gather: any split of a message on either side gives the same octets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from harness.verbs_harness import Rig, pattern, poll
from hypothesis import given
from hypothesis import strategies as st

from siwarp.verbs import RecvWR, SendWR

CANARY = 0xA5
GAP = 8
AREA = 1 << 17


class Splits:
    """Two UD queue pairs with 16 elements a request, and areas to cut up."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.out = self.rig.mr(bytearray(AREA))
        self.into = self.rig.mr(bytearray(AREA))
        self.scq, self.rcq = self.rig.cq(), self.rig.cq()
        self.a = self.rig.ud(self.scq, max_send_sge=16)
        self.b = self.rig.ud(self.rcq, max_recv_sge=16)
        self.to_b = self.rig.ah(self.b)

    def place(self, lengths: list[int], misalign: int) -> list[int]:
        """Return offsets of pieces of these lengths, with canaries before and after each piece."""
        at, offsets = GAP + misalign, []
        for n in lengths:
            offsets.append(at)
            at += n + GAP
        assert at <= AREA
        return offsets


@pytest.fixture(scope="module")
def splits() -> Iterator[Splits]:
    made = Splits()
    yield made
    made.rig.close()


def cuts(most: int) -> st.SearchStrategy[list[int]]:
    size = st.one_of(st.integers(0, 8), st.integers(0, most // 16))
    return st.lists(size, min_size=0, max_size=16)


@given(
    st.one_of(cuts(300), cuts(16000), cuts(65000)),
    st.lists(st.integers(0, 1 << 16), max_size=15),
    st.integers(0, 15),
    st.integers(0, 15),
    st.integers(0, 40),
)
def test_any_split_is_gathered_and_scattered_octet_by_octet(
    splits: Splits, pieces: list[int], marks: list[int], out_at: int, in_at: int, spare: int
) -> None:
    total = sum(pieces)
    data = pattern(total, total)
    bounds = [0, *sorted(m % (total + 1) for m in marks), total]
    holes = [b - a for a, b in itertools.pairwise(bounds)]
    holes[-1] += spare  # room that the message does not fill

    splits.out.view[:] = bytes(AREA)
    sources = splits.place(pieces, out_at)
    done = 0
    for offset, n in zip(sources, pieces, strict=True):
        splits.out.write(data[done : done + n], offset=offset)
        done += n
    splits.into.view[:] = bytes([CANARY]) * AREA
    sinks = splits.place(holes, in_at)

    splits.b.post_recv(
        RecvWR(1, sg=[splits.into.sge(o, n) for o, n in zip(sinks, holes, strict=True)])
    )
    splits.a.post_send(
        SendWR(
            2,
            sg=[splits.out.sge(o, n) for o, n in zip(sources, pieces, strict=True)],
            ah=splits.to_b,
        )
    )
    assert poll(splits.scq)[0].ok
    (wc,) = poll(splits.rcq)
    assert (wc.ok, wc.byte_len) == (True, total)

    wanted = bytearray([CANARY]) * AREA
    done = 0
    for offset, n in zip(sinks, holes, strict=True):
        part = data[done : done + n]
        wanted[offset : offset + len(part)] = part
        done += len(part)
    assert done == total
    assert splits.into.read() == wanted


def test_sixteen_elements_on_both_sides_carry_the_largest_message(splits: Splits) -> None:
    most = splits.rig.ctx.query_device().max_ud_msg
    data = pattern(most)
    splits.out.write(data)
    step = most // 16
    bounds = [i * step for i in range(16)] + [most]
    parts = list(itertools.pairwise(bounds))
    splits.b.post_recv(RecvWR(1, sg=[splits.into.sge(a, b - a) for a, b in parts]))
    splits.a.post_send(SendWR(2, sg=[splits.out.sge(a, b - a) for a, b in parts], ah=splits.to_b))
    assert poll(splits.rcq)[0].byte_len == most
    assert poll(splits.scq)[0].ok
    assert splits.into.read(most) == data
