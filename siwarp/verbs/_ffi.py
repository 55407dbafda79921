# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Calls into the C library: conversion of errors and addresses, and the lifetime of handles."""

from __future__ import annotations

import atexit
import errno
import itertools
import os
import socket
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from siwarp.base import system
from siwarp.base.closing import Closing
from siwarp.base.library import ffi, lib
from siwarp.verbs.errors import Error, StateError, error_from_errno
from siwarp.verbs.reason import refusal_error
from siwarp.verbs.wanted import address_host_and_port

__all__ = [
    "Address",
    "Handle",
    "Waitable",
    "addr_bytes_to_python",
    "addr_from_c",
    "addr_to_c",
    "check_pointer",
    "check_return_code",
    "clamp_to_int",
    "clamp_to_uint",
    "destroy_objects_of_dropped_handles",
    "ffi",
    "lib",
    "list_open_root_handles",
    "next_wait_ms",
    "register_exit_callback",
]

#: An IP address and a port, like Python's socket addresses; for IPv6 only the first two items.
Address = tuple[str, int]

#: Milliseconds that a blocking call waits inside the library before it sleeps on a descriptor. A
#: signal that arrives just before the wait in the library is handled after at most this time.
SLICE_MS = 50


def check_return_code(rc: int, what: str, advice: Mapping[int, str] | None = None) -> int:
    """Return ``rc``; if ``rc`` is a negative errno value, raise the exception for that value."""
    if rc >= 0:
        return rc
    raise _error_for_errno(-rc, what, advice)


def check_pointer(pointer: Any, what: str, advice: Mapping[int, str] | None = None) -> Any:
    """Return ``pointer``; if ``pointer`` is NULL, raise the exception for ``errno``."""
    if pointer:
        return pointer
    raise _error_for_errno(ffi.errno, what, advice)


def _error_for_errno(number: int, what: str, advice: Mapping[int, str] | None) -> Error:
    """Return the exception for errno ``number``, with the given advice or the library's reason."""
    if advice and number in advice:
        return error_from_errno(number, what, advice[number])
    return refusal_error(number, what)


def clamp_to_int(number: int) -> int:
    """Return ``number``, or if it does not fit a C int, a number that is refused for the same
    reason.
    """
    return max(-1, min(number, 0x7FFFFFFF))


def clamp_to_uint(number: int) -> int:
    """Return ``number``, or the largest unsigned 32-bit value if ``number`` does not fit 32
    bits.
    """
    return number if 0 <= number <= 0xFFFFFFFF else 0xFFFFFFFF


# ---- addresses ----------------------------------------------------------------------------


def addr_to_c(address: Address | tuple[Any, ...] | None) -> Any:
    """Return a ``struct siw_addr`` for ``(host, port)``; for ``None`` its family is 0.

    A host that is not a numeric address is looked up; ``""`` means every IPv4 address.
    """
    out = ffi.new("struct siw_addr *")
    if address is None:
        return out
    host, port = address_host_and_port(address)
    if not 0 <= port <= 65535:
        raise ValueError(f"port {port} is not one of 0..65535")
    if lib.siw_addr_parse((host or "0.0.0.0").encode(), port, out) == 0:
        return out
    try:
        found = system.addresses(host, port, socket.SOCK_DGRAM, 0)
    except (socket.gaierror, UnicodeError) as e:
        raise Error(
            errno.EINVAL, f"{host!r} is neither a numeric address nor a known host name ({e})"
        ) from None
    for _family, _type, _proto, _name, sockaddr in found:
        if lib.siw_addr_parse(str(sockaddr[0]).encode(), port, out) == 0:
            return out
    raise Error(errno.EINVAL, f"{host!r} has no IPv4 or IPv6 address")


def addr_bytes_to_python(raw: bytes) -> Address | None:
    """Return the 28 octets of a ``struct siw_addr`` as ``(ip, port)``, or ``None`` for family 0."""
    family = int.from_bytes(raw[:2], "little" if _LITTLE else "big")
    port = raw[2] << 8 | raw[3]
    if family == socket.AF_INET:
        return f"{raw[4]}.{raw[5]}.{raw[6]}.{raw[7]}", port
    if family == socket.AF_INET6:
        ip = socket.inet_ntop(socket.AF_INET6, raw[8:24])
        scope = int.from_bytes(raw[24:28], "little" if _LITTLE else "big")
        if scope:
            try:
                ip = f"{ip}%{socket.if_indextoname(scope)}"
            except OSError:
                ip = f"{ip}%{scope}"
        return ip, port
    return None


_LITTLE = bytes(ffi.buffer(ffi.new("uint16_t *", 1)))[0] == 1


def addr_from_c(addr: Any) -> Address | None:
    """Return a ``struct siw_addr`` (or a pointer to one) as ``(ip, port)``."""
    pointer = addr if ffi.typeof(addr).kind == "pointer" else ffi.addressof(addr)
    return addr_bytes_to_python(bytes(ffi.buffer(pointer, ffi.sizeof("struct siw_addr"))))


# ---- handles ------------------------------------------------------------------------------

_serials = itertools.count(1)
_roots: weakref.WeakSet[Handle] = weakref.WeakSet()

# Objects dropped by the garbage collector: (destroy, C object, parents). The collector may run in
# any thread at any time, even inside a call of the library, so it only appends to this queue.
_dropped: deque[tuple[Callable[[Any], int], Any, tuple[Any, ...], int]] = deque()
_reaping = system.lock()
#: This lock is held while the C object is removed from a handle, so that only one thread destroys
#: the object. The lock is reentrant, because a signal handler may close a handle meanwhile.
_ending = system.rlock()
#: This lock is held while wake-up callbacks are called, added or removed.
_watching = system.rlock()


def destroy_objects_of_dropped_handles() -> None:
    """Destroy the C objects of handles that were dropped without ``close()``.

    Opening and closing a handle calls this; polling and posting do not.
    """
    while _dropped and _reaping.acquire(blocking=False):
        try:
            progress = False
            for _ in range(len(_dropped)):
                item = _dropped.popleft()
                destroy, c, _keep, pid = item
                if pid == os.getpid() and destroy(c) == -errno.EBUSY:
                    _dropped.append(item)
                else:
                    progress = True
                del item, _keep
        finally:
            _reaping.release()
        if not progress:
            return


def _reset_after_fork() -> None:
    """In a forked child, replace locks that the parent may hold, and forget its objects."""
    global _reaping, _ending, _watching
    _reaping, _ending, _watching = system.lock(), system.rlock(), system.rlock()
    _dropped.clear()


os.register_at_fork(after_in_child=_reset_after_fork)

T = TypeVar("T")


class Handle(Closing):
    """A Python object that represents one object of the C library.

    A handle keeps its parents alive, knows its children, and closes once. At the end of a ``with``
    block it closes after all handles created from it.
    """

    __slots__ = ("__weakref__", "_c", "_children", "_keep", "_parents", "_pid", "_serial")

    #: The name of the kind of object, for messages.
    _what: ClassVar[str] = "object"
    #: The C function that destroys the object.
    _destroy: ClassVar[Callable[[Any], int]]

    def _adopt_c_object(self, c: Any, *parents: Handle, keep: tuple[Any, ...] = ()) -> None:
        """Take over the C object ``c``, which was created from ``parents`` and uses ``keep``."""
        self._c = c
        self._keep = keep
        self._parents = parents
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._serial = next(_serials)
        self._pid = os.getpid()
        for parent in parents:
            parent._children.add(self)
        if not parents:
            _roots.add(self)

    def _c_object(self) -> Any:
        """Return the C object, or raise StateError if the handle is closed."""
        c = getattr(self, "_c", None)
        if c is None:
            raise StateError(errno.EBADF, f"this {self._what} is closed: open a new one")
        return c

    @property
    def closed(self) -> bool:
        """Whether the handle is closed."""
        return getattr(self, "_c", None) is None

    def _list_open_children(self) -> list[Handle]:
        """Return the open handles that were created from this one, newest first."""
        alive = [child for child in self._children if not child.closed]
        return sorted(alive, key=lambda child: -child._serial)

    def close(self) -> None:
        """Destroy the C object; a second call does nothing.

        Raises:
            StateError: a handle created from this one is still open; the message names it (EBUSY).

        """
        destroy_objects_of_dropped_handles()
        if self.closed:
            return
        users = self._list_open_children()
        if users:
            count = Counter(user._what for user in users)
            kinds = ", ".join(f"{n} {what}{'s' if n > 1 else ''}" for what, n in count.items())
            names = ", ".join(repr(user) for user in users[:5])
            more = ", ..." if len(users) > 5 else ""
            raise StateError(
                errno.EBUSY,
                f"{self!r} cannot be closed: {kinds} created from it are still open "
                f"({names}{more}). Close them first; a with block closes them automatically",
            )
        self._destroy_c_object()

    def _list_open_descendants(self) -> list[Handle]:
        """Return all open handles created directly or indirectly from this one, each once."""
        found: dict[Handle, None] = {}
        for child in self._list_open_children():
            found[child] = None
            found.update(dict.fromkeys(child._list_open_descendants()))
        return list(found)

    def _force_close(self, destroy: Callable[[Any], int]) -> None:
        """End this handle and all handles below it with one C call, even while threads use them.

        The C objects stay readable, so that calls in progress and later calls are refused.
        """
        with _ending:
            c, handles = self._c, [*self._list_open_descendants(), self]
            for handle in handles:
                handle._c = None
        if c is None:
            return
        # Sleeping threads wake up and find the handle closed; the C library ends the waits inside
        # the library.
        for handle in handles:
            handle._wake_all_waiters()
        for handle in handles:
            handle._wait_until_descriptor_unused()
        rc = destroy(c) if self._pid == os.getpid() else 0
        for handle in handles:
            handle._on_forced_close()
            for parent in handle._parents:
                parent._children.discard(handle)
            handle._parents = ()
            handle._release_memory()
        # ESTALE, which is no failure: the object has already ended with its device.
        if rc != -errno.ESTALE:
            check_return_code(rc, f"closing {self!r}")

    def _wake_all_waiters(self) -> None:
        """Wake the threads and tasks that wait for the handle's events."""

    def _wait_until_descriptor_unused(self) -> None:
        """Wait until no thread uses the descriptor, whose number may be reused afterwards."""

    def _on_forced_close(self) -> None:
        """Clean up after a forced close of the device, which has ended the C object.

        Does what ``_destroy_c_object`` does, without calling C.
        """

    def _destroy_c_object(self) -> None:
        with _ending:
            self._check_closable()
            c, self._c = self._c, None
        if c is None:
            return  # another thread is already closing the handle
        self._before_destroy(c)
        self._wait_until_descriptor_unused()
        # In a forked child the object belongs to the parent, and a thread that does not exist in
        # the child may hold the object's locks forever.
        rc = type(self)._destroy(c) if self._pid == os.getpid() else 0
        # ESTALE: the object was ended with its device, which was closed by force, or whose host
        # crashed.
        if rc < 0 and rc != -errno.ESTALE:
            self._c = c
            busy = self._advice_after_ebusy() if rc == -errno.EBUSY else ""
            check_return_code(rc, f"closing {self!r}", {errno.EBUSY: busy} if busy else None)
        for parent in self._parents:
            parent._children.discard(self)
        self._parents = ()
        self._release_memory()

    def _advice_after_ebusy(self) -> str:
        """Return the object's users and advice as text, if the C library reports EBUSY."""
        return ""

    def _check_closable(self) -> None:
        """Raise an exception if the handle cannot be closed now."""

    def _before_destroy(self, c: Any) -> None:
        """Do what must be done after the handle is closed for all threads and before ``c`` is
        destroyed.
        """

    def _release_memory(self) -> None:
        """Release the memory that the C object used."""
        self._keep = ()

    def _close_with_children(self) -> None:
        """Close all handles created from this one, newest first, then this one.

        A busy handle is tried again after the others: for example, memory from which an older queue
        pair is still sending.
        """
        busy = []
        for child in self._list_open_children():
            if child.closed:
                continue
            try:
                child._close_with_children()
            except StateError as e:
                if e.errno != errno.EBUSY:
                    raise
                busy.append(child)
        for child in busy:
            if not child.closed:
                child._close_with_children()
        self.close()

    def _check_usable(self) -> None:
        self._c_object()

    def _close_at_block_end(self) -> None:
        destroy_objects_of_dropped_handles()
        if not self.closed:
            self._close_with_children()

    def _destroy_function(self) -> Callable[[Any], int]:
        """Return the function that destroys the C object of a dropped handle."""
        return type(self)._destroy

    def __del__(self) -> None:
        c = getattr(self, "_c", None)
        if c is not None:
            self._c = None
            _dropped.append((self._destroy_function(), c, (self._parents, self._keep), self._pid))

    def _description_for_repr(self) -> str:
        return ""

    def __repr__(self) -> str:
        name = self._description_for_repr() if not self.closed else "closed"
        serial = getattr(self, "_serial", 0)
        return f"<{type(self).__name__} #{serial}{' ' + name if name else ''}>"


class Waitable(Handle):
    """A handle with events for which threads and tasks wait; close() fails while a thread waits.

    A thread waits in two steps. For ``SLICE_MS`` it waits inside the library, which makes progress
    and has a low latency. Then it sleeps on the event descriptor until the device's progress thread
    raises an event, a signal arrives, or ``_wake_waiters`` is called. So an idle process does not
    use the CPU.

    A thread may read an event that another thread waits for. So each thread that reads an event
    calls ``_wake_waiters``, and no other thread keeps sleeping after its event was read.
    """

    __slots__ = ("_in_library", "_waiters", "_watchers")

    def _adopt_c_object(self, c: Any, *parents: Handle, keep: tuple[Any, ...] = ()) -> None:
        self._waiters = 0
        self._in_library = 0
        self._watchers: dict[Callable[[], None], Any] = {}
        super()._adopt_c_object(c, *parents, keep=keep)

    def fileno(self) -> int:
        """Return a descriptor that is readable while an event is unread."""
        raise NotImplementedError

    def _has_progress_thread(self) -> bool:
        """Return whether the device has a progress thread, which works while this process
        sleeps.
        """
        raise NotImplementedError

    def _add_wake_callback(self, call: Callable[[], None], about: Any = None) -> None:
        """Make ``_wake_waiters`` call ``call``, in any thread, for wake-ups about ``about`` or
        about everything.
        """
        with _watching:
            self._watchers[call] = about

    def _remove_wake_callback(self, call: Callable[[], None]) -> None:
        """Undo ``_add_wake_callback``; afterwards no other thread is inside ``call``."""
        with _watching:
            self._watchers.pop(call, None)

    def _wake_waiters(self, about: Any = None) -> None:
        """Wake all waiters for ``about``; ``None``: wake all waiters."""
        if not self._watchers:
            return
        with _watching:
            for call, wanted in list(self._watchers.items()):
                if about is None or wanted is None or wanted is about:
                    call()

    def _wait_for_event(
        self,
        get: Callable[[int], int],
        take: Callable[[], T | None],
        timeout: float | None,
        over: Callable[[], bool] | None = None,
        about: Any = None,
        drop: Callable[[], None] | None = None,
    ) -> T | None:
        """Wait for events until ``take`` returns a value for an event, and return the value.

        ``get`` waits for an event, for as many milliseconds as its argument.

        Return ``None`` after ``timeout`` seconds, or once ``over`` returns true; ``over`` is called
        after each ``_wake_waiters`` with the same ``about``. ``drop`` is called with a result of
        ``get`` that ``take`` did not receive because a signal handler raised an exception in
        between.
        """
        # 0: no wait, so the clock need not be read.
        deadline = system.monotonic() + timeout if timeout else timeout
        with _ending:  # the C object must not be destroyed before this thread is counted
            self._c_object()
            self._waiters += 1
        try:
            # If two threads waited in the library, one could read an event for the other.
            alone = not self._has_progress_thread() or self._waiters == 1
            while True:
                if not alone and self._in_library and timeout != 0:
                    self._sleep_until_event(deadline, over, about)
                ms = next_wait_ms(deadline) if alone else 0
                rc = self._wait_in_library(get, ms) if ms else get(0)
                if rc == 0:
                    found = take()
                    if found is not None:
                        return found
                elif rc not in (-errno.EAGAIN, -errno.EINTR):
                    self._c_object()  # raises StateError if the handle was closed by force
                    check_return_code(rc, f"waiting on {self!r}")
                elif deadline == 0 or (deadline is not None and system.monotonic() >= deadline):
                    return None
                if over is not None and over():
                    return None
                if rc and self._has_progress_thread():
                    alone = False
                    self._sleep_until_event(deadline, over, about)
        except BaseException:
            if drop is not None:
                drop()
            raise
        finally:
            self._waiters -= 1

    def _wait_in_library(self, get: Callable[[int], int], ms: int) -> int:
        """Wait up to ``ms`` milliseconds in the library; only one thread at a time does so."""
        with _watching:
            self._in_library += 1
        try:
            return get(ms)
        finally:
            with _watching:
                self._in_library -= 1
                self._wake_waiters()

    def _sleep_until_event(
        self, deadline: float | None, over: Callable[[], bool] | None, about: Any
    ) -> None:
        """Sleep until there may be an event, the waiters are woken, or the deadline has passed."""
        woken = system.waker()
        try:
            self._add_wake_callback(woken.wake, about)
            if over is not None and over():
                return
            # If another thread waits in the library, that thread watches the descriptor.
            fds = [woken.fileno()] if self._in_library else [woken.fileno(), self.fileno()]
            system.sleep_on(fds, deadline)
        finally:
            self._remove_wake_callback(woken.wake)
            woken.close()

    def _wake_all_waiters(self) -> None:
        self._wake_waiters()

    def _wait_until_descriptor_unused(self) -> None:
        # The wait is limited, because the event loop of a waiting task may be busy or stopped.
        end = system.monotonic() + _LEAVING_S
        while self._watchers and system.monotonic() < end:
            system.sleep(0.001)
        with _watching:  # makes the waiters' earlier actions visible to this thread
            self._watchers.clear()

    def _check_closable(self) -> None:
        if self._waiters:
            raise StateError(
                errno.EBUSY,
                f"{self!r} cannot be closed while a thread waits on it: end the wait first",
            )
        self._wake_waiters()  # wake tasks, which then find the handle closed


#: Maximum time in seconds for which closing waits for waiters to leave.
_LEAVING_S = 0.5


def next_wait_ms(deadline: float | None) -> int:
    """Return the duration in milliseconds of the next wait inside the library."""
    if deadline is None:
        return SLICE_MS
    if deadline == 0:
        return 0
    left = (deadline - system.monotonic()) * 1000  # infinite if the timeout is infinite
    return SLICE_MS if left >= SLICE_MS else max(0, int(left + 0.999))


def list_open_root_handles() -> list[Handle]:
    """Return the open handles without parents, mostly devices, newest first."""
    mine = (root for root in _roots if not root.closed and root._pid == os.getpid())
    return sorted(mine, key=lambda handle: -handle._serial)


_before_exit: list[Callable[[], None]] = []


def register_exit_callback(call: Callable[[], None]) -> Callable[[], None]:
    """Register ``call`` to run at process exit, before the open handles are closed."""
    _before_exit.append(call)
    return call


def _close_open_handles() -> None:
    """Close the open handles, so that no thread of the library runs during process exit."""
    for call in _before_exit:
        call()
    for root in list_open_root_handles():
        if root.closed:
            continue
        try:
            root._close_with_children()
        except (Error, KeyboardInterrupt):
            continue  # a daemon thread still waits on the handle; the process exits anyway
    destroy_objects_of_dropped_handles()


atexit.register(_close_open_handles)
