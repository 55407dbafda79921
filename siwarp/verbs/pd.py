# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Protection domains: memory, queue pairs and address handles can be combined only in one PD."""

from __future__ import annotations

from siwarp.verbs._ffi import Handle, check_pointer, destroy_objects_of_dropped_handles, lib
from siwarp.verbs.device import Context
from siwarp.verbs.wanted import require_instance

__all__ = ["PD"]


class PD(Handle):
    """A protection domain of an open device."""

    __slots__ = ("context",)
    _what = "PD"
    _destroy = lib.siw_dealloc_pd

    context: Context

    def _queue_pair_names(self) -> str:
        """Return the names of the PD's open queue pairs, for messages."""
        names = [repr(user) for user in self._list_open_children() if user._what == "QP"]
        return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")

    def __init__(self, context: Context) -> None:
        destroy_objects_of_dropped_handles()
        require_instance(
            context, Context, "a PD is created on an open device, for example PD(Context())"
        )
        c = check_pointer(lib.siw_alloc_pd(context._c_object()), f"making a PD on {context!r}")
        self.context = context
        self._adopt_c_object(c, context)
