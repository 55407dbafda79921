# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Makes HTML pages that are complete in one file: style sheet, tables and data."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["make_document", "make_download_link", "make_table"]

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
  vertical-align: top; white-space: nowrap; }
td:last-child { white-space: normal; min-width: 9rem; }
th:first-child, td:first-child, .words { text-align: left; }
.scroll { overflow-x: auto; }
.status { background: var(--soft); border-left: .4rem solid var(--warn); padding: .5rem 1rem; }
.good { border-left-color: var(--c2); }
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


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int]) -> str:
    """Return a table whose cells are HTML; ``words``: numbers of the columns that hold text."""

    def format_cell(tag: str, i: int, text: str) -> str:
        kind = ' class="words"' if i in words else ""
        return f"<{tag}{kind}>{text}</{tag}>"

    lines = ["".join(format_cell("td", i, text) for i, text in enumerate(row)) for row in rows]
    titles = "".join(
        format_cell("th", i, escape(text)).replace("<th", '<th scope="col"')
        for i, text in enumerate(head)
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def make_download_link(name: str, data: Any) -> str:
    """Return a link by which a browser saves ``data`` as the JSON file ``name``."""
    octets = base64.b64encode(json.dumps(data).encode()).decode()
    link = f"data:application/json;base64,{octets}"
    return f'<a download="{name}" href="{link}">all data (JSON)</a>'


def make_document(title: str, body: Iterable[str]) -> str:
    """Return an HTML page with a title, whose body consists of the given HTML parts."""
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        "</head><body><main>",
        *body,
        "</main></body></html>\n",
    ]
    return "\n".join(parts)
