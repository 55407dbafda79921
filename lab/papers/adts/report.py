# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The tables that ``python -m lab.papers.adts`` prints."""

from __future__ import annotations

from typing import Any

__all__ = ["print_results"]

_UNITS = {"mbit_s": "Mbit/s", "files_s": "files/s"}


def print_results(found: dict[str, Any]) -> None:
    """Print the medians and quartiles of each part, and its ratios with their limits."""
    for name, part in found.items():
        print(f"{name}: {part['line']}")
        for key, unit in _UNITS.items():
            for what, values in part.get(key, {}).items():
                print(f"  {what:42} {_format_values(values)} {unit}")
        for curve, points in part.get("curves", {}).items():
            for x, values in points:
                what = f"{curve}, {x:g} {part['axis']}"
                print(f"  {what:42} {_format_values(values)} {part['unit']}")
        for ratio in part["ratios"]:
            print(f"  {ratio['name']:42} {_format_values(ratio)}{_format_verdict(ratio)}")
        if part["failed"]:
            print(f"  failed: {part['failed']}")
        for doubt in part["unreliable"]:
            print(f"  unreliable: {doubt}")


def _format_values(values: dict[str, Any]) -> str:
    low, high = values["quartiles"]
    rounds = values["rounds"]
    return f"{values['median']:9.4g} ({low:.4g} to {high:.4g}, rounds: {rounds})"


def _format_verdict(ratio: dict[str, Any]) -> str:
    if ratio["must"] is None:
        return ""
    return f"  must: {ratio['must']:.3g}, {'met' if ratio['met'] else 'MISSED'}"
