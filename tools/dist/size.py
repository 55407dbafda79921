"""Print the octets of each part of each wheel; exit with 1 if a wheel is too large."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

from platforms import OUT

#: Maximum number of octets of the wheels of a distribution. The simulator is a second build of all
#: layers, which only simulated processes load.
MOST_OCTETS = {"siwarp": 1_000_000, "siwarp_sim": 400_000}
PARTS = {
    "libsiwarp": ("siwarp/lib/libsiwarp.so.",),
    "the module _siwarp": ("siwarp/_siwarp.abi3.so",),
    "libsiwarp-sim": ("siwarp/lib/libsiwarp-sim.so",),
    "the module _siwarp_sim": ("siwarp/_siwarp_sim.abi3.so",),
    "libibverbs and librdmacm": ("siwarp/lib/abi/",),
    "programs in C": ("siwarp/bench/bin/", "siwarp/wan/bin/"),
    "headers": ("siwarp/include/",),
    "specifications (siwarp spec)": ("siwarp/cli/adts.md", "siwarp/cli/datagram-iwarp.md"),
}


def wheel_part_of_file(file: str) -> str:
    """Return the name of the part of a wheel to which a file belongs."""
    for name, prefixes in PARTS.items():
        if file.startswith(prefixes):
            return name
    folder = file.split("/")[1]
    if file.endswith(".py"):
        return f"Python: siwarp.{folder}" if file.count("/") > 1 else "Python: siwarp"
    return "metadata" if ".dist-info/" in file else "other files"


def sizes_of_python_wheel_parts(wheel: Path) -> Counter[str]:
    """Return the octets of each part of a wheel; they add up to the wheel's size."""
    found: Counter[str] = Counter()
    with ZipFile(wheel) as archive:
        for file in archive.infolist():
            found[wheel_part_of_file(file.filename)] += file.compress_size
    found["directory of the archive"] = wheel.stat().st_size - found.total()
    return found


def print_sizes(distribution: str, wheels: dict[str, Counter[str]]) -> None:
    """Print a table of the wheels of a distribution, whose columns are the platforms."""
    names = sorted(
        {n for w in wheels.values() for n in w}, key=lambda n: -max(w[n] for w in wheels.values())
    )
    print(f"{distribution}, octets, compressed:", *wheels)
    for name in names:
        print(*(f"{octets[name]:>10,}" for octets in wheels.values()), "", name)
    print(*(f"{octets.total():>10,}" for octets in wheels.values()), "", "total")


def main() -> int:
    """Print the parts of all wheels in dist/release; return 1 if one exceeds its maximum."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for wheel in sorted(OUT.glob("*.whl")):
        distribution, *_, platform = wheel.stem.split("-")
        found.setdefault(distribution, {})[platform] = sizes_of_python_wheel_parts(wheel)
    status = 0
    for distribution, wheels in found.items():
        print_sizes(distribution, wheels)
        most = MOST_OCTETS.get(distribution, sys.maxsize)
        for platform, octets in wheels.items():
            if octets.total() > most:
                print(f"{distribution}, {platform}: {octets.total():,} octets, more than {most:,}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
