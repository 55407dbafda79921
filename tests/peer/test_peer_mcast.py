"""Multicast groups with siwarp and the independent peer as members (section 5 of the
specification).
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

import pytest
from peer.link import BAD, EmulatedLink, open_udp_socket, run_until
from peer.ours import SEED, closing_emulated_link, open_siwarp_queue_pair, seeded_octets
from peer.ud import UdPeer
from peer.wire import WireError, verify_and_strip_crc

from siwarp.verbs import QPAttr, QPType

GROUP_PORT = 62607


@pytest.fixture
def group_address() -> str:
    """Return a multicast group for this process only, because other processes may run the same
    tests.
    """
    return f"239.195.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"


@pytest.fixture(name="qkey")
def random_qkey() -> int:
    """Return a random Q_Key for this test, in case two processes use the same group."""
    return random.SystemRandom().randrange(1, 1 << 31)


@pytest.fixture
def multicast_member_socket(group_address: str) -> Iterator[socket.socket]:
    """Yield a socket that is a member of the multicast group on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((group_address, GROUP_PORT))
        joined = socket.inet_aton(group_address) + socket.inet_aton("127.0.0.1")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        sock.setblocking(False)
        yield sock


@pytest.mark.clause("DGRAM-MCAST-2", "DGRAM-MCAST-8", "DGRAM-MCAST-10")
def test_siwarp_receives_messages_that_the_peer_sends_to_a_multicast_group(
    group_address: str, qkey: int
) -> None:
    """Send messages over a lossy link; an invalid message to a group is not answered
    (DGRAM-MCAST-8).
    """
    with (
        # The queue pair has a receive for each message, because a delayed process gets many
        # messages in a row.
        open_siwarp_queue_pair(QPType.UD, slots=256, attr=QPAttr(qkey=qkey)) as ours,
        open_udp_socket() as sock,
        closing_emulated_link(EmulatedLink(SEED, BAD)) as link,
    ):
        ours.qp.attach_mcast(group_address)
        link.set_multicast_interface("127.0.0.1")
        link.siwarp, link.peer = (group_address, GROUP_PORT), sock.getsockname()
        peer = UdPeer(sock, qkey, index=9)
        sent = [seeded_octets(i, i * 10) for i in range(100)]
        for payload in sent:
            peer.send(link.near, payload, immediate=payload[:4] if len(payload) > 100 else None)
            link.forward_datagrams()
            ours.poll_completions()
        run_until(link.is_idle, [link.forward_datagrams, ours.poll_completions], link.sockets())
        link.remove_faults()
        # The message is longer than the buffer of a receive.
        peer.send(link.near, bytes(5000))
        peer.send(link.near, b"the end")
        until = [link.forward_datagrams, ours.poll_completions, peer.process_datagrams]
        run_until(lambda: any(d == b"the end" for _, d in ours.got), until, link.sockets())

        wanted = []
        for datagram in link.to_siwarp.passed:
            try:
                body = verify_and_strip_crc(datagram)
            except WireError:
                continue
            if len(body) < 5000:
                wanted.append(body[18 + (8 if body[1] & 0xF == 15 else 0) :])
        assert [data for wc, data in ours.got if wc.ok] == wanted
        assert {wc.source for wc, _ in ours.got if wc.ok} == {link.far}
        assert {wc.src_qp for wc, _ in ours.got if wc.ok} == {9 << 16 | link.far[1]}
        assert link.from_siwarp.passed == [] and peer.reports == []


@pytest.mark.clause("DGRAM-MCAST-1")
def test_the_peer_receives_messages_that_siwarp_sends_to_a_multicast_group(
    group_address: str, qkey: int, multicast_member_socket: socket.socket
) -> None:
    with open_siwarp_queue_pair(QPType.UD, attr=QPAttr(qkey=qkey)) as ours:
        peer = UdPeer(multicast_member_socket, qkey, group=True)
        handle = ours.create_address_handle((group_address, 0))
        sent = [seeded_octets(i, i * 20) for i in range(50)]
        for payload in sent:
            ours.post_payload(payload, ah=handle)
        run_until(
            lambda: len(peer.messages) == len(sent),
            [peer.process_datagrams, ours.poll_completions],
            [multicast_member_socket],
        )
        assert [message.payload for message in peer.messages] == sent
        assert {message.source for message in peer.messages} == {ours.qp.addr}
        assert [message.msn for message in peer.messages] == list(range(1, len(sent) + 1))
