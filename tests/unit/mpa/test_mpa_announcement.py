"""siwarp's announcement in reserved bits of start-up frames (spec/mpa-announcement.md)."""

from __future__ import annotations

import pytest
from unit.mpa.mpa_harness import MpaPoller, make_mpa_params, private_data_of, recv_startup_frame

from siwarp.inspect import MPAReply, MPARequest

#: Features in struct siw_mpa_params, and the bits of Request and Reply.
NONE, SIWARP, COUNTS = 0, 1, 2
Q, P, D = 4, 2, 1
REQUESTS = {NONE: 0, COUNTS: 0, SIWARP: Q, SIWARP | COUNTS: Q | D}
REPLIES = {NONE: 0, COUNTS: 0, SIWARP: P, SIWARP | COUNTS: P | D}


@pytest.mark.parametrize("rev", [1, 2])
@pytest.mark.parametrize(("features", "bits"), REQUESTS.items())
def test_an_mpa_request_announces_the_given_features_and_keeps_the_private_data(
    layer_poller: MpaPoller, rev: int, features: int, bits: int
) -> None:
    stream = layer_poller.create_initiator_awaiting_reply(
        make_mpa_params(rev=rev, features=features, pdata=b"the program's")
    )
    request = recv_startup_frame(stream.sock)
    assert (request.res, request.private_data) == (bits, b"the program's")


@pytest.mark.parametrize("rev", [1, 2])
@pytest.mark.parametrize("asked", [0, D, Q, Q | D])
@pytest.mark.parametrize(("features", "bits"), REPLIES.items())
def test_an_mpa_reply_announces_features_only_to_a_peer_that_announced_itself(
    layer_poller: MpaPoller, rev: int, asked: int, features: int, bits: int
) -> None:
    stream, _ = layer_poller.create_responder_with_request(MPARequest(rev=rev, res=asked))
    stream.send_reply(make_mpa_params(features=features, pdata=b"the program's"))
    reply = recv_startup_frame(stream.sock)
    assert reply.res == (bits if asked & Q else 0)
    assert reply.private_data == b"the program's"


@pytest.mark.parametrize("rev", [1, 2])
@pytest.mark.parametrize("bits", range(16))
def test_only_the_specified_bit_patterns_are_interpreted_as_an_announcement(
    layer_poller: MpaPoller, rev: int, bits: int
) -> None:
    counts = COUNTS if bits & D else 0
    _, peer = layer_poller.create_responder_with_request(
        MPARequest(rev=rev, res=bits, private_data=b"mine")
    )
    assert peer.features == (SIWARP | counts if bits & 0xE == Q else NONE)
    assert private_data_of(peer) == b"mine"
    _, peer = layer_poller.create_initiator_with_reply(
        make_mpa_params(rev=rev, features=SIWARP), MPAReply(rev=rev, res=bits)
    )
    assert peer.features == (SIWARP | counts if bits & 0xE == P else NONE)
