# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The page of the study: the paper's statements beside the figures of siwarp, as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from lab.papers.adts.paper import FIGURES, TITLE, PaperFigure
from siwarp.bench.charts import Curve, draw_curves
from siwarp.bench.document import make_document, make_download_link, make_table

__all__ = ["make_page"]

_RATES = {"mbit_s": "Mbit/s", "files_s": "files/s"}


def _make_text_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False
) -> str:
    """Return a table of texts; ``words``: no column has numbers."""
    columns = range(len(head)) if words else ()
    return make_table(head, [[escape(cell) for cell in row] for row in rows], columns)


def _summary_cells(values: Mapping[str, Any]) -> list[str]:
    low, high = values["quartiles"]
    return [f"{values['median']:.4g}", f"{low:.4g} to {high:.4g}", str(values["rounds"])]


def _format_number(value: float) -> str:
    return f"{value:.3g}"


def _make_part_section(section: str, name: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the chart and the tables of a part, which may belong to several sections."""
    if name not in found:
        yield f'<p class="warn">The part {escape(name)} was not measured.</p>'
        return
    part = found[name]
    yield f"<h3>{escape(name)}: {escape(part['line'])}</h3>"
    if part["failed"]:
        yield f'<p class="warn">failed: {escape(part["failed"])}</p>'
    yield from (f'<p class="warn">unreliable: {escape(doubt)}</p>' for doubt in part["unreliable"])
    curves = part.get("curves", {})
    if curves:
        drawn = [
            Curve(curve, [(x, values["median"]) for x, values in points], curve.startswith("tcp"))
            for curve, points in curves.items()
        ]
        labels = part["axis"], part["unit"]
        chart = draw_curves(
            f"{section}-{name}", name, labels, drawn, (_format_number, _format_number)
        )
        yield f"<figure>{chart}</figure>"
        rows = [
            [curve, f"{x:g}", *_summary_cells(values)]
            for curve, points in curves.items()
            for x, values in points
        ]
        yield _make_text_table(("curve", part["axis"], part["unit"], "quartiles", "rounds"), rows)
    for key, unit in _RATES.items():
        rows = [[what, *_summary_cells(values)] for what, values in part.get(key, {}).items()]
        if rows:
            yield _make_text_table(("what", unit, "quartiles", "rounds"), rows)
    rows = [
        [
            ratio["name"],
            *_summary_cells(ratio),
            "" if ratio["must"] is None else f"{ratio['must']:.3g}",
            {None: "", True: "met", False: "missed"}[ratio["met"]],
        ]
        for ratio in part["ratios"]
    ]
    if rows:
        yield _make_text_table(("ratio", "median", "quartiles", "rounds", "must", ""), rows)


def _make_figure_section(figure: PaperFigure, found: Mapping[str, Any]) -> Iterator[str]:
    section = f"figure-{figure.number}"
    yield f'<section id="{escape(section)}">'
    yield f"<h2>{escape(figure.name)}: {escape(figure.title)}</h2>"
    yield _make_text_table(
        ("", ""),
        [
            ["the paper", figure.stated],
            ["siwarp", f"{figure.verdict}: {figure.why}"],
        ],
        words=True,
    )
    for name in figure.parts:
        yield from _make_part_section(section, name, found)
    yield "</section>"


def make_page(found: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the HTML page of the results of a study, the content of ``--results``.

    ``names``: the names of all parts.
    """
    used = {name for figure in FIGURES for name in figure.parts}
    machine = [[name, str(value)] for name, value in found.get("machine", {}).items()]
    body = [
        "<h1>File transfer over siwarp beside the paper</h1>",
        f"<p>The paper: {escape(TITLE)}. The figures of siwarp are medians of the rounds of "
        "<code>make lab-adts</code>; ratios are those of the rounds.</p>",
        f"<p>{make_download_link('adts.json', found)}</p>",
        _make_text_table(("property", "value"), machine, words=True),
    ]
    for figure in FIGURES:
        body += _make_figure_section(figure, found)
    body.append('<section id="promised"><h2>Promised figures</h2>')
    for name in names:
        if name not in used:
            body += _make_part_section("promised", name, found)
    body.append("</section>")
    return make_document("ADTS beside the paper", body)
