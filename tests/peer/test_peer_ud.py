"""UD between siwarp and the independent peer (sections 3, 4 and 6 of the specification)."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

import pytest
from peer.link import BAD, CLEAN, EmulatedLink, Faults, open_udp_socket, run_until
from peer.ours import (
    SEED,
    TIMEOUT_S,
    SiwarpEnd,
    closing_emulated_link,
    open_siwarp_queue_pair,
    seeded_octets,
    stress_round_count,
)
from peer.ud import UdPeer, build_qn_field
from peer.wire import (
    PRIVATE,
    SEND,
    Untagged,
    WireError,
    append_crc,
    parse_segment,
    verify_and_strip_crc,
)

from siwarp.verbs import ErrorOrigin, QPAttr, QPState, QPType, WCFlag, WCStatus, WROpcode

pytestmark = pytest.mark.timeout(TIMEOUT_S)
QKEY = 0x5EED0001


class Ends:
    """A siwarp queue pair, the independent peer, and the link between them."""

    def __init__(self, ours: SiwarpEnd, peer: UdPeer, link: EmulatedLink) -> None:
        self.ours, self.peer, self.link = ours, peer, link
        link.siwarp, link.peer = ours.qp.addr, peer.sock.getsockname()
        self.ah = ours.create_address_handle(link.far)

    def run_until(self, until: Callable[[], bool]) -> None:
        """Run the peer, the link and siwarp until the condition is true."""
        run_until(
            until,
            [self.peer.process_datagrams, self.link.forward_datagrams, self.ours.poll_completions],
            self.link.sockets(),
        )

    def exchange_last_messages(self) -> None:
        """Wait until all datagrams in flight have arrived and siwarp has received its messages."""
        self.run_until(self.link.is_idle)
        marker = len(self.ours.got)
        self.link.remove_faults()
        self.peer.send(self.link.near, b"the end")
        self.run_until(lambda: any(data == b"the end" for _, data in self.ours.got[marker:]))
        self.ours.post_payload(b"the end", ah=self.ah)
        self.run_until(lambda: any(m.payload == b"the end" for m in self.peer.messages))


def siwarp_and_peer(faults: Faults) -> Iterator[Ends]:
    """Yield the siwarp queue pair, the independent peer and the link between them.

    The queue pair has a receive for each message of a test, even if the link duplicates each. UD
    drops a message for which no receive is posted, and while another process has the CPU, the
    device's thread may receive many messages in a row.
    """
    slots = 2 * stress_round_count(300)
    with (
        open_siwarp_queue_pair(
            QPType.UD, slots=slots, attr=QPAttr(qkey=QKEY), error_policy="message"
        ) as ours,
        open_udp_socket() as sock,
        closing_emulated_link(EmulatedLink(SEED, faults)) as link,
    ):
        yield Ends(ours, UdPeer(sock, QKEY), link)


@pytest.fixture
def endpoints_of_fault_free_link() -> Iterator[Ends]:
    """Yield both ends and a link without faults."""
    yield from siwarp_and_peer(CLEAN)


@pytest.fixture
def endpoints_of_faulty_link() -> Iterator[Ends]:
    """Yield both ends and a link with faults."""
    yield from siwarp_and_peer(BAD)


def encode_immediate(value: int) -> bytes:
    """Return immediate data in its memory format (DGRAM-IMM-2)."""
    return value.to_bytes(4, sys.byteorder)


def parse_undamaged_ddp_segments(datagrams: list[bytes]) -> list[Untagged]:
    """Return the segments of the datagrams that the link did not damage."""
    found = []
    for datagram in datagrams:
        try:
            segment = parse_segment(verify_and_strip_crc(datagram))
        except WireError:
            continue
        assert isinstance(segment, Untagged)
        found.append(segment)
    return found


@pytest.mark.clause("DGRAM-LLP-4", "DGRAM-UD-11", "DGRAM-UD-19")
def test_forwarded_ud_messages_arrive_unchanged_and_no_other_message_arrives(
    endpoints_of_faulty_link: Ends,
) -> None:
    count = stress_round_count(300)
    rng = random.Random(SEED)
    answers = []
    for i in range(count):
        payload = seeded_octets(f"to {i}", rng.randrange(1200))
        value = i if i % 3 == 0 else None
        endpoints_of_faulty_link.peer.send(
            endpoints_of_faulty_link.link.near,
            payload,
            solicited=i % 2 == 0,
            immediate=None if value is None else encode_immediate(value),
        )
        answer = seeded_octets(f"from {i}", rng.randrange(1200))
        if value is None:
            endpoints_of_faulty_link.ours.post_payload(answer, ah=endpoints_of_faulty_link.ah)
        else:
            endpoints_of_faulty_link.ours.post_payload(
                answer, WROpcode.SEND_WITH_IMM, ah=endpoints_of_faulty_link.ah, imm_data=value
            )
        answers.append((answer, None if value is None else encode_immediate(value)))
        for step in (
            endpoints_of_faulty_link.link.forward_datagrams,
            endpoints_of_faulty_link.ours.poll_completions,
            endpoints_of_faulty_link.peer.process_datagrams,
        ):
            step()
    endpoints_of_faulty_link.exchange_last_messages()

    wanted = []
    for segment in parse_undamaged_ddp_segments(endpoints_of_faulty_link.link.to_siwarp.passed):
        if segment.opcode == PRIVATE:
            wanted.append((segment.payload[8:], segment.payload[4:8]))
        else:
            wanted.append((segment.payload, None))
    got = [
        (data, encode_immediate(wc.imm_data) if wc.wc_flags & WCFlag.WITH_IMM else None)
        for wc, data in endpoints_of_faulty_link.ours.got
    ]
    assert got == wanted
    # More than 1% of the datagrams were damaged.
    assert len(endpoints_of_faulty_link.link.to_siwarp.passed) - len(wanted) > count // 100
    assert {wc.source for wc, _ in endpoints_of_faulty_link.ours.got} == {
        endpoints_of_faulty_link.link.far
    }
    assert {wc.src_qp for wc, _ in endpoints_of_faulty_link.ours.got} == {
        endpoints_of_faulty_link.link.far[1]
    }

    came = parse_undamaged_ddp_segments(endpoints_of_faulty_link.link.from_siwarp.passed)
    assert [m.msn for m in endpoints_of_faulty_link.peer.messages] == [
        segment.msn for segment in came
    ]
    for message in endpoints_of_faulty_link.peer.messages[:-1]:
        assert (message.payload, message.immediate) == answers[message.msn - 1]
    assert endpoints_of_faulty_link.peer.dropped.count("CRC") == len(
        endpoints_of_faulty_link.link.from_siwarp.passed
    ) - len(came)
    assert len(endpoints_of_faulty_link.ours.sent) == count + 1 and all(
        wc.ok for wc in endpoints_of_faulty_link.ours.sent
    )


@pytest.mark.parametrize("length", [0, 1, 1472, 65_485])
@pytest.mark.clause("DGRAM-UD-9", "DGRAM-UD-12")
def test_ud_messages_arrive_or_complete_a_too_short_receive_with_an_error(
    endpoints_of_fault_free_link: Ends, length: int
) -> None:
    payload = seeded_octets(length, length)
    endpoints_of_fault_free_link.ours.post_payload(payload, ah=endpoints_of_fault_free_link.ah)
    endpoints_of_fault_free_link.run_until(lambda: bool(endpoints_of_fault_free_link.peer.messages))
    assert endpoints_of_fault_free_link.peer.messages[0].payload == payload
    endpoints_of_fault_free_link.peer.send(endpoints_of_fault_free_link.link.near, payload)
    endpoints_of_fault_free_link.run_until(lambda: bool(endpoints_of_fault_free_link.ours.got))
    wc, data = endpoints_of_fault_free_link.ours.got[0]
    if length <= endpoints_of_fault_free_link.ours.slot:
        assert data == payload
    else:
        assert wc.status == WCStatus.LOC_LEN_ERR


@pytest.mark.clause("DGRAM-ERR-1", "DGRAM-ERR-8")
def test_siwarp_answers_an_invalid_ud_message_with_an_error_message_as_in_figure_6_1(
    endpoints_of_fault_free_link: Ends,
) -> None:
    """A message that violates rule h of table 6.1 is answered by an error message that quotes the
    header of the message.
    """
    peer = endpoints_of_fault_free_link.peer
    wrong = Untagged(SEND, build_qn_field(0, 0, 7), 41, mo=4, payload=b"beyond", word=QKEY)
    peer.index = 7
    peer.sock.sendto(append_crc(wrong.octets()), endpoints_of_fault_free_link.link.near)
    endpoints_of_fault_free_link.run_until(lambda: bool(peer.reports))
    (report,) = peer.reports
    error = report.error
    assert (error.layer, error.type, error.code) == (1, 2, 4)
    assert (error.header, error.seg_len) == (wrong.header(), 18 + 6)
    assert report.source_index == 0
    (datagram,) = endpoints_of_fault_free_link.link.from_siwarp.passed
    assert len(datagram) == 46
    (found,) = endpoints_of_fault_free_link.ours.qp.errors()
    assert found.origin == ErrorOrigin.FOUND and found.msn == 41
    assert found.qpn == 7 << 16 | endpoints_of_fault_free_link.link.far[1]


@pytest.mark.clause("DGRAM-ERR-9")
def test_an_error_message_of_the_peer_appears_in_siwarps_error_queue(
    endpoints_of_fault_free_link: Ends,
) -> None:
    endpoints_of_fault_free_link.peer.receive_octets = 100
    endpoints_of_fault_free_link.ours.post_payload(bytes(100), ah=endpoints_of_fault_free_link.ah)
    endpoints_of_fault_free_link.ours.post_payload(bytes(101), ah=endpoints_of_fault_free_link.ah)
    endpoints_of_fault_free_link.run_until(
        lambda: (
            endpoints_of_fault_free_link.peer.too_long == 1
            and endpoints_of_fault_free_link.link.is_idle()
        )
    )
    reports = []

    def has_reported_errors() -> bool:
        reports.extend(endpoints_of_fault_free_link.ours.qp.errors())
        return bool(reports)

    endpoints_of_fault_free_link.run_until(has_reported_errors)
    (report,) = reports
    assert report.origin == ErrorOrigin.REPORTED
    assert (report.layer, report.type, report.code, report.msn) == (1, 2, 5, 2)
    assert report.seg_len == 18 + 101 and report.source == endpoints_of_fault_free_link.link.far


@pytest.mark.clause("DGRAM-ERR-2", "DGRAM-UD-4")
def test_ud_messages_with_a_wrong_q_key_are_not_answered_and_consume_no_receive(
    endpoints_of_fault_free_link: Ends,
) -> None:
    peer = endpoints_of_fault_free_link.peer
    peer.send(endpoints_of_fault_free_link.link.near, b"who are you", qkey=QKEY + 1)
    for mo, opcode in ((4, SEND), (0, 1)):
        wrong = Untagged(opcode, 0, 1, mo=mo, payload=b"x", word=QKEY ^ 1)
        peer.sock.sendto(append_crc(wrong.octets()), endpoints_of_fault_free_link.link.near)
    endpoints_of_fault_free_link.exchange_last_messages()
    assert [data for _, data in endpoints_of_fault_free_link.ours.got] == [b"the end"]
    # siwarp has transmitted only its final message.
    assert len(endpoints_of_fault_free_link.link.from_siwarp.passed) == 1
    assert endpoints_of_fault_free_link.ours.qp.errors() == []


@pytest.mark.clause("DGRAM-UD-21")
def test_ud_messages_with_unknown_opcodes_or_subcodes_are_reported_as_unexpected(
    endpoints_of_fault_free_link: Ends,
) -> None:
    wrongs = [
        Untagged(1, 0, 1, payload=bytes(28), word=QKEY),
        Untagged(PRIVATE, 0, 2, payload=bytes([9]) + bytes(7), word=QKEY),
        Untagged(PRIVATE, 0, 3, payload=bytes([1]) + bytes(6), word=QKEY),
    ]
    for wrong in wrongs:
        endpoints_of_fault_free_link.peer.sock.sendto(
            append_crc(wrong.octets()), endpoints_of_fault_free_link.link.near
        )
    endpoints_of_fault_free_link.run_until(
        lambda: len(endpoints_of_fault_free_link.peer.reports) == len(wrongs)
    )
    assert [report.error.header for report in endpoints_of_fault_free_link.peer.reports] == [
        w.header() for w in wrongs
    ]
    assert {
        (r.error.layer, r.error.type, r.error.code)
        for r in endpoints_of_fault_free_link.peer.reports
    } == {(0, 2, 6)}


@pytest.mark.clause("DGRAM-ERR-7")
def test_with_error_policy_error_an_invalid_message_moves_the_queue_pair_to_err() -> None:
    with (
        open_siwarp_queue_pair(QPType.UD, attr=QPAttr(qkey=QKEY), error_policy="error") as ours,
        open_udp_socket() as sock,
        closing_emulated_link(EmulatedLink(SEED)) as link,
    ):
        both = Ends(ours, UdPeer(sock, QKEY), link)
        both.peer.sock.sendto(append_crc(Untagged(SEND, 0, 1, mo=1, word=QKEY).octets()), link.near)
        both.run_until(lambda: bool(both.peer.reports))
        assert ours.qp.query()[0].qp_state == QPState.ERR
