# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Why the C library said EINVAL, and what to do: found out afterwards, in words."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING

from siwarp.verbs._seam import lib
from siwarp.verbs.enums import (
    AccessFlag,
    ErrorPolicy,
    MWType,
    Persona,
    QPAttrMask,
    QPState,
    QPType,
    SendFlag,
    WROpcode,
)
from siwarp.verbs.errors import Error, LimitError, StateError, from_errno
from siwarp.verbs.wr import ATOMICS, RecvWR, SendWR

if TYPE_CHECKING:
    from siwarp.verbs.mr import MR
    from siwarp.verbs.mw import MW, MWBind
    from siwarp.verbs.pd import PD
    from siwarp.verbs.qp import QP
    from siwarp.verbs.qpattr import QPAttr, QPInitAttr

_CAPS = {
    "max_send_wr": "max_qp_wr",
    "max_recv_wr": "max_qp_wr",
    "max_send_sge": "max_sge",
    "max_recv_sge": "max_sge",
    "max_inline_data": "max_inline_data",
}


def _either(states: Sequence[QPState]) -> str:
    names = [state.name for state in states]
    return " or ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} or {names[-1]}"


# ---- making a queue pair


def _sharing(pd: PD, init: QPInitAttr, first: QP) -> str | None:
    if init.qp_type != QPType.UD or first.qp_type != QPType.UD:
        return "only UD QPs share a socket: leave share out"
    if first.pd.context is not pd.context:
        return "share is of another context than the PD: make both on one Context"
    if init.addr is not None:
        return "share and addr are both given: the socket has its address already"
    if init.crc != first.query()[1].crc:
        return f"share has crc={not init.crc}, which is the socket's: give the same"
    return None


def creation(number: int, pd: PD, init: QPInitAttr) -> str | None:
    """Return why no queue pair could be made of these attributes."""
    if number == errno.EMFILE and init.qp_type == QPType.UD:
        return (
            "no file descriptors are left, and a UD QP takes one for its socket: raise "
            "`ulimit -n`, or let up to 256 share one by QPInitAttr(share=...)"
        )
    if number == errno.ENOSPC:
        return "256 QPs share this socket: begin another one with a QP that has no share"
    return _impossible(pd, init) if number == errno.EINVAL else None


def _impossible(pd: PD, init: QPInitAttr) -> str:
    if init.qp_type not in list(QPType):
        return f"qp_type is QPType.RC, UC, UD or RD, not {init.qp_type!r}"
    datagrams = init.qp_type in (QPType.UD, QPType.RD)
    if init.max_records and not (datagrams and 0 <= init.max_records <= 1024):
        return f"max_records={init.max_records}: it is a UD or RD QP's, from 0 to 1024"
    if init.persona not in list(Persona):
        return f"persona is one of Persona, not {init.persona!r}"
    if init.error_policy not in [*ErrorPolicy, *(p.name.lower() for p in ErrorPolicy)]:
        return f"error_policy is one of ErrorPolicy, or its name, not {init.error_policy!r}"
    device = pd.context.query_device()
    for name, limit in _CAPS.items():
        asked, most = getattr(init.cap, name), getattr(device, limit)
        if asked > most:
            return (
                f"{name}={asked}: the device's limits (Context.query_device()) say {limit}={most}"
            )
    for name in ("scq", "rcq"):
        cq = getattr(init, name)
        if cq is not None and cq.context is not pd.context:
            return f"{name} is of another context than the PD: make both on one Context"
    if init.srq is not None and init.srq.pd is not pd:
        return "srq is of another PD: make it with SRQ(pd, ...) of this one"
    sharing = None if init.share is None else _sharing(pd, init, init.share)
    if sharing is not None:
        return sharing
    return "PD, CQs and SRQ must be of one context, and the address one of this machine"


# ---- modifying it


def _names(mask: int) -> str:
    known = [bit.name or "" for bit in QPAttrMask if bit & mask]
    return ", ".join(known) if known else f"mask {mask:#x}"


def _steps(kind: int, state: int) -> list[QPState]:
    return [s for s in QPState if s != state and lib.siw_qp_step_attrs(kind, state, s) >= 0]


def _step(qp: QP, state: QPState, target: QPState) -> str:
    ways = [s for s in _steps(qp.qp_type, state) if s not in (QPState.RESET, QPState.ERR)]
    if qp.qp_type == QPType.RC and QPState.INIT in (state, *ways) and target > QPState.INIT:
        return "siwarp.cm connects an RC QP: CMID.bind_qp(), then connect() or accept()"
    onward = f"it goes to {_either(ways)}, or" if ways else "it goes"
    return f"{onward} to RESET or ERR as from any: step there first"


def _where(kind: int, bit: int) -> str:
    """Say which steps take an attribute."""
    found = []
    for state in QPState:
        for to in (-1, *QPState):
            mask = lib.siw_qp_step_attrs(kind, state, to)
            if mask >= 0 and mask & bit:
                stays = to in (-1, state)
                found.append(state.name if stays else f"{state.name} to {QPState(to).name}")
    if not found:
        return f"no {QPType(kind).name} QP has it"
    return f"set it in {', '.join(dict.fromkeys(found))}"


def _value(qp: QP, attr: QPAttr, mask: int) -> Error:
    what = f"modifying {qp!r}"
    now = qp.query()[0]
    if mask & QPAttrMask.CUR_STATE and attr.cur_qp_state != now.qp_state:
        state = QPState(now.qp_state or 0).name
        return StateError(errno.EINVAL, f"{what}: cur_qp_state is {state}: look at qp_state first")
    device = qp.pd.context.query_device()
    for name, bit, limit in (
        ("max_rd_atomic", QPAttrMask.MAX_QP_RD_ATOMIC, device.max_qp_init_rd_atom),
        ("max_dest_rd_atomic", QPAttrMask.MAX_DEST_RD_ATOMIC, device.max_qp_rd_atom),
        ("rnr_retry", QPAttrMask.RNR_RETRY, 7),
        ("min_rnr_timer", QPAttrMask.MIN_RNR_TIMER, 31),
    ):
        value = getattr(attr, name)
        if not mask & bit or value is None:
            continue
        if not 0 <= value <= limit:
            return LimitError(errno.EINVAL, f"{what}: {name}={value} is not from 0 to {limit}")
        if bit == QPAttrMask.MAX_QP_RD_ATOMIC and now.qp_state == QPState.SQD:
            return LimitError(
                errno.EINVAL,
                f"{what}: {name}={value}: of a connection it is from 1 to what both ends agreed "
                "on, which ConnParam(initiator_depth=...) asks for",
            )
    if qp.qp_type == QPType.UC and attr.qp_state == QPState.RTR and not mask & QPAttrMask.AV:
        return Error(errno.EINVAL, f"{what}: to RTR a UC QP needs to know its peer: give ah_attr")
    if mask & QPAttrMask.AV and not (attr.dest_qp_num or _port(attr)):
        return Error(errno.EINVAL, f"{what}: neither dest_qp_num nor ah_attr has a port")
    if mask & QPAttrMask.PATH_MTU and attr.path_mtu is not None:
        return LimitError(
            errno.EINVAL,
            f"{what}: path_mtu={attr.path_mtu} is neither 256 to 65535 octets nor 1 to 5 nor 0",
        )
    if mask & QPAttrMask.ACCESS_FLAGS:
        return Error(
            errno.EINVAL, f"{what}: qp_access_flags has bits that are no rights: use AccessFlag"
        )
    if mask & QPAttrMask.FD:
        return Error(
            errno.EINVAL,
            f"{what}: fd must be a UDP socket that is bound: bind it first; a QP that shares its "
            "socket, or is a member of a multicast group, keeps the one it has",
        )
    return Error(errno.EINVAL, f"{what}: an attribute has a value that it cannot have")


def _port(attr: QPAttr) -> int:
    where = attr.ah_attr
    return 0 if where is None else where[1] if isinstance(where, tuple) else where.port


def modification(qp: QP, attr: QPAttr, mask: int) -> Error:
    """Return the error for a modify that was refused with EINVAL."""
    state, kind = qp.qp_state, int(qp.qp_type)
    what = f"modifying {qp!r} in {state.name}"
    to = -1
    if mask & QPAttrMask.STATE:
        if attr.qp_state not in list(QPState):
            return Error(errno.EINVAL, f"{what}: {attr.qp_state!r} is no state: use QPState")
        to = int(attr.qp_state)
    allowed = lib.siw_qp_step_attrs(kind, state, to)
    if allowed < 0:
        target = QPState(to)
        return StateError(
            errno.EINVAL,
            f"modifying {qp!r}: no step leads to {target.name} from {state.name}: "
            f"{_step(qp, state, target)}",
        )
    extra = mask & ~(allowed | QPAttrMask.STATE)
    if not extra:
        return _value(qp, attr, mask)
    first = extra & -extra
    if first not in list(QPAttrMask):
        return Error(errno.EINVAL, f"{what}: {extra:#x} of mask is no attribute: use QPAttrMask")
    where = _where(kind, first)
    error = Error if where.startswith("no ") else StateError
    return error(errno.EINVAL, f"{what}: this step does not take {_names(extra)}: {where}")


# ---- multicast


def membership(qp: QP, group: str, doing: str) -> str:
    """Return why a queue pair cannot join a group, or leave it."""
    if qp.qp_type != QPType.UD:
        return "only UD QPs receive from groups"
    address = ipaddress.ip_address(group)
    if not address.is_multicast:
        return "it is no multicast address: give one of 224.0.0.0/4 or ff00::/8"
    if address.version != ipaddress.ip_address(qp.addr[0].partition("%")[0]).version:
        return f"the QP is bound to {qp.addr[0]}: a group has to be of the same family"
    return "it is no member" if doing == "detaching" else "the group and the QP must fit"


# ---- posting to it


def _send(qp: QP, wr: SendWR) -> str:
    """Say why a send is refused with EINVAL in a state that would take it."""
    if wr.num_sge > qp.cap.max_send_sge:
        return (
            f"{wr.num_sge} elements, but the QP takes {qp.cap.max_send_sge}: make it with "
            "QPCap(max_send_sge=...)"
        )
    flags, opcode = int(wr._c.send_flags), int(wr._c.opcode)
    if flags & ~sum(SendFlag):
        return f"send_flags {flags:#x} has bits that are no flags: use SendFlag"
    if opcode not in list(WROpcode):
        return f"{opcode} is no opcode of this device: use WROpcode"
    octets = sum(element.length for element in wr.sg)
    inline = flags & SendFlag.INLINE
    if inline and octets > qp.cap.max_inline_data:
        return (
            f"{octets} octets inline, but the QP takes {qp.cap.max_inline_data}: send them without "
            "SendFlag.INLINE, or make the QP with QPCap(max_inline_data=...)"
        )
    if qp.qp_type == QPType.UD:
        return _ud_send(qp, wr)
    if qp.qp_type == QPType.RD and opcode in (WROpcode.BIND_MW, WROpcode.LOCAL_INV):
        return "an RD QP binds and invalidates nothing of its own: use an RC QP for that"
    if qp.qp_type == QPType.RD and (why := _rd_handle(qp, wr)):
        return why
    if opcode in (WROpcode.BIND_MW, WROpcode.LOCAL_INV):
        return _local(qp, wr, flags)
    uc_has = (
        WROpcode.SEND,
        WROpcode.SEND_WITH_IMM,
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_WRITE_WITH_IMM,
    )
    if qp.qp_type == QPType.UC and opcode not in uc_has:
        return "a UC QP can SEND and RDMA_WRITE: connect an RC QP for the rest"
    return _rc_send(qp, opcode, octets, flags)


def _rd_handle(qp: QP, wr: SendWR) -> str | None:
    ah = wr._ah
    if ah is None or ah.closed:
        return "an RD request needs an open address handle: SendWR(ah=AH(pd, (host, port)))"
    if ah.pd is not qp.pd:
        return "its address handle is of another PD: make one with AH(qp.pd, ...)"
    if not wr._c.rd.remote_qpn and not ah.dest[1]:
        return "neither remote_qpn nor the address handle has a port: give one of them"
    return None


def _ud_send(qp: QP, wr: SendWR) -> str:
    if wr._c.opcode not in (WROpcode.SEND, WROpcode.SEND_WITH_IMM):
        return (
            "a UD QP can only SEND, SEND_WITH_IMM and RDMA_WRITE_RECORD: connect an RC QP for the "
            "rest"
        )
    ah = wr._ah
    if ah is None or ah.closed:
        return "a UD message needs an open address handle: SendWR(ah=AH(pd, (host, port)))"
    if ah.pd is not qp.pd:
        return "its address handle is of another PD: make one with AH(qp.pd, ...)"
    if not wr._c.wr.ud.remote_qpn and not ah.dest[1]:
        return "neither remote_qpn nor the address handle has a port: give one of them"
    return "opcode, flags, elements and address handle must fit the QP"


def _local(qp: QP, wr: SendWR, flags: int) -> str:
    if flags & SendFlag.INLINE:
        return "this request sends nothing: leave SendFlag.INLINE out"
    mw, mr = wr._mw, wr._mr
    if mw is None or mw.closed:
        return "a bind needs an open window: SendWR(...).set_bind_wr(mw, MWBindInfo(...))"
    if mw.type == MWType.TYPE_1:
        return "a window of type 1 is bound by QP.bind_mw"
    info = wr._c.bind_mw.bind_info
    return _bind(qp, mw, mr, int(info.length), int(info.mw_access_flags))


_WINDOW_FLAGS = (
    AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
    | AccessFlag.ZERO_BASED
)


def _bind(qp: QP, mw: MW, mr: MR | None, length: int, access: int) -> str:
    if access & ~_WINDOW_FLAGS:
        return "a window takes REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC and ZERO_BASED alone"
    if length and (mr is None or mr.closed):
        return "there is no open memory region to bind to: MWBindInfo(mr, ...)"
    if mw.pd.context is not qp.pd.context or (mr and mr.pd.context is not qp.pd.context):
        return "window and region must be of the QP's context"
    return "window, region and flags must fit the QP"


def _bind_1(qp: QP, mw: MW, bind: MWBind) -> str:
    info = bind.info
    if mw.type != MWType.TYPE_1:
        return "a window of type 2 is bound by post_send, with SendWR.set_bind_wr"
    if int(bind.send_flags) & ~(sum(SendFlag) - SendFlag.INLINE):
        return "send_flags are SIGNALED, FENCE and SOLICITED here"
    return _bind(qp, mw, info.mr, info.length, int(info.mw_access_flags))


def binding(qp: QP, rc: int, mw: MW, bind: MWBind) -> Error:
    """Return the error for a bind of a window of type 1 that was not taken."""
    number = -rc
    what = f"binding {mw!r} by {qp!r}"
    state = qp.qp_state
    if number == errno.ENOMEM:
        return LimitError(
            number,
            f"{what}: the send queue of {qp.cap.max_send_wr} is full: poll the CQ first",
        )
    if number != errno.EINVAL:
        return from_errno(number, what)
    if qp.qp_type in (QPType.UD, QPType.RD):
        return Error(number, f"{what}: windows are for the peers of RC and UC queue pairs")
    if state < QPState.RTS:
        return StateError(number, f"{what}: {_send_state(qp, state)}")
    return Error(number, f"{what}: {_bind_1(qp, mw, bind)}")


def _rc_send(qp: QP, opcode: int, octets: int, flags: int) -> str:
    if opcode == WROpcode.RDMA_READ or opcode in ATOMICS:
        if flags & SendFlag.INLINE:
            return "a Read has nothing to send inline: leave SendFlag.INLINE out"
        if not qp.query()[0].max_rd_atomic:
            return (
                "no RDMA Reads were agreed on with the peer: connect with an initiator_depth, and "
                "the peer with responder_resources"
            )
    if opcode in ATOMICS and octets != 8:
        return f"the elements of an atomic have 8 octets in all, where the old value goes: {octets}"
    most = qp.pd.context.query_device().max_rc_msg
    if octets > most:
        return f"{octets} octets in one message, but max_rc_msg is {most}: send them in parts"
    if opcode == WROpcode.SEND_WITH_IMM:
        return (
            "Send with Immediate is a message of siwarp's own: set SIWARP_PRIVATE_MESSAGES=1 at "
            "both ends if all peers are siwarp, or use RDMA_WRITE_WITH_IMM"
        )
    return "opcode, flags and elements must fit the QP"


def _send_state(qp: QP, state: QPState) -> str:
    if qp.qp_type != QPType.RC:
        return f"the QP is in {state.name}: call to_rts() first"
    return f"the QP is in {state.name}: connect it first"


def posting(qp: QP, rc: int, wr: SendWR | RecvWR) -> Error:
    """Return the error for a request that was not taken."""
    number = -rc
    sends = isinstance(wr, SendWR)
    what = f"posting {wr!r} to {qp!r}"
    state = qp.qp_state
    error: Error
    if number == errno.ENOMEM:
        room = qp.cap.max_send_wr if sends else qp.cap.max_recv_wr
        error = LimitError(
            number,
            f"{what}: the {'send' if sends else 'receive'} queue of {room} is full: poll the CQ "
            "first"
            + (
                ", and let some requests be signalled: a silent one keeps its slot until a later "
                "one reports"
                if sends
                else ""
            ),
        )
    elif number != errno.EINVAL:
        error = from_errno(number, what)
    elif isinstance(wr, SendWR):
        if state < QPState.RTS:
            error = StateError(number, f"{what}: {_send_state(qp, state)}")
        else:
            error = Error(number, f"{what}: {_send(qp, wr)}")
    elif qp.srq is not None:
        error = Error(number, f"{what}: its receives are posted to its SRQ: SRQ.post_recv")
    elif state == QPState.RESET:
        error = StateError(number, f"{what}: the QP is in RESET: move it to INIT first")
    else:
        error = Error(
            number,
            f"{what}: {wr.num_sge} elements, but the QP takes {qp.cap.max_recv_sge}: make it with "
            "QPCap(max_recv_sge=...)",
        )
    error.bad_wr = wr
    return error
