# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Registrations of the program's memory, from which units are sent without a copy.

A registration stays in a cache after a transfer, so that the next transfer of the same memory finds
it. It does not keep the memory alive, but ends with the object that provides the memory. Two
transfers of the same octets share it, because its key is their address and number. It permits
nothing but sending from this end, so no peer can reach memory through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import weakref
from collections import OrderedDict
from functools import partial
from typing import Any, NamedTuple

from siwarp.base.buffer import Buffer
from siwarp.verbs import MR, PD, AccessFlag, StateError

__all__ = ["Payload", "ProgramMemory", "Registration", "Registrations"]

#: Maximum number of registrations, and of octets of registered memory, that a cache keeps for
#: further transfers; the cache always keeps the registration that was used last.
MAX_KEPT = 16
MAX_OCTETS = 1 << 30


class ProgramMemory:
    """Memory of the program that is sent, and the object that provides it.

    The object exists at least as long as this one, and does not move the memory meanwhile.
    """

    __slots__ = ("address", "owner", "view")

    def __init__(self, owner: Buffer, view: memoryview) -> None:
        """See ``find``."""
        self.owner = owner
        self.view = view
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(view))

    @classmethod
    def find(cls, owner: Buffer, view: memoryview) -> ProgramMemory | None:
        """Return the memory of which ``view`` has the octets; ``None`` if it cannot be registered.

        Read-only memory has no address for Python, and the end of an object without weak references
        (a bytearray) is not seen.
        """
        if view.readonly or not len(view):
            return None
        try:
            weakref.ref(owner)
        except TypeError:
            return None
        return cls(owner, view)


class Payload(NamedTuple):
    """Octets of the program's memory that are the end of a unit."""

    memory: ProgramMemory
    offset: int
    length: int

    @property
    def view(self) -> memoryview:
        """The octets."""
        return self.memory.view[self.offset : self.offset + self.length]


class Registration:
    """A registration and the number of its users."""

    __slots__ = ("is_kept", "mr", "users", "watch")

    def __init__(self, mr: MR, watch: weakref.ref[Any]) -> None:
        self.mr = mr
        self.users = 0
        #: Whether the cache has the registration; otherwise it ends with its last user.
        self.is_kept = True
        self.watch = watch

    def close_if_unused(self) -> None:
        """Deregister, unless a Send uses the registration or the cache keeps it."""
        if not self.users and not self.is_kept:
            with contextlib.suppress(StateError):  # closing the device has closed the region
                self.mr.close()


class Registrations:
    """The cache of one device. Only the thread of the event loop may use it."""

    def __init__(self, pd: PD) -> None:
        self._pd = pd
        self._loop = asyncio.get_running_loop()
        # The registrations by address and length; the one that was used last is at the end.
        self._kept: OrderedDict[tuple[int, int], Registration] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of registrations in the cache."""
        return len(self._kept)

    def take(self, memory: ProgramMemory) -> Registration:
        """Return the registration of some memory; the caller releases it.

        The caller keeps ``memory`` until then.

        Raises:
            Error: the memory cannot be registered: it must be copied instead.

        """
        key = (memory.address, len(memory.view))
        registration = self._kept.get(key)
        if registration is None:
            registration = self._register(memory, key)
        else:
            with contextlib.suppress(KeyError):  # another thread has just dropped the registration
                self._kept.move_to_end(key)
        registration.users += 1
        return registration

    def release(self, registration: Registration) -> None:
        """End one use of a registration."""
        registration.users -= 1
        registration.close_if_unused()
        self._drop_unused_above_limits()

    def _register(self, memory: ProgramMemory, key: tuple[int, int]) -> Registration:
        # Register an array of ctypes at the address, because a region of the object itself would
        # keep a reference to the object, which would never be freed.
        octets = (ctypes.c_ubyte * key[1]).from_address(key[0])
        watch = weakref.ref(memory.owner, partial(self._on_owner_gone, key))
        registration = Registration(MR(self._pd, octets, AccessFlag(0)), watch)
        self._kept[key] = registration
        self._drop_unused_above_limits()
        return registration

    def _on_owner_gone(self, key: tuple[int, int], watch: weakref.ref[Any]) -> None:
        """Drop a registration; any thread may call this, before the memory is freed."""
        registration = self._kept.get(key)
        if registration is not None and registration.watch is watch:
            del self._kept[key]
            registration.is_kept = False
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(registration.close_if_unused)

    def _drop_unused_above_limits(self) -> None:
        """Drop unused registrations, those used longest ago first, until the limits are met."""
        for key, registration in list(self._kept.items())[:-1]:
            if len(self._kept) <= MAX_KEPT and self._kept_octets() <= MAX_OCTETS:
                return
            if not registration.users and self._kept.pop(key, None) is not None:
                registration.is_kept = False
                registration.close_if_unused()

    def _kept_octets(self) -> int:
        return sum(length for _, length in list(self._kept))
