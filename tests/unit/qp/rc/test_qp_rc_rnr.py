"""RNR attributes of an RC queue pair; tests of the timer are in tests/sim/test_sim_rc_rnr.py."""

from __future__ import annotations

import pytest
from harness.verbs_harness import Rig

from siwarp.verbs import QPAttr, QPType


def test_rnr_retry_and_min_rnr_timer_are_stored_and_range_checked(rig: Rig) -> None:
    qp = rig.create_qp(qp_type=QPType.RC)
    attr, _ = qp.query()
    assert (attr.rnr_retry, attr.min_rnr_timer) == (7, 12)
    qp.modify(QPAttr(rnr_retry=3, min_rnr_timer=31))
    attr, _ = qp.query()
    assert (attr.rnr_retry, attr.min_rnr_timer) == (3, 31)
    for bad in (QPAttr(rnr_retry=8), QPAttr(rnr_retry=-1), QPAttr(min_rnr_timer=32)):
        with pytest.raises(OSError, match="is not in the range 0 to"):
            qp.modify(bad)
    assert qp.query()[0].rnr_retry == 3
