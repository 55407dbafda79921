# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the objects of pyverbs have in common: closing, and errors with an errno value."""

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
    """Return the exception for the errno value of this thread's last call of the library."""
    return PyverbsRDMAError(msg, int(ffi.errno))


@contextlib.contextmanager
def rdma(what: str) -> Iterator[None]:
    """Raise an error of ``siwarp.verbs`` as PyverbsRDMAError, which says what failed and why."""
    try:
        yield
    except Error as e:
        raise failed(what, e) from e
    except (ValueError, OverflowError) as e:  # no number that C takes
        raise PyverbsRDMAError(f"{what}: {e}", errno.EINVAL) from e


def failed(what: str, error: Error) -> PyverbsRDMAError:
    """Return the exception for an error of ``siwarp.verbs``."""
    return PyverbsRDMAError(f"{what}: {error.strerror}", error.errno or errno.EIO)


def refuse(what: str, why: str) -> NoReturn:
    """Raise that siwarp does not have this (EOPNOTSUPP), and why."""
    raise PyverbsRDMAError(f"siwarp has no {what}: {why}", errno.EOPNOTSUPP)


class PyverbsObject:
    """What everything in pyverbs is derived from."""

    logger = logging.getLogger("pyverbs")

    def set_log_level(self, val: int) -> None:
        """Set the level from which on pyverbs' logger says something."""
        self.logger.setLevel(val)


_serials = itertools.count()
Kind = TypeVar("Kind", bound="PyverbsCM")
H = TypeVar("H", bound=Handle)


class PyverbsCM(PyverbsObject):
    """An object that a ``with`` block or ``close()`` ends, after all that was made from it."""

    #: Of the children of one object, those with the lowest rank close first.
    _RANK: ClassVar[int] = 0

    def _made_from(self, *parents: PyverbsCM) -> None:
        """Have these objects close this one before they close themselves."""
        self._serial = next(_serials)
        for parent in parents:
            parent._below().add(self)

    def _below(self) -> weakref.WeakSet[PyverbsCM]:
        found: weakref.WeakSet[PyverbsCM] | None = self.__dict__.get("_children")
        if found is None:
            found = weakref.WeakSet()
            self.__dict__["_children"] = found
        return found

    def _of(self, kind: type[Kind]) -> list[Kind]:
        """Return the open objects of this kind that were made from it."""
        return [one for one in list(self._below()) if isinstance(one, kind) and not one._is_closed]

    @property
    def _is_closed(self) -> bool:
        return False

    def _close_children(self) -> None:
        below = self._below()
        for child in sorted(below, key=lambda one: (one._RANK, -one._serial)):
            below.discard(child)  # it may close what it was made from
            try:
                child.close()
            except BaseException:
                below.add(child)
                raise

    def close(self) -> None:
        """End it; a second call does nothing."""
        self._close_children()

    def __enter__(self: Kind) -> Kind:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Wrapper(PyverbsCM, Generic[H]):
    """An object of pyverbs around a handle of ``siwarp.verbs`` or ``siwarp.cm``."""

    #: Whether the handle is another object's, which closes it.
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
        """End it, after all that was made from it; a second call does nothing.

        Raises:
            PyverbsRDMAError: something still uses it (EBUSY).

        """
        self._close_children()
        if self._h is not None and not self._shared:
            with rdma(f"Failed to close this {type(self).__name__}"):
                self._h.close()

    def _unimport(self) -> None:
        if not self._shared:
            raise PyverbsUserError(f"This {type(self).__name__} was not imported")
        self._h = None
