# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""FTP: a server for ordinary clients, whose transfers may also use RD, RC and UD, and a client.

- ``FTP`` and ``FTPS`` are ftplib's classes with transfers over RD, RC and UD, if the server has
  TPRT.
- ``FileSystem`` is fsspec's file system on them. It needs the extra ``siwarp[fsspec]``.
- ``server.Server`` serves a directory. It needs the extra ``siwarp[ftp]``.
- ``transfer`` copies files and directories over a connection, with resume.

``siwarp ftp`` is the command.
"""

from typing import TYPE_CHECKING, Any

from siwarp.ulp.ftp.client import FTP, FTPS

if TYPE_CHECKING:
    from siwarp.ulp.ftp.filesystem import FileSystem

__all__ = ["FTP", "FTPS", "FileSystem"]


def __getattr__(name: str) -> Any:
    if name == "FileSystem":
        from siwarp.ulp.ftp.filesystem import FileSystem

        return FileSystem
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
