from __future__ import annotations

import array
import errno
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.python.python_harness import UDResources

import siwarp
from siwarp.verbs import MR, AccessFlag, RemoteBuffer

BUFFERS = {
    "bytearray": lambda: bytearray(64),
    "memoryview": lambda: memoryview(bytearray(100))[10:74],
    "mmap": lambda: mmap.mmap(-1, 64),
    "array": lambda: array.array("d", range(8)),
    "NumPy": lambda: np.zeros((4, 4), dtype=np.float32),
}


@pytest.mark.parametrize("kind", sorted(BUFFERS))
def test_a_buffer_is_registered_without_a_copy(ud_resources: UDResources, kind: str) -> None:
    memory = BUFFERS[kind]()
    with MR(ud_resources.pd, memory) as mr:
        assert mr.length == 64
        mr.write(b"\xab" * 64)
        assert bytes(memoryview(memory).cast("B")) == b"\xab" * 64
        if kind == "NumPy":
            assert mr.addr == memory.ctypes.data


def test_a_region_created_from_a_length_has_zeroed_memory(ud_resources: UDResources) -> None:
    with MR(ud_resources.pd, 5000) as mr:
        assert mr.read() == bytes(5000)


def test_an_empty_buffer_can_be_registered_as_a_memory_region(ud_resources: UDResources) -> None:
    with MR(ud_resources.pd, bytearray()) as mr:
        assert mr.length == 0
        assert mr.read() == b""


def test_a_bytes_object_can_be_registered_only_for_reading(ud_resources: UDResources) -> None:
    with MR(ud_resources.pd, b"fixed", AccessFlag.REMOTE_READ) as mr:
        assert mr.read() == b"fixed"
    with pytest.raises(siwarp.Error, match="bytearray") as caught:
        MR(ud_resources.pd, b"fixed")
    assert caught.value.errno == errno.EFAULT


def test_remote_write_access_without_local_write_access_is_refused(
    ud_resources: UDResources,
) -> None:
    with pytest.raises(siwarp.Error, match="LOCAL_WRITE") as caught:
        MR(ud_resources.pd, 10, AccessFlag.REMOTE_WRITE)
    assert caught.value.errno == errno.EINVAL


def test_registering_memory_that_is_not_contiguous_is_refused(ud_resources: UDResources) -> None:
    with pytest.raises((TypeError, BufferError)):
        MR(ud_resources.pd, np.zeros((4, 4))[:, ::2])


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 65), (64, 1), (60, 5), (0, -1)])
def test_a_scatter_gather_element_outside_of_its_region_is_refused(
    ud_resources: UDResources, offset: int, length: int
) -> None:
    with MR(ud_resources.pd, 64) as mr:
        for use in (mr.sge, mr.remote):
            with pytest.raises(ValueError, match="64"):
                use(offset, length)
        with pytest.raises(ValueError, match="64"):
            mr.read(length, offset)


def test_a_closed_region_refuses_to_create_elements(ud_resources: UDResources) -> None:
    mr = MR(ud_resources.pd, 64)
    mr.close()
    with pytest.raises(siwarp.StateError):
        mr.sge()
    with pytest.raises(siwarp.StateError):
        mr.remote()


def test_a_view_of_a_region_stays_valid_after_the_region_is_closed(
    ud_resources: UDResources,
) -> None:
    mr = MR(ud_resources.pd, 64)
    part = mr.view[10:20]
    mr.close()
    part[0] = 7
    assert bytes(part) == b"\x07" + bytes(9)


def test_each_registered_region_has_a_new_key(ud_resources: UDResources) -> None:
    keys = set()
    for _ in range(100):
        with MR(ud_resources.pd, 64) as mr:
            keys.add(mr.rkey)
    assert len(keys) == 100


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_packed_remote_buffer_is_unpacked_to_the_same_values(
    addr: int, length: int, rkey: int
) -> None:
    there = RemoteBuffer(addr, length, rkey)
    packed = there.pack()
    assert len(packed) == 20
    assert RemoteBuffer.unpack(packed + b"more") == there


def test_a_part_outside_of_a_remote_buffer_is_refused() -> None:
    there = RemoteBuffer(1000, 100, 7)
    assert there.part(10, 20) == RemoteBuffer(1010, 20, 7)
    with pytest.raises(ValueError, match="100"):
        there.part(90, 11)
    with pytest.raises(ValueError, match="20"):
        RemoteBuffer.unpack(b"short")
