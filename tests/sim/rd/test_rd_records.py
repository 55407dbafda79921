"""RD: a queue pair services other hosts although one host occupies all of its peer records."""

from __future__ import annotations

import net
import pytest
from harness.rd_harness import QKEY, RDEnd
from harness.verbs_harness import Rig, counter_value
from unit.rd.rd_kit import HELLO, OFFER

from siwarp.inspect.rd import RDDatagram, RDType, cookie_in_handshake_body

PEER_RECORDS, EXCESS_PEERS = 64, 200


class PeerRecordOccupier:
    """A scripted peer that establishes an incarnation and then sends only probes."""

    def __init__(self, server: RDEnd, number: int) -> None:
        self.dest, self.epoch = server.qp.addr, 1 + number
        self.sock = net.open_udp_socket()
        self.sock.settimeout(5.0)
        self.other = 0

    def send_datagram(self, kind: RDType, body: bytes = b"") -> None:
        d = RDDatagram(
            type=int(kind), q_key=QKEY, psn=self.epoch, source_epoch=self.epoch, body=body,
            dest_epoch=self.other, acknowledged=self.other, response_acknowledged=self.other,
        )  # fmt: skip
        self.sock.sendto(bytes(d), self.dest)

    def connect(self) -> None:
        self.send_datagram(RDType.HELLO, HELLO)
        challenge = RDDatagram(self.sock.recv(2048))
        assert challenge.type == RDType.CHALLENGE
        self.other = challenge.source_epoch
        self.send_datagram(RDType.ECHO, OFFER + cookie_in_handshake_body(challenge.body))
        assert RDDatagram(self.sock.recv(2048)).type == RDType.ACK


@pytest.mark.clause("DGRAM-MEET-7")
@pytest.mark.parametrize("host", [net.HERE, "10.0.0.2"])
def test_a_host_that_occupies_all_peer_records_does_not_prevent_service_of_clients(
    rig: Rig, host: str
) -> None:
    server = RDEnd(rig, max_peers=PEER_RECORDS)
    net.open_udp_socket(host).close()  # this adds a simulated host with the address
    there = Rig(host)
    takers = [PeerRecordOccupier(server, i) for i in range(PEER_RECORDS + EXCESS_PEERS)]
    try:
        before = counter_value("rd_evicted")
        for taker in takers:
            taker.connect()
            taker.send_datagram(RDType.PROBE)
        # Peer records of the same host replace each other.
        assert counter_value("rd_evicted") - before == EXCESS_PEERS
        for i in range(3):
            client = RDEnd(there, host=host)
            server.post_receive(i)
            began = net.now()
            client.send(server, b"good", i)
            assert client.poll_sends()[0].ok and server.poll_receives()[0].ok
            assert net.now() - began < 0.01
            client.qp.close()
    finally:
        for taker in takers:
            taker.sock.close()


@pytest.mark.clause("DGRAM-MEET-7")
@pytest.mark.parametrize("host", [net.HERE, "10.0.0.2"])
def test_closed_clients_do_not_prevent_new_clients_of_their_address(rig: Rig, host: str) -> None:
    server = RDEnd(rig, max_peers=4)
    net.open_udp_socket(host).close()  # this adds a simulated host with the address
    there = Rig(host)
    for i in range(12):
        client = RDEnd(there, host=host)
        server.post_receive(i)
        began = net.now()
        client.send(server, b"good", i)
        assert client.poll_sends()[0].ok and server.poll_receives()[0].ok
        client.post_receive(i)
        server.send(client, b"answer", i)
        assert server.poll_sends()[0].ok and client.poll_receives()[0].ok
        assert net.now() - began < 0.01
        client.qp.close()
        net.sleep(0.05)
