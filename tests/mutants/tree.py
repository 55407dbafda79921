"""Copies of the source tree for mutants, each with a separate build and virtual environment."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from mutants.data import ROOT

#: Seconds after which a test that hangs is ended, whatever the timeout of the test is.
TEST_LIMIT = 60
#: Seconds that pytest may take to exit after it has printed the number of failed tests.
ENDING = 5
_NODE = re.compile(
    r"^(tests/\S+?::\w+(?:\[.*?\](?= |$))?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b)?"
)
_VERDICT = re.compile(r"^=+ .*\b\d+ (?:failed|errors?)\b.* in [\d.]+s.* =+\n?\Z", re.MULTILINE)
_FAILED = re.compile(r"^tests/\S+ (?:FAILED|ERROR)\b", re.MULTILINE)
_MISSED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)


class MutantRunError(Exception):
    """An error of a build, a command or a test run that no mutant has caused."""


@dataclass(frozen=True)
class Run:
    """The outcome of a run of tests: `how` is passed, failed, crashed, hung or out of time."""

    how: str
    by: str | None


def list_source_files(root: Path) -> list[str]:
    """Return the files that git tracks or would add, which exclude build outputs."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    names = [name.decode() for name in out.split(b"\0") if name]
    return sorted({name for name in names if (root / name).is_file()})


def is_simulated_test(test: str) -> bool:
    """Return whether a test, or a file or folder of tests, needs a simulated process."""
    return f"{test}/".startswith("tests/sim/")


def separate_simulated_tests(tests: list[str]) -> tuple[list[str], list[str]]:
    """Return the tests that need simulated processes, which are faster, and all other tests."""
    simulated = [test for test in tests if is_simulated_test(test)]
    return simulated, [test for test in tests if test not in simulated]


class TreeCopy:
    """A copy of the work tree under build/mutate/ for one parallel job."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.venv = home / ".venv"
        self.build = home / "build" / "mutants"
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = False

    def sync_with_work_tree(self) -> None:
        """Update the copy from the work tree; unchanged files keep their modification time."""
        names = list_source_files(ROOT)
        for name in names:
            target = self.home / name
            data = (ROOT / name).read_bytes()
            if not target.exists() or target.read_bytes() != data:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                shutil.copymode(ROOT / name, target)
        wanted = {self.home / name for name in names}
        for copied in self.home.iterdir():
            if copied.name in (".ready", ".venv", "build"):
                continue
            for path in [copied, *copied.rglob("*")]:
                if path.is_file() and path not in wanted and "__pycache__" not in path.parts:
                    path.unlink()

    def update_and_build(self) -> None:
        """Update and build the copy, with a virtual environment that has the packages of .venv."""
        self.sync_with_work_tree()
        stamp = self.home / ".ready"
        files = (ROOT / "pyproject.toml", ROOT / "tools" / "editable.py")
        recorded = " ".join([str(self.home), *(file.read_text("utf-8") for file in files)])
        if not stamp.exists() or stamp.read_text("utf-8") != recorded:
            shutil.rmtree(self.venv, ignore_errors=True)
            shutil.rmtree(self.build, ignore_errors=True)
            self._install_package()
            stamp.write_text(recorded, "utf-8")
        if (said := self.build_targets()) is not None:
            raise MutantRunError(f"the tree as it is does not compile:\n{said}")

    def _install_package(self) -> None:
        self._run_command([sys.executable, "-m", "venv", "--without-pip", str(self.venv)])
        site = next(self.venv.glob("lib/python*/site-packages"))
        packages = sysconfig.get_path("purelib")
        (site / "zz-packages-of-main.pth").write_text(f"{packages}\n", "utf-8")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        pip += ["--python", str(self.venv / "bin" / "python"), "install", "-qq", "--no-deps"]
        pip += ["--no-build-isolation", f"-Cbuild-dir={self.build.relative_to(self.home)}"]
        # With link-time optimization, the linker would recompile all layers for every mutant.
        pip += ["-Csetup-args=-Dtests=true", "-Csetup-args=-Dlto=false"]
        pip += ["-Csetup-args=-Doptimization=1", "-e", "."]
        self._run_command(pip)
        python = str(self.venv / "bin" / "python")
        self._run_command([python, "tools/editable.py", str(self.build)])

    def _command_environment(self) -> dict[str, str]:
        ours = ("SIWARP_", "PYTEST_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        # All copies share cached objects in ccache.
        environment["CCACHE_NOHASHDIR"] = "1"
        environment.pop("PYTHONPATH", None)
        return environment

    def _run_command(self, command: list[str]) -> None:
        done = subprocess.run(
            command, cwd=self.home, env=self._command_environment(), capture_output=True, text=True
        )
        if done.returncode:
            raise MutantRunError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")

    def build_targets(self, *targets: str) -> str | None:
        """Build the changed files; return the compiler's output after a failure, else None.

        targets: files to build; by default all.
        """
        ninja = [str(Path(sys.executable).parent / "ninja"), "-C", str(self.build), *targets]
        done = subprocess.run(
            ninja, env=self._command_environment(), capture_output=True, text=True
        )
        return None if done.returncode == 0 else done.stdout[-4000:]

    def run_tests(self, tests: list[str], limit: float, log: Path, without: set[str]) -> Run:
        """Run tests in order until a test fails; the tests in `without` are not run."""
        # Given a file and its folder, pytest runs the folder only, so such files have a separate
        # run.
        early = [test for test in tests if any(test.startswith(f"{other}/") for other in tests)]
        late = [test for test in tests if test not in early]
        left_out = [f"--deselect={name}" for name in sorted(without)]
        deadline = time.monotonic() + limit
        run = Run("passed", None)
        for part, done in ((early, []), (late, early)):
            for some in separate_simulated_tests(part):
                if some and run.how == "passed":
                    ignored = [f"--ignore={test}" for test in done]
                    left = deadline - time.monotonic()
                    status = self._run_pytest(["-x", *left_out, *ignored, *some], left, log)
                    silent = _seconds_since_output(log) > TEST_LIMIT
                    run = _outcome_of_run(status, log.read_text("utf-8", errors="replace"), silent)
        return run

    def run_and_return_passing_tests(self, tests: list[str], log: Path) -> set[str]:
        """Run the given tests; return the tests that passed."""
        # Only names that pytest collects are passed, because an unknown name would stop pytest.
        passed: set[str] = set()
        for some in separate_simulated_tests(tests):
            files = sorted({test.partition("::")[0] for test in some})
            self._run_pytest(["--collect-only", "-q", *files], TEST_LIMIT * len(files), log)
            there = set(log.read_text("utf-8", errors="replace").splitlines())
            self._run_pytest([test for test in some if test in there], TEST_LIMIT * len(some), log)
            lines = log.read_text("utf-8", errors="replace").splitlines()
            found = [node.groups() for line in lines if (node := _NODE.match(line))]
            passed |= {node for node, how in found if how == "PASSED"}
        return passed

    def _run_pytest(self, arguments: list[str], limit: float, log: Path) -> int | None:
        """Run pytest; return its exit status, or None if it exceeded the limit.

        Either all tests or no tests need a simulated process: see ``separate_simulated_tests``.
        """
        environment = self._command_environment()
        if any(is_simulated_test(argument) for argument in arguments):
            environment["SIWARP_SIM"] = "1"
        command = [str(self.venv / "bin" / "python"), "-m", "pytest", "-n", "0"]
        command += ["-p", "no:cacheprovider", "--no-header", "--tb=short", "--color=no"]
        command += [f"--timeout={TEST_LIMIT}", "--timeout-method=thread"]
        # Some mutants are detected only by tests that depend on real time.
        command += ["-m", "timing or not timing"]
        # This test of imports that rebuild the tree would fail, because a copy is not rebuilt on
        # import (_install_package).
        command.append("--ignore=tests/unit/python/test_python_rebuild.py")
        if "-q" not in arguments:
            command.append("-v")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.process = process
            try:
                status = _wait_for_pytest(process, limit, log)
            finally:
                self.kill_processes_of_command()
        if self.stopped:
            raise MutantRunError("stopped")
        return status

    def run_and_return_output(
        self, command: list[str], limit: float, enough: re.Pattern[str] | None = None
    ) -> tuple[int | None, str]:
        """Run a command; return its exit status (None: it exceeded the limit) and its output.

        As soon as the output matches `enough`, the command is ended and its exit status is 1.
        """
        process = subprocess.Popen(
            command,
            cwd=self.home,
            env=self._command_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.process = process
        status: int | None = None
        out = b""
        late = threading.Event()
        timer = threading.Timer(limit, lambda: (late.set(), self.kill_processes_of_command()))
        timer.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out += line
                if enough and enough.search(out.decode("utf-8", errors="replace")):
                    status = 1
                    break
            else:
                code = process.wait()
                status = None if late.is_set() else code
        finally:
            timer.cancel()
            process.stdout.close()
            self.kill_processes_of_command()
        if self.stopped:
            raise MutantRunError("stopped")
        return status, out.decode("utf-8", errors="replace")

    def stop_command(self) -> None:
        """End the running command from another thread; the command then has no result."""
        self.stopped = True
        self.kill_processes_of_command()

    def kill_processes_of_command(self) -> None:
        """Kill all processes in the session of the running command."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_pytest(process: subprocess.Popen[bytes], limit: float, log: Path) -> int | None:
    """Return the exit status of pytest, or None if it exceeded the limit.

    If pytest hangs after a failed test, for example because a thread does not end, the output of
    pytest decides.
    """
    deadline = time.monotonic() + limit
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, ENDING))
        if _VERDICT.search(log.read_text("utf-8", errors="replace")):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(ENDING)
            return 1
        if (
            _FAILED.search(log.read_text("utf-8", errors="replace"))
            and _seconds_since_output(log) > TEST_LIMIT
        ):
            return 1
    return None


def _seconds_since_output(log: Path) -> float:
    """Return the number of seconds since the last output to a log file."""
    return time.time() - log.stat().st_mtime


def _outcome_of_run(status: int | None, out: str, silent: bool = False) -> Run:
    """Return the outcome of a run of pytest, given its exit status and output.

    ``silent``: the output ended longer ago than a test may take. Then C code that holds the GIL
    has kept the timeout of the test from ending pytest.
    """
    lines = [found.groups() for line in out.splitlines() if (found := _NODE.match(line))]
    missed = [node for node, how in lines if how in ("FAILED", "ERROR")]
    # Pytest reports a test module that it cannot import only in the summary at the end.
    missed += _MISSED.findall(out)
    last = lines[-1][0] if lines and lines[-1][1] is None else None
    if status == 0:
        return Run("passed", None)
    if status is None:
        return Run("hung", last) if silent and last else Run("out of time", None)
    if "+ Timeout +" in out:
        return Run("hung", last)
    if status in (1, 2) and missed:
        return Run("failed", missed[0])
    if status < 0 or status > 5 or (status == 1 and last):
        return Run("crashed", last)
    raise MutantRunError(f"pytest ended with {status}:\n{out[-4000:]}")
