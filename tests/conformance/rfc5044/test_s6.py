"""RFC 5044 section 6: an FPDU is identified and validated before it is passed on."""

from __future__ import annotations

import errno
import time

import pytest
from unit.mpa.mpa_harness import (
    WHOLE_OCTETS,
    MpaPoller,
    build_fpdu,
    errno_of_first_failed_call,
    octet_pattern,
    open_mpa_poller,
    temporary_setting,
    wait_until,
)


@pytest.mark.clause("RFC5044-6-01", "RFC5044-6-02#b", "RFC5044-6-04")
@pytest.mark.parametrize(("strict", "size"), [(0, 1), (0, 100), (0, 8000), (1, 100), (1, 60_000)])
def test_an_fpdu_is_passed_on_only_after_its_last_octet_has_arrived(strict: int, size: int) -> None:
    octets = build_fpdu(octet_pattern(size))
    assert strict or len(octets) <= WHOLE_OCTETS
    with temporary_setting("crc_first", strict), open_mpa_poller() as layer_poller:
        stream = layer_poller.create_receiver()
        stream.sock.sendall(octets[:-1])
        for _ in range(3):
            time.sleep(0.001)
            assert stream.peek_fpdu() is None
        stream.sock.sendall(octets[-1:])
        assert wait_until(stream.peek_fpdu)[1:] == (size, True)


@pytest.mark.clause("RFC5044-6-02#a", "RFC5044-6-03")
def test_the_length_of_an_fpdu_determines_where_the_next_fpdu_starts(
    layer_poller: MpaPoller,
) -> None:
    """Payload that resembles FPDUs is treated as payload."""
    inner = build_fpdu(b"inner") * 3
    stream = layer_poller.create_receiver()
    stream.sock.sendall(build_fpdu(inner) + build_fpdu(b"outer"))
    assert stream.receive_ulpdu() == inner
    assert stream.receive_ulpdu() == b"outer"


@pytest.mark.clause("RFC5044-8-07")
@pytest.mark.parametrize("size", [50, 20_000])
def test_after_a_wrong_crc_no_further_fpdu_is_passed_on(layer_poller: MpaPoller, size: int) -> None:
    stream = layer_poller.create_receiver()
    stream.sock.sendall(
        build_fpdu(b"good") + build_fpdu(octet_pattern(size), crc=0) + build_fpdu(b"good again")
    )
    assert stream.receive_ulpdu() == b"good"
    assert errno_of_first_failed_call(lambda: stream.receive_ulpdu() and None) == errno.EBADMSG
    for _ in range(3):
        assert errno_of_first_failed_call(stream.peek_fpdu) == errno.EBADMSG
        assert (
            errno_of_first_failed_call(lambda: stream.try_to_place_payload(0, None))
            == errno.EBADMSG
        )
