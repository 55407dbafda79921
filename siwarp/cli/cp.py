# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp cp``: copies files to or from a ``siwarp serve``, which it may start through ssh."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siwarp.base import show
from siwarp.cli.adts_key import VARIABLE, find_adts_key, parse_channel_list

if TYPE_CHECKING:
    from siwarp.cli.far_end import FarEnd
    from siwarp.ulp.adts import ADTSError, Key, Progress, Result, Session

__all__ = ["cp"]

DigestName = Enum("DigestName", {"crc32c": "crc32c", "sha256": "sha256"}, type=str)

#: Exit statuses, those of rsync where the meaning is the same.
REFUSED, CONNECTION, FILE, PROTOCOL, INTERRUPTED, PARTIAL, TIMEOUT = 5, 10, 11, 12, 20, 23, 30


def _exit_status_of_copy_error(error: ADTSError) -> int:
    from siwarp.ulp.adts import ErrorCode

    special = {
        ErrorCode.REFUSED: REFUSED,
        ErrorCode.BUSY: REFUSED,
        ErrorCode.PROTOCOL: PROTOCOL,
        ErrorCode.VERSION: PROTOCOL,
        ErrorCode.TIMEOUT: TIMEOUT,
        ErrorCode.SHUTDOWN: CONNECTION,
        ErrorCode.CHANNEL: CONNECTION,
    }
    return special.get(error.code, FILE)


async def _copy_until_signal(
    sources: list[str], target: str, options: dict[str, Any], quiet: bool
) -> Result:
    from siwarp.ulp.adts import copy_async

    copying = asyncio.ensure_future(
        _copy_with_progress(copy_async, sources, target, options, quiet)
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, copying.cancel)
    return await copying


async def _copy_with_progress(
    copy: Any, sources: list[str], target: str, options: dict[str, Any], quiet: bool
) -> Result:
    if quiet or not show.is_terminal_output():
        result: Result = await copy(sources, target, **options)
        return result
    shown = 0
    with show.show_progress_bar("copying", 1000) as step:

        def show_progress(progress: Progress) -> None:
            nonlocal shown
            parts = min(1000, progress.octets * 1000 // max(1, progress.total or 1))
            step(parts - shown)
            shown = parts

        shown_result: Result = await copy(sources, target, progress=show_progress, **options)
    return shown_result


def _start_far_end(
    paths: list[str], rsh: str, program: str, channels: list[str]
) -> tuple[FarEnd, list[int]] | None:
    """Start the far end if one side is HOST:PATH; return it, and the indexes of its paths.

    Raises:
        ValueError: both sides are at other machines, or the sources are at several ones.
        FarEndError: as for ``start_far_end_over_ssh``.

    """
    from siwarp.cli.far_end import parse_host_path, start_far_end_over_ssh

    parsed = [parse_host_path(path) for path in paths]
    there = [at for at, found in enumerate(parsed) if found is not None]
    if not there:
        return None
    target = len(paths) - 1
    if there not in ([target], list(range(target))):
        raise ValueError("one side must be on this machine, and all paths of the other at one host")
    found = [one for one in parsed if one is not None]
    if len({one.host for one in found}) > 1:
        raise ValueError("all sources must be at the same host")
    far = start_far_end_over_ssh(
        found[0].host,
        [one.path for one in found],
        write=there == [target],
        rsh=rsh,
        program=program,
        channels=channels,
    )
    return far, there


def _print_channel_refusal_reasons(session: Session) -> None:
    for text in session.refused:
        print(f"siwarp cp: {text}; using {session.channel.upper()}", file=sys.stderr)


def _require_adts_key(file: str | None) -> Key:
    found = find_adts_key(file)
    if found is None:
        raise typer.BadParameter(
            f"give the server's key: --key FILE, or {VARIABLE} as `siwarp serve` prints it",
            param_hint="--key",
        )
    return found


def _print_result(result: Result) -> None:
    rate = result.octets * 8e-6 / result.seconds if result.seconds else 0.0
    parts = [f"{result.files} file{'' if result.files == 1 else 's'}"]
    parts += [f"{result.skipped} up to date"] if result.skipped else []
    parts += [f"{result.deleted} deleted"] if result.deleted else []
    parts += [f"{len(result.failures)} failed"] if result.failures else []
    show.print_line(
        f"{', '.join(parts)}; {result.octets} octets in {result.seconds:.2f} s, "
        f"{rate:.1f} Mbit/s over {result.channel.upper()}"
    )


def cp(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC... DST",
            help="Local paths, and for one side [USER@]HOST:PATH or siw://HOST[:PORT]/PATH.",
        ),
    ],
    recursive: bool = typer.Option(False, "--recursive", "-r", help="Copy directories."),
    update: bool = typer.Option(
        False, "--update", "-u", help="Skip files whose size and time are the same at DST."
    ),
    delete: bool = typer.Option(
        False, "--delete", help="With -r: delete from DST what SRC does not have."
    ),
    links: bool = typer.Option(
        False, "--links", "-l", help="Copy symbolic links as links; default: skip and report them."
    ),
    fsync: bool = typer.Option(
        False, "--fsync", help="Write each file to stable storage before it counts as copied."
    ),
    key: str | None = typer.Option(
        None, "--key", metavar="FILE", help="The file with the server's key; or ADTS_KEY."
    ),
    rsh: str = typer.Option(
        "ssh",
        "--rsh",
        "-e",
        metavar="COMMAND",
        help="For HOST:PATH: the command to use as ssh, with its options.",
    ),
    siwarp_path: str = typer.Option(
        "siwarp",
        "--siwarp-path",
        metavar="PROGRAM",
        help="For HOST:PATH: the siwarp command at HOST.",
    ),
    digest: Annotated[
        DigestName, typer.Option("--digest", help="The digest that is compared for each file.")
    ] = DigestName.crc32c,
    channel: str = typer.Option(
        "rd,rc,tcp",
        "--channel",
        metavar="LIST",
        help="The channels to try, in this order, out of rd, rc, ud and tcp.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Copy files to or from another machine, at full rate also over long and lossy links.

        siwarp cp -r siw://10.0.0.2/results .

        siwarp cp -r user@host:results .

    siw:// names files of a `siwarp serve`, whose key is needed. With HOST:PATH, as with rsync, the
    server is started through ssh for this copy, and its key comes through ssh; siwarp must be
    installed at HOST. The files do not pass through ssh, and are not encrypted.

    A directory keeps its name in an existing DST; SRC/ means what is in the directory. A file has
    its final name only when it is complete; the same command continues an interrupted copy.

    Exit status: 0 all copied; 2 usage; 5 refused by the server; 10 no connection, or it was lost;
    11 a local file or directory; 12 protocol; 20 interrupted; 23 some files failed; 30 no answer
    in time.
    """
    from siwarp.cli.far_end import FarEndError
    from siwarp.ulp.adts import ADTSError, DigestKind, Key

    if len(paths) < 2:
        raise typer.BadParameter("give at least one SRC and DST", param_hint="SRC... DST")
    if delete and not recursive:
        raise typer.BadParameter("--delete needs -r", param_hint="--delete")
    names = parse_channel_list(channel)
    options: dict[str, Any] = {
        "channels": names,
        "recursive": recursive,
        "update": update,
        "delete": delete,
        "symlinks": links,
        "sync": fsync,
        "digest": DigestKind[digest.value.upper()],
    }
    opened: list[Session] = []

    def record_opened_session(session: Session) -> None:
        opened.append(session)
        _print_channel_refusal_reasons(session)

    options["on_session"] = record_opened_session
    try:
        with contextlib.ExitStack() as stack:
            started = _start_far_end(paths, rsh, siwarp_path, names)
            if started is not None:
                far, there = started
                stack.enter_context(far)
                for at, url in zip(there, far.urls([paths[at] for at in there]), strict=True):
                    paths[at] = url
                options["key"] = Key.from_text(far.key)
            else:
                options["key"] = _require_adts_key(key)
            result = asyncio.run(_copy_until_signal(paths[:-1], paths[-1], options, as_json))
    except FarEndError as e:
        print(f"siwarp cp: {e}", file=sys.stderr)
        raise typer.Exit(CONNECTION) from None
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="SRC... DST") from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("siwarp cp: interrupted; run the same command to continue", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except ADTSError as e:
        print(f"siwarp cp: {e.strerror}", file=sys.stderr)
        status = _exit_status_of_copy_error(e)
        if opened and status in {CONNECTION, TIMEOUT}:
            print("siwarp cp: run the same command to continue", file=sys.stderr)
        raise typer.Exit(status) from None
    except OSError as e:
        where = f"{e.filename}: " if e.filename is not None and e.strerror else ""
        print(f"siwarp cp: {where}{e.strerror or e}", file=sys.stderr)
        raise typer.Exit(FILE) from None
    for failure in result.failures:
        print(f"siwarp cp: {show.escape_control_characters(failure.text)}", file=sys.stderr)
    if as_json:
        show.print_json(
            {
                "files": result.files,
                "skipped": result.skipped,
                "deleted": result.deleted,
                "octets": result.octets,
                "seconds": result.seconds,
                "channel": result.channel,
                "failures": [
                    {"path": f.path, "code": f.code.name, "text": f.text} for f in result.failures
                ],
            }
        )
    else:
        _print_result(result)
    if result.failures:
        raise typer.Exit(PARTIAL)
