"""siwarp's UD with the independent peer: sections 3, 4 and 6 of the page."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

import pytest
from peer.line import BAD, CLEAN, Faults, Line, run, udp_socket
from peer.ours import SEED, TIMEOUT_S, Siwarp, closing, octets, rounds, siwarp_queue_pair
from peer.ud import UdPeer, qn
from peer.wire import PRIVATE, SEND, Untagged, WireError, parse_segment, seal, unseal

from siwarp.verbs import ErrorOrigin, QPAttr, QPState, QPType, WCFlag, WCStatus, WROpcode

pytestmark = pytest.mark.timeout(TIMEOUT_S)
QKEY = 0x5EED0001


class Ends:
    """siwarp's queue pair, the peer, and the line between them."""

    def __init__(self, ours: Siwarp, peer: UdPeer, line: Line) -> None:
        self.ours, self.peer, self.line = ours, peer, line
        line.siwarp, line.peer = ours.qp.addr, peer.sock.getsockname()
        self.ah = ours.toward(line.far)

    def run(self, until: Callable[[], bool]) -> None:
        """Run all components until the condition is true."""
        run(until, [self.peer.step, self.line.step, self.ours.step], self.line.sockets())

    def settle(self) -> None:
        """Let everything in flight arrive; afterwards siwarp has received all of it."""
        self.run(self.line.idle)
        marker = len(self.ours.got)
        self.line.heal()
        self.peer.send(self.line.near, b"the end")
        self.run(lambda: any(data == b"the end" for _, data in self.ours.got[marker:]))
        self.ours.send(b"the end", ah=self.ah)
        self.run(lambda: any(m.payload == b"the end" for m in self.peer.messages))


def ends(faults: Faults) -> Iterator[Ends]:
    """Yield siwarp's end, the peer and the line between them.

    There is a receive for each message of a test, even if the line doubles it. UD drops messages
    that find no receive, and while another process has the CPU, the device's thread may receive
    more messages in a row than this test has posted receives for.
    """
    slots = 2 * rounds(300)
    with (
        siwarp_queue_pair(
            QPType.UD, slots=slots, attr=QPAttr(qkey=QKEY), error_policy="message"
        ) as ours,
        udp_socket() as sock,
        closing(Line(SEED, faults)) as line,
    ):
        yield Ends(ours, UdPeer(sock, QKEY), line)


@pytest.fixture
def clean() -> Iterator[Ends]:
    """Yield both ends and a line without faults."""
    yield from ends(CLEAN)


@pytest.fixture
def bad() -> Iterator[Ends]:
    """Yield both ends and a bad line."""
    yield from ends(BAD)


def immediate(value: int) -> bytes:
    """Return immediate data in its memory format (DGRAM-IMM-2)."""
    return value.to_bytes(4, sys.byteorder)


def intact(datagrams: list[bytes]) -> list[Untagged]:
    """Return the segments of the datagrams that the line did not damage."""
    found = []
    for datagram in datagrams:
        try:
            segment = parse_segment(unseal(datagram))
        except WireError:
            continue
        assert isinstance(segment, Untagged)
        found.append(segment)
    return found


@pytest.mark.clause("DGRAM-LLP-4", "DGRAM-UD-11", "DGRAM-UD-19")
def test_what_the_line_lets_through_arrives_as_it_was_and_nothing_else(bad: Ends) -> None:
    count = rounds(300)
    rng = random.Random(SEED)
    answers = []
    for i in range(count):
        payload = octets(f"to {i}", rng.randrange(1200))
        value = i if i % 3 == 0 else None
        bad.peer.send(
            bad.line.near,
            payload,
            solicited=i % 2 == 0,
            immediate=None if value is None else immediate(value),
        )
        answer = octets(f"from {i}", rng.randrange(1200))
        if value is None:
            bad.ours.send(answer, ah=bad.ah)
        else:
            bad.ours.send(answer, WROpcode.SEND_WITH_IMM, ah=bad.ah, imm_data=value)
        answers.append((answer, None if value is None else immediate(value)))
        for step in (bad.line.step, bad.ours.step, bad.peer.step):
            step()
    bad.settle()

    wanted = []
    for segment in intact(bad.line.to_siwarp.passed):
        if segment.opcode == PRIVATE:
            wanted.append((segment.payload[8:], segment.payload[4:8]))
        else:
            wanted.append((segment.payload, None))
    got = [
        (data, immediate(wc.imm_data) if wc.wc_flags & WCFlag.WITH_IMM else None)
        for wc, data in bad.ours.got
    ]
    assert got == wanted
    # more than 1% of the datagrams were damaged
    assert len(bad.line.to_siwarp.passed) - len(wanted) > count // 100
    assert {wc.source for wc, _ in bad.ours.got} == {bad.line.far}
    assert {wc.src_qp for wc, _ in bad.ours.got} == {bad.line.far[1]}

    came = intact(bad.line.from_siwarp.passed)
    assert [m.msn for m in bad.peer.messages] == [segment.msn for segment in came]
    for message in bad.peer.messages[:-1]:
        assert (message.payload, message.immediate) == answers[message.msn - 1]
    assert bad.peer.dropped.count("CRC") == len(bad.line.from_siwarp.passed) - len(came)
    assert len(bad.ours.sent) == count + 1 and all(wc.ok for wc in bad.ours.sent)


@pytest.mark.parametrize("length", [0, 1, 1472, 65_485])
@pytest.mark.clause("DGRAM-UD-9", "DGRAM-UD-12")
def test_messages_of_each_length(clean: Ends, length: int) -> None:
    payload = octets(length, length)
    clean.ours.send(payload, ah=clean.ah)
    clean.run(lambda: bool(clean.peer.messages))
    assert clean.peer.messages[0].payload == payload
    clean.peer.send(clean.line.near, payload)
    clean.run(lambda: bool(clean.ours.got))
    wc, data = clean.ours.got[0]
    if length <= clean.ours.slot:
        assert data == payload
    else:
        assert wc.status == WCStatus.LOC_LEN_ERR


@pytest.mark.clause("DGRAM-ERR-1", "DGRAM-ERR-8")
def test_an_error_of_ours_comes_back_as_figure_6_1_has_it(clean: Ends) -> None:
    """A message that breaks rule h of table 6.1 is answered by an error message that names it."""
    peer = clean.peer
    wrong = Untagged(SEND, qn(0, 0, 7), 41, mo=4, payload=b"beyond", word=QKEY)
    peer.index = 7
    peer.sock.sendto(seal(wrong.octets()), clean.line.near)
    clean.run(lambda: bool(peer.reports))
    (report,) = peer.reports
    error = report.error
    assert (error.layer, error.type, error.code) == (1, 2, 4)
    assert (error.header, error.seg_len) == (wrong.header(), 18 + 6)
    assert report.source_index == 0
    (datagram,) = clean.line.from_siwarp.passed
    assert len(datagram) == 46
    (found,) = clean.ours.qp.errors()
    assert found.origin == ErrorOrigin.FOUND and found.msn == 41
    assert found.qpn == 7 << 16 | clean.line.far[1]


@pytest.mark.clause("DGRAM-ERR-9")
def test_an_error_of_the_peer_is_read_at_siwarp(clean: Ends) -> None:
    clean.peer.receive_octets = 100
    clean.ours.send(bytes(100), ah=clean.ah)
    clean.ours.send(bytes(101), ah=clean.ah)
    clean.run(lambda: clean.peer.too_long == 1 and clean.line.idle())
    reports = []

    def reported() -> bool:
        reports.extend(clean.ours.qp.errors())
        return bool(reports)

    clean.run(reported)
    (report,) = reports
    assert report.origin == ErrorOrigin.REPORTED
    assert (report.layer, report.type, report.code, report.msn) == (1, 2, 5, 2)
    assert report.seg_len == 18 + 101 and report.source == clean.line.far


@pytest.mark.clause("DGRAM-ERR-2", "DGRAM-UD-4")
def test_strangers_get_no_answer_and_take_no_receive(clean: Ends) -> None:
    peer = clean.peer
    peer.send(clean.line.near, b"who are you", qkey=QKEY + 1)
    for mo, opcode in ((4, SEND), (0, 1)):
        wrong = Untagged(opcode, 0, 1, mo=mo, payload=b"x", word=QKEY ^ 1)
        peer.sock.sendto(seal(wrong.octets()), clean.line.near)
    clean.settle()
    assert [data for _, data in clean.ours.got] == [b"the end"]
    assert len(clean.line.from_siwarp.passed) == 1  # the only datagram is siwarp's final message
    assert clean.ours.qp.errors() == []


@pytest.mark.clause("DGRAM-UD-21")
def test_unknown_opcodes_and_subcodes_are_unexpected(clean: Ends) -> None:
    wrongs = [
        Untagged(1, 0, 1, payload=bytes(28), word=QKEY),
        Untagged(PRIVATE, 0, 2, payload=bytes([9]) + bytes(7), word=QKEY),
        Untagged(PRIVATE, 0, 3, payload=bytes([1]) + bytes(6), word=QKEY),
    ]
    for wrong in wrongs:
        clean.peer.sock.sendto(seal(wrong.octets()), clean.line.near)
    clean.run(lambda: len(clean.peer.reports) == len(wrongs))
    assert [report.error.header for report in clean.peer.reports] == [w.header() for w in wrongs]
    assert {(r.error.layer, r.error.type, r.error.code) for r in clean.peer.reports} == {(0, 2, 6)}


@pytest.mark.clause("DGRAM-ERR-7")
def test_under_policy_error_the_queue_pair_stops() -> None:
    with (
        siwarp_queue_pair(QPType.UD, attr=QPAttr(qkey=QKEY), error_policy="error") as ours,
        udp_socket() as sock,
        closing(Line(SEED)) as line,
    ):
        both = Ends(ours, UdPeer(sock, QKEY), line)
        both.peer.sock.sendto(seal(Untagged(SEND, 0, 1, mo=1, word=QKEY).octets()), line.near)
        both.run(lambda: bool(both.peer.reports))
        assert ours.qp.query()[0].qp_state == QPState.ERR
