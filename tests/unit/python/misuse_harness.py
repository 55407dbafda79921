"""Objects and constants shared by the tests of misuse."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from harness.rc_harness import End, ListenerAndConnector
from harness.verbs_harness import Rig

import siwarp
from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import (
    AH,
    QP,
    QPAttr,
    QPState,
    QPType,
    RemoteBuffer,
    SendWR,
    WROpcode,
)

EINVAL, ENOMEM, EBUSY, EBADF = errno.EINVAL, errno.ENOMEM, errno.EBUSY, errno.EBADF
SEND, WRITE, READ = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ
State, Limit, Plain = siwarp.StateError, siwarp.LimitError, siwarp.Error


class VerbsObjects:
    """Two devices, the first with objects of each kind and functions that create queue pairs."""

    def __init__(self) -> None:
        self.rig, self.other = Rig(), Rig()
        self.ctx, self.pd = self.rig.ctx, self.rig.pd
        self.cq = self.rig.create_cq()
        self.mr = self.rig.reg_mr(4096)
        self.sge = self.mr.sge(0, 8)
        self.there = RemoteBuffer(1, 8, 2)
        self.ah = AH(self.pd, ("127.0.0.1", 9))
        self.busy = self.rig.create_qp(self.rig.create_cq())

    def make_ud_qp(self, state: QPState = QPState.RTS, **kw: Any) -> QP:
        qp = self.rig.create_qp(self.cq, **kw)
        for step in (QPState.INIT, QPState.RTR, QPState.RTS):
            if step <= state:
                qp.modify(QPAttr(qp_state=step))
        return qp

    def make_rc_qp(self, state: QPState = QPState.RESET, **kw: Any) -> QP:
        qp = self.rig.create_qp(self.cq, qp_type=QPType.RC, **kw)
        if state == QPState.INIT:
            qp.to_init()
        return qp

    def connect_endpoint(self, **kw: Any) -> End:
        return ListenerAndConnector(self.rig, self.other).connect(**kw)[0]

    def make_send_wr(self, **kw: Any) -> SendWR:
        return SendWR(**{"sg": [self.sge], "ah": self.ah, **kw})

    def make_cm_id(self) -> CMID:
        return CMID(CMEventChannel(self.ctx))

    def close(self) -> None:
        self.rig.close()
        self.other.close()


def assert_call_refused(
    call: Callable[[VerbsObjects], object],
    objects: VerbsObjects,
    kind: type[Exception],
    number: int,
    hint: str,
) -> None:
    """Assert that the call raises an exception of exactly this kind, errno value and hint."""
    with pytest.raises(kind, match=hint) as caught:
        call(objects)
    if issubclass(kind, OSError):
        assert type(caught.value) is kind
        assert isinstance(caught.value, OSError) and caught.value.errno == number
