"""A program with more rights than its caller ignores siwarp's environment variables."""

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

#: Two users; the second runs a program that the first one owns.
OWNER, CALLER = 65534, 65533


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A directory that everybody may enter and write to."""
    path = Path(tempfile.mkdtemp(prefix="siw-secure-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def run_with_all_variables(program: Path, folder: Path, **how: Any) -> dict[str, str]:
    """Run the program with all variables set; return its report."""
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


def setuid_copy(program: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a setuid copy (setgid unless root runs this), and the parameters to run it with."""
    copy = folder / "program"
    shutil.copy(program, copy)
    if os.geteuid() == 0:
        os.chown(copy, OWNER, OWNER)
        copy.chmod(0o4755)
        return copy, {"user": CALLER, "group": CALLER, "extra_groups": []}
    others = sorted(set(os.getgroups()) - {os.getegid()})
    if not others:
        pytest.skip("a setuid program of another user needs root, a setgid one a second group")
    os.chown(copy, -1, others[0])
    copy.chmod(0o2755)
    return copy, {}


def test_a_setuid_program_takes_nothing_from_its_callers_environment(
    build_dir: Path, public_folder: Path
) -> None:
    program, how = setuid_copy(build_dir / "tests/c/siw-test-secure", public_folder)
    said = run_with_all_variables(program, public_folder, **how)
    assert said["secure"] == "1", f"{public_folder} is on a file system without setuid programs"
    assert (said["crc"], said["capture"], said["faults"]) == ("1", "none 0", "none")
    assert said["counters"].startswith("/tmp/siwarp-")
    assert said["stderr"] == ""
    assert sorted(p.name for p in public_folder.iterdir()) == ["program"]


def test_the_same_program_without_more_rights_takes_all_of_it(
    build_dir: Path, public_folder: Path
) -> None:
    said = run_with_all_variables(build_dir / "tests/c/siw-test-secure", public_folder)
    assert (said["secure"], said["crc"]) == ("0", "0")
    assert said["capture"] == f"{public_folder}/capture.pcapng 1" and said["faults"] == "loss=1%"
    assert said["counters"].startswith(f"{public_folder}/siwarp/")
    assert "SIWARP_NONSENSE" in said["stderr"]
    assert (public_folder / "capture.pcapng").stat().st_size > 0


def test_settings_alone_read_the_environment_and_what_libibverbs_has_of_it() -> None:
    root = Path(__file__).resolve().parents[3] / "siwarp"
    reads = re.compile(r"\b(?:secure_)?getenv\s*\([^)]*\)|\benviron\b\s*[;,)[&]")
    found = {str(p.relative_to(root)): reads.findall(p.read_text()) for p in root.rglob("*.c")}
    assert found.pop("abi/ibverbs/abi_sysfs.c") == ['secure_getenv("SYSFS_PATH")']
    assert {file for file, calls in found.items() if calls} == {"base/settings.c"}


OPEN = """
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
def test_a_second_capture_overwrites_no_file_and_follows_no_link(
    run_in_child: Child, tmp_path: Path, there: str
) -> None:
    """The second capture of a variable is named FILE-PID, which an attacker can predict."""
    file, victim = tmp_path / "run.pcapng", tmp_path / "run"
    code = f"import sys; sys.argv[1:] = [{str(file)!r}, {there!r}]\n" + OPEN
    done = run_in_child(code, SIWARP_CAPTURE=str(file))
    own = Path(done.stdout.split()[0])
    assert file.read_text() == "another process's"
    assert own.is_symlink() or own.read_text() == "somebody's"
    assert not victim.exists()
    assert done.stderr == (
        f"siwarp: cannot capture to {file} or {own}: both exist; "
        "remove them, or use %p for the PID\n"
    )
