"""Tests that check all rows of a table, in place of a test for each row.

pytest needs about 3 ms for a test, and the suite has tables of hundreds of rows, each of which is
checked in less. `run_test_for_each_row` is for rows that use no fixture with state.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def run_test_for_each_row(
    names: str | tuple[str, ...],
    rows: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[str] = repr,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test like `pytest.mark.parametrize`, so that one test checks all rows.

    The test checks every row, also after a row has failed, and its message has all failed rows.

    Args:
        names: the arguments of the test that a row has values for; of one name, a row is the value.
        rows: the rows.
        ids: the names of the rows in the message, or a function that returns the name of a row.

    """
    columns = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    table = list(rows)
    titles = [str(ids(row)) for row in table] if callable(ids) else list(ids)
    assert table and len(titles) == len(table)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def check_all_rows(**fixtures: Any) -> None:
            failed = []
            for title, row in zip(titles, table, strict=True):
                values = (row,) if len(columns) == 1 else row
                try:
                    test(**fixtures, **dict(zip(columns, values, strict=True)))
                except (Exception, pytest.fail.Exception):
                    failed.append(f"{title}:\n{traceback.format_exc()}")
            if failed:
                pytest.fail(
                    f"{len(failed)} of {len(table)} rows failed\n\n" + "\n".join(failed),
                    pytrace=False,
                )

        del check_all_rows.__wrapped__  # type: ignore[attr-defined]
        own = [p for name, p in signature.parameters.items() if name not in columns]
        check_all_rows.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return check_all_rows

    return decorate
