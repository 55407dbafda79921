"""Code in README.md that can be copied: the C program compiles, the clone command is complete."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

README = "README.md"


def test_the_c_program_in_the_readme_compiles_without_warnings(root: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```c\n(.*?)```", (root / README).read_text("utf-8"), re.DOTALL)
    program = tmp_path / "region.c"
    program.write_text(code, "utf-8")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "this test needs a C compiler: apt install gcc"
    flags = ("-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", str(root / "siwarp/include"))
    subprocess.run([compiler, *flags, str(program)], check=True, timeout=60)


def test_the_clone_command_in_the_readme_has_explained_placeholders(root: Path) -> None:
    text = (root / README).read_text("utf-8")
    assert "git clone https://HOST/OWNER/siwarp.git" in text
    assert "`HOST/OWNER`" in text
