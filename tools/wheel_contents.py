"""Compare the wheels of a release for one platform with the source tree: wheel_contents.py WHEEL...

Together, the wheels must have all expected files and no others, each in the wheel of its
distribution.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from split_wheel import DISTRIBUTIONS, distribution_of_file

ROOT = Path(__file__).resolve().parent.parent


def expected_files(*, uses_musl: bool) -> set[str]:
    """Return the names of the files under siwarp/ that the wheels must have."""
    package = ROOT / "siwarp"
    names = {
        path.relative_to(ROOT).as_posix()
        for pattern in (
            "**/*.py",
            "*.pyi",
            "py.typed",
            "include/siwarp/*.h",
            "inspect/*.lua",
            "bench/mpi/*.c",  # source text, which `siwarp bench all` compiles
        )
        for path in package.glob(pattern)
        if "_build" not in path.parts and "__pycache__" not in path.parts
    }
    if not uses_musl:
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
        "siwarp/cli/adts.md",  # copied from spec/, for the command `siwarp spec`
        "siwarp/cli/datagram-iwarp.md",
        # Compiled programs are not files of the source tree.
        "siwarp/bench/bin/siwarp-bench",
        "siwarp/bench/bin/siwarp-bench-memory",
        "siwarp/wan/bin/siwarp-wan",
    }


def errors_in_wheel(wheel: Path, expected: set[str]) -> list[str]:
    """Return an error for each missing and each superfluous file of a wheel."""
    names = zipfile.ZipFile(wheel).namelist()
    files = {name for name in names if ".dist-info/" not in name}
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    return [
        *(
            f"missing from {wheel.name} (is it in its folder's meson.build?): {name}"
            for name in sorted(expected - files)
        ),
        *(f"in {wheel.name}, but not expected there: {name}" for name in sorted(files - expected)),
        *(
            f"licence missing from {wheel.name}: {name}"
            for name in sorted({"LICENSE", "GPL-2.0-only.txt", "BSD-2-Clause.txt"} - licences)
        ),
    ]


def main() -> int:
    """Print missing and superfluous files of the wheels; return 1 if there are any."""
    wheels = {path.name.partition("-")[0]: path for path in map(Path, sys.argv[1:])}
    if sorted(wheels) != sorted(d.file_name for d in DISTRIBUTIONS):
        print(f"these are not the wheels of one platform: {' '.join(sys.argv[1:])}")
        return 1
    expected = expected_files(uses_musl="musllinux" in wheels["siwarp"].name)
    errors = []
    for distribution in DISTRIBUTIONS:
        own = {name for name in expected if distribution_of_file(name) is distribution}
        errors += errors_in_wheel(wheels[distribution.file_name], own)
    print(*errors or [f"{len(expected)} files in {len(wheels)} wheels, as in the tree"], sep="\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
