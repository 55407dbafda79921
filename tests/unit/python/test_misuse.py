"""Each kind of misuse of the verbs: the errno, the exception, and the remedy in the message."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest
from harness.verbs_harness import poll
from unit.python.misuse_harness import VerbsObjects, assert_call_refused

import siwarp
from siwarp.cm import ConnParam
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    SGE,
    SRQ,
    AccessFlag,
    AHAttr,
    CompChannel,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    SrqAttr,
    WCStatus,
    WROpcode,
)

EINVAL, ENOMEM, EBUSY, EBADF = errno.EINVAL, errno.ENOMEM, errno.EBUSY, errno.EBADF
SEND, WRITE, READ = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ
State, Limit, Plain = siwarp.StateError, siwarp.LimitError, siwarp.Error


def overfill_send_queue(w: VerbsObjects) -> None:
    qp = w.make_ud_qp(max_send_wr=2)
    for _ in range(3):
        qp.post_send(w.make_send_wr(send_flags=0))


def overfill_receive_queue(w: VerbsObjects) -> None:
    qp = w.make_ud_qp(max_recv_wr=2)
    qp.post_recv([RecvWR()] * 3)


def close_and_return_object(thing: Any) -> Any:
    thing.close()
    return thing


def set_send_flags(wr: SendWR, flags: int) -> SendWR:
    wr._c.send_flags = flags
    return wr


def create_qp_in_sqe(w: VerbsObjects) -> QP:
    qp = w.make_ud_qp()
    qp.post_send(SendWR(sg=[SGE(8, 8, 1)], ah=w.ah))
    assert poll(w.cq)[0].status == WCStatus.LOC_PROT_ERR
    return qp


Row = tuple[str, Callable[[VerbsObjects], object], type[Exception], int, str]

POSTING_MISUSE: list[Row] = [
    (
        "a send in RESET",
        lambda w: w.make_ud_qp(QPState.RESET).post_send(w.make_send_wr()),
        State,
        EINVAL,
        r"to_rts\(\)",
    ),
    (
        "a send in INIT",
        lambda w: w.make_ud_qp(QPState.INIT).post_send(w.make_send_wr()),
        State,
        EINVAL,
        r"in INIT.*to_rts",
    ),
    (
        "a send in RTR",
        lambda w: w.make_ud_qp(QPState.RTR).post_send(w.make_send_wr()),
        State,
        EINVAL,
        r"in RTR.*to_rts",
    ),
    (
        "a send before connecting",
        lambda w: w.make_rc_qp(QPState.INIT).post_send(w.make_send_wr()),
        State,
        EINVAL,
        "connect it",
    ),
    (
        "a receive in RESET",
        lambda w: w.make_ud_qp(QPState.RESET).post_recv(RecvWR()),
        State,
        EINVAL,
        "INIT first",
    ),
    (
        "a receive on RC in RESET",
        lambda w: w.make_rc_qp().post_recv(RecvWR()),
        State,
        EINVAL,
        "INIT first",
    ),
    (
        "a full send queue",
        overfill_send_queue,
        Limit,
        ENOMEM,
        "queue of 2 requests is full: poll the CQ.*signaled",
    ),
    (
        "a full receive queue",
        overfill_receive_queue,
        Limit,
        ENOMEM,
        "queue of 2 requests is full: poll the CQ",
    ),
    (
        "too many elements to send",
        lambda w: w.make_ud_qp().post_send(w.make_send_wr(sg=[w.sge] * 2)),
        Plain,
        EINVAL,
        "max_send_sge",
    ),
    (
        "too many elements to fill",
        lambda w: w.make_ud_qp().post_recv(RecvWR(sg=[w.sge] * 2)),
        Plain,
        EINVAL,
        "max_recv_sge",
    ),
    (
        "too much inline",
        lambda w: w.make_ud_qp().post_send(w.make_send_wr(send_flags=SendFlag.INLINE)),
        Plain,
        EINVAL,
        "8 octets of inline data.*max_inline_data",
    ),
    (
        "unknown flags",
        lambda w: w.make_ud_qp().post_send(set_send_flags(w.make_send_wr(), 1 << 20)),
        Plain,
        EINVAL,
        "SendFlag",
    ),
    (
        "an unknown opcode",
        lambda w: w.connect_endpoint().qp.post_send(SendWR(opcode=77)),
        Plain,
        EINVAL,
        "opcode is 77.*WROpcode",
    ),
    (
        "a Write on UD",
        lambda w: w.make_ud_qp().post_send(w.make_send_wr(opcode=WRITE)),
        Plain,
        EINVAL,
        "only SEND.*RC",
    ),
    (
        "a Read on UD",
        lambda w: w.make_ud_qp().post_send(w.make_send_wr(opcode=READ)),
        Plain,
        EINVAL,
        "only SEND.*RC",
    ),
    (
        "no address handle",
        lambda w: w.make_ud_qp().post_send(SendWR(sg=[w.sge])),
        Plain,
        EINVAL,
        r"ah=AH\(",
    ),
    (
        "a closed address handle",
        lambda w: w.make_ud_qp().post_send((w.make_send_wr(), w.ah.close())[0]),
        Plain,
        EINVAL,
        r"valid address handle",
    ),
    (
        "an address handle of another PD",
        lambda w: w.make_ud_qp().post_send(w.make_send_wr(ah=AH(PD(w.ctx), ("::1", 9)))),
        Plain,
        EINVAL,
        r"another PD.*AH\(qp.pd",
    ),
    (
        "an address handle of another device",
        lambda w: w.make_ud_qp().post_send(w.make_send_wr(ah=AH(w.other.pd, ("::1", 9)))),
        Plain,
        EINVAL,
        r"another PD",
    ),
    (
        "no port anywhere",
        lambda w: w.make_ud_qp().post_send(w.make_send_wr(ah=AH(w.pd, ("127.0.0.1", 0)))),
        Plain,
        EINVAL,
        "remote_qpn",
    ),
    (
        "a Read that is inline",
        lambda w: w.connect_endpoint(max_inline_data=64).qp.post_send(
            SendWR(opcode=READ, sg=[w.sge], remote=w.there, send_flags=SendFlag.INLINE)
        ),
        Plain,
        EINVAL,
        "omit SendFlag.INLINE",
    ),
    (
        "a Read that was not agreed on",
        lambda w: w.connect_endpoint(ask=ConnParam(initiator_depth=0)).qp.post_send(
            SendWR(opcode=READ, sg=[w.sge], remote=w.there)
        ),
        Plain,
        EINVAL,
        "initiator_depth",
    ),
    (
        "an RC message above the largest",
        lambda w: w.connect_endpoint(max_send_sge=2).qp.post_send(SendWR(sg=[SGE(0, 1 << 31, 0)])),
        Plain,
        EINVAL,
        "max_rc_msg.*split it",
    ),
    (
        "a receive beside an SRQ",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, srq=SRQ(w.pd))).post_recv(RecvWR()),
        Plain,
        EINVAL,
        r"SRQ\.post_recv",
    ),
    (
        "a receive posted as a send",
        lambda w: w.make_ud_qp().post_send(RecvWR()),
        TypeError,
        0,
        "can post a SendWR or a list",
    ),
    (
        "a send posted as a receive",
        lambda w: w.make_ud_qp().post_recv(w.make_send_wr()),
        TypeError,
        0,
        "can post a RecvWR or a list",
    ),
    (
        "no request",
        lambda w: w.make_ud_qp().post_send(None),
        TypeError,
        0,
        "can post a SendWR or a list",
    ),
    (
        "a list with a stranger",
        lambda w: w.make_ud_qp().post_recv([RecvWR(), 3]),
        TypeError,
        0,
        "can post a RecvWR",
    ),
]

STATE_MISUSE: list[Row] = [
    (
        "RESET to RTS",
        lambda w: w.make_ud_qp(QPState.RESET).modify(QPAttr(qp_state=QPState.RTS)),
        State,
        EINVAL,
        "move the QP to INIT.*first",
    ),
    *(
        (
            f"an RC QP by QPN, {what}",
            lambda w, attr=attr: w.make_rc_qp(QPState.INIT, by_qpn=True).modify(
                QPAttr(qp_state=QPState.RTR, **attr)
            ),
            Plain,
            EINVAL,
            says,
        )
        for what, attr, says in (
            (
                "without its peer",
                {},
                "needs its peer for the transition to RTR: set ah_attr and dest_qp_num",
            ),
            (
                "to a number that is none",
                {"ah_attr": ("127.0.0.1", 0), "dest_qp_num": 0x10000},
                "use qp_num of the peer's QP",
            ),
            (
                "to a multicast address",
                {"ah_attr": ("239.1.1.1", 0), "dest_qp_num": 0x10007},
                "ah_attr is a multicast address",
            ),
            (
                "to an IPv6 multicast address",
                {"ah_attr": ("ff02::1", 0), "dest_qp_num": 0x10007},
                "ah_attr is a multicast address",
            ),
            (
                "from an address of another family",
                {"ah_attr": AHAttr("127.0.0.1", source="192.0.2.7"), "dest_qp_num": 0x10007},
                r"AHAttr\(source=\.\.\.\)",
            ),
        )
    ),
    (
        "an RC QP by QPN past RTR",
        lambda w: w.make_rc_qp(QPState.INIT, by_qpn=True).modify(QPAttr(qp_state=QPState.RTS)),
        State,
        EINVAL,
        "move the QP to RTR",
    ),
    (
        "INIT to RTS",
        lambda w: w.make_ud_qp(QPState.INIT).modify(QPAttr(qp_state=QPState.RTS)),
        State,
        EINVAL,
        "move the QP to RTR",
    ),
    (
        "RTS to INIT",
        lambda w: w.make_ud_qp().modify(QPAttr(qp_state=QPState.INIT)),
        State,
        EINVAL,
        "no transition from RTS to INIT: move the QP to SQD, or to RESET or ERR",
    ),
    (
        "to SQE by hand",
        lambda w: w.make_ud_qp().modify(QPAttr(qp_state=QPState.SQE)),
        State,
        EINVAL,
        "no transition from RTS to SQE",
    ),
    (
        "SQE to SQD",
        lambda w: create_qp_in_sqe(w).modify(QPAttr(qp_state=QPState.SQD)),
        State,
        EINVAL,
        "from SQE to SQD: move the QP to RTS",
    ),
    (
        "RC to RTR by hand",
        lambda w: w.make_rc_qp(QPState.INIT).modify(QPAttr(qp_state=QPState.RTR)),
        State,
        EINVAL,
        r"bind_qp\(\)",
    ),
    ("RC from RESET to RTS", lambda w: w.make_rc_qp().to_rts(), State, EINVAL, "connect"),
    (
        "no state at all",
        lambda w: w.make_ud_qp().modify(QPAttr(qp_state=99)),
        Plain,
        EINVAL,
        "use a value of QPState",
    ),
    (
        "an attribute that RC has not",
        lambda w: w.make_rc_qp().modify(QPAttr(qkey=1)),
        Plain,
        EINVAL,
        "QKEY, because RC QPs have no such",
    ),
    (
        "an attribute that UD has not",
        lambda w: w.make_ud_qp().modify(QPAttr(max_rd_atomic=1)),
        Plain,
        EINVAL,
        "MAX_QP_RD_ATOMIC, because UD QPs",
    ),
    (
        "an attribute at the wrong time",
        lambda w: w.connect_endpoint().qp.modify(QPAttr(max_dest_rd_atomic=1)),
        State,
        EINVAL,
        "set it in RESET",
    ),
    (
        "a socket at the wrong time",
        lambda w: w.make_ud_qp().modify(QPAttr(fd=0)),
        State,
        EINVAL,
        "set it in RESET to INIT",
    ),
    (
        "a mask of nothing known",
        lambda w: w.make_ud_qp().modify(QPAttr(), 1 << 29),
        Plain,
        EINVAL,
        "use a set of QPAttrMask",
    ),
    (
        "too many outstanding Reads",
        lambda w: w.make_rc_qp().modify(QPAttr(max_rd_atomic=1000)),
        Limit,
        EINVAL,
        "max_rd_atomic=1000 is not in the range 0 to 128",
    ),
    (
        "less than no Reads",
        lambda w: w.make_rc_qp().modify(QPAttr(max_dest_rd_atomic=-1)),
        Limit,
        EINVAL,
        "range 0 to 128",
    ),
    (
        "a Q_Key that is no number of 32 bits",
        lambda w: w.make_ud_qp().modify(QPAttr(qkey=-1)),
        Limit,
        EINVAL,
        "qkey=-1 is out of range",
    ),
    (
        "rights that are none",
        lambda w: w.make_rc_qp().modify(QPAttr(qp_access_flags=1 << 20)),
        Plain,
        EINVAL,
        "use a set of AccessFlag",
    ),
    (
        "another state than was thought",
        lambda w: w.make_ud_qp().modify(QPAttr(qp_state=QPState.RTS, cur_qp_state=QPState.SQD)),
        State,
        EINVAL,
        "cur_qp_state is SQD, but the QP is in RTS",
    ),
    (
        "a socket that is none",
        lambda w: w.make_ud_qp(QPState.RESET).modify(QPAttr(qp_state=QPState.INIT, fd=999)),
        State,
        EBADF,
        "pass a UDP socket",
    ),
]


def create_qp_waiting_for_connect_by_qpn(w: VerbsObjects) -> QP:
    qp = w.make_rc_qp(by_qpn=True)
    qp.modify(QPAttr(qp_state=QPState.INIT))
    qp.modify(
        QPAttr(qp_state=QPState.RTR, ah_attr=("127.0.0.1", 0), dest_qp_num=qp.qp_num),
    )
    return qp


def pass_tcp_socket_to_ud_qp(w: VerbsObjects) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        w.make_ud_qp(QPState.RESET).modify(QPAttr(qp_state=QPState.INIT, fd=s))


def close_pd_in_use(w: VerbsObjects) -> None:
    w.make_ud_qp().post_recv(RecvWR())
    w.rig.pd.close()


CREATION_MISUSE: list[Row] = [
    (
        "a UD QP by QPN",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, by_qpn=True)),
        Plain,
        EINVAL,
        "by_qpn is for RC QPs only",
    ),
    (
        "an RC QP at every address",
        lambda w: QP(w.pd, QPInitAttr(QPType.RC, scq=w.cq, every_addr=True)),
        Plain,
        EINVAL,
        "every_addr is for UD and UC QPs only",
    ),
    (
        "a QP at every address and at one",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, every_addr=True, addr=("127.0.0.1", 0))),
        Plain,
        EINVAL,
        "omit one of them",
    ),
    (
        "an AH with a source that the device has not",
        lambda w: AH(w.pd, ("127.0.0.1", 9), source="192.0.2.77"),
        Plain,
        EINVAL,
        "source is not an address of the device",
    ),
    (
        "an RC QP with GRHs",
        lambda w: QP(w.pd, QPInitAttr(QPType.RC, scq=w.cq, grh=True)),
        Plain,
        EINVAL,
        "grh is for UD QPs only",
    ),
    ("a QP without a CQ", lambda w: QP(w.pd, QPInitAttr()), Plain, EINVAL, "QPInitAttr.scq="),
    (
        "a QP of no type",
        lambda w: QP(w.pd, QPInitAttr(9, scq=w.cq)),
        Plain,
        EINVAL,
        "qp_type is .*: use a value of QPType",
    ),
    (
        "a QP on a CQ of another device",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, rcq=w.other.create_cq())),
        Plain,
        EINVAL,
        "rcq belongs to another context",
    ),
    (
        "a QP on another PD's SRQ",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, srq=SRQ(w.other.pd))),
        Plain,
        EINVAL,
        "srq belongs to another context than the PD",
    ),
    (
        "a QP too deep",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, cap=QPCap(max_send_wr=1 << 20))),
        Plain,
        EINVAL,
        "max_qp_wr=16384",
    ),
    (
        "a QP with too many elements",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, cap=QPCap(max_recv_sge=17))),
        Plain,
        EINVAL,
        "max_sge=16",
    ),
    (
        "a QP with less than no room",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, cap=QPCap(max_send_wr=-1))),
        Limit,
        EINVAL,
        "max_send_wr=-1",
    ),
    (
        "a QP of no persona",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, persona=7)),
        Plain,
        EINVAL,
        "Persona",
    ),
    (
        "a QP at a strange address",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, addr=("192.0.2.1", 0))),
        Plain,
        errno.EADDRNOTAVAIL,
        "siwarp devices",
    ),
    (
        "a QP at a port in use",
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, addr=w.busy.addr)),
        Plain,
        errno.EADDRINUSE,
        "port 0",
    ),
    ("a TCP socket for UD", pass_tcp_socket_to_ud_qp, Plain, EINVAL, "UDP socket that is bound"),
    ("a CQ of no entries", lambda w: CQ(w.ctx, 0), Plain, EINVAL, "max_cqe"),
    ("a CQ that is too large", lambda w: CQ(w.ctx, 1 << 24), Plain, EINVAL, "max_cqe"),
    (
        "a CQ on another device's channel",
        lambda w: CQ(w.ctx, channel=CompChannel(w.other.ctx)),
        Plain,
        EINVAL,
        "channel of the same context",
    ),
    ("memory that is read-only", lambda w: MR(w.pd, b"constant"), Plain, errno.EFAULT, "bytearray"),
    (
        "remote writing without local",
        lambda w: MR(w.pd, 8, AccessFlag.REMOTE_WRITE),
        Plain,
        EINVAL,
        "add AccessFlag.LOCAL_WRITE",
    ),
    ("access that is none", lambda w: MR(w.pd, 8, 1 << 20), Plain, EINVAL, "set of AccessFlag"),
    (
        "invalidation by anybody",
        lambda w: MR(w.pd, 8, AccessFlag.REMOTE_INVALIDATE),
        Plain,
        EINVAL,
        "qp=",
    ),
    (
        "memory for another PD's QP",
        lambda w: MR(PD(w.ctx), 8, qp=w.make_rc_qp()),
        Plain,
        EINVAL,
        "use the PD of the QP",
    ),
    ("a change of nothing", lambda w: w.mr.rereg(), Plain, EINVAL, "use pd=, buffer= or access="),
    (
        "a change to another device's PD",
        lambda w: w.mr.rereg(pd=w.other.pd),
        Plain,
        EINVAL,
        "same context",
    ),
    ("an AH to nowhere", lambda w: AH(w.pd), Plain, EINVAL, "AHAttr"),
    (
        "an AH to no host",
        lambda w: AH(w.pd, AHAttr("no such host", 1)),
        Plain,
        EINVAL,
        "host",
    ),
    ("an unknown device", lambda w: Context("siw_nothing"), Plain, errno.ENODEV, "use one of siw_"),
    (
        "an SRQ of nothing",
        lambda w: SRQ(w.pd, SrqAttr(max_wr=0)),
        Limit,
        EINVAL,
        "max_wr=0 is not in the range 1 to 262144",
    ),
    ("a PD in use", close_pd_in_use, State, EBUSY, "Close them first"),
    ("a context in use", lambda w: w.ctx.close(), State, EBUSY, "Close them first"),
    ("a CQ in use", lambda w: (w.make_ud_qp(), w.cq.close()), State, EBUSY, "Close them first"),
    ("arming without a channel", lambda w: w.cq.req_notify(), Plain, EINVAL, "CompChannel"),
    ("a loop without a descriptor", lambda w: w.cq.poll_and_arm(), Plain, EINVAL, "wait_fileno"),
    ("waiting without a channel", lambda w: w.cq.wait(0), State, EINVAL, "CompChannel"),
]

CONNECTION_MISUSE: list[Row] = [
    (
        "binding a UD QP",
        lambda w: w.make_cm_id().bind_qp(w.make_ud_qp(QPState.RESET)),
        State,
        EINVAL,
        "requires an RC QP",
    ),
    (
        "binding a QP by QPN that is in RTR",
        lambda w: w.make_cm_id().bind_qp(create_qp_waiting_for_connect_by_qpn(w)),
        State,
        EINVAL,
        "in RESET or INIT",
    ),
    (
        "binding a QP of another device",
        lambda w: w.make_cm_id().bind_qp(w.other.create_qp(qp_type=QPType.RC)),
        State,
        EINVAL,
        "QP of the id's device",
    ),
    (
        "connecting without a QP",
        lambda w: w.make_cm_id().connect(("127.0.0.1", 1)),
        Plain,
        EINVAL,
        r"bind_qp\(\) first",
    ),
    (
        "accepting what nobody asked",
        lambda w: w.make_cm_id().accept(),
        Plain,
        EINVAL,
        "CONNECT_REQUEST",
    ),
    (
        "rejecting what nobody asked",
        lambda w: w.make_cm_id().reject(),
        Plain,
        EINVAL,
        "CONNECT_REQUEST",
    ),
    (
        "disconnecting what is not connected",
        lambda w: w.make_cm_id().disconnect(),
        State,
        errno.ENOTCONN,
        "connect first",
    ),
    (
        "the address of what is not connected",
        lambda w: w.make_rc_qp().addr,
        State,
        errno.ENOTCONN,
        "connect first",
    ),
]


@pytest.mark.parametrize(
    ("call", "kind", "number", "hint"),
    [
        pytest.param(*row[1:], id=row[0])
        for row in POSTING_MISUSE + STATE_MISUSE + CREATION_MISUSE + CONNECTION_MISUSE
    ],
)
def test_misuse_raises_an_exception_with_errno_and_a_remedy(
    verbs_objects: VerbsObjects,
    call: Callable[[VerbsObjects], object],
    kind: type[Exception],
    number: int,
    hint: str,
) -> None:
    assert_call_refused(call, verbs_objects, kind, number, hint)


# ---- invalid memory, which the completion of a request reports


@pytest.mark.parametrize(
    "which", ["a freed key", "another PD's", "another device's", "out of bounds"]
)
def test_an_invalid_local_key_is_reported_by_the_completion_of_the_send(
    verbs_objects: VerbsObjects, which: str
) -> None:
    w = verbs_objects
    sge = {
        "a freed key": lambda: SGE(
            *(lambda mr: (mr.addr, 8, close_and_return_object(mr).lkey))(w.rig.reg_mr(8))
        ),
        "another PD's": lambda: MR(PD(w.ctx), 8).sge(),
        "another device's": lambda: w.other.reg_mr(8).sge(),
        "out of bounds": lambda: SGE(w.mr.addr + 4090, 8, w.mr.lkey),
    }[which]()
    w.make_ud_qp().post_send(w.make_send_wr(sg=[sge]))
    wc = poll(w.cq)[0]
    assert wc.status == WCStatus.LOC_PROT_ERR
    with pytest.raises(Plain, match=r"MR\.sge\(\).*to_rts\(\)") as caught:
        wc.check()
    assert caught.value.errno == errno.EIO


def test_the_error_of_a_send_flushed_in_sqe_names_to_rts_as_the_remedy(
    verbs_objects: VerbsObjects,
) -> None:
    qp = create_qp_in_sqe(verbs_objects)
    qp.post_send(verbs_objects.make_send_wr())
    with pytest.raises(State, match=r"SQE continues after to_rts") as caught:
        poll(verbs_objects.cq)[0].check()
    assert caught.value.errno == errno.ECANCELED
