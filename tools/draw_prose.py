#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Draws comments and names at random, without their code, to test whether readers understand them.

``python tools/draw_prose.py --seed 7`` prints 60 comments and sentences and 30 names of functions.
A reader who has only the list writes down what each item means, and another person who knows the
code marks the misunderstood items. ``--key`` prints the file and line of each item. The same seed
and tree yield the same list.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Comments that only tools read, and headings of sections.
DIRECTIVE = re.compile(
    r"SPDX|noqa|type: ignore|fmt: (on|off|skip)|clang-format|cppcheck|pragma|^-*$|^[-=]{3}"
)
C_TOKEN = re.compile(
    r'(?P<comment>/\*.*?\*/)|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|.', re.DOTALL
)
C_FUNCTION = re.compile(r"^(?!#)[A-Za-z_][\w \t*]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
FENCE = re.compile(
    r"^```[\s\S]*?^```$|^:::[\s\S]*?^:::$|^<!--[\s\S]*?-->$|^\|.*$|^#.*$", re.MULTILINE
)
#: The syntax tree nodes that may have a docstring.
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: A paragraph, or an item of a list, in a Markdown page.
ITEM = re.compile(r"^.+(?:\n(?! *(?:[-*]|\d+\.) ).+)*", re.MULTILINE)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(])")


class Piece(NamedTuple):
    """A comment, a sentence or a name, with its file and line."""

    text: str
    file: str
    line: int


def _comment_words(comment: str) -> str:
    """Return the words of a comment on one line, without comment markers."""
    lines = (line.strip().lstrip("/*#:").rstrip("*/").strip() for line in comment.splitlines())
    return " ".join(line for line in lines if line)


def c_comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment of a C file."""
    for found in C_TOKEN.finditer(text):
        if found["comment"]:
            yield text.count("\n", 0, found.start()) + 1, _comment_words(found["comment"])


def python_comments_and_docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment, joined over its lines, and of each docstring."""
    begun, lines, last = 0, list[str](), -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        alone = token.line[: token.start[1]].isspace() or token.start[1] == 0
        if lines and (line != last + 1 or not alone):
            yield begun, _comment_words("\n".join(lines))
            lines = []
        if not lines:
            begun = line
        lines.append(token.string)
        last = line if alone else -1
    if lines:
        yield begun, _comment_words("\n".join(lines))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and (doc := ast.get_docstring(node)) is not None:
            yield getattr(node, "lineno", 1), " ".join(doc.split("\n\n")[0].split())


def doc_page_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each sentence of a page, without tables, code and directives."""
    prose = FENCE.sub(lambda found: re.sub(r"[^\n]", "", found.group()), text)
    for found in ITEM.finditer(prose):
        for sentence in SENTENCE.split(" ".join(found.group().split())):
            yield prose.count("\n", 0, found.start()) + 1, sentence


def python_function_names(parent: ast.AST, subject: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function below a node; methods are named Class.method.

    Names of tests, which are sentences, and names of special methods are left out.
    """
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            yield from python_function_names(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith(("test_", "__")):
                yield node.lineno, subject + node.name
            yield from python_function_names(node, "")
        else:
            yield from python_function_names(node, subject)


def function_names(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function that a file defines."""
    if path.suffix == ".py":
        yield from python_function_names(ast.parse(text), "")
        return
    for found in C_FUNCTION.finditer(text):
        if found[1] == "__attribute__":
            continue
        yield text.count("\n", 0, found.start(1)) + 1, found[1]


def collect_prose_and_names() -> tuple[list[Piece], list[Piece]]:
    """Return all comments and sentences, and all names, of the files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "*.c", "*.h", "*.py", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    prose: list[Piece] = []
    named: list[Piece] = []
    readers = {
        ".md": doc_page_sentences,
        ".py": python_comments_and_docstrings,
        ".c": c_comments,
        ".h": c_comments,
    }
    for name in sorted(listed.stdout.split("\n")):
        path = ROOT / name
        if not name or not path.is_file():
            continue
        text = path.read_text("utf-8")
        for line, words in readers[path.suffix](text):
            if len(words.split()) >= 3 and not DIRECTIVE.search(words):
                prose.append(Piece(words, name, line))
        if path.suffix in (".c", ".py"):
            named += [Piece(found, name, line) for line, found in function_names(path, text)]
    return prose, named


def main() -> None:
    """Print randomly drawn comments and sentences, then randomly drawn names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--prose", type=int, default=60, help="how many comments and sentences")
    parser.add_argument("--names", type=int, default=30, help="how many names of functions")
    parser.add_argument("--key", action="store_true", help="print file and line of each, too")
    options = parser.parse_args()
    prose, named = collect_prose_and_names()
    draw = random.Random(options.seed)
    for title, pieces, count in (
        ("Comments and sentences", prose, options.prose),
        ("Names of functions", named, options.names),
    ):
        print(f"{title} ({count} of {len(pieces):,})\n")
        for number, piece in enumerate(draw.sample(pieces, count), 1):
            where = f"  [{piece.file}:{piece.line}]" if options.key else ""
            print(f"{number}. {piece.text}{where}")
        print()


if __name__ == "__main__":
    main()
