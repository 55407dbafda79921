# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Protection domains: ``pyverbs.pd``."""

from __future__ import annotations

import errno
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import UInt
from siwarp.pyverbs.base import (
    PyverbsObject,
    PyverbsRDMAErrno,
    Wrapper,
    convert_errors,
    raise_unsupported,
)
from siwarp.pyverbs.device import Context
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from siwarp.verbs.pd import PD as NativePD

if TYPE_CHECKING:
    from siwarp.pyverbs.cmid import CMID
    from siwarp.pyverbs.mr import MR
    from siwarp.pyverbs.wr import SGE

__all__ = [
    "PD",
    "ParentDomain",
    "ParentDomainContext",
    "ParentDomainInitAttr",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "PyverbsUserError",
]

_handles = itertools.count(1)
_open: weakref.WeakValueDictionary[int, PD] = weakref.WeakValueDictionary()
_PREFETCHES = range(3)


class PD(Wrapper[NativePD]):
    """A protection domain of a Context or a CMID; ``handle`` imports an existing one.

    Raises:
        PyverbsRDMAError: the device has no room for another protection domain (ENOMEM), or none has
            this handle (EINVAL).

    """

    _RANK = 8

    def __init__(self, creator: Context | CMID, **kwargs: Any) -> None:
        self._handle = 0
        if not isinstance(creator, Context):
            self._h, self._shared = creator._native_pd(), True
            self._context = Context(cmid=creator)
            self._register_with_parents(self._context)
            return
        self._context = creator
        if kwargs.get("handle") is not None:
            self._import_by_handle(int(kwargs["handle"]))
        else:
            with convert_errors("Failed to allocate a PD"):
                self._h = NativePD(creator._native())
            self._assign_handle()
        self._register_with_parents(creator)

    def _assign_handle(self) -> None:
        self._handle = next(_handles)
        _open[self._handle] = self

    def _import_by_handle(self, handle: int) -> None:
        other = _open.get(handle)
        if (
            other is None
            or other._is_closed
            or other._native().context is not (self._context._native())
        ):
            raise PyverbsRDMAError(
                f"Failed to import PD {handle}: this device has none with this handle",
                errno.EINVAL,
            )
        self._h, self._shared, self._handle, self._other = other._h, True, handle, other

    def unimport(self) -> None:
        """End an import of a protection domain, which stays open."""
        self._release_imported_object()

    @property
    def handle(self) -> int:
        """Handle number of the protection domain, for ``PD(context, handle=...)``."""
        return self._handle

    @property
    def pd(self) -> int:
        """A unique number of the protection domain."""
        return id(self._native())

    def _list_open_regions(self) -> list[MR]:
        from siwarp.pyverbs.mr import MR

        return self._list_open_children_of_type(MR)

    def advise_mr(self, advise: int, flags: int, sg_list: Sequence[SGE]) -> int:
        """Check advice about memory, which has no effect, as memory is paged in on use.

        Raises:
            PyverbsRDMAError: an advice or flag is not defined, or an element is in no region
                (EINVAL).

        """
        reason = ""
        if advise not in _PREFETCHES or flags & ~e._IBV_ADVISE_MR_FLAG_FLUSH:
            reason = "the advice or flag is not defined"
        elif not sg_list:
            reason = "no elements"
        elif not all(any(mr._contains(one) for mr in self._list_open_regions()) for one in sg_list):
            reason = "an element lies in no region of this PD"
        if reason:
            raise PyverbsRDMAError(f"Failed to advise MR: {reason}", errno.EINVAL)
        return 0


class ParentDomainContext(PyverbsObject):
    """Functions of the program that allocate the memory of queues."""

    user_data: object = None

    def __init__(
        self,
        pd: PD,
        alloc_func: Callable[..., int],
        free_func: Callable[..., None],
        user_data: object = None,
    ) -> None:
        self._pd, self._alloc, self._free = pd, alloc_func, free_func
        self.user_data = user_data


_OF_PD_CONTEXT = e.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | e.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT


class ParentDomainInitAttr(PyverbsObject):
    """Creation parameters of a parent domain.

    Raises:
        PyverbsUserError: the mask has bits of ``pd_context`` without one.

    """

    comp_mask = UInt(32)

    def __init__(
        self, pd: PD, pd_context: ParentDomainContext | None = None, comp_mask: int = 0
    ) -> None:
        self._pd, self._pd_context = pd, pd_context
        if pd_context is not None:
            comp_mask |= _OF_PD_CONTEXT
        elif comp_mask & _OF_PD_CONTEXT:
            raise PyverbsUserError(
                "comp_mask has ALLOCATORS or PD_CONTEXT, which require a pd_context"
            )
        self.comp_mask = comp_mask


class ParentDomain(PD):
    """A parent domain, which is another object for an existing protection domain.

    Raises:
        PyverbsRDMAError: the program supplies allocators (EOPNOTSUPP).

    """

    _RANK = 6

    def __init__(self, context: Context, attr: ParentDomainInitAttr) -> None:
        if attr._pd_context is not None:
            raise_unsupported(
                "allocators for parent domains", "the engine allocates the memory of queues"
            )
        self._context = context
        self._h, self._shared = attr._pd._native(), True
        self._assign_handle()
        self._parent = attr._pd
        self._register_with_parents(context, attr._pd)

    def _list_open_regions(self) -> list[MR]:
        return super()._list_open_regions() + self._parent._list_open_regions()
