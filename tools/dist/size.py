"""Print the octets of each part of each wheel; exit with 1 if a wheel is too large."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

from platforms import OUT

#: Maximum number of octets of a wheel without the simulator, and of the simulator. The simulator is
#: a second build of all layers, which only simulated processes load.
MOST_OCTETS = 1_000_000
MOST_OF_SIMULATOR = 400_000
SIMULATOR = ("siwarp/sim/", "siwarp/lib/libsiwarp-sim.so", "siwarp/_siwarp_sim.")
PARTS = {
    "the simulator": SIMULATOR,
    "libsiwarp": ("siwarp/lib/libsiwarp.so.",),
    "the module _siwarp": ("siwarp/_siwarp.abi3.so",),
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


def main() -> int:
    """Print the parts of all wheels in dist/release; return 1 if one exceeds its maximum."""
    wheels = {w.stem.split("-")[-1]: sizes_of_python_wheel_parts(w) for w in sorted(OUT.glob("*.whl"))}
    names = sorted(
        {n for w in wheels.values() for n in w}, key=lambda n: -max(w[n] for w in wheels.values())
    )
    print("octets, compressed:", *wheels)
    for name in names:
        print(*(f"{octets[name]:>10,}" for octets in wheels.values()), "", name)
    print(*(f"{octets.total():>10,}" for octets in wheels.values()), "", "total")
    status = 0
    for platform, octets in wheels.items():
        simulator = octets["the simulator"]
        for name, size, most in (
            ("the simulator", simulator, MOST_OF_SIMULATOR),
            ("the rest", octets.total() - simulator, MOST_OCTETS),
        ):
            if size > most:
                print(f"{platform}: {size:,} octets of {name}, more than {most:,}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
