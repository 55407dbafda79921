"""Tests that C sources have cancellation points only where base/cancel.h allows them."""

from __future__ import annotations

import re
from pathlib import Path

LAYERS = (
    "base",
    "llp",
    "mem",
    "mpa",
    "rd",
    "ddp",
    "rdmap",
    "device",
    "qp",
    "connect",
    "verbs",
    "cm",
    "abi",
)

#: The cancellation points of POSIX and Linux that a sockets library may use.
POINTS = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "close",
    "closedir",
    "connect",
    "creat",
    "epoll_pwait",
    "epoll_wait",
    "fclose",
    "fcntl_lock",
    "fdatasync",
    "fflush",
    "fgets",
    "fopen",
    "fprintf",
    "fputs",
    "fread",
    "freeaddrinfo",
    "fsync",
    "fwrite",
    "getaddrinfo",
    "getifaddrs",
    "getrandom",
    "msync",
    "nanosleep",
    "open",
    "openat",
    "opendir",
    "pause",
    "poll",
    "posix_fallocate",
    "ppoll",
    "pread",
    "preadv",
    "preadv2",
    "printf",
    "pselect",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pthread_testcancel",
    "puts",
    "pwrite",
    "pwritev",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "select",
    "sem_timedwait",
    "sem_wait",
    "send",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "sigsuspend",
    "sigwait",
    "sleep",
    "splice",
    "syslog",
    "system",
    "tcdrain",
    "usleep",
    "vfprintf",
    "wait",
    "waitid",
    "waitpid",
    "write",
    "writev",
]
CALL = re.compile(r"(?<![\w>.*])(" + "|".join(POINTS) + r")\(")

#: Source files that disable cancellation only in one entry function, with that function.
ENTRY_FUNCTIONS = {
    "siwarp/base/counters.c": "siw_counters_init",
    "siwarp/base/capture.c": "capture_take_lock",
}
#: The functions that sleep in waits, and are intentionally cancellation points.
WAITS = {
    ("siwarp/llp/llp_wait.c", "sleep_until_descriptor_ready"),
    ("siwarp/device/device_wait.c", "check_ready_before_wait"),
    ("siwarp/device/device_wait.c", "wait_loop"),
    ("siwarp/connect/connect_events.c", "evq_wait_on_fd_without_progress"),
    ("siwarp/abi/rdmacm/rdmacm_event.c", "event_channel_wait_until_readable"),
    ("siwarp/abi/rdmacm/rdmacm_event.c", "rdma_get_cm_event"),
    # progress_backup_thread runs in a thread of the device, which the program does not cancel.
    ("siwarp/device/device_watchdog.c", "progress_backup_thread"),
}
COMMENT = re.compile(r"/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
FUNCTION = re.compile(r"^[a-z][^\n;={}]*?(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", re.DOTALL | re.MULTILINE)


def cancellation_points(root: Path) -> set[tuple[str, str, str]]:
    """Return the file, function and call of each cancellation point with cancellation enabled."""
    found = set()
    for layer in LAYERS:
        for source in sorted((root / "siwarp" / layer).rglob("*.[ch]")):
            text = COMMENT.sub("", source.read_text())
            name = str(source.relative_to(root))
            for function in FUNCTION.finditer(text):
                if (
                    re.search(r"\b(siw|abi)_cancel_disable\(\)", function[2])
                    or name in ENTRY_FUNCTIONS
                ):
                    continue
                found |= {(name, function[1], call) for call in CALL.findall(function[2])}
    return found


def test_only_functions_that_sleep_in_waits_are_cancellation_points(root: Path) -> None:
    assert {(name, function) for name, function, _ in cancellation_points(root)} == WAITS


def test_the_entry_functions_of_files_without_cancellation_points_disable_cancellation(
    root: Path,
) -> None:
    for name, function in ENTRY_FUNCTIONS.items():
        bodies = dict(FUNCTION.findall(COMMENT.sub("", (root / name).read_text())))
        assert "siw_cancel_disable()" in bodies[function]
