from __future__ import annotations

import errno
import sys
import traceback

import pytest
from table import run_test_for_each_row

import siwarp
from siwarp.verbs import CQ, Context, ProtocolError, terminate_clause, terminate_reason
from siwarp.verbs.errors import error_from_errno

CODES = [
    (0, 1, 0x00, "invalid STag"),
    (0, 1, 0x01, "bounds"),
    (0, 1, 0x02, "access rights"),
    (0, 1, 0x03, "stream"),
    (0, 1, 0x04, "wraps"),
    (0, 2, 0x05, "version"),
    (0, 2, 0x06, "opcode"),
    (1, 1, 0x00, "invalid STag"),
    (1, 1, 0x01, "bounds"),
    (1, 1, 0x02, "stream"),
    (1, 1, 0x03, "wraps"),
    (1, 1, 0x04, "version"),
    (1, 2, 0x01, "queue number"),
    (1, 2, 0x02, "no buffer"),
    (1, 2, 0x03, "sequence number"),
    (1, 2, 0x04, "offset"),
    (1, 2, 0x05, "too long"),
    (1, 2, 0x06, "version"),
    (2, 0, 0x02, "CRC"),
]


@run_test_for_each_row(("layer", "type", "code", "words"), CODES)
def test_the_reason_of_a_terminate_is_described_in_words(
    layer: int, type: int, code: int, words: str
) -> None:
    assert words in terminate_reason(layer, type, code)


def test_the_reason_of_an_unknown_terminate_contains_its_numbers() -> None:
    assert "0x77" in terminate_reason(1, 1, 0x77)
    assert "9" in terminate_reason(9, 0, 0)


@pytest.mark.parametrize(
    ("layer", "code", "document"), [(0, 0, 5040), (1, 0, 5041), (2, 2, 5044), (2, 6, 6581)]
)
def test_the_clause_of_a_terminate_is_of_the_rfc_that_defines_its_code(
    layer: int, code: int, document: int
) -> None:
    assert terminate_clause(layer, 0, code).startswith(f"RFC{document}-")


def test_a_protocol_error_has_the_layer_type_and_code_of_vendor_err() -> None:
    e = ProtocolError.from_vendor_err(1 << 16 | 2 << 8 | 5, "receiving")
    assert (e.layer, e.type, e.code) == (1, 2, 5)
    assert e.errno == errno.EPROTO
    assert e.clause in str(e)


@run_test_for_each_row(
    ("number", "kind"),
    [
        (errno.EBUSY, siwarp.StateError),
        (errno.ENOTCONN, siwarp.StateError),
        (errno.ENOMEM, siwarp.LimitError),
        (errno.EMSGSIZE, siwarp.LimitError),
        (errno.ECONNREFUSED, siwarp.PeerGone),
        (errno.ETIMEDOUT, siwarp.PeerGone),
        (errno.EPROTO, siwarp.ProtocolError),
        (errno.EINVAL, siwarp.Error),
    ],
)
def test_each_errno_is_converted_to_its_exception_class(
    number: int, kind: type[siwarp.Error]
) -> None:
    e = error_from_errno(number, "trying", "do this instead")
    assert type(e) is kind
    assert isinstance(e, OSError)
    assert e.errno == number
    assert "do this instead" in str(e)


def test_siwarp_timeout_is_a_siwarp_error_and_a_python_timeout_error() -> None:
    assert issubclass(siwarp.Timeout, siwarp.Error)
    assert issubclass(siwarp.Timeout, TimeoutError)


def test_an_error_has_a_reason_name_and_a_traceback_note_with_its_documentation() -> None:
    with Context() as ctx, pytest.raises(siwarp.Error) as caught:
        CQ(ctx, 0)
    assert caught.value.reason == "CQ_SIZE"
    notes = traceback.format_exception_only(caught.value)[1:]
    wanted = ["reason CQ_SIZE: #reason-cq-size of Exceptions\n"]
    assert notes == (wanted if sys.version_info >= (3, 11) else [])
