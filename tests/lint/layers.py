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
    # rdmap uses only mpa_params.h of mpa.
    "rdmap": {"base", "mem", "mpa", "ddp"},
    # device accesses queue pairs only through struct siw_qp_ops.
    "device": {"base", "llp", "mem"},
    "qp": {"base", "llp", "mem", "mpa", "rd", "ddp", "rdmap", "device"},
    "connect": {"base", "llp", "mpa", "device", "qp"},
    "verbs": {"base", "device", "qp", "connect"},
    "cm": {"base", "device", "qp", "connect", "verbs"},
    # The simulator, which replaces llp and a device's thread.
    "sim": {"base", "llp", "device"},
    # The program siwarp-wan, which uses only plain values.
    "wan": {"base"},
    # Folders that may use only the public headers.
    "abi": set(),
    "bench": set(),
    "aio": set(),
    "pyverbs": set(),
    "testing": set(),
    "ulp": set(),
    "cli": set(),
    "inspect": set(),
}
# A folder's interface is the header with the folder's name, and these additional headers.
PARTS: set[str] = {
    "connect/connect_sidr.h",
    "ddp/ddp_rd.h",
    "ddp/ddp_uc.h",
    "llp/llp_dgram_wire.h",
    "mem/mem_queue.h",
    "mpa/mpa_params.h",
    "qp/qp_objects.h",
    "qp/qp_sockets.h",
    "qp/rc/qp_rc.h",
    "rd/rd_rnr.h",
    "rdmap/rdmap_record.h",
    "rdmap/rdmap_uc.h",
}


def folders_that_folder_may_use(folder: str) -> set[str]:
    """Return the folders whose headers and functions the files of a folder may use."""
    return {folder} | MAY_USE[folder]
