"""editable.py BUILD [NINJA]: the loader of siwarp in an editable installation.

The loader finds the Python files of siwarp in the source tree and the C modules in a build folder.
Run by the venv's Python after `pip install -e`, this script replaces meson-python's loader by a
copy of itself. meson-python's loader imports ast, inspect and importlib.resources in every process
of the venv, which takes longer than the start of Python, and reads meson's install plan in each
process that imports siwarp; this loader imports nothing before siwarp is imported. The suite starts
more than a thousand processes.

NINJA, if given, runs in BUILD when siwarp is imported, so that changed C files are compiled. NINJA
does not run if EDITABLE_NO_REBUILD is in the environment, as in processes that tests start, because
no file changes while tests run.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

#: Source folder, build folder and ninja command; set by the last line of an installed loader.
PLACE: tuple[str, str, str | None] | None = None


class Finder:
    """A finder of a package with Python files in a source folder, C modules in a build folder."""

    def __init__(self, name: str, source: str, build: str, ninja: str | None) -> None:
        self.name, self.source, self.build, self.ninja = name, source, build, ninja

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the location of the package, by which Python also finds its submodules."""
        if fullname != self.name:
            return None
        from importlib.util import spec_from_file_location

        self._rebuild_package()
        return spec_from_file_location(
            fullname,
            f"{self.source}/__init__.py",
            submodule_search_locations=[self.source, self.build],
        )

    def _rebuild_package(self) -> None:
        import os

        if self.ninja is None or "EDITABLE_NO_REBUILD" in os.environ:
            return
        log = f"{self.build}/meson-logs/editable.txt"
        command = ["sh", "-c", 'cd "$1" && exec "$2" >"$3" 2>&1', "sh", self.build, self.ninja, log]
        child = os.posix_spawn("/bin/sh", command, os.environ)
        if os.waitpid(child, 0)[1] != 0:
            from pathlib import Path

            text = Path(log).read_text("utf-8", errors="backslashreplace")
            # The message begins with the output of the failed step.
            text = text[max(text.find("FAILED: "), 0) :]
            raise ImportError(f"rebuilding {self.name} failed ({log}):\n{text}")


def init() -> None:
    """Make siwarp importable in this process; the .pth file of the venv calls this function."""
    assert PLACE is not None
    sys.meta_path.insert(0, Finder("siwarp", *PLACE))


def main() -> None:
    """Install the loader in the venv whose Python runs this script."""
    import sysconfig
    from pathlib import Path

    root = Path(__file__).resolve().parent.parent
    build = str(Path(sys.argv[1]).resolve())
    ninja = str(Path(sys.argv[2]).absolute()) if len(sys.argv) > 2 else None
    loader = Path(sysconfig.get_path("purelib"), "_siwarp_editable_loader.py")
    place = (str(root / "siwarp"), build, ninja)
    loader.write_text(f"{Path(__file__).read_text('utf-8')}\n\nPLACE = {place!r}\n", "utf-8")


if __name__ == "__main__" and PLACE is None:
    main()
