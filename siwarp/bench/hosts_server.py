# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp bench --server``: the server of measurements between hosts, for one client at a time.

The resources of a client are limited: memory and time of a run (``Request.judge``), the time
between runs, and the time of the complete session. A client that is silent, disconnects or violates
the protocol loses its session, and its processes are ended.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable

from siwarp.base.closing import Closing
from siwarp.base.stop import Stopping
from siwarp.bench.hosts_door import Door
from siwarp.bench.hosts_run import Addresses, Run
from siwarp.bench.hosts_wire import GoneError, Link, Request

__all__ = ["Server"]


class _Stopped(Exception):
    """The server was asked to end."""


class Server(Closing):
    """Serves clients, one after another.

    Args:
        host: a numeric address to listen on.
        port: 0 selects a free one.
        visit: time limit of a client's session in seconds.
        say: called with a line of text at the start and end of each session.

    """

    #: Time limit between two runs of a client in seconds.
    IDLE_S = 10.0

    def __init__(self, host: str, port: int, visit: float, say: Callable[[str], None]) -> None:
        self._door = Door(host, port)
        self._visit_s, self._say = visit, say
        self.address = self._door.address

    def run(self, stop: Stopping) -> None:
        """Serve clients until ``stop`` is set."""
        self._stop = stop
        with contextlib.suppress(_Stopped):
            while True:
                self._wait()
                if (client := self._door.take()) is not None:
                    self._serve_client(client)

    def _watch(self) -> dict[int, Callable[[], None]]:
        if self._stop.is_set():
            raise _Stopped
        return {**self._door.watch(), self._stop.fileno(): lambda: None}

    def _wait(self, link: Link | None = None) -> None:
        """Wait for at most a second, and call the callbacks of readable descriptors."""
        watch = self._watch()
        if link is not None:
            watch[link.socket.fileno()] = link.read
        poll = select.poll()
        for fd in watch:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(1000):
            watch[fd]()

    def _serve_client(self, client: socket.socket) -> None:
        """Do one client's runs. No behaviour of the client ends the server."""
        with client:
            try:
                peer, own = client.getpeername()[0], client.getsockname()[0]
                link = Link(client, f"the client {peer}")
            except OSError:
                return  # the client has disconnected already
            self._door.inside = True
            self._say(f"{peer}: a client")
            try:
                self._runs(link, Addresses(own, peer))
                self._say(f"{peer}: its time limit is reached")
            except GoneError as e:
                self._say(f"{peer}: done ({e.strerror})")
            finally:
                self._door.inside = False

    def _runs(self, link: Link, where: Addresses) -> None:
        over = time.monotonic() + self._visit_s
        idle = time.monotonic() + self.IDLE_S
        while time.monotonic() < min(idle, over):
            self._wait(link)
            link.beat()
            while (frame := link.take()) is not None:
                # Remaining frames of a refused run are skipped.
                if frame.type == b"R":
                    self._run(link, frame.content, where)
                    idle = time.monotonic() + self.IDLE_S
        link.send(b"E", content=b"your time is over: the server takes another client")

    def _run(self, link: Link, asked: bytes, where: Addresses) -> None:
        """Do one run, or report why it is refused."""
        try:
            request = Request.unpack(asked)
            run = Run(link, request, where, client=False)
        except (ValueError, OSError) as e:
            link.send(b"E", content=str(e).encode()[:1000])
            return
        with run, contextlib.suppress(ValueError):  # an E frame: the client gave up
            run.finish(self._watch)

    def close(self) -> None:
        """Stop listening."""
        self._door.close()
