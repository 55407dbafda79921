"""The first version of a file in git's history, and the names of other files at that commit."""

from __future__ import annotations

import subprocess
from pathlib import Path


class FirstVersion:
    """The first version of a list of files, for tests that check that the list only shrinks.

    `text` is the first version. `original_file_name` returns the name of a file at the commit that
    added the list, because a moved file is not a new entry.
    """

    def __init__(self, root: Path, path: str) -> None:
        self._root = root
        added = self._run_git("log", "--diff-filter=A", "--format=%H", "--", path).split()
        assert added, f"{path} is not in the history"
        self.text = self._run_git("show", f"{added[-1]}:{path}")
        self._old: dict[str, str] = {}
        moves = ("--diff-filter=R", "-M", "--name-status", "-z")
        log = self._run_git(
            "log", "--reverse", "--format=", *moves, f"{added[-1]}..HEAD", "--", "tests"
        )
        fields = (log + self._run_git("diff", *moves, "HEAD", "--", "tests")).split("\0")
        for old, new in zip(fields[1::3], fields[2::3], strict=False):
            self._old[new] = self._old.pop(old, old)

    def _run_git(self, *words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, cwd=self._root, capture_output=True, text=True, check=True)
        return done.stdout

    def original_file_name(self, path: str) -> str:
        """Return the name that a file had in the commit that added the list."""
        return self._old.get(path, path)
