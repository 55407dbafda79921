# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Memory regions and windows: ``pyverbs.mr``."""

from __future__ import annotations

import errno
import itertools
import mmap
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import UInt, attribute_lines
from siwarp.pyverbs.base import (
    PyverbsCM,
    PyverbsObject,
    PyverbsRDMAErrno,
    Wrapper,
    convert_errors,
    raise_unsupported,
)
from siwarp.pyverbs.pd import PD
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from siwarp.pyverbs.utils import rereg_error_to_str
from siwarp.verbs import mr as verbs_mr
from siwarp.verbs import mw as verbs_mw
from siwarp.verbs._ffi import ffi

if TYPE_CHECKING:
    from siwarp.pyverbs.cmid import CMID
    from siwarp.pyverbs.device import DM, Context
    from siwarp.pyverbs.wr import SGE

__all__ = [
    "DMMR",
    "HUGE_PAGE_SIZE",
    "MR",
    "MW",
    "Buf",
    "BufMR",
    "DMAHandle",
    "DmaBufMR",
    "DmaHandleInitAttr",
    "MREx",
    "MWBind",
    "MWBindInfo",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "mwtype2str",
    "rereg_error_to_str",
]

HUGE_PAGE_SIZE = 0x200000
#: Access flags that take effect; other flags are ignored or refused.
_RIGHTS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
    | e.IBV_ACCESS_MW_BIND
    | e.IBV_ACCESS_ZERO_BASED
)
_FLUSHES = e.IBV_ACCESS_FLUSH_GLOBAL | e.IBV_ACCESS_FLUSH_PERSISTENT
#: Optional access flags, which a device may ignore (``ibv_reg_mr``).
_OPTIONAL = range(20, 30)
_IGNORED = e.IBV_ACCESS_ON_DEMAND | e.IBV_ACCESS_HUGETLB | sum(1 << bit for bit in _OPTIONAL)

_handles = itertools.count(1)
_open: weakref.WeakValueDictionary[int, MR] = weakref.WeakValueDictionary()


def access_rights_of_flags(access: int, what: str) -> int:
    """Return the access rights in a set of access flags.

    Raises:
        PyverbsRDMAError: a flag is not defined (EINVAL), or siwarp does not support it
            (EOPNOTSUPP).

    """
    if access & _FLUSHES:
        raise_unsupported(
            "access flags FLUSH_GLOBAL and FLUSH_PERSISTENT", "RFC 7306 does not define a flush"
        )
    unknown = int(access) & ~(_RIGHTS | _IGNORED)
    if unknown:
        raise PyverbsRDMAError(f"{what}: access flags {unknown:#x} are not defined", errno.EINVAL)
    return int(access) & _RIGHTS


def memory_buffer_at(address: int, length: int) -> Any:
    """Return the memory at an address as a buffer."""
    return ffi.buffer(ffi.cast("char *", address), length) if length else bytearray()


class MR(Wrapper[verbs_mr.MR]):
    """A memory region: new memory of ``length`` octets, or existing memory at ``address``.

    ``creator`` is a PD, or a CMID, which registers memory for messages, reads or writes. ``handle``
    imports a region of the same process.

    Raises:
        PyverbsRDMAError: an access flag is not defined (EINVAL), the memory does not exist
            (EFAULT), or the device has no room for another region (ENOMEM); ``implicit``
            (EOPNOTSUPP).

    """

    _RANK = 5

    def __init__(
        self,
        creator: PD | CMID,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        implicit: bool = False,
        **kwargs: Any,
    ) -> None:
        pd = creator if isinstance(creator, PD) else creator.pd
        self._pd, self._handle = pd, 0
        if kwargs.get("handle") is not None:
            self._import_by_handle(int(kwargs["handle"]))
        else:
            if implicit:
                raise_unsupported("implicit MR", "a region has a fixed address and length")
            memory = int(length) if address is None else memory_buffer_at(int(address), int(length))
            self._register(memory, access)
        self._register_with_parents(pd)

    def _register(
        self,
        memory: Any,
        access: int,
        iova: int | None = None,
        what: str = "Failed to register a MR",
    ) -> None:
        rights = access_rights_of_flags(access, what)
        pd = self._pd._native()
        with convert_errors(what):
            self._h = verbs_mr.MR(pd, memory, rights, iova=iova)
        self._handle = next(_handles)
        _open[self._handle] = self

    def _import_by_handle(self, handle: int) -> None:
        other = _open.get(handle)
        context = self._pd._native().context
        if other is None or other._is_closed or other._native().pd.context is not context:
            raise PyverbsRDMAError(
                f"Failed to import MR {handle}: this device has none with this handle",
                errno.EINVAL,
            )
        self._h, self._shared, self._handle, self._other = other._h, True, handle, other

    def unimport(self) -> None:
        """End an import of a region, which stays registered."""
        self._release_imported_object()

    def _contains(self, element: SGE) -> bool:
        native = self._native()
        start = element.addr - native.iova
        return element.lkey == native.lkey and 0 <= start <= native.length - element.length

    # ---- attributes

    @property
    def buf(self) -> int:
        """Address of the region's first octet."""
        return 0 if self._is_closed else self._native().addr

    @property
    def length(self) -> int:
        """Length of the region in octets."""
        return self._native().length

    @property
    def lkey(self) -> int:
        """Local key of the region, for scatter/gather elements."""
        return self._native().lkey

    @property
    def rkey(self) -> int:
        """Remote key, for the peer."""
        return self._native().rkey

    @property
    def handle(self) -> int:
        """Handle number of the region, for ``MR(pd, handle=...)``."""
        return self._handle

    # ---- memory of the region

    def _check_range(self, length: int, offset: int) -> None:
        own = self._native().length
        if length < 0 or offset < 0 or offset + length > own:
            raise PyverbsUserError(
                f"Octets {offset} to {offset + length} are outside this MR of {own} octets"
            )

    def write(self, data: bytes | str, length: int, offset: int = 0) -> None:
        """Write ``length`` octets of ``data`` into the region's memory at ``offset``.

        Raises:
            PyverbsUserError: the range is outside the region, or ``data`` is shorter.

        """
        octets = data.encode() if isinstance(data, str) else memoryview(data).cast("B")
        self._check_range(length, offset)
        if length > len(octets):
            raise PyverbsUserError(f"Cannot write {length} octets: the data has {len(octets)}")
        self._native().view[offset : offset + length] = octets[:length]

    def read(self, length: int, offset: int) -> bytes:
        """Return ``length`` octets of the region's memory from ``offset`` on.

        Raises:
            PyverbsUserError: the range is outside the region.

        """
        self._check_range(length, offset)
        return self._native().read(length, offset)

    def rereg(
        self,
        flags: int,
        pd: PD | None = None,
        addr: int = 0,
        length: int = 0,
        access: int = 0,
    ) -> None:
        """Change the memory, domain or rights; the keys change unless only the rights change.

        Raises:
            PyverbsRDMAError: as for a new region; the region is then unchanged.

        """
        what = "Failed to rereg MR"
        known = (
            e.IBV_REREG_MR_CHANGE_TRANSLATION
            | e.IBV_REREG_MR_CHANGE_PD
            | e.IBV_REREG_MR_CHANGE_ACCESS
        )
        wants_pd = flags & e.IBV_REREG_MR_CHANGE_PD
        if not flags or flags & ~known or (wants_pd and pd is None):
            raise PyverbsRDMAError(f"{what}: {rereg_error_to_str(-1)}", errno.EINVAL)
        new: dict[str, Any] = {}
        if flags & e.IBV_REREG_MR_CHANGE_TRANSLATION:
            new["buffer"] = memory_buffer_at(addr, length)
        if flags & e.IBV_REREG_MR_CHANGE_ACCESS:
            new["access"] = access_rights_of_flags(access, what)
        if wants_pd and pd is not None:
            new["pd"] = pd._native()
        with convert_errors(what):
            self._native().rereg(**new)
        if wants_pd and pd is not None:
            self._pd._children_registry().discard(self)
            self._pd = pd
            pd._children_registry().add(self)

    def __str__(self) -> str:
        return attribute_lines(self, "lkey", "rkey", "length", "buf", "handle")


class MWBindInfo(PyverbsCM):
    """Range of a region to which a window is bound, and the peer's access rights."""

    addr = UInt(64)
    length = UInt(64)
    mw_access_flags = UInt(32)

    def __init__(self, mr: MR, addr: int, length: int, mw_access_flags: int) -> None:
        self._mr = mr
        self.addr, self.length, self.mw_access_flags = addr, length, mw_access_flags

    @property
    def mr(self) -> MR:
        """The region of the window."""
        return self._mr

    def _to_siwarp_info(self) -> verbs_mw.MWBindInfo:
        # Local access rights are ignored, because a window grants access only to peers.
        access = self.mw_access_flags & ~e.IBV_ACCESS_LOCAL_WRITE
        return verbs_mw.MWBindInfo(self._mr._native(), self.addr, self.length, access)

    def __str__(self) -> str:
        return attribute_lines(self, "addr", "length", "mw_access_flags")


class MWBind(PyverbsCM):
    """A bind of a type 1 window, for ``QP.bind_mw``."""

    wr_id = UInt(64)
    send_flags = UInt(32)

    def __init__(self, info: MWBindInfo, send_flags: int, wr_id: int = 0) -> None:
        self._info = info
        self.send_flags, self.wr_id = send_flags, wr_id

    def __str__(self) -> str:
        return attribute_lines(self, "wr_id", "send_flags") + str(self._info)


class MW(Wrapper[verbs_mw.MW]):
    """A memory window.

    Raises:
        PyverbsRDMAError: the type is not defined (EINVAL), or the device has no room for another
            window (ENOMEM).

    """

    _RANK = 3

    def __init__(self, pd: PD, mw_type: int) -> None:
        with convert_errors("Failed to allocate a MW"):
            self._h = verbs_mw.MW(pd._native(), int(mw_type))
        self._pd, self._handle = pd, next(_handles)
        self._register_with_parents(pd)

    @property
    def handle(self) -> int:
        """A unique number of the window."""
        return self._handle

    @property
    def rkey(self) -> int:
        """Remote key of the window, for the peer, which is the key of the last posted bind."""
        return self._native().rkey

    @property
    def type(self) -> int:
        """The type of the window, a value of ``ibv_mw_type``."""
        return int(self._native().type)

    def __str__(self) -> str:
        return attribute_lines(self, "rkey", "handle", "type")


def mwtype2str(mw_type: int) -> str:
    """Return a window's type as text."""
    try:
        return e.ibv_mw_type(mw_type).name
    except ValueError:
        return f"Unknown MW type ({mw_type})"


class DMMR(MR):
    """A region in device memory, which siwarp does not support.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    def __init__(self, pd: PD, length: int, access: int, dm: DM, offset: int) -> None:
        raise_unsupported("DMMR", "a device in software has no memory of its own")


def _map_descriptor(fd: int, length: int, offset: int) -> memoryview:
    """Return octets of a dma-buf, or of a file, as memory of this process.

    Raises:
        PyverbsRDMAError: the CPU cannot map the memory (EOPNOTSUPP).

    """
    try:
        return memoryview(mmap.mmap(fd, length + offset))[offset:]
    except (OSError, ValueError) as error:
        raise_unsupported(f"MR for descriptor {fd}", f"the CPU cannot map it ({error})")


class DmaBufMR(MR):
    """A region in a dma-buf, which is memory of another device and is accessed by ``mmap``.

    Raises:
        PyverbsRDMAError: there is no descriptor, or the CPU cannot map the memory (EOPNOTSUPP).

    """

    def __init__(
        self,
        pd: PD,
        length: int,
        access: int = 0,
        dmabuf: Any = None,
        offset: int = 0,
        gpu: int = 0,
        gtt: int = 0,
    ) -> None:
        if dmabuf is None:
            raise_unsupported("DmaBufMR without a descriptor", "it cannot allocate GPU memory")
        fd = dmabuf if isinstance(dmabuf, int) else dmabuf.fd
        self._pd, self._dmabuf, self._offset = pd, dmabuf, offset
        # As in pyverbs, requests address the octets by their offset in the dma-buf.
        self._register(_map_descriptor(fd, length, offset), access, offset)
        self._register_with_parents(pd)

    @property
    def dmabuf(self) -> Any:
        """The descriptor of the dma-buf."""
        return self._dmabuf

    @property
    def offset(self) -> int:
        """Offset of the region in the dma-buf."""
        return self._offset


class Buf(PyverbsCM):
    """Memory of ``size`` octets, which ``BufMR`` and ``MREx`` register.

    Raises:
        PyverbsRDMAError: the size is 0 (EINVAL), or no memory is left (ENOMEM).

    """

    #: Higher than the rank of a region, because regions are closed before their memory.
    _RANK = 6

    def __init__(self, pd: PD, size: int) -> None:
        self._size = int(size)
        if self._size <= 0:
            raise PyverbsRDMAError(f"Failed to allocate {size} octets", errno.EINVAL)
        try:
            self._memory: mmap.mmap | None = mmap.mmap(-1, self._size)
        except (OSError, OverflowError) as error:
            raise PyverbsRDMAError(
                f"Failed to allocate {size} octets: {error}", errno.ENOMEM
            ) from None
        self._addr = int(ffi.cast("uintptr_t", ffi.from_buffer(self._memory)))
        self._pd = pd
        self._register_with_parents(pd)

    @property
    def _is_closed(self) -> bool:
        return self._memory is None

    @property
    def addr(self) -> int:
        """Address of the memory, or 0 if it is closed."""
        return 0 if self._memory is None else self._addr

    @property
    def size(self) -> int:
        """Number of octets."""
        return self._size

    def _memory_part(self, pd: PD, length: int, offset: int, what: str) -> memoryview:
        """Return a part of the memory.

        Raises:
            PyverbsRDMAError: the memory is closed or belongs to another protection domain, or has
                fewer octets (EINVAL).

        """
        reason = ""
        if self._memory is None:
            reason = "this Buf is closed"
        elif pd._native() is not self._pd._native():
            reason = "this Buf belongs to another PD"
        elif offset < 0 or length < 0 or offset + length > self._size:
            reason = f"octets {offset} to {offset + length} are outside this Buf of {self._size}"
        if reason or self._memory is None:
            raise PyverbsRDMAError(f"{what}: {reason}", errno.EINVAL)
        return memoryview(self._memory)[offset : offset + length]

    def export_dmabuf_fd(self) -> NoReturn:
        """Raise PyverbsRDMAError (ENODATA), as the memory is not a dma-buf."""
        raise PyverbsRDMAError(
            "Failed to export a Buf as a dma-buf: it is ordinary memory of this process",
            errno.ENODATA,
        )

    def close(self) -> None:
        """Close the regions of the memory, then free it; a second call has no effect."""
        super().close()
        self._memory = None  # Python frees it with the last region or view that refers to it

    def __str__(self) -> str:
        return attribute_lines(self, "addr", "size")


class BufMR(MR):
    """A region in a ``Buf``: ``length`` octets from ``offset`` on.

    Raises:
        PyverbsRDMAError: the range is outside the Buf, or its PD is another (EINVAL); as for MR.

    """

    def __init__(self, pd: PD, buf: Buf, length: int = 0, access: int = 0, offset: int = 0) -> None:
        what = "Failed to register a buf MR"
        self._pd, self._handle = pd, 0
        self._register(buf._memory_part(pd, int(length), int(offset), what), access, what=what)
        self._register_with_parents(pd, buf)


class DmaHandleInitAttr(PyverbsObject):
    """Creation parameters of a DMA handle."""

    comp_mask = UInt(32)
    cpu_id = UInt(32)
    ph = UInt(8)
    tph_mem_type = UInt(8)

    def __init__(
        self, comp_mask: int = 0, cpu_id: int = 0, ph: int = 0, tph_mem_type: int = 0
    ) -> None:
        self.comp_mask, self.cpu_id = comp_mask, cpu_id
        self.ph, self.tph_mem_type = ph, tph_mem_type

    def __str__(self) -> str:
        return attribute_lines(self, "comp_mask", "cpu_id", "ph", "tph_mem_type")


class DMAHandle(PyverbsCM):
    """Hints of PCI Express for the accesses of an adapter to memory.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    def __init__(self, ctx: Context, init_attr: DmaHandleInitAttr) -> None:
        raise_unsupported("DMA handle", "a software device accesses memory without PCI Express")


class MREx(MR):
    """A region with further options: in new memory, at ``address``, in a ``Buf``, or in a dma-buf.

    ``iova`` is the address by which requests and the peer address the first octet; the default is
    the address of the memory, and for a dma-buf ``fd_offset``.

    Raises:
        PyverbsRDMAError: ``address`` or ``buf`` together with ``fd`` (EINVAL); ``implicit``, or a
            DMA handle (EOPNOTSUPP); as for MR.

    """

    def __init__(
        self,
        pd: PD,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        iova: int | None = None,
        fd: int | None = None,
        fd_offset: int = 0,
        dmah: DMAHandle | None = None,
        implicit: bool = False,
        buf: Buf | None = None,
        **_: Any,
    ) -> None:
        what = "Failed to register MR using extended API"
        self._pd, self._handle = pd, 0
        if fd is not None and (address is not None or buf is not None or implicit):
            raise PyverbsRDMAError(f"{what}: fd excludes address, buf and implicit", errno.EINVAL)
        if implicit:
            raise_unsupported("implicit MR", "a region has a fixed address and length")
        memory: Any = int(length)
        if fd is not None:
            memory = _map_descriptor(fd, int(length), fd_offset)
            iova = fd_offset if iova is None else iova
        elif buf is not None:
            start = 0 if address is None else int(address) - buf.addr
            memory = buf._memory_part(pd, int(length), start, what)
        elif address is not None:
            memory = memory_buffer_at(int(address), int(length))
        self._register(memory, access, iova, what)
        self._register_with_parents(pd, *(() if buf is None else (buf,)))
