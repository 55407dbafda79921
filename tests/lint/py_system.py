"""Python code above verbs uses siwarp.base.system for time, threads, randomness and host names.

A simulated process replaces the functions of siwarp.base.system; a call that bypasses the module
would use real time, or would depend on the machine.
"""

from __future__ import annotations

import ast
import re
import sys

from layers import PACKAGE

FOLDERS = ("verbs", "cm", "aio", "pyverbs", "testing")
MODULES = {
    "_thread",
    "concurrent",
    "datetime",
    "multiprocessing",
    "queue",
    "random",
    "sched",
    "secrets",
    "select",
    "selectors",
    "signal",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
#: Names of the module socket that call no system function: constants, types and conversions.
SOCKET = re.compile(r"AF_\w+|AI_\w+|IPPROTO_\w+|SOCK_\w+|gaierror|inet_[np]to[np]|[hn]to[hn][ls]")
#: The function that names a link-local scope for the user; a simulated network has no such names.
TEXT = {"if_indextoname"}
#: Names of the module os that wait, draw random numbers or read system counters.
OS = re.compile(r"eventfd\w*|fork\w*|getrandom|pipe2?|sched_\w+|times|urandom|wait\w*|getloadavg")
#: Methods of event loops, and functions of asyncio, that create sockets, threads or processes.
LOOPS = re.compile(
    r"create_(connection|datagram_endpoint|server|subprocess\w*|unix\w*)|open_\w*connection|"
    r"run_in_executor|start_\w*server|sock_\w+|socketpair|to_thread"
)


def _is_system_call(module: str, name: str) -> bool:
    """Return whether an attribute of the module socket, os or asyncio calls the system."""
    if module == "socket":
        # socket.socket as a type is allowed; the creation of a socket is a call of socket.socket.
        return name not in TEXT | {"socket"} and not SOCKET.fullmatch(name)
    if module == "os":
        return bool(OS.fullmatch(name))
    return bool(LOOPS.fullmatch(name))


def find_direct_system_calls(text: str) -> list[tuple[int, str]]:
    """Return line and name of each use that bypasses siwarp.base.system."""
    found = []
    aliases: dict[str, str] = {}
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        wrong: list[str] = []
        if isinstance(node, ast.Import):
            aliases |= {a.asname: a.name for a in node.names if a.asname}
            wrong = [a.name for a in node.names if a.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = (node.module or "").partition(".")[0]
            if module in MODULES:
                wrong = [module]
            elif module in {"os", "socket", "asyncio"}:
                wrong = [a.name for a in node.names if _is_system_call(module, a.name)]
        found += [(node.lineno, name) for name in wrong]
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("socket.socket"):
            found.append((node.lineno, "socket.socket"))
        elif isinstance(node, ast.Attribute):
            value = ast.unparse(node.value)
            if _is_system_call(aliases.get(value, value), node.attr):
                found.append((node.lineno, f"{value}.{node.attr}"))
    return sorted(found)


def main() -> int:
    """Print each use that bypasses siwarp.base.system; return 1 if there is any."""
    bad = checked = 0
    for folder in FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            checked += 1
            for number, name in find_direct_system_calls(path.read_text("utf-8")):
                print(
                    f"siwarp/{path.relative_to(PACKAGE)}:{number}: {name}: use siwarp.base.system"
                )
                bad += 1
    print(f"{checked} Python files, {bad} ways past siwarp.base.system")
    return 1 if bad or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
