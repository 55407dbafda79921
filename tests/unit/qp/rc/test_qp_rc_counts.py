"""Delivery counts: requests complete when the siwarp peer reports that it has received them.

This file's tests use real sockets; others are in tests/sim/verbs/test_verbs_counts.py.
"""

from __future__ import annotations

from typing import Any

from harness.rc_harness import SEND, WRITE, ListenerAndConnector
from harness.verbs_harness import assert_counter_grows, poll

from siwarp.verbs import (
    Persona,
    QPAttr,
    WCStatus,
)

FLUSHED = WCStatus.WR_FLUSH_ERR
ROCE: dict[str, Any] = {"persona": Persona.ROCE, "private_messages": True}


def test_the_progress_thread_sends_delivery_counts_if_the_program_does_not_poll(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(**ROCE)
    with assert_counter_grows("delivery_counts_rx", 20):
        for i in range(20):
            a.post(WRITE, i, length=64, remote=b.mem.remote(0, 64))
            assert poll(a.scq)[0].wr_id == i


def test_a_send_that_exhausts_its_rnr_retries_completes_with_rnr_retry_exc_err(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect(**ROCE)
    b.qp.modify(QPAttr(min_rnr_timer=1))
    a.qp.modify(QPAttr(rnr_retry=1))
    a.post(SEND, 1, length=8)
    a.post(WRITE, 2, length=8, remote=b.mem.remote(0, 8))
    assert [w.status for w in poll(a.scq, 2)] == [WCStatus.RNR_RETRY_EXC_ERR, FLUSHED]
