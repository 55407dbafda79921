"""Completion queues that are resized, that overflow, and whose queue pair is destroyed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.cq_harness import create_qp_with_flushed_receives, poll_wr_ids
from harness.verbs_harness import Rig, assert_no_completion, wait_until

from siwarp.verbs import (
    QP,
    QPAttr,
    QPState,
    RecvWR,
    SendWR,
)

# ---- resizing


@pytest.mark.parametrize("cqe", [4, 8, 100, 4096])
def test_resizing_a_completion_queue_preserves_its_completions_in_order(rig: Rig, cqe: int) -> None:
    cq = rig.create_cq(8)
    qp = create_qp_with_flushed_receives(rig, cq)
    qp.post_recv([RecvWR(i) for i in range(7)])
    # The five polled completions make the ring wrap around.
    assert poll_wr_ids(cq, 5) == [0, 1, 2, 3, 4]
    qp.post_recv([RecvWR(i) for i in (7, 8)])
    cq.resize(cqe)
    assert cq.capacity >= cqe
    room = cq.capacity - 4
    qp.post_recv([RecvWR(100 + i) for i in range(min(room, 64))])
    assert poll_wr_ids(cq, 4 + min(room, 64)) == [5, 6, 7, 8, *range(100, 100 + min(room, 64))]
    assert_no_completion(cq)


# ---- removal of a queue pair


def destroy_qp(qp: QP) -> None:
    qp.close()


def reset_qp(qp: QP) -> None:
    qp.modify(QPAttr(qp_state=QPState.RESET))


@pytest.mark.parametrize("end", [destroy_qp, reset_qp])
def test_a_destroyed_or_reset_queue_pair_leaves_no_completions_even_after_a_resize(
    rig: Rig, end: Callable[[QP], None]
) -> None:
    scq, rcq = rig.create_cq(16), rig.create_cq(16)
    into, out = rig.reg_mr(64), rig.reg_mr(64)
    gone, stays = rig.create_ud_qp(scq=scq, rcq=rcq), rig.create_ud_qp(scq=scq, rcq=rcq)
    for n, qp in enumerate((gone, stays, gone, stays)):
        qp.post_recv(RecvWR(n, sg=[into.sge()]))
        qp.post_send(SendWR(10 + n, sg=[out.sge(0, 4)], ah=rig.create_ah(qp)))
    # Polling another queue processes the traffic, so that all completions stay in both queues.
    other = rig.create_cq()
    scq.resize(64)
    gone.modify(QPAttr(qp_state=QPState.ERR))
    wait_until(lambda: other.poll() or stays.qp_state == QPState.RTS)
    rcq.resize(4)
    end(gone)
    assert poll_wr_ids(scq, 2) == [11, 13]
    assert poll_wr_ids(rcq, 2) == [1, 3]
    assert_no_completion(scq)
    assert_no_completion(rcq)
