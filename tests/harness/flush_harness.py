"""Helpers for the tests of flushed work requests."""

from __future__ import annotations

from harness.rc_harness import End
from harness.verbs_harness import poll

from siwarp.verbs import WCOpcode, WCStatus

FLUSHED = WCStatus.WR_FLUSH_ERR


def assert_all_flushed(end: End) -> None:
    """Assert that all posted requests, also unsignaled sends, were flushed once and in order."""
    end.wait_for_error_state()
    for cq, ids, opcode in [
        (end.rcq, range(10, 14), WCOpcode.RECV),
        (end.scq, range(20, 24), WCOpcode.SEND),
    ]:
        done = poll(cq, 4)
        assert [(w.wr_id, w.status, w.opcode) for w in done] == [(i, FLUSHED, opcode) for i in ids]
        assert all(w.qp_num == end.qp.qp_num for w in done)
