"""Checks the layers: C files and headers include only headers of folders that they may use."""

from __future__ import annotations

import re
import sys

from layers import MAY_USE, PACKAGE, PARTS, folders_that_folder_may_use

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
# The header of plain value structs, which all layers use. The other public headers declare
# functions that device, qp, verbs and cm implement, and that only higher layers use.
VALUES = "siwarp/types.h"
PUBLIC_USERS = {"device", "qp", "connect", "verbs", "cm", "abi", "bench", "cli"}


def forbidden_include_error(folder: str, file: str, quote: str, target: str) -> str | None:
    """Return an error message if a folder must not include a header, else None."""
    if target.startswith("siwarp/"):
        if target == VALUES or folder in PUBLIC_USERS:
            return None
        return f"only {sorted(PUBLIC_USERS)} may include <{target}>"
    if quote == "<":
        return None
    if "/" not in target:
        return f'say "{folder}/{target}": headers are named from siwarp/ on'
    used = target.split("/")[0]
    if used not in MAY_USE:
        return f"{target}: {used} is no layer"
    if used not in folders_that_folder_may_use(folder):
        return f"{folder} must not use {used}"
    if used not in {"base", folder} and target not in {f"{used}/{used}.h", *PARTS}:
        return f"{used}/{used}.h is the contract of {used}; {target} is its own business"
    return None


def main() -> int:
    """Print each include that violates the layering; return 1 if there is any."""
    bad = checked = 0
    for folder in MAY_USE:
        for path in sorted((PACKAGE / folder).glob("**/*.[ch]")):
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                found = INCLUDE.match(line)
                if found is None:
                    continue
                checked += 1
                if why := forbidden_include_error(folder, path.name, found[1], found[2]):
                    print(f"{path.relative_to(PACKAGE.parent)}:{number}: {why}")
                    bad += 1
    print(f"{checked} includes, {bad} wrong")
    return 1 if bad or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
