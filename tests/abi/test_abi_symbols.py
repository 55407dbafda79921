"""Symbols and dependencies of libibverbs.so.1 and librdmacm.so.1 for the dynamic linker."""

from __future__ import annotations

import subprocess
from pathlib import Path

from abi.symbols import LIST, exported_symbols

from siwarp import _paths

LIBRARY = _paths.rdma_core_abi_dir() / _paths.VERBS
RDMACM = _paths.rdma_core_abi_dir() / _paths.RDMACM


def needed_libraries(library: Path) -> list[str]:
    out = subprocess.run(
        ["readelf", "-d", str(library)], check=True, capture_output=True, text=True
    )
    return [line.split("[")[1][:-1] for line in out.stdout.splitlines() if "(NEEDED)" in line]


def test_the_libraries_export_exactly_the_listed_names_and_versions() -> None:
    assert exported_symbols(LIBRARY) | exported_symbols(RDMACM) == set(
        LIST.read_text("utf-8").split()
    )


def test_every_name_has_a_default_version_and_each_release_its_number_of_names() -> None:
    names = LIST.read_text("utf-8").split()
    default = {name.split("@@")[0] for name in names if "@@" in name}
    assert {name.split("@")[0] for name in names} == default
    public = [n.split("@@IBVERBS_1.") for n in names if "@@IBVERBS_1." in n]
    assert len([name for name, node in public if int(node) <= 14]) == 75
    # The numbers of symbols that the releases 59, 62, 64 and 65 of rdma-core introduced.
    newer = {15: 3, 16: 2, 17: 3, 18: 11}
    assert {n: sum(int(node) == n for _, node in public) for n in newer} == newer
    rdmacm = [n for n in names if "@@RDMACM_1." in n]
    assert len([n for n in rdmacm if n.startswith("rdma_")]) == 44
    assert len([n for n in rdmacm if not n.startswith("rdma_")]) == 29  # functions of rsockets


def test_the_libraries_need_libsiwarp_and_no_library_of_rdma_core() -> None:
    libraries = needed_libraries(LIBRARY)
    assert "libsiwarp.so.0" in libraries
    assert not [one for one in libraries if one.startswith(("libib", "librdma", "libnl"))]
    of_rdmacm = needed_libraries(RDMACM)
    assert {"libsiwarp.so.0", _paths.VERBS} <= set(of_rdmacm)
    assert not [one for one in of_rdmacm if one.startswith(("libnl", "librdma"))]


def test_the_unversioned_library_needs_the_versioned_library() -> None:
    assert _paths.VERBS in needed_libraries(LIBRARY.with_name("libibverbs.so"))
    assert _paths.RDMACM in needed_libraries(RDMACM.with_name("librdmacm.so"))
