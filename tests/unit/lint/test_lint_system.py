"""The lint checks that time, sleep, threads and randomness are used only through base."""

from __future__ import annotations

import c_symbols
import py_system
from table import run_test_for_each_row


@run_test_for_each_row(
    "symbol",
    [
        "sched_yield",
        "nanosleep",
        "clock_nanosleep",
        "usleep",
        "pthread_create",
        "pthread_cond_timedwait",
        "getrandom",
        "rand",
        "random",
        "time",
        "gettimeofday",
        "poll",
        "__poll_chk",
        "ppoll",
        "select",
        "eventfd_read",
        "timerfd_create",
        "read",
    ],
)
def test_a_system_call_outside_base_and_llp_is_refused(symbol: str) -> None:
    wrong = c_symbols.forbidden_system_call_error("rd", "rd.c", symbol)
    assert wrong is not None
    assert wrong.startswith(f"rd/rd.c calls {symbol}:")
    assert c_symbols.forbidden_system_call_error("base", "os.c", symbol) is None
    assert c_symbols.forbidden_system_call_error("llp", "llp_wait.c", symbol) is None


@run_test_for_each_row(
    "symbol",
    ["siw_sleep_ns", "siw_rd_pause_delivery", "strerror_r", "pthread_join", "getpid", "qsort"],
)
def test_calls_of_other_functions_are_accepted(symbol: str) -> None:
    assert c_symbols.forbidden_system_call_error("verbs", "device_cq.c", symbol) is None


def test_direct_uses_of_a_clock_in_c_are_found() -> None:
    text = "/* as clock_gettime(2) */\n\tclock_gettime(CLOCK_REALTIME, &t);\n\tx = __rdtsc();\n"
    assert c_symbols.clock_use_errors("qp", "qp.c", text) == [
        "qp/qp.c uses clock_gettime: ask siw_now_ns",
        "qp/qp.c uses __rdtsc: ask siw_now_ns",
    ]
    assert c_symbols.clock_use_errors("base", "clock.h", text) == []


@run_test_for_each_row(
    "line",
    [
        "import time",
        "import select as s",
        "from threading import Thread",
        "import concurrent.futures",
        "from random import random",
        "key = os.urandom(4)",
        "probe = socket.socket()",
        "from os import urandom",
        "loop.run_in_executor(None, call)",
        "socket.getaddrinfo(host, port)",
        "from socket import gethostbyname",
        "import socket as s; s.create_connection(address)",
        "socket.if_nametoindex(name)",
        "woken = os.eventfd(0)",
        "asyncio.open_connection(host, port)",
        "from datetime import datetime",
    ],
)
def test_direct_uses_of_time_threads_and_sockets_in_python_are_found(line: str) -> None:
    assert [number for number, _ in py_system.find_direct_system_calls(f"x = 1\n{line}\n")] == [2]


def test_uses_of_base_in_python_are_accepted() -> None:
    text = "from siwarp.base import system\nimport os, socket\nsystem.sleep(os.getpid())\n"
    text += "x: socket.socket = given\ny = socket.AF_INET, socket.inet_pton, socket.gaierror\n"
    assert py_system.find_direct_system_calls(text) == []
