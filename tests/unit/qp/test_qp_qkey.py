"""The default Q_Key of queue pairs, and which error policies are allowed with which Q_Key."""

from __future__ import annotations

import os
import subprocess
import sys

import pace
import pytest
from harness.rd_harness import RDEnd
from harness.verbs_harness import Rig, wait_until

from siwarp.verbs import (
    QP,
    Error,
    ErrorPolicy,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RemoteBuffer,
    WROpcode,
)
from siwarp.verbs.qkey import default_qkey

_DATAGRAMS = [QPType.UD, QPType.RD]


def _queried_qkey(qp: QP) -> int | None:
    return qp.query()[0].qkey


def _query_qp_error_policy(qp: QP) -> int | str:
    return qp.query()[1].error_policy


@pytest.mark.clause("DGRAM-ERR-20")
@pytest.mark.parametrize("kind", _DATAGRAMS)
def test_the_default_q_key_is_that_of_the_process(rig: Rig, kind: QPType) -> None:
    attr = QPInitAttr(kind, scq=rig.create_cq(), addr=("127.0.0.1", 0))
    with QP(rig.pd, attr) as first, QP(rig.pd, attr) as second:
        first.to_rts()
        second.to_rts(QPAttr(qkey=7))
        assert [_queried_qkey(first), _queried_qkey(second)] == [default_qkey(), 7]
        for qp in (first, second):  # a queue pair keeps its Q_Key in a reset
            qp.modify(QPAttr(qp_state=QPState.RESET))
            qp.to_rts()
        assert [_queried_qkey(first), _queried_qkey(second)] == [default_qkey(), 7]
    with QP(rig.pd, QPInitAttr(kind, scq=rig.create_cq(), qkey=9)) as third:
        third.to_init()
        assert _queried_qkey(third) == 9


@pytest.mark.clause("DGRAM-ERR-20")
def test_each_process_without_siwarp_qkey_chooses_a_random_default_q_key() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "SIWARP_QKEY"}
    drawn = {
        int(
            pace.run_command(
                [sys.executable, "-c", "from siwarp.verbs.qkey import *; print(default_qkey())"],
                env=environment,
                cwd="/",
                stdout=subprocess.PIPE,
                check=True,
                seconds=30,
            ).stdout
        )
        for _ in range(3)
    }
    assert len(drawn) == 3
    assert all(0 < qkey < 1 << 31 for qkey in drawn)


@pytest.mark.clause("DGRAM-ERR-18")
@pytest.mark.parametrize("kind", _DATAGRAMS)
def test_error_policy_error_requires_a_q_key_other_than_0(rig: Rig, kind: QPType) -> None:
    attr = QPInitAttr(kind, scq=rig.create_cq(), error_policy="error", qkey=0)
    with QP(rig.pd, attr) as qp:
        with pytest.raises(Error, match="ERROR requires a Q_Key other than 0"):
            qp.to_init()
        assert qp.qp_state == QPState.RESET
        qp.to_rts(QPAttr(qkey=5))
        with pytest.raises(Error, match="ERROR requires a Q_Key other than 0"):
            qp.modify(QPAttr(qkey=0))
        assert (_queried_qkey(qp), _query_qp_error_policy(qp), qp.qp_state) == (
            5,
            ErrorPolicy.ERROR,
            QPState.RTS,
        )


@pytest.mark.clause("DGRAM-ERR-18")
def test_with_q_key_0_the_default_error_policy_is_message(rig: Rig) -> None:
    with QP(rig.pd, QPInitAttr(QPType.UD, scq=rig.create_cq(), qkey=0)) as qp:
        qp.to_rts()
        assert _query_qp_error_policy(qp) == ErrorPolicy.MESSAGE
        qp.modify(QPAttr(qkey=5))
        assert _query_qp_error_policy(qp) == ErrorPolicy.ERROR


@pytest.mark.clause("DGRAM-ERR-19")
def test_by_default_an_invalid_write_leaves_an_rd_queue_pair_in_rts(rig: Rig) -> None:
    a, b = RDEnd(rig, policy=ErrorPolicy.AUTO), RDEnd(rig, policy=ErrorPolicy.AUTO)
    assert _query_qp_error_policy(b.qp) == ErrorPolicy.MESSAGE
    b.post_receive()
    a.post_rdma(b, WROpcode.RDMA_WRITE, 100, 1, remote=RemoteBuffer(b.into.addr, 1, 100))
    a.send(b, b"behind", 2)
    assert b.poll_receives()[0].ok
    assert a.poll_sends(2)[1].ok
    assert [found.source for found in wait_until(b.qp.errors)] == [a.qp.addr]
    assert b.qp.qp_state == QPState.RTS
