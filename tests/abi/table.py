"""``make abi``: run the table of rows/ and print it; the exit status is 1 if a row failed.

The result of each row is appended to build/abi/results.jsonl when the row ends, and the output of
its programs is stored in build/abi/logs/. With ``--resume``, rows that passed with the current
build are not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from abi.rows import BOTH, CABLE, GATE, HERE, NOBODY, PLACES, Row, all_test_rows  # noqa: E402
from cli.install_harness import find_python_for_user, install_package  # noqa: E402
from namespaces.ns_harness import PATH, Namespace, create_cabled_namespaces  # noqa: E402
from pace import scale_limit  # noqa: E402

from siwarp import _paths  # noqa: E402

OUT = ROOT / "build" / "abi"
#: In rows in which one end is killed: for how many seconds both ends run before.
BEFORE_KILL = 1.0
#: The Python interpreter that Debian's pyverbs is built for.
PYTHON = "/usr/bin/python3"
#: Test programs for libraries that use verbs: the source, and the libraries to link.
LIBRARIES = {
    "libs-gloo": "gloo_allreduce.cc -lgloo",
    "libs-rpma": "rpma_exchange.c -lrpma -libverbs",
}
#: Name prefixes of programs whose processes are ranks.
RANKS = ("mpi-", "libs-gloo")
AS_NOBODY = ["runuser", "-u", "nobody", "--"]


@dataclass
class Result:
    """The result of a row in one place."""

    row: str
    place: str
    transport: str
    status: list[int | str]
    data: str
    seconds: float
    why: str
    stamp: str

    @property
    def passed(self) -> bool:
        """Whether the row passed in this place."""
        return not self.why


class Machine:
    """Two connected network namespaces, and the siwarp run command lines for them."""

    def __init__(self, ends: tuple[Namespace, Namespace], work: Path) -> None:
        self.ends, self.work = ends, work
        self.site = install_package(work / "site")
        self._environments: dict[str, str] = {}

    def ensure_virtual_env(self, wheel: str) -> str:
        """Create the virtual environment of a wheel; return an error message, empty on success."""
        if wheel and wheel not in self._environments:
            self._environments[wheel] = create_virtual_env(self.virtual_env_folder(wheel), wheel)
        return self._environments.get(wheel, "")

    def virtual_env_folder(self, wheel: str) -> Path:
        """Return the folder of the virtual environment of wheels, named after the first wheel."""
        return self.work / wheel.partition(" ")[0]

    def command_line_of_row(self, row: Row, place: str, end: int, words: str) -> list[str]:
        """Return the complete command line of the server (end 0) or client (end 1) of a row."""
        namespace = self.ends[end if place in (CABLE, BOTH) else 0]
        over = self.ends[1]
        known = {
            "dev": f"siw_{namespace.link}",
            "addr": self.ends[0].v4,
            "addr6": self.ends[0].v6,
            "own": namespace.v4,
            "own6": namespace.v6,
            "over_dev": f"siw_{over.link}",
            "over_addr": over.v4,
            "over": shlex.join(
                over.command_line_inside(sys.executable, "-m", "siwarp.cli", "run", "--")
            ),
            "work": str(self.work),
            "abi": str(self.work / "abi"),
            "venv": str(self.virtual_env_folder(row.wheel)),
            "python": str(self.virtual_env_folder(row.wheel) / "bin" / "python"),
        }
        filled = shlex.split(words.format(**known))
        variables = [f"{name}={value.format(**known)}" for name, value in row.env.items()]
        if place in (NOBODY, BOTH):
            variables += [f"PYTHONPATH={self.site}", f"HOME={self.work}/home"]
            siwarp = [
                *AS_NOBODY,
                "env",
                *variables,
                find_python_for_user(AS_NOBODY),
                "-m",
                "siwarp.cli",
            ]
        else:
            siwarp = ["env", *variables, sys.executable, "-m", "siwarp.cli"]
        return namespace.command_line_inside(
            *siwarp, "run", *shlex.split(row.options), "--", *filled
        )

    def is_listening(self, port: int) -> bool:
        """Return whether a socket in the server's namespace listens on a TCP port."""
        return self.ends[0].has_listening_socket(port)

    def has_connection(self, port: int) -> bool:
        """Return whether a TCP port of the server's namespace has a connection."""
        return self.ends[0].has_connection(port)


def compile_mpi_exchange_program(compiler: str | Path, program: Path) -> None:
    """Compile the MPI program with the compiler wrapper of an MPI."""
    source = ROOT / "tests" / "abi" / "mpi" / "mpi_exchange.c"
    subprocess.run([compiler, "-O2", source, "-o", program], check=True)


def create_virtual_env(folder: Path, wheel: str) -> str:
    """Create a virtual environment with a wheel in it; return the error message, empty on success.

    The environment uses the system's Python, which every user may run. Wheels are installed only as
    binaries. If the wheel contains an MPI, the MPI test program is compiled with its mpicc.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    for command in (
        [PYTHON, "-m", "venv", "--without-pip", folder],
        [*pip, "--python", folder / "bin" / "python", "install", "--quiet", "--no-deps",
         "--no-cache-dir", "--only-binary", ":all:", *wheel.split()],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return (said or [done.stderr.strip() or done.stdout.strip()])[-1]
    if (folder / "bin" / "mpicc").exists():
        compile_mpi_exchange_program(folder / "bin" / "mpicc", folder / "mpi-exchange")
    return ""


#: The programs that were started, each as the leader of a session.
STARTED: list[subprocess.Popen[bytes]] = []


def start_program(command: list[str], log: Path, work: Path) -> subprocess.Popen[bytes]:
    """Start a program in a new session, with its output redirected to a file."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=work / "home",
            env={**os.environ, "PATH": PATH},
            start_new_session=True,
        )
    STARTED.append(process)
    return process


def kill_all_programs() -> None:
    """Kill the sessions of all programs that still run, for example after an interrupt."""
    for process in STARTED:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_or_kill_program(process: subprocess.Popen[bytes], seconds: float) -> int | str:
    """Wait for a program; return its exit status, or "hung" after killing its session."""
    try:
        return process.wait(timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "hung"


@contextlib.contextmanager
def keep_cpus_busy(wanted: bool) -> Iterator[None]:
    """Keep every CPU busy with a process in an endless loop, if wanted."""
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1 if wanted else 0)
    ]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def wait_for_client_exit(
    server: subprocess.Popen[bytes], client: subprocess.Popen[bytes], limit: float
) -> int | str:
    """Wait for a client; after a failure of the server, wait at most 10 s longer."""
    end = time.monotonic() + limit
    while client.poll() is None and not server.poll() and time.monotonic() < end:
        time.sleep(0.02)
    left = end - time.monotonic()
    return wait_or_kill_program(client, min(left, scale_limit(10)) if server.poll() else left)


def running_rank_pid(machine: Machine) -> int:
    """Return the process id of a running rank of the MPI program or of a Python script."""
    scripts = str(machine.work / "abi" / "mpi")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program = (folder / "exe").readlink()
            words = (folder / "cmdline").read_text(errors="replace").split("\0")
            compiled = program.is_relative_to(machine.work) and program.name.startswith(RANKS)
            if compiled or (
                program.name.startswith("python") and "".join(words[1:2]).startswith(scripts)
            ):
                return int(folder.name)
    raise AssertionError("no rank runs")


def kill_server_or_client(
    machine: Machine, row: Row, server: subprocess.Popen[bytes], client: subprocess.Popen[bytes]
) -> list[int | str]:
    """Kill an end that has been connected for a while; return the exit statuses of both ends."""
    limit = scale_limit(row.seconds)
    victim, other = (server, client) if row.kill == "server" else (client, server)
    if not row.itself:
        # Some programs close the TCP connection after they have exchanged their addresses over it.
        end = time.monotonic() + scale_limit(3)
        while row.port and not machine.has_connection(row.port) and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(scale_limit(BEFORE_KILL))
        # In place "nobody" the process is runuser, whose child is the program.
        os.killpg(victim.pid, signal.SIGKILL)
    last, killed = wait_or_kill_program(other, limit), wait_or_kill_program(victim, limit)
    return [killed, last] if row.kill == "server" else [last, killed]


def run_programs_of_test_row(
    machine: Machine, row: Row, place: str, logs: list[Path]
) -> list[int | str]:
    """Run the programs of a row; return their exit statuses."""
    limit = scale_limit(row.seconds)
    began = time.monotonic()
    server = start_program(
        machine.command_line_of_row(row, place, 0, row.server), logs[0], machine.work
    )
    if not row.client:
        if row.kill:
            time.sleep(scale_limit(BEFORE_KILL))
            os.kill(running_rank_pid(machine), signal.SIGKILL)
        return [wait_or_kill_program(server, limit)]
    while row.port and not machine.is_listening(row.port) and server.poll() is None:
        if time.monotonic() - began > limit:
            return [wait_or_kill_program(server, 0), "not started"]
        time.sleep(0.02)
    if server.poll() is not None:
        return [server.returncode, "not started"]
    client = start_program(
        machine.command_line_of_row(row, place, 1, row.client), logs[1], machine.work
    )
    if row.kill:
        return kill_server_or_client(machine, row, server, client)
    status = wait_for_client_exit(server, client, limit)
    # A server ends soon after its client has ended; after a failure of the client, the server may
    # wait for another client.
    return [wait_or_kill_program(server, scale_limit(10) if status == 0 else 2), status]


def wait_for_free_port(machine: Machine, row: Row) -> None:
    """Wait until no server of a previous row, which may still be exiting, listens on the port."""
    end = time.monotonic() + scale_limit(5)
    while row.port and machine.is_listening(row.port) and time.monotonic() < end:
        time.sleep(0.02)


def survivor_ended_well(row: Row, status: list[int | str], text: str) -> bool:
    """Return whether one end was killed and the other end ended as the row expects."""
    if row.itself:
        others = [status[row.kill == "server"]]
    else:
        others = [s for s in status if s != -signal.SIGKILL]
    if row.quiet:
        return others == [0] and re.search(row.quiet, text) is not None
    return len(others) == 1 and others[0] not in (0, "hung", "not started")


def failure_reason(row: Row, status: list[int | str], text: str) -> str:
    """Return why a row failed, or an empty string if the row passed."""
    told = f"exit status {', '.join(map(str, status))}"
    if row.kill:
        return (
            ""
            if survivor_ended_well(row, status, text)
            else f"{told}: the other end should end, and say why"
        )
    if any(s != 0 for s in status):
        return told
    return "" if re.search(row.shows, text) else f"its output does not have {row.shows}"


def log_files(name: str, place: str) -> list[Path]:
    """Return the paths of the log files of a row in one place, for server and client."""
    slug = re.sub(r"[^\w.-]+", "_", f"{name}.{place}")
    return [OUT / "logs" / f"{slug}.{end}" for end in ("server", "client")]


def run_test_row(machine: Machine, row: Row, place: str, stamp: str) -> Result:
    """Run the programs of a row in one place; return the result."""
    logs = log_files(row.name, place)
    for log in logs:
        log.unlink(missing_ok=True)
    programs = {shlex.split(words)[0] for words in (row.server, row.client) if words}
    known = {"work": machine.work, "python": PYTHON, "venv": machine.virtual_env_folder(row.wheel)}
    missing = [p for p in programs if not shutil.which(p.format(**known), path=PATH)]
    began = time.monotonic()
    if missing:
        status: list[int | str] = ["no program"]
        why = f"{missing[0]} is not on this machine"
    else:
        wait_for_free_port(machine, row)
        with keep_cpus_busy(row.busy):
            status = run_programs_of_test_row(machine, row, place, logs)
        said = logs[bool(row.client) and row.kill != "client"]
        text = said.read_text(errors="replace") if said.exists() else ""
        why = failure_reason(row, status, text)
    seconds = round(time.monotonic() - began, 1)
    return Result(row.name, place, row.transport, status, row.data, seconds, why, stamp)


def hash_row_and_libraries(row: Row) -> str:
    """Return a hash of the row, of libibverbs.so.1 and of libsiwarp.so.0."""
    said = hashlib.sha256(repr(row).encode())
    for library in (_paths.rdma_core_abi_dir() / _paths.VERBS, _paths.library_path()):
        said.update(library.read_bytes())
    return said.hexdigest()[:16]


def places_where_gate_runs_row(row: Row) -> tuple[str, ...]:
    """Return the places where the gate runs a row."""
    return tuple(place for place in (HERE, CABLE) if (row.name, place) in GATE)


def selected_test_rows(every: bool, gate: bool, only: str) -> Iterator[tuple[Row, str]]:
    """Yield each row to run with a place: for the short form, the long form (every) or the gate."""
    for row in all_test_rows():
        places = places_where_gate_runs_row(row) if gate else row.places if every else row.short
        if every and row.short == PLACES:
            places = (*places, BOTH)
        if row.known and not every:
            continue
        for place in places:
            if place in (NOBODY, BOTH) and os.geteuid() != 0:
                print(f"SKIPPED {row.name} as nobody: only root may become nobody", flush=True)
            elif re.search(only, f"{row.name} {place}"):
                yield row, place


def compile_library_programs(work: Path) -> None:
    """Compile the test programs for libraries; a failure is reported by the row that needs it."""
    libs = ROOT / "tests" / "abi" / "libs"
    for program, words in LIBRARIES.items():
        source, *libraries = words.split()
        compiler = "c++" if source.endswith(".cc") else "cc"
        command = [compiler, "-O2", libs / source, "-o", work / program, *libraries]
        subprocess.run(command, check=False)


def prepare_work_folder(work: Path) -> None:
    """Compile the MPI program for each MPI and copy the scripts.

    A failed compilation is reported by the row that needs the program.
    """
    for name in ("mpich", "openmpi"):
        compiler = shutil.which(f"mpicc.{name}")
        if compiler:
            compile_mpi_exchange_program(compiler, work / f"mpi-{name}")
    for scripts in ("ibverbs", "pyverbs", "pypi", "ucx", "mpi", "libs"):
        shutil.copytree(ROOT / "tests" / "abi" / scripts, work / "abi" / scripts)
    home = work / "home"
    home.mkdir()
    home.chmod(0o777)


#: Number of characters at the end of a log that are printed for a failed row.
TOLD = 600


def print_result(result: Result) -> None:
    """Print the result of a row, and after a failure the end of its logs."""
    status = " ".join(map(str, result.status))
    verdict = "ok" if result.passed else f"FAILED: {result.why}"
    print(
        f"{result.row:<40} {result.place:<7} {result.transport:<7} {status:<6} "
        f"{result.data:<8} {result.seconds:6.1f} s  {verdict}",
        flush=True,
    )
    for log in () if result.passed else log_files(result.row, result.place):
        if log.exists():
            print(f"    {log.suffix[1:]}: {log.read_text(errors='replace')[-TOLD:].strip()}")


def main() -> int:
    """Run the selected rows of the table; return 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the long form")
    parser.add_argument("--gate", action="store_true", help="the rows of the gate (.ci/run)")
    parser.add_argument("--only", default="", help="rows whose name and place match this")
    parser.add_argument("--resume", action="store_true", help="not what passed with this build")
    options = parser.parse_args()
    (OUT / "logs").mkdir(parents=True, exist_ok=True)
    record = OUT / "results.jsonl"
    before: dict[tuple[str, str], str] = {}
    if options.resume and record.exists():
        for line in record.read_text().splitlines():
            old = json.loads(line)
            before[old["row"], old["place"]] = "" if old["why"] else old["stamp"]
    failed: list[str] = []
    skipped: list[str] = []
    known: list[str] = []
    count, began = 0, time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="siwarp-abi-", dir="/tmp"))
    # After SIGTERM (`timeout`, an interrupted `make ci-full`) the started programs must end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        work.chmod(0o755)
        prepare_work_folder(work)
        if not options.gate:
            compile_library_programs(work)
        with create_cabled_namespaces() as ends, record.open("a" if options.resume else "w") as out:
            machine = Machine(ends, work)
            for row, place in selected_test_rows(options.all, options.gate, options.only):
                stamp = hash_row_and_libraries(row)
                if before.get((row.name, place)) == stamp:
                    continue
                why = machine.ensure_virtual_env(row.wheel)
                if row.needs and not Path(row.needs).exists():
                    why = f"this system has no {row.needs}"
                if why:
                    skipped.append(f"{row.name} ({place}): {why}")
                    continue
                result = run_test_row(machine, row, place, stamp)
                out.write(json.dumps(asdict(result)) + "\n")
                out.flush()
                print_result(result)
                count += 1
                if not result.passed and row.known:
                    known.append(f"{row.name} ({place}): {row.known}")
                elif not result.passed:
                    failed.append(f"{row.name} ({place})")
    finally:
        kill_all_programs()
        shutil.rmtree(work, ignore_errors=True)
    print(
        f"\n{count} runs, {len(failed)} failed, {len(known)} did as is known, "
        f"{len(skipped)} skipped, "
        f"{time.monotonic() - began:.0f} s; logs: {OUT}/logs"
    )
    for name in skipped:
        print(f"SKIPPED {name}")
    for name in known:
        print(f"KNOWN {name}")
    for name in failed:
        print(f"FAILED {name}")
    if not count and not skipped and not options.resume:
        print("FAILED: no row was run")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
