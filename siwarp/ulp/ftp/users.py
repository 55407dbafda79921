# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The users of an FTP server, and what they may do."""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path
from typing import Any

from pyftpdlib.exceptions import AuthenticationFailed

__all__ = ["Users", "read_users"]

#: pyftpdlib's letters of permissions: to read (change directory, list, retrieve), and to write
#: (append, delete, rename, make a directory, store, change mode and time).
_READ, _WRITE = "elr", "adfmwMT"


class Users:
    """The passwords of users by name, as pyftpdlib's authorizer.

    All users see the same directory, and either all or none may write. The user ``anonymous`` needs
    its password like any other.
    """

    def __init__(self, passwords: dict[str, str], root: str, writable: bool) -> None:
        self._passwords = passwords
        self._root = root
        self._permissions = _READ + _WRITE if writable else _READ

    def validate_authentication(self, name: str, password: str, _handler: Any) -> None:
        """Raise AuthenticationFailed unless a user has this name and password."""
        expected = self._passwords.get(name, "")
        same = hmac.compare_digest(_encode_text(expected), _encode_text(password))
        if not same or name not in self._passwords:
            raise AuthenticationFailed("Authentication failed.")

    def get_home_dir(self, _name: str) -> str:
        """Return the directory that the user sees as ``/``."""
        return self._root

    def get_perms(self, _name: str) -> str:
        """Return the letters of all permissions."""
        return self._permissions

    def has_perm(self, _name: str, letter: str, _path: str | None = None) -> bool:
        """Return whether the permission with this letter is given."""
        return letter in self._permissions

    def get_msg_login(self, _name: str) -> str:
        """Return the text of the reply to a correct password."""
        return "Login successful."

    def get_msg_quit(self, _name: str) -> str:
        """Return the text of the reply to QUIT."""
        return "Goodbye."

    def impersonate_user(self, _name: str, _password: str) -> None:
        """Do nothing: files are accessed as the user who runs the server."""

    def terminate_impersonation(self, _name: str) -> None:
        """Do nothing."""


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def read_users(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the passwords by name in a file with a line NAME:PASSWORD for each user.

    Empty lines and lines that begin with ``#`` are ignored.

    Raises:
        OSError: the file cannot be read.
        ValueError: others than the file's owner may read it, or a line has another form; the text
            has no password.

    """
    with Path(path).open(encoding="utf-8") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise ValueError(
                f"{path}: other users may read the passwords (mode {mode:o}): run chmod 600 {path}"
            )
        users: dict[str, str] = {}
        for number, line in enumerate(file, 1):
            text = line.rstrip("\n")
            if not text or text.startswith("#"):
                continue
            name, colon, password = text.partition(":")
            if not name or not colon or not password:
                raise ValueError(f"{path}, line {number}: expected NAME:PASSWORD")
            if name in users:
                raise ValueError(f"{path}, line {number}: a second password of {name}: remove one")
            users[name] = password
    if not users:
        raise ValueError(f"{path}: no user: add a line NAME:PASSWORD")
    return users
