"""The script tools/draw_prose.py: which texts it recognizes as prose and as names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import draw_prose

C_TEXT = """/* SPDX-License-Identifier: X */
/*
 * Two lines
 * of a comment.
 */
static int add(int a, int b)
{
\tconst char *s = "/* no comment */";
\treturn a + b; /* the sum */
}
"""
PYTHON_TEXT = '''"""A module.

More about it.
"""
# A comment
# of two lines.
def add(a, b):
    """Return the sum."""
def test_add(): ...
class Sum:
    def __init__(self): ...
    def total(self):
        def digits(): ...
'''


def test_draw_prose_finds_comments_and_functions_of_c_but_no_strings() -> None:
    found = list(draw_prose.c_comments(C_TEXT))
    assert found[1:] == [(2, "Two lines of a comment."), (9, "the sum")]
    assert list(draw_prose.function_names(Path("a.c"), C_TEXT)) == [(6, "add")]


def test_draw_prose_finds_comments_docstrings_and_functions_of_python_but_no_tests() -> None:
    found = sorted(draw_prose.python_comments_and_docstrings(PYTHON_TEXT))
    assert found == [(1, "A module."), (5, "A comment of two lines."), (7, "Return the sum.")]
    named = [(7, "add"), (12, "Sum.total"), (13, "digits")]
    assert list(draw_prose.function_names(Path("a.py"), PYTHON_TEXT)) == named


def test_draw_prose_finds_sentences_of_a_page_but_no_tables_code_or_directives() -> None:
    page = "# Title\n\nOne sentence. Another\none.\n\n```sh\nmake it. Now\n```\n"
    page += "| a | b |\n\n:::{toctree}\n:hidden:\n\nindex\n:::\n"
    assert [words for _, words in draw_prose.doc_page_sentences(page)] == [
        "One sentence.",
        "Another one.",
    ]
