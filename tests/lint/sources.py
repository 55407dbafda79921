"""Every source file is listed in a meson.build, so that the build and the wheel contain the file.

Reads meson's introspection data of the build folder (the argument).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from layers import PACKAGE, ROOT


def main() -> int:
    """Print each file that no target compiles or installs; return 1 if there is any."""
    build = Path(sys.argv[1]).resolve()
    info = build / "meson-info"
    compiled: set[Path] = set()
    for target in json.loads((info / "intro-targets.json").read_text("utf-8")):
        for group in target["target_sources"]:
            compiled.update(Path(source) for source in group.get("sources", []))
    plan = json.loads((info / "intro-install_plan.json").read_text("utf-8"))
    installed = {Path(source) for section in plan.values() for source in section}

    # Some C files are installed instead of compiled, because the compiler of an MPI compiles them.
    missing = [path for path in PACKAGE.rglob("*.c") if path not in compiled | installed]
    missing += [
        path
        for pattern in ("*.py", "*.pyi", "py.typed", "include/siwarp/*.h")
        for path in PACKAGE.rglob(pattern)
        if path not in installed and "_build" not in path.parts
    ]
    missing += [path for path in (ROOT / "tests" / "c").rglob("*.c") if path not in compiled]
    for path in sorted(missing):
        print(f"{path.relative_to(ROOT)} is in no meson.build")
    print(f"{len(compiled)} files compiled, {len(installed)} installed, {len(missing)} forgotten")
    return 1 if missing or not compiled else 0


if __name__ == "__main__":
    sys.exit(main())
