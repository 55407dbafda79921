# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Fixtures: the guest and the stack under test; prints the interoperability matrix at the end."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import pytest
from interop import vm
from interop.rping import Connection, Listener, Stack

RPING_PORT, ECHO_PORT = 7174, 7175  # TCP ports in the guest
#: The largest size that rping accepts, in spite of its usage text.
RPING_LARGEST = 65535


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "cell(row, column, impossible=''): the test's place in the matrix; with a reason in "
        "`impossible` the test shows that the peer cannot do it",
    )


# ------------------------------------------------------------------ the guest


class GuestPool:
    """The current guest VM, which is replaced after its kernel has failed."""

    def __init__(self, boot: Callable[[], vm.Guest]) -> None:
        self._boot = boot
        self.running: vm.Guest | None = None
        self.booted: list[str] = []

    def get_or_boot_guest(self) -> vm.Guest:
        """Return the running guest; boot a guest if none is running."""
        if self.running is None:
            self.running = self._boot()
            self.booted.append(f"{self.running.version} ({self.running.accelerator})")
        return self.running

    def end_guest_if_its_kernel_is_faulty(self) -> str:
        """Return the fault that the running guest's kernel reported, and end that guest; otherwise
        return "".
        """
        line = self.running.find_kernel_fault() if self.running else ""
        if line:
            self.close()
        return line

    def close(self) -> None:
        """End the running guest VM."""
        if self.running is not None:
            self.running.close()
            self.running = None


GUESTS = pytest.StashKey[GuestPool]()


@pytest.fixture(name="guests", scope="session")
def guest_pool(pytestconfig: pytest.Config) -> Iterator[GuestPool]:
    """Yield the guests of this session, of which only one runs at a time."""
    image = vm.get_or_build_guest_image()
    made = GuestPool(lambda: vm.Guest(image, forward=(RPING_PORT, ECHO_PORT)))
    pytestconfig.stash[GUESTS] = made
    yield made
    made.close()


@pytest.fixture(name="guest")
def running_guest(guests: GuestPool) -> vm.Guest:
    """Return a running guest with Linux siw."""
    return guests.get_or_boot_guest()


def _start_server_unless_running(guest: vm.Guest, port: int, command: str) -> int:
    """Start a server in the guest unless it runs; return the host port that is forwarded to it."""
    if guest.run_command(f"kill -0 $(cat /tmp/{port}.pid)")[0]:
        guest.start_server(port, command)
    return guest.host_port(port)


@pytest.fixture
def rping_server_port(guest: vm.Guest) -> int:
    """Return the host port of a persistent ``rping -s`` with the largest buffer that it accepts."""
    return _start_server_unless_running(
        guest, RPING_PORT, f"rping -s -P -S {RPING_LARGEST} -p {RPING_PORT}"
    )


@pytest.fixture
def echo_server_port(guest: vm.Guest) -> int:
    """Return the host port of the server guest/echo.c."""
    return _start_server_unless_running(guest, ECHO_PORT, f"interop-echo {ECHO_PORT}")


# ------------------------------------------------------------ the stack's side


@pytest.fixture(scope="session")
def stack_under_test() -> Stack:
    """Return the stack under test: siwarp, unless INTEROP_BINDING names a module with a STACK."""
    module = importlib.import_module(os.environ.get("INTEROP_BINDING", "interop.binding"))
    found: Stack = module.STACK
    return found


@pytest.fixture
def close_after_test() -> Iterator[Callable[[Connection | Listener], None]]:
    """Yield a function that registers a connection or listener to be closed when the test ends."""
    opened: list[Connection | Listener] = []
    yield opened.append
    for one in reversed(opened):
        one.close()


# ----------------------------------------------------------------- the matrix


@dataclass
class InteropMatrix:
    """The outcomes of the interoperability tests by row and column, in order of appearance."""

    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    # The letter that the table shows instead of a reason, by the text of the reason.
    reasons: dict[str, str] = field(default_factory=dict)

    def add_outcome(self, row: str, column: str, outcome: str, reason: str) -> None:
        if reason and outcome == "ok":
            outcome = self.reasons.setdefault(reason, chr(ord("a") + len(self.reasons)))
        columns = self.cells.setdefault(row, {})
        if (
            columns.get(column) != "FAIL"
        ):  # the cell of several tests shows FAIL if one of the tests fails
            columns[column] = outcome

    def table_lines(self) -> Iterator[str]:
        """Yield a table for each set of columns, with sizes in ascending order, then the
        reasons.
        """
        tables: dict[frozenset[str], list[str]] = {}
        for row, cells in self.cells.items():
            tables.setdefault(frozenset(cells), []).append(row)
        width = max(map(len, self.cells), default=0)
        for rows in tables.values():
            first = list(self.cells[rows[0]])
            columns = sorted(first, key=lambda c: int(c.split("-")[0]) if c[0].isdigit() else 0)
            yield ""
            yield " " * width + "".join(f"  {c:>4}" for c in columns)
            for row in rows:
                outcomes = ((self.cells[row][c], max(len(c), 4)) for c in columns)
                yield row.ljust(width) + "".join(f"  {o:>{w}}" for o, w in outcomes)
        if self.reasons:
            yield ""
        for reason, letter in self.reasons.items():
            yield f"{letter}: not possible, as the test shows: {reason}"


MATRIX = pytest.StashKey[InteropMatrix]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_on_guest_fault(item, report)
    _note_matrix_cell_outcome(item, report)
    return report


def _fail_on_guest_fault(item: pytest.Item, report: pytest.TestReport) -> None:
    """Fail the test during which the guest's kernel reported a fault; the next test gets a new
    guest.
    """
    guests = item.config.stash.get(GUESTS, None)
    line = guests.end_guest_if_its_kernel_is_faulty() if guests is not None else ""
    if not line:
        return
    told = f"the guest's kernel reported a fault during {item.nodeid} ({report.when}): {line}"
    report.outcome = "failed"
    report.longrepr = told if report.longrepr is None else f"{told}\n{report.longrepr}"


def _note_matrix_cell_outcome(item: pytest.Item, report: pytest.TestReport) -> None:
    """Record the outcome of a cell; add the kernel messages of the guest to a failure."""
    mark = item.get_closest_marker("cell")
    if mark is None or (report.when != "call" and report.passed):
        return
    matrix = item.config.stash.setdefault(MATRIX, InteropMatrix())
    outcome = "ok" if report.passed else "FAIL"
    row, column = mark.args
    matrix.add_outcome(row, column, outcome, mark.kwargs.get("impossible", ""))
    guest = getattr(item, "funcargs", {}).get("guest")
    if report.failed and isinstance(guest, vm.Guest) and guest.qemu is not None:
        try:
            messages = guest.new_kernel_messages()
            # A server that still waits for its client would refuse the connections of all later
            # cells.
            guest.run_command("kill $(cat /tmp/*.pid)")
        except vm.GuestError as error:
            messages = str(error)
        report.sections.append(("the guest's last kernel messages", messages[-6000:]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    guests = terminalreporter.config.stash.get(GUESTS, None)
    if guests is not None:
        terminalreporter.section("guests")
        terminalreporter.write_line(
            f"Linux {', '.join(guests.booted)}; {vm.host_package_versions()}"
        )
    matrix = terminalreporter.config.stash.get(MATRIX, None)
    if matrix is not None:
        terminalreporter.section("siwarp and Linux siw")
        for line in matrix.table_lines():
            terminalreporter.write_line(line)
