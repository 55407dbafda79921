"""Multicast groups (section 5 of the page) with siwarp and the independent peer as members."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

import pytest
from peer.line import BAD, Line, run, udp_socket
from peer.ours import SEED, closing, octets, siwarp_queue_pair
from peer.ud import UdPeer
from peer.wire import WireError, unseal

from siwarp.verbs import QPAttr, QPType

GROUP_PORT = 62607


@pytest.fixture
def group() -> str:
    """Return a group for this process only; other processes may run the same tests."""
    return f"239.195.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"


@pytest.fixture
def qkey() -> int:
    """Return a random Q_Key for this test, in case two processes share a group."""
    return random.SystemRandom().randrange(1, 1 << 31)


@pytest.fixture
def member(group: str) -> Iterator[socket.socket]:
    """Yield a socket that is a member of the group on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((group, GROUP_PORT))
        joined = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        sock.setblocking(False)
        yield sock


@pytest.mark.clause("DGRAM-MCAST-2", "DGRAM-MCAST-8", "DGRAM-MCAST-10")
def test_siwarp_gets_what_the_peer_sends_to_the_group(group: str, qkey: int) -> None:
    """Messages over a bad line; an invalid message to a group is not answered (DGRAM-MCAST-8)."""
    with (
        # One receive for each message: a delayed process gets many messages at once.
        siwarp_queue_pair(QPType.UD, slots=256, attr=QPAttr(qkey=qkey)) as ours,
        udp_socket() as sock,
        closing(Line(SEED, BAD)) as line,
    ):
        ours.qp.attach_mcast(group)
        line.use_interface("127.0.0.1")
        line.siwarp, line.peer = (group, GROUP_PORT), sock.getsockname()
        peer = UdPeer(sock, qkey, index=9)
        sent = [octets(i, i * 10) for i in range(100)]
        for payload in sent:
            peer.send(line.near, payload, immediate=payload[:4] if len(payload) > 100 else None)
            line.step()
            ours.step()
        run(line.idle, [line.step, ours.step], line.sockets())
        line.heal()
        peer.send(line.near, bytes(5000))  # a message longer than a receive
        peer.send(line.near, b"the end")
        until = [line.step, ours.step, peer.step]
        run(lambda: any(d == b"the end" for _, d in ours.got), until, line.sockets())

        wanted = []
        for datagram in line.to_siwarp.passed:
            try:
                body = unseal(datagram)
            except WireError:
                continue
            if len(body) < 5000:
                wanted.append(body[18 + (8 if body[1] & 0xF == 15 else 0) :])
        assert [data for wc, data in ours.got if wc.ok] == wanted
        assert {wc.source for wc, _ in ours.got if wc.ok} == {line.far}
        assert {wc.src_qp for wc, _ in ours.got if wc.ok} == {9 << 16 | line.far[1]}
        assert line.from_siwarp.passed == [] and peer.reports == []


@pytest.mark.clause("DGRAM-MCAST-1")
def test_the_peer_gets_what_siwarp_sends_to_the_group(
    group: str, qkey: int, member: socket.socket
) -> None:
    with siwarp_queue_pair(QPType.UD, attr=QPAttr(qkey=qkey)) as ours:
        peer = UdPeer(member, qkey, group=True)
        handle = ours.toward((group, 0))
        sent = [octets(i, i * 20) for i in range(50)]
        for payload in sent:
            ours.send(payload, ah=handle)
        run(lambda: len(peer.messages) == len(sent), [peer.step, ours.step], [member])
        assert [message.payload for message in peer.messages] == sent
        assert {message.source for message in peer.messages} == {ours.qp.addr}
        assert [message.msn for message in peer.messages] == list(range(1, len(sent) + 1))
