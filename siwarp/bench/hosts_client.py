# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A client's session with a ``siwarp bench --server``: runs, one after another."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from siwarp.base.closing import Closing
from siwarp.base.numeric import numeric
from siwarp.bench.hosts_run import Addresses, Ended, Run
from siwarp.bench.hosts_wire import GoneError, Link, Request, greet
from siwarp.bench.plan import Plan, UsageError
from siwarp.bench.runner import LIMIT_S, BenchError, judge, warmup_of

__all__ = ["Load", "Round", "Visit"]


@dataclass(frozen=True)
class Load:
    """Number of queue pairs that run at the same time, in one direction or in both."""

    pairs: int = 1
    both: bool = False


@dataclass
class Round:
    """The result of a run.

    Attributes:
        value: us, GB/s or messages per second, of all queue pairs together.
        slowest: the same for the slowest queue pair.
        n: messages of all queue pairs.
        samples: if requested, the round-trip time of each message in ns, in order.
    """

    value: float
    slowest: float
    n: int
    samples: array[int] = field(default_factory=lambda: array("Q"))


class Visit(Closing):
    """The connection to a server. It ends when a run fails because one side has ended."""

    #: Time limit in seconds for connecting and for the greeting.
    CONNECT_S = 10.0
    #: Seconds to wait for a server that starts at the same time.
    START_S = 3.0

    def __init__(self, host: str, port: int) -> None:
        self.where = f"{host} port {port}"
        connection = self._connected((numeric(host), port))
        try:
            connection.settimeout(None)
            greet(connection, self.where, self.CONNECT_S)
            peer, own = connection.getpeername()[0], connection.getsockname()[0]
        except BaseException:
            connection.close()
            raise
        #: Whether a run failed because one side has ended.
        self.is_over = False
        self._addresses = Addresses(own, peer)
        self._link = Link(connection, f"the server {self.where}")

    def _connected(self, dest: tuple[str, int]) -> socket.socket:
        """Connect; wait for a server that is not listening yet."""
        end = time.monotonic() + self.START_S
        while True:
            try:
                return socket.create_connection(dest, self.CONNECT_S)
            except TimeoutError:
                raise OSError(
                    110,
                    f"connecting to {self.where}: no reply: check the host, and "
                    "that its firewall permits the port",
                ) from None
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise OSError(
                        111, f"{self.where} refuses: start `siwarp bench --server` there"
                    ) from None
            time.sleep(0.1)

    def run(self, plan: Plan, load: Load, *, keep: bool = False) -> Round:
        """Do one run of a plan's ``iters`` messages; ``keep`` returns the samples.

        Raises:
            BenchError: the run failed; LostError: messages were lost.
            UsageError: the server rejects such a run.

        """
        request = Request(
            kind=plan.kind,
            qp=plan.qp,
            op=plan.op,
            size=plan.size,
            iters=plan.iters,
            warmup=warmup_of(plan),
            depth=plan.depth,
            batch=plan.post_list,
            wait=plan.wait,
            pairs=load.pairs,
            both=load.both,
            limit=LIMIT_S,
            qkey=int.from_bytes(os.urandom(4), "big") & 0x7FFFFFFF or 1,
        )
        request.judge()
        with tempfile.TemporaryDirectory(prefix="siwarp-bench-") as folder:
            return self._finish(request, folder if keep else "")

    def _finish(self, request: Request, folder: str) -> Round:
        # Before the processes start: the server's processes must exist when these send to them.
        self._send(request)
        try:
            with Run(self._link, request, self._addresses, client=True, samples=folder) as run:
                run.finish(dict)
                ends, results = run.ends(), run.results()
        except GoneError as e:
            self.is_over = True
            raise BenchError(str(e.strerror)) from None
        except ValueError as e:
            raise UsageError(str(e)) from None
        judge(f"{request.qp} {request.op}, {request.size} octets", ends)
        return _sum(request, results, folder)

    def _send(self, request: Request) -> None:
        try:
            self._link.send(b"R", content=request.pack())
        except GoneError as e:
            self.is_over = True
            raise BenchError(str(e.strerror)) from None

    def close(self) -> None:
        """Close the connection to the server."""
        self._link.close()


def _sum(request: Request, found: list[Ended], folder: str) -> Round:
    values = [each.value for each in found]
    latency = request.kind == "lat"
    samples = array("Q")
    for path in sorted(Path(folder).iterdir()) if folder else ():
        samples.frombytes(path.read_bytes())
    return Round(
        value=max(values) if latency else sum(values),
        slowest=max(values) if latency else min(values),
        n=sum(each.n for each in found),
        samples=samples,
    )
