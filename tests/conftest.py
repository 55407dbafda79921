"""What every test may use."""

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
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from clause_record import Recorder
from pace import crowd, scaled
from timing import listed, name_on_list

ROOT = Path(__file__).resolve().parent.parent

# Until all tests are collected: what collection makes lives as long as the session.
gc.disable()


def _build_dir() -> Path:
    """Return the folder in which meson built the C side of this installation."""
    spec = importlib.util.find_spec("siwarp._siwarp")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).resolve().parent


# Tests of a layer say: from _siwarp_layers import ffi, lib
if not list(_build_dir().glob("_siwarp_layers.*.so")):
    raise pytest.UsageError(
        f"{_build_dir()} has no _siwarp_layers: tests need a build made by `make build`"
    )
sys.path.insert(0, str(_build_dir()))
# A function that a layer still lacks is missing for the tests that call it, not for all.
sys.setdlopenflags(os.RTLD_LAZY)


# A process is a real or a simulated one, and a simulated one has the library that is installed,
# or one with the layers' own functions for tests/sim/rd: a world is of one library. So `make sim`
# runs pytest twice.
_SIMULATED = os.environ.get("SIWARP_SIM") == "1"
if any("sim/rd" in argument for argument in sys.argv):
    os.environ["SIM_LAYERS"] = "1"  # for the processes that share these tests, too
collect_ignore = [] if _SIMULATED else ["sim"]
if _SIMULATED and "SIM_LAYERS" in os.environ:
    _simulated = importlib.import_module("_siwarp_layers_sim")
    sys.modules["_siwarp_layers"] = sys.modules["siwarp._siwarp_sim"] = _simulated
elif _SIMULATED:
    collect_ignore = ["sim/rd"]

# What reaches no C of siwarp's: there a sanitizer sees only the interpreter. tests/lint holds
# siwarp.inspect to importing nothing of the stack. Everywhere else they run, of course.
if "SANITIZER" in os.environ:
    collect_ignore += [
        "cli/test_cli_dissect.py",
        "cli/test_cli_headers.py",
        "cli/test_cli_spec.py",
        "cli/test_cli_tmux.py",
        "unit/inspect",
        "unit/python/test_python_rebuild.py",
        # These are about the tree and its tools, such as make, which have errors of their own.
        "unit/branches",
        "unit/docs",
        "unit/gate",
        "unit/interop",
        "unit/lint",
        "unit/mutants",
        "unit/release",
        "unit/spec",
        "unit/timing",
        # libfabric finds no device there.
        "docs/test_docs_mpi.py",
        # Calls of the system fail there by a library that is preloaded, as the sanitizer's is.
        "abi/test_abi_scarce.py",
        "scale/test_scale_preloads.py",
        "unit/base/test_base_failing.py",
        "unit/llp/test_llp_failing.py",
        "unit/llp/test_llp_failing_faults.py",
        "unit/llp/test_llp_failing_tcp.py",
        "unit/verbs/test_verbs_failing.py",
        "unit/verbs/test_verbs_failing_sends.py",
    ]
# There siwarp run and siwarp bench start shells and other programs, which end in
# ThreadSanitizer's library; tests/abi has programs of ours that call ours.
if os.environ.get("SANITIZER") == "tsan":
    collect_ignore += [
        "abi/test_abi_pyverbs.py",
        "abi/test_abi_readme.py",
        "bench/test_bench_abi.py",
        "cli/test_cli_run.py",
        "cli/test_cli_view.py",
        "docs",
    ]


#: What fails where branches are counted (tools/coverage): as it ends, a process writes there what
#: it counted, whoever it is by then, however little it may write; imports do not build that tree.
NOT_COUNTED = (
    "test_base_secure.py::test_a_setuid_program_takes_nothing_from_its_callers_environment",
    "test_llp_capture.py::test_a_file_that_cannot_grow_ends_the_capture_and_nothing_else",
    "test_python_rebuild.py",
)


def mark_timing(items: list[pytest.Item]) -> None:
    """Mark the tests on the list of those that race the clock."""
    names = frozenset(listed())
    for item in items:
        if name_on_list(item.nodeid, names) is not None:
            item.add_marker("timing")


def left_out(item: pytest.Item, picked: str, named: bool) -> bool:
    """Whether this run cannot, or is not to, run the test.

    `picked`: the expression of markers by which the run picks tests, or ""; `named`: it names
    single tests. A marker that a run does not name is not picked: `-m root` leaves out the tests
    of root that race the clock.
    """
    markers = {marker.name for marker in item.iter_markers()}
    # `make timing` runs these alone.
    if "timing" in markers and "timing" not in picked and not named:
        return True
    # `make abi` picks these by their marker: it installs what they run.
    if "programs" in markers and "programs" not in picked and "SANITIZER" not in os.environ:
        return True
    if "root" in markers and os.geteuid() != 0:
        return True
    return "COVERAGE" in os.environ and any(name in item.nodeid for name in NOT_COUNTED)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for other runs."""
    mark_timing(items)
    picked = config.option.markexpr
    named = any("::" in argument for argument in config.args)
    items[:] = [item for item in items if not left_out(item, picked, named)]


# A suite that a shell runs in the background ignores SIGINT, and one under nohup ignores SIGHUP.
# The programs that tests start would inherit that, and some tests send them these signals.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _kill_when_failing(self: subprocess.Popen, kind: type | None, *rest: object) -> None:
    """Leave ``with subprocess.Popen(...)``: after an exception, kill the program first.

    The original waits for the program, without limit. The test that failed, or ran out of time,
    would then never end.
    """
    if kind is not None:
        self.kill()
    _leave(self, kind, *rest)


_leave = subprocess.Popen.__exit__
subprocess.Popen.__exit__ = _kill_when_failing  # type: ignore[method-assign]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Share the suite by two processes for each core: half of its time it waits.

    Under a sanitizer it computes, and there each process takes much memory.
    """
    cores = len(os.sched_getaffinity(0))
    return cores if "SANITIZER" in os.environ else 2 * cores


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker by which a test names the RFC clauses that it decides."""
    config.addinivalue_line(
        "markers", "clause(*ids): the clauses, at most three, that the test's assertions decide"
    )
    config.addinivalue_line(
        "markers", "scales: its timeout grows with how slow the machine is found when it begins"
    )
    config.addinivalue_line(
        "markers", "fast_path: about octets placed before their CRC is known; setting strict is off"
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
    # Which clauses are shown is what `make test` says: the other runs leave tests out, or change
    # settings under them.
    if not {"SANITIZER", "SIWARP_STRICT", "COVERAGE", "TEST_ALONE"} & os.environ.keys():
        config.pluginmanager.register(Recorder(config, ROOT), "siwarp-clause-record")


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give a test its timeout, as long as the machine's load wants, before pytest-timeout reads it.

    A test that scales is worth a measurement of how slow the machine is.
    """
    marker = item.get_closest_marker("timeout")
    seconds = marker.args[0] if marker else float(item.config.getini("timeout"))
    scales = item.get_closest_marker("scales") is not None
    item.add_marker(
        pytest.mark.timeout(max(scaled(seconds) if scales else 0, seconds * crowd())), append=False
    )
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test of marker alone where no device of another test can be at work."""
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


# What is imported here was built just now: processes that tests start need not look for changes.
os.environ["EDITABLE_NO_REBUILD"] = "1"

# Pages of counters of our own, apart from those of whatever else runs siwarp on this machine.
_runtime_dir = tempfile.TemporaryDirectory(prefix="siwarp-tests-")
os.environ["XDG_RUNTIME_DIR"] = _runtime_dir.name

# Machines are slow now and then, sanitized builds always: the timeout of a test is the limit.
# The gate (.ci/run) tries the same examples each time; everyone else tries new ones.
hypothesis.settings.register_profile(
    "siwarp",
    deadline=None,
    max_examples=30 if "SANITIZER" in os.environ else 50,
    derandomize="CI" in os.environ,
)
hypothesis.settings.load_profile("siwarp")


def _report_to(log: str) -> None:
    """Have sanitizers report to files of that name, and those of children, too."""
    ctypes.CDLL(None).__sanitizer_set_report_path(log.encode())
    if os.environ["SANITIZER"] == "asan":
        # pytest captures stderr, and what a process that UBSan ends has written there is lost.
        ctypes.CDLL("libubsan.so.1").__sanitizer_set_report_path(log.encode())
    options = f"{os.environ['SANITIZER'].upper()}_OPTIONS"
    os.environ[options] = os.environ[options].replace(
        f'"{os.environ["SANITIZER_LOG"]}"', f'"{log}"'
    )
    os.environ["SANITIZER_LOG"] = log


# Of several processes that share the tests each has its own reports: it knows during which of its
# tests they grew.
_worker = os.environ.get("PYTEST_XDIST_WORKER")
if "SANITIZER" in os.environ:
    _report_to(os.environ["SANITIZER_LOG"] + (f".{_worker}" if _worker else ""))


@pytest.fixture(autouse=True)
def _fast_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Turn setting strict off for a test of the layers that is about its absence.

    So the whole suite passes under SIWARP_STRICT=1 too.
    """
    if request.node.get_closest_marker("fast_path") is None or "SIWARP_STRICT" not in os.environ:
        yield
        return
    layers = importlib.import_module("_siwarp_layers").lib
    layers.siw_setting_set(b"strict", 0)
    yield
    layers.siw_setting_set(b"strict", int(os.environ["SIWARP_STRICT"]))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """Return meson's build folder, where libsiwarp.so.0 and the tests' C programs lie."""
    return _build_dir()


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what lives as long as the session.

    That is hundreds of thousands of objects, with scapy's, and tests collect often.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    _threads_before.update(_threads())


#: Threads from before the first test: numpy's, and that which talks with pytest's own process.
_threads_before: set[int] = set()
_reports: dict[str, int] = {}


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note during which test a sanitizer reported something; a report itself does not say.

    tools/sanitize prints the notes behind the reports.
    """
    if "SANITIZER_LOG" not in os.environ or "TEST_ALONE" in os.environ:
        return
    log = Path(os.environ["SANITIZER_LOG"])
    folder = log.parent
    for file in folder.glob(f"{log.name}.[0-9]*"):  # not those of other processes
        size, before = file.stat().st_size, _reports.get(file.name, 0)
        if size > before:
            with (folder / "tests").open("a") as notes:
                notes.write(f"{file.name}, from octet {before} on: {nodeid}\n")
            _reports[file.name] = size


def _threads() -> set[int]:
    """Return the ids of this process's threads, but those that Python's threading knows."""
    tasks = {int(task.name) for task in Path("/proc/self/task").iterdir()}
    return tasks - {thread.native_id for thread in threading.enumerate()}


def let_threads_end(limit: float = 10) -> None:
    """Wait a while for threads that Python knows nothing of, of devices that were just closed.

    LeakSanitizer may look at the stack of one that is gone meanwhile, and crashes then.
    """
    deadline = time.monotonic() + limit
    while _threads() - _threads_before:
        if time.monotonic() > deadline:
            break  # of a device that a test left open
        time.sleep(0.005)


def pytest_sessionfinish() -> None:
    """Under AddressSanitizer, look for leaked memory while the interpreter still runs.

    What Python objects hold is still reachable then. tools/sanitize judges the report, which
    goes to a file.
    """
    # In the process of a test of marker alone LeakSanitizer's tracer itself crashes at times (by
    # signal 11; why is not known). What such a test calls is called in the other processes, too.
    if os.environ.get("SANITIZER") == "asan" and "TEST_ALONE" not in os.environ:
        gc.collect()
        let_threads_end()
        ctypes.CDLL(None).__lsan_do_recoverable_leak_check()
