# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The sources and destinations of a client's transfers: directories, open files and memory."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from siwarp.base import system
from siwarp.base.buffer import Buffer, octets
from siwarp.ulp.adts.registrations import ProgramMemory
from siwarp.ulp.adts.tree import Entry, Extent, Incoming, Tree
from siwarp.ulp.adts.wire import FileKind

__all__ = ["MemoryOrigin", "ObjectDestination", "TreeDestination", "origin_of_memory_or_file"]

#: Maximum number of zeros that are written to an open file of the program for the holes of a
#: received file: a sender could announce a hole that takes hours to write in 32 octets.
MAX_ZEROS = 1 << 30


class TreeDestination:
    """Files below ``base`` at the sender are put below ``target`` of a local directory.

    Args:
        tree: the local directory, writable.
        base: the path that was asked for; other paths are refused.
        target: the path in ``tree`` for ``base``.
        symlinks: whether symbolic links are created.

    """

    def __init__(self, tree: Tree, base: str, target: str, *, symlinks: bool) -> None:
        self._tree = tree
        self._base = base
        self._target = target
        self._symlinks = symlinks

    def _local_path(self, path: str) -> str:
        if path == self._base:
            return self._target
        start = f"{self._base}/" if self._base else ""
        if not path.startswith(start):
            raise OSError(errno.EPROTO, f"{path}: not below {self._base}, which was asked for")
        below = path[len(start) :]
        return f"{self._target}/{below}" if self._target else below

    def entry(self, path: str) -> Entry:
        """Return the local entry for a path of the sender."""
        return self._tree.entry(self._local_path(path))

    def begin_file(self, entry: Entry, resume: bool) -> Incoming:
        """Begin to receive a file."""
        return self._tree.begin_file(replace(entry, path=self._local_path(entry.path)), resume)

    def make_directory(self, entry: Entry, *, sync: bool) -> None:
        """Create a directory, unless it exists."""
        self._tree.make_directory(replace(entry, path=self._local_path(entry.path)), sync=sync)

    def make_symlink(self, entry: Entry, *, sync: bool) -> None:
        """Create a symbolic link if links are wanted."""
        if not self._symlinks:
            raise OSError(
                errno.ELOOP, f"{entry.path}: skipped, because it is a symbolic link (give --links)"
            )
        self._tree.make_symlink(replace(entry, path=self._local_path(entry.path)), sync=sync)


class ObjectDestination:
    """One file, which is put into memory or written to an open file of the program.

    Args:
        into: a writable buffer, or an object with ``write``.
        base: the path that was asked for.

    """

    def __init__(self, into: Any, base: str) -> None:
        self._into = into
        self._base = base

    def entry(self, path: str) -> Entry:
        """Raise FileNotFoundError: memory has no earlier version to compare with."""
        raise FileNotFoundError(errno.ENOENT, path)

    def begin_file(self, entry: Entry, resume: bool) -> _ObjectIncoming:
        """Begin to receive the only file of this destination."""
        if entry.path != self._base:
            raise OSError(errno.EPROTO, f"{entry.path}: {self._base} was asked for")
        if callable(getattr(self._into, "write", None)):
            return _ObjectIncoming(entry, self._write_to_object, MAX_ZEROS)
        view = octets(self._into)
        if view.readonly:
            raise OSError(errno.EINVAL, "the memory to receive into is read-only")
        if len(view) < entry.size:
            raise OSError(
                errno.ENOSPC,
                f"{entry.path}: needs memory of {entry.size} octets, but {len(view)} were given",
            )

        def copy_into_memory(offset: int, data: memoryview) -> None:
            view[offset : offset + len(data)] = data

        return _ObjectIncoming(entry, copy_into_memory, entry.size)

    def _write_to_object(self, offset: int, data: memoryview) -> None:
        while len(data):  # an unbuffered file may write only a part of the data
            written = self._into.write(data)
            data = data[len(data) if written is None else written :]

    def make_directory(self, entry: Entry, *, sync: bool) -> None:
        """Refuse: memory has no directories."""
        raise OSError(errno.EISDIR, f"{entry.path} is a directory: give a local directory")

    make_symlink = make_directory


class _ObjectIncoming:
    """A received file that is never resumed; the program decides when it is in stable storage.

    Args:
        entry: the announced file.
        put: called with the offset and the octets of each part, in order.
        zeros: how many octets of holes are put as zeros, at most.

    """

    def __init__(self, entry: Entry, put: Callable[[int, memoryview], None], zeros: int) -> None:
        self.entry = entry
        self.position = 0
        self._put = put
        self._zeros = zeros

    def find_stored_prefix(self) -> None:
        pass

    def write(self, offset: int, data: memoryview) -> None:
        if offset != self.position or len(data) > self.entry.size - offset:
            raise OSError(errno.EPROTO, f"{self.entry.path}: octets for a wrong offset, {offset}")
        self._put(offset, data)
        self.position += len(data)

    def skip_hole(self, offset: int, length: int) -> None:
        if offset != self.position or length > self.entry.size - offset:
            raise OSError(errno.EPROTO, f"{self.entry.path}: a hole at a wrong offset, {offset}")
        if length > self._zeros:
            raise OSError(
                errno.EFBIG,
                f"{self.entry.path}: has holes of more than {MAX_ZEROS} octets, which would be "
                "written as zeros: give a local path, where holes take no space",
            )
        self._zeros -= length
        zeros = memoryview(bytes(min(length, 1 << 20)))
        while length:
            part = zeros[: min(length, len(zeros))]
            self.write(self.position, part)
            length -= len(part)

    def finish(self, *, sync: bool) -> None:
        if self.position != self.entry.size:
            raise OSError(errno.EPROTO, f"{self.entry.path}: octets are missing at its end")

    def abandon(self, *, keep: bool) -> None:
        pass


class MemoryOrigin:
    """One file, which is memory of the program; the program must not change it meanwhile."""

    def __init__(self, data: Buffer) -> None:
        self._view = octets(data)
        self.memory = ProgramMemory.find(data, self._view)
        self.entry = Entry("", FileKind.FILE, len(self._view), system.clock_ns(True))

    def open_for_send(self, path: str) -> MemoryOrigin:
        """Return the file."""
        return self

    def extent_at(self, offset: int) -> Extent:
        """Return the octets from the offset to the end as one extent of data."""
        return Extent(offset, self.entry.size - offset, False)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill a buffer with octets of the memory."""
        into[:] = self._view[offset : offset + len(into)]

    def check_unchanged(self) -> None:
        """Do nothing: the program has promised not to change the memory."""

    def close(self) -> None:
        """Do nothing: the memory belongs to the program."""


class _FileOrigin:
    """One open file of the program, from its position to its end.

    The octets of a file that cannot seek are first copied to a temporary file.
    """

    memory = None

    def __init__(self, file: Any) -> None:
        if not (hasattr(file, "seekable") and file.seekable()):
            copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its last user
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.seek(0)
            file = copy
        self._file = file
        self._start = file.tell()
        size = file.seek(0, io.SEEK_END) - self._start
        self.entry = Entry("", FileKind.FILE, max(size, 0), system.clock_ns(True))

    def open_for_send(self, path: str) -> _FileOrigin:
        return self

    def extent_at(self, offset: int) -> Extent:
        return Extent(offset, self.entry.size - offset, False)

    def read(self, into: memoryview, offset: int) -> None:
        self._file.seek(self._start + offset)
        done = 0
        while done < len(into):
            data = self._file.read(len(into) - done)
            if not data:
                raise OSError(
                    errno.EAGAIN, "the file became shorter while it was sent: send it again"
                )
            into[done : done + len(data)] = data
            done += len(data)

    def check_unchanged(self) -> None:
        with contextlib.suppress(io.UnsupportedOperation):
            if self._file.seek(0, io.SEEK_END) - self._start != self.entry.size:
                raise OSError(
                    errno.EAGAIN, "the file became longer while it was sent: send it again"
                )

    def close(self) -> None:
        pass


def origin_of_memory_or_file(source: Any) -> MemoryOrigin | _FileOrigin | None:
    """Return the origin for memory or an open binary file; None for a path.

    Raises:
        TypeError: the object is none of these, or a file of text.
        OSError: the file cannot be read.

    """
    if isinstance(source, str | os.PathLike):
        return None
    if isinstance(source, io.TextIOBase):
        raise TypeError("the file was opened as text: open it with mode 'rb'")
    return _FileOrigin(source) if hasattr(source, "read") else MemoryOrigin(source)
