# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp dissect``: the messages in a capture."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from siwarp.cli import show

if TYPE_CHECKING:
    from siwarp.inspect.capture import Message


def _details(message: Message) -> str:
    """What a person wants to know beside the columns."""
    parts = []
    if message.segments > 1:
        parts.append(f"{message.segments} segments")
    if "size" in message.fields:
        parts.append(f"asks for {message.fields['size']}")
    if message.answers is not None:
        parts.append(f"answers {message.answers}")
    if message.answered_by is not None:
        parts.append(f"answered by {message.answered_by}")
    if message.error is not None:
        where = f" ({message.clause})" if message.clause else ""
        parts.append(f"{message.error}{where}")
    elif not message.whole:
        parts.append("not whole")
    return "; ".join(parts)


def dissect(
    file: Annotated[Path, typer.Argument(help="A pcapng or pcap file, as of siwarp capture.")],
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print the messages in a capture, requests with their responses, errors with their clause."""
    if importlib.util.find_spec("scapy") is None or importlib.util.find_spec("crc32c") is None:
        typer.echo("siwarp: dissecting needs scapy: pip install 'siwarp[inspect]'", err=True)
        raise typer.Exit(1)
    from siwarp.inspect.capture import dissect as read

    try:
        messages = read(file)
    except ValueError as e:
        typer.echo(f"siwarp: {e}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        show.data([asdict(message) for message in messages])
        return
    if not messages:
        show.line("No iWARP message in it.")
        return
    start = messages[0].time
    show.table(
        ("no", "seconds", "frame", "from", "to", "what", "octets", "more"),
        [
            (
                str(m.number),
                f"{m.time - start:.6f}",
                str(m.frame),
                m.source,
                m.dest,
                f"{m.transport} {m.kind}",
                str(m.length),
                _details(m),
            )
            for m in messages
        ],
        right=(0, 1, 2, 6),
    )
