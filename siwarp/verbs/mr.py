# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory regions: any Python buffer, registered without copying."""

from __future__ import annotations

import contextlib
import errno
import mmap
import struct
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from siwarp.base.buffer import Buffer, octets
from siwarp.verbs._ffi import check_pointer, destroy_objects_of_dropped_handles, ffi, lib
from siwarp.verbs.enums import AccessFlag
from siwarp.verbs.errors import Error, error_from_errno
from siwarp.verbs.pd import PD
from siwarp.verbs.reason import refusal_error
from siwarp.verbs.wanted import require_instance
from siwarp.verbs.wr import SGE, BindObject, SendWR

if TYPE_CHECKING:
    from siwarp.verbs.qp import QP

__all__ = ["MR", "RemoteBuffer"]

_WIRE = struct.Struct("!QQI")


class RemoteBuffer(NamedTuple):
    """The data that a peer needs to read or write a memory region; 20 octets when packed."""

    addr: int
    length: int
    rkey: int

    def pack(self) -> bytes:
        """Return the remote buffer as 20 octets to send to the peer."""
        return _WIRE.pack(self.addr, self.length, self.rkey)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> RemoteBuffer:
        """Decode the output of ``pack()``; further octets may follow it.

        Raises:
            ValueError: ``data`` has fewer than 20 octets.

        """
        if len(data) < _WIRE.size:
            raise ValueError(f"a packed RemoteBuffer has {_WIRE.size} octets, not {len(data)}")
        return cls(*_WIRE.unpack_from(data))

    def part(self, offset: int, length: int) -> RemoteBuffer:
        """Return the remote buffer of ``length`` octets from ``offset``."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(f"octets {offset}..{offset + length} are not inside {self.length}")
        return RemoteBuffer(self.addr + offset, length, self.rkey)


def _memory_view(buffer: Buffer | int) -> memoryview:
    if isinstance(buffer, int):
        if buffer < 0:
            raise ValueError(f"the length must not be negative, as {buffer} is")
        buffer = mmap.mmap(-1, buffer) if buffer else bytearray()
    return octets(buffer) or memoryview(bytearray())


def _export_c_buffer(view: memoryview, access: AccessFlag, buffer: object) -> Any:
    """Return the memory as a C buffer; raise Error for write access to read-only memory."""
    if view.readonly and access & (AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE):
        raise Error(
            errno.EFAULT,
            f"a read-only {type(buffer).__name__} cannot be registered for writing: use a "
            "bytearray, or access=0 (sending) or AccessFlag.REMOTE_READ",
        )
    return ffi.from_buffer("uint8_t[]", view)


class MR(BindObject):
    """Registered memory of a PD (``siw_reg_mr``): the memory is neither copied nor pinned.

    ``buffer`` is any object with a contiguous buffer (bytearray, memoryview, mmap, array, NumPy
    array; bytes for reading only), or the size in octets of new, zeroed memory. The buffer cannot
    be resized or unmapped until the region is closed.

    ``access`` is the permitted access in addition to local reading; the default is local writing.

    ``qp`` restricts remote access to the peer of this RC queue pair, which must belong to the same
    PD (``siw_reg_mr_qp``). With ``AccessFlag.REMOTE_INVALIDATE`` that peer may invalidate the
    region by a Send with Invalidate: both keys are invalid when the receive completes. The region
    must still be closed.

    ``iova`` is the tagged offset of the first octet, relative to which elements, binds and peers
    address the region (``siw_reg_mr_iova``). The default is the memory's address, or 0 with
    ``AccessFlag.ZERO_BASED``.

    Raises:
        TypeError, BufferError: ``buffer`` has no contiguous buffer.
        Error: the buffer is read-only but ``access`` includes writing (EFAULT), or ``access``
            includes remote writing without local writing (EINVAL).
        LimitError: the device's limit of regions is reached (ENOMEM).

    """

    __slots__ = (
        "_free",
        "access",
        "addr",
        "buf",
        "iova",
        "length",
        "lkey",
        "pd",
        "rkey",
        "view",
    )
    _what = "MR"
    _destroy = lib.siw_dereg_mr

    pd: PD
    #: The address of the region's first octet; pyverbs' name is ``buf``.
    addr: int
    buf: int
    #: The tagged offset of the region's first octet.
    iova: int
    #: The length of the region in octets.
    length: int
    lkey: int
    #: The STag that the peer uses.
    rkey: int
    access: AccessFlag
    #: A view of the region's memory as octets.
    view: memoryview

    def __init__(
        self,
        pd: PD,
        buffer: Buffer | int,
        access: int = AccessFlag.LOCAL_WRITE,
        *,
        qp: QP | None = None,
        iova: int | None = None,
    ) -> None:
        destroy_objects_of_dropped_handles()
        require_instance(
            pd, PD, "memory is registered in a PD, for example MR(pd, bytearray(64))"
        )._c_object()
        if qp is not None and iova is not None:
            raise Error(errno.EINVAL, "a region of one QP cannot have an iova: omit qp or iova")
        view, access = _memory_view(buffer), AccessFlag(access)
        if qp is not None and qp.pd is not pd:
            raise Error(
                errno.EINVAL, f"{qp!r} belongs to another PD than {pd!r}: use the PD of the QP"
            )
        export = _export_c_buffer(view, access, buffer)
        if qp is not None:
            c = lib.siw_reg_mr_qp(qp._c_object(), export, view.nbytes, int(access))
        elif iova is not None:
            c = lib.siw_reg_mr_iova(pd._c_object(), export, view.nbytes, iova, int(access))
        else:
            c = lib.siw_reg_mr(pd._c_object(), export, view.nbytes, int(access))
        c = check_pointer(c, f"registering {view.nbytes} octets")
        self._wrs: weakref.WeakSet[SendWR] = weakref.WeakSet()
        self._set_registration(c, pd, export, view, access)
        if iova is not None:
            self.iova = iova
        self._adopt_c_object(c, pd, keep=(export, view))

    def _set_registration(
        self, c: Any, pd: PD, export: Any, view: memoryview, access: AccessFlag
    ) -> None:
        self.pd = pd
        self.addr = self.buf = int(ffi.cast("uintptr_t", export))
        self.iova = 0 if access & AccessFlag.ZERO_BASED else self.addr
        self.length = view.nbytes
        self.lkey = c.lkey
        self.rkey = c.rkey
        self.access = access
        self.view = view
        self._free: Callable[[], None] = lambda: ffi.release(export)

    def rereg(
        self,
        *,
        pd: PD | None = None,
        buffer: Buffer | int | None = None,
        access: int | None = None,
    ) -> None:
        """Change the PD, the memory or the access of this region (``siw_rereg_mr``).

        The region gets new keys, and the old keys are invalid when the method returns. Create new
        elements and remote buffers, and send the latter to the peer. If only the access changes,
        the keys stay, unless the peer has invalidated them or ``ZERO_BASED`` changes.

        Raises:
            TypeError, BufferError, Error, LimitError: as for registering; the region and its keys
                are unchanged. Error also if there is nothing to change, or the PD belongs to
                another context (EINVAL).

        """
        c = self._c_object()
        new_pd = self.pd if pd is None else pd
        wanted = self.access if access is None else AccessFlag(access)
        view = self.view if buffer is None else _memory_view(buffer)
        export = None
        if buffer is not None or access is not None:
            export = _export_c_buffer(view, wanted, self.view.obj if buffer is None else buffer)
        flags = (
            (1 if buffer is not None else 0)
            | (2 if pd is not None else 0)
            | (4 if access is not None else 0)
        )
        rc = lib.siw_rereg_mr(
            c, flags, new_pd._c_object(), export or ffi.NULL, view.nbytes, int(wanted)
        )
        if rc:
            number = ffi.errno
            what = f"re-registering {self!r}"
            if number == errno.EBUSY:
                raise error_from_errno(number, what, self._advice_after_ebusy())
            raise refusal_error(number, what)
        old_view, old_free = self.view, self._free
        if buffer is None:
            if (wanted ^ self.access) & AccessFlag.ZERO_BASED:
                self.iova = 0 if wanted & AccessFlag.ZERO_BASED else self.addr
            self.lkey, self.rkey, self.access, self.pd = c.lkey, c.rkey, wanted, new_pd
        else:
            self._set_registration(c, new_pd, export, view, wanted)
            self._keep = (export, view)
            old_free()
            with contextlib.suppress(BufferError):
                old_view.release()
        for parent in self._parents:
            parent._children.discard(self)
        self._parents = (new_pd,)
        new_pd._children.add(self)

    def _release_memory(self) -> None:
        super()._release_memory()
        self._free()
        # This fails while the program has another view of the memory, which stays in use then.
        with contextlib.suppress(BufferError):
            self.view.release()
        self.view = memoryview(b"")

    def _checked_range(self, offset: int, length: int | None) -> tuple[int, int]:
        if length is None:
            length = self.length - offset
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(
                f"octets {offset}..{offset + length} are not inside this MR of {self.length}"
            )
        return offset, length

    def sge(self, offset: int = 0, length: int | None = None) -> SGE:
        """Return a scatter/gather element of ``length`` octets (default: all) from ``offset``."""
        self._c_object()
        offset, length = self._checked_range(offset, length)
        return SGE(self.iova + offset, length, self.lkey, keep=self)

    def remote(self, offset: int = 0, length: int | None = None) -> RemoteBuffer:
        """Return the data that the peer needs to read or write this part of the memory."""
        self._c_object()
        offset, length = self._checked_range(offset, length)
        return RemoteBuffer(self.iova + offset, length, self.rkey)

    def read(self, length: int | None = None, offset: int = 0) -> bytes:
        """Return a copy of ``length`` octets from ``offset``."""
        self._c_object()
        offset, length = self._checked_range(offset, length)
        return bytes(self.view[offset : offset + length])

    def write(self, data: Buffer, length: int | None = None, offset: int = 0) -> None:
        """Copy ``length`` octets of ``data`` (default: all) into the memory at ``offset``."""
        self._c_object()
        source = octets(data)
        if length is not None and not 0 <= length <= source.nbytes:
            raise ValueError(f"cannot write {length} octets: the data has {source.nbytes}")
        source = source[:length]
        offset, count = self._checked_range(offset, source.nbytes)
        self.view[offset : offset + count] = source

    def _advice_after_ebusy(self) -> str:
        windows = [repr(user) for user in self.pd._list_open_children() if user._what == "MW"]
        if self.access & AccessFlag.MW_BIND and windows:
            return (
                "a window is bound to the region, or an outstanding request uses it: first close "
                f"or invalidate the bound windows among {', '.join(windows[:5])}, and poll"
            )
        return (
            f"an outstanding request of one of {self.pd._queue_pair_names()} uses the region: poll "
            "for its completion, or close that QP, first"
        )

    def _description_for_repr(self) -> str:
        return f"{self.length} octets rkey={self.rkey:#x}"
