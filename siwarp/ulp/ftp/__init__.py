# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""FTP: a server for ordinary clients, whose transfers may also use RD and RC, and a client.

- ``FTP`` and ``FTPS`` are ftplib's classes with transfers over RD and RC, if the server has TPRT.
- ``server.Server`` serves a directory. It needs the extra ``siwarp[ftp]``.
- ``transfer`` copies files and directories over a connection, with resume.

``siwarp ftp`` is the command.
"""

from siwarp.ulp.ftp.client import FTP, FTPS

__all__ = ["FTP", "FTPS"]
