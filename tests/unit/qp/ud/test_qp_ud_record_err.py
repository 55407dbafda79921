"""Error messages about Write-Records.

This file's tests use real sockets; others are in tests/sim/verbs/test_verbs_record_err.py.
"""

from __future__ import annotations

from harness.record_harness import QKEY, WriteRecordTarget
from harness.verbs_harness import Rig, poll, wait_until

from siwarp.verbs import (
    SendWR,
    WROpcode,
)


def test_an_error_of_a_write_record_is_reported_to_its_sender_with_the_wr_id(rig: Rig) -> None:
    target = WriteRecordTarget(rig, max_write_records=0)
    first = rig.create_ud_qp(qkey=QKEY)
    for n, sender in enumerate((first, rig.create_ud_qp(qkey=QKEY, shared_socket_qp=first))):
        out = rig.reg_mr(bytearray(20))
        sender.post_send(
            SendWR(
                40 + n, WROpcode.RDMA_WRITE_RECORD, sg=[out.sge()], ah=rig.create_ah(target.qp),
                remote=target.memory.remote(), remote_qkey=QKEY,
            )
        )  # fmt: skip
        assert poll(sender.scq)[0].ok
        wait_until(target.qp.errors)
        found = wait_until(sender.errors)
        assert [(e.wr_id, e.type, e.code) for e in found] == [(40 + n, 2, 6)]
        assert found[0].source == target.qp.addr
