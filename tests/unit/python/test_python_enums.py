from __future__ import annotations

import enum

from table import run_test_for_each_row

from siwarp._siwarp import ffi, lib
from siwarp.verbs import enums

C_PREFIXES = {
    "AccessFlag": "ACCESS_",
    "MWType": "MW_",
    "WCStatus": "WC_",
    "WCOpcode": "WC_",
    "WCFlag": "WC_",
    "QPType": "QPT_",
    "QPState": "QPS_",
    "Persona": "PERSONA_",
    "ErrorPolicy": "ERROR_POLICY_",
    "ErrorOrigin": "ERR_",
    "QPAttrMask": "QP_",
    "WROpcode": "WR_",
    "SendFlag": "SEND_",
    "EventType": "EVENT_",
    "SrqAttrMask": "SRQ_",
}
C_ENUM_NAMES = {
    "AccessFlag": "siw_access_flags",
    "MWType": "siw_mw_type",
    "WCStatus": "siw_wc_status",
    "WCOpcode": "siw_wc_opcode",
    "WCFlag": "siw_wc_flags",
    "QPType": "siw_qp_type",
    "QPState": "siw_qp_state",
    "Persona": "siw_persona",
    "ErrorPolicy": "siw_error_policy",
    "ErrorOrigin": "siw_err_origin",
    "QPAttrMask": "siw_qp_attr_mask",
    "WROpcode": "siw_wr_opcode",
    "SendFlag": "siw_send_flags",
    "EventType": "siw_event_type",
    "SrqAttrMask": "siw_srq_attr_mask",
}


@run_test_for_each_row("name", sorted(C_ENUM_NAMES))
def test_python_has_each_member_of_the_c_enum_with_its_value(name: str) -> None:
    in_c = ffi.typeof(f"enum {C_ENUM_NAMES[name]}").relements
    in_python = {
        f"SIW_{C_PREFIXES[name]}{key}": int(value)
        for key, value in getattr(enums, name).__members__.items()
    }
    assert in_python == dict(in_c)
    for key, value in in_python.items():
        assert getattr(lib, key) == value


def test_each_ibv_alias_has_the_name_of_its_enum_member() -> None:
    prefixes = {f"IBV_{prefix}" for prefix in C_PREFIXES.values()}
    aliases = {key: value for key, value in vars(enums).items() if key.startswith("IBV_")}
    for key, value in aliases.items():
        assert isinstance(value, enum.IntEnum | enum.IntFlag)
        assert any(key == f"{prefix}{value.name}" for prefix in prefixes)
    own = {"Persona", "ErrorPolicy", "ErrorOrigin"}
    members = sum(len(getattr(enums, name).__members__) for name in C_ENUM_NAMES if name not in own)
    # The members without an IBV_ name are QPAttrMask.FD, AccessFlag.REMOTE_INVALIDATE,
    # QP_ERR_QUEUED, PEER_RESTARTED, CONGESTED, the masked atomics, two of Write-Record, and
    # QPType.RD.
    assert len(aliases) == members - 10


def test_the_cm_enums_have_the_values_of_the_c_enums() -> None:
    from siwarp.cm import RTR, CMEventType

    events = ffi.typeof("enum siw_cm_event_type").relements
    assert {f"SIW_CM_{e.name}": int(e) for e in CMEventType} == dict(events)
    rtrs = ffi.typeof("enum siw_cm_rtr").relements
    assert {f"SIW_CM_RTR_{k}": int(v) for k, v in RTR.__members__.items()} == dict(rtrs)
