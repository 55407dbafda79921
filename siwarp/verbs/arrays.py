# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Work requests and completions in NumPy arrays, without a Python object for each message.

An element of an array is a work request of at most one scatter/gather element, or a completion.
The functions create arrays, ``QP.post_send_array``, ``QP.post_recv_array`` and
``SRQ.post_recv_array`` post them, and ``CQ.poll_array`` stores completions in one::

    import numpy as np
    from siwarp.verbs import arrays

    sends = arrays.send_array(32)
    sends["addr"] = mr.iova + 64 * np.arange(32, dtype=np.uint64)
    sends["length"] = 64
    sends["lkey"] = mr.lkey
    qp.post_send_array(sends, arrays.AHList([AH(pd, peer)]))

    wcs = arrays.wc_array(32)
    done = wcs[: cq.poll_array(wcs)]
    assert not done["status"].any()

The module needs NumPy, which the extra ``siwarp[numpy]`` installs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

try:
    import numpy as np
except ImportError as e:
    raise ImportError(
        "siwarp.verbs.arrays needs NumPy: install it with `pip install siwarp[numpy]`"
    ) from e
from numpy.typing import NDArray

from siwarp.verbs._ffi import ffi
from siwarp.verbs.ah import AH
from siwarp.verbs.enums import SendFlag, WROpcode
from siwarp.verbs.wanted import require_instance, type_error
from siwarp.verbs.wr import OWN_QKEY

__all__ = [
    "AHList",
    "recv_array",
    "recv_wr_dtype",
    "send_array",
    "send_wr_dtype",
    "wc_array",
    "wc_dtype",
]

#: A send request (``struct siw_array_send_wr``). The fields have the names and meanings of the
#: arguments of ``SendWR``; ``addr``, ``length`` and ``lkey`` are those of its element, and a
#: request of length 0 has none. ``remote_addr`` and ``rkey`` are the peer's memory, ``imm_data`` is
#: also the key to invalidate, and ``ah`` is an index of the ``AHList``.
send_wr_dtype = np.dtype(
    [
        ("wr_id", np.uint64),
        ("addr", np.uint64),
        ("remote_addr", np.uint64),
        ("compare_add", np.uint64),
        ("swap", np.uint64),
        ("length", np.uint32),
        ("lkey", np.uint32),
        ("rkey", np.uint32),
        ("imm_data", np.uint32),
        ("opcode", np.uint32),
        ("send_flags", np.uint32),
        ("ah", np.uint32),
        ("remote_qpn", np.uint32),
        ("remote_qkey", np.uint32),
        ("reserved", np.uint32),
    ],
    align=True,
)

#: A receive (``struct siw_array_recv_wr``); a receive of length 0 has no element.
recv_wr_dtype = np.dtype(
    [("wr_id", np.uint64), ("addr", np.uint64), ("length", np.uint32), ("lkey", np.uint32)],
    align=True,
)

#: A completion (``struct siw_wc``); the fields are those of ``WC``.
wc_dtype = np.dtype(
    {
        "names": [
            "wr_id",
            "status",
            "opcode",
            "vendor_err",
            "byte_len",
            "imm_data",
            "qp_num",
            "src_qp",
            "wc_flags",
            "sl",
        ],
        "formats": [np.uint64, *[np.int32] * 2, *[np.uint32] * 6, np.uint8],
        "offsets": [0, *range(8, 40, 4), 44],
        "itemsize": 48,
    },
    align=True,
)


def send_array(n: int) -> NDArray[np.void]:
    """Return an array of ``n`` send requests with the default values of ``SendWR``.

    That is signaled Sends without an element; the Q_Key of UD messages is that of the queue pair.
    """
    array = np.zeros(n, send_wr_dtype)
    array["opcode"] = WROpcode.SEND
    array["send_flags"] = SendFlag.SIGNALED
    array["remote_qkey"] = OWN_QKEY
    return array


def recv_array(n: int) -> NDArray[np.void]:
    """Return an array of ``n`` receives without an element."""
    return np.zeros(n, recv_wr_dtype)


def wc_array(n: int) -> NDArray[np.void]:
    """Return an array with space for ``n`` completions."""
    return np.zeros(n, wc_dtype)


class AHList:
    """Address handles for ``QP.post_send_array``; the field ``ah`` of a request is an index.

    The list keeps the handles alive. A request with a handle that was closed is refused. As with
    ``SendWR``, a request whose ``remote_qpn`` is 0 is sent to the handle's ``qpn``.

    Raises:
        TypeError: an item is not an AH.
        StateError: a handle is closed.

    """

    __slots__ = ("__weakref__", "_ahs", "_c")

    def __init__(self, ahs: Iterable[AH]) -> None:
        if not isinstance(ahs, Iterable):
            raise type_error("an AHList is made of address handles, for example [ah]", ahs)
        self._ahs = tuple(
            require_instance(ah, AH, "an AHList contains address handles, for example AH(pd, peer)")
            for ah in ahs
        )
        self._c = ffi.new("struct siw_array_ah[]", len(self._ahs))
        for i, ah in enumerate(self._ahs):
            self._c[i].ah = ah._c_object()
            self._c[i].qpn = ah.qpn
            ah._users.add(self)

    def __len__(self) -> int:
        return len(self._ahs)

    def __getitem__(self, index: int) -> AH:
        return self._ahs[index]

    def _replace_c_address_handle(self, ah: AH, handle: Any) -> None:
        """Store the C object of an address handle; NULL after the handle was closed."""
        for i, mine in enumerate(self._ahs):
            if mine is ah:
                self._c[i].ah = handle

    def __repr__(self) -> str:
        return f"AHList({list(self._ahs)!r})"


_SEND_WRS = ffi.typeof("struct siw_array_send_wr[]")
_RECV_WRS = ffi.typeof("struct siw_array_recv_wr[]")
_WCS = ffi.typeof("struct siw_wc[]")
_from_buffer = ffi.from_buffer


def convert_send_array_to_c(array: object) -> Any:
    """Return the send requests of an array as a C array, which keeps the memory exported.

    Raises:
        TypeError: the array is not a NumPy array of ``send_wr_dtype``.
        ValueError: the array is not one-dimensional and contiguous.

    """
    return _from_buffer(_SEND_WRS, _check_array(array, send_wr_dtype, "arrays.send_array(n)"))


def recv_array_to_c(array: object) -> Any:
    """Return the receives of an array like ``convert_send_array_to_c``."""
    return _from_buffer(_RECV_WRS, _check_array(array, recv_wr_dtype, "arrays.recv_array(n)"))


def wc_array_memory(array: object) -> Any:
    """Return the memory for completions like ``convert_send_array_to_c``.

    Raises:
        ValueError: also if the array is read-only, not aligned or empty.

    """
    wcs = _check_array(array, wc_dtype, "arrays.wc_array(n)")
    flags = wcs.flags  # not those of `array`, whose dtype may differ in alignment
    if not flags.writeable:
        raise ValueError("the array is read-only: pass a writable one, as arrays.wc_array(n) is")
    if not flags.aligned:
        raise ValueError("the array is not aligned: create it with arrays.wc_array(n)")
    if not len(wcs):
        raise ValueError("cannot poll for 0 completions")
    return _from_buffer(_WCS, wcs)


def _check_array(array: object, dtype: np.dtype[np.void], example: str) -> NDArray[np.void]:
    """Return the array with this dtype, if it is one-dimensional and contiguous.

    ``example`` is a call that creates such an array, for error messages. The dtype of the returned
    array is also aligned, which the comparison of dtypes ignores.
    """
    if not isinstance(array, np.ndarray):
        raise type_error(f"expected a NumPy array, for example {example}", array)
    if array.dtype is not dtype:
        if array.dtype != dtype:
            raise TypeError(f"expected an array as {example} returns it, not one of {array.dtype}")
        array = array.view(dtype)
    if array.ndim != 1:
        raise ValueError(f"the array has {array.ndim} dimensions: pass one of 1 dimension")
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous: pass a copy of it, array.copy()")
    return array


def __dir__() -> list[str]:
    return __all__
