# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The text of ``siw_reason``, why the C library refused a call, with Python's names."""

from __future__ import annotations

import errno
import re
import sys
from functools import lru_cache

from siwarp.base.library import ffi, lib
from siwarp.verbs.errors import Error, LimitError, StateError, error_from_errno

__all__ = ["refusal_error", "replace_c_names_by_python_names"]

#: C names and phrases, and their Python replacements. The longest match is replaced.
_NAMES = {
    "<siwarp/cm.h>": "siwarp.cm",
    "set ah_addr (SIW_QP_AV)": "set ah_attr",
    "set ah_addr (SIW_QP_AV) and dest_qp_num (SIW_QP_DEST_QPN)": "set ah_attr and dest_qp_num",
    "siw_qp_num of the peer's QP": "qp_num of the peer's QP",
    "ah_source": "AHAttr(source=...)",
    "siw_query_device_info": "`siwarp devices`",
    "nor ah_addr contains": "nor ah_attr contains",
    "ah_addr is a multicast": "ah_attr is a multicast",
    "set bind_info.mr": "pass MWBindInfo(mr, ...)",
    "connect it first (siw_cm_connect, or siw_cm_accept)": "connect it first",
    "by siw_qp_init_attr.shared_socket_qp": "by QPInitAttr(shared_socket_qp=...)",
    "enum siw_mw_type": "MWType",
    "enum siw_qp_type": "QPType",
    "enum siw_error_policy": "ErrorPolicy",
    "enum siw_persona": "Persona",
    "enum siw_qp_attr_mask": "QPAttrMask",
    "enum siw_qp_state": "QPState",
    "enum siw_send_flags": "SendFlag",
    "enum siw_wr_opcode": "WROpcode",
    "initiator_depth of siw_cm_connect": "ConnParam(initiator_depth=...)",
    "has no_crc=0: use the same": "has crc=True: use the same",
    "has no_crc=1: use the same": "has crc=False: use the same",
    "create one with the QP's PD": "create one with AH(qp.pd, ...)",
    "move it to RTS with siw_modify_qp first": "call to_rts() first",
    "recv_cq": "rcq",
    "send_cq": "scq",
    "siw_alloc_mw and set bind_mw.mw": "SendWR(...).set_bind_wr(mw, MWBindInfo(...))",
    "siw_bind_mw": "QP.bind_mw",
    "siw_cm_accept": "accept()",
    "siw_cm_connect": "connect()",
    "siw_cm_destroy_id": "CMID.close()",
    "create one with siw_create_ah and set wr.ud.ah (UD messages) or rd.ah (RD, Write-Records)": (
        "use SendWR(ah=AH(pd, (host, port))), or for an array an AHList of open handles"
    ),
    "siw_detach_mcast": "QP.detach_mcast()",
    "siw_modify_qp": "QP.modify",
    "siw_post_send, with SIW_WR_BIND_MW": "post_send, with SendWR.set_bind_wr",
    "siw_post_send": "QP.post_send",
    "siw_post_srq_recv": "SRQ.post_recv",
    "siw_qp_init_attr.addr of": "QPInitAttr(addr=...) of",
    "siw_query_device": "Context.query_device()",
    "use AF_INET or AF_INET6": "use (host, port)",
    "enum siw_access_flags": "AccessFlag",
    "enum siw_cm_rtr": "RTR",
    "enum siw_srq_attr_mask": "SrqAttrMask",
    "use a set of enum siw_rereg_mr_flags": "use pd=, buffer= or access=",
    "omit SIW_REREG_MR_CHANGE_PD": "omit pd=",
    "with a channel of siw_create_comp_channel": "with channel=CompChannel(context)",
    "call siw_cq_wait_fd first": "call wait_fileno() first",
    "siw_capture_start": "siwarp.capture",
    "call siw_capture_stop first": "end its block first",
    "siw_cm_bind_qp": "CMID.bind_qp()",
    "siw_cm_set_device": "CMID.set_device()",
    "siw_cm_get_event": "CMEventChannel.get_event()",
    "siw_get_device_list": "`siwarp devices`",
    "siw_reg_mr": "MR(pd, ...) without qp=",
    "siw_reg_mr_qp": "MR(pd, ..., qp=qp)",
}
#: Prefixes of C flags and constants, and the Python enums that replace them.
_ENUMS = {
    "SIW_ACCESS_": "AccessFlag.",
    "SIW_MW_TYPE_": "MWType.TYPE_",
    "SIW_QPT_": "QPType.",
    "SIW_SEND_": "SendFlag.",
    "SIW_WR_": "WROpcode.",
}
_ANY = re.compile(
    "|".join(
        [
            *(rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(_NAMES, key=len, reverse=True)),
            *map(re.escape, _ENUMS),
        ]
    )
)
#: Refusal reasons with errno EINVAL that have an exception class of their own.
_KINDS: dict[str, type[Error]] = {
    "CM_HAS_QP": StateError,
    "CM_LISTENS": StateError,
    "CM_QP_CONTEXT": StateError,
    "CM_QP_PAIRS": StateError,
    "CM_QP_STATE": StateError,
    "CM_QP_TYPE": StateError,
    "CM_USED": StateError,
    "DESTROYED": StateError,
    "QP_ATTR_STEP": StateError,
    "QP_CUR_STATE": StateError,
    "QP_ORD": LimitError,
    "QP_PATH_MTU": LimitError,
    "QP_STEP": StateError,
    "QP_STEP_OUT": StateError,
    "QP_STEP_RC": StateError,
    "RANGE": LimitError,
    "RECV_STATE": StateError,
    "SEND_STATE": StateError,
    "SEND_STATE_RC": StateError,
}
#: Errors of many different causes: the reason replaces the text of the errno value.
_VAGUE = (errno.EINVAL, errno.ENOMEM)


@lru_cache
def replace_c_names_by_python_names(text: str) -> str:
    """Return the text of a reason with Python names instead of C names."""
    return _ANY.sub(lambda m: _NAMES.get(m[0]) or _ENUMS[m[0]], text)


def refusal_error(number: int, what: str) -> Error:
    """Return the exception for this thread's last refused call of the library.

    ``number`` is the errno value, ``what`` names the operation.
    """
    name = bytes(ffi.string(lib.siw_reason_name())).decode()
    if name in ("", "SYSTEM"):  # the library reports no more than the errno value
        return error_from_errno(number, what)
    why = replace_c_names_by_python_names(
        bytes(ffi.string(lib.siw_reason())).decode(errors="replace")
    )
    error = error_from_errno(number, what, why)
    if number in _VAGUE:
        error = _KINDS.get(name, type(error))(number, f"{what}: {why}")
    error.reason = name
    if sys.version_info >= (3, 11):  # a traceback prints the note below the message
        error.add_note(f"reason {name}: #reason-{name.lower().replace('_', '-')} of Exceptions")
    return error
