"""Unsupported functions of libibverbs.so.1 fail with EOPNOTSUPP, and VERBS.md gives the reason."""

from __future__ import annotations

import ctypes
import errno
import re
from pathlib import Path

from abi.symbols import LIST

from siwarp import _paths

#: The form of a check in programs/bad.c or newer.c that a call fails with EOPNOTSUPP.
CHECKED = re.compile(r"-?EOPNOTSUPP,\s*(?:\(int\))?(ibv_\w+)\(")


def documented_refusal_reasons(root: Path) -> dict[str, str]:
    table = (root / "VERBS.md").read_text("utf-8").split("<!-- refused: ")[1]
    rows = re.findall(r"^\| (`ibv.*?) \| (.*?) \|$", table, re.MULTILINE)
    return {name: why for names, why in rows for name in re.findall(r"`(ibv_\w+)`", names)}


def functions_checked_as_unsupported() -> set[str]:
    programs = Path(__file__).parent / "programs"
    source = (programs / "bad.c").read_text("utf-8")
    names = set(CHECKED.findall(source + (programs / "newer.c").read_text("utf-8")))
    # bad.c also has tables of unsupported attributes of ibv_create_qp and ibv_modify_qp.
    assert "WITH(EOPNOTSUPP" in source
    assert re.search(r"},\s*EOPNOTSUPP },", source)
    return names | {"ibv_create_qp", "ibv_modify_qp"}


def test_each_unsupported_call_has_a_documented_reason_and_a_check(root: Path) -> None:
    table = documented_refusal_reasons(root)
    assert all(table.values())
    assert set(table) == functions_checked_as_unsupported()


def test_command_functions_for_providers_return_eopnotsupp() -> None:
    library = ctypes.CDLL(str(_paths.rdma_core_abi_dir() / _paths.VERBS))
    commands = {
        name.split("@")[0]
        for name in LIST.read_text("utf-8").split()
        if name.startswith("ibv_cmd_")
    } | {"execute_ioctl", "__ioctl_final_num_attrs"}
    assert len(commands) > 50
    assert {getattr(library, name)(0, 0, 0) for name in commands} == {errno.EOPNOTSUPP}


def test_functions_for_provider_libraries_can_be_called_without_error() -> None:
    library = ctypes.CDLL(str(_paths.rdma_core_abi_dir() / _paths.VERBS))
    for release in (34, 57, 59, 64, 65):
        getattr(library, f"verbs_register_driver_{release}")(None)
    for name in ("verbs_set_ops", "verbs_init_cq", "verbs_uninit_context", "__verbs_log"):
        getattr(library, name)(None, None, None)
    for name in ("verbs_open_device", "_verbs_init_and_alloc_context"):
        function = getattr(library, name)
        function.restype = ctypes.c_void_p
        assert function(None, None, None, None, 0) is None
