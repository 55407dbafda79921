# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The control and data connections of an FTP server: pyftpdlib's, with bounds against strangers.

A client that sends commands and reads no replies, one that sends half a command, and thousands that
do not log in cost bounded memory and time: replies that wait are counted, a client has
``LOGIN_TIMEOUT`` seconds to log in, and at most ``MAX_WAITING`` clients of a worker are not logged
in. Beyond that the address with the most such clients loses its oldest one.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from typing import Any

from OpenSSL import SSL
from pyftpdlib.handlers import DTPHandler, FTPHandler, TLS_DTPHandler, TLS_FTPHandler
from pyftpdlib.ioloop import AsyncChat
from pyftpdlib.log import logger
from pyftpdlib.servers import FTPServer

from siwarp.ulp.ftp.files import File, FileSystem

__all__ = ["Handler", "Listener", "TLSHandler"]

#: Seconds that a client has to log in.
LOGIN_TIMEOUT = 30
#: Clients of a worker that are not logged in.
MAX_WAITING = 256
#: Replies that wait until the client reads. A client that sends commands without waiting for
#: replies stays below, because the kernel buffers some hundreds more.
MAX_REPLIES = 64
#: Octets of commands that are read at a time, so that one client with very many commands does not
#: delay the others.
_READ_SIZE = 1024


class _Data:
    """The part of a data connection that is the same with and without TLS."""

    #: The octets that remained of the file when RETR began; None for a listing or ASCII.
    _expected: int | None = None

    def push_with_producer(self: Any, producer: Any) -> None:
        """Begin to send a file or a listing."""
        if isinstance(self.file_obj, File) and self.cmd_channel._current_type == "i":
            self._expected = os.fstat(self.file_obj.fileno()).st_size - self.file_obj.tell()
        super().push_with_producer(producer)  # type: ignore[misc]

    def handle_close(self: Any) -> None:
        """End the transfer: all was sent, or the client has closed the connection."""
        # To sendfile, the end of a file that was truncated meanwhile is the end of the transfer.
        if (
            not self._closed
            and self._expected is not None
            and len(self.producer_fifo) == 0
            and self.tot_bytes_sent < self._expected
        ):
            self._resp = (
                f"426 The file lost {self._expected - self.tot_bytes_sent} octets while it was "
                "sent; transfer aborted.",
                logger.warning,
            )
            self.close()
            return
        super().handle_close()  # type: ignore[misc]

    def handle_error(self: Any) -> None:
        """End the transfer after an exception, and say what the file system has refused."""
        raised = sys.exc_info()[1]
        error = raised.__cause__ if raised is not None else None
        if not isinstance(error, OSError):
            super().handle_error()  # type: ignore[misc]
            return
        code = {errno.ENOSPC: 452, errno.EDQUOT: 552}.get(error.errno or 0, 426)
        self._resp = (f"{code} {error.strerror or error}; transfer aborted.", logger.warning)
        self.close()


class _DataHandler(_Data, DTPHandler):  # type: ignore[misc]  # pyftpdlib has no types
    """A data connection."""


class _TLSDataHandler(_Data, TLS_DTPHandler):  # type: ignore[misc]
    """A data connection that TLS protects after PROT P."""


class _Control:
    """The part of a control connection that is the same with and without TLS."""

    banner = "siwarp FTP server ready."
    abstracted_fs = FileSystem
    ac_in_buffer_size = _READ_SIZE
    #: Names that are not UTF-8 are the same octets in both directions.
    unicode_errors = "surrogateescape"

    def __init__(self: Any, conn: Any, server: Any, ioloop: Any = None) -> None:
        super().__init__(conn, server, ioloop)  # type: ignore[call-arg]
        if self.connected:
            server.add_waiting(self)
            self.call_later(LOGIN_TIMEOUT, self._end_unless_logged_in)

    def _end_unless_logged_in(self: Any) -> None:
        if not self.authenticated:
            self.refuse(f"no login within {LOGIN_TIMEOUT} s")

    def refuse(self: Any, why: str) -> None:
        """End the connection, with a reply if the client reads it."""
        if not self._closed:
            self.respond(f"421 Connection closed: {why}.", logfun=logger.info)
            self.close()

    def handle_auth_success(self: Any, home: str, password: str, msg_login: str) -> None:
        """Admit the client."""
        self.server.waiting.pop(self, None)
        super().handle_auth_success(home, password, msg_login)  # type: ignore[misc]

    def flush_account(self: Any) -> None:
        """Log the user out (USER, REIN)."""
        super().flush_account()  # type: ignore[misc]
        self.server.add_waiting(self)
        self.call_later(LOGIN_TIMEOUT, self._end_unless_logged_in)

    def push(self: Any, data: str) -> None:
        """Send a reply, or end the connection if the client does not read replies."""
        if self._closed:
            return
        if len(self.producer_fifo) >= MAX_REPLIES:
            self.log("the client does not read the replies: closing", logfun=logger.warning)
            self.close()
            return
        # FTPHandler's push would encode without the error handler.
        AsyncChat.push(self, data.encode(self.encoding, self.unicode_errors))

    def close(self: Any) -> None:
        """End the connection at once."""
        self.server.waiting.pop(self, None)
        super().close()  # type: ignore[misc]


class Handler(_Control, FTPHandler):  # type: ignore[misc]
    """A control connection."""

    dtp_handler = _DataHandler


class TLSHandler(_Control, TLS_FTPHandler):  # type: ignore[misc]
    """A control connection with AUTH TLS."""

    dtp_handler = _TLSDataHandler
    ssl_options = TLS_FTPHandler.ssl_options | SSL.OP_NO_TLSv1 | SSL.OP_NO_TLSv1_1


class Listener(FTPServer):  # type: ignore[misc]
    """The listening socket in one worker."""

    def __init__(self, sock: Any, handler: Any, ioloop: Any, max_sockets: int) -> None:
        #: The clients that are not logged in, oldest first.
        self.waiting: dict[Any, None] = {}
        super().__init__(sock, handler, ioloop=ioloop)
        self.max_cons = max_sockets

    def add_waiting(self, client: Any) -> None:
        """Add a client that is not logged in; one of too many is disconnected."""
        self.waiting[client] = None
        if len(self.waiting) <= MAX_WAITING:
            return
        address, _ = Counter(each.remote_ip for each in self.waiting).most_common(1)[0]
        oldest = next(each for each in self.waiting if each.remote_ip == address)
        oldest.refuse("too many connections without a login")

    def handle_error(self) -> None:
        """Report a connection that could not be accepted, and accept others."""
        logger.exception("cannot accept a connection")
