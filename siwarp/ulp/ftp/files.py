# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The files that an FTP server shows: those below one directory, as pyftpdlib's file system.

To pyftpdlib, the root is ``/`` and a path is the path of the client. Each component of a path is
opened from the descriptor of the directory before it with O_NOFOLLOW, so that neither ``..`` nor a
symbolic link, even one that is created meanwhile, leads out of the root. Symbolic links are listed,
renamed and deleted, but never followed. Only regular files are opened: opening a FIFO would block
all clients of the process.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyftpdlib.exceptions import FilesystemError
from pyftpdlib.filesystems import AbstractedFS

from siwarp.base.buffer import Buffer

__all__ = ["File", "FileSystem"]

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: The flags of open() for pyftpdlib's modes of RETR, STOR, APPE, and STOR after REST.
_FLAGS = {
    "rb": os.O_RDONLY,
    "wb": os.O_WRONLY | os.O_CREAT,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "r+b": os.O_RDWR,
}


class File(io.FileIO):
    """An open regular file without a buffer; each write is complete or raises OSError.

    Without a buffer no octets wait for ``close``, whose errors pyftpdlib does not report.
    """

    #: The path of the file, as it appears in the log.
    name: str
    #: The path that the file gets when its upload is complete; None: it has its final name.
    final: str | None = None

    def __init__(self, fd: int, path: str, mode: str) -> None:
        super().__init__(fd, mode)
        self.name = path

    def write(self, data: Buffer) -> int:
        """Write all octets of ``data`` to the file.

        Raises:
            OSError: the disk is full, or another error of the file system.

        """
        view = memoryview(data)  # type: ignore[arg-type]  # before Python 3.12 no type says this
        done = 0
        while done < len(view):
            done += super().write(view[done:]) or 0
        return done


class FileSystem(AbstractedFS):  # type: ignore[misc]  # pyftpdlib has no types
    """The files below the directory ``root``, for the session of one client.

    All methods raise FilesystemError, whose text is for the client, for a path that is refused, and
    OSError for what the file system refuses.
    """

    def __init__(self, root: str, cmd_channel: Any) -> None:
        super().__init__("/", cmd_channel)
        self._home = root

    # ---- paths: those of pyftpdlib are those of the client

    def ftp2fs(self, ftppath: str) -> str:
        """Return the absolute path of a path that may be relative to the working directory."""
        path: str = self.ftpnorm(ftppath)
        return path

    def fs2ftp(self, fspath: str) -> str:
        """Return the path that replies show to the client."""
        return fspath

    def validpath(self, path: str) -> bool:
        """Accept every path, because the other methods refuse paths that lead out of the root."""
        return True

    def realpath(self, path: str) -> str:
        """Return the path itself: symbolic links are not followed."""
        return path

    # ---- opening

    @contextlib.contextmanager
    def open_directory(self, path: str) -> Iterator[int]:
        """Yield a descriptor (O_PATH) of a directory."""
        fd = os.open(self._home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in _path_components(path):
                try:
                    below = os.open(part, _DIRECTORY, dir_fd=fd)
                except OSError as e:
                    if e.errno == errno.ENOTDIR:
                        raise FilesystemError(
                            "Not a directory: give a path without symbolic links"
                        ) from None
                    raise
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def open_parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the directory that contains ``path``, and the name in it."""
        parts = _path_components(path)
        if not parts:
            raise FilesystemError("The root directory cannot be changed: name a file in it")
        with self.open_directory("/".join(parts[:-1])) as fd:
            yield fd, parts[-1]

    def open(self, filename: str, mode: str) -> File:
        """Open a regular file with one of pyftpdlib's modes.

        An existing file is truncated for ``wb``, but only after it was found to be regular.
        """
        with self.open_parent(filename) as (directory, name):
            try:
                fd = os.open(name, _FLAGS[mode] | _FILE, 0o666, dir_fd=directory)
            except OSError as e:
                if e.errno == errno.ELOOP:
                    raise FilesystemError(
                        "A symbolic link, which is not followed: name its target"
                    ) from None
                if e.errno == errno.ENXIO:  # the file is a FIFO without a reader, or a socket
                    raise FilesystemError(
                        "Not a regular file: only those are transferred"
                    ) from None
                raise
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise FilesystemError("Is a directory: name a file in it")
            if not stat.S_ISREG(status.st_mode):
                raise FilesystemError("Not a regular file: only those are transferred")
            if mode == "wb":
                os.ftruncate(fd, 0)
            return File(fd, filename, mode)
        except BaseException:
            os.close(fd)
            raise

    def mkstemp(
        self, suffix: str = "", prefix: str = "", dir: str | None = None, mode: str = "wb"
    ) -> File:
        """Create a file with a name that no other file has (STOU)."""
        assert dir is not None
        for _ in range(50):
            path = os.path.join(dir, f"{prefix}{os.urandom(4).hex()}{suffix}")  # noqa: PTH118
            with self.open_parent(path) as (directory, name):
                try:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
                    return File(os.open(name, flags, 0o666, dir_fd=directory), path, mode)
                except FileExistsError:
                    continue
        raise FilesystemError("No unused name was found: try again")

    # ---- reading

    def lstat(self, path: str) -> os.stat_result:
        """Return the attributes of a file, a directory or a symbolic link."""
        if not _path_components(path):
            with self.open_directory(path) as fd:
                return os.fstat(fd)
        with self.open_parent(path) as (directory, name):
            return os.stat(name, dir_fd=directory, follow_symlinks=False)

    stat = lstat

    def readlink(self, path: str) -> str:
        """Return the target of a symbolic link."""
        with self.open_parent(path) as (directory, name):
            return os.readlink(name, dir_fd=directory)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, without those that a listing cannot express."""
        with self.open_directory(path) as directory:
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
            try:
                names = os.listdir(fd)  # noqa: PTH208 - pathlib knows no descriptors
                return [name for name in names if not {"\r", "\n"} & set(name)]
            finally:
                os.close(fd)

    listdirinfo = listdir

    def format_mlsx(
        self,
        basedir: str,
        listing: list[str],
        perms: str,
        facts: list[str],
        ignore_err: bool = True,
    ) -> Iterator[bytes]:
        """Yield the lines of MLSD and MLST. Only regular files have the type ``file``."""
        for name in listing:
            path = os.path.join(basedir, name)  # noqa: PTH118
            for line in super().format_mlsx(basedir, [name], perms, facts, ignore_err):
                described, space, rest = line.partition(b" ")
                if b"type=file;" in described and not self.isfile(path):
                    kind = b"slink" if self.islink(path) else b"special"
                    described = described.replace(b"type=file;", b"type=OS.unix=%b;" % kind)
                yield described + space + rest

    def _is_of_kind(self, path: str, kind: Callable[[int], bool]) -> bool:
        try:
            return kind(self.lstat(path).st_mode)
        except (OSError, FilesystemError):
            return False

    def isfile(self, path: str) -> bool:
        """Return whether the path is a regular file."""
        return self._is_of_kind(path, stat.S_ISREG)

    def isdir(self, path: str) -> bool:
        """Return whether the path is a directory."""
        return self._is_of_kind(path, stat.S_ISDIR)

    def islink(self, path: str) -> bool:
        """Return whether the path is a symbolic link."""
        return self._is_of_kind(path, stat.S_ISLNK)

    def lexists(self, path: str) -> bool:
        """Return whether the path exists."""
        return self._is_of_kind(path, lambda _: True)

    def getsize(self, path: str) -> int:
        """Return the size of a file in octets."""
        return self.lstat(path).st_size

    def getmtime(self, path: str) -> float:
        """Return the modification time in seconds since 1970."""
        return self.lstat(path).st_mtime

    # ---- changing

    def copy(self, source: str, destination: str, octets: int | None) -> None:
        """Copy a file, or its first octets, to a new file; usable in every thread."""
        with self.open(source, "rb") as old, self.open(destination, "wb") as new:
            left = os.fstat(old.fileno()).st_size if octets is None else octets
            while left > 0:
                done = os.copy_file_range(old.fileno(), new.fileno(), min(left, 1 << 30))
                if not done:
                    break
                left -= done

    def chdir(self, path: str) -> None:
        """Change the working directory of the session; that of the process stays."""
        with self.open_directory(path) as fd:
            os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd))
        self.cwd = path

    def mkdir(self, path: str) -> None:
        """Create a directory."""
        with self.open_parent(path) as (directory, name):
            os.mkdir(name, dir_fd=directory)

    def rmdir(self, path: str) -> None:
        """Delete an empty directory."""
        with self.open_parent(path) as (directory, name):
            os.rmdir(name, dir_fd=directory)

    def remove(self, path: str) -> None:
        """Delete a file or a symbolic link."""
        with self.open_parent(path) as (directory, name):
            os.unlink(name, dir_fd=directory)

    def rename(self, src: str, dst: str) -> None:
        """Rename a file, a directory or a symbolic link."""
        with self.open_parent(src) as (old, name), self.open_parent(dst) as (new, wanted):
            os.rename(name, wanted, src_dir_fd=old, dst_dir_fd=new)

    @contextlib.contextmanager
    def _open_for_attribute_change(self, path: str) -> Iterator[str]:
        """Yield a path in /proc by which the attributes of a file or directory can be changed."""
        with self.open_parent(path) as (directory, name):
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                if stat.S_ISLNK(os.fstat(fd).st_mode):
                    raise FilesystemError("A symbolic link, which is not followed: name its target")
                yield f"/proc/self/fd/{fd}"
            finally:
                os.close(fd)

    def chmod(self, path: str, mode: int) -> None:
        """Set the nine permission bits; the others of ``mode`` (setuid) are ignored."""
        with self._open_for_attribute_change(path) as file:
            Path(file).chmod(mode & 0o777)

    def utime(self, path: str, timeval: float) -> None:
        """Set the modification time, in seconds since 1970."""
        with self._open_for_attribute_change(path) as file:
            os.utime(file, (timeval, timeval))


def _path_components(path: str) -> list[str]:
    """Return the components of a path that ``ftpnorm`` has normalized."""
    if "\0" in path:
        raise FilesystemError("The path contains NUL: remove it")
    assert ".." not in path.split("/")
    return [part for part in path.split("/") if part]
