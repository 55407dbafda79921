"""Fixtures, hooks and test selection for all tests."""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol
from clause_record import Recorder
from pace import processes_per_cpu, scale_limit
from timing import list_entry_covering_test, listed_timing_tests

ROOT = Path(__file__).resolve().parent.parent

# The garbage collector is off until pytest has collected the tests, because objects created by the
# collection of tests live as long as the session.
gc.disable()


def _find_build_dir() -> Path:
    """Return the meson build directory of the C code of this installation."""
    spec = importlib.util.find_spec("siwarp._siwarp")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).resolve().parent


# Tests of a layer import the layer functions with: from _siwarp_layers import ffi, lib
if not list(_find_build_dir().glob("_siwarp_layers.*.so")):
    raise pytest.UsageError(
        f"{_find_build_dir()} has no _siwarp_layers: tests need a build made by `make build`"
    )
sys.path.insert(0, str(_find_build_dir()))
# With lazy binding, a layer function that does not exist yet fails only the tests that call it.
sys.setdlopenflags(os.RTLD_LAZY)


# A test process is either real or simulated. A simulated process uses either the installed library
# or, for tests/sim/rd, a module that also has the layers' internal functions. A simulated network
# works with one library only, so `make sim` runs pytest twice.
_SIMULATED = os.environ.get("SIWARP_SIM") == "1"
if any("sim/rd" in argument for argument in sys.argv):
    os.environ["SIM_LAYERS"] = "1"  # the variable also applies to the xdist worker processes
collect_ignore = [] if _SIMULATED else ["sim"]
if _SIMULATED and "SIM_LAYERS" in os.environ:
    _simulated = importlib.import_module("_siwarp_layers_sim")
    sys.modules["_siwarp_layers"] = sys.modules["siwarp._siwarp_sim"] = _simulated
elif _SIMULATED:
    collect_ignore = ["sim/rd"]

# The tests in this list run no C code of siwarp, so a sanitizer would check only the interpreter.
# tests/lint verifies that siwarp.inspect imports nothing of the stack. All runs without a sanitizer
# include the tests.
if "SANITIZER" in os.environ:
    collect_ignore += [
        "cli/test_cli_dissect.py",
        "cli/test_cli_headers.py",
        "cli/test_cli_spec.py",
        "cli/test_cli_tmux.py",
        "ftp/test_ftp_server.py",
        "ftp/test_ftp_stream.py",
        "harness/test_siwarp_process.py",
        "unit/inspect",
        "unit/python/test_python_rebuild.py",
        # The tests in these folders check the source tree and its tools. Programs such as make have
        # memory errors of their own, which a sanitizer would report.
        "unit/branches",
        "unit/docs",
        "unit/gate",
        "unit/interop",
        "unit/lint",
        "unit/mutants",
        "unit/release",
        "unit/spec",
        "unit/timing",
        # libfabric finds no device under a sanitizer.
        "docs/test_docs_mpi.py",
        # These tests start clients of other packages (curl, lftp). ftp/test_ftp_channels.py runs
        # the same code of siwarp without them.
        "ftp/test_ftp_docs.py",
        "ftp/test_ftp_programs.py",
        # The tests limit the memory of a process, which a sanitizer increases.
        "ftp/test_ftp_hostile.py",
        # The following tests inject failures of system calls with a preloaded library, and the
        # sanitizer's run-time library has to be preloaded, too.
        "abi/test_abi_scarce.py",
        "scale/test_scale_preloads.py",
        "unit/base/test_base_failing.py",
        "unit/llp/test_llp_failing.py",
        "unit/llp/test_llp_failing_faults.py",
        "unit/llp/test_llp_failing_tcp.py",
        "unit/device/test_device_failing.py",
        "unit/qp/test_qp_failing_sends.py",
    ]
# Under ThreadSanitizer, `siwarp run` and `siwarp bench` start shells and other programs, which die
# in ThreadSanitizer's library. The programs in tests/abi that are part of siwarp are run.
if os.environ.get("SANITIZER") == "tsan":
    collect_ignore += [
        "abi/test_abi_pyverbs.py",
        "abi/test_abi_readme.py",
        "cli/test_cli_run.py",
        "cli/test_cli_view.py",
        "docs",
    ]


#: Tests that fail when branches are counted (tools/coverage), because a process must be able to
#: write its branch counts to the build tree at exit, and because an import does not rebuild that
#: tree.
NOT_COUNTED = (
    "test_base_secure.py::test_a_setuid_program_ignores_the_siwarp_variables_of_its_caller",
    "test_llp_capture.py::test_a_file_size_limit_ends_the_capture_but_not_the_traffic",
    "test_python_rebuild.py",
    "test_sim_core.py::test_the_simulator_handles_100000_datagrams_per_second",
)


def mark_timing_tests(items: list[pytest.Item]) -> None:
    """Give the marker `timing` to the tests that tests/timing/tests.txt lists."""
    names = frozenset(listed_timing_tests())
    for item in items:
        if list_entry_covering_test(item.nodeid, names) is not None:
            item.add_marker("timing")


def is_test_left_out(item: pytest.Item, picked: str, named: bool) -> bool:
    """Return whether the current pytest run cannot, or should not, run a test.

    `picked`: the marker expression by which the run selects tests, or ""; `named`: whether the run
    names single tests. A test marked `timing` or `programs` is selected only if the run names that
    marker: `-m root` leaves out tests marked root that also race the clock.
    """
    markers = {marker.name for marker in item.iter_markers()}
    # `make timing` runs the tests marked `timing`, one at a time.
    if "timing" in markers and "timing" not in picked and not named:
        return True
    # `make abi` runs the tests marked `programs`, after installing the packages that they need.
    if "programs" in markers and "programs" not in picked and "SANITIZER" not in os.environ:
        return True
    if "root" in markers and os.geteuid() != 0:
        return True
    return "COVERAGE" in os.environ and any(name in item.nodeid for name in NOT_COUNTED)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that the current run cannot, or should not, run."""
    mark_timing_tests(items)
    picked = config.option.markexpr
    named = any("::" in argument for argument in config.args)
    items[:] = [item for item in items if not is_test_left_out(item, picked, named)]
    # These tests start first, because they take longer than all others, and wait most of the time.
    items.sort(key=lambda item: item.path.name != "test_device_failing.py")
    if "SIWARP_CRC_FIRST" in os.environ:
        for item in items:
            if item.get_closest_marker("fast_path"):
                item.fixturenames.insert(0, "_turn_off_crc_first_setting")  # type: ignore[attr-defined]


# pytest ignores SIGINT if a shell starts it in the background, and SIGHUP under nohup. Programs
# that tests start would inherit these dispositions, and some tests send SIGINT or SIGHUP to such
# programs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _kill_on_exception(self: subprocess.Popen, kind: type | None, *rest: object) -> None:
    """Replace Popen.__exit__: after an exception in the block, kill the program first.

    The original method waits for the program without a limit, so a test that failed or timed out
    would never end.
    """
    if kind is not None:
        self.kill()
    _leave(self, kind, *rest)


_leave = subprocess.Popen.__exit__
subprocess.Popen.__exit__ = _kill_on_exception  # type: ignore[method-assign]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return three worker processes for each core, because many tests wait for other processes.

    Under a sanitizer, return one worker process for each core: the tests are CPU-bound there, and
    each process needs much memory.
    """
    cores = len(os.sched_getaffinity(0))
    return cores if "SANITIZER" in os.environ else 3 * cores


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the plugin that records outcomes of tests that cite RFC clauses."""
    config.addinivalue_line(
        "markers", "clause(*ids): the clauses, at most three, that the test's assertions decide"
    )
    config.addinivalue_line(
        "markers", "scales: its timeout grows with how slow the machine is found when it begins"
    )
    config.addinivalue_line(
        "markers",
        "fast_path: about octets placed before their CRC is known; setting crc_first is off",
    )
    config.addinivalue_line(
        "markers",
        "programs: runs what other packages install: for make abi and the sanitized runs",
    )
    config.addinivalue_line(
        "markers", "timing: races the clock; runs in `make timing` alone (tests/timing/tests.txt)"
    )
    config.addinivalue_line(
        "markers", "alone: counts what any device of a process does; runs in a process of its own"
    )
    config.addinivalue_line("markers", "root: runs programs as another user, as root alone may")
    # Only `make test` records which RFC clauses the tests have shown, because other runs leave out
    # tests or change settings.
    if not {"SANITIZER", "SIWARP_CRC_FIRST", "COVERAGE", "TEST_ALONE"} & os.environ.keys():
        config.pluginmanager.register(Recorder(config, ROOT), "siwarp-clause-record")
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(FewReports(), "siwarp-few-reports")


class FewReports:
    """A plugin for pytest-xdist workers: they send only the reports that the controller prints.

    A worker sends five messages for each test, and the serialization of a message in both processes
    takes as much CPU time as the setup and teardown of a short test. The controller prints only the
    result of the call, and any failed or skipped phase.
    """

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test like pytest's own implementation, and report the phases that matter."""
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        if "SANITIZER_LOG" in os.environ:
            pytest_runtest_logfinish(item.nodeid)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
        """Omit the keywords from a report, because only the selection before a run uses them."""
        data = yield
        if data is not None and "keywords" in data:
            data["keywords"] = {}
        return data


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Set the timeout of a test according to the load of the machine.

    The hook runs before pytest-timeout reads the timeout. For a test marked `scales` the slowness
    of the machine is measured; for other tests the load average is used.
    """
    marker = item.get_closest_marker("timeout")
    seconds = marker.args[0] if marker else float(item.config.getini("timeout"))
    scales = item.get_closest_marker("scales") is not None
    item.add_marker(
        pytest.mark.timeout(
            max(scale_limit(seconds) if scales else 0, seconds * processes_per_cpu())
        ),
        append=False,
    )
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test marked `alone` in a separate process, in which no other test opens a device."""
    if pyfuncitem.get_closest_marker("alone") is None or "TEST_ALONE" in os.environ:
        return None
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**env, "TEST_ALONE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return True


# The build of siwarp is up to date after the imports above, so processes that tests start need not
# check whether to rebuild.
os.environ["EDITABLE_NO_REBUILD"] = "1"

# Use a separate directory for the pages of counters, apart from those of other siwarp processes on
# this machine.
_runtime_dir = tempfile.TemporaryDirectory(prefix="siwarp-tests-")
os.environ["XDG_RUNTIME_DIR"] = _runtime_dir.name

# A single Hypothesis example has no deadline, because machines are sometimes slow and builds with
# sanitizers always; the timeout of the test limits the time. The gate (.ci/run) tries the same
# examples each time; all other runs try new examples.
hypothesis.settings.register_profile(
    "siwarp",
    deadline=None,
    max_examples=30 if "SANITIZER" in os.environ else 50,
    derandomize="CI" in os.environ,
)
hypothesis.settings.load_profile("siwarp")


def _write_sanitizer_reports_to(log: str) -> None:
    """Let sanitizers write reports of this process and its children to files with a prefix."""
    ctypes.CDLL(None).__sanitizer_set_report_path(log.encode())
    if os.environ["SANITIZER"] == "asan":
        # pytest captures stderr, so the message of a process that UBSan aborts would be lost.
        ctypes.CDLL("libubsan.so.1").__sanitizer_set_report_path(log.encode())
    options = f"{os.environ['SANITIZER'].upper()}_OPTIONS"
    os.environ[options] = os.environ[options].replace(
        f'"{os.environ["SANITIZER_LOG"]}"', f'"{log}"'
    )
    os.environ["SANITIZER_LOG"] = log


# Each xdist worker writes its own report files, so that a worker can determine during which test a
# report was written.
_worker = os.environ.get("PYTEST_XDIST_WORKER")
if "SANITIZER" in os.environ:
    _write_sanitizer_reports_to(os.environ["SANITIZER_LOG"] + (f".{_worker}" if _worker else ""))


@pytest.fixture
def _turn_off_crc_first_setting() -> Iterator[None]:
    """Turn the setting `crc_first` off for a layer test of the behaviour without the setting.

    Tests marked `fast_path` use this fixture if SIWARP_CRC_FIRST is in the environment, so that the
    complete suite also passes then.
    """
    layers = importlib.import_module("_siwarp_layers").lib
    layers.siw_setting_set(b"crc_first", 0)
    yield
    layers.siw_setting_set(b"crc_first", int(os.environ["SIWARP_CRC_FIRST"]))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """Return meson's build directory, with libsiwarp.so.0 and the C programs of tests."""
    return _find_build_dir()


def pytest_collection_finish() -> None:
    """Exclude objects that live as long as the session from garbage collection.

    Hundreds of thousands of objects, for example of scapy, exist after the collection of tests, and
    tests run the garbage collector often.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    _threads_before.update(_non_python_thread_ids())


#: Ids of threads that exist before the first test: threads of numpy, and the thread that
#: communicates with the xdist controller.
_threads_before: set[int] = set()
_reports: dict[str, int] = {}


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Record the test during which a sanitizer wrote a report; a report does not name the test.

    tools/sanitize prints the recorded tests after the reports.
    """
    if "SANITIZER_LOG" not in os.environ or "TEST_ALONE" in os.environ:
        return
    log = Path(os.environ["SANITIZER_LOG"])
    folder = log.parent
    for file in folder.glob(f"{log.name}.[0-9]*"):  # only the report files of this worker
        size, before = file.stat().st_size, _reports.get(file.name, 0)
        if size > before:
            with (folder / "tests").open("a") as notes:
                notes.write(f"{file.name}, from octet {before} on: {nodeid}\n")
            _reports[file.name] = size


def _non_python_thread_ids() -> set[int]:
    """Return the ids of this process's threads that Python's threading module does not know."""
    tasks = {int(task.name) for task in Path("/proc/self/task").iterdir()}
    return tasks - {thread.native_id for thread in threading.enumerate()}


def wait_for_device_threads_to_end(limit: float = 10) -> None:
    """Wait, `limit` seconds at most, until the threads of closed devices have ended.

    LeakSanitizer crashes if it examines the stack of a thread that ends at the same time.
    """
    deadline = time.monotonic() + limit
    while _non_python_thread_ids() - _threads_before:
        if time.monotonic() > deadline:
            break  # a test has left a device open, whose threads do not end
        time.sleep(0.005)


def pytest_sessionfinish() -> None:
    """Under AddressSanitizer, check for leaked memory while the interpreter still runs.

    Memory of Python objects is still reachable while the interpreter runs. LeakSanitizer writes its
    report to a file, which tools/sanitize evaluates.
    """
    if os.environ.get("SANITIZER") == "asan":
        gc.collect()
        wait_for_device_threads_to_end()
        ctypes.CDLL(None).__lsan_do_recoverable_leak_check()
