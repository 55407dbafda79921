# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The control and data connections of an FTP server: pyftpdlib's, with limits for every client.

A client that sends commands and reads no replies, one that sends half a command, and thousands that
do not log in cost bounded memory and time: replies that wait are counted, a client has
``LOGIN_TIMEOUT`` seconds to log in, and at most ``MAX_WAITING`` clients of a worker are not logged
in. Beyond that the address with the most such clients loses its oldest one.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from OpenSSL import SSL
from pyftpdlib.exceptions import FilesystemError
from pyftpdlib.handlers import DTPHandler, FTPHandler, TLS_DTPHandler, TLS_FTPHandler
from pyftpdlib.ioloop import AsyncChat
from pyftpdlib.log import logger
from pyftpdlib.servers import FTPServer

from siwarp.ulp.ftp import tprt
from siwarp.ulp.ftp.bridge import ChannelThread, Relay
from siwarp.ulp.ftp.files import File, FileSystem

__all__ = ["BACKLOG", "Handler", "Listener", "TLSHandler"]

#: Seconds after which a client that has not logged in is disconnected.
LOGIN_TIMEOUT = 30
#: Maximum number of clients of a worker that are not logged in.
MAX_WAITING = 256
#: Connections that the kernel accepts before the server does. If there are more, the kernel drops
#: the first packet of a client, whose TCP sends it again after a second.
BACKLOG = 1024
#: Maximum number of queued replies that the client has not read. A client that sends commands
#: without waiting for replies stays below the limit, because the kernel buffers some hundreds of
#: replies.
MAX_REPLIES = 64
#: Octets of commands that are read at a time, so that one client with very many commands does not
#: delay the others.
_READ_SIZE = 1024


class _DataConnection:
    """The common part of data connections on all transports."""

    #: The octets that remained of the file when RETR began; None for a listing or ASCII.
    _expected: int | None = None

    def push_with_producer(self: Any, producer: Any) -> None:
        """Start sending a file or a listing."""
        if isinstance(self.file_obj, File) and self.cmd_channel._current_type == "i":
            self._expected = os.fstat(self.file_obj.fileno()).st_size - self.file_obj.tell()
        super().push_with_producer(producer)  # type: ignore[misc]

    def has_ended_early(self: Any) -> bool:
        """Return whether all of a file was sent, and the file had become shorter meanwhile.

        To sendfile, the end of a file that was truncated is the end of the transfer.
        """
        sent_all = not self.receive and len(self.producer_fifo) == 0
        return sent_all and self._expected is not None and self.tot_bytes_sent < self._expected

    def abort_with_reply(self: Any, text: str, code: int = 426, log: Any = logger.warning) -> None:
        """End the transfer, and reply with an error."""
        self._resp = (f"{code} {text}; transfer aborted.", log)
        self.close()

    def handle_close(self: Any) -> None:
        """End the transfer: all was sent, or the client has closed the connection."""
        if not self._closed and self.has_ended_early():
            missing = self._expected - self.tot_bytes_sent
            self.abort_with_reply(f"The file lost {missing} octets while it was sent")
        else:
            super().handle_close()  # type: ignore[misc]

    def handle_error(self: Any) -> None:
        """End the transfer after an exception, and say what the file system has refused."""
        raised = sys.exc_info()[1]
        error = raised.__cause__ if raised is not None else None
        if not isinstance(error, OSError):
            super().handle_error()  # type: ignore[misc]
            return
        code = {errno.ENOSPC: 452, errno.EDQUOT: 552, errno.EFBIG: 552}.get(error.errno or 0, 426)
        self.abort_with_reply(error.strerror or str(error), code)


class _DataHandler(_DataConnection, DTPHandler):  # type: ignore[misc]  # pyftpdlib has no types
    """A data connection over TCP, without TLS."""


class _TLSDataHandler(_DataConnection, TLS_DTPHandler):  # type: ignore[misc]
    """A data connection that TLS protects after PROT P."""


class _ChannelDataConnection(_DataConnection, DTPHandler):  # type: ignore[misc]
    """A data connection on RD, RC or UD: the socket is connected to a relay (bridge.py)."""

    ac_in_buffer_size = ac_out_buffer_size = 1 << 18
    #: Whether all octets were given to the relay and the peer's confirmation is awaited.
    _ending = False

    def __init__(self, sock: socket.socket, session: Any, relay: Relay) -> None:
        self._relay = relay
        super().__init__(sock, session)

    def _start_relay(self, receiving: bool) -> None:
        self.cmd_channel.server.channel_thread.call_in_loop_thread(
            self._relay.start_transfer, receiving
        )

    def enable_receiving(self, kind: str, command: str) -> None:
        """Start receiving a file."""
        super().enable_receiving(kind, command)
        self._start_relay(receiving=True)

    def push(self, data: bytes) -> None:
        """Start sending a list of file names."""
        super().push(data)
        self._start_relay(receiving=False)

    def push_with_producer(self, producer: Any) -> None:
        """Start sending a file or a listing."""
        super().push_with_producer(producer)
        self._start_relay(receiving=False)

    def readable(self) -> bool:
        """Return whether the end of the stream, or data, may be read."""
        return bool(self._ending or super().readable())

    def writable(self) -> bool:
        """Return whether data may be written."""
        return bool(not self._ending and super().writable())

    def handle_close(self) -> None:
        """Handle the end of the data to be sent, or the end of the relay's stream."""
        if self._closed:
            return
        if not self.receive and not self._ending and len(self.producer_fifo) == 0:
            if self.has_ended_early():
                super().handle_close()
                return
            # The peer has to confirm what is still in the relay and on the network.
            self._ending = self._relay.complete = True
            self.socket.shutdown(socket.SHUT_WR)
            self.modify_ioloop_events(self.ioloop.READ)
            self._wanted_io_events = self.ioloop.READ
        elif not self._relay.done:
            self.abort_with_reply(self._relay.failure, log=logger.info)
        elif self.receive and self.file_obj.final is not None:
            self._rename_complete_upload()
        else:
            self.discard_buffers()  # pyftpdlib may have queued its marker for the end of the data
            super().handle_close()

    def _rename_complete_upload(self) -> None:
        """Rename a complete upload to its final name."""
        file = self.file_obj
        try:
            file.close()
            self.cmd_channel.fs.rename(file.name, file.final)
        except (OSError, FilesystemError) as e:
            self.abort_with_reply(getattr(e, "strerror", None) or str(e), 550)
        else:
            super().handle_close()

    def close(self) -> None:
        """End the data connection at once."""
        if not self._closed:
            self.cmd_channel.server.channel_thread.call_in_loop_thread(self._relay.stop_transfer)
        super().close()


class _ChannelOffer:
    """The offer of one channel to a client, identified by a token.

    It takes the place of pyftpdlib's passive listener after EPSV and PASV, and of its connector
    after EPRT and PORT.
    """

    def __init__(self, session: Any, kind: str) -> None:
        self._session = session
        self._kind = tprt.KINDS[kind]
        self._host = session.socket.getsockname()[0]
        self._bridge: ChannelThread = session.server.channel_thread
        #: Gives up the attempt to open a channel to the client, if there is one.
        self._give_up: Callable[[], object] | None = None
        self.invitation = self._bridge.expect_channel(
            self._kind,
            self._host,
            session.remote_ip,
            self._on_channel_opened,
            self._on_stranger_rejected,
        )
        self._timer = session.call_later(tprt.LIFETIME, self._on_timeout)

    def open_active_channel(self, port: int) -> None:
        """Begin to open the channel to a port of the client (active mode)."""
        self._forget_token()
        self._give_up = self._bridge.open_channel_to_client(
            self._kind,
            self._host,
            self._session.remote_ip,
            tprt.make_active_mode_invitation(self._kind, self.invitation, port),
            self._on_channel_opened,
            self._on_channel_not_opened,
        )

    def _on_channel_opened(self, relay: Relay, sock: socket.socket) -> None:
        """Use the opened channel as the data connection, or close it if it is not wanted."""
        session = self._session
        why = "the session has ended"
        if session._closed:
            pass
        elif self not in (session._dtp_acceptor, session._dtp_connector):
            why = "no command has asked for this channel"
        else:
            if session._dtp_connector is self:
                session._dtp_connector = None
                self.close()
                session.respond("200 Active data connection established.")
            handler = _ChannelDataConnection(sock, session, relay)
            if handler.connected:
                session.data_channel = handler
                session._on_dtp_connection()
                return
        relay.failure = why
        self._bridge.call_in_loop_thread(relay.stop_transfer)
        sock.close()

    def _on_stranger_rejected(self, stranger: str) -> None:
        if self._session._dtp_acceptor is self:
            self._session.respond_w_warning(
                f"425 Rejected data connection from foreign address {stranger}."
            )

    def _on_channel_not_opened(self, reason: str) -> None:
        """Report that the channel to the client could not be opened."""
        if self._session._dtp_connector is self:
            self._session._dtp_connector = None
            self._session.respond(f"425 Can't open data channel: {reason}.", logfun=logger.info)

    def _on_timeout(self) -> None:
        session = self._session
        if session._offer is self:
            session._withdraw_offer()
        elif session._dtp_acceptor is self:
            session._dtp_acceptor = None
            self.close()
            session.respond("421 Passive data channel timed out.", logfun=logger.info)

    def _forget_token(self) -> None:
        self._bridge.forget_token(self._kind, self._host, self.invitation.token)

    def close(self) -> None:
        """Withdraw the token, or cancel the opening of the channel; an open channel stays open."""
        if not self._timer.cancelled:
            self._timer.cancel()
        if self._give_up is not None:
            self._give_up()
        else:
            self._forget_token()


class _ControlConnection:
    """The common part of control connections with and without TLS."""

    banner = "siwarp FTP server ready."
    abstracted_fs = FileSystem
    ac_in_buffer_size = _READ_SIZE
    #: Seconds by which the reply to a wrong password is delayed, so that passwords cannot be
    #: guessed fast.
    auth_failed_timeout = 3
    #: The octets of a file name that is not UTF-8 are sent back as they were received.
    unicode_errors = "surrogateescape"

    proto_cmds = FTPHandler.proto_cmds | {
        "TPRT": {
            "perm": None,
            "auth": True,
            "arg": True,
            "help": "Syntax: TPRT <SP> RD|RC|UD|TCP (select the transport of data connections).",
        }
    }

    def __init__(self: Any, conn: Any, server: Any, ioloop: Any = None) -> None:
        #: The transport that TPRT has selected; None: TCP.
        self._kind: str | None = None
        #: The token that the reply to TPRT contained, until the token is used or expires.
        self._offer: _ChannelOffer | None = None
        super().__init__(conn, server, ioloop)  # type: ignore[call-arg]
        self._extra_feats = [*self._extra_feats, "TPRT RD;RC;UD;TCP;"]
        self._login_timer: Any = None
        if self.connected:
            self._start_login_timer()

    def _start_login_timer(self: Any) -> None:
        if self._login_timer is not None and not self._login_timer.cancelled:
            self._login_timer.cancel()
        self._login_timer = self.call_later(LOGIN_TIMEOUT, self._end_unless_logged_in)
        self.server.add_client_waiting_for_login(self)

    def _end_unless_logged_in(self: Any) -> None:
        if not self.authenticated:
            self.refuse(f"no login within {LOGIN_TIMEOUT} s")

    def refuse(self: Any, why: str) -> None:
        """Send a reply with the reason if possible, and end the connection."""
        if not self._closed:
            self.respond(f"421 Connection closed: {why}.", logfun=logger.info)
            self.close()

    def handle_auth_success(self: Any, home: str, password: str, msg_login: str) -> None:
        """Handle a successful login."""
        self.server.waiting.pop(self, None)
        super().handle_auth_success(home, password, msg_login)  # type: ignore[misc]

    def flush_account(self: Any) -> None:
        """Log the user out (USER, REIN)."""
        if self._kind is not None:
            self._select_transport(None)
        super().flush_account()  # type: ignore[misc]
        self._start_login_timer()

    def push(self: Any, data: str) -> None:
        """Send a reply, or end the connection if the client does not read replies."""
        if self._closed:
            return
        if len(self.producer_fifo) >= MAX_REPLIES:
            self.log("the client does not read the replies: closing", logfun=logger.warning)
            self.close()
            return
        # FTPHandler.push would encode the text without the error handler ``unicode_errors``.
        AsyncChat.push(self, data.encode(self.encoding, self.unicode_errors))

    def close(self: Any) -> None:
        """End the connection at once."""
        self.server.waiting.pop(self, None)
        self._withdraw_offer()
        super().close()  # type: ignore[misc]

    # ---- TPRT

    def _withdraw_offer(self: Any) -> None:
        offer, self._offer = self._offer, None
        if offer is not None:
            offer.close()

    def _select_transport(self: Any, kind: str | None) -> None:
        """Select a transport; end the data connections that are open or being opened."""
        self._withdraw_offer()
        self._end_data_connections()
        self._kind = kind

    def _end_data_connections(self: Any) -> None:
        self._shutdown_connecting_dtp()
        if self.data_channel is not None:
            self.data_channel.close()
            self.data_channel = None

    def ftp_TPRT(self: Any, line: str) -> None:
        """Select the transport of the data connections (tprt.py)."""
        kind = line.upper()
        if kind == "TCP":
            self._select_transport(None)
            self.respond("200 TPRT TCP")
            return
        if kind not in tprt.KINDS:
            self.respond(f"504 Unsupported transport {kind}: use RD, RC, UD or TCP.")
            return
        if getattr(self, "_prot", False):
            self.respond(f"536 TLS does not protect data on {kind}: use PROT C or TPRT TCP.")
            return
        self._select_transport(None)
        try:
            self._offer = _ChannelOffer(self, kind)
        except OSError as e:
            self.respond(f"425 No channel on {kind}: {e.strerror or e}. Use TPRT TCP.")
            return
        self._kind = kind
        self.respond(tprt.format_reply(kind, self._offer.invitation))

    def _pop_channel_offer(self: Any) -> _ChannelOffer | None:
        """Remove the offer of a channel and return it; if there is none, reply with an error."""
        offer: _ChannelOffer | None = self._offer
        self._offer = None
        if offer is None:
            self.respond(f"425 The token was used or has expired: send TPRT {self._kind} again.")
        return offer

    def _make_epasv(self: Any, extmode: bool = False) -> None:
        """Handle PASV and EPSV."""
        if self._kind is None:
            super()._make_epasv(extmode)  # type: ignore[misc]
            return
        self._end_data_connections()
        offer = self._pop_channel_offer()
        if offer is None:
            return
        self._dtp_acceptor = offer
        port = offer.invitation.port
        if extmode:
            self.respond(f"229 Entering extended passive mode (|||{port}|).")
        else:
            host = self.socket.getsockname()[0].replace(".", ",")
            self.respond(f"227 Entering passive mode ({host},{port // 256},{port % 256}).")

    def active_dtp(self: Any, ip: str, port: int, session: Any) -> Any:
        """Begin to open a data connection to the client, whose address pyftpdlib has checked."""
        if self._kind is None:
            return FTPHandler.active_dtp(ip, port, session)
        offer = self._pop_channel_offer()
        if offer is not None:
            offer.open_active_channel(port)
        return offer

    def ftp_STOR(self: Any, file: str, mode: str = "w") -> str | None:
        """Receive a file (STOR, APPE). On channels it gets its name when it is complete."""
        if self._kind is None:
            stored: str | None = super().ftp_STOR(file, mode)  # type: ignore[misc]
            return stored
        partial = tprt.partial_path(file)
        continues = mode == "a" or self._restart_position
        if not continues or self.fs.lexists(partial) or not self.fs.lexists(file):
            kept: str | None = self._start_upload_to_partial_file(file, partial, mode)
            return kept
        # The upload continues a copy of the file's first octets, so that the file itself does not
        # change until the upload is complete. No command is read while they are copied.
        octets = None if mode == "a" else self._restart_position
        self.del_channel()

        def store_upload_after_copy(error: Exception | None) -> None:
            if self._closed:
                return
            self.add_channel()
            if error is None:
                self._start_upload_to_partial_file(file, partial, mode)
            else:
                self._restart_position = 0
                self.respond(f"550 {getattr(error, 'strerror', None) or error}.")

        copy = functools.partial(self.fs.copy, file, partial, octets)
        self.server.channel_thread.run_work_in_thread(copy, store_upload_after_copy)
        return None

    def _start_upload_to_partial_file(self: Any, file: str, partial: str, mode: str) -> str | None:
        rest = self._restart_position
        if super().ftp_STOR(partial, mode) is None:  # type: ignore[misc]
            return None
        opened: File = (self.data_channel and self.data_channel.file_obj) or self._in_dtp_queue[0]
        opened.final = file
        if rest:
            opened.truncate(rest)
        return file

    def ftp_STOU(self: Any, line: str) -> str | None:
        """Receive a file under a new name."""
        if self._kind is None:
            stored: str | None = super().ftp_STOU(line)  # type: ignore[misc]
            return stored
        self.respond(f"504 STOU is not possible on {self._kind}: use STOR or TPRT TCP.")
        return None


class Handler(_ControlConnection, FTPHandler):  # type: ignore[misc]
    """A control connection."""

    dtp_handler = _DataHandler


class TLSHandler(_ControlConnection, TLS_FTPHandler):  # type: ignore[misc]
    """A control connection with AUTH TLS."""

    dtp_handler = _TLSDataHandler
    proto_cmds = TLS_FTPHandler.proto_cmds | _ControlConnection.proto_cmds
    ssl_options = TLS_FTPHandler.ssl_options | SSL.OP_NO_TLSv1 | SSL.OP_NO_TLSv1_1

    def ftp_AUTH(self, line: str) -> None:
        """Begin TLS. Commands that came with AUTH are dropped: they may be an attacker's."""
        super().ftp_AUTH(line)
        if self._ssl_accepting:
            self.ac_in_buffer = b""

    def ftp_PROT(self, line: str) -> None:
        """Select whether TLS protects data connections."""
        if line.upper() == "P" and self._kind is not None:
            self.respond(f"536 TLS does not protect data on {self._kind}: send TPRT TCP first.")
        else:
            super().ftp_PROT(line)


class Listener(FTPServer):  # type: ignore[misc]
    """The listening socket in one worker."""

    def __init__(self, sock: Any, handler: Any, ioloop: Any, max_sockets: int) -> None:
        #: The clients that are not logged in, oldest first.
        self.waiting: dict[Any, None] = {}
        super().__init__(sock, handler, ioloop=ioloop, backlog=BACKLOG)
        self.max_cons = max_sockets
        self._bridge: ChannelThread | None = None

    @property
    def channel_thread(self) -> ChannelThread:
        """The thread with the worker's channels, which is started when it is needed."""
        if self._bridge is None:
            self._bridge = ChannelThread()
            _PostedCallsHandler(self._bridge, self.ioloop)
        return self._bridge

    def end_channel_thread(self) -> None:
        """End the thread with the worker's channels."""
        if self._bridge is not None:
            self._bridge.close()

    def add_client_waiting_for_login(self, client: Any) -> None:
        """Add a client that is not logged in; disconnect the oldest one if there are too many."""
        self.waiting[client] = None
        if len(self.waiting) <= MAX_WAITING:
            return
        address, _ = Counter(each.remote_ip for each in self.waiting).most_common(1)[0]
        oldest = next(each for each in self.waiting if each.remote_ip == address)
        oldest.refuse("too many connections without a login")

    def handle_error(self) -> None:
        """Report a connection that could not be accepted, and accept others."""
        logger.exception("cannot accept a connection")


class _PostedCallsHandler(AsyncChat):  # type: ignore[misc]
    """The socket by which the bridge wakes pyftpdlib's loop."""

    def __init__(self, bridge: ChannelThread, ioloop: Any) -> None:
        self._bridge = bridge
        super().__init__(bridge.wakeup, ioloop=ioloop)

    def handle_read(self) -> None:
        """Make the calls that the bridge has queued for pyftpdlib's thread."""
        self.socket.recv(4096)
        self._bridge.run_posted_calls()

    def handle_error(self) -> None:
        """Log an exception of a queued call, and continue."""
        logger.exception("an error of a channel")
