# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Copying files and directories over a connection of ftplib, with resume.

A file is received under a temporary name that depends on its size and time at the server
(``siwarp.ulp.adts.tree``). An interrupted transfer continues there when it is tried again, unless
the file has changed. A file with the final name is always complete.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import ftplib
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from siwarp.ulp.adts.tree import Entry, Incoming, Source, Tree
from siwarp.ulp.adts.wire import FileKind
from siwarp.ulp.ftp.client import FTP, NoTransportError

__all__ = [
    "Mirror",
    "Remote",
    "download_file",
    "list_directory",
    "list_server_features",
    "stat_file",
    "upload_file",
]

#: Maximum depth of directories that a mirror enters, because a server may list an endless tree.
MAX_DEPTH = 100
#: Octets that are read from a file, or from a socket, at a time.
BLOCK = 1 << 18
#: Seconds within which the server's reply must arrive after the end of the data connection.
_REPLY_S = 3.0
#: A function that is called with the number of octets transferred since its last call.
Progress = Callable[[int], None]

_TIME = re.compile(r"(\d{14})(\.\d+)?")


@dataclass(frozen=True)
class Remote:
    """An entry in a directory of the server; ``kind`` is None if it is no file or directory."""

    name: str
    kind: FileKind | None
    size: int = 0
    #: Modification time in nanoseconds since 1970, with FTP's resolution of one second.
    mtime_ns: int = 0


def list_server_features(ftp: ftplib.FTP) -> set[str]:
    """Return the names of the features that the server lists for FEAT, in upper case.

    The set is empty if the server does not know the command FEAT.
    """
    try:
        reply = ftp.sendcmd("FEAT")
    except ftplib.error_perm:
        return set()
    return {line.split()[0].upper() for line in reply.splitlines()[1:-1] if line.strip()}


def stat_file(ftp: ftplib.FTP, path: str) -> Remote:
    """Return size and time of a file at the server.

    Raises:
        ftplib.Error: there is no such file, or the server has no SIZE and MDTM (RFC 3659).

    """
    ftp.voidcmd("TYPE I")
    size = ftp.size(path)
    if size is None:
        raise ftplib.error_proto(f"{path}: the reply to SIZE is not 213")
    mtime_ns = _parse_time(ftp.sendcmd(f"MDTM {path}")[3:].strip())
    return Remote(posixpath.basename(path), FileKind.FILE, size, mtime_ns)


def _parse_time(text: str) -> int:
    """Return the nanoseconds since 1970 of a time in the form of RFC 3659, section 2.3."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        when = datetime.datetime.strptime(match[1], "%Y%m%d%H%M%S")
    except ValueError:
        raise ftplib.error_proto(f"a time that is not YYYYMMDDHHMMSS: {text!r:.40}") from None
    return int(when.replace(tzinfo=datetime.timezone.utc).timestamp()) * 10**9


def _format_time(mtime_ns: int) -> str:
    when = datetime.datetime.fromtimestamp(mtime_ns // 10**9, datetime.timezone.utc)
    return when.strftime("%Y%m%d%H%M%S")


def list_directory(ftp: ftplib.FTP, path: str, has_mlsd: bool) -> list[Remote]:
    """Return the files and directories in a directory of the server, sorted by name.

    Without MLSD (vsftpd), each name costs up to three commands.
    """
    found = _list_by_mlsd(ftp, path) if has_mlsd else _list_folder_by_nlst(ftp, path)
    return sorted(found, key=lambda remote: remote.name)


_KINDS = {"file": FileKind.FILE, "dir": FileKind.DIRECTORY}


def _list_by_mlsd(ftp: ftplib.FTP, path: str) -> Iterator[Remote]:
    # A generator of ftplib that is not exhausted would leave its data connection open.
    for name, facts in list(ftp.mlsd(path)):
        kind = facts.get("type", "").lower()
        if kind in {"cdir", "pdir"}:
            continue
        mtime_ns = _parse_time(facts["modify"]) if "modify" in facts else 0
        size = facts.get("size", "0")
        if not size.isdecimal():
            raise ftplib.error_proto(f"{path}: a size that is no number: {size!r:.40}")
        yield Remote(name, _KINDS.get(kind), int(size) if kind == "file" else 0, mtime_ns)


def _list_folder_by_nlst(ftp: ftplib.FTP, path: str) -> Iterator[Remote]:
    before = ftp.pwd()
    ftp.cwd(path)
    try:
        try:
            names = ftp.nlst()
        except ftplib.error_perm as e:
            if e.args[0][:3] != "550":  # some servers reply with an error if the directory is empty
                raise
            names = []
        ftp.voidcmd("TYPE I")
        here = ftp.pwd()
        for name in names:
            try:
                yield stat_file(ftp, name)
                continue
            except ftplib.error_perm:
                pass
            try:
                ftp.cwd(name)
            except ftplib.error_perm:
                yield Remote(name, None)
            else:
                ftp.cwd(here)
                yield Remote(name, FileKind.DIRECTORY)
    finally:
        ftp.cwd(before)


@contextlib.contextmanager
def _raise_reply_of_failed_transfer(ftp: ftplib.FTP) -> Iterator[None]:
    """If the data connection fails, raise the server's reply, which explains the failure."""
    try:
        yield
    except ConnectionError:
        if ftp.sock is not None:
            ftp.sock.settimeout(_REPLY_S)
            with contextlib.suppress(OSError, EOFError):
                ftp.voidresp()
        raise


def download_file(
    ftp: ftplib.FTP,
    path: str,
    tree: Tree,
    into: str,
    remote: Remote | None = None,
    progress: Progress | None = None,
) -> int:
    """Copy a file of the server to ``into`` below a local directory; return its size in octets.

    If a transfer of the same version of the file was interrupted before, it continues.

    Raises:
        ftplib.Error: the server refuses a command.
        EOFError, OSError: the connection has ended, or a file cannot be written. What has arrived
            is kept for the next attempt.

    """
    remote = remote or stat_file(ftp, path)
    mode = 0o666 & ~_current_umask()
    incoming = tree.begin_file(
        Entry(into, FileKind.FILE, remote.size, remote.mtime_ns, mode), resume=True
    )
    try:
        if progress:
            progress(incoming.position)
        # Without octets the server may refuse RETR for an offset at the end of the file.
        if incoming.position < remote.size or not remote.size:
            _receive_into_file(ftp, path, incoming, progress)
        if incoming.position != remote.size:
            raise OSError(
                errno.EPROTO,
                f"{path}: {incoming.position} of {remote.size} octets have arrived: the "
                "connection was lost, or the file has changed; try again",
            )
    except BaseException:
        incoming.abandon(keep=True)
        raise
    incoming.finish()
    return remote.size


def _receive_into_file(
    ftp: ftplib.FTP, path: str, incoming: Incoming, progress: Progress | None
) -> None:
    def write_to_incoming(data: bytes) -> None:
        incoming.write(incoming.position, memoryview(data))
        if progress:
            progress(len(data))

    with _raise_reply_of_failed_transfer(ftp):
        ftp.retrbinary(f"RETR {path}", write_to_incoming, BLOCK, rest=incoming.position or None)


def upload_file(
    ftp: ftplib.FTP,
    source: Source,
    path: str,
    *,
    resume: bool = False,
    keep_time: bool = False,
    progress: Progress | None = None,
) -> int:
    """Copy an open local file to the server; return its size in octets.

    Args:
        ftp: the connection.
        source: the file.
        path: its path at the server.
        resume: continue an interrupted upload, which has left a shorter file at the server, or on
            RD, RC and UD an incomplete one (``FTP.partial_path``). Only the size is compared.
        keep_time: set the modification time (MFMT) at the server.
        progress: called with octets as they are sent.

    Raises:
        ftplib.Error: the server refuses a command.
        OSError: the connection has ended, or the file cannot be read, or has changed meanwhile.

    """
    ftp.voidcmd("TYPE I")
    kept = ftp.partial_path(path) if resume and isinstance(ftp, FTP) else path
    if kept != path and isinstance(ftp, FTP):
        # On TCP the upload would continue the file `path`, not the incomplete file `kept`.
        try:
            with ftp.without_tcp():
                _send_file(ftp, source, path, kept, progress)
        except NoTransportError:
            _send_file(ftp, source, path, path if resume else None, progress)
    else:
        _send_file(ftp, source, path, path if resume else None, progress)
    source.check_unchanged()
    if keep_time:
        ftp.voidcmd(f"MFMT {_format_time(source.entry.mtime_ns)} {path}")
    return source.entry.size


def _send_file(
    ftp: ftplib.FTP, source: Source, path: str, kept: str | None, progress: Progress | None
) -> None:
    """Send a file; continue at the size of the server's file ``kept``, unless that is longer."""
    size, start = source.entry.size, 0
    if kept is not None:
        with contextlib.suppress(ftplib.error_perm):  # raised if no incomplete file exists
            start = ftp.size(kept) or 0
        start = start if start <= size else 0
    # A complete file needs no transfer. An incomplete file of full size still has to be renamed.
    if start and start == size and kept == path:
        if progress:
            progress(size)
        return
    reader = _Reader(source, start, progress)
    with _raise_reply_of_failed_transfer(ftp):
        ftp.storbinary(f"STOR {path}", reader, BLOCK, rest=start or None)


class _Reader:
    """A file object for ``storbinary``, which ends at the size that the file had when it was
    opened.
    """

    def __init__(self, source: Source, start: int, progress: Progress | None) -> None:
        self._source = source
        self._at = start
        self._progress = progress
        #: Octets to add to the next report of progress: at first those that the server has already.
        self._unreported = start

    def read(self, count: int = BLOCK, /) -> bytes:
        data = bytearray(min(count, self._source.entry.size - self._at))
        self._source.read(memoryview(data), self._at)
        self._at += len(data)
        if self._progress:
            self._progress(self._unreported + len(data))
            self._unreported = 0
        return bytes(data)


def _current_umask() -> int:
    with Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


@dataclass
class Mirror:
    """Copies a directory of the server to a local directory, or the reverse, with the changes only.

    A file whose size and time, in seconds, are equal is skipped. Symbolic links are not copied.
    After ``download`` or ``upload``, the counts and the failures say what happened.
    """

    ftp: ftplib.FTP
    tree: Tree
    #: Delete the files that only the destination has.
    delete: bool = False
    progress: Progress | None = None
    copied: int = 0
    skipped: int = 0
    deleted: int = 0
    octets: int = 0
    #: The path of each file that was not copied, with the reason.
    failures: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = list_server_features(self.ftp)
        self._has_mlsd = bool({"MLSD", "MLST"} & known)
        self._has_mfmt = "MFMT" in known

    @contextlib.contextmanager
    def _record_file_failures(self, path: str) -> Iterator[None]:
        """Record an error of one file as a failure; raise errors that end the connection."""
        try:
            yield
        except ftplib.error_perm as e:
            self.failures.append((path, str(e)))
        except OSError as e:
            # ConnectionError, TimeoutError and TLS errors end everything; errors of files do not.
            if isinstance(e, (ConnectionError, TimeoutError)) or e.errno in {None, errno.EPROTO}:
                raise
            self.failures.append((path, e.strerror or str(e)))

    def download(self, path: str, below: str = "") -> None:
        """Copy the directory ``path`` of the server to the local directory."""
        if below.count("/") >= MAX_DEPTH:
            raise OSError(
                errno.ELOOP, f"directories in each other: at most {MAX_DEPTH} are entered"
            )
        remotes = list_directory(self.ftp, path, self._has_mlsd)
        for remote in remotes:
            local = posixpath.join(below, remote.name)
            there = posixpath.join(path, remote.name)
            with self._record_file_failures(local):
                if remote.kind == FileKind.DIRECTORY:
                    self.tree.make_directory(
                        Entry(
                            local, FileKind.DIRECTORY, 0, remote.mtime_ns, 0o777 & ~_current_umask()
                        )
                    )
                    self.download(there, local)
                elif remote.kind == FileKind.FILE:
                    self._download_file(remote, there, local)
                else:
                    self.failures.append((local, "neither a file nor a directory"))
        if self.delete:
            names = {remote.name for remote in remotes}
            for name in self.tree.names(below):
                if name not in names:
                    self._delete_local(posixpath.join(below, name))

    def _download_file(self, remote: Remote, there: str, local: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if _is_up_to_date(self.tree.entry(local), remote):
                self.skipped += 1
                return
        self.octets += download_file(self.ftp, there, self.tree, local, remote, self.progress)
        self.copied += 1

    def _delete_local(self, path: str) -> None:
        with self._record_file_failures(path):
            for entry in reversed(list(self.tree.walk(path))):
                self.tree.delete(entry.path)
                self.deleted += 1

    def upload(self, path: str, below: str = "") -> None:
        """Copy the local directory to the directory ``path`` of the server."""
        try:
            remotes = {r.name: r for r in list_directory(self.ftp, path, self._has_mlsd)}
        except ftplib.error_perm:
            self.ftp.mkd(path)
            remotes = {}
        names = self.tree.names(below)
        for name in names:
            local, there = posixpath.join(below, name), posixpath.join(path, name)
            with self._record_file_failures(local):
                entry = self.tree.entry(local)
                if entry.kind == FileKind.DIRECTORY:
                    self.upload(there, local)
                elif entry.kind == FileKind.FILE:
                    self._upload_file(entry, there, remotes.get(name))
                else:
                    self.failures.append((local, "neither a file nor a directory"))
        if self.delete:
            for name in sorted(set(remotes) - set(names)):
                self._delete_remote(posixpath.join(path, name), remotes[name])

    def _upload_file(self, entry: Entry, there: str, remote: Remote | None) -> None:
        if remote is not None and _is_up_to_date(entry, remote):
            self.skipped += 1
            return
        source = self.tree.open_for_send(entry.path)
        try:
            self.octets += upload_file(
                self.ftp, source, there, keep_time=self._has_mfmt, progress=self.progress
            )
        finally:
            source.close()
        self.copied += 1

    def _delete_remote(self, path: str, remote: Remote) -> None:
        with self._record_file_failures(path):
            if remote.kind == FileKind.DIRECTORY:
                for below in list_directory(self.ftp, path, self._has_mlsd):
                    self._delete_remote(posixpath.join(path, below.name), below)
                self.ftp.rmd(path)
            else:
                self.ftp.delete(path)
            self.deleted += 1


def _is_up_to_date(entry: Entry, remote: Remote) -> bool:
    return (
        entry.kind == remote.kind
        and entry.size == remote.size
        and entry.mtime_ns // 10**9 == remote.mtime_ns // 10**9
    )
