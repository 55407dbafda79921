"""The layers, and which folder may use which: what c_includes.py and c_symbols.py check."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "siwarp"

# Folder: the folders below it that it may include and call. Everyone may use base.
MAY_USE: dict[str, set[str]] = {
    "base": set(),
    "llp": {"base"},
    "mem": {"base"},
    "mpa": {"base", "llp"},
    "rd": {"base", "llp"},
    "ddp": {"base", "llp", "mem", "mpa", "rd"},
    "rdmap": {"base", "mem", "ddp"},
    # verbs knows queue pairs by struct siw_qp_ops alone.
    "verbs": {"base", "llp", "mem"},
    "qp": {"base", "llp", "mem", "mpa", "rd", "ddp", "rdmap", "verbs"},
    "cm": {"base", "verbs", "qp"},
    # In llp's place, and in that of a device's thread.
    "sim": {"base", "llp", "verbs"},
    # A program of its own, on plain values alone.
    "wan": {"base"},
    # On the public headers only.
    "abi": set(),
    "bench": set(),
    "aio": set(),
    "pyverbs": set(),
    "testing": set(),
    "cli": set(),
    "inspect": set(),
}
# A folder's contract is the header of its name, and these parts of it.
PARTS: set[str] = {
    "ddp/ddp_rd.h",
    "ddp/ddp_uc.h",
    "mem/mem_queue.h",
    "qp/qp_sidr.h",
    "rdmap/rdmap_record.h",
    "rdmap/rdmap_uc.h",
}


def allowed(folder: str) -> set[str]:
    """Return the folders that the files of this one may use."""
    return {folder} | MAY_USE[folder]
