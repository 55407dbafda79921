"""Debian's files in packaging/: they agree with the version, the library and pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from abi.symbols import exported_symbols

from siwarp import _paths

ROOT = Path(__file__).resolve().parents[3]
SOMEBODY = {
    "GIT_COMMITTER_NAME": "A B",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_AUTHOR_NAME": "A B",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_DATE": "2026-01-02 03:04:05 +0000",
}


def version_of_the_tree() -> str:
    found = re.search(r"(?m)^  version: '(.*)',$", (ROOT / "meson.build").read_text("utf-8"))
    assert found
    return found[1]


@pytest.fixture(name="tree")
def packaging_tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "packaging", tmp_path / "packaging")
    shutil.copy(ROOT / "meson.build", tmp_path)
    return tmp_path


def run_prepare_script(tree: Path, **environment: str) -> Path:
    everything = {**os.environ, **SOMEBODY, **environment}
    for command in ("git init -q", "git commit -q --allow-empty -m a", "packaging/prepare"):
        subprocess.run(command.split(), cwd=tree, env=everything, check=True)
    return tree / "debian"


def test_the_debian_package_has_the_version_of_the_tree_and_the_author_as_maintainer(
    tree: Path,
) -> None:
    debian = run_prepare_script(tree)
    version = version_of_the_tree()
    assert (debian / "changelog").read_text("utf-8") == (
        f"siwarp ({version}) unstable; urgency=medium\n\n"
        f"  * Version {version}: CHANGELOG.md has the changes.\n\n"
        " -- A B <a@example.org>  Fri, 2 Jan 2026 03:04:05 +0000\n"
    )
    assert "\nMaintainer: A B <a@example.org>\n" in (debian / "control").read_text("utf-8")


def test_a_release_candidate_sorts_before_the_release_in_debian(tree: Path) -> None:
    file = tree / "meson.build"
    file.write_text(re.sub(r"(?m)^  version: '.*',$", "  version: '0.2.0rc1',", file.read_text()))
    debian = run_prepare_script(tree, DEBFULLNAME="C", DEBEMAIL="c@example.org")
    assert (debian / "changelog").read_text().startswith("siwarp (0.2.0~rc1) ")
    assert "Maintainer: C <c@example.org>" in (debian / "control").read_text("utf-8")


def test_the_symbols_of_the_debian_package_are_those_of_the_library() -> None:
    lines = (ROOT / "packaging/debian/libsiwarp0.symbols").read_text("utf-8").splitlines()
    listed = {line.split()[0] for line in lines if line.startswith(" siw_")}
    exported = {name.replace("@@", "@") for name in exported_symbols(_paths.library_path())}
    assert listed == {name for name in exported if name.startswith("siw_")}, (
        "list new functions in packaging/debian/libsiwarp0.symbols, with the next version"
    )


def test_the_description_for_debian_has_what_pip_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("describe", ROOT / "packaging/debian/describe.py")
    assert spec is not None and spec.loader is not None
    describe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(describe)
    monkeypatch.chdir(ROOT)
    describe.write_dist_info_and_commands(tmp_path, tmp_path / "bin")
    made = Distribution.at(tmp_path / f"siwarp-{version_of_the_tree()}.dist-info")
    pip = distribution("siwarp")
    assert made.version == pip.version
    assert set(made.entry_points) == set(pip.entry_points)
    for key in ("Name", "Summary", "Requires-Python", "Provides-Extra"):
        assert made.metadata.get_all(key) == pip.metadata.get_all(key), key
    assert made.requires is not None and "cffi>=1.15" in made.requires
    assert 'typer>=0.7,<0.8 ; extra == "cli"' in made.requires
    assert "from siwarp.cli.main import main\n" in (tmp_path / "bin/siwarp").read_text("utf-8")
