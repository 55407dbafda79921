"""RFC 5044 section 3: the service that MPA provides to DDP."""

from __future__ import annotations

import pytest
from _siwarp_layers import lib
from unit.mpa.mpa_harness import (
    MpaPoller,
    StreamError,
    build_fpdu,
    make_mpa_params,
    octet_pattern,
    recv_exactly,
    split_fpdus,
    temporary_setting,
)

from siwarp.inspect import MPAReply, MPARequest


@pytest.mark.clause("RFC5044-3-01")
@pytest.mark.parametrize("sizes", [[0], [1, 1, 1], [18, 0, 700, 9000, 5]])
def test_each_ulpdu_is_sent_in_a_separate_fpdu(layer_poller: MpaPoller, sizes: list[int]) -> None:
    stream = layer_poller.create_sender()
    ulpdus = [octet_pattern(n, i) for i, n in enumerate(sizes)]
    for ulpdu in ulpdus:
        assert stream.frame_fpdu(b"", [ulpdu]) == 1
    stream.flush()
    octets = recv_exactly(stream.sock, sum(len(build_fpdu(u)) for u in ulpdus))
    assert split_fpdus(octets) == ulpdus


@pytest.mark.clause("RFC5044-3-02", "RFC5044-3-04")
@pytest.mark.parametrize("mss", [88, 100, 140, 152, 536, 1460, 0])
def test_mulpdu_lies_between_128_and_64768_for_any_segment_size(
    layer_poller: MpaPoller, mss: int
) -> None:
    stream = layer_poller.create_sender(mss=mss)
    mulpdu = lib.siw_mpa_mulpdu(stream.handle)
    assert 128 <= mulpdu <= 64768
    assert stream.frame_fpdu(octet_pattern(18), [octet_pattern(mulpdu - 18)]) == 1


@pytest.mark.clause("RFC5044-3-04")
def test_the_setting_mulpdu_refuses_values_outside_its_range() -> None:
    for value in (127, 64769):
        with pytest.raises(StreamError, match=r"ERANGE|EINVAL"), temporary_setting("mulpdu", value):
            pass


@pytest.mark.clause("RFC5044-3-07", "RFC5044-4.3-10", "RFC5044-4.3-11")
@pytest.mark.parametrize("sizes", [[0, 3, 1, 2], [64, 1000, 20_000, 7], [64_768]])
def test_each_received_ulpdu_is_passed_on_separately_with_its_length(
    layer_poller: MpaPoller, sizes: list[int]
) -> None:
    stream = layer_poller.create_receiver()
    ulpdus = [octet_pattern(n, i) for i, n in enumerate(sizes)]
    stream.sock.sendall(b"".join(map(build_fpdu, ulpdus)))
    assert [stream.receive_ulpdu() for _ in ulpdus] == ulpdus
    assert stream.peek_fpdu() is None


@pytest.mark.clause("RFC5044-3-09")
@pytest.mark.parametrize("rev", [1, 2])
def test_the_mpa_revision_of_the_peer_is_passed_on(layer_poller: MpaPoller, rev: int) -> None:
    assert layer_poller.create_responder_with_request(MPARequest(rev=rev))[1].rev == rev
    assert (
        layer_poller.create_initiator_with_reply(make_mpa_params(rev=rev), MPAReply(rev=rev))[1].rev
        == rev
    )
