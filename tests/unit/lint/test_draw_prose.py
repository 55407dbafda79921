"""tools/draw_prose.py: what it takes for prose and for names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import draw_prose

C = """/* SPDX-License-Identifier: X */
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
PYTHON = '''"""A module.

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


def test_comments_and_functions_of_c_are_found_and_strings_are_not() -> None:
    found = list(draw_prose.c_comments(C))
    assert found[1:] == [(2, "Two lines of a comment."), (9, "the sum")]
    assert list(draw_prose.function_names(Path("a.c"), C)) == [(6, "add")]


def test_comments_docstrings_and_functions_of_python_are_found_and_tests_are_not() -> None:
    found = sorted(draw_prose.python_comments_and_docstrings(PYTHON))
    assert found == [(1, "A module."), (5, "A comment of two lines."), (7, "Return the sum.")]
    named = [(7, "add"), (12, "Sum.total"), (13, "digits")]
    assert list(draw_prose.function_names(Path("a.py"), PYTHON)) == named


def test_sentences_of_a_page_are_found_and_tables_and_code_are_not() -> None:
    page = "# Title\n\nOne sentence. Another\none.\n\n```sh\nmake it. Now\n```\n| a | b |\n"
    assert [words for _, words in draw_prose.page_sentences(page)] == [
        "One sentence.",
        "Another one.",
    ]
