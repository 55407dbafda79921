"""Devices with several lanes, on which a test chooses the lane of each queue pair."""

from __future__ import annotations

import itertools

from harness.verbs_harness import Rig, temporary_settings

from siwarp.verbs import CQ, QP, CompChannel, QPInitAttr

LANES = 4
#: The lanes of the two ends of a connection.
PAIRS_OF_LANES = list(itertools.product(range(LANES), repeat=2))


class LaneRig(Rig):
    """An open device with four lanes; CQs, and with them queue pairs, are created in ``lane``."""

    def __init__(self, name: str | None = None) -> None:
        with temporary_settings(lanes=LANES):
            super().__init__(name)
        self.lane = 0
        self._others: list[QP] = []

    def create_cq(self, cqe: int = 256, channel: CompChannel | None = None) -> CQ:
        # Completion vector 0 stands for the lane with the fewest CQs on which queue pairs receive,
        # so each of the other lanes gets one more.
        if not self.lane:
            for lane in range(1, LANES):
                cq = CQ(self.ctx, 1, comp_vector=lane)
                self._others.append(QP(self.pd, QPInitAttr(scq=cq, rcq=cq)))
        return CQ(self.ctx, cqe, channel=channel, comp_vector=self.lane)
