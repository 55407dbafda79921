"""Tests that a program with more privileges than its caller ignores the variables SIWARP_*."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.base.conftest import Child

#: The user that owns a setuid program, and the user that runs the program.
OWNER, CALLER = 65534, 65533


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A directory that every user may enter and write to."""
    path = Path(tempfile.mkdtemp(prefix="siw-secure-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def run_with_siwarp_variables_set(program: Path, folder: Path, **how: Any) -> dict[str, str]:
    """Run ``program`` with several SIWARP_ variables set and return the values that it prints."""
    env = {
        "SIWARP_CAPTURE": str(folder / "capture.pcapng"),
        "SIWARP_CRC": "0",
        "SIWARP_FAULTS": "loss=1%",
        "SIWARP_NONSENSE": "1",
        "XDG_RUNTIME_DIR": str(folder),
    }
    done = subprocess.run(
        [program], env=env, capture_output=True, text=True, timeout=60, cwd="/", **how
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return said | {"stderr": done.stderr}


def make_setuid_copy(program: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a setuid copy of ``program`` and the parameters with which to run the copy.

    Without root, the copy is setgid.
    """
    copy = folder / "program"
    shutil.copy(program, copy)
    if os.geteuid() == 0:
        os.chown(copy, OWNER, OWNER)
        copy.chmod(0o4755)
        return copy, {"user": CALLER, "group": CALLER, "extra_groups": []}
    others = sorted(set(os.getgroups()) - {os.getegid()})
    if not others:
        pytest.skip("a setuid program needs root, and a setgid program needs a second group")
    os.chown(copy, -1, others[0])
    copy.chmod(0o2755)
    return copy, {}


def test_a_setuid_program_ignores_the_siwarp_variables_of_its_caller(
    build_dir: Path, public_folder: Path
) -> None:
    program, how = make_setuid_copy(build_dir / "tests/c/siw-test-secure", public_folder)
    said = run_with_siwarp_variables_set(program, public_folder, **how)
    assert said["secure"] == "1", f"{public_folder} is on a file system without setuid programs"
    assert (said["crc"], said["capture"], said["faults"]) == ("1", "none 0", "none")
    assert said["counters"].startswith("/tmp/siwarp-")
    assert said["stderr"] == ""
    assert sorted(p.name for p in public_folder.iterdir()) == ["program"]


def test_a_program_without_additional_privileges_uses_the_siwarp_variables(
    build_dir: Path, public_folder: Path
) -> None:
    said = run_with_siwarp_variables_set(build_dir / "tests/c/siw-test-secure", public_folder)
    assert (said["secure"], said["crc"]) == ("0", "0")
    assert said["capture"] == f"{public_folder}/capture.pcapng 1" and said["faults"] == "loss=1%"
    assert said["counters"].startswith(f"{public_folder}/siwarp/")
    assert "SIWARP_NONSENSE" in said["stderr"]
    assert (public_folder / "capture.pcapng").stat().st_size > 0


def test_only_settings_and_the_libibverbs_replacement_read_the_environment() -> None:
    root = Path(__file__).resolve().parents[3] / "siwarp"
    reads = re.compile(r"\b(?:secure_)?getenv\s*\([^)]*\)|\benviron\b\s*[;,)[&]")
    found = {str(p.relative_to(root)): reads.findall(p.read_text()) for p in root.rglob("*.c")}
    assert found.pop("abi/ibverbs/abi_sysfs.c") == ['secure_getenv("SYSFS_PATH")']
    assert {file for file, calls in found.items() if calls} == {"base/settings.c"}


OPEN_SECOND_CAPTURE = """
import os, sys
file, how = sys.argv[1:]
own = f"{file[:-7]}-{os.getpid()}.pcapng"
open(file, "w").write("another process's")
if how == "a file":
    open(own, "w").write("somebody's")
else:
    os.symlink(file[:-7], own)
lib.siw_capture_init()
lib.siw_capture_close()
print(own)
"""


@pytest.mark.parametrize("there", ["a file", "a link"])
def test_a_capture_to_an_existing_file_name_overwrites_no_file_and_follows_no_link(
    run_in_child: Child, tmp_path: Path, there: str
) -> None:
    """A capture whose file exists is written to FILE-PID, a name that an attacker can predict."""
    file, victim = tmp_path / "run.pcapng", tmp_path / "run"
    code = f"import sys; sys.argv[1:] = [{str(file)!r}, {there!r}]\n" + OPEN_SECOND_CAPTURE
    done = run_in_child(code, SIWARP_CAPTURE=str(file))
    own = Path(done.stdout.split()[0])
    assert file.read_text() == "another process's"
    assert own.is_symlink() or own.read_text() == "somebody's"
    assert not victim.exists()
    assert done.stderr == (
        f"siwarp: cannot capture to {file} or {own}: both exist; "
        "remove them, or use %p for the PID\n"
    )
