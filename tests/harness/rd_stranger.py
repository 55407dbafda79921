"""A peer of RD queue pairs built from a plain socket and scapy; it sends any datagram."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import net
from harness.rd_harness import QKEY, RDEnd
from harness.verbs_harness import LIMIT
from pace import limit_exceeded
from unit.rd.rd_kit import OFFER

from siwarp.inspect import (
    DDP,
    AtomicRequest,
    AtomicResponse,
    DDPTagged,
    DDPUntagged,
    Opcode,
    Queue,
    QuotedTagged,
    QuotedUntagged,
    ReadRequest,
    Terminate,
)
from siwarp.inspect.rd import (
    COOKIE_LEN,
    HELLO_LEAST,
    RDDatagram,
    RDFlag,
    RDOption,
    RDType,
    cookie_in_handshake_body,
    make_ack_body,
    make_handshake_offer,
)

EPOCH = 0xABCD0001


def handshake_options_with_instance(instance: int) -> bytes:
    """Return the handshake options of a peer with an instance id; 0: no instance option."""
    told = {RDOption.LONGEST: 65_000, RDOption.WINDOW: 1 << 20, RDOption.INSTANCE: instance}
    return make_handshake_offer(told) if instance else OFFER


class ScriptedRDPeer:
    """A scripted RD peer of the queue pair of ``end``; either side may begin the handshake.

    The peer acknowledges each segment immediately, except segments for which ``keeps`` returns
    true. ``got`` contains the received segments that the test has not read yet, in order and
    without duplicates.
    """

    def __init__(self, end: RDEnd, host: str = net.HERE) -> None:
        self.end = end
        self.to = end.qp.addr
        self.sock = net.open_udp_socket(host)
        self.sock.settimeout(LIMIT)
        self.epoch = EPOCH
        self.ird = 16
        self.offer = OFFER
        self.other = 0  # the epoch of RD that the queue pair under test has announced
        # The next three lists are indexed by space (requests, responses): the PSN of the next
        # segment to send, the PSN up to which received segments are acknowledged, and the PSN after
        # the last segment in got.
        self.psn = [self.epoch, self.epoch]
        self.next = [0, 0]
        self.last = [0, 0]
        self.msn = dict.fromkeys(Queue, 0)
        self.got: list[bytes] = []
        self.keeps: Callable[[DDP], bool] = lambda _head: False

    @property
    def addr(self) -> tuple[str, int]:
        """The address of the scripted peer's socket."""
        host, port = self.sock.getsockname()
        return str(host), int(port)

    def close(self) -> None:
        """Send a BYE and close; without a BYE, a lingering queue pair would send probes."""
        if self.other:
            self.send_datagram(RDType.BYE, rd_flags=int(RDFlag.ANSWER))
        self.sock.close()

    def send_datagram(self, kind: RDType, **fields: Any) -> None:
        head = {
            "q_key": QKEY,
            "psn": self.psn[0],
            "source_epoch": self.epoch,
            "dest_epoch": self.other,
            "acknowledged": self.next[0],
            "response_acknowledged": self.next[1],
            "credit": 4096,
            "response_credit": fields.get("credit", 4096),
            "ird": self.ird,
            "body": make_ack_body() if kind == RDType.ACK else b"",
        } | fields
        self.sock.sendto(bytes(RDDatagram(type=int(kind), **head)), self.to)

    def receive_and_answer_datagram(self) -> RDDatagram:
        """Wait for the next datagram, and answer it as an RD peer does; return the datagram."""
        d = RDDatagram(self.sock.recv(1 << 16))
        assert (d.crc, d.q_key) == (d.crc_expected(), QKEY)
        if d.type == RDType.HELLO:
            self.other = d.source_epoch
            self.next, self.last = [self.other] * 2, [self.other] * 2
            self.send_datagram(RDType.CHALLENGE, body=self.offer + b"c" * COOKIE_LEN)
        elif d.type == RDType.CHALLENGE:
            self.other = d.source_epoch
            self.next, self.last = [self.other] * 2, [self.other] * 2
            self.send_datagram(RDType.ECHO, body=self.offer + cookie_in_handshake_body(d.body))
        elif d.type == RDType.DATA and d.dest_epoch == self.epoch:
            self.process_data_datagram(d)
        elif d.type == RDType.ECHO:
            self.send_datagram(RDType.ACK)
        return d

    def process_data_datagram(self, d: RDDatagram) -> None:
        space = int(bool(d.rd_flags & RDFlag.RESPONSE))
        if d.psn == self.last[space]:
            self.got.append(bytes(d.body))
            self.last[space] += 1
        if d.psn == self.next[space] and not self.keeps(DDP(bytes(d.body))):
            self.next[space] += 1
        self.send_datagram(RDType.ACK)

    def acknowledge_all_received_segments(self) -> None:
        """Acknowledge all received segments, also those that ``keeps`` left unacknowledged."""
        self.keeps = lambda _head: False
        self.next = [*self.last]
        self.send_datagram(RDType.ACK)

    def connect(self) -> None:
        """Perform the RD handshake as the active side."""
        unknown = {"dest_epoch": 0, "acknowledged": 0, "response_acknowledged": 0}
        self.send_datagram(RDType.HELLO, **unknown, body=self.offer.ljust(HELLO_LEAST, b"\0"))
        d = self.receive_and_answer_datagram()
        while d.type != RDType.ACK or d.dest_epoch != self.epoch:
            d = self.receive_and_answer_datagram()

    def restart_and_connect(self, instance: int | None = None) -> None:
        """Restart the peer with a new epoch and optionally another instance id, and connect."""
        self.restart(instance)
        self.connect()

    def restart(self, instance: int | None = None) -> None:
        """Restart the peer with a new epoch and without state, but do not connect."""
        if instance is not None:
            self.offer = handshake_options_with_instance(instance)
        net.sleep(0.002)  # the time in a cookie is in milliseconds
        self.epoch += 0x1000
        self.psn, self.other = [self.epoch, self.epoch], 0
        self.msn = dict.fromkeys(Queue, 0)
        self.got.clear()
        self.keeps = lambda _head: False

    def receives_segment_within(self, seconds: float = 0.1) -> bool:
        """Return whether another segment is received within some seconds."""
        deadline = net.now() + seconds
        try:
            while not self.got and (left := deadline - net.now()) > 0:
                self.sock.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    self.receive_and_answer_datagram()
        finally:
            self.sock.settimeout(LIMIT)
        return bool(self.got)

    def receive_segment(self) -> tuple[DDP, bytes]:
        """Wait for a segment; return its header and payload."""
        began = net.now()
        while not self.got:
            assert not limit_exceeded(began, LIMIT)
            self.receive_and_answer_datagram()
        octets = self.got.pop(0)
        head = DDP(octets)
        return head, octets[14 if head.t else 18 :]

    def receive_terminate(self) -> Terminate:
        """Wait for an error message; return the Terminate that it contains."""
        head, octets = self.receive_segment()
        assert (head.opcode, head.qn) == (Opcode.TERMINATE, Queue.TERMINATE)
        return Terminate(octets)

    def send_error_message(self, head: DDP, code: tuple[int, int, int]) -> None:
        """Send an error message about the message of a segment to the queue pair."""
        quoted = (QuotedTagged if head.t else QuotedUntagged)(bytes(head)[: 14 if head.t else 18])
        layer, etype, number = code
        what = Terminate(layer=layer, etype=etype, code=number, m=1, d=1, quoted_ddp=quoted)
        self.send_and_wait(self.build_untagged(Opcode.TERMINATE, bytes(what), qn=Queue.TERMINATE))

    def send_and_wait(self, *segments: bytes) -> None:
        """Send each segment once, and wait until the queue pair has acknowledged all segments."""
        for octets in segments:
            self.send_segment(octets)
        self.wait_for_acknowledgement()

    def send_segment(self, octets: bytes) -> None:
        """Send a segment in the sequence number space of requests or of responses."""
        head = DDP(octets)
        response = (
            head.opcode == Opcode.RDMA_READ_RESPONSE if head.t else head.qn >= Queue.TERMINATE
        )
        flags = RDFlag.RESPONSE if response else 0
        self.send_datagram(RDType.DATA, psn=self.psn[response], rd_flags=int(flags), body=octets)
        self.psn[response] += 1

    def wait_for_acknowledgement(self) -> None:
        """Send probes until the queue pair has acknowledged all sent segments."""
        began = net.now()
        while not limit_exceeded(began, LIMIT):
            self.send_datagram(RDType.PROBE)
            d = self.receive_and_answer_datagram()
            if d.type == RDType.ACK and [d.acknowledged, d.response_acknowledged] == self.psn:
                return
        raise AssertionError(f"segments were not acknowledged within {LIMIT} s")

    def answer_request(self, head: DDP, request: bytes, octets: bytes) -> None:
        """Answer a Read Request with data, or an Atomic Request with the original value."""
        if head.opcode == Opcode.ATOMIC_REQUEST:
            old = int.from_bytes(octets, "big")
            body = bytes(AtomicResponse(request=AtomicRequest(request).request, old=old))
            self.send_and_wait(
                self.build_untagged(Opcode.ATOMIC_RESPONSE, body, qn=Queue.ATOMIC_RESPONSE)
            )
            return
        sink = ReadRequest(request)
        where = {"stag": sink.sink_stag, "to": sink.sink_to}
        self.send_and_wait(bytes(DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, **where)) + octets)

    def build_read_request(self, size: int, offset: int = 0, **fields: Any) -> bytes:
        """Return a Read Request for octets of the region ``into`` of the queue pair's end."""
        there = self.end.into
        asked = {"src_stag": there.rkey, "src_to": there.addr + offset, "sink_stag": 1} | fields
        octets = bytes(ReadRequest(size=size, **asked))
        return self.build_untagged(Opcode.RDMA_READ_REQUEST, octets, qn=Queue.READ_REQUEST)

    def build_untagged(self, opcode: int, octets: bytes = b"", **fields: Any) -> bytes:
        """Return an untagged segment with the next message sequence number of its queue."""
        queue = Queue(fields.get("qn", Queue.SEND))
        if not fields.get("mo"):
            self.msn[queue] += 1
        head = {"opcode": opcode, "qn": queue, "msn": self.msn[queue], **fields}
        return bytes(DDPUntagged(**head)) + octets

    def build_write(self, octets: bytes, offset: int = 0, **fields: Any) -> bytes:
        """Return a segment of a Write into the region ``into`` of the queue pair's end."""
        there = self.end.into
        head = {"opcode": Opcode.RDMA_WRITE, "stag": there.rkey, "to": there.addr + offset}
        return bytes(DDPTagged(**(head | fields))) + octets


@contextlib.contextmanager
def scripted_peer(
    end: RDEnd, *, connect: bool = True, instance: int = 0
) -> Iterator[ScriptedRDPeer]:
    """Provide a scripted RD peer for a block; close the peer at the end of the block."""
    made = ScriptedRDPeer(end)
    made.offer = handshake_options_with_instance(instance)
    try:
        if connect:
            made.connect()
        yield made
    finally:
        made.close()
