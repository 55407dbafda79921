# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""An fsspec file system over FTP, whose transfers may use RD, RC and UD.

::

    with fsspec.open("siftp://ann:secret@host:2121/file") as file:
        file.seek(1_000_000)
        octets = file.read(1000)

Programs that take the URLs of fsspec (pandas, dask, zarr) take ``siftp://`` when siwarp is
installed with the extra ``siwarp[fsspec]``. In such URLs user and password are percent-encoded, but
the path is not.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

try:
    from fsspec.implementations.ftp import FTPFile, FTPFileSystem
except ImportError:
    raise ImportError(
        "the file system needs one more package: pip install 'siwarp[fsspec]'"
    ) from None

from siwarp.ulp.ftp.client import FTP, Connection, Kind
from siwarp.ulp.ftp.url import TIMEOUT, Location, connect

__all__ = ["BLOCK_SIZE", "File", "FileSystem"]

#: Octets that a read fetches ahead, by default. Each fetch is a transfer, which takes some round
#: trips.
BLOCK_SIZE = 4 << 20


class FileSystem(FTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """fsspec's FTPFileSystem over ``siwarp.ulp.ftp.FTP``.

    A file that is written has a connection of its own. It gets its name on the server when it is
    closed, if the transfer uses RD, RC or UD.

    Args:
        host: the server.
        port: its TCP port.
        username: the user; None: ``anonymous``.
        password: the user's password.
        transports: those that transfers try, in this order.
        active: the server opens the data connections.
        tls: protect the connections with TLS; then transfers use TCP.
        ca: PEM file with the certificates to trust instead of the system's.
        timeout: seconds without an answer after which a call fails.
        block_size: octets that a read fetches ahead; a file that is written sends as many at a
            time.
        more: see fsspec's FTPFileSystem.

    Raises:
        ftplib.Error: the server refuses the user, or has no TLS.
        OSError: the server does not answer, or has no valid certificate.

    """

    protocol = "siftp"

    def __init__(
        self,
        host: str,
        port: int = 21,
        username: str | None = None,
        password: str | None = None,
        *,
        transports: Sequence[Kind] = ("rd", "rc", "tcp"),
        active: bool = False,
        tls: bool = False,
        ca: str | None = None,
        timeout: float = TIMEOUT,
        block_size: int = BLOCK_SIZE,
        **more: Any,
    ) -> None:
        self._location = Location(host, port, username or "anonymous", password or "", "")
        self._options: dict[str, Any] = {
            "tls": tls,
            "ca": ca,
            "transports": transports,
            "active": active,
            "timeout": timeout,
        }
        super().__init__(
            host, port, username, password, timeout=timeout, block_size=block_size, **more
        )

    def connect(self) -> FTP:
        """Return a new connection that is logged in."""
        return connect(self._location, encoding=self.encoding, **self._options)

    def _connect(self) -> None:
        """Open the connection ``ftp`` of this object, in place of one that has failed."""
        self.close()
        self.ftp = self.connect()

    def close(self) -> None:
        """Close the connection; the object cannot be used afterwards."""
        if hasattr(self, "ftp"):
            self.ftp.close()

    def __del__(self) -> None:
        self.close()

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
        """Return the entries of a directory, or with ``detail=False`` their paths."""
        found: list[Any] = super().ls(path, detail=True, **more)
        return found if detail else sorted(entry["name"] for entry in found)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        parts = urlsplit(path)
        return {
            name: value
            for name, value in (
                ("host", parts.hostname),
                ("port", parts.port),
                ("username", parts.username and unquote(parts.username)),
                ("password", parts.password and unquote(parts.password)),
            )
            if value is not None
        }

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **_more: Any,
    ) -> File:
        path = self._strip_protocol(path)
        if mode == "xb" and self.exists(path):
            raise FileExistsError(path)
        return File(
            self,
            path,
            mode=mode,
            block_size=block_size or self.blocksize,
            tempdir=self.tempdir,
            autocommit=autocommit,
            cache_options=cache_options,
        )


class File(FTPFile):  # type: ignore[misc]
    """An open file: one that is read fetches ranges, and one that is written is one transfer."""

    _ftp: FTP | None = None
    _connection: Any

    def _initiate_upload(self) -> None:
        command = "APPE" if self.mode == "ab" else "STOR"
        self._ftp = self.fs.connect()
        try:
            self._ftp.voidcmd("TYPE I")
            self._connection = self._ftp.transfercmd(f"{command} {self.path}")
        except BaseException:
            self._ftp.close()
            raise

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._ftp is not None
        try:
            self._connection.sendall(self.buffer.getbuffer())
            if final:
                if isinstance(self._connection, ssl.SSLSocket):
                    self._connection.unwrap()
                self._connection.close()
                self._ftp.voidresp()
        except BaseException:
            self._abort()
            raise
        if final:
            self._ftp.quit()
        return True

    def _abort(self) -> None:
        """End the transfer before the end of the file."""
        assert self._ftp is not None
        if isinstance(self._connection, Connection):
            self._connection.abort()
        else:
            self._connection.close()
        self._ftp.close()
