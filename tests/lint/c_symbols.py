"""Checks the symbols of the compiled layers: allowed calls, sockets only in llp, all defined.

Only base calls the system for time, sleep, yield, threads and randomness, and only llp waits for
descriptors, so that a simulation can replace both.

Reads, with nm, the archives of the layers and libsiwarp.so.0 in meson's build folder (the
argument).
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from layers import MAY_USE, PACKAGE, folders_that_folder_may_use

SOCKET = re.compile(
    r"_*(socket|socketpair|bind|listen|connect|accept4?|shutdown|getsockopt|setsockopt|getsockname"
    r"|getpeername|(send|recv)(to|from|msg|mmsg)?|epoll_\w+)(_chk)?$"
)
# System functions for which base/os.h has a replacement. The clock functions in clock.h are inline,
# so uses of clocks are searched in the source text.
SYSTEM = re.compile(
    r"_*(nanosleep|clock_nanosleep|u?sleep|alarm|ualarm|pause|sched_yield|pthread_yield"
    r"|pthread_create|thrd_\w+|pthread_(cond|timedjoin|mutex_timed|clockjoin)\w*|sem_(timed|clock)wait"
    r"|getrandom|getentropy|arc4random\w*|s?rand|rand_r|s?random(_r)?|[dlmejn]rand48(_r)?"
    r"|time|gettimeofday|timespec_get|clock|times|ftime"
    r"|p?poll|p?select|eventfd\w*|timerfd_\w+|timer_\w+|[gs]etitimer|signalfd|read|write)(_chk)?$"
)
CLOCK = re.compile(r"\b(clock_gettime|clock_getres|__?rdtscp?|__builtin_ia32_rdtsc\w*)\b")
# Folders that may use functions of SYSTEM; sim replaces llp and the system.
SYSTEMS = {"base", "llp", "sim"}
# A prototype in a header: a siw_ name before an opening parenthesis, at the start of a line.
PROTOTYPE = re.compile(r"^(?!\s|typedef|static|#|\*|/).*?\b(siw_\w+)\(", re.MULTILINE)


def run_nm(*args: str) -> str:
    """Return the output of nm."""
    return subprocess.run(["nm", *args], check=True, capture_output=True, text=True).stdout


def symbols_of_archive(archive: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (source file, kind, symbol) for an archive's symbols."""
    source = ""
    for line in run_nm("--format=bsd", str(archive)).splitlines():
        fields = line.split()
        if line.endswith(":"):
            # [.../]siwarp_ddp_ddp_datagram.c.o: meson replaces the slashes in a source's path by
            # underscores
            source = line.rstrip(":").removesuffix(".o").rsplit("/", 1)[-1]
        elif len(fields) >= 2:
            yield source, fields[-2], fields[-1]


def functions_declared_for_cffi(folder: Path, which: str = "*.h") -> set[str]:
    """Return the functions that the cffi blocks in the headers of a folder declare."""
    names: set[str] = set()
    for header in folder.rglob(which):
        for block in re.findall(
            r"/\* cffi: begin \*/(.*?)/\* cffi: end \*/", header.read_text("utf-8"), re.DOTALL
        ):
            names.update(PROTOTYPE.findall(re.sub(r"/\*.*?\*/", "", block, flags=re.DOTALL)))
    return names


def forbidden_system_call_error(folder: str, source: str, symbol: str) -> str | None:
    """Return an error message if a file calls a system function that base or llp replaces."""
    if folder in SYSTEMS or not SYSTEM.match(symbol):
        return None
    return f"{folder}/{source} calls {symbol}: base/os.h has time, sleep, threads, randomness"


def clock_use_errors(folder: str, name: str, text: str) -> list[str]:
    """Return error messages for a C file that reads a clock without base/clock.h."""
    if folder in SYSTEMS:
        return []
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return [f"{folder}/{name} uses {found}: ask siw_now_ns" for found in CLOCK.findall(text)]


def main() -> int:
    """Print each symbol that violates a rule; return 1 if there is any."""
    build = Path(sys.argv[1])
    bad: list[str] = []
    home: dict[str, str] = {}
    calls: list[tuple[str, str, str]] = []
    for folder in MAY_USE:
        archive = build / f"libsiw_{folder}.a"
        if not archive.exists():
            continue
        for source, kind, symbol in symbols_of_archive(archive):
            if kind in "TDBRVWCi":
                home.setdefault(symbol, folder)  # sim defines the functions of llp, too
                own = ("siw_", "sim", "__wrap_") if folder == "sim" else "siw_"
                if not symbol.startswith(own):
                    bad.append(f"{folder}: {symbol} is not static and does not begin with siw_")
            elif kind == "U":
                calls.append((folder, source.removeprefix(f"siwarp_{folder}_"), symbol))
    for folder, source, symbol in calls:
        if SOCKET.match(symbol) and folder != "llp":
            bad.append(f"{folder}/{source} calls {symbol}: sockets live in llp only")
        if wrong := forbidden_system_call_error(folder, source, symbol):
            bad.append(wrong)
        if symbol in home and home[symbol] not in folders_that_folder_may_use(folder):
            bad.append(f"{folder}/{source} calls {symbol} of {home[symbol]}")
        if symbol.startswith("siw_") and symbol not in home:
            bad.append(f"{folder}/{source} calls {symbol}, which nobody defines")
    for folder in sorted({folder for folder, _, _ in calls}):
        for path in sorted((PACKAGE / folder).rglob("*.[ch]")):
            bad += clock_use_errors(folder, path.name, path.read_text("utf-8"))
    for folder in MAY_USE:
        for name in sorted(functions_declared_for_cffi(PACKAGE / folder) - set(home)):
            bad.append(f"{folder} declares {name} for Python, and nobody defines it")

    public = functions_declared_for_cffi(PACKAGE / "include" / "siwarp")
    # The package also calls functions of these layer headers (PACKAGE_TOO in
    # siwarp/_build/emit.py).
    for header in ("settings.h", "counters.h"):
        public |= functions_declared_for_cffi(PACKAGE / "base", header)
    exported = {
        line.split()[-1].split("@")[0]
        for line in run_nm("-D", "--defined-only", str(build / "libsiwarp.so.0")).splitlines()
        if line.split()[-2] != "A"
    }
    bad += [f"libsiwarp.so.0 lacks {name} of a public header" for name in sorted(public - exported)]
    bad += [
        f"libsiwarp.so.0 exports {name}, which no public header declares in a cffi block"
        for name in sorted(exported - public)
    ]
    print("\n".join([*bad, f"{len(home)} symbols, {len(calls)} calls, {len(bad)} wrong"]))
    return 1 if bad or not home else 0


if __name__ == "__main__":
    sys.exit(main())
