# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Makes the page of ``siwarp bench all``, an HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from siwarp.bench.charts import Curve, Point, draw_curves, draw_points
from siwarp.bench.compare import CONFIDENCE
from siwarp.bench.document import make_document, make_download_link, make_table
from siwarp.bench.table import format_value_with_unit

__all__ = ["make_page", "reasons_to_doubt_report"]

#: The sections: key, title, and what they show.
_SECTIONS = (
    (
        "latency",
        "Latency",
        "Half a round trip with one message in flight; a Read: the whole round trip. Both ends "
        "poll. Less is better.",
    ),
    (
        "bandwidth",
        "Bandwidth",
        "A stream of messages that are posted one by one; the floor sends each message with a "
        "system call of its own. Outstanding: 128 Sends, 16 from 16 KiB on, 16 Writes or Reads. "
        "RD's messages of 1 MiB are compared with raw UDP at 60,000 octets. More is better.",
    ),
    (
        "rate",
        "Message rates, 64 octets",
        "Messages are posted one by one or in lists of 32. Floor: lists of 32 with sendmmsg and "
        "recvmmsg (UDP), a send for each message (TCP). The kernel's best: GSO and GRO (UDP), "
        "64 KiB for each send (TCP), which transfers octets without bounds of messages. "
        "More is better.",
    ),
    (
        "threads",
        "Threads",
        "Each thread moves 64-octet messages in lists of 32 over queue pairs of its own, on one "
        "device or on a device for each thread. More is better.",
    ),
    (
        "cpu",
        "CPU time per message",
        "CPU time of both processes, kernel included, for each message, while a process that "
        "waits sleeps at once. Less is better.",
    ),
    (
        "stacks",
        "Other stacks over TCP",
        "Programs of other packages on loopback, without siwarp, in the same rounds: latency of "
        "64 octets and bandwidth with messages of 1 MiB.",
    ),
)
_AXES = {"us": "us", "GB/s": "GB/s", "msg/s": "messages per second", "ns": "ns of CPU time"}


def reasons_to_doubt_report(report: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a report is partial or unreliable; empty if there are none."""
    partial = [f"partial: {report['partial']}"] if report["partial"] else []
    return partial + [f"unreliable: {doubt}" for doubt in report["unreliable"]]


def _format_octets(octets: float) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if octets >= unit and octets % unit == 0:
            return f"{octets // unit:.0f} {name}"
    return f"{octets:,.0f} B"


def _format_size_or_thread_count(figure: Mapping[str, Any]) -> str:
    return str(figure["x"]) if figure["section"] == "threads" else _format_octets(figure["x"])


def _format_axis_value(value: float) -> str:
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


# ---- tables


def _format_ratio(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return ""
    if ratio["low"] is None:
        return f"{ratio['ratio']:.3g} (no interval)"
    # With few rounds no interval reaches the confidence in the column's title.
    less = "" if ratio["confidence"] >= CONFIDENCE else f", {ratio['confidence']:.0%} only"
    return f"{ratio['ratio']:.3g} ({ratio['low']:.3g} to {ratio['high']:.3g}{less})"


def _format_rounds(figure: Mapping[str, Any]) -> str:
    return str(sum(value is not None for value in figure["values"]))


def _format_remark(figure: Mapping[str, Any]) -> str:
    remarks = [f"failed: {why}" for why in figure["failures"][-1:]]
    if figure["unreliable"]:
        remarks.append(f"unreliable: {figure['unreliable']}")
    if not remarks:
        return ""
    return f'<span class="warn">{escape("; ".join(remarks))}</span>'


def _make_table(section: str, figures: Sequence[Mapping[str, Any]]) -> str:
    head = ["threads" if section == "threads" else "octets", "what", "median", "all rounds"]
    head += [
        f"to the floor ({CONFIDENCE:.0%})",
        f"to the kernel's best ({CONFIDENCE:.0%})",
        "rounds",
        "remark",
    ]
    counted = any(figure["cycles"] is not None for figure in figures)
    if section == "cpu":
        head[4:4] = ["ns per octet", "cycles", "cycles per octet"] if counted else ["ns per octet"]
    rows = []
    for figure in figures:
        row = [
            _format_size_or_thread_count(figure),
            escape(figure["series"]),
            "",
            "",
            "",
            "",
            "",
            "",
        ]
        if figure["median"] is not None:
            low, high = figure["span"]
            row[2] = format_value_with_unit(figure["median"], figure["unit"])
            row[3] = " to ".join(
                format_value_with_unit(v, figure["unit"]).partition(" ")[0] for v in (low, high)
            )
        row[4], row[5] = _format_ratio(figure["ratio"]), _format_ratio(figure["best_ratio"])
        row[6], row[7] = _format_rounds(figure), _format_remark(figure)
        if section == "cpu":
            row[4:4] = _format_costs_per_octet(figure, counted)
        rows.append(row)
    # A column that would be empty is left out.
    kept = [i for i in range(len(head)) if i < 4 or any(row[i] for row in rows)]
    words = [n for n, i in enumerate(kept) if i == 1 or head[i] == "remark"]
    return make_table([head[i] for i in kept], [[row[i] for i in kept] for row in rows], words)


def _format_costs_per_octet(figure: Mapping[str, Any], counted: bool) -> list[str]:
    median, cycles, octets = figure["median"], figure["cycles"], figure["x"]
    costs = ["" if median is None else f"{median / octets:.3g}"]
    if counted:
        costs += ["", ""] if cycles is None else [f"{cycles:,.0f}", f"{cycles / octets:.3g}"]
    return costs


# ---- sections


def _draw_panel_chart(section: str, panel: str, figures: Sequence[Mapping[str, Any]]) -> str:
    """Return the chart of a panel; nothing if no figure of it was measured."""
    known = [figure for figure in figures if figure["median"] is not None]
    if not known:
        return ""
    name, unit = f"{section}-{panel}".lower(), known[0]["unit"]
    title = f"{next(t for key, t, _ in _SECTIONS if key == section)}, {panel}"
    if section in ("rate", "cpu", "stacks"):
        has_sizes = len({figure["x"] for figure in known}) > 1
        points = [
            Point(
                f"{_format_size_or_thread_count(figure)}: {figure['series']}"
                if has_sizes
                else figure["series"],
                figure["median"],
                figure["span"][0],
                figure["span"][1],
                figure["series"].startswith("raw"),
            )
            for figure in known
        ]
        return draw_points(name, title, _AXES[unit], points, _format_axis_value)
    curves: dict[str, list[tuple[float, float]]] = {}
    for figure in known:
        curves.setdefault(figure["series"], []).append((figure["x"], figure["median"]))
    is_threads = section == "threads"
    return draw_curves(
        name,
        title,
        ("threads" if is_threads else "octets of a message", _AXES[unit]),
        [Curve(each, sorted(at), each.startswith("raw")) for each, at in curves.items()],
        (str if is_threads else _format_octets, _format_axis_value),
    )


def _make_chart_panels(
    section: str, figures: Sequence[Mapping[str, Any]], every: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    panels = dict.fromkeys(figure["panel"] for figure in figures)
    for panel in panels:
        shown = [figure for figure in figures if figure["panel"] == panel]
        if section == "stacks":
            floor = every[shown[0]["floor"]]
            ours = [f for f in every.values() if f["floor"] == floor["key"]]
            beside = [f for f in ours if f["section"] != "stacks" and f["series"] == "RC Send"]
            shown = [floor, *beside, *shown]
        yield f"<h3>{escape(panel.capitalize() if section == 'stacks' else panel)}</h3>"
        yield f"<figure>{_draw_panel_chart(section, panel, shown)}</figure>"
        yield _make_table(section, shown)


def _make_notes_on_other_stacks(report: Mapping[str, Any]) -> str:
    lines = [
        f"<li>{escape(stack['name'])}: bandwidth: {escape(stack['bandwidth'])}</li>"
        if stack["installed"]
        else f"<li>{escape(stack['name'])}: not installed: "
        f"<code>{escape(stack['install'])}</code></li>"
        for stack in report["stacks"]
    ]
    return f"<ul>{''.join(lines)}</ul>"


def _make_report_sections(report: Mapping[str, Any]) -> Iterator[str]:
    every = {figure["key"]: figure for figure in report["figures"]}
    for section, title, text in _SECTIONS:
        figures = [figure for figure in every.values() if figure["section"] == section]
        yield f'<section id="{section}"><h2>{escape(title)}</h2><p>{escape(text)}</p>'
        if section == "cpu" and all(figure["cycles"] is None for figure in figures):
            yield (
                "<p>This machine does not count cycles for this user: virtual machines often "
                "have no counters, and <code>kernel.perf_event_paranoid</code> above 1 hides the "
                "kernel's.</p>"
            )
        if section == "stacks":
            yield _make_notes_on_other_stacks(report)
        yield from _make_chart_panels(section, figures, every)
        yield "</section>"


def _make_machine_table(report: Mapping[str, Any]) -> str:
    load = report["load"]
    changed = [f"{name}={value}" for name, value in report["settings"].items()]
    facts = {
        **report["machine"],
        "load average before and after": f"{load['before']:.2f}, {load['after']:.2f}",
        "siwarp's settings": ", ".join(changed) or "the defaults",
    }
    rows = [(escape(name), escape(str(text))) for name, text in facts.items()]
    return make_table(("property", "value"), rows, (0, 1))


def make_page(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report (``siwarp.bench.report.measure_figures``)."""
    status = reasons_to_doubt_report(report)
    items = "".join(f"<li>{escape(line)}</li>" for line in status)
    verdict = (
        f'<div class="status" role="note"><strong>Not all figures are reliable.</strong>'
        f"<ul>{items}</ul></div>"
        if status
        else '<div class="status good" role="note">Complete, and every floor was steady.</div>'
    )
    links = " | ".join(f'<a href="#{key}">{escape(title)}</a>' for key, title, _ in _SECTIONS)
    body = [
        "<h1>siwarp beside the kernel's sockets</h1>",
        f"<p><code>siwarp bench all</code>, {escape(report['date'])}, "
        f"{report['seconds'] // 60} min {report['seconds'] % 60} s, "
        f"{report['rounds']} rounds, each of which measures every figure once, on loopback. "
        "Figures are medians. A ratio is that of the rounds, siwarp / raw sockets, with its 95% "
        "confidence interval. A figure is unreliable if the interquartile range of its floor, "
        "or of the kernel's best, exceeds 15% of the median, or if there are fewer than 20 "
        "rounds.</p>",
        verdict,
        f"<nav>{links} | {make_download_link('siwarp-bench-all.json', report)}</nav>",
        f'<section id="machine"><h2>Machine</h2>{_make_machine_table(report)}</section>',
        *_make_report_sections(report),
    ]
    return make_document(f"siwarp bench all, {report['date']}", body)
