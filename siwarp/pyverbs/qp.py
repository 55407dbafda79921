# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Queue pairs: ``pyverbs.qp``."""

from __future__ import annotations

import errno
import weakref
from typing import Any, NoReturn

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._qp_attr import (
    CAPS,
    ECE,
    DataBuffer,
    QPAttachCompCntrAttr,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPInitAttrEx,
    QPRateLimitAttr,
)
from siwarp.pyverbs.addr import to_native_ah_attr
from siwarp.pyverbs.base import (
    PyverbsRDMAErrno,
    Wrapper,
    convert_errors,
    raise_unsupported,
    to_pyverbs_error,
)
from siwarp.pyverbs.device import Context, device_persona
from siwarp.pyverbs.mr import MW, MWBind
from siwarp.pyverbs.pd import PD
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from siwarp.pyverbs.utils import (
    access_flags_to_str,
    gid_str,
    mig_state_to_str,
    mtu_to_str,
    qp_state_to_str,
    qp_type_to_str,
)
from siwarp.pyverbs.wr import RecvWR, SendWR, linked_requests
from siwarp.verbs import device as verbs_device
from siwarp.verbs import qp as verbs_qp
from siwarp.verbs import qpattr
from siwarp.verbs._ffi import lib
from siwarp.verbs.enums import QPAttrMask
from siwarp.verbs.errors import Error
from siwarp.verbs.mw import MWBind as NativeMWBind

__all__ = [
    "ECE",
    "QP",
    "DataBuffer",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "QPAttachCompCntrAttr",
    "QPAttr",
    "QPCap",
    "QPEx",
    "QPInitAttr",
    "QPInitAttrEx",
    "QPRateLimitAttr",
    "access_flags_to_str",
    "gid_str",
    "mig_state_to_str",
    "mtu_to_str",
    "qp_state_to_str",
    "qp_type_to_str",
]

#: Minimum granted capacities of a queue pair, as with adapters.
_LEAST_WR, _INLINE = 32, 64
_MISSING = {
    e.IBV_QPT_RAW_PACKET: "sockets do not provide raw Ethernet frames",
    e.IBV_QPT_XRC_SEND: "queues are in the memory of one process",
    e.IBV_QPT_XRC_RECV: "queues are in the memory of one process",
    e.IBV_QPT_DRIVER: "it is a vendor-specific transport",
}
_TYPES = (e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_UD)
_KNOWN_INIT = (
    e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_CREATE_FLAGS | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
)
#: The dest_qp_num of queue pairs that a connection id connects.
QPN_OF_CM = 0xFF0000

_PORT = e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT
_AV = e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
_SENDER = e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC
#: Attributes that the transitions to INIT, RTR and RTS set, by queue pair type.
_STEPS = {
    e.IBV_QPT_RC: (
        _PORT | e.IBV_QP_ACCESS_FLAGS,
        _AV | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER,
        e.IBV_QP_SQ_PSN | _SENDER,
    ),
    e.IBV_QPT_UC: (_PORT | e.IBV_QP_ACCESS_FLAGS, _AV, e.IBV_QP_SQ_PSN),
    e.IBV_QPT_UD: (_PORT | e.IBV_QP_QKEY, 0, e.IBV_QP_SQ_PSN),
}
_STATES = {e.IBV_QPS_INIT: "INIT", e.IBV_QPS_RTR: "RTR", e.IBV_QPS_RTS: "RTS"}
_MIGRATION = e.IBV_QP_PATH_MIG_STATE
_NOT_OURS = {
    e.IBV_QP_ALT_PATH: ("alternate path", "a queue pair has only one path"),
    e.IBV_QP_CAP: ("resizing of the queues of a queue pair", "create a new one"),
}
_ALL_MASKS = sum(e.ibv_qp_attr_mask)
#: Attributes set by the program that the engine does not store for all types.
_REMEMBERED = {
    e.IBV_QP_PKEY_INDEX: "pkey_index",
    e.IBV_QP_PORT: "port_num",
    e.IBV_QP_AV: "ah_attr",
    e.IBV_QP_PATH_MTU: "path_mtu",
    e.IBV_QP_TIMEOUT: "timeout",
    e.IBV_QP_RETRY_CNT: "retry_cnt",
    e.IBV_QP_RNR_RETRY: "rnr_retry",
    e.IBV_QP_RQ_PSN: "rq_psn",
    e.IBV_QP_SQ_PSN: "sq_psn",
    e.IBV_QP_MAX_QP_RD_ATOMIC: "max_rd_atomic",
    e.IBV_QP_MAX_DEST_RD_ATOMIC: "max_dest_rd_atomic",
    e.IBV_QP_MIN_RNR_TIMER: "min_rnr_timer",
    e.IBV_QP_DEST_QPN: "dest_qp_num",
    e.IBV_QP_EN_SQD_ASYNC_NOTIFY: "en_sqd_async_notify",
}
#: Bits of attribute values that adapters keep, and return in queries.
_BITS = {"timeout": 0x1F, "retry_cnt": 7, "rnr_retry": 7, "min_rnr_timer": 0x1F}
#: Access rights of a queue pair, without the right to bind windows, which belongs to regions.
_RIGHTS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
)


def check_qp_type(qp_type: int) -> None:
    """Raise an error with the reason if a queue pair type is not supported."""
    if qp_type in _MISSING:
        raise_unsupported(f"QP of type {qp_type_to_str(qp_type)}", _MISSING[qp_type])
    if qp_type not in _TYPES:
        raise PyverbsRDMAError(f"Failed to create QP: no type {qp_type}", errno.EINVAL)


def to_native_init_attr(init: QPInitAttr | QPInitAttrEx, by_qpn: bool) -> qpattr.QPInitAttr:
    """Convert creation parameters to those of ``siwarp.verbs``."""
    what = "Failed to create QP"
    if init.send_cq is None or init.recv_cq is None:
        raise PyverbsRDMAError(f"{what}: a send CQ and a receive CQ are required", errno.EINVAL)
    if init.srq is not None and init.qp_type == e.IBV_QPT_UC:
        raise PyverbsRDMAError(f"{what}: UC does not support shared receive queues", errno.EINVAL)
    cap = init.cap
    return qpattr.QPInitAttr(
        qp_type=init.qp_type,
        cap=qpattr.QPCap(
            max_send_wr=max(cap.max_send_wr, _LEAST_WR) if cap.max_send_wr else 0,
            max_recv_wr=max(cap.max_recv_wr, _LEAST_WR) if cap.max_recv_wr else 0,
            max_send_sge=cap.max_send_sge,
            max_recv_sge=cap.max_recv_sge,
            max_inline_data=max(cap.max_inline_data, _INLINE),
        ),
        scq=init.send_cq._native(),
        rcq=init.recv_cq._native(),
        srq=None if init.srq is None else init.srq._native(),
        sq_sig_all=bool(init.sq_sig_all),
        persona=device_persona(),
        by_qpn=by_qpn and init.qp_type == e.IBV_QPT_RC,
        grh=init.qp_type == e.IBV_QPT_UD,
        every_addr=init.qp_type in (e.IBV_QPT_UD, e.IBV_QPT_UC),
    )


def granted_capacities(native: verbs_qp.QP) -> QPCap:
    """Return the granted capacities of a queue pair."""
    return QPCap(*(getattr(native.cap, name) for name in CAPS))


_queue_pairs: weakref.WeakSet[QP] = weakref.WeakSet()


def find_open_qp(context: verbs_device.Context, qp_num: int) -> QP | None:
    """Return the open queue pair of a device with the given number."""
    for one in list(_queue_pairs):
        if one._num == qp_num and not one._is_closed and one._native().pd.context is context:
            return one
    return None


def _mask_attr_to_field_bits(attr: QPAttr, name: str) -> Any:
    """Return an attribute value truncated to the width of an adapter's field."""
    value = getattr(attr, name)
    return value & _BITS[name] if name in _BITS else value


class QP(Wrapper[verbs_qp.QP]):
    """A queue pair, created from a PD and a QPInitAttr, or a Context and a QPInitAttrEx.

    With ``qp_attr`` a UD queue pair is moved to RTS, an RC or UC queue pair to INIT.

    Raises:
        PyverbsRDMAError: a parameter is invalid or above the device's limit (EINVAL), the device
            has no room for another queue pair (ENOMEM), or siwarp does not support the feature
            (EOPNOTSUPP).

    """

    _RANK = 1

    def __init__(
        self,
        creator: PD | Context,
        init_attr: QPInitAttr | QPInitAttrEx,
        qp_attr: QPAttr | None = None,
    ) -> None:
        if isinstance(creator, Context):
            self._create_qp_ex(creator, init_attr)
        else:
            self._create_qp(creator, init_attr)
        if qp_attr is not None:
            if self.qp_type == e.IBV_QPT_UD:
                self.to_rts(qp_attr)
            else:
                self.to_init(qp_attr)

    def _create_qp(self, pd: PD, init_attr: QPInitAttr | QPInitAttrEx) -> None:
        check_qp_type(init_attr.qp_type)
        wanted = to_native_init_attr(init_attr, by_qpn=True)
        with convert_errors("Failed to create QP"):
            native = verbs_qp.QP(pd._native(), wanted)
        self._adopt_native(pd, native, init_attr)
        init_attr.cap = granted_capacities(native)

    def _adopt_native(
        self, pd: PD, native: verbs_qp.QP, init_attr: QPInitAttr | QPInitAttrEx
    ) -> None:
        """Take ownership of a queue pair of ``siwarp.verbs``."""
        self._h, self._pd, self._context = native, pd, pd._context
        self._type, self._num = init_attr.qp_type, native.qp_num
        self._scq, self._rcq, self._srq = init_attr.send_cq, init_attr.recv_cq, init_attr.srq
        self._sig_all, self._user = init_attr.sq_sig_all, init_attr.qp_context
        self._set = QPAttr(port_num=0, path_mtu=0)
        #: State to which the connection id will move the queue pair once it is connected.
        self._of_cm: int | None = None
        owners = [one for one in (self._scq, self._rcq, self._srq) if one is not None]
        self._register_with_parents(pd, *owners)
        _queue_pairs.add(self)

    def _create_qp_ex(self, context: Context, init_attr: QPInitAttr | QPInitAttrEx) -> None:
        if not isinstance(init_attr, QPInitAttrEx):
            raise PyverbsUserError("A QP of a Context requires a QPInitAttrEx")
        check_qp_type(init_attr.qp_type)
        mask = init_attr.comp_mask
        if mask & ~_KNOWN_INIT:
            raise_unsupported(
                "such extended QP", "XRC, receive side scaling and TSO are not supported"
            )
        if mask & e.IBV_QP_INIT_ATTR_CREATE_FLAGS and init_attr.create_flags:
            raise_unsupported("create_flags", "they apply to Ethernet frames")
        pd = init_attr.pd
        if not mask & e.IBV_QP_INIT_ATTR_PD or pd is None or pd._context is not context:
            raise PyverbsRDMAError(
                "Failed to create QP: a PD of this device and IBV_QP_INIT_ATTR_PD are required",
                errno.EINVAL,
            )
        self._create_qp(pd, init_attr)

    # ---- attributes

    @property
    def qp_num(self) -> int:
        """The queue pair number."""
        return self._num

    @property
    def qp_type(self) -> int:
        """The queue pair type, a value of ``ibv_qp_type``."""
        return self._type

    @property
    def qp_state(self) -> int:
        """The queue pair state, a value of ``ibv_qp_state``."""
        state = int(self._native().qp_state)
        return self._of_cm if self._of_cm is not None and state == e.IBV_QPS_INIT else state

    def query(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """Return all attributes and the creation parameters, regardless of ``attr_mask``."""
        with convert_errors("Failed to query QP"):
            now, _ = self._native().query()
        attr, known = QPAttr(), self._set
        for name in _REMEMBERED.values():
            setattr(attr, name, getattr(known, name))
        attr.qp_state = attr.cur_qp_state = self.qp_state
        attr.qkey = now.qkey or 0
        attr.qp_access_flags = int(now.qp_access_flags or 0)
        attr.sq_draining = int(bool(now.sq_draining))
        attr.cap = granted_capacities(self._native())
        attr.rate_limit = now.rate_limit or 0
        init = QPInitAttr(
            self._type, self._user, self._scq, self._rcq, self._srq, attr.cap, self._sig_all
        )
        return attr, init

    def _attr_mask_of_transition_to(self, dst: str) -> int:
        """Return the attribute mask of the transition to "INIT", "RTR" or "RTS"."""
        index = list(_STATES.values()).index(dst)
        return _STEPS[self._type][index] | e.IBV_QP_STATE

    @property
    def qp(self) -> int:
        """A unique number of the queue pair in this process."""
        return id(self._native())

    # ---- states

    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        """Change the attributes in the mask, including the state.

        Raises:
            PyverbsRDMAError: the state transition is not allowed, or a value is invalid (EINVAL);
                siwarp does not support the attribute (EOPNOTSUPP).

        """
        self._modify(qp_attr, int(comp_mask), "Failed to modify QP")

    def _modify(self, attr: QPAttr, mask: int, what: str) -> None:
        self._check_attributes(attr, mask, what)
        state = attr.cur_qp_state if mask & e.IBV_QP_CUR_STATE else self.qp_state
        to = attr.qp_state if mask & e.IBV_QP_STATE else state
        if not self._leave_transition_to_cm(attr, mask, state, to):
            self._modify_native(attr, mask, what, state, to)
        if mask & e.IBV_QP_STATE and to == e.IBV_QPS_RESET:
            self._set, self._of_cm = QPAttr(port_num=0, path_mtu=0), None
            return
        for bit, name in _REMEMBERED.items():
            if mask & bit:
                setattr(self._set, name, _mask_attr_to_field_bits(attr, name))

    def _check_attributes(self, attr: QPAttr, mask: int, what: str) -> None:
        """Raise an error for invalid values that the engine does not check in all transitions."""
        for bit, (name, why) in _NOT_OURS.items():
            if mask & bit:
                raise_unsupported(name, why)
        if mask & e.IBV_QP_RATE_LIMIT and self._type == e.IBV_QPT_RC:
            raise_unsupported("rate limit for RC", "TCP determines the rate; use `tc` to limit it")
        if mask & _MIGRATION and attr.path_mig_state != e.IBV_MIG_MIGRATED:
            raise_unsupported("path migration", "a queue pair has only one path")
        wrong = {
            "the mask": bool(mask & ~_ALL_MASKS),
            "port_num": mask & e.IBV_QP_PORT and attr.port_num != 1,
            "pkey_index": mask & e.IBV_QP_PKEY_INDEX and attr.pkey_index != 0,
            "path_mtu": mask & e.IBV_QP_PATH_MTU and not 1 <= attr.path_mtu <= 5,
            "dest_qp_num": mask & e.IBV_QP_DEST_QPN and attr.dest_qp_num > 0xFFFFFF,
        }
        found = [name for name, is_wrong in wrong.items() if is_wrong]
        if found:
            raise PyverbsRDMAError(f"{what}: {', '.join(found)} out of range", errno.EINVAL)

    def _leave_transition_to_cm(self, attr: QPAttr, mask: int, state: int, to: int) -> bool:
        """Return whether the connection id makes a state transition; if so, record the state."""
        rtr = (state, to) == (e.IBV_QPS_INIT, e.IBV_QPS_RTR)
        if rtr and mask & e.IBV_QP_DEST_QPN and attr.dest_qp_num == QPN_OF_CM:
            self._of_cm = to
            return self._type == e.IBV_QPT_RC
        if self._of_cm is not None and (state, to) == (e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            self._of_cm = to
            return True
        return False

    def _modify_native(self, attr: QPAttr, mask: int, what: str, state: int, to: int) -> None:
        takes = lib.siw_qp_step_attrs(self._type, state, to if mask & e.IBV_QP_STATE else -1)
        always = QPAttrMask.STATE | QPAttrMask.CUR_STATE
        wanted = mask & (max(takes, 0) | always | QPAttrMask.RATE_LIMIT)
        new = qpattr.QPAttr()
        for name, bit in qpattr.QPAttr._MASKS.items():
            if not wanted & bit:
                continue
            if bit == QPAttrMask.AV:
                new.ah_attr = to_native_ah_attr(self._context, attr._ah, what)
            elif bit == QPAttrMask.ACCESS_FLAGS:
                new.qp_access_flags = attr.qp_access_flags & _RIGHTS
            else:
                setattr(new, name, _mask_attr_to_field_bits(attr, name))
        with convert_errors(what):
            self._native().modify(new, wanted)

    def _move_to_state(self, attr: QPAttr, state: int) -> None:
        name = _STATES[e.ibv_qp_state(state)]
        step = QPAttr()
        step.__dict__.update(attr.__dict__)
        step.qp_state = state
        self._modify(
            step, self._attr_mask_of_transition_to(name), f"Failed to modify QP state to {name}"
        )

    def to_init(self, qp_attr: QPAttr) -> None:
        """Move the queue pair to INIT."""
        self._move_to_state(qp_attr, e.IBV_QPS_INIT)

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """Move the queue pair to RTR, through INIT unless its state is INIT."""
        if self.qp_state != e.IBV_QPS_INIT:
            self.to_init(qp_attr)
        self._move_to_state(qp_attr, e.IBV_QPS_RTR)

    def to_rts(self, qp_attr: QPAttr) -> None:
        """Move the queue pair to RTS, through INIT and RTR unless its state is RTR."""
        if self.qp_state != e.IBV_QPS_RTR:
            self.to_rtr(qp_attr)
        self._move_to_state(qp_attr, e.IBV_QPS_RTS)

    # ---- requests

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post a send request, and the requests linked to it by ``next_wr``.

        Raises:
            PyverbsRDMAError: the queue is full (ENOMEM), or a request is invalid (EINVAL);
                ``bad_wr`` becomes the first request that was not posted.

        """
        wrs = linked_requests(wr)
        try:
            self._native().post_send(wrs[0]._wr if len(wrs) == 1 else [one._wr for one in wrs])
        except Error as error:
            if bad_wr is not None:
                bad_wr._copy_from(next(one for one in wrs if one._wr is error.bad_wr))
            raise to_pyverbs_error("Failed to post send", error) from error

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post a receive request, and the requests linked to it by ``next_wr``.

        Raises:
            PyverbsRDMAError: as for ``post_send``.

        """
        wrs = linked_requests(wr)
        try:
            self._native().post_recv(wrs[0]._wr if len(wrs) == 1 else [one._wr for one in wrs])
        except Error as error:
            if bad_wr is not None:
                bad_wr._copy_from(next(one for one in wrs if one._wr is error.bad_wr))
            raise to_pyverbs_error("Failed to post recv", error) from error

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Post a bind of a type 1 window."""
        bind = NativeMWBind(mw_bind._info._to_siwarp_info(), mw_bind.wr_id, mw_bind.send_flags)
        with convert_errors("Failed to bind MW"):
            self._native().bind_mw(mw._native(), bind)

    # ---- features of adapters

    def modify_rate_limit(self, attr: QPRateLimitAttr) -> None:
        """Limit the rate of a UD or UC queue pair; 0 removes the limit.

        Raises:
            PyverbsRDMAError: the type is RC, or the attributes contain a burst or packet size
                (EOPNOTSUPP); the state is not RTS (EINVAL).

        """
        if attr.comp_mask:
            raise PyverbsRDMAError(
                "Failed to modify QP rate limit: comp_mask must be 0", errno.EINVAL
            )
        if attr.max_burst_sz or attr.typical_pkt_sz:
            raise_unsupported("burst size of a rate limit", "pass rate_limit alone")
        new, mask = QPAttr(), int(e.IBV_QP_RATE_LIMIT)
        new.rate_limit = attr.rate_limit
        self._modify(new, mask, "Failed to modify QP rate limit")

    def attach_comp_cntr(self, comp_cntr: object, attr: QPAttachCompCntrAttr) -> NoReturn:
        """Raise PyverbsRDMAError (EOPNOTSUPP), as siwarp has no completion counters."""
        raise_unsupported("completion counter", "completions are counted in completion queues")

    def query_data_in_order(self, op: int, flags: int = 0) -> int:
        """Return 0, because the octets of a segment are placed in no defined order."""
        self._native()
        return 0

    def set_ece(self, ece: ECE) -> None:
        """Accept empty vendor options, which ``query_ece`` returns, and refuse others."""
        self._native()
        if ece.comp_mask:
            raise PyverbsRDMAError("Failed to set ECE: comp_mask must be 0", errno.EINVAL)
        if ece.vendor_id or ece.options:
            raise_unsupported("vendor options", "it defines none and supports none of others")

    def query_ece(self) -> ECE:
        """Return the vendor options, which are empty."""
        self._native()
        return ECE()

    def __str__(self) -> str:
        return (
            f"{'QP type':<22}: {qp_type_to_str(self.qp_type):<20}\n"
            f"{'  number':<22}: {self.qp_num:<20}\n"
            f"{'  state':<22}: {qp_state_to_str(self.qp_state):<20}\n"
        )


from siwarp.pyverbs._qp_ex import QPEx  # noqa: E402  imported last: QPEx derives from QP
