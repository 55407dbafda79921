"""RFC 5044 sections 4.5 and 5.1: the maximum size of an FPDU."""

from __future__ import annotations

import pytest
from _siwarp_layers import lib
from unit.mpa.mpa_harness import MpaPoller, build_fpdu, octet_pattern, recv_exactly


@pytest.mark.clause("RFC5044-4.5-02", "RFC5044-5.1-01")
@pytest.mark.parametrize("mss", [536, 1000, 1459, 1460, 1461, 1462, 8960, 8961, 8962, 8963])
def test_mulpdu_is_derived_from_the_tcp_segment_size(layer_poller: MpaPoller, mss: int) -> None:
    stream = layer_poller.create_sender(mss=mss)
    emss = stream.emss()
    assert mss - 40 <= emss <= mss
    assert lib.siw_mpa_mulpdu(stream.handle) == emss - (6 + emss % 4)


@pytest.mark.clause("RFC5044-4.5-02")
@pytest.mark.parametrize("mss", [536, 1460, 1461, 8962])
def test_an_fpdu_of_mulpdu_octets_fills_a_tcp_segment_without_pad(
    layer_poller: MpaPoller, mss: int
) -> None:
    stream = layer_poller.create_sender(mss=mss)
    mulpdu = lib.siw_mpa_mulpdu(stream.handle)
    assert stream.frame_fpdu(b"", [octet_pattern(mulpdu)]) == 1
    stream.flush()
    emss = stream.emss()
    octets = recv_exactly(stream.sock, emss - emss % 4)
    assert octets == build_fpdu(octet_pattern(mulpdu))


@pytest.mark.clause("RFC5044-4.5-06")
@pytest.mark.parametrize("mss", [88, 100, 120, 130])
def test_mulpdu_is_128_if_tcp_segments_are_smaller(layer_poller: MpaPoller, mss: int) -> None:
    stream = layer_poller.create_sender(mss=mss)
    assert stream.emss() < 134
    assert lib.siw_mpa_mulpdu(stream.handle) == 128
    assert stream.frame_fpdu(b"", [octet_pattern(128)]) == 1
    stream.flush()
    assert recv_exactly(stream.sock, 136) == build_fpdu(octet_pattern(128))


@pytest.mark.clause("RFC5044-4.5-07")
@pytest.mark.parametrize("fill", [100, 1200, 1330, 1440])
def test_mulpdu_does_not_depend_on_the_fill_level_of_the_last_tcp_segment(
    layer_poller: MpaPoller, fill: int
) -> None:
    stream = layer_poller.create_sender(mss=1460)
    empty = lib.siw_mpa_mulpdu(stream.handle)
    for _ in range(3):
        assert stream.frame_fpdu(b"", [octet_pattern(fill)]) == 1
        assert lib.siw_mpa_mulpdu(stream.handle) == empty >= 128


@pytest.mark.clause("RFC5044-5.1-05", "RFC5044-A.4-01", "RFC5044-5.2-01")
@pytest.mark.parametrize("step", [1, 3, 7, 50, 1000, 5000])
def test_fpdus_are_found_regardless_of_tcp_segment_boundaries(
    layer_poller: MpaPoller, step: int
) -> None:
    """With TCP_NODELAY, each write becomes a separate TCP segment."""
    ulpdus = [octet_pattern(n, n) for n in (0, 5, 44, 90, 300 if step < 50 else 30_000)]
    octets = b"".join(map(build_fpdu, ulpdus))
    stream = layer_poller.create_receiver()
    for at in range(0, len(octets), step):
        stream.sock.sendall(octets[at : at + step])
        stream.peek_fpdu()
    assert [stream.receive_ulpdu() for _ in ulpdus] == ulpdus
