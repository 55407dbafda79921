# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""FTP URLs (RFC 1738, section 3.2), and connecting to the server in a URL."""

from __future__ import annotations

import ftplib
import netrc
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from siwarp.ulp.ftp.client import FTP, FTPS, Kind

__all__ = ["Location", "connect", "is_ftp_url", "parse_url"]

#: Seconds without an answer after which a connection is given up.
TIMEOUT = 60.0


@dataclass(frozen=True)
class Location:
    """What an FTP URL names: a server, and a path relative to the directory after login."""

    host: str
    port: int
    user: str
    password: str
    path: str


def is_ftp_url(text: str) -> bool:
    """Return whether the text begins like an FTP URL."""
    return text.lower().startswith("ftp://")


def parse_url(url: str) -> Location:
    """Return the parts of ``ftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH``.

    A path that begins with ``%2F`` is absolute. Without a user, name and password are those of the
    host in ``~/.netrc``, or of the user ``anonymous``; without a password, that of ``~/.netrc``.

    Raises:
        ValueError: the text has another form.
        OSError, netrc.NetrcParseError: ``~/.netrc`` exists, but cannot be read.

    """
    parts = urlsplit(url)
    if parts.scheme != "ftp" or not parts.hostname:
        raise ValueError(f"{url!r}: expected ftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH")
    path = unquote(parts.path[1:], errors="surrogateescape")
    if any(character in path for character in "\r\n\0"):
        raise ValueError(f"{url!r}: the path contains a line end or NUL: remove it")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    file = Path.home() / ".netrc"
    if not password and file.is_file():
        known = netrc.netrc(file).authenticators(parts.hostname)
        if known is not None and user in {"", known[0]}:
            user, password = known[0], known[2] or ""
    return Location(
        parts.hostname, parts.port or ftplib.FTP_PORT, user or "anonymous", password, path
    )


def connect(
    location: Location,
    tls: bool = False,
    ca: str | None = None,
    transports: Sequence[Kind] = ("tcp",),
    active: bool = False,
    timeout: float = TIMEOUT,
    encoding: str = "utf-8",
) -> FTP:
    """Connect to the server, and log in.

    Args:
        location: the server and the user.
        tls: protect the control connection and the data connections (AUTH TLS, PROT P).
        ca: PEM file with the certificates to trust instead of the system's.
        transports: those that transfers try, in this order; with ``tls`` only TCP is possible.
        active: the server opens the data connections (PORT, EPRT), and not this end.
        timeout: seconds without an answer after which a call fails.
        encoding: that of the names of files.

    Raises:
        ftplib.Error: the server refuses the user, or has no TLS.
        OSError: the server does not answer, or has no valid certificate (ssl.SSLError).

    """
    if tls:
        context = ssl.create_default_context(cafile=ca)
        ftp: FTP = FTPS(context=context, timeout=timeout, encoding=encoding)
    else:
        ftp = FTP(timeout=timeout, encoding=encoding)
    ftp.transports = transports
    ftp.set_pasv(not active)
    try:
        ftp.connect(location.host, location.port)
        ftp.login(location.user, location.password)
        if isinstance(ftp, FTPS):
            ftp.prot_p()
    except BaseException:
        ftp.close()
        raise
    return ftp
