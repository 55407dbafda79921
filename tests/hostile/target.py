"""A live siwarp queue pair, memory between canaries, and a good peer besides the hostile peers."""

from __future__ import annotations

import mmap
import os
import sys

from harness.rc_harness import READ, SEND, End, ListenerAndConnector
from harness.verbs_harness import ALL_ACCESS, Rig, octet_pattern, poll, wait_until
from hostile.oracle import (
    IMMEDIATES,
    EndState,
    Numbers,
    OutstandingRead,
    expected_terminate,
    value_after_atomic,
)
from hostile.peer import HELLO, RawPeer, accept_raw_initiator_with_params
from scapy.packet import Packet, Raw

from siwarp.cm import ConnParam
from siwarp.inspect import (
    FPDU,
    AtomicRequest,
    AtomicResponse,
    DDPTagged,
    DDPUntagged,
    Opcode,
    ReadRequest,
    mark_stream,
)
from siwarp.verbs import MR, QPState, RecvWR, SendWR, WCOpcode, WCStatus, WROpcode

PAGE = 4096
CANARY = 0xC7
#: Areas of the region: destination of Writes, source of Reads, receive buffers, and sink of Reads.
WRITES, SOURCE, RECEIVES, SINK, END = 0, PAGE, 2 * PAGE, 3 * PAGE, 4 * PAGE
RECV = 200


def count_open_files() -> int:
    """Return the number of open descriptors, including those of objects not yet collected."""
    return sum(1 for _ in os.scandir("/proc/self/fd"))


class Target:
    """The target that the tests of a module share; no test may have lasting effects on it."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.connector = ListenerAndConnector(self.rig)
        self.memory = mmap.mmap(-1, END + 2 * PAGE)
        self.all = memoryview(self.memory)
        self.mr: MR = self.rig.reg_mr(self.all[PAGE : PAGE + END], ALL_ACCESS)
        self.good, self.server = self.connector.connect(size=PAGE)
        self.probes = 0
        self.reset_memory()

    def reset_memory(self) -> None:
        """Restore the memory and its expected content."""
        self.image = bytearray([CANARY]) * len(self.all)
        self.image[PAGE + SOURCE : PAGE + RECEIVES] = octet_pattern(PAGE, 6)
        self.all[:] = self.image

    def set_expected_content(self, at: int, octets: bytes) -> None:
        """Expect these octets at this offset of the region from now on."""
        self.image[PAGE + at : PAGE + at + len(octets)] = octets

    def accept_octets_already_placed(self, at: int, octets: bytes) -> None:
        """Allow these octets at this offset: octets that are already placed become the expected
        content.
        """
        for i in range(PAGE + at, PAGE + at + len(octets)):
            if self.all[i] == octets[i - PAGE - at]:
                self.image[i] = self.all[i]

    def check_memory_and_good_peer_unharmed(self) -> None:
        """Assert that memory has the expected content and that the good peer is still served."""
        assert self.all == self.image, self.describe_memory_difference()
        self.probes += 1
        word = self.probes.to_bytes(8, "big")
        self.good.mem.write(word)
        self.server.post_receive(1, 64, 8)
        self.good.post(SEND, 2, length=8)
        assert poll(self.server.rcq)[0].ok and poll(self.good.scq)[0].ok
        assert self.server.mem.read(8, 64) == word

    def describe_memory_difference(self) -> str:
        at = [i for i, (a, b) in enumerate(zip(self.all, self.image, strict=True)) if a != b]
        return f"{len(at)} octets differ, the first at {at[0] - PAGE} of the region"

    def state_for_oracle(self) -> EndState:
        return EndState(self.mr.rkey, self.mr.addr, END)

    def open_session(self, receives: int = 3, markers: bool = False) -> HostileSession:
        return HostileSession(self, receives, markers)

    def close(self) -> None:
        self.all.release()
        self.rig.close()


class HostileSession:
    """One connection of a hostile peer to the target."""

    def __init__(self, target: Target, receives: int, markers: bool) -> None:
        self.target = target
        self.files = count_open_files()
        self.peer: RawPeer
        self.end: End
        self.peer, self.end = accept_raw_initiator_with_params(
            target.connector, ConnParam(markers=markers)
        )
        hello = mark_stream([HELLO]) if markers else bytes(HELLO)
        self.peer.send(hello)
        #: The current position in the TCP stream, in octets.
        self.position = len(hello)
        for i in range(receives):
            sge = target.mr.sge(RECEIVES + i * RECV, RECV)
            self.end.qp.post_recv(RecvWR(i, sg=[sge]))
        self.receives, self.taken = receives, 0

    # ---- assertions on the outcome

    def check_next_received_octets(self, octets: bytes) -> None:
        """Assert that the next receive of the connection completes with these octets."""
        self.target.set_expected_content(RECEIVES + self.taken * RECV, octets)
        (wc,) = poll(self.end.rcq)
        assert (wc.wr_id, wc.status, wc.byte_len) == (self.taken, WCStatus.SUCCESS, len(octets))
        self.taken += 1

    def check_connection_continues(self, msn: int) -> None:
        """Assert that the connection continues: a Send with this MSN arrives."""
        self.peer.send_fpdus(DDPUntagged(opcode=Opcode.SEND, msn=msn) / Raw(b"alive"))
        self.check_next_received_octets(b"alive")
        assert self.end.qp.qp_state == QPState.RTS

    def check_terminated(self, numbers: Numbers, spoiled: int = 0) -> None:
        """Assert that siwarp sent a Terminate with these numbers and that the queue pair is in
        ERR.
        """
        assert self.peer.read_terminate() == numbers
        self.check_ended_in_error(numbers, spoiled)

    def check_ended_in_error(self, numbers: Numbers, spoiled: int = 0) -> None:
        """Assert that the queue pair is in ERR and that its remaining receives were flushed with
        this error.
        """
        self.end.wait_for_error_state()
        layer, etype, code = numbers
        done = poll(self.end.rcq, self.receives - self.taken)
        assert [w.wr_id for w in done] == list(range(self.taken, self.receives))
        said = {w.vendor_err for w in done[spoiled:]}
        assert said == {layer << 16 | etype << 8 | code}, said
        assert {w.status for w in done[spoiled:]} == {WCStatus.WR_FLUSH_ERR}

    def close(self) -> None:
        """Close the connection; assert that no resource leaked and that the good peer is still
        served.
        """
        self.peer.close()
        self.end.wait_for_error_state()
        self.end.close()
        for q in (self.end.scq, self.end.rcq, self.end.events):
            q.close()
        wait_until(lambda: self.target.good.scq.poll(1) == [] and count_open_files() <= self.files)
        self.target.check_memory_and_good_peer_unharmed()

    # ---- a segment, compared with the oracle

    def attack_and_check(self, segment: Packet, what: object) -> None:
        """Send a segment as the first of this connection, and compare the outcome with the
        oracle.
        """
        octets = bytes(segment)
        verdict = expected_terminate(octets, self.target.state_for_oracle())
        try:
            self.peer.send(FPDU(ulpdu=Raw(octets)))
            if verdict is not None:
                # Only the receive at the head of the queue can be too short for the message.
                self.check_terminated(
                    verdict, spoiled=int(verdict == (1, 2, 5) and not any(octets[6:10]))
                )
            else:
                self.check_effects_of_legal_segment(octets)
        except AssertionError as e:
            raise AssertionError(f"{what}: {verdict}, but {e}\n{octets.hex()}") from e
        self.close()

    def check_effects_of_legal_segment(self, octets: bytes) -> None:
        """Assert the effects of a legal segment on memory, completions and the connection."""
        tagged, last, opcode = octets[0] & 0x80, octets[0] & 0x40, octets[1] & 15
        payload = octets[14 if tagged else 18 :]
        if tagged:
            seg = DDPTagged(octets)
            if payload:
                self.target.set_expected_content(seg.to - self.target.mr.addr, payload)
            return self.check_connection_continues(1)
        # If the last segment of the message is missing, the peer sends it, without payload.
        if not last:
            rest = DDPUntagged(octets[:18])
            rest.l, rest.mo = 1, len(payload)
            self.peer.send_fpdus(rest)
        if opcode == Opcode.TERMINATE:
            assert self.peer.read_terminate() is None
            return self.check_ended_in_error(terminate_layer_type_and_code(payload))
        if opcode == Opcode.RDMA_READ_REQUEST:
            self.check_read_response(ReadRequest(payload))
            return self.check_connection_continues(1)
        if opcode == Opcode.ATOMIC_REQUEST:
            self.check_atomic_response(AtomicRequest(payload))
            return self.check_connection_continues(1)
        if opcode in IMMEDIATES:
            (wc,) = poll(self.end.rcq)
            assert (wc.wr_id, wc.status, wc.byte_len) == (self.taken, WCStatus.SUCCESS, 0)
            assert wc.opcode == WCOpcode.RECV_RDMA_WITH_IMM
            self.taken += 1
            return self.check_connection_continues(2)
        self.check_next_received_octets(payload)
        return self.check_connection_continues(2)

    def check_atomic_response(self, asked: AtomicRequest) -> None:
        """Assert that an atomic request changes the word as specified and returns its old value."""
        at = PAGE + int(asked.to) - self.target.mr.addr
        word = int.from_bytes(self.target.image[at : at + 8], sys.byteorder)
        self.target.image[at : at + 8] = value_after_atomic(word, asked).to_bytes(8, sys.byteorder)
        fpdu = self.peer.read_fpdu()
        answer = fpdu.ulpdu[AtomicResponse]
        assert fpdu.crc == fpdu.crc_expected()
        assert (answer.request, answer.old) == (asked.request, word)

    def check_read_response(self, read: ReadRequest) -> None:
        """Assert that the Read Response has the requested content and destination."""
        got, at = b"", int(read.sink_to)
        while True:
            fpdu = self.peer.read_fpdu()
            seg = fpdu.ulpdu
            assert fpdu.crc == fpdu.crc_expected()
            assert (seg.opcode, seg.to) == (Opcode.RDMA_READ_RESPONSE, (at + len(got)) % (1 << 64))
            assert seg.stag == read.sink_stag
            got += bytes(seg.payload)
            if seg.l:
                break
        start = PAGE + int(read.src_to) - self.target.mr.addr
        assert got == (bytes(self.target.image[start : start + read.size]) if read.size else b"")

    # ---- an RDMA Read of the siwarp end

    def start_read_by_target(self, length: int = 100) -> EndState:
        """Post an RDMA Read at the siwarp end, receive its request, and return the oracle's
        state.
        """
        sink = self.target.mr.sge(SINK, length)
        remote = self.target.mr.remote(0, length)
        self.end.qp.post_send(SendWR(77, READ, sg=[sink], remote=remote))
        request = self.peer.read_fpdu().ulpdu[ReadRequest]
        assert (request.size, request.sink_to) == (length, 0)
        state = self.target.state_for_oracle()
        state.reading = OutstandingRead(int(request.sink_stag), length)
        return state

    def start_atomic_by_target(self) -> EndState:
        """Post a FetchAdd at the siwarp end, receive its request, and return the oracle's state."""
        sink = self.target.mr.sge(SINK, 8)
        remote = self.target.mr.remote(0, 8)
        add = WROpcode.ATOMIC_FETCH_AND_ADD
        self.end.qp.post_send(SendWR(77, add, sg=[sink], remote=remote, compare_add=5))
        request = self.peer.read_fpdu().ulpdu[AtomicRequest]
        assert request.data == 5
        state = self.target.state_for_oracle()
        state.asking = int(request.request)
        return state

    def answer_atomic_and_check(self, segment: Packet, state: EndState, what: object) -> None:
        """Send a segment as the response to the atomic, and compare the outcome with the oracle."""
        octets = bytes(segment)
        verdict = expected_terminate(octets, state)
        try:
            self.peer.send(FPDU(ulpdu=Raw(octets)))
            (wc,) = poll(self.end.scq)
            assert (wc.wr_id, wc.ok) == (77, verdict is None)
            if verdict is not None:
                self.check_terminated(verdict)
            else:
                old = int(AtomicResponse(octets[18:]).old)
                self.target.set_expected_content(SINK, old.to_bytes(8, sys.byteorder))
                self.check_connection_continues(1)
        except AssertionError as e:
            raise AssertionError(f"{what}: {verdict}, but {e}\n{octets.hex()}") from e
        self.close()

    def answer_read_and_check(self, segment: Packet, state: EndState, what: object) -> None:
        """Send a segment as the response to the RDMA Read, and compare the outcome with the
        oracle.
        """
        octets = bytes(segment)
        verdict = expected_terminate(octets, state)
        try:
            self.peer.send(FPDU(ulpdu=Raw(octets)))
            if verdict is not None:
                self.check_terminated(verdict)
                (wc,) = poll(self.end.scq)
                assert (wc.wr_id, wc.ok) == (77, False)
            else:
                if octets[1] & 15 == Opcode.RDMA_READ_RESPONSE and octets[0] & 0x80:
                    self.target.set_expected_content(SINK, octets[14:])
                    if not octets[0] & 0x40:
                        rest = DDPTagged(octets[:14])
                        rest.l, rest.to = 1, rest.to + len(octets) - 14
                        self.peer.send_fpdus(rest)
                    (wc,) = poll(self.end.scq)
                    assert (wc.wr_id, wc.status) == (77, WCStatus.SUCCESS)
                    self.check_connection_continues(1)
                else:
                    self.check_effects_of_legal_segment(octets)
        except AssertionError as e:
            raise AssertionError(f"{what}: {verdict}, but {e}\n{octets.hex()}") from e
        self.close()


def terminate_layer_type_and_code(terminate: bytes) -> Numbers:
    """Return the numbers in a Terminate whose M, D or R bit is set, or which is too short."""
    layer, etype, code = (0, 0, 0)
    if len(terminate) >= 4:
        layer, etype, code = terminate[0] >> 4, terminate[0] & 15, terminate[1]
    # The local catastrophic error of RDMAP has no code; siwarp reports it as code 0xff instead of
    # 0.
    return layer, etype, code if layer or etype else code or 0xFF
