"""Inserts known faults into the C code, one at a time, and counts seeds until a fault is found.

`make plants [ARGS=]`. For each fault of plants.toml, the simulator's library is built in a copy of
the tree, and `siwarp sim` runs random workloads until a seed fails. The exit status is 1 if no seed
finds a fault without `missed`, or if a fault does not apply or compile (README.md).
"""

from __future__ import annotations

import argparse
import math
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from queue import SimpleQueue

from mutants.anchor import CSourceTree, TextRange
from mutants.data import HERE, ROOT, path_and_replaced_text, tomllib
from mutants.run import HOME, print_and_flush
from mutants.tree import MutantRunError, TreeCopy

#: The ninja target to build for the test of a planted fault.
LIBRARY = "libsiwarp-sim.so"
#: The file into which `--record` writes the results.
RECORD = HERE / "plants.md"
VARIANTS = 3
#: Limits in seconds, per run and per seed, after which a run counts as hung. A seed takes one or
#: two seconds on a slow machine, and siwarp sim itself ends a seed that hangs after two minutes.
START_LIMIT, SEED_LIMIT = 180, 15
_FAILED = re.compile(r"^FAILED seed (\d+)\b.*\n", re.MULTILINE)
#: The last line of a run without failed seeds. `siwarp sim` exits with status 1, too, if a run was
#: too short to include a crash or a refused request.
_NONE = re.compile(r"^siwarp sim: .*\b0 failed\b", re.MULTILINE)


@dataclass(frozen=True)
class PlantedFault:
    """A planted fault: its kind, its wrong behaviour (`what`) and its effect on a program (`seen`).

    `where`, `old`, `new` and `file` specify the replaced text of a function, as in a Mutant.
    `missed` gives the reason why no workload can detect the fault.
    """

    id: str
    fault: str
    where: str
    old: str
    new: str
    what: str
    seen: str
    file: str | None = None
    missed: str | None = None

    def find_place_in_code(self, tree: CSourceTree) -> TextRange:
        """Return the place in the C code that the fault replaces, or raise LookupError."""
        return tree.find_place_in_code(self.where, self.old, self.file)

    def file_with_fault(self, tree: CSourceTree) -> tuple[Path, str]:
        """Return the file that the fault changes, and the changed text of the file."""
        return path_and_replaced_text(tree, self.find_place_in_code(tree), self.new)


def load_planted_faults(path: Path = HERE / "plants.toml") -> list[PlantedFault]:
    """Return all faults of plants.toml; a ValueError names an invalid entry."""
    known = {field.name for field in fields(PlantedFault)}
    needed = known - {"file", "missed"}
    with path.open("rb") as file:
        entries = tomllib.load(file)["plant"]
    for entry in entries:
        if wrong := (needed - entry.keys()) | (entry.keys() - known):
            raise ValueError(f"{path.name}: {entry.get('id')}: {', '.join(sorted(wrong))}")
    return [PlantedFault(**entry) for entry in entries]


# ---- one run of `siwarp sim`


@dataclass(frozen=True)
class SimRun:
    """The outcome of a run of `siwarp sim`: `how` is passed, failed, crashed or hung."""

    how: str
    #: The seed that did not pass, if the run named one.
    seed: int | None = None
    #: The message of the run about the failed seed.
    line: str = ""


def outcome_of_run(status: int | None, out: str) -> SimRun:
    """Return the outcome of a run, given the exit status (None: stopped) and the output."""
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    if status == 0:
        return SimRun("passed")
    if status is None:
        return SimRun("hung", None, lines[-1] if lines else "")
    if status == 1:
        if failed := _FAILED.search(out):
            return SimRun("failed", int(failed.group(1)), failed.group().strip())
        if _NONE.search(out):
            return SimRun("passed")
        raise MutantRunError(f"siwarp sim failed and named no seed:\n{out[-2000:]}")
    if status < 0:
        return SimRun(
            "crashed", None, f"{signal.Signals(-status).name}: {lines[-1] if lines else ''}"
        )
    raise MutantRunError(f"siwarp sim ended with {status}:\n{out[-2000:]}")


#: A function that runs seeds; its parameters are the first seed and the number of seeds.
Runner = Callable[[int, int], SimRun]


@dataclass(frozen=True)
class Discovery:
    """The result for a fault: the number of seeds until the fault was found; 0: not found."""

    seeds: int
    how: str
    line: str
    seconds: float


def run_seeds_until_failure(run: Runner, first: int, limit: int) -> Discovery:
    """Run seeds from `first` on until a seed fails or `limit` seeds have passed."""
    began = time.monotonic()
    ran = run(first, limit)
    seeds = 0
    if ran.how != "passed":
        seed = ran.seed if ran.seed is not None else first + limit - 1
        if not first <= seed < first + limit:
            raise MutantRunError(f"siwarp sim named seed {seed}, which it was not to run")
        seeds = seed - first + 1
    return Discovery(seeds, ran.how, ran.line, time.monotonic() - began)


class Simulator:
    """Runs of `siwarp sim` in a copy of the tree."""

    def __init__(self, copy: TreeCopy, workloads: list[str]) -> None:
        self.copy, self.workloads = copy, workloads

    def run_seeds(self, first: int, seeds: int) -> SimRun:
        """Run a number of seeds from `first` on with each of the selected workloads."""
        for workload in self.workloads or [""]:
            ran = self._run_workload(first, seeds, ["--workload", workload] if workload else [])
            if ran.how != "passed":
                break
        return ran

    def _run_workload(self, first: int, seeds: int, more: list[str]) -> SimRun:
        command = [str(self.copy.venv / "bin" / "python"), "-m", "siwarp.cli", "sim"]
        command += ["--seeds", str(seeds), "--seed", str(first), "--jobs", "1", *more]
        command += ["--out", str(self.copy.build / "sim")]
        # The run ends at the first failed seed, because the search for the shortest failing prefix
        # would need many more runs.
        limit = START_LIMIT + seeds * SEED_LIMIT
        return outcome_of_run(*self.copy.run_and_return_output(command, limit, enough=_FAILED))


# ---- all faults


class Worker:
    """A copy of the tree in which planted faults are tried, one after the other."""

    def __init__(self, copy: TreeCopy, run: Runner) -> None:
        self.copy, self.run = copy, run
        self.tree = CSourceTree(copy.home)

    def try_planted_fault(self, plant: PlantedFault, first: int, limit: int) -> Discovery:
        """Apply a fault to the copy of the tree, run seeds, and restore the copy."""
        path, text = plant.file_with_fault(self.tree)
        path.write_text(text, "utf-8")
        try:
            if (said := self.copy.build_targets(LIBRARY)) is not None:
                raise MutantRunError(f"{plant.id} does not compile:\n{said}")
            return run_seeds_until_failure(self.run, first, limit)
        finally:
            path.write_text(self.tree.texts[path], "utf-8")


def median_seeds_until_fault_found(found: Iterable[Discovery]) -> float:
    """Return the median number of seeds until a fault is found; infinite if half are not found."""
    return float(statistics.median(f.seeds or math.inf for f in found))


def results_table(results: dict[PlantedFault, Discovery], limit: int) -> str:
    """Return a Markdown table of the results of all faults, followed by the median."""
    lines = ["| fault | variant | seeds | what failed |", "|---|---|---:|---|"]
    for plant, found in results.items():
        said = found.line if found.how in ("failed", "passed") else f"{found.how}: {found.line}"
        said = said.replace("|", "\\|") or (plant.missed or "not found")
        seeds = str(found.seeds) if found.seeds else f"> {limit}"
        lines.append(f"| {plant.fault} | `{plant.id}` | {seeds} | {said[:160]} |")
    middle = median_seeds_until_fault_found(results.values())
    seen = sum(found.seeds > 0 for found in results.values())
    text = f"more than {limit}" if math.isinf(middle) else f"{middle:g}"
    lines += ["", f"{seen} of {len(results)} found; median: {text} seeds."]
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    """Return the parsed arguments of `make plants`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="most seeds for one fault")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="how many faults at a time")
    parser.add_argument("--only", action="append", help="the fault of this id alone")
    parser.add_argument("--workload", action="append", default=[], help="this workload alone")
    parser.add_argument("--record", action="store_true", help=f"write all to {RECORD.name}")
    return parser.parse_args()


def prepare_workers(jobs: int, args: argparse.Namespace) -> list[Worker]:
    """Create workers with copies of the tree, and check that the original code passes all seeds."""
    made = []
    for number in range(jobs):
        copy = TreeCopy(HOME / f"tree-{number}")
        copy.update_and_build()
        made.append(Worker(copy, Simulator(copy, args.workload).run_seeds))
    print_and_flush(f"seeds {args.first} to {args.first + args.seeds - 1} on the code as it is")
    whole = run_seeds_until_failure(made[0].run, args.first, args.seeds)
    if whole.seeds:
        raise MutantRunError(f"the code as it is fails: {whole.line}")
    print_and_flush(f"all pass, in {whole.seconds:.0f} s")
    return made


def try_planted_faults(
    plants: list[PlantedFault], args: argparse.Namespace
) -> dict[PlantedFault, Discovery]:
    """Try the faults, `jobs` at the same time, and print the result of each fault."""
    every = prepare_workers(max(1, min(args.jobs, len(plants))), args)
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in every:
        free.put(worker)

    def try_one_planted_fault(plant: PlantedFault) -> Discovery:
        worker = free.get()
        try:
            found = worker.try_planted_fault(plant, args.first, args.seeds)
        finally:
            free.put(worker)
        seeds = f"{found.seeds} seeds" if found.seeds else "not found"
        print_and_flush(
            f"{plant.id:26}{seeds:>12}  {found.how:8}{found.seconds:6.1f} s  {found.line[:100]}"
        )
        return found

    pool = ThreadPoolExecutor(len(every))
    try:
        return dict(zip(plants, pool.map(try_one_planted_fault, plants), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in every:
            worker.copy.stop_command()


def check_planted_faults_apply(plants: list[PlantedFault], tree: CSourceTree) -> bool:
    """Return whether each fault applies to the tree; print each fault that does not apply."""
    good = True
    for plant in plants:
        try:
            plant.find_place_in_code(tree)
        except LookupError as e:
            print_and_flush(f"plants.toml: {plant.id} does not apply: {e.args[0]}")
            good = False
    return good


def main() -> int:
    """Try the selected faults; return 1 if a fault does not apply or is not found."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = parse_arguments()
    plants = load_planted_faults()
    if unknown := set(args.only or ()) - {plant.id for plant in plants}:
        print_and_flush(f"no such fault: {', '.join(sorted(unknown))}")
        return 1
    chosen = [plant for plant in plants if not args.only or plant.id in args.only]
    if not check_planted_faults_apply(chosen, CSourceTree(ROOT)):
        return 1
    HOME.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        results = try_planted_faults(chosen, args)
    except MutantRunError as e:
        print_and_flush(str(e))
        return 1
    text = results_table(results, args.seeds)
    print_and_flush(f"\n{text}{(time.monotonic() - began) / 60:.0f} minutes")
    if args.record and not args.only:
        RECORD.write_text(f"{HEAD}\n{text}", "utf-8")
    return 0 if all(f.seeds or p.missed for p, f in results.items()) else 1


HEAD = """# Planted faults: how many seeds find them

Written by `make plants ARGS=--record`; plants.toml says what each fault is.
"""


if __name__ == "__main__":
    sys.exit(main())
