# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""An FTP server for one directory, in pre-forked worker processes.

pyftpdlib (extra ``siwarp[ftp]``) has the protocol: the control connection, and data connections
over TCP. A worker serves many clients in one thread, so no operation of one client may block.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from OpenSSL import SSL
from pyftpdlib.ioloop import AsyncChat, IOLoop

from siwarp.base.stop import StopRequest
from siwarp.ulp.ftp.control import BACKLOG, Handler, Listener, TLSHandler
from siwarp.ulp.ftp.users import Users
from siwarp.ulp.ftp.workers import run_workers

__all__ = ["PORT", "TLS", "Server"]

#: The default port. Port 21 is FTP's, but only root may listen on it.
PORT = 2121
#: Number of descriptors that a worker needs besides those of connections and files in transfer.
_OTHER_DESCRIPTORS = 64


@dataclass(frozen=True)
class TLS:
    """How TLS protects connections.

    Attributes:
        certificate: PEM file with the certificate, followed by those of its issuers.
        key: PEM file with the private key; None: it is in the file ``certificate``.
        required: whether a client has to use AUTH TLS before it logs in.

    """

    certificate: str
    key: str | None = None
    required: bool = False


class Server:
    """An FTP server, which listens when it is created and serves when ``run`` is called.

    Args:
        root: the directory that clients see as ``/``.
        users: passwords by name.
        host: numeric address to listen on.
        port: TCP port; 0 selects a free one.
        writable: whether users may upload, delete, rename and create.
        workers: number of processes.
        tls: None: the server refuses AUTH TLS.

    Raises:
        OSError: the address is in use or not of this machine, or ``root`` is not a directory.
        ValueError: the certificate and the key do not fit; the text says why.

    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        users: Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        writable: bool = False,
        workers: int = 2,
        tls: TLS | None = None,
    ) -> None:
        self._root = os.path.realpath(root)
        os.close(os.open(self._root, os.O_RDONLY | os.O_DIRECTORY))
        self._workers = workers
        attributes: dict[str, Any] = {"authorizer": Users(dict(users), self._root, writable)}
        if tls is not None:
            attributes["ssl_context"] = _tls_context(tls)
            attributes["tls_control_required"] = tls.required
        kind: Any = Handler if tls is None else TLSHandler
        self._handler = type("Handler", (kind,), attributes)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        #: The listening address.
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def run(self, stop: StopRequest) -> None:
        """Serve until ``stop``, then end all sessions; see ``workers.run_workers``."""
        try:
            run_workers(self._workers, self._run_worker_process, stop)
        finally:
            self._socket.close()

    def _run_worker_process(self, parent: socket.socket) -> None:
        """Serve in a worker until the parent ends it."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        ioloop = IOLoop()
        # A transfer needs a file besides the sockets of its two connections.
        max_sockets = max(8, (min(hard, 1 << 16) - _OTHER_DESCRIPTORS) // 2)
        listener = Listener(self._socket, self._handler, ioloop, max_sockets)
        _Parent(parent, ioloop)
        ioloop.loop()
        listener.end_channel_thread()


class _Parent(AsyncChat):  # type: ignore[misc]  # pyftpdlib has no types
    """The socket on which the end of the stream reports that the parent has stopped or died."""

    def __init__(self, sock: socket.socket, ioloop: IOLoop) -> None:
        super().__init__(sock, ioloop=ioloop)

    def handle_read(self) -> None:
        """End the loop and all connections; called at the end of the stream, as the parent sends
        nothing.
        """
        self.ioloop.close()


def _tls_context(tls: TLS) -> SSL.Context:
    context = SSL.Context(TLSHandler.ssl_protocol)
    context.set_options(TLSHandler.ssl_options)
    try:
        context.use_certificate_chain_file(tls.certificate)
        context.use_privatekey_file(tls.key or tls.certificate)
        context.check_privatekey()
    except SSL.Error as e:
        reasons = ", ".join(str(error[-1]) for error in e.args[0]) or "cannot be read"
        raise ValueError(
            f"{tls.certificate}, {tls.key or tls.certificate}: no certificate and its private key "
            f"in PEM: {reasons}"
        ) from None
    return context
