"""The script tools/release in a nearly empty tree in which make creates empty files."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DIST = """dist:
\tmkdir -p dist/release
\tcd dist/release && touch siwarp-$(V)-cp310-abi3-linux_x86_64.whl siwarp-$(V).tar.gz
\tcd dist/release && touch siwarp_sim-$(V)-cp310-abi3-linux_x86_64.whl
\tcd dist/release && touch siwarp_ulp-$(V)-py3-none-any.whl
\tcd dist/release && sha256sum siwarp-* siwarp_* >SHA256SUMS
deb:
\tmkdir -p dist/debian && touch dist/debian/siwarp_$(V)_amd64.deb
"""


#: The identity that creates commits and tags.
SOMEBODY = {
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
}


class ReleaseRepository:
    """A git tree with a version and a changelog."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tools").mkdir()
        for name in ("tools/release", "tools/lib.sh", "meson.build"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n- New.\n")
        (folder / "Makefile").write_text(DIST)
        (folder / ".gitignore").write_text("/dist/\n")
        self.run_git("init", "-q")
        self.commit_all("all")

    def run_git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env={**os.environ, **SOMEBODY},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def commit_all(self, subject: str) -> None:
        self.run_git("add", "-A")
        self.run_git("commit", "-qm", subject)

    def run_release(self, *words: str, made: str = "0.2.0") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["tools/release", *words],
            cwd=self.folder,
            env={**os.environ, **SOMEBODY, "V": made},
            capture_output=True,
            text=True,
        )

    def run_failing_release_and_get_error(self, *words: str, made: str = "0.2.0") -> str:
        done = self.run_release(*words, made=made)
        assert done.returncode == 1
        return done.stderr.splitlines()[-1].removeprefix("siwarp: ")


@pytest.fixture
def repository_with_release_tools(tmp_path: Path) -> ReleaseRepository:
    return ReleaseRepository(tmp_path)


def test_a_release_is_prepared_built_and_tagged(
    repository_with_release_tools: ReleaseRepository,
) -> None:
    assert repository_with_release_tools.run_release("--prepare", "0.2.0").returncode == 0
    today = datetime.datetime.now(datetime.timezone.utc).date()
    assert (
        f"\n## [Unreleased]\n\n## [0.2.0] - {today}\n\n- New.\n"
        in (repository_with_release_tools.folder / "CHANGELOG.md").read_text()
    )
    assert (
        "\n  version: '0.2.0',\n"
        in (repository_with_release_tools.folder / "meson.build").read_text()
    )
    assert len(repository_with_release_tools.run_git("diff", "--numstat").splitlines()) == 2
    repository_with_release_tools.commit_all("siwarp 0.2.0")
    done = repository_with_release_tools.run_release("0.2.0")
    assert done.returncode == 0, done.stderr
    assert "git push --follow-tags" in done.stderr
    sums = (
        (repository_with_release_tools.folder / "dist/release/SHA256SUMS").read_text().split()[1::2]
    )
    assert sums == [
        "siwarp-0.2.0-cp310-abi3-linux_x86_64.whl",
        "siwarp-0.2.0.tar.gz",
        "siwarp_sim-0.2.0-cp310-abi3-linux_x86_64.whl",
        "siwarp_ulp-0.2.0-py3-none-any.whl",
        "siwarp_0.2.0_amd64.deb",
    ]
    assert (
        repository_with_release_tools.run_git("tag", "--points-at", "HEAD", "--format=%(subject)")
        == "siwarp 0.2.0\n"
    )
    assert (
        "the tag v0.2.0 exists already"
        in repository_with_release_tools.run_failing_release_and_get_error("0.2.0")
    )


@pytest.mark.parametrize("words", [(), ("0.2",), ("v0.2.0",), ("0.2.0", "0.3.0"), ("01.2.0",)])
def test_an_invalid_version_is_refused(
    repository_with_release_tools: ReleaseRepository, words: tuple[str, ...]
) -> None:
    assert repository_with_release_tools.run_failing_release_and_get_error(*words).startswith(
        "usage: tools/release"
    )


def test_a_release_from_a_tree_with_uncommitted_changes_is_refused(
    repository_with_release_tools: ReleaseRepository,
) -> None:
    (repository_with_release_tools.folder / "new").touch()
    for words in (["--prepare", "0.2.0"], ["0.2.0"]):
        assert repository_with_release_tools.run_failing_release_and_get_error(*words).startswith(
            "the tree has changes"
        )


def test_a_release_that_is_not_prepared_is_refused(
    repository_with_release_tools: ReleaseRepository,
) -> None:
    advice = "type tools/release --prepare 0.2.0"
    assert advice in repository_with_release_tools.run_failing_release_and_get_error("0.2.0")
    file = repository_with_release_tools.folder / "meson.build"
    file.write_text(re.sub(r"(?m)^  version: '.*',$", "  version: '0.2.0',", file.read_text()))
    repository_with_release_tools.commit_all("half")
    why = repository_with_release_tools.run_failing_release_and_get_error("0.2.0")
    assert why.startswith("CHANGELOG.md has no heading of 0.2.0") and advice in why
    assert repository_with_release_tools.run_git("tag") == ""


def test_a_release_with_files_of_another_version_is_not_tagged(
    repository_with_release_tools: ReleaseRepository,
) -> None:
    repository_with_release_tools.run_release("--prepare", "0.2.0")
    repository_with_release_tools.commit_all("siwarp 0.2.0")
    assert (
        "is not a file of version 0.2.0"
        in repository_with_release_tools.run_failing_release_and_get_error("0.2.0", made="0.1.0")
    )
    assert repository_with_release_tools.run_git("tag") == ""
