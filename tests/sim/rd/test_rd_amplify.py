"""An RD endpoint sends no more octets than it receives, except for data within the window."""

from __future__ import annotations

import random

import pytest
from unit.rd.rd_kit import HELLO, ScapyRdPeer

from siwarp.inspect.rd import RDType

#: All types of datagrams that an RD endpoint sends in reply, except for data and retransmissions.
ANSWER_TYPES = {RDType.ACK, RDType.BYE, RDType.CHALLENGE, RDType.VERSIONS}


def receive_answers(s: ScapyRdPeer, end) -> list[tuple[int, int]]:
    """Return the type and the length of each datagram that the endpoint sends to the peer ``s``."""
    got = []
    for _ in range(60):
        end.poll_once()
        while True:
            try:
                octets = s.sock.recv(1 << 16)
            except BlockingIOError:
                break
            got.append((octets[0] >> 4, len(octets)))
    return got


@pytest.mark.clause("DGRAM-FAIR-4")
def test_an_endpoint_sends_an_unverified_peer_no_more_octets_or_datagrams_than_received(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    rng = random.Random(7)
    kinds = [k for k in RDType if k != RDType.ECHO]
    answered = 0
    for i in range(300):
        kind = rng.choice(kinds)
        body = HELLO if kind == RDType.HELLO and i % 3 else rng.randbytes(rng.randrange(120))
        sent = s.send_datagram(
            kind, body=body, dest_epoch=rng.randrange(1 << 32), psn=rng.randrange(1 << 32)
        )
        got = receive_answers(s, e)
        assert len(got) <= 1
        assert sum(octets for _, octets in got) <= len(sent)
        answered += len(got)
    # All HELLOs are answered, and invalid datagrams are answered by a BYE as far as the rate limit
    # allows.
    assert answered > 40


@pytest.mark.clause("DGRAM-FAIR-5")
def test_an_endpoint_sends_a_connected_peer_at_most_one_answer_per_datagram(
    make_endpoint, make_scapy_rd_peers
):
    e = make_endpoint()
    (s,) = make_scapy_rd_peers(e, 1)
    s.connect()
    receive_answers(s, e)
    rng = random.Random(9)
    sent, answers = 0, []
    for _ in range(600):
        kind = rng.choice([RDType.DATA, RDType.DATA, RDType.PROBE, RDType.ACK, RDType.ECHO])
        s.send_datagram(
            kind,
            psn=(s.epoch + rng.choice([0, 0, 1, 2, 5, 100, 5000])) & 0xFFFFFFFF,
            dest_epoch=rng.choice([s.other, s.other, s.other, 77]),
            **({"body": b"x" * rng.randrange(1, 90)} if kind != RDType.ACK else {}),
        )
        sent += 1
        if rng.random() < 0.3:
            answers += [kind for kind, _ in receive_answers(s, e) if kind in ANSWER_TYPES]
            assert len(answers) <= sent
    answers += [kind for kind, _ in receive_answers(s, e) if kind in ANSWER_TYPES]
    assert 100 < len(answers) <= sent
