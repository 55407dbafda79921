"""Compares a wheel with the source tree: the wheel must have all expected files, and no others."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def expected_files(wheel: str) -> set[str]:
    """Return the names of files under siwarp/ that a wheel must have."""
    package = ROOT / "siwarp"
    names = {
        path.relative_to(ROOT).as_posix()
        for pattern in (
            "**/*.py",
            "*.pyi",
            "py.typed",
            "include/siwarp/*.h",
            "inspect/*.lua",
            "bench/mpi/*.c",  # compiled by `siwarp bench all`
        )
        for path in package.glob(pattern)
        if "_build" not in path.parts and "__pycache__" not in path.parts
    }
    if "musllinux" not in wheel:
        names |= {
            f"siwarp/lib/abi/{library}.so{suffix}"
            for library in ("libibverbs", "librdmacm")
            for suffix in ("", ".1")
        }
    return names | {
        "siwarp/_siwarp.abi3.so",
        "siwarp/_siwarp_sim.abi3.so",
        "siwarp/lib/libsiwarp.so.0",
        "siwarp/lib/libsiwarp-sim.so",
        "siwarp/lib/pkgconfig/siwarp.pc",
        "siwarp/cli/adts.md",  # from spec/, for `siwarp spec`
        "siwarp/cli/datagram-iwarp.md",
    }


def main() -> int:
    """Print missing and superfluous files of a wheel; return 1 if there are any."""
    wheel = zipfile.ZipFile(sys.argv[1])
    names = {n for n in wheel.namelist() if ".dist-info/" not in n}
    # Compiled programs are not files of the source tree.
    programs = {
        f"siwarp/{name}"
        for name in (
            "bench/bin/siwarp-bench",
            "bench/bin/siwarp-bench-memory",
            "wan/bin/siwarp-wan",
        )
    }
    expected = expected_files(Path(sys.argv[1]).name) | programs
    missing = expected - names
    extra = names - expected
    for name in sorted(missing):
        print(f"missing from the wheel (is it in its folder's meson.build?): {name}")
    for name in sorted(extra):
        print(f"in the wheel, but not in the tree: {name}")
    licences = {Path(n).name for n in wheel.namelist() if ".dist-info/licenses/" in n}
    wanted = {"LICENSE", "GPL-2.0-only.txt", "BSD-2-Clause.txt"}
    if not licences >= wanted:
        print(f"licences missing from the wheel: {sorted(wanted - licences)}")
    if missing or extra or not licences >= wanted:
        return 1
    print(f"{len(names)} files, as in the tree; libsiwarp.so.0, headers and siwarp.pc among them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
