"""The mutants of tests/mutants: applying them to the current code, and counting their results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mutants import tree
from mutants.anchor import CSourceTree, load_work_tree
from mutants.data import (
    CLAUSE,
    ROOT,
    Mutant,
    cpu_can_run,
    load_mutants,
    read_mutation_layers,
    store_mutants,
)
from mutants.run import Results, Worker, print_report
from mutants.tree import MutantRunError, Run, TreeCopy, _outcome_of_run, _wait_for_pytest
from table import run_test_for_each_row

MUTANTS = load_mutants()


def known_clauses() -> set[str]:
    """Return the ids of clauses and requirements, whose correctness spec/check.py checks."""
    ids: set[str] = set()
    for path in (ROOT / "spec").glob("rfc*/s*.toml"):
        ids.update(CLAUSE.findall(path.read_text("utf-8")))
    ids.update(CLAUSE.findall((ROOT / "spec" / "datagram-iwarp.md").read_text("utf-8")))
    return ids


def make_mutant(**changed: str) -> Mutant:
    entry = {
        "layer": "mpa",
        "id": "mpa-one",
        "where": "siw_mpa_one",
        "old": "a < b",
        "new": "a <= b",
        "clause": "siw_mpa_one",
        "why": "It is so.",
    }
    return Mutant(**{**entry, **changed})


def make_source_tree_of_one_file(
    tmp_path: Path, text: str, name: str = "mpa/mpa_one.c"
) -> CSourceTree:
    path = tmp_path / "siwarp" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return CSourceTree(tmp_path)


ONE = "int siw_mpa_one(int a, int b)\n{\n\treturn a < b; /* why */\n}\n"


def test_a_mutant_of_code_that_the_processor_cannot_run_is_left_out(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: one\nflags\t\t: fpu pclmulqdq\n\nflags\t\t: fpu pclmulqdq\n")
    assert cpu_can_run(make_mutant(), cpuinfo)
    assert cpu_can_run(make_mutant(cpu="pclmulqdq"), cpuinfo)
    assert not cpu_can_run(make_mutant(cpu="vpclmulqdq"), cpuinfo)
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp crc32\n")
    assert not cpu_can_run(make_mutant(cpu="vpclmulqdq"), cpuinfo)


@run_test_for_each_row("one", MUTANTS, ids=[m.id for m in MUTANTS])
def test_each_mutant_applies_to_one_place_of_its_layer(one: Mutant) -> None:
    try:
        place = one.find_place_in_code(load_work_tree())
    except LookupError as e:
        pytest.fail(f"tests/mutants/{one.layer}.toml: {one.id} does not apply: {e.args[0]}")
    layer = load_work_tree().layer_of_file(place.path)
    assert layer == one.layer, f"it moved to {layer}/: make mutate ARGS=--move writes that down"
    assert one.file_with_mutation(load_work_tree())[1] != load_work_tree().texts[place.path]


def test_each_mutant_has_a_unique_id_and_names_the_clause_or_function_it_violates() -> None:
    clauses = known_clauses()
    assert len({m.id for m in MUTANTS}) == len(MUTANTS)
    assert len({m.digest for m in MUTANTS}) == len(MUTANTS)
    for one in MUTANTS:
        assert one.why.endswith("."), one.id
        if CLAUSE.fullmatch(one.clause):
            assert one.clause in clauses, f"{one.id}: no clause {one.clause}"
        else:
            assert one.clause in load_work_tree().defined, (
                f"{one.id}: nothing is named {one.clause}"
            )


def test_each_layer_with_mutants_has_existing_tests() -> None:
    for layer in read_mutation_layers().values():
        assert any((ROOT / test).exists() for test in layer.tests), layer.name


def test_blanks_and_comments_are_ignored_when_a_mutant_is_applied(tmp_path: Path) -> None:
    text = "int siw_mpa_one(int a,\n\t\tint b)\n{\n\treturn a /* or less */\n\t\t<b;\n}\n"
    path, broken = make_mutant().file_with_mutation(make_source_tree_of_one_file(tmp_path, text))
    assert "return a <= b;" in broken
    assert path.name == "mpa_one.c"


def test_the_function_of_a_mutant_is_found_in_any_file(tmp_path: Path) -> None:
    tree = make_source_tree_of_one_file(tmp_path, "static int x;\n\n" + ONE, "mpa/mpa_other.c")
    assert tree.layer_of_file(make_mutant().find_place_in_code(tree).path) == "mpa"


def test_mutants_can_change_tables_macros_and_enums(tmp_path: Path) -> None:
    text = "#define ONE 1\nstatic const int two[] = {\n\t2,\n};\n\nenum three {\n\tTHREE = 3,\n};\n"
    tree = make_source_tree_of_one_file(tmp_path, text)
    for where, old in (("ONE", "1"), ("two", "2"), ("three", "3")):
        place = make_mutant(where=where, old=old).find_place_in_code(tree)
        assert tree.texts[place.path][place.start : place.end] == old


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"where": "siw_mpa_two"}, "nothing named siw_mpa_two"),
        ({"old": "a > b"}, "nowhere"),
        ({"old": "a"}, "2 times"),
        ({"old": " /* a */ "}, "empty"),
        ({"file": "mpa_two.c"}, "in mpa_two.c"),
    ],
)
def test_a_mutant_that_does_not_apply_is_reported_with_the_reason(
    tmp_path: Path, changed: dict[str, str], says: str
) -> None:
    with pytest.raises(LookupError, match=says):
        make_mutant(**changed).find_place_in_code(make_source_tree_of_one_file(tmp_path, ONE))


def test_a_mutant_of_two_functions_with_one_name_needs_a_file(tmp_path: Path) -> None:
    make_source_tree_of_one_file(tmp_path, ONE)
    tree = make_source_tree_of_one_file(tmp_path, ONE, "mpa/mpa_two.c")
    with pytest.raises(LookupError, match="2 times"):
        make_mutant().find_place_in_code(tree)
    assert make_mutant(file="mpa_two.c").find_place_in_code(tree).path.name == "mpa_two.c"


def test_stored_mutants_are_loaded_unchanged(tmp_path: Path) -> None:
    (tmp_path / "layers.toml").write_bytes((ROOT / "tests/mutants/layers.toml").read_bytes())
    mutants = [
        make_mutant(old='say("a\\n");', new="if (x)\n\treturn;"),
        make_mutant(id="mpa-two", why="It's so.", drawn="boundary", survives='No "x" is 0.'),
    ]
    store_mutants(mutants, tmp_path)
    assert load_mutants(tmp_path) == mutants


TEST_B = "tests/a.py::test_b"


@run_test_for_each_row(
    ("status", "out", "run"),
    [
        (0, f"{TEST_B} PASSED [100%]", Run("passed", None)),
        (
            1,
            f"{TEST_B}[1 - 2] FAILED [ 50%]\nFAILED {TEST_B}[1 - 2] - no\n",
            Run("failed", f"{TEST_B}[1 - 2]"),
        ),
        (2, "ERROR tests/a.py - ImportError: no\n", Run("failed", "tests/a.py")),
        (-11, f"tests/a.py::test_a PASSED\n{TEST_B} \n", Run("crashed", TEST_B)),
        (
            -11,
            f"{TEST_B}[x y] Fatal Python error: Segmentation fault\n",
            Run("crashed", f"{TEST_B}[x y]"),
        ),
        (None, f"{TEST_B} ", Run("out of time", None)),
        (1, f"{TEST_B} \n+++ Timeout +++\n", Run("hung", TEST_B)),
    ],
)
def test_the_outcome_of_a_test_run_is_parsed_from_its_status_and_output(
    status: int | None, out: str, run: Run
) -> None:
    assert _outcome_of_run(status, out) == run


def test_a_test_without_output_for_longer_than_a_test_may_take_hangs() -> None:
    assert _outcome_of_run(None, f"{TEST_B} ", silent=True) == Run("hung", TEST_B)


def test_a_test_run_without_tests_raises_an_error() -> None:
    with pytest.raises(MutantRunError):
        _outcome_of_run(5, "no tests ran")


def test_a_copy_of_the_tree_loses_the_files_that_the_tree_no_longer_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy = tmp_path / "source", TreeCopy(tmp_path / "copy")
    subprocess.run(["git", "init", "-q", source], check=True)
    monkeypatch.setattr(tree, "ROOT", source)
    (source / "tools").mkdir()
    for name in ("kept", "gone", "tools/gone"):
        (source / name).write_text("x", "utf-8")
    copy.sync_with_work_tree()
    for name in ("gone", "tools/gone"):
        (source / name).unlink()
        assert (copy.home / name).exists()
    (copy.home / "build").mkdir()
    (copy.home / "build" / "output").touch()
    copy.sync_with_work_tree()
    found = {str(path.relative_to(copy.home)) for path in copy.home.rglob("*") if path.is_file()}
    assert found == {"kept", "build/output"}


def test_files_listed_before_their_folder_are_run_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = TreeCopy(tmp_path)
    runs: list[list[str]] = []

    def fake_run_pytest(arguments: list[str], limit: float, log: Path) -> int:
        log.write_text("", "utf-8")
        runs.append(arguments)
        return 0

    monkeypatch.setattr(copy, "_run_pytest", fake_run_pytest)
    one, folders = "tests/unit/qp/test_one.py", ["tests/unit/cm", "tests/unit/qp"]
    assert copy.run_tests([one, *folders], 900, tmp_path / "log", {"tests/a.py::b"}).how == "passed"
    left_out = ["-x", "--deselect=tests/a.py::b"]
    assert runs == [[*left_out, one], [*left_out, f"--ignore={one}", *folders]]


def test_tests_of_simulated_processes_are_run_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = TreeCopy(tmp_path)
    runs: list[tuple[list[str], str | None]] = []

    def record_command_and_run_true(
        command: list[str], *, env: dict[str, str], **_: object
    ) -> subprocess.Popen[bytes]:
        names = [word for word in command if word.startswith("tests/")]
        runs.append((names, env.get("SIWARP_SIM")))
        return real(["true"])

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", record_command_and_run_true)
    tests = ["tests/unit/rd/test_one.py", "tests/unit/rd", "tests/sim/rd", "tests/unit/ddp"]
    assert copy.run_tests(tests, 900, tmp_path / "log", set()).how == "passed"
    assert runs == [
        (["tests/unit/rd/test_one.py"], None),
        (["tests/sim/rd"], "1"),
        (["tests/unit/rd", "tests/unit/ddp"], None),
    ]


def test_a_stopped_run_starts_no_further_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_one.py").touch()
    copy = TreeCopy(tmp_path)
    runs: list[list[str]] = []

    def fake_run_tests(tests: list[str], *_: object) -> Run:
        runs.append(tests)
        copy.stop_command()
        raise MutantRunError("stopped")

    monkeypatch.setattr(copy, "run_tests", fake_run_tests)
    worker = Worker(copy, Results(tmp_path / "results.jsonl", {}), read_mutation_layers())
    with pytest.raises(MutantRunError):
        worker._run_tests(make_mutant(layer="mpa", by="tests/test_one.py::test_it"))
    assert runs == [["tests/test_one.py::test_it"]]


def make_results(tmp_path: Path, mutants: list[Mutant], hows: list[str]) -> Results:
    results = Results(tmp_path / "results.jsonl", {"mpa": "now"})
    for one, how in zip(mutants, hows, strict=True):
        by = None if how == "passed" else "tests/a.py::test_b"
        results.add_result(one.layer, id=one.id, digest=one.digest, how=how, by=by, seconds=1.0)
    return results


@pytest.mark.parametrize(
    ("hows", "survives", "good"),
    [
        (["failed"] * 20, None, True),
        (["failed"] * 18 + ["hung", "crashed"], None, True),
        (["failed"] * 19 + ["passed"], None, False),
        (["failed"] * 19 + ["passed"], "No caller has it.", True),
        (["failed"] * 18 + ["passed"] * 2, "No caller has it.", False),
        (["failed"] * 19 + ["does not compile"], None, False),
    ],
)
def test_a_surviving_mutant_needs_a_reason_and_95_percent_must_be_detected(
    tmp_path: Path, hows: list[str], survives: str | None, good: bool
) -> None:
    mutants = []
    for number, how in enumerate(hows):
        one = {"id": f"mpa-{number}", "new": str(number)}
        if how == "passed" and survives is not None:
            one["survives"] = survives
        mutants.append(make_mutant(**one))
    assert print_report(mutants, make_results(tmp_path, mutants, hows)) is good


def test_results_for_other_code_are_used_only_as_hints(tmp_path: Path) -> None:
    mutants = [make_mutant()]
    make_results(tmp_path, mutants, ["failed"])
    same = Results(tmp_path / "results.jsonl", {"mpa": "now"})
    other = Results(tmp_path / "results.jsonl", {"mpa": "later"})
    assert same.known.keys() == {mutants[0].digest}
    assert not other.known
    assert other.hints == {mutants[0].digest: "tests/a.py::test_b"}


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("====== 1 failed, 70 passed in 3.67s ======", 1),
        ("=== 2 passed, 1 error in 63.10s (0:01:03) ===", 1),
        ("====== 71 passed in 3.67s ======", None),
        ("tests/unit/x.py::test_z FAILED [ 62%]", None),
    ],
)
def test_a_test_process_that_hangs_after_its_summary_has_the_status_of_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, status: int | None
) -> None:
    monkeypatch.setattr(tree, "ENDING", 0.05)
    log = tmp_path / "log"
    log.write_text(f"tests/unit/x.py::test_y PASSED\n{last}\n", "utf-8")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert _wait_for_pytest(process, 0.5, log) == status
        process.kill()


def test_a_test_process_that_hangs_after_a_failure_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "ENDING", 0.05)
    monkeypatch.setattr(tree, "TEST_LIMIT", 0.2)
    log = tmp_path / "log"
    log.write_text("tests/unit/x.py::test_y PASSED\n", "utf-8")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert _wait_for_pytest(process, 1, log) is None
        log.write_text("tests/unit/x.py::test_y[a] FAILED [ 62%]", "utf-8")
        assert _wait_for_pytest(process, 5, log) == 1
        process.kill()
