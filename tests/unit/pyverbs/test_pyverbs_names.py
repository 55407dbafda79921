"""Names of siwarp.pyverbs: all modules, classes, members and numbers of pyverbs must exist.

names.txt has the names of rdma-core 44, and names_added.txt those that rdma-core 65 adds;
parameters.txt has the parameters of the calls of rdma-core 65.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import types
from operator import attrgetter
from pathlib import Path

import pytest

from siwarp.pyverbs import cm_enums, enums, libibverbs_enums, librdmacm_enums

FOLDER = Path(__file__).parent
#: The Python interpreter for which Debian installs pyverbs.
PYTHON = "/usr/bin/python3"


def expected_name_lines(file: str = "names.txt") -> list[str]:
    return (FOLDER / file).read_text(encoding="utf-8").splitlines()


def pyverbs_lacks_listed_name(line: str) -> bool:
    """Return whether a line of names.txt names something that siwarp.pyverbs lacks."""
    module, _, rest = line.partition(" ")
    name, _, number = rest.partition(" = ")
    try:
        found = attrgetter(name)(importlib.import_module(f"siwarp.pyverbs.{module}"))
    except AttributeError:
        return True
    return bool(number) and int(found) != int(number)


def test_siwarp_pyverbs_has_every_name_and_number_of_pyverbs() -> None:
    lines = expected_name_lines()
    assert len(lines) > 1300
    assert [line for line in lines if pyverbs_lacks_listed_name(line)] == []


def test_siwarp_pyverbs_has_every_name_that_newer_versions_of_pyverbs_added() -> None:
    lines = expected_name_lines("names_added.txt")
    assert len(lines) > 130
    assert [line for line in lines if pyverbs_lacks_listed_name(line)] == []


def parameter_names_of_call(module: str, name: str) -> list[str]:
    call = attrgetter(name)(importlib.import_module(f"siwarp.pyverbs.{module}"))
    return [one for one in inspect.signature(call).parameters if one != "self"]


def test_calls_have_the_parameters_of_pyverbs_in_the_same_order() -> None:
    lines = expected_name_lines("parameters.txt")
    assert len(lines) > 200
    for line in lines:
        module, name, parameters = re.fullmatch(r"(\w+) ([\w.]+)\((.*)\)", line).groups()
        assert parameter_names_of_call(module, name) == parameters.split(", "), line


@pytest.mark.parametrize(
    ("old", "new"),
    [(enums, libibverbs_enums), (cm_enums, librdmacm_enums)],
    ids=lambda m: m.__name__,
)
def test_enumerations_have_the_same_members_in_modules_of_either_version(
    old: types.ModuleType, new: types.ModuleType
) -> None:
    names = [name for name in vars(old) if not name.startswith("_") or name.startswith("_IBV")]
    assert len(names) > 30
    assert all(getattr(new, name) is getattr(old, name) for name in names)


def test_the_list_contains_all_pyverbs_numbers_as_members_of_enumerations() -> None:
    numbers = [
        line for line in expected_name_lines() if line.startswith("enums ") and " = " in line
    ]
    assert len(numbers) == 371
    assert isinstance(enums.IBV_QPT_RC, enums.ibv_qp_type)
    assert isinstance(cm_enums.RDMA_PS_TCP, cm_enums.rdma_port_space)


@pytest.mark.programs
def test_the_list_of_names_equals_the_installed_pyverbs() -> None:
    done = subprocess.run(
        [PYTHON, str(FOLDER / "list_names.py"), "pyverbs"], capture_output=True, text=True
    )
    if "No module named 'pyverbs'" in done.stderr:
        pytest.skip("needs python3-pyverbs: make abi installs it")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected_name_lines()


def test_importing_siwarp_does_not_import_pyverbs() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import sys, siwarp, siwarp.cm; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "siwarp.pyverbs" not in said.stdout.split()
