"""When send calls fail, all posted messages are sent nevertheless, once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from failing import run_with_failing_calls

BEGIN = """
from harness.uc_harness import UCPair
from harness.record_harness import WriteRecordTarget
from harness.verbs_harness import Rig, Pair, assert_counter_grows, octet_pattern, poll
from siwarp.verbs import QPState, RecvWR, SendWR, WROpcode
rig = Rig()
"""
N = 20


@pytest.mark.parametrize("error", ["EOPNOTSUPP", "EINVAL", "ECONNREFUSED", "EAGAIN", "ENOBUFS"])
@pytest.mark.parametrize("kind", ["Pair", "UCPair"])
def test_all_datagrams_of_a_batch_arrive_in_order_although_send_calls_fail(
    build_dir: Path, kind: str, error: str
) -> None:
    run_with_failing_calls(
        build_dir,
        BEGIN
        + f"""
ends = {kind}(rig, max_send_wr=64, max_recv_wr=64)
more = {{"ah": ends.to_b}} if {kind!r} == "Pair" else {{}}
ends.out.write(octet_pattern({N} * 500))
for i in range({N}):
    ends.post_receive(i, 500, i * 500)
with failing("sendmsg", errno.{error}, times=3):
    ends.a.post_send(
        [SendWR(i, sg=[ends.out.sge(i * 500, 500)], **more) for i in range({N})]
    )
    assert [wc.ok for wc in poll(ends.scq, {N})] == [True] * {N}
got = poll(ends.rcq, {N})
assert [(wc.wr_id, wc.byte_len) for wc in got] == [(i, 500) for i in range({N})]
assert ends.into.read({N} * 500) == octet_pattern({N} * 500)
assert ends.a.qp_state == QPState.RTS
rig.close()
""",
    )


@pytest.mark.parametrize("error", ["EAGAIN", "ENOBUFS", "EINTR"])
@pytest.mark.parametrize(
    ("size", "call"), [(100, "sendto"), (5000, "sendmsg"), (200_000, "sendmsg")]
)
def test_a_uc_message_is_sent_although_send_calls_fail_temporarily(
    build_dir: Path, size: int, call: str, error: str
) -> None:
    run_with_failing_calls(
        build_dir,
        BEGIN
        + f"""
ends = UCPair(rig, size=1 << 18)
ends.out.write(octet_pattern({size}))
ends.post_receive(1, {size}, 0)
with failing({call!r}, errno.{error}, times=2):
    ends.a.post_send(SendWR(2, sg=[ends.out.sge(0, {size})]))
    assert poll(ends.scq)[0].ok
assert poll(ends.rcq)[0].byte_len == {size}
assert ends.into.read({size}) == octet_pattern({size})
rig.close()
""",
    )


@pytest.mark.parametrize("size", [10, 4097, 200_000])
@pytest.mark.parametrize("how", ["unmapped", "protected"])
def test_a_write_record_from_unmapped_or_protected_memory_is_a_protection_error(
    build_dir: Path, how: str, size: int
) -> None:
    run_with_failing_calls(
        build_dir,
        BEGIN
        + f"""
from hostile.vanishing import RemovableMemory
from siwarp.verbs import QPAttr, WCStatus
target = WriteRecordTarget(rig, size=1 << 18)
qp = rig.create_ud_qp(qkey=0x2345)
memory = RemovableMemory(1 << 18, {how!r})
gone, good = rig.reg_mr(memory.buffer), rig.reg_mr(bytearray(octet_pattern({size})))
memory.remove_pages()
def post(wr_id, mr):
    qp.post_send(SendWR(
        wr_id, WROpcode.RDMA_WRITE_RECORD, sg=[mr.sge(0, {size})], ah=rig.create_ah(target.qp),
        remote=target.memory.remote(0, {size}), remote_qkey=0x2345,
    ))
    return poll(qp.scq)[0].status
assert post(1, gone) == WCStatus.LOC_PROT_ERR and qp.qp_state == QPState.SQE
qp.modify(QPAttr(qp_state=QPState.RTS))
assert post(2, good) == WCStatus.SUCCESS
((_, record),) = target.poll_write_records()
assert record.whole and target.memory.read({size}) == octet_pattern({size})
gone.close()
rig.close()
""",
    )
