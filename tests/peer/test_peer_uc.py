"""UC between siwarp and the independent peer (section 7 of the datagram-iWARP specification)."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from peer.link import CLEAN, EmulatedLink, Faults, open_udp_socket, run_until
from peer.ours import (
    ALL,
    SEED,
    TIMEOUT_S,
    SiwarpEnd,
    closing_emulated_link,
    open_siwarp_queue_pair,
    seeded_octets,
    stress_round_count,
)
from peer.uc import Delivery, UcReceiver, UcSender

from siwarp.verbs import MR, QPAttr, QPType, RemoteBuffer, WCFlag, WCOpcode, WROpcode

pytestmark = pytest.mark.timeout(TIMEOUT_S)
QKEY = 0x0BADCAFE
MTU = 512
MEMORY = 1 << 16
#: The loss of a datagram loses its complete message, so the faults are rare enough that some long
#: messages arrive.
POOR = Faults(loss=0.03, double=0.04, reorder=0.03, damage=0.02)
STAG, BASE = 0x11223344, 1 << 40


class Ends:
    """A siwarp queue pair with memory to write to, the two halves of the peer, and the link."""

    def __init__(
        self, ours: SiwarpEnd, sender: UcSender, receiver: UcReceiver, link: EmulatedLink
    ) -> None:
        self.ours, self.sender, self.receiver, self.link = ours, sender, receiver, link
        self.region: MR = ours.register_memory(MEMORY)
        link.siwarp = ours.qp.addr
        link.peer = sender.sock.getsockname()

    def run_until(self, until: Callable[[], bool]) -> None:
        """Run the peer, the link and siwarp until the condition is true."""
        take = [
            lambda: self.receiver.process_datagrams(self.sender.sock),
            self.link.forward_datagrams,
            self.ours.poll_completions,
        ]
        run_until(until, take, self.link.sockets())

    def exchange_last_messages(self) -> None:
        """Wait until the link is idle, then exchange a last message in each direction."""
        self.run_until(self.link.is_idle)
        self.link.remove_faults()
        self.sender.send(b"the end")
        self.run_until(lambda: any(data == b"the end" for _, data in self.ours.got))
        self.ours.post_payload(b"the end")
        self.run_until(lambda: any(d.payload == b"the end" for d in self.receiver.delivered))


@contextmanager
def siwarp_and_peer(faults: Faults, psn: tuple[int, int] = (0, 0)) -> Iterator[Ends]:
    """Yield both ends; ``psn`` holds the first PSN sent to siwarp and the first PSN sent by
    siwarp.
    """
    with open_udp_socket() as sock, closing_emulated_link(EmulatedLink(SEED, faults)) as link:
        attr = QPAttr(
            qkey=QKEY,
            ah_attr=link.far,
            qp_access_flags=ALL,
            rq_psn=psn[0],
            sq_psn=psn[1],
            path_mtu=MTU,
        )
        # UC drops a message for which no receive is posted, so each message of a test has a
        # receive.
        slots = 2 * stress_round_count(150)
        with open_siwarp_queue_pair(QPType.UC, slots=slots, attr=attr, slot=8192) as ours:
            sender = UcSender(sock, link.near, QKEY, psn[0], MTU)
            receiver = UcReceiver(QKEY, psn[1], STAG, BASE, bytearray(MEMORY))
            yield Ends(ours, sender, receiver, link)


def collect_siwarp_deliveries(ours: SiwarpEnd) -> list[Delivery]:
    """Return the completed receives of siwarp as Delivery objects, for comparison with the
    model.
    """
    found = []
    for wc, data in ours.got:
        assert wc.ok
        with_imm = wc.wc_flags & WCFlag.WITH_IMM
        value = wc.imm_data.to_bytes(4, sys.byteorder) if with_imm else None
        found.append(Delivery(data, value, wc.byte_len))
    return found


# The second pair of PSNs wraps around within the first datagrams.
@pytest.mark.parametrize("psn", [(0, 0), (0xFFFFFFF0, 0xFFFFFFFA)])
@pytest.mark.clause("DGRAM-UC-7", "DGRAM-UC-8", "DGRAM-UC-10")
def test_siwarp_and_a_model_of_the_specification_deliver_the_same_uc_messages(
    psn: tuple[int, int],
) -> None:
    """Pass the datagrams that the link forwarded to siwarp to a model receiver as well; siwarp and
    the model must deliver the same messages.
    """
    count = stress_round_count(150)
    rng = random.Random(SEED)
    with siwarp_and_peer(POOR, psn) as both:
        for i in range(count):
            payload = seeded_octets(f"to {i}", rng.randrange(5 * MTU))
            value = i.to_bytes(4, "big") if i % 3 == 0 else None
            if i % 2:
                at = rng.randrange(MEMORY - len(payload))
                both.sender.write(both.region.rkey, both.region.iova + at, payload, immediate=value)
            else:
                both.sender.send(payload, solicited=i % 4 == 0, immediate=value)
            both.link.forward_datagrams()
            both.ours.poll_completions()
        both.exchange_last_messages()
        model = UcReceiver(QKEY, psn[0], both.region.rkey, both.region.iova, bytearray(MEMORY))
        for datagram in both.link.to_siwarp.passed:
            model.process_datagram(datagram)
        assert collect_siwarp_deliveries(both.ours) == model.delivered
        assert both.region.read() == bytes(model.memory)
        # More than a third of the messages were complete, but not all.
        assert count // 3 < len(model.delivered) < count
        assert model.missing and model.dropped["late"] and model.dropped["CRC"]


@pytest.mark.clause("DGRAM-UC-3", "DGRAM-UC-19", "DGRAM-UC-20")
def test_a_uc_message_of_siwarp_is_delivered_completely_or_not_at_all() -> None:
    count = stress_round_count(150)
    rng = random.Random(SEED)
    sends = []
    with siwarp_and_peer(POOR) as both:
        ours = both.ours
        for i in range(count):
            payload = seeded_octets(f"from {i}", rng.randrange(1, 5 * MTU))
            there = RemoteBuffer(BASE + rng.randrange(MEMORY - len(payload)), len(payload), STAG)
            if i % 4 == 0:
                ours.post_payload(payload)
            elif i % 4 == 1:
                ours.post_payload(payload, WROpcode.SEND_WITH_IMM, imm_data=i)
            elif i % 4 == 2:
                ours.post_payload(payload, WROpcode.RDMA_WRITE, remote=there)
            else:
                ours.post_payload(payload, WROpcode.RDMA_WRITE_WITH_IMM, remote=there, imm_data=i)
            sends.append((payload, i.to_bytes(4, sys.byteorder)))
            for step in (both.ours.poll_completions, both.link.forward_datagrams):
                step()
            both.receiver.process_datagrams(both.sender.sock)
        both.exchange_last_messages()
        assert all(wc.ok for wc in ours.sent) and len(ours.sent) == count + 1
        possible = {
            0: lambda p, v: Delivery(p, None, len(p)),
            1: lambda p, v: Delivery(p, v, len(p)),
            3: lambda p, v: Delivery(b"", v, len(p)),
        }
        wanted = [possible[i % 4](*sends[i]) for i in range(count) if i % 4 != 2]
        rest = iter(wanted)
        assert both.receiver.delivered.pop().payload == b"the end"
        for delivery in both.receiver.delivered:
            # Messages are delivered in the order of sending, each at most once.
            assert delivery in rest
        assert len(wanted) // 3 < len(both.receiver.delivered) < len(wanted)
        assert both.receiver.dropped["CRC"] and both.receiver.missing


@pytest.mark.clause("DGRAM-UC-2")
def test_uc_writes_place_their_data_at_the_requested_addresses() -> None:
    """Without losses the peer's memory must equal the data that siwarp wrote."""
    with siwarp_and_peer(CLEAN) as both:
        wanted = bytearray(MEMORY)
        rng = random.Random(SEED)
        for i in range(40):
            payload = seeded_octets(i, rng.randrange(4 * MTU))
            at = rng.randrange(MEMORY - len(payload))
            wanted[at : at + len(payload)] = payload
            there = RemoteBuffer(BASE + at, len(payload), STAG)
            both.ours.post_payload(payload, WROpcode.RDMA_WRITE, remote=there)
        both.exchange_last_messages()
        assert both.receiver.memory == wanted
        assert both.receiver.dropped == {} and both.receiver.missing == 0


@pytest.mark.clause("DGRAM-UC-6", "DGRAM-UC-11", "DGRAM-UC-12")
def test_uc_datagrams_that_are_not_credible_or_lack_access_rights_have_no_effect() -> None:
    with siwarp_and_peer(CLEAN) as both:
        honest = both.sender
        liar = UcSender(honest.sock, honest.to, QKEY + 1, 0, MTU)
        liar.send(b"another Q_Key")
        honest.write(both.region.rkey, both.region.iova + MEMORY, b"beyond", immediate=bytes(4))
        honest.write(both.region.rkey ^ 1, both.region.iova, b"no such STag", immediate=bytes(4))
        with open_udp_socket() as stranger:
            UcSender(stranger, both.ours.qp.addr, QKEY, honest.psn, MTU).send(b"from elsewhere")
            both.exchange_last_messages()
        assert [data for _, data in both.ours.got] == [b"the end"]
        assert both.region.read() == bytes(MEMORY)
        # The message of siwarp at the end of the test is the only datagram that siwarp has sent.
        assert len(both.link.from_siwarp.passed) == 1
        assert both.ours.got[0][0].opcode == WCOpcode.RECV
