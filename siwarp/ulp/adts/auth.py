# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Authentication of sessions: keys and key files, proofs that a peer knows the key, tokens.

Each end proves with HMAC-SHA256 that it knows the key. The proof covers the role of its sender and
both HELLOs, each with a fresh nonce: it is of no use in another session or for the other role, and
neither HELLO can be changed on the path. The key itself never travels. A proof says nothing about
what follows: later octets are neither encrypted nor authenticated (spec/adts.md).

A token admits the initiator to a channel other than the rendezvous, once.
"""

from __future__ import annotations

import errno
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from siwarp.base import system
from siwarp.ulp.adts.credit import Role
from siwarp.ulp.adts.wire import NONCE_SIZE, TOKEN_SIZE

__all__ = [
    "KEY_SIZE",
    "Key",
    "KeyFileError",
    "create_key_file",
    "is_proof",
    "make_nonce",
    "make_proof",
    "make_token",
    "read_key_file",
]

#: Octets of a key: the output of SHA-256, as RFC 2104 recommends for HMAC.
KEY_SIZE = 32

_TEXT = re.compile(rf"[0-9a-f]{{{2 * KEY_SIZE}}}")
#: Maximum number of octets that are read from a key file.
_MAX_FILE = 256
#: Begins the input of each MAC, so that a MAC of another protocol with the same key is no proof.
_PURPOSE = b"ADTS 1 AUTH"
_ROLES = {Role.INITIATOR: b"\x01", Role.ACCEPTOR: b"\x02"}


class KeyFileError(OSError):
    """Raised for a key file that is missing, that others may read or change, or that has no key."""


class Key:
    """A key of 256 bits. Its text form is 64 lower-case hexadecimal digits."""

    def __init__(self, octets: bytes) -> None:
        if len(octets) != KEY_SIZE:
            raise ValueError(f"a key has {KEY_SIZE} octets, not {len(octets)}")
        self.octets = octets

    @classmethod
    def random(cls) -> Key:
        """Return a new key."""
        return cls(secrets.token_bytes(KEY_SIZE))

    @classmethod
    def from_text(cls, text: str) -> Key:
        """Return the key that a text encodes; white space around the text is ignored.

        Raises:
            ValueError: the text is not the text form of a key. The error does not repeat it.

        """
        text = text.strip()
        if not _TEXT.fullmatch(text):
            raise ValueError(
                f"a key is {2 * KEY_SIZE} lower-case hexadecimal digits; the given text is not"
            )
        return cls(bytes.fromhex(text))

    @property
    def text(self) -> str:
        """The text form."""
        return self.octets.hex()

    def __repr__(self) -> str:
        return "<Key>"  # the key must not appear in logs that contain this object


def create_key_file(path: Path) -> Key:
    """Write a new key to a new file that only its owner can read; return the key.

    Raises:
        FileExistsError: the file exists; it was not changed.
        OSError: the file cannot be written; it was removed again.

    """
    key = Key.random()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
        try:
            file.write(f"{key.text}\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            path.unlink()
            raise
    return key


def read_key_file(path: Path) -> Key:
    """Read the key from a key file and return it.

    Raises:
        KeyFileError: the file cannot be read, is not a regular file, does not belong to this user
            or root, can be accessed by others, or has no key.

    """
    try:
        # O_NONBLOCK: opening a FIFO does not wait.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise KeyFileError(
            error.errno, f"cannot open the key file: {error.strerror}", path
        ) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(errno.EINVAL, "the key file is not a regular file", path)
        if status.st_uid not in (0, os.geteuid()):
            raise KeyFileError(
                errno.EPERM,
                f"the key file belongs to the user {status.st_uid}, who can change it: use a copy "
                "of your own",
                path,
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise KeyFileError(
                errno.EPERM, f"the key file has the mode {mode:04o}: use chmod 0600", path
            )
        octets = os.read(fd, _MAX_FILE)
    finally:
        os.close(fd)
    try:
        return Key.from_text(octets.decode("ascii"))
    except ValueError:
        raise KeyFileError(
            errno.EINVAL,
            f"the key file does not consist of {2 * KEY_SIZE} lower-case hexadecimal digits",
            path,
        ) from None


def make_nonce() -> bytes:
    """Return a new nonce for a HELLO."""
    return system.random_bytes(NONCE_SIZE)


def make_proof(key: Key, role: Role, initiator_hello: bytes, acceptor_hello: bytes) -> bytes:
    """Return the MAC with which the end in `role` proves that it knows the key.

    The other arguments are the bodies of the two HELLO records as they were sent.
    """
    mac = hmac.new(key.octets, _PURPOSE + _ROLES[role], "sha256")
    for hello in (initiator_hello, acceptor_hello):
        mac.update(len(hello).to_bytes(4, "big"))
        mac.update(hello)
    return mac.digest()


def is_proof(
    mac: bytes, key: Key, role: Role, initiator_hello: bytes, acceptor_hello: bytes
) -> bool:
    """Return whether `mac` is the proof of the end in `role`, in a time independent of `mac`."""
    return hmac.compare_digest(mac, make_proof(key, role, initiator_hello, acceptor_hello))


def make_token() -> bytes:
    """Return a new token: 128 bits that nobody can guess within its lifetime."""
    return system.random_bytes(TOKEN_SIZE)
