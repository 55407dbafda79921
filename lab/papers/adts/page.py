# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The page of the study: the paper's statements beside the figures of siwarp, as one HTML file."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from lab.papers.adts.paper import FIGURES, TITLE, PaperFigure
from siwarp.bench.charts import Curve, draw_curves

__all__ = ["make_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --rule: #d0d5db; --soft: #f3f5f7;
  --warn: #8a3b00; --c0: #0b5cad; --c1: #7a4a00; --c2: #187a3c; --c3: #a8175d; --c4: #5b3fb0;
  --c5: #39424e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --paper: #14171b; --rule: #3a4149;
  --soft: #1e2328; --warn: #ffb27a; --c0: #6cb2ff; --c1: #e3b45f; --c2: #6fd08f; --c3: #ff8fc3;
  --c4: #b9a3ff; --c5: #b8c1cc; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 84rem; margin: 0 auto; padding: 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--rule); }
table { border-collapse: collapse; margin: 1rem 0; font-size: .8rem; }
th, td { padding: .2rem .45rem; border-bottom: 1px solid var(--rule); text-align: right;
  vertical-align: top; }
th:first-child, td:first-child, .words td { text-align: left; }
.scroll { overflow-x: auto; }
.warn { color: var(--warn); font-weight: 600; }
figure { margin: 1rem 0; }
svg { width: 100%; max-width: 56rem; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .axis { fill: none; stroke: var(--ink); }
svg .grid { fill: none; stroke: var(--rule); }
svg .line { fill: none; stroke-width: 2; }
svg .thin { stroke-width: 1; opacity: .5; }
svg .dashed { stroke-dasharray: 7 4; }
""" + "\n".join(f".s{i} {{ fill: var(--c{i}); stroke: var(--c{i}); }}" for i in range(6))

_RATES = {"mbit_s": "Mbit/s", "files_s": "files/s"}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> str:
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(values: Mapping[str, Any]) -> list[str]:
    low, high = values["quartiles"]
    return [f"{values['median']:.4g}", f"{low:.4g} to {high:.4g}", str(values["rounds"])]


def _format_number(value: float) -> str:
    return f"{value:.3g}"


def _make_part(section: str, name: str, part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the chart and the tables of a part, which several sections may have."""
    yield f"<h3>{escape(name)}: {escape(part['line'])}</h3>"
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
            [curve, f"{x:g}", *_cells(values)]
            for curve, points in curves.items()
            for x, values in points
        ]
        yield _table(("curve", part["axis"], part["unit"], "quartiles", "rounds"), rows)
    for key, unit in _RATES.items():
        rows = [[what, *_cells(values)] for what, values in part.get(key, {}).items()]
        if rows:
            yield _table(("what", unit, "quartiles", "rounds"), rows)
    rows = [
        [
            ratio["name"],
            *_cells(ratio),
            "" if ratio["must"] is None else f"{ratio['must']:.3g}",
            {None: "", True: "met", False: "missed"}[ratio["met"]],
        ]
        for ratio in part["ratios"]
    ]
    if rows:
        yield _table(("ratio", "median", "quartiles", "rounds", "must", ""), rows)


def _make_figure(figure: PaperFigure, found: Mapping[str, Any]) -> Iterator[str]:
    section = f"figure-{figure.number}"
    yield f'<section id="{escape(section)}">'
    yield f"<h2>{escape(figure.name)}: {escape(figure.title)}</h2>"
    yield _table(
        ("", ""),
        [
            ["the paper", figure.stated],
            ["siwarp", f"{figure.verdict}: {figure.why}"],
        ],
        words=True,
    )
    for name in figure.parts:
        if name in found:
            yield from _make_part(section, name, found[name])
        else:
            yield f'<p class="warn">The part {escape(name)} was not measured.</p>'
    yield "</section>"


def make_page(found: Mapping[str, Any]) -> str:
    """Return the HTML page of the results of a study, the content of ``--results``."""
    used = {name for figure in FIGURES for name in figure.parts} | {"machine"}
    data = base64.b64encode(json.dumps(found).encode()).decode()
    machine = [[name, str(value)] for name, value in found.get("machine", {}).items()]
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>ADTS beside the paper</title><style>{_STYLE}</style>",
        "</head><body><main><h1>File transfer over siwarp beside the paper</h1>",
        f"<p>The paper: {escape(TITLE)}. The figures of siwarp are medians of the rounds of "
        "<code>make lab-adts</code>; ratios are those of the rounds.</p>",
        f'<p><a download="adts.json" href="data:application/json;base64,{data}">'
        "all data (JSON)</a></p>",
        _table(("property", "value"), machine, words=True),
    ]
    for figure in FIGURES:
        parts += _make_figure(figure, found)
    parts.append('<section id="promised"><h2>Promised figures</h2>')
    for name, part in found.items():
        if name not in used:
            parts += _make_part("promised", name, part)
    parts.append("</section></main></body></html>\n")
    return "\n".join(parts)
