"""Read the counters of this process, or of another process of the same user.

A process that has opened a device keeps its counters in a file named by its PID. base/counters.h
documents the folder and the format; the file contains the names. Reading takes no lock and does not
disturb the process.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "CountersError",
    "folders_of_counters_pages",
    "pids_with_readable_counters",
    "read_counters",
    "read_own_counters",
]

MAGIC = b"siwcntrs"
VERSION = 1
# magic, version, count, pid, zero, start_ticks, opened_ns, unused[3]; host byte order
HEADER = struct.Struct("=8sIIIIQQ24x")
NAME_SIZE = 32


class CountersError(OSError):
    """The counters of a process cannot be read; the text gives the reason."""


def folders_of_counters_pages() -> list[Path]:
    """Return the folders that may contain counters pages of this user's processes, likeliest first.

    A folder is omitted if it is missing, belongs to another user, is accessible to others or is a
    symbolic link, because the C code does not use such a folder either.
    """
    run = os.environ.get("XDG_RUNTIME_DIR", "")
    uid = os.geteuid()
    candidates = [Path(run, "siwarp")] if run.startswith("/") else []
    candidates.append(Path(f"/tmp/siwarp-{uid}"))
    good = []
    for path in candidates:
        try:
            st = path.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(st.st_mode) and st.st_uid == uid and stat.S_IMODE(st.st_mode) == 0o700:
            good.append(path)
    return good


def _process_start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot (proc(5), field 22 of stat)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _find_counters_pages() -> Iterator[tuple[int, Path]]:
    """Yield the PID and the path of every counters page; only the name of the file is checked."""
    for folder in folders_of_counters_pages():
        try:
            files = sorted(folder.iterdir())
        except OSError:
            continue
        for path in files:
            if path.name.isascii() and path.name.isdigit():
                yield int(path.name), path


def _parse_counters_page(pid: int, data: bytes) -> dict[str, int]:
    """Return the counters of a page; raise CountersError unless process ``pid`` runs and owns the
    page.
    """
    if len(data) < HEADER.size:
        raise CountersError(f"process {pid}: its file of counters is incomplete: try again")
    magic, version, count, owner, _zero, start, _opened = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CountersError(
            f"process {pid}: its file of counters is incomplete, or from another program: try again"
        )
    if version != VERSION:
        raise CountersError(
            f"process {pid}: its file of counters has version {version}, this siwarp reads "
            f"{VERSION}: use the siwarp command of that release"
        )
    if len(data) < HEADER.size + count * (8 + NAME_SIZE):
        raise CountersError(f"process {pid}: its file of counters is incomplete: try again")
    alive = _process_start_ticks(pid)
    if owner != pid or alive is None or (start and start != alive):
        raise CountersError(f"process {pid}: not running; its file of counters was not removed")
    values = struct.unpack_from(f"={count}Q", data, HEADER.size)
    names = struct.unpack_from(f"{NAME_SIZE}s" * count, data, HEADER.size + 8 * count)
    return {
        name.rstrip(b"\0").decode("ascii", "replace"): value
        for name, value in zip(names, values, strict=True)
    }


def _read_counters_page(path: Path) -> bytes:
    """Return the octets of a counters page, without following a symbolic link or blocking on a
    special file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CountersError(f"{path} is not a file: remove it")
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def _explain_missing_counters_page(pid: int) -> str:
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return "no such process runs: `siwarp counters` lists those that can be read"
    if owner != os.geteuid():
        return "it is a process of another user, and only that user can read them"
    return (
        "it has opened no siwarp device, or found no directory for its counters: see "
        "`siwarp counters`"
    )


def read_counters(pid: int) -> dict[str, int]:
    """Return the counters of a running process by name, in the order of the C table.

    Counters count single messages, datagrams and events, those called *_octets count octets. All
    start at 0 when the process starts. Raises CountersError if the process has no page (it opened
    no device, belongs to another user, or has exited) or the page is not valid.
    """
    error: OSError | None = None
    for found, path in _find_counters_pages():
        if found != pid:
            continue
        try:
            return _parse_counters_page(pid, _read_counters_page(path))
        except OSError as e:
            error = e
    if isinstance(error, CountersError):
        raise error
    raise CountersError(
        f"process {pid}: no counters; {_explain_missing_counters_page(pid)}"
    ) from error


def read_own_counters() -> dict[str, int]:
    """Return the counters of this process, which exist even if the process has no counters file."""
    from siwarp.base.library import ffi, lib

    return {
        ffi.string(lib.siw_counter_name(i)).decode(): int(lib.siw_counter_get(i))
        for i in range(lib.siw_counters_count())
    }


def pids_with_readable_counters() -> list[int]:
    """Return the PIDs of this user's running processes whose counters can be read, ascending."""
    good = set()
    for pid, path in _find_counters_pages():
        try:
            _parse_counters_page(pid, _read_counters_page(path))
        except OSError:
            continue
        good.add(pid)
    return sorted(good)
