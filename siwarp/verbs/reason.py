# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The text of ``siw_reason``, why the C library refused a call, with Python's names."""

from __future__ import annotations

import errno
import re
import sys

from siwarp.base.library import ffi, lib
from siwarp.verbs.errors import Error, LimitError, StateError, from_errno

__all__ = ["refused", "words"]

#: C names and phrases, and their Python replacements. The longest match is replaced.
_NAMES = {
    "<siwarp/cm.h>": "siwarp.cm",
    "give ah_addr (SIW_QP_AV)": "give ah_attr",
    "give ah_addr (SIW_QP_AV) and dest_qp_num (SIW_QP_DEST_QPN)": "give ah_attr and dest_qp_num",
    "give siw_qp_num of the peer's QP": "give qp_num of the peer's QP",
    "no address as ah_source says": "no address as AHAttr(source=...) says",
    "siw_query_device_info": "`siwarp devices`",
    "nor ah_addr has": "nor ah_attr has",
    "bind_info.mr": "MWBindInfo(mr, ...)",
    "connect it first (siw_cm_connect, or siw_cm_accept)": "connect it first",
    "by siw_qp_init_attr.shared_socket_qp": "by QPInitAttr(shared_socket_qp=...)",
    "enum siw_error_policy": "ErrorPolicy",
    "enum siw_persona": "Persona",
    "enum siw_qp_attr_mask": "QPAttrMask",
    "enum siw_qp_state": "QPState",
    "enum siw_send_flags": "SendFlag",
    "enum siw_wr_opcode": "WROpcode",
    "initiator_depth of siw_cm_connect": "ConnParam(initiator_depth=...)",
    "has no_crc=0: give the same": "has crc=True: give the same",
    "has no_crc=1: give the same": "has crc=False: give the same",
    "make one with siw_create_ah and the QP's PD": "make one with AH(qp.pd, ...)",
    "move it to RTS with siw_modify_qp first": "call to_rts() first",
    "recv_cq": "rcq",
    "send_cq": "scq",
    "siw_alloc_mw, then bind_mw.mw": "SendWR(...).set_bind_wr(mw, MWBindInfo(...))",
    "siw_bind_mw": "QP.bind_mw",
    "siw_cm_accept": "accept()",
    "siw_cm_connect": "connect()",
    "siw_cm_destroy_id": "CMID.close()",
    "siw_create_ah, then rd.ah": "SendWR(ah=AH(pd, (host, port)))",
    "siw_create_ah, then wr.ud.ah": "SendWR(ah=AH(pd, (host, port)))",
    "siw_detach_mcast": "QP.detach_mcast()",
    "siw_modify_qp": "QP.modify",
    "siw_post_send, with SIW_WR_BIND_MW": "post_send, with SendWR.set_bind_wr",
    "siw_post_srq_recv": "SRQ.post_recv",
    "siw_qp_init_attr.addr of": "QPInitAttr(addr=...) of",
    "siw_query_device": "Context.query_device()",
    "give one of AF_INET or AF_INET6": "give (host, port)",
    "enum siw_access_flags": "AccessFlag",
    "enum siw_cm_rtr": "RTR",
    "enum siw_rereg_mr_flags": "pd=, buffer= or access=",
    "make it with one of siw_create_comp_channel": "make it with channel=CompChannel(context)",
    "siw_capture_start": "siwarp.capture",
    "siw_capture_stop": "the end of its block",
    "siw_cm_bind_qp": "CMID.bind_qp()",
    "siw_cm_set_device": "CMID.set_device()",
    "siw_cm_get_event": "CMEventChannel.get_event()",
    "siw_get_device_list": "`siwarp devices`",
    "siw_reg_mr": "MR(pd, ...) without qp=",
    "with siw_reg_mr_qp": "with qp=",
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
#: For these errno values the reason replaces the errno text, because the number is ambiguous.
_VAGUE = (errno.EINVAL, errno.ENOMEM)


def words(text: str) -> str:
    """Return the text of a reason with Python names instead of C names."""
    return _ANY.sub(lambda m: _NAMES.get(m[0]) or _ENUMS[m[0]], text)


def refused(number: int, what: str) -> Error:
    """Return the exception for this thread's last refused call of the library.

    ``number`` is the errno value, ``what`` names the operation.
    """
    name = bytes(ffi.string(lib.siw_reason_name())).decode()
    if name in ("", "SYSTEM"):  # the library knows no more than the errno value
        return from_errno(number, what)
    why = words(bytes(ffi.string(lib.siw_reason())).decode(errors="replace"))
    error = from_errno(number, what, why)
    if number in _VAGUE:
        error = _KINDS.get(name, type(error))(number, f"{what}: {why}")
    error.reason = name
    if sys.version_info >= (3, 11):  # a traceback prints the note below the message
        error.add_note(f"reason {name}: #reason-{name.lower().replace('_', '-')} of Exceptions")
    return error
