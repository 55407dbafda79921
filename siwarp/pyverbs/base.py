# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Base classes of pyverbs: closing of objects, and errors with an errno value."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import weakref
from collections.abc import Iterator
from typing import ClassVar, Generic, NoReturn, TypeVar

from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from siwarp.verbs._ffi import Handle, ffi
from siwarp.verbs.errors import Error
from siwarp.verbs.mw import inc_rkey

__all__ = ["PyverbsCM", "PyverbsObject", "PyverbsRDMAErrno", "PyverbsRDMAError", "inc_rkey"]

LOG_LEVEL = logging.INFO
LOG_FORMAT = "[%(levelname)s] %(asctime)s %(filename)s:%(lineno)s: %(message)s"


def PyverbsRDMAErrno(msg: str) -> PyverbsRDMAError:
    """Return an exception with the errno value of the calling thread's last library call."""
    return PyverbsRDMAError(msg, int(ffi.errno))


@contextlib.contextmanager
def convert_errors(what: str) -> Iterator[None]:
    """Convert errors of ``siwarp.verbs`` in a ``with`` block to PyverbsRDMAError."""
    try:
        yield
    except Error as e:
        raise to_pyverbs_error(what, e) from e
    except (ValueError, OverflowError) as e:  # a number does not fit into the type of C
        raise PyverbsRDMAError(f"{what}: {e}", errno.EINVAL) from e


def to_pyverbs_error(what: str, error: Error) -> PyverbsRDMAError:
    """Convert an error of ``siwarp.verbs`` to an exception of pyverbs."""
    return PyverbsRDMAError(f"{what}: {error.strerror}", error.errno or errno.EIO)


def raise_unsupported(what: str, why: str) -> NoReturn:
    """Raise PyverbsRDMAError (EOPNOTSUPP) with the reason why ``what`` is not supported."""
    raise PyverbsRDMAError(f"siwarp has no {what}: {why}", errno.EOPNOTSUPP)


class PyverbsObject:
    """Base class of all classes of pyverbs."""

    logger = logging.getLogger("pyverbs")

    def set_log_level(self, val: int) -> None:
        """Set the level of pyverbs' logger."""
        self.logger.setLevel(val)


_serials = itertools.count()
Kind = TypeVar("Kind", bound="PyverbsCM")
H = TypeVar("H", bound=Handle)


class PyverbsCM(PyverbsObject):
    """Base class of objects that are closed by ``close()`` or the end of a ``with`` block."""

    #: Rank of an object in the closing of its parent, which closes children of low rank first.
    _RANK: ClassVar[int] = 0

    def _register_with_parents(self, *parents: PyverbsCM) -> None:
        """Register the object with its parents, which close the object before themselves."""
        self._serial = next(_serials)
        for parent in parents:
            parent._children_registry().add(self)

    def _children_registry(self) -> weakref.WeakSet[PyverbsCM]:
        found: weakref.WeakSet[PyverbsCM] | None = self.__dict__.get("_children")
        if found is None:
            found = weakref.WeakSet()
            self.__dict__["_children"] = found
        return found

    def _list_open_children_of_type(self, kind: type[Kind]) -> list[Kind]:
        """Return the open children of the given type."""
        return [
            one
            for one in list(self._children_registry())
            if isinstance(one, kind) and not one._is_closed
        ]

    @property
    def _is_closed(self) -> bool:
        return False

    def _close_children(self) -> None:
        below = self._children_registry()
        for child in sorted(below, key=lambda one: (one._RANK, -one._serial)):
            below.discard(child)  # closing a child may close its parents
            try:
                child.close()
            except BaseException:
                below.add(child)
                raise

    def close(self) -> None:
        """Close the object and its children; a second call has no effect."""
        self._close_children()

    def __enter__(self: Kind) -> Kind:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Wrapper(PyverbsCM, Generic[H]):
    """A pyverbs object that wraps a handle of ``siwarp.verbs`` or ``siwarp.cm``."""

    #: True if another object owns and closes the handle.
    _shared = False
    _h: H | None = None

    @property
    def _is_closed(self) -> bool:
        return self._h is None or self._h.closed

    def _native(self) -> H:
        if self._h is None or self._h.closed:
            raise PyverbsRDMAError(f"This {type(self).__name__} is closed", errno.EINVAL)
        return self._h

    def close(self) -> None:
        """Close the object's children, then the object; a second call has no effect.

        Raises:
            PyverbsRDMAError: the object is still in use (EBUSY).

        """
        self._close_children()
        if self._h is not None and not self._shared:
            with convert_errors(f"Failed to close this {type(self).__name__}"):
                self._h.close()

    def _release_imported_object(self) -> None:
        if not self._shared:
            raise PyverbsUserError(f"This {type(self).__name__} was not imported")
        self._h = None
