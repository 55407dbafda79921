"""Applies mutants to the C code, one at a time, and counts those that the layer's tests detect.

`make mutate [N=] [SEED=] [ARGS=]`. Results are stored in build/mutate/results.jsonl, and a mutant
is not tried again until code or tests change. The exit status is 1 if fewer than 95% of the mutants
are detected, if a mutant survives without a reason, or if a mutant does not apply or compile. See
README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mutants.anchor import CSourceTree
from mutants.data import (
    ROOT,
    Layer,
    Mutant,
    cpu_can_run,
    load_mutants,
    read_mutation_layers,
    store_mutants,
)
from mutants.tree import TEST_LIMIT, MutantRunError, Run, TreeCopy, list_source_files

HOME = ROOT / "build" / "mutate"
WANTED = 0.95
#: How many times the tests of a layer are run if a failed test passes when it is repeated.
TIMES = 3
NOTICED = {"failed", "crashed", "hung"}


def layer_state_hashes(lay: dict[str, Layer]) -> dict[str, str]:
    """Return, for each layer, a hash of the current C code and of the tests of the layer."""
    common = hashlib.sha256()
    tests: list[tuple[str, bytes]] = []
    for name in list_source_files(ROOT):
        if name.startswith(("tests/mutants/", "tests/unit/mutants/")):
            continue
        octets = hashlib.sha256(name.encode() + b"\0" + (ROOT / name).read_bytes()).digest()
        if Path(name).name.startswith("test_"):
            tests.append((name, octets))
        elif name.startswith(("siwarp/", "tests/", "meson")):
            common.update(octets)
    found = {}
    for layer in lay.values():
        digest = common.copy()
        for name, octets in tests:
            if name.startswith(tuple(layer.tests)):
                digest.update(octets)
        found[layer.name] = digest.hexdigest()[:16]
    return found


class Results:
    """The stored results of mutants, one line each; the last line of a mutant is valid."""

    def __init__(self, path: Path, now: dict[str, str], last: bool = False) -> None:
        self.path, self.now, self.last = path, now, last
        self.lock = threading.Lock()
        self.known: dict[str, dict[str, Any]] = {}
        #: Whether a test passes with the original code, for tests that have been run with it.
        self.whole: dict[str, bool] = {}
        #: The test that detected a mutant last, even if the code has changed since.
        self.hints: dict[str, str] = {}
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                self._index_result(json.loads(line))

    def _index_result(self, entry: dict[str, Any]) -> None:
        fresh = self.last or entry["state"] == self.now.get(entry.get("layer", ""))
        if "test" in entry:
            if fresh:
                self.whole[entry["test"]] = entry["passes"]
            return
        if entry["by"]:
            self.hints[entry["digest"]] = entry["by"]
        if fresh:
            self.known[entry["digest"]] = entry

    def add_result(self, layer: str, **entry: Any) -> None:
        """Store the result of a mutant of a layer, or of a test with the original code."""
        entry = {"layer": layer, "state": self.now[layer], **entry}
        with self.lock:
            self._index_result(entry)
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")


class Worker:
    """A copy of the tree in which mutants are tried, one after the other."""

    def __init__(self, copy: TreeCopy, results: Results, lay: dict[str, Layer]) -> None:
        self.copy, self.results, self.lay = copy, results, lay
        # The C code of the copy when it was filled; the work tree may change afterwards.
        self.tree = CSourceTree(copy.home)

    def try_mutant(self, mutant: Mutant) -> dict[str, Any]:
        """Apply a mutant to the copy of the tree, run the tests, and restore the copy."""
        began = time.monotonic()
        path, text = mutant.file_with_mutation(self.tree)
        path.write_text(text, "utf-8")
        try:
            said = self.copy.build_targets()
            run = Run("does not compile", None) if said is not None else self._run_tests(mutant)
            if said is not None:
                self._log_path(mutant).write_text(said, "utf-8")
        finally:
            path.write_text(self.tree.texts[path], "utf-8")
        seconds = round(time.monotonic() - began, 1)
        entry = {"id": mutant.id, "digest": mutant.digest, "how": run.how, "by": run.by}
        self.results.add_result(mutant.layer, **entry, seconds=seconds)
        return {**entry, "seconds": seconds}

    def _log_path(self, mutant: Mutant) -> Path:
        return HOME / "logs" / f"{mutant.id}.txt"

    def _run_tests(self, mutant: Mutant) -> Run:
        layer = self.lay[mutant.layer]
        fails = {test for test, passes in self.results.whole.items() if not passes}
        hints = [self.results.hints.get(mutant.digest), mutant.by]
        for hint in dict.fromkeys(hint for hint in hints if hint is not None):
            if hint in fails or not (self.copy.home / hint.partition("::")[0]).is_file():
                continue
            try:
                limit = 3 * TEST_LIMIT if "::" in hint else layer.limit
                run = self.copy.run_tests([hint], limit, self._log_path(mutant), fails)
            except MutantRunError:
                if self.copy.stopped:
                    raise
                continue  # the test that detected the mutant has been renamed
            if run.how != "passed":
                return run
        there = [test for test in layer.tests if (self.copy.home / test).exists()]
        for _ in range(TIMES):
            run = self.copy.run_tests(there, layer.limit, self._log_path(mutant), fails)
            if run.how == "passed" or run.by is None:
                break
            again = self.copy.run_tests([run.by], 3 * TEST_LIMIT, self._log_path(mutant), set())
            if again.how != "passed":
                break
            # The test failed for another reason, such as a busy machine: run the other tests.
            fails = fails | {run.by}
        return run


def check_detecting_tests_pass_unmutated(
    mutants: list[Mutant], results: Results, copy: TreeCopy
) -> bool:
    """Run the tests that detected mutants with the original code, with which they must pass.

    Return False if a test failed; the mutants that the failed test detected must then be tried
    again without this test.
    """
    layer_of = {
        results.known[m.digest]["by"]: m.layer for m in mutants if m.digest in results.known
    }
    open_ones = sorted(test for test in layer_of if test and test not in results.whole)
    if not open_ones:
        return True
    copy.build_targets()
    print_and_flush(f"{len(open_ones)} tests that noticed a mutant, on the code as it is")
    passed = copy.run_and_return_passing_tests(open_ones, HOME / "logs" / "whole.txt")
    for test in open_ones:
        results.add_result(layer_of[test], test=test, passes=test in passed)
        if test not in passed:
            print_and_flush(
                f"{test} fails on the code as it is, or is not there: it noticed nothing"
            )
    for m in mutants:
        if results.known.get(m.digest, {}).get("by") in set(open_ones) - passed:
            del results.known[m.digest]
            results.hints.pop(m.digest, None)
    return passed == set(open_ones)


def print_and_flush(text: str) -> None:
    """Print a line and flush the output."""
    print(text, flush=True)


def print_report(mutants: list[Mutant], results: Results) -> bool:
    """Print numbers of mutants by layer, and problems; return whether there are no problems."""
    total = seen = 0
    wrong: list[str] = []
    print(f"\n{'layer':8}{'mutants':>8}{'tried':>8}{'noticed':>9}{'hung':>6}")
    for name in dict.fromkeys(m.layer for m in mutants):
        mine = [m for m in mutants if m.layer == name]
        tried = [(m, results.known[m.digest]) for m in mine if m.digest in results.known]
        noticed = sum(entry["how"] in NOTICED for _, entry in tried)
        hung = sum(entry["how"] == "hung" for _, entry in tried)
        print(f"{name:8}{len(mine):8}{len(tried):8}{noticed:9}{hung:6}")
        total, seen = total + len(tried), seen + noticed
        for m, entry in tried:
            if entry["how"] == "does not compile":
                wrong.append(f"{m.id} does not compile: build/mutate/logs/{m.id}.txt")
            elif entry["how"] == "out of time":
                wrong.append(f"{m.id}: the tests of {name} took more than their limit")
            elif entry["how"] == "passed" and m.survives is None:
                wrong.append(f"{m.id} survives without a reason: in {m.where}, {m.why}")
            elif entry["how"] in NOTICED and m.survives is not None:
                wrong.append(f"{m.id} has a reason to survive, and {entry['by']} notices it")
    share = seen / total if total else 1.0
    print(f"{'all':8}{len(mutants):8}{total:8}{seen:9}   noticed {share:.1%}")
    for line in wrong:
        print(line)
    # The limit is relative to all mutants, so that an accepted survivor does not fail a short run.
    enough = total - seen <= (1 - WANTED) * len(mutants)
    if not enough:
        print(f"{total - seen} were not noticed: more than {1 - WANTED:.0%} of all mutants")
    return not wrong and enough


def parse_arguments() -> argparse.Namespace:
    """Return the parsed arguments of `make mutate`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, help="try at most this many that were not tried yet")
    parser.add_argument("--seed", type=int, default=1, help="which ones, and in which order")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--layer", action="append", help="those of this layer alone")
    parser.add_argument("--only", action="append", help="the mutant of this id alone")
    parser.add_argument("--again", action="store_true", help="try those tried before, too")
    parser.add_argument("--last", action="store_true", help="what other code gave counts, too")
    parser.add_argument("--move", action="store_true", help="only note each one's layer")
    parser.add_argument("--record", action="store_true", help="note what noticed them in the data")
    return parser.parse_args()


def select_mutants(
    mutants: list[Mutant], results: Results, args: argparse.Namespace
) -> list[Mutant]:
    """Return the mutants to try, in random order, and at most as many as requested."""
    done = {
        digest
        for digest, entry in results.known.items()
        if entry["how"] in NOTICED or not args.last
    }
    todo = [m for m in mutants if args.again or m.digest not in done]
    random.Random(args.seed).shuffle(todo)
    return todo[: args.n]


def try_mutants(mutants: list[Mutant], todo: list[Mutant], results: Results, jobs: int) -> None:
    """Try the selected mutants, `jobs` at the same time, and print the result of each mutant."""
    (HOME / "logs").mkdir(parents=True, exist_ok=True)
    free: SimpleQueue[Worker] = SimpleQueue()
    copies: list[TreeCopy] = []
    for number in range(max(1, min(jobs, len(todo)))):
        copy = TreeCopy(HOME / f"tree-{number}")
        copy.update_and_build()
        copies.append(copy)
        free.put(Worker(copy, results, read_mutation_layers()))

    def try_one_mutant(mutant: Mutant) -> None:
        worker = free.get()
        try:
            entry = worker.try_mutant(mutant)
        finally:
            free.put(worker)
        by = f"  {entry['by']}" if entry["by"] else ""
        print_and_flush(
            f"{mutant.layer:6} {mutant.id:32} {entry['how']:8} {entry['seconds']:6.1f} s{by}"
        )

    pool = ThreadPoolExecutor(jobs)
    try:
        for _ in range(TIMES):
            for done in [pool.submit(try_one_mutant, mutant) for mutant in todo]:
                done.result()
            if check_detecting_tests_pass_unmutated(mutants, results, copies[0]):
                break
            todo = [m for m in todo if m.digest not in results.known]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for copy in copies:
            copy.stop_command()


def main() -> int:
    """Try the selected mutants and print a report; return 1 if there is any problem."""
    # SIGTERM is handled like Ctrl-C, which also ends the running tests.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = parse_arguments()
    every = load_mutants()
    tree = CSourceTree(ROOT)
    applies = True
    for mutant in every:
        try:
            mutant.find_place_in_code(tree)
        except LookupError as e:
            print_and_flush(f"{mutant.layer}.toml: {mutant.id} does not apply: {e.args[0]}")
            applies = False
    if not applies:
        return 1
    if args.move:
        store_mutants(
            [
                dataclasses.replace(m, layer=tree.layer_of_file(m.find_place_in_code(tree).path))
                for m in every
            ]
        )
        return 0
    if unknown := set(args.only or ()) - {m.id for m in every}:
        print_and_flush(f"no such mutant: {', '.join(sorted(unknown))}")
        return 1
    HOME.mkdir(parents=True, exist_ok=True)
    mutants = [
        m
        for m in every
        if (not args.layer or m.layer in args.layer) and (not args.only or m.id in args.only)
    ]
    for mutant in [m for m in mutants if not cpu_can_run(m)]:
        print_and_flush(f"left out: {mutant.id}: this processor has no {mutant.cpu}")
        mutants.remove(mutant)
    results = Results(HOME / "results.jsonl", layer_state_hashes(read_mutation_layers()), args.last)
    todo = select_mutants(mutants, results, args)
    print_and_flush(f"{len(mutants)} mutants, {len(todo)} to try")
    try:
        try_mutants(mutants, todo, results, args.jobs)
    except MutantRunError as e:
        print_and_flush(str(e))
        return 1
    if args.record:
        known = results.known
        store_mutants(
            [
                dataclasses.replace(m, by=known[m.digest]["by"] or m.by) if m.digest in known else m
                for m in every
            ]
        )
    return 0 if print_report(mutants, results) else 1


if __name__ == "__main__":
    sys.exit(main())
