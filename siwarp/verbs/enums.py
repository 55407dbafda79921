# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The constants of the verbs, each under two names.

``WCStatus.SUCCESS`` and ``IBV_WC_SUCCESS``, as in ``pyverbs.enums``, are the same object.
Values are those of ``<siwarp/siw.h>``.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class AccessFlag(IntFlag):
    """Access rights of a memory region (``enum siw_access_flags``)."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8
    #: For a region: memory windows may be bound to the region.
    MW_BIND = 16
    #: For a memory region or memory window: tagged offsets start at 0.
    ZERO_BASED = 32
    #: siwarp's extension, for a region that belongs to one queue pair: ``MR(..., qp=qp)``.
    REMOTE_INVALIDATE = 1 << 30


class MWType(IntEnum):
    """The types of memory windows (``enum siw_mw_type``): of a PD, and of one queue pair."""

    TYPE_1 = 1
    TYPE_2 = 2


class WCStatus(IntEnum):
    """The result of a work request (``enum siw_wc_status``)."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21


class WCOpcode(IntEnum):
    """The operation that completed (``enum siw_wc_opcode``)."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    RECV = 128
    RECV_RDMA_WITH_IMM = 129
    #: siwarp's extension: a Write-Record has written to this end; see ``QP.record``.
    RECV_WRITE_RECORD = 640


class WCFlag(IntFlag):
    """Additional contents of a completion (``enum siw_wc_flags``)."""

    GRH = 1
    WITH_IMM = 2
    WITH_INV = 8


class QPType(IntEnum):
    """The types of queue pairs (``enum siw_qp_type``)."""

    RC = 2
    UC = 3
    UD = 4
    #: Reliable datagrams; libibverbs has no number for this type.
    RD = 5


class QPState(IntEnum):
    """The states of a queue pair (``enum siw_qp_state``)."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class Persona(IntEnum):
    """When RC sends complete (``enum siw_persona``): accepted by TCP, or received by the peer."""

    AUTO = 0
    IWARP = 1
    ROCE = 2


class ErrorPolicy(IntEnum):
    """The effect of a peer's faulty message on a datagram queue pair (``enum siw_error_policy``).

    ``ERROR``: move the queue pair to the error state; ``MESSAGE``: only queue the error; ``AUTO``:
    as the setting says.
    """

    AUTO = 0
    ERROR = 1
    MESSAGE = 2


class ErrorOrigin(IntEnum):
    """Which end found an error of a datagram queue pair (``enum siw_err_origin``)."""

    #: The error was found by this end, in a received message.
    FOUND = 1
    #: The error was reported by a peer, about a message that this end sent.
    REPORTED = 2


class QPAttrMask(IntFlag):
    """The attributes that a modify call changes (``enum siw_qp_attr_mask``)."""

    STATE = 1
    CUR_STATE = 2
    EN_SQD_ASYNC_NOTIFY = 4
    ACCESS_FLAGS = 8
    QKEY = 64
    AV = 128
    PATH_MTU = 256
    TIMEOUT = 512
    RETRY_CNT = 1024
    RNR_RETRY = 2048
    RQ_PSN = 4096
    MAX_QP_RD_ATOMIC = 8192
    MIN_RNR_TIMER = 32768
    SQ_PSN = 65536
    MAX_DEST_RD_ATOMIC = 131072
    DEST_QPN = 1048576
    RATE_LIMIT = 33554432
    FD = 1 << 30


class WROpcode(IntEnum):
    """The operation of a work request (``enum siw_wr_opcode``)."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6
    LOCAL_INV = 7
    BIND_MW = 8
    SEND_WITH_INV = 9
    #: Masked atomics; the values are those of the kernel.
    MASKED_ATOMIC_CMP_AND_SWP = 12
    MASKED_ATOMIC_FETCH_AND_ADD = 13
    #: siwarp's extension: an RDMA Write that the target records; on UD and RD.
    RDMA_WRITE_RECORD = 128


class SendFlag(IntFlag):
    """Flags of a send request (``enum siw_send_flags``)."""

    FENCE = 1
    SIGNALED = 2
    SOLICITED = 4
    INLINE = 8


class EventType(IntEnum):
    """The types of asynchronous events (``enum siw_event_type``)."""

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    COMM_EST = 4
    SQ_DRAINED = 5
    PATH_MIG = 6
    PATH_MIG_ERR = 7
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10
    LID_CHANGE = 11
    PKEY_CHANGE = 12
    SM_CHANGE = 13
    SRQ_ERR = 14
    SRQ_LIMIT_REACHED = 15
    QP_LAST_WQE_REACHED = 16
    CLIENT_REREGISTER = 17
    GID_CHANGE = 18
    #: Extension of siwarp: errors were added to the error queue, which ``QP.errors`` returns.
    QP_ERR_QUEUED = 1000
    #: Extension of siwarp: a peer of the queue pair has restarted; see ``QP.restarts``.
    PEER_RESTARTED = 1001
    #: Extension of siwarp, UC: the peer loses too many datagrams; sending is slowed for 10 s.
    CONGESTED = 1002


class SrqAttrMask(IntFlag):
    """The attributes that a modify call of an SRQ changes (``enum siw_srq_attr_mask``)."""

    MAX_WR = 1
    LIMIT = 2


IBV_ACCESS_LOCAL_WRITE = AccessFlag.LOCAL_WRITE
IBV_ACCESS_REMOTE_WRITE = AccessFlag.REMOTE_WRITE
IBV_ACCESS_REMOTE_READ = AccessFlag.REMOTE_READ
IBV_ACCESS_REMOTE_ATOMIC = AccessFlag.REMOTE_ATOMIC
IBV_ACCESS_MW_BIND = AccessFlag.MW_BIND
IBV_ACCESS_ZERO_BASED = AccessFlag.ZERO_BASED
IBV_MW_TYPE_1 = MWType.TYPE_1
IBV_MW_TYPE_2 = MWType.TYPE_2
IBV_WC_SUCCESS = WCStatus.SUCCESS
IBV_WC_LOC_LEN_ERR = WCStatus.LOC_LEN_ERR
IBV_WC_LOC_QP_OP_ERR = WCStatus.LOC_QP_OP_ERR
IBV_WC_LOC_EEC_OP_ERR = WCStatus.LOC_EEC_OP_ERR
IBV_WC_LOC_PROT_ERR = WCStatus.LOC_PROT_ERR
IBV_WC_WR_FLUSH_ERR = WCStatus.WR_FLUSH_ERR
IBV_WC_MW_BIND_ERR = WCStatus.MW_BIND_ERR
IBV_WC_BAD_RESP_ERR = WCStatus.BAD_RESP_ERR
IBV_WC_LOC_ACCESS_ERR = WCStatus.LOC_ACCESS_ERR
IBV_WC_REM_INV_REQ_ERR = WCStatus.REM_INV_REQ_ERR
IBV_WC_REM_ACCESS_ERR = WCStatus.REM_ACCESS_ERR
IBV_WC_REM_OP_ERR = WCStatus.REM_OP_ERR
IBV_WC_RETRY_EXC_ERR = WCStatus.RETRY_EXC_ERR
IBV_WC_RNR_RETRY_EXC_ERR = WCStatus.RNR_RETRY_EXC_ERR
IBV_WC_LOC_RDD_VIOL_ERR = WCStatus.LOC_RDD_VIOL_ERR
IBV_WC_REM_INV_RD_REQ_ERR = WCStatus.REM_INV_RD_REQ_ERR
IBV_WC_REM_ABORT_ERR = WCStatus.REM_ABORT_ERR
IBV_WC_INV_EECN_ERR = WCStatus.INV_EECN_ERR
IBV_WC_INV_EEC_STATE_ERR = WCStatus.INV_EEC_STATE_ERR
IBV_WC_FATAL_ERR = WCStatus.FATAL_ERR
IBV_WC_RESP_TIMEOUT_ERR = WCStatus.RESP_TIMEOUT_ERR
IBV_WC_GENERAL_ERR = WCStatus.GENERAL_ERR
IBV_WC_SEND = WCOpcode.SEND
IBV_WC_RDMA_WRITE = WCOpcode.RDMA_WRITE
IBV_WC_RDMA_READ = WCOpcode.RDMA_READ
IBV_WC_COMP_SWAP = WCOpcode.COMP_SWAP
IBV_WC_FETCH_ADD = WCOpcode.FETCH_ADD
IBV_WC_BIND_MW = WCOpcode.BIND_MW
IBV_WC_LOCAL_INV = WCOpcode.LOCAL_INV
IBV_WC_RECV = WCOpcode.RECV
IBV_WC_RECV_RDMA_WITH_IMM = WCOpcode.RECV_RDMA_WITH_IMM
IBV_WC_GRH = WCFlag.GRH
IBV_WC_WITH_IMM = WCFlag.WITH_IMM
IBV_WC_WITH_INV = WCFlag.WITH_INV
IBV_QPT_RC = QPType.RC
IBV_QPT_UC = QPType.UC
IBV_QPT_UD = QPType.UD
IBV_QPS_RESET = QPState.RESET
IBV_QPS_INIT = QPState.INIT
IBV_QPS_RTR = QPState.RTR
IBV_QPS_RTS = QPState.RTS
IBV_QPS_SQD = QPState.SQD
IBV_QPS_SQE = QPState.SQE
IBV_QPS_ERR = QPState.ERR
IBV_QP_STATE = QPAttrMask.STATE
IBV_QP_CUR_STATE = QPAttrMask.CUR_STATE
IBV_QP_EN_SQD_ASYNC_NOTIFY = QPAttrMask.EN_SQD_ASYNC_NOTIFY
IBV_QP_ACCESS_FLAGS = QPAttrMask.ACCESS_FLAGS
IBV_QP_QKEY = QPAttrMask.QKEY
IBV_QP_AV = QPAttrMask.AV
IBV_QP_PATH_MTU = QPAttrMask.PATH_MTU
IBV_QP_TIMEOUT = QPAttrMask.TIMEOUT
IBV_QP_RETRY_CNT = QPAttrMask.RETRY_CNT
IBV_QP_RQ_PSN = QPAttrMask.RQ_PSN
IBV_QP_SQ_PSN = QPAttrMask.SQ_PSN
IBV_QP_DEST_QPN = QPAttrMask.DEST_QPN
IBV_QP_RATE_LIMIT = QPAttrMask.RATE_LIMIT
IBV_QP_RNR_RETRY = QPAttrMask.RNR_RETRY
IBV_QP_MIN_RNR_TIMER = QPAttrMask.MIN_RNR_TIMER
IBV_QP_MAX_QP_RD_ATOMIC = QPAttrMask.MAX_QP_RD_ATOMIC
IBV_QP_MAX_DEST_RD_ATOMIC = QPAttrMask.MAX_DEST_RD_ATOMIC
IBV_WR_RDMA_WRITE = WROpcode.RDMA_WRITE
IBV_WR_RDMA_WRITE_WITH_IMM = WROpcode.RDMA_WRITE_WITH_IMM
IBV_WR_SEND = WROpcode.SEND
IBV_WR_SEND_WITH_IMM = WROpcode.SEND_WITH_IMM
IBV_WR_RDMA_READ = WROpcode.RDMA_READ
IBV_WR_ATOMIC_CMP_AND_SWP = WROpcode.ATOMIC_CMP_AND_SWP
IBV_WR_ATOMIC_FETCH_AND_ADD = WROpcode.ATOMIC_FETCH_AND_ADD
IBV_WR_LOCAL_INV = WROpcode.LOCAL_INV
IBV_WR_BIND_MW = WROpcode.BIND_MW
IBV_WR_SEND_WITH_INV = WROpcode.SEND_WITH_INV
IBV_SEND_FENCE = SendFlag.FENCE
IBV_SEND_SIGNALED = SendFlag.SIGNALED
IBV_SEND_SOLICITED = SendFlag.SOLICITED
IBV_SEND_INLINE = SendFlag.INLINE
IBV_EVENT_CQ_ERR = EventType.CQ_ERR
IBV_EVENT_QP_FATAL = EventType.QP_FATAL
IBV_EVENT_QP_REQ_ERR = EventType.QP_REQ_ERR
IBV_EVENT_QP_ACCESS_ERR = EventType.QP_ACCESS_ERR
IBV_EVENT_COMM_EST = EventType.COMM_EST
IBV_EVENT_SQ_DRAINED = EventType.SQ_DRAINED
IBV_EVENT_PATH_MIG = EventType.PATH_MIG
IBV_EVENT_PATH_MIG_ERR = EventType.PATH_MIG_ERR
IBV_EVENT_DEVICE_FATAL = EventType.DEVICE_FATAL
IBV_EVENT_PORT_ACTIVE = EventType.PORT_ACTIVE
IBV_EVENT_PORT_ERR = EventType.PORT_ERR
IBV_EVENT_LID_CHANGE = EventType.LID_CHANGE
IBV_EVENT_PKEY_CHANGE = EventType.PKEY_CHANGE
IBV_EVENT_SM_CHANGE = EventType.SM_CHANGE
IBV_EVENT_SRQ_ERR = EventType.SRQ_ERR
IBV_EVENT_SRQ_LIMIT_REACHED = EventType.SRQ_LIMIT_REACHED
IBV_EVENT_QP_LAST_WQE_REACHED = EventType.QP_LAST_WQE_REACHED
IBV_EVENT_CLIENT_REREGISTER = EventType.CLIENT_REREGISTER
IBV_EVENT_GID_CHANGE = EventType.GID_CHANGE
IBV_SRQ_MAX_WR = SrqAttrMask.MAX_WR
IBV_SRQ_LIMIT = SrqAttrMask.LIMIT
