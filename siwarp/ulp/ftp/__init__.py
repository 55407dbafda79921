# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""FTP: a server for ordinary clients, and transfers with resume for ordinary servers.

- ``server.Server`` serves a directory. It needs the extra ``siwarp[ftp]``.
- ``transfer`` copies files and directories over a connection of ftplib, with resume.

``siwarp ftp`` is the command.
"""
