# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp demo``: two processes on this machine exchange real data through siwarp."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from siwarp.base import show
from siwarp.cli import demo_datagrams
from siwarp.cli.demo_peer import mapped_file
from siwarp.cli.peer import Peer

_MIB = 1 << 20
#: Octets of one RDMA operation on the file, and the number of outstanding operations.
_CHUNK = _MIB
_DEPTH = 16


class _Failed(Exception):
    """A check of the demo failed; the message names the check."""


def _report_demo_check(good: bool, text: str) -> None:
    show.print_finding(text, good)
    if not good:
        raise _Failed(text)


def _format_size(octets: int) -> str:
    return f"{octets // _MIB} MiB" if octets >= _MIB else f"{octets} octets"


def _write_random_file(path: Path, size: int) -> str:
    """Fill a file with random octets and return its SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file, show.show_progress_bar("random octets", size) as step:
        for at in range(0, size, 4 * _MIB):
            piece = os.urandom(min(4 * _MIB, size - at))
            digest.update(piece)
            file.write(piece)
            step(len(piece))
    return digest.hexdigest()


def _allocate_file(path: Path, size: int) -> None:
    """Create a file with its blocks allocated: a full disk must fail here, not by SIGBUS later."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _time_region_transfer(conn: Any, mr: Any, there: Any, opcode: Any, text: str) -> float:
    """Transfer all of ``mr`` by RDMA, several pieces at a time; return the duration in seconds."""
    from siwarp.verbs import SendWR

    pieces = range(0, mr.length, _CHUNK)
    requests = [
        SendWR(
            i,
            opcode,
            sg=[mr.sge(at, min(_CHUNK, mr.length - at))],
            remote=there.part(at, min(_CHUNK, mr.length - at)),
        )
        for i, at in enumerate(pieces)
    ]
    began = time.perf_counter()
    # After an interrupt, outstanding requests still use the memory: close the queue pair first.
    with contextlib.ExitStack() as cut_short, show.show_progress_bar(text, mr.length) as step:
        cut_short.callback(conn.close)
        posted = done = 0
        while done < len(requests):
            room = _DEPTH - (posted - done)
            if room and posted < len(requests):
                conn.qp.post_send(requests[posted : posted + room])
                posted = min(posted + room, len(requests))
            wcs = conn.scq.poll(_DEPTH) or conn.scq.wait(30, _DEPTH)
            if not wcs:
                raise _Failed("no request completed for 30 s: run siwarp doctor")
            for wc in wcs:
                wc.check()
            done += len(wcs)
            step(len(wcs) * _CHUNK)
        cut_short.pop_all()
    return time.perf_counter() - began


def _rdma_write_and_read_file(peer: Peer, folder: Path, size: int) -> None:
    import siwarp
    from siwarp.verbs import MR, AccessFlag, WROpcode

    show.print_heading(f"A file of {_format_size(size)} over RC (iWARP on TCP)")
    source, back = folder / "source", folder / "back"
    digest = _write_random_file(source, size)
    _allocate_file(back, size)
    port = peer.receive_value()["port"]
    with siwarp.connect(("127.0.0.1", port)) as conn:
        there = siwarp.RemoteBuffer.unpack(conn.recv(30))
        show.print_finding(
            f"connected to process {peer.pid}, TCP port {port}; it sent address and STag"
        )
        with mapped_file(source, write=False) as m:
            with MR(conn.pd, m, AccessFlag(0)) as mr:
                took = _time_region_transfer(conn, mr, there, WROpcode.RDMA_WRITE, "RDMA Write")
            # When a Read posted after the Writes has completed, their octets are in the peer's
            # memory.
            conn.read(there.part(size - 1, 1))
        peer.send_value("digest")
        _report_demo_check(
            peer.receive_value()["sha256"] == digest,
            f"RDMA Write: {size / took / 1e9:.2f} GB/s; "
            f"the peer computes the same SHA-256, {digest[:16]}...",
        )
        with mapped_file(back, write=True) as m:
            with MR(conn.pd, m) as mr:
                took = _time_region_transfer(conn, mr, there, WROpcode.RDMA_READ, "RDMA Read")
            same = hashlib.sha256(m).hexdigest() == digest
        _report_demo_check(
            same, f"RDMA Read:  {size / took / 1e9:.2f} GB/s; the data read back has it too"
        )
        peer.send_value("done")


def _try_invalid_keys(peer: Peer) -> None:
    import siwarp
    from siwarp.verbs import ProtocolError, terminate_reason

    show.print_heading("A key that the peer never issued")
    port = peer.receive_value()["port"]

    def attempt_write_with_wrong_key(conn: Any, there: Any) -> None:
        conn.write(there, b"this must not arrive")
        # TCP has accepted the Write when it completes; the peer's error arrives later.
        conn.recv(30)

    def attempt_read_with_wrong_key(conn: Any, there: Any) -> None:
        conn.read(there, 64, timeout=30)

    attempts: list[tuple[str, Callable[[Any, Any], None], tuple[int, int, int]]] = [
        ("RDMA Write", attempt_write_with_wrong_key, (1, 1, 0)),
        ("RDMA Read", attempt_read_with_wrong_key, (0, 1, 0)),
    ]
    for name, attempt, wanted in attempts:
        with siwarp.connect(("127.0.0.1", port)) as conn:
            good = siwarp.RemoteBuffer.unpack(conn.recv(30))
            bad = good._replace(rkey=good.rkey ^ 0x00A5A500)
            try:
                attempt(conn, bad)
            except ProtocolError as e:
                refused = (e.layer, e.type, e.code) == wanted
                untouched = peer.receive_value()["untouched"]
                _report_demo_check(
                    refused and untouched,
                    f"{name} to STag {bad.rkey:#010x}: Terminate, {terminate_reason(*wanted)}",
                )
                show.print_note(
                    f"layer {e.layer}, type {e.type}, code {e.code:#04x}, as clause {e.clause} "
                    "lists it; the peer's memory is untouched"
                )
            else:
                raise _Failed(
                    f"{name} with an invalid STag was not refused: report this with "
                    "`siwarp doctor --json`"
                )


#: Time limit of the comparison in seconds. On an idle machine the comparison takes about 10 s.
_COMPARE_S = 40.0
_ROUNDS = 3
#: Rows of the table at the end of the demo: a title, and arguments of siwarp.bench.run, whose
#: results contain the unit.
_COMPARED: list[tuple[str, dict[str, Any]]] = [
    ("UD Send 64 B, one way", {"kind": "lat", "qp": "ud", "op": "send", "size": 64}),
    ("RC Send 64 B, one way", {"kind": "lat", "qp": "rc", "op": "send", "size": 64}),
    ("UD Send 60 KB, bandwidth", {"kind": "bw", "qp": "ud", "op": "send", "size": 60000}),
    ("RC RDMA Write 1 MiB, bandwidth", {"kind": "bw", "qp": "rc", "op": "write", "size": _MIB}),
    ("RC RDMA Read 1 MiB, bandwidth", {"kind": "bw", "qp": "rc", "op": "read", "size": _MIB}),
]


def demo(
    size: int = typer.Option(
        256, "--size", min=1, help="Size in MiB of the file that is sent and read back."
    ),
    bench: bool = typer.Option(True, help="Measure latency and bandwidth at the end."),
    faults: str | None = typer.Option(
        None, "--faults", metavar="PLAN", help="Fault plan for packets; see siwarp wan --help."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print the findings, and each measurement, as JSON."
    ),
) -> None:
    """Demonstrate siwarp in under a minute: two processes, real data, no hardware, no root.

    The comparison with raw sockets ends within 40 s. On a busy machine it runs fewer rounds and
    prints a remark.
    """
    began = time.monotonic()
    if faults is not None:
        from siwarp.bench.plan_option import set_process_fault_plan

        set_process_fault_plan(faults)
    measured: list[dict[str, Any]] = []
    partial: list[str] = []
    failed = None
    with contextlib.ExitStack() as silence:
        found = silence.enter_context(show.collect_findings()) if as_json else []
        try:
            _demonstrate_transfers(size * _MIB, lossy=faults is not None)
            if bench:
                partial = _compare_with_raw_sockets(measured)
        except (_Failed, demo_datagrams.DatagramLost) as e:
            failed = str(e)
    seconds = time.monotonic() - began
    if as_json:
        show.print_json(
            {
                "sections": found,
                "bench": measured,
                "partial": "; ".join(partial),
                "seconds": seconds,
                "failed": failed,
            }
        )
    if failed is not None:
        typer.echo(f"siwarp demo: {failed}", err=True)
        raise typer.Exit(1)
    if not as_json:
        show.print_line()
        show.print_line(f"Completed in {seconds:.0f} s.", "bold")
        show.print_line(
            "Next: siwarp ping; siwarp bench lat --qp rc; examples/python/rc_write_read.py"
        )


def _demonstrate_transfers(octets: int, lossy: bool) -> None:
    """Show transfers between this process and a peer, and accesses that are refused."""
    with tempfile.TemporaryDirectory(prefix="siwarp-demo-") as name:
        folder = Path(name)
        free = shutil.disk_usage(folder).free
        if free < 3 * octets + 64 * _MIB:
            raise OSError(
                f"{folder.parent} has {free // _MIB} MiB left, but the demo's files need "
                f"{3 * octets // _MIB} MiB: set TMPDIR to a larger folder, or give "
                f"--size {free // _MIB // 4}"
            )
        show.print_line("siwarp demo: a software RNIC in each of two processes, on loopback")
        there = folder / "there"
        _allocate_file(there, octets)
        with Peer("siwarp.cli.demo_peer", str(there)) as peer:
            show.print_line(f"this is process {os.getpid()}, the peer is {peer.pid}")
            _rdma_write_and_read_file(peer, folder, octets)
            demo_datagrams.demonstrate_ud(peer, lossy=lossy)
            demo_datagrams.demonstrate_rd(peer)
            _try_invalid_keys(peer)


def _compare_with_raw_sockets(measured: list[dict[str, Any]]) -> list[str]:
    """Print siwarp's figures beside those of raw sockets; append each result to ``measured``.

    Ends within _COMPARE_S. A busy machine completes fewer rounds, and a measurement without a
    complete round is left out of the table; returns and prints a remark about each of both.
    """
    from siwarp.bench import BenchError, run
    from siwarp.bench.runner import SlowError
    from siwarp.bench.trust import LEAST_FLOOR_ROUNDS

    show.print_heading("Compared with raw sockets, alternately in the same run (medians; CRC on)")
    rows = []
    partial: list[str] = []
    until = time.monotonic() + _COMPARE_S
    with show.show_progress_bar("measuring", len(_COMPARED)) as step:
        for at, (words, arguments) in enumerate(_COMPARED):
            # A measurement that ends early leaves the rest of its time to the following
            # measurements.
            share = max(0.0, until - time.monotonic()) / (len(_COMPARED) - at)
            try:
                result = run(**arguments, rounds=_ROUNDS, others=False, within=share)
            except SlowError as e:
                partial.append(f"{words} was not measured, because this machine is busy: {e}")
                step(1)
                continue
            except BenchError as e:
                raise _Failed(f"{words} could not be measured: {e}") from None
            measured.append(result)
            unit = result["unit"]
            ours, floor = (f"{result[key]:.2f} {unit}" for key in ("ours", "floor"))
            least, largest = result["spans"]["ratio"]
            rows.append(
                (words, ours, floor, f"{result['ratio']:.2f}", f"{least:.2f}-{largest:.2f}")
            )
            if result["partial"]:
                partial.append(f"{words}: {result['partial']}")
            step(1)
    columns = ("what", "siwarp", "raw socket", "ratio", "of the rounds")
    show.print_table(columns, rows, right=(1, 2, 3, 4))
    show.print_note(
        "ratio: siwarp to raw socket; for one-way time less is better, for bandwidth more"
    )
    show.print_note(
        f"a first impression of {_ROUNDS} rounds; siwarp bench lat and siwarp bench bw measure "
        f"{LEAST_FLOOR_ROUNDS}"
    )
    for why in partial:
        show.print_note(f"partial: {why}")
    if len(os.sched_getaffinity(0)) == 1:
        show.print_note("only one core for both processes: they alternate and yield it at once")
    return partial
