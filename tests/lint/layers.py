"""The layers, and which folders may use which: the data for c_includes.py and c_symbols.py."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "siwarp"

# For each folder, the lower folders that it may include and call. Every folder may use base.
MAY_USE: dict[str, set[str]] = {
    "base": set(),
    "llp": {"base"},
    "mem": {"base"},
    "mpa": {"base", "llp"},
    "rd": {"base", "llp"},
    "ddp": {"base", "llp", "mem", "mpa", "rd"},
    "rdmap": {"base", "mem", "ddp"},
    # verbs accesses queue pairs only through struct siw_qp_ops.
    "verbs": {"base", "llp", "mem"},
    "qp": {"base", "llp", "mem", "mpa", "rd", "ddp", "rdmap", "verbs"},
    "cm": {"base", "verbs", "qp"},
    # The simulator, which replaces llp and a device's thread.
    "sim": {"base", "llp", "verbs"},
    # The program siwarp-wan, which uses only plain values.
    "wan": {"base"},
    # Folders that may use only the public headers.
    "abi": set(),
    "bench": set(),
    "aio": set(),
    "pyverbs": set(),
    "testing": set(),
    "cli": set(),
    "inspect": set(),
}
# A folder's interface is the header with the folder's name, and these additional headers.
PARTS: set[str] = {
    "ddp/ddp_rd.h",
    "ddp/ddp_uc.h",
    "mem/mem_queue.h",
    "qp/qp_sidr.h",
    "rdmap/rdmap_record.h",
    "rdmap/rdmap_uc.h",
}


def allowed(folder: str) -> set[str]:
    """Return the folders that files of this folder may use."""
    return {folder} | MAY_USE[folder]
