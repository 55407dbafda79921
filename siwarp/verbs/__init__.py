# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""OF verbs for Python: the names of pyverbs, on siwarp's software RNIC.

A UD queue pair that sends a message to itself::

    from siwarp.verbs import *

    with Context() as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, bytearray(128)) as mr:
        with QP(pd, QPInitAttr(QPType.UD, scq=cq)) as qp:
            qp.to_rts()
            qp.post_recv(RecvWR(1, sg=[mr.sge(64, 64)]))
            mr.write(b"hello")
            qp.post_send(SendWR(2, sg=[mr.sge(0, 5)], ah=AH(pd, qp.addr)))

Every handle is a context manager, closes once, and keeps the handles alive that it was created
from. Several threads may poll and post; one work request must be used by one thread at a time.
"""

from siwarp.base.buffer import Buffer
from siwarp.verbs._ffi import Address
from siwarp.verbs.ah import AH, AHAttr
from siwarp.verbs.capture import capture
from siwarp.verbs.cq import CQ, WC, CompChannel
from siwarp.verbs.device import Context, Device, DeviceAttr, get_device_list, source_toward
from siwarp.verbs.enums import (
    AccessFlag,
    ErrorOrigin,
    ErrorPolicy,
    EventType,
    MWType,
    Persona,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    SrqAttrMask,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from siwarp.verbs.errors import (
    Error,
    LimitError,
    PeerGone,
    ProtocolError,
    StateError,
    Timeout,
    terminate_clause,
    terminate_reason,
)
from siwarp.verbs.events import AsyncEvent
from siwarp.verbs.fault_plan import faults, set_faults
from siwarp.verbs.mr import MR, RemoteBuffer
from siwarp.verbs.mw import MW, MWBind, MWBindInfo, inc_rkey
from siwarp.verbs.pd import PD
from siwarp.verbs.qp import QP
from siwarp.verbs.qpattr import QPAttr, QPCap, QPInitAttr
from siwarp.verbs.reports import ErrorReport, PeerRestart, ReceiveWait, Record, SourceDrops
from siwarp.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from siwarp.verbs.wr import SGE, RecvWR, SendWR

__all__ = [
    "AH",
    "CQ",
    "MR",
    "MW",
    "PD",
    "QP",
    "SGE",
    "SRQ",
    "WC",
    "AHAttr",
    "AccessFlag",
    "Address",
    "AsyncEvent",
    "Buffer",
    "CompChannel",
    "Context",
    "Device",
    "DeviceAttr",
    "Error",
    "ErrorOrigin",
    "ErrorPolicy",
    "ErrorReport",
    "EventType",
    "LimitError",
    "MWBind",
    "MWBindInfo",
    "MWType",
    "PeerGone",
    "PeerRestart",
    "Persona",
    "ProtocolError",
    "QPAttr",
    "QPAttrMask",
    "QPCap",
    "QPInitAttr",
    "QPState",
    "QPType",
    "ReceiveWait",
    "Record",
    "RecvWR",
    "RemoteBuffer",
    "SendFlag",
    "SendWR",
    "SourceDrops",
    "SrqAttr",
    "SrqAttrMask",
    "SrqInitAttr",
    "StateError",
    "Timeout",
    "WCFlag",
    "WCOpcode",
    "WCStatus",
    "WROpcode",
    "capture",
    "faults",
    "get_device_list",
    "inc_rkey",
    "set_faults",
    "source_toward",
    "terminate_clause",
    "terminate_reason",
]


def __dir__() -> list[str]:
    return __all__
