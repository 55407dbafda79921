"""Tests that siwarp.base.buffer.octets accepts exactly the contiguous buffers of any type."""

from __future__ import annotations

import array

import numpy as np
import pytest

import siwarp
from siwarp.base.buffer import octets


@pytest.mark.parametrize(
    "data",
    [
        b"ab",
        bytearray(b"ab"),
        memoryview(b"ab"),
        array.array("B", b"ab"),
        np.array([[97], [98]], "u1"),
    ],
)
def test_a_buffer_of_any_shape_is_viewed_as_octets(data: siwarp.verbs.Buffer) -> None:
    with octets(data) as view:
        assert (view.format, view.ndim, bytes(view)) == ("B", 1, b"ab")


@pytest.mark.parametrize("data", [b"", array.array("d"), np.zeros((0, 3))])
def test_an_empty_buffer_has_no_octets(data: siwarp.verbs.Buffer) -> None:
    assert bytes(octets(data)) == b""


def test_the_buffer_can_be_resized_after_the_view_is_released() -> None:
    data = bytearray(4)
    with octets(data), pytest.raises(BufferError):
        data.append(1)
    data.append(1)


@pytest.mark.parametrize("data", ["text", 5, None, [1]])
def test_an_object_without_a_buffer_is_a_type_error_that_names_valid_types(data: object) -> None:
    with pytest.raises(TypeError, match=r"expected bytes, a bytearray, .*, not ") as raised:
        octets(data)  # type: ignore[arg-type]
    assert ("encode()" in str(raised.value)) == isinstance(data, str)
