# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp dissect``: prints the messages and the streams in a capture."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from siwarp.base import show

if TYPE_CHECKING:
    from siwarp.inspect import Dissection, Message, Stream

#: The argument that means standard input, and the path that is opened for standard input.
DASH, STDIN = Path("-"), Path("/dev/stdin")
#: Number of octets of private data that are printed.
PRIVATE_SHOWN = 16


def _format_microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def _describe_mpa_startup(fields: dict[str, int | str]) -> list[str]:
    """Describe the fields of an MPA start-up frame in words."""
    parts = [f"rev {fields['rev']}", "CRC" if fields["c"] else "no CRC"]
    parts.append("requests markers" if fields["m"] else "no markers")
    if "ird" in fields:
        parts.append(f"IRD {fields['ird']} ORD {fields['ord']}")
        ways = [
            word
            for name, word in (("b", "Send"), ("c_rtr", "Write"), ("d_rtr", "Read"))
            if fields[name]
        ]
        if fields["a"]:
            parts.append(f"RTR by {' or '.join(ways) or 'nothing'}")
    private = bytes.fromhex(str(fields["private_data"]))
    if private:
        more = "..." if len(private) > PRIVATE_SHOWN else ""
        parts.append(f"private data {private[:PRIVATE_SHOWN].hex(' ')}{more}")
    return parts


def _message_details(message: Message) -> str:
    """Return the details of a message that are not in the table's columns."""
    parts = []
    if "rev" in message.fields:
        parts.append(", ".join(_describe_mpa_startup(message.fields)))
    if message.segments > 1:
        parts.append(f"{message.segments} segments")
    if "size" in message.fields:
        parts.append(f"asks for {message.fields['size']}")
    indexes = message.fields.get("source_index"), message.fields.get("dest_index")
    if any(indexes):
        parts.append(f"index {indexes[0]} to {indexes[1]}")
    if message.answers is not None:
        after = (
            f" after {_format_microseconds(message.latency)}" if message.latency is not None else ""
        )
        parts.append(f"answers {message.answers}{after}")
    if message.answered_by is not None:
        parts.append(f"answered by {message.answered_by}")
    if message.error is not None:
        where = f" ({message.clause})" if message.clause else ""
        parts.append(f"{message.error}{where}")
    if message.about is not None:
        parts.append(f"about {message.about}")
    if message.kind in ("RDMA_WRITE", "RDMA_READ_RESPONSE") and "stag" in message.fields:
        parts.append(f"STag {message.fields['stag']:#x} TO {message.fields['to']:#x}")
    if message.retransmits is not None:
        parts.append(f"retransmits {message.retransmits}")
    if message.retransmitted:
        parts.append(f"retransmitted in {message.retransmitted} packets")
    if message.note is not None:
        parts.append(message.note)
    elif not message.whole and message.error is None:
        parts.append("incomplete")
    return show.escape_control_characters("; ".join(parts))


def _print_messages(messages: list[Message]) -> None:
    start = min(message.when_ns for message in messages)
    show.print_table(
        ("no", "stream", "seconds", "frame", "octets", "from", "to", "what", "more"),
        [
            (
                str(m.number),
                str(m.stream),
                f"{(m.when_ns - start) / 1e9:.6f}",
                str(m.frame),
                str(m.length),
                m.source,
                m.dest,
                f"{m.transport} {m.kind}",
                _message_details(m),
            )
            for m in messages
        ],
        right=(0, 1, 2, 3, 4),
        styles=["red" if m.error else "yellow" if not m.whole else "" for m in messages],
    )


def _stream_details(stream: Stream) -> str:
    parts = []
    if stream.transport == "rc":
        if stream.crc is not None:
            parts.append("CRC" if stream.crc else "no CRC")
        marked = [who for who, yes in stream.markers.items() if yes]
        if marked:
            parts.append(f"markers from {' and '.join(marked)}")
        parts.append(stream.ended or "still open")
    if stream.read_latency is not None:
        low, middle, high = (stream.read_latency[k] for k in ("min", "median", "max"))
        parts.append(f"a Read takes {middle * 1e6:.1f} ({low * 1e6:.1f} to {high * 1e6:.1f}) µs")
    if stream.retransmitted:
        parts.append(f"{stream.retransmitted} packets retransmitted")
    if stream.missing:
        parts.append(f"{stream.missing} octets missing in the capture")
    return "; ".join(parts)


def _print_streams(streams: list[Stream]) -> None:
    show.print_table(
        ("stream", "from", "to", "seconds", "messages", "errors", "more"),
        [
            (
                str(s.number),
                s.source,
                s.dest,
                f"{s.seconds:.6f}",
                ", ".join(
                    f"{count} {kind} ({s.octets[kind]} octets)"
                    for kind, count in s.messages.items()
                    if not kind.startswith("MPA_")
                ),
                str(s.errors),
                _stream_details(s),
            )
            for s in streams
        ],
        right=(0, 3, 5),
        styles=["red" if s.errors else "" for s in streams],
    )


def _lua_script_path() -> Path:
    spec = importlib.util.find_spec("siwarp")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "inspect" / "siwarp.lua"


def _print_lua_path(wanted: bool) -> None:
    if wanted:
        print(_lua_script_path())
        raise typer.Exit


def _install_lua(wanted: bool) -> None:
    """Copy the Lua script to the personal plugin folder of Wireshark and tshark; print its path."""
    if wanted:
        place = Path.home() / ".local/lib/wireshark/plugins" / _lua_script_path().name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_lua_script_path(), place)
        print(place)
        raise typer.Exit


def _print_selected_messages_or_streams(
    found: Dissection, stream: list[int] | None, errors: bool, summary: bool, as_json: bool
) -> list[dict[str, object]]:
    """Print the selected messages of a capture, or with ``summary`` the selected streams.

    ``stream`` limits the output to these streams, ``errors`` to messages or streams with errors.
    With ``as_json`` nothing is printed; the records to print are returned.
    """
    messages = [m for m in found.messages if m.error or not errors]
    streams = [s for s in found.streams if s.errors or not errors]
    if stream:
        messages = [m for m in messages if m.stream in stream]
        streams = [s for s in streams if s.number in stream]
    shown: list[Message] | list[Stream] = streams if summary else messages
    if as_json:
        return [asdict(one) for one in shown]
    if not shown:
        show.print_line(
            "The capture has no such message."
            if found.messages
            else "The capture has no iWARP message."
        )
    elif summary:
        _print_streams(streams)
    else:
        _print_messages(messages)
    return []


def _require_crc32c_package() -> None:
    if importlib.util.find_spec("crc32c") is None:
        python = shlex.quote(sys.executable)
        typer.echo(
            f"siwarp: dissecting needs crc32c: run {python} -m pip install crc32c",
            err=True,
        )
        raise typer.Exit(1)


def dissect(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="pcapng or pcap files, for example from siwarp capture; -: standard input.",
        ),
    ],
    stream: Annotated[
        list[int] | None,
        typer.Option(
            "--stream", metavar="N", help="Only messages of this stream; may be repeated."
        ),
    ] = None,
    errors: bool = typer.Option(False, "--errors", help="Only messages with errors."),
    summary: bool = typer.Option(
        False, "--summary", help="Print the streams instead of the messages."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    fail_on_errors: bool = typer.Option(
        False, "--fail-on-errors", help="Exit with 1 if any message has an error."
    ),
    max_messages: int = typer.Option(
        100_000,
        min=0,
        help="Maximum number of messages; for frames five times as many. 0: no limit.",
    ),
    max_unpacked: int = typer.Option(
        256, min=0, metavar="MIB", help="Maximum MiB after decompression. 0: no limit."
    ),
    max_seconds: float = typer.Option(120, min=0, help="Maximum seconds for reading. 0: no limit."),
    lua_path: bool = typer.Option(
        False,
        "--lua-path",
        callback=_print_lua_path,
        is_eager=True,
        help="Only print the path of the script for Wireshark: tshark -X lua_script:PATH.",
    ),
    install_lua: bool = typer.Option(
        False,
        "--install-lua",
        callback=_install_lua,
        is_eager=True,
        help="Only copy that script to the personal plugin folder of Wireshark and tshark.",
    ),
) -> None:
    """Print the messages in a capture: requests with their responses, errors with their clause."""
    _require_crc32c_package()
    from siwarp.inspect import Limits, examine

    limits = Limits(max_messages, max_unpacked << 20, max_seconds)
    records: list[dict[str, object]] = []
    failed = examined = False
    for number, file in enumerate(files):
        name = show.escape_control_characters(str(file))
        if len(files) > 1 and not as_json:
            show.print_line(("\n" if number else "") + f"{name}:")
        try:
            found = examine(STDIN if file == DASH else file, limits)
        except (OSError, ValueError) as e:
            why = f"{name}: {e.strerror}" if isinstance(e, OSError) else str(e)
            typer.echo(f"siwarp: {show.escape_control_characters(why)}", err=True)
            failed = True
            continue
        examined = True
        own = _print_selected_messages_or_streams(found, stream, errors, summary, as_json)
        records += own if len(files) == 1 else [{"file": str(file), **one} for one in own]
        if found.damage is not None:
            typer.echo(f"siwarp: {name} is damaged: {found.damage}", err=True)
            failed = True
        failed |= fail_on_errors and any(m.error for m in found.messages)
    if as_json and examined:
        show.print_json(records)
    if failed:
        raise typer.Exit(1)
