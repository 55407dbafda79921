"""The layers, and which folder may use which: what c_includes.py and c_symbols.py check."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "siwarp"

# Folder: the folders below it that it may include and call. Everyone may use base.
MAY_USE: dict[str, set[str]] = {
    "base": set(),
    "llp": {"base"},
    "mpa": {"base", "llp"},
    "ddp": {"base", "mpa"},
    "rdmap": {"base", "ddp"},
    "verbs": {"base", "rdmap"},
    "cm": {"base", "verbs"},
    # A program of its own, on plain values alone.
    "wan": {"base"},
    # On the public headers only.
    "bench": set(),
    "aio": set(),
    "cli": set(),
    "inspect": set(),
}
# ddp stands on llp itself where it works on datagrams.
ALSO: dict[str, set[str]] = {
    "ddp/ddp_datagram.c": {"llp"},
    "ddp/ddp_dgram_impl.h": {"llp"},
    "ddp/ddp_record.c": {"llp"},
    "ddp/ddp_rd.c": {"llp"},
    "ddp/ddp_uc.c": {"llp"},
    "ddp/ddp_uc_impl.h": {"llp"},
    "ddp/ddp_uc_tx.c": {"llp"},
}
# A folder's contract is the header of its name, and these parts of it.
PARTS: set[str] = {
    "llp/dgram_wire.h",
    "llp/llp_rd.h",
    "ddp/ddp_rd.h",
    "ddp/ddp_uc.h",
    "rdmap/rdmap_uc.h",
    "rdmap/rdmap_record.h",
}


def allowed(folder: str, file: str) -> set[str]:
    """Return the folders that this file (its name without folder) may use."""
    return {folder} | MAY_USE[folder] | ALSO.get(f"{folder}/{file}", set())
