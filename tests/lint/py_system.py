"""Python on the verbs asks siwarp.base.system for time, sleep, threads and randomness.

A simulated process puts its own functions there; what goes past them would run on real time.
"""

from __future__ import annotations

import ast
import sys

from layers import PACKAGE

FOLDERS = ("verbs", "cm", "aio", "testing")
MODULES = {
    "_thread",
    "concurrent",
    "multiprocessing",
    "random",
    "sched",
    "secrets",
    "select",
    "selectors",
    "signal",
    "subprocess",
    "threading",
    "time",
}
#: A socket as a value is fine; one that is made here is not.
CALLS = {"socket.socket", "socket.fromfd"}
#: Attributes of modules that are fine otherwise, and methods of event loops.
NAMES = {
    "create_connection",
    "getrandom",
    "run_in_executor",
    "sched_yield",
    "socketpair",
    "to_thread",
    "urandom",
}


def past_base(text: str) -> list[tuple[int, str]]:
    """Return the line and the name of each thing that a file asks elsewhere."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""] + [a.name for a in node.names if a.name in NAMES]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS:
            found.append((node.lineno, ast.unparse(node.func)))
            continue
        elif isinstance(node, ast.Attribute):
            names = [node.attr] if node.attr in NAMES else []
        else:
            continue
        wrong = [name for name in names if name.partition(".")[0] in MODULES | NAMES]
        found += [(node.lineno, name) for name in wrong]
    return found


def main() -> int:
    """Print each; 1 if there is any."""
    bad = checked = 0
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).glob("*.py")):
            checked += 1
            for number, name in past_base(path.read_text("utf-8")):
                print(f"siwarp/{folder}/{path.name}:{number}: {name}: use siwarp.base.system")
                bad += 1
    print(f"{checked} Python files, {bad} ways past siwarp.base.system")
    return 1 if bad or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
