"""The place of a mutant in the C code: the name of a function, and tokens in the function.

Blanks, line ends, comments and the file name are ignored: if a function is reformatted or moves to
another folder, the mutants of the function still apply.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

#: A comment or blank (skipped), or one token of C.
_TOKEN = re.compile(
    r"""(?P<skip>/\*.*?\*/|//[^\n]*|\\\n|\s+)
    |"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'
    |[A-Za-z_]\w*|0[xX][0-9a-fA-F]+[uUlL]*|\d+(?:\.\d+)?[uUlL]*
    |>>=|<<=|\.\.\.|->|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^<>=!]=|.""",
    re.DOTALL | re.VERBOSE,
)
#: Folders of siwarp/ whose code no test of a layer runs: programs, and the simulator.
APART = {"bench", "sim", "wan"}
_HEAD = re.compile(r"[A-Za-z_]")
_DEFINE = re.compile(r"#\s*define\s+(\w+)")


class Token(NamedTuple):
    """A token of C and its position in the text of the file."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Definition:
    """A definition (function, table, enum or macro): its name, and its position in the file."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class TextRange:
    """The part of a file that a mutant replaces."""

    path: Path
    start: int
    end: int


def tokenize_c(text: str, start: int = 0, end: int | None = None) -> list[Token]:
    """Return the tokens of a part of a C file, without comments and blanks."""
    return [
        Token(found.group(), found.start(), found.end())
        for found in _TOKEN.finditer(text, start, len(text) if end is None else end)
        if found.group("skip") is None
    ]


def split_definitions(text: str) -> Iterator[Definition]:
    """Yield the definitions of a C file that is formatted by clang-format."""
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    at = 0
    while at < len(lines):
        first = at
        if define := _DEFINE.match(lines[at]):
            while lines[at].endswith("\\\n") and at + 1 < len(lines):
                at += 1
            yield Definition(define.group(1), offsets[first], offsets[at + 1])
        elif _HEAD.match(lines[at]):
            at = _last_line_of_definition(lines, at)
            if name := _defined_name("".join(lines[first : at + 1])):
                yield Definition(name, offsets[first], offsets[at + 1])
        at += 1


def _last_line_of_definition(lines: list[str], at: int) -> int:
    """Return the last line of the definition or declaration that begins at line `at`."""
    depth = 0
    while True:
        code = [token.text for token in tokenize_c(lines[at])]
        depth += code.count("{") - code.count("}")
        over = depth <= 0 and code and (code[-1] == ";" or lines[at].startswith("}"))
        if over or at + 1 == len(lines) or (depth <= 0 and not lines[at + 1].strip()):
            return at
        at += 1


def _defined_name(text: str) -> str | None:
    """Return the name that a definition defines, or None for a declaration."""
    head = []
    for found in _TOKEN.finditer(text):
        if found.group() == "{":
            break
        if found.group("skip") is None:
            head.append(found.group())
    else:
        return None
    if head[-1:] == ["="]:
        head = head[: head.index("[")] if "[" in head else head[:-1]
        return head[-1]
    if "enum" in head and "(" not in head:
        return head[-1]
    if "(" in head and head[-1] == ")":
        # Attributes before the name have parentheses, too; the name precedes the parameter list.
        depth = 0
        for at in range(len(head) - 1, -1, -1):
            depth += (head[at] == ")") - (head[at] == "(")
            if depth == 0:
                return head[at - 1] if at else None
    return None


class CSourceTree:
    """The C code of a source tree, with an index of all definitions by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts: dict[Path, str] = {}
        self.defined: dict[str, list[tuple[Path, Definition]]] = {}
        self._tokens: dict[tuple[Path, Definition], list[Token]] = {}
        package = root / "siwarp"
        for path in sorted([*package.rglob("*.c"), *package.rglob("*.h")]):
            if path.relative_to(package).parts[0] in APART:
                continue
            text = path.read_text("utf-8")
            self.texts[path] = text
            for chunk in split_definitions(text):
                self.defined.setdefault(chunk.name, []).append((path, chunk))

    def layer_of_file(self, path: Path) -> str:
        """Return the folder of siwarp/ that contains a file."""
        return path.relative_to(self.root / "siwarp").parts[0]

    def find_place_in_code(self, name: str, old: str, file: str | None = None) -> TextRange:
        """Return the only place in the definition of `name` that contains the text `old`.

        If several files define the name, the text or the file name `file` must select one of them.
        A LookupError describes the problem if no place or more than one place is found.
        """
        here = self.defined.get(name, [])
        if file is not None:
            here = [(path, chunk) for path, chunk in here if path.name == file]
        if not here:
            raise LookupError(f"nothing named {name} is defined{f' in {file}' if file else ''}")
        wanted = [token.text for token in tokenize_c(old)]
        if not wanted:
            raise LookupError("the text to replace is empty")
        places = [
            place
            for path, chunk in here
            for place in self._places_in_definition(path, chunk, wanted)
        ]
        if len(places) != 1:
            often = "nowhere" if not places else f"{len(places)} times"
            files = ", ".join(sorted({path.name for path, _ in here}))
            raise LookupError(f"{name} ({files}) has this text {often}: {old!r}")
        return places[0]

    def _places_in_definition(
        self, path: Path, chunk: Definition, wanted: list[str]
    ) -> Iterator[TextRange]:
        there = self._tokens_of_definition(path, chunk)
        words = [token.text for token in there]
        n = len(wanted)
        for at in range(len(words) - n + 1):
            if words[at : at + n] == wanted:
                yield TextRange(path, there[at].start, there[at + n - 1].end)

    def _tokens_of_definition(self, path: Path, chunk: Definition) -> list[Token]:
        """Return the tokens of a definition, which many mutants change."""
        if (path, chunk) not in self._tokens:
            self._tokens[path, chunk] = tokenize_c(self.texts[path], chunk.start, chunk.end)
        return self._tokens[path, chunk]


@functools.cache
def load_work_tree() -> CSourceTree:
    """Return the C code of the work tree that contains this file."""
    return CSourceTree(Path(__file__).resolve().parents[2])
