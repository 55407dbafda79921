# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The exceptions of siwarp: one class per kind of cause, each with advice in its message."""

from __future__ import annotations

import errno as _errno
import os
from typing import Any

__all__ = [
    "Error",
    "LimitError",
    "PeerGone",
    "ProtocolError",
    "StateError",
    "Timeout",
    "terminate_clause",
    "terminate_reason",
]


class Error(OSError):
    """An operation of siwarp failed; ``errno`` is the error number of the C library.

    Attributes:
        bad_wr: of a failed post, the first work request that was not posted, or its index in the
            array; otherwise ``None``.
        reason: of a refused call, the name from ``siw_reason_name()``, for example ``CQ_SIZE``;
            otherwise empty. The name does not change when the message text does.

    """

    bad_wr: Any = None
    reason: str = ""


class StateError(Error):
    """The object is in the wrong state: closed, in use, or a queue pair that is not ready."""


class LimitError(Error):
    """A limit was reached: a queue is full, a message is too long, or a resource is exhausted."""


class PeerGone(Error):
    """The peer refused, reset or closed the connection, or cannot be reached."""


class Timeout(Error, TimeoutError):
    """The time limit that the caller gave for an operation has expired."""


class ProtocolError(Error):
    """One end violated a protocol, and a Terminate reported it (RFC 5040 section 4.8).

    Attributes:
        layer: 0 RDMAP, 1 DDP, 2 the LLP (MPA).
        type: the error type within the layer.
        code: the error code within the type.
        clause: the id of the clause that defines the error, for example ``RFC5041-7.2-01``.

    """

    def __init__(self, message: str, layer: int = 0, type: int = 0, code: int = 0) -> None:
        super().__init__(_errno.EPROTO, message)
        self.layer = layer
        self.type = type
        self.code = code
        self.clause = terminate_clause(layer, type, code)

    @classmethod
    def from_vendor_err(cls, vendor_err: int, what: str) -> ProtocolError:
        """Return the error that a completion's ``vendor_err`` encodes."""
        layer, kind, code = vendor_err >> 16 & 0xFF, vendor_err >> 8 & 0xFF, vendor_err & 0xFF
        reason = terminate_reason(layer, kind, code)
        return cls(
            f"{what}: {reason} ({terminate_clause(layer, kind, code)}). The connection has "
            "ended; correct the request and connect again",
            layer,
            kind,
            code,
        )


_LAYERS = {0: "RDMAP", 1: "DDP", 2: "MPA"}
_TYPES = {
    (0, 0): "Local Catastrophic Error",
    (0, 1): "Remote Protection Error",
    (0, 2): "Remote Operation Error",
    (1, 0): "Local Catastrophic Error",
    (1, 1): "Tagged Buffer Error",
    (1, 2): "Untagged Buffer Error",
    (2, 0): "MPA Error",
}
_CODES = {
    (0, 1, 0x00): "invalid STag",
    (0, 1, 0x01): "base or bounds violation",
    (0, 1, 0x02): "access rights violation",
    (0, 1, 0x03): "STag not associated with this stream",
    (0, 1, 0x04): "tagged offset wraps",
    (0, 1, 0x09): "STag cannot be invalidated",
    (0, 1, 0xFF): "unspecified error",
    (0, 2, 0x05): "invalid RDMAP version",
    (0, 2, 0x06): "unexpected opcode",
    (0, 2, 0x07): "catastrophic error of this stream",
    (0, 2, 0x08): "catastrophic error, global",
    (0, 2, 0x09): "STag cannot be invalidated",
    (0, 2, 0xFF): "unspecified error",
    (1, 1, 0x00): "invalid STag",
    (1, 1, 0x01): "base or bounds violation",
    (1, 1, 0x02): "STag not associated with this stream",
    (1, 1, 0x03): "tagged offset wraps",
    (1, 1, 0x04): "invalid DDP version",
    (1, 2, 0x01): "invalid queue number",
    (1, 2, 0x02): "no buffer posted for the message",
    (1, 2, 0x03): "message sequence number out of range",
    (1, 2, 0x04): "invalid message offset",
    (1, 2, 0x05): "message too long for the posted buffer",
    (1, 2, 0x06): "invalid DDP version",
    (2, 0, 0x01): "TCP connection closed or lost",
    (2, 0, 0x02): "CRC mismatch",
    (2, 0, 0x03): "marker and ULPDU length disagree",
    (2, 0, 0x04): "invalid MPA request or reply frame",
    (2, 0, 0x05): "local catastrophic error",
    (2, 0, 0x06): "insufficient IRD",
    (2, 0, 0x07): "no matching RTR option",
}


def terminate_reason(layer: int, type: int, code: int) -> str:
    """Return a Terminate's three numbers as text (RFC 5040 section 4.8, figure 9)."""
    where = _LAYERS.get(layer, f"layer {layer}")
    kind = _TYPES.get((layer, type), f"error type {type}")
    if type == 0 and layer < 2:  # local catastrophic errors have no codes
        return f"{where}, {kind}"
    what = _CODES.get((layer, type, code))
    if what is None:
        what = f"code {code:#04x}"
    return f"{where}, {kind}: {what}"


def terminate_clause(layer: int, type: int, code: int) -> str:
    """Return the id of the specification clause that defines an error's number."""
    if layer == 1:
        return "RFC5041-7.2-01"
    if layer == 2:
        return "RFC5044-8-01" if code < 6 else "RFC6581-8"
    return "RFC5040-4.8-03"


# The exception class and the default advice for each errno value.
_BY_ERRNO: dict[int, tuple[type[Error], str]] = {
    _errno.EBUSY: (StateError, "the object is still in use: close its users first"),
    _errno.ENOTCONN: (StateError, "the object is not connected: connect it first"),
    _errno.EISCONN: (StateError, "the object is already connected: use a new one"),
    _errno.EBADF: (StateError, "the object is closed: open it again"),
    _errno.ESTALE: (
        StateError,
        "the object was created before fork() and works only in the parent process: open the "
        "device in this process",
    ),
    _errno.EOVERFLOW: (
        StateError,
        "more requests completed than the CQ can hold: its queue pairs are in the error state; "
        "create them again on a CQ that can hold all their requests",
    ),
    _errno.ENOMEM: (LimitError, "a limit is reached: `siwarp devices` lists them"),
    _errno.ENOBUFS: (LimitError, "the kernel's buffers are full: poll, then try again"),
    _errno.EMFILE: (LimitError, "no file descriptors are left: raise `ulimit -n`"),
    _errno.ENOSPC: (LimitError, "there is no space for another one"),
    _errno.ENFILE: (LimitError, "the machine has no file descriptors left"),
    _errno.EAGAIN: (LimitError, "the machine is temporarily out of resources: try again"),
    _errno.EMSGSIZE: (LimitError, "the message is too long: see max_ud_msg and max_rc_msg"),
    _errno.ECONNREFUSED: (
        PeerGone,
        "no listener at this address: start the peer or correct the port",
    ),
    _errno.ECONNRESET: (PeerGone, "the peer reset the connection: connect again"),
    _errno.ECONNABORTED: (PeerGone, "the connection was aborted: connect again"),
    _errno.EPIPE: (PeerGone, "the peer closed the connection: connect again"),
    _errno.ETIMEDOUT: (PeerGone, "the peer did not answer in time: check that it runs"),
    _errno.EHOSTUNREACH: (PeerGone, "no route to the address: check `ip route`"),
    _errno.ENETUNREACH: (PeerGone, "no route to the address: check `ip route`"),
    _errno.EADDRINUSE: (Error, "another program uses this port: choose another port, or port 0"),
    _errno.EADDRNOTAVAIL: (Error, "this machine has no such address: see `siwarp devices`"),
    _errno.EACCES: (Error, "permission denied: a port below 1024 needs a privilege"),
    _errno.EFAULT: (Error, "the memory is not mapped, or not writable as the access flags require"),
    _errno.ENODEV: (Error, "no device has this name or address: see `siwarp devices`"),
}


def error_from_errno(number: int, what: str, advice: str | None = None) -> Error:
    """Return the exception for an errno value; ``what`` is the operation that failed."""
    if number == _errno.EPROTO:
        return ProtocolError(f"{what}: {advice or 'the peer violated the protocol'}")
    kind, usual = _BY_ERRNO.get(number, (Error, ""))
    advice = advice or usual
    text = f"{what}: {os.strerror(number)}"
    return kind(number, f"{text} ({advice})" if advice else text)
