"""Write with Immediate and Send with Immediate through queue pairs."""

from __future__ import annotations

from harness.rc_harness import SEND, WRITE, ListenerAndConnector
from harness.verbs_harness import assert_no_completion, counter_value, poll, wait_until

from siwarp.verbs import (
    Persona,
    SendWR,
    WROpcode,
)

WRITE_IMM, SEND_IMM = WROpcode.RDMA_WRITE_WITH_IMM, WROpcode.SEND_WITH_IMM


def test_a_waiting_write_with_immediate_reports_the_length_of_its_own_write(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(persona=Persona.ROCE)
    before = counter_value("rnr_unexpected")
    requests = [(SEND, 3), (WRITE_IMM, 70), (WRITE_IMM, 5), (WRITE, 9)]
    a.qp.post_send(
        [
            SendWR(i, opcode, sg=[a.mem.sge(0, n)], remote=b.mem.remote(0, 100), imm_data=i)
            if opcode != SEND
            else SendWR(i, opcode, sg=[a.mem.sge(0, n)])
            for i, (opcode, n) in enumerate(requests)
        ]
    )
    wait_until(lambda: b.rcq.poll(1) or counter_value("rnr_unexpected") - before == 3)
    assert_no_completion(a.scq)
    for i in range(3):
        b.post_receive(wr_id=i, offset=1000, length=10)
    got = poll(b.rcq, 3)
    assert [(w.byte_len, w.ok) for w in got] == [(3, True), (70, True), (5, True)]
    assert [w.imm_data for w in got[1:]] == [1, 2]
    assert [w.wr_id for w in poll(a.scq, 4)] == [0, 1, 2, 3]
