"""Seeded mutations of valid octets, sent to live queue pairs (RC and UD) and to a live listener.

There are 20,000 inputs under AddressSanitizer, otherwise a tenth of that number. The environment
variable HOSTILE_SEED selects another run. Each input is written to a file before it is sent, so
that it survives a crash.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import Counter
from pathlib import Path

from harness.verbs_harness import LIMIT, Rig, counter_value, octet_pattern, wait_until
from hostile.mutate import mutate_octets
from hostile.peer import HELLO, RawPeer, build_mpa_request_frame
from hostile.target import CANARY, END, PAGE, RECEIVES, SOURCE, WRITES, Target, count_open_files
from hostile.test_hostile_datagrams import DROPS, QKEY, RECV, expected_datagram_outcome
from hostile.test_hostile_frames import expected_request_outcome
from scapy.packet import Raw
from scapy.utils import rdpcap

from siwarp.cm import CMID, CMEventType
from siwarp.inspect import (
    FPDU,
    DDPDatagram,
    DDPTagged,
    DDPUntagged,
    MPAReply,
    MPARequest,
    Opcode,
    QuotedUntagged,
    ReadRequest,
    Terminate,
    UDDatagram,
    crc32c,
    split_stream,
    tcp_streams,
)
from siwarp.inspect.names import TERM_CODES
from siwarp.verbs import CQ, QP, ErrorPolicy, QPAttr, QPState, QPType, RecvWR

SEED = int(os.environ.get("HOSTILE_SEED", "5042"))
TOTAL = 20_000 if os.environ.get("SANITIZER") == "asan" else 2_000
#: The numbers of inputs of each kind; each RC stream and each start-up needs a new connection.
RC, STARTUP = TOTAL // 8, TOTAL // 8
UD = TOTAL - RC - STARTUP
CORPUS = Path(__file__).parent / "corpus"


class SavedInput:
    """The current input, in a file that survives a crash of the process."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.path = folder / f"hostile-input-{SEED}-{kind}.bin"
        self.file = self.path.open("w+b", buffering=0)

    def save_input(self, octets: bytes) -> bytes:
        os.pwrite(self.file.fileno(), self.kind.encode() + b"\n" + octets, 0)
        os.ftruncate(self.file.fileno(), len(self.kind) + 1 + len(octets))
        return octets

    def build_error_and_keep_input(self, number: int, error: BaseException) -> AssertionError:
        """Copy the saved input to a file that is kept; return an error that names the file."""
        kept = self.folder / f"hostile-input-{SEED}-{self.kind}-{number}.bin"
        kept.write_bytes(self.path.read_bytes())
        return AssertionError(
            f"HOSTILE_SEED={SEED}, {self.kind} mutation {number}: {error}; its input is in {kept}: "
            f"put it into {CORPUS} to have it replayed"
        )

    def close(self) -> None:
        self.file.close()
        self.path.unlink()


# ---- RC


class LiveRc:
    """A target whose queue pair is newly connected for each stream."""

    def __init__(self) -> None:
        self.target = Target()
        rig = self.target.rig
        self.scq: CQ = rig.create_cq(256)
        self.rcq: CQ = rig.create_cq(256)
        self.qp: QP = rig.create_qp(scq=self.scq, rcq=self.rcq, qp_type=QPType.RC)
        self.files = count_open_files()

    def build_valid_streams(self) -> list[list[bytes]]:
        """Return valid streams as lists of segments, and recorded streams, whose STags are not
        valid for this target.
        """
        stag, base = self.target.mr.rkey, self.target.mr.addr
        write = DDPTagged(opcode=Opcode.RDMA_WRITE, stag=stag, to=base + WRITES)
        more = DDPTagged(opcode=Opcode.RDMA_WRITE, stag=stag, to=base + WRITES, l=0)
        ask = ReadRequest(sink_stag=7, size=500, src_stag=stag, src_to=base + SOURCE)
        first = DDPUntagged(opcode=Opcode.SEND, msn=1, l=0) / Raw(octet_pattern(60))
        rest = DDPUntagged(opcode=Opcode.SEND, msn=1, mo=60) / Raw(octet_pattern(60))
        solicited = DDPUntagged(opcode=Opcode.SEND_SE, msn=2) / Raw(octet_pattern(10))
        read = DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=1) / ask
        end = DDPUntagged(opcode=Opcode.TERMINATE, qn=2, msn=1) / Terminate(
            layer=1, etype=2, code=2, m=1, d=1, quoted_ddp=QuotedUntagged(qn=0, msn=1)
        )
        answer = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=stag) / Raw(octet_pattern(30))
        ours = [
            [write / Raw(octet_pattern(100)), first, rest, solicited, read],
            [more / Raw(octet_pattern(2000)), write / Raw(octet_pattern(3000)), read, first, rest],
            [read, write / Raw(octet_pattern(9)), first, rest, end],
            [first, rest, answer],
        ]
        return [[bytes(s) for s in stream] for stream in ours] + load_recorded_streams()

    def attack_and_check(self, octets: bytes) -> None:
        """Open a connection, send these octets after a valid start-up, and shut down the sending
        side.
        """
        connector = self.target.connector
        peer = RawPeer(socket.create_connection(connector.address, timeout=LIMIT))
        peer.send(build_mpa_request_frame(), HELLO, octets)
        event = connector.next_connection_request()
        cm_id: CMID = event.id
        cm_id.bind_qp(self.qp)
        for i in range(3):
            self.qp.post_recv(RecvWR(i, sg=[self.target.mr.sge(RECEIVES + 200 * i, 200)]))
        cm_id.accept()
        peer.sock.shutdown(socket.SHUT_WR)
        said = peer.read_until_end()
        wait_until(lambda: self.scq.poll(64) == [] and self.qp.qp_state == QPState.ERR)
        self.check_reply_and_fpdus(said)
        peer.close()
        while event.type != CMEventType.DISCONNECTED:
            found = connector.p_channel.get_event(LIMIT)
            assert found is not None, "no DISCONNECTED event arrived"
            event = found
        cm_id.close()
        self.qp.modify(QPAttr(qp_state=QPState.RESET))
        self.rcq.poll(64)

    def check_reply_and_fpdus(self, octets: bytes) -> None:
        """Assert that siwarp sent a Reply and valid FPDUs, of which only the last may be a
        Terminate, with known numbers.
        """
        frames = split_stream(octets)
        assert isinstance(frames.startup, MPAReply) and not frames.startup.r
        assert frames.rest == b"", "siwarp sent an incomplete FPDU"
        for i, fpdu in enumerate(frames.fpdus):
            assert fpdu.crc == fpdu.crc_expected()
            if fpdu.ulpdu.opcode == Opcode.TERMINATE:
                t = fpdu.ulpdu[Terminate]
                assert i == len(frames.fpdus) - 1
                assert (t.layer, t.etype, t.code) in TERM_CODES or (t.layer, t.etype) == (0, 0)

    def check_canaries(self) -> None:
        """Assert that only memory that the peer may write has changed."""
        before, after = self.target.all[:PAGE], self.target.all[PAGE + END :]
        assert set(before) == set(after) == {CANARY}
        self.target.reset_memory()
        self.target.check_memory_and_good_peer_unharmed()

    def close(self) -> None:
        wait_until(lambda: self.target.good.scq.poll(1) == [] and count_open_files() <= self.files)
        self.target.close()


def load_recorded_streams() -> list[list[bytes]]:
    """Return the segments that Linux's own stack sent as an initiator, one list for each stream."""
    found = []
    for path in sorted((Path(__file__).parent.parent / "captures").glob("*.pcap")):
        for octets in tcp_streams(rdpcap(str(path))).values():
            frames = split_stream(octets)
            if isinstance(frames.startup, MPARequest) and frames.fpdus:
                found.append([bytes(f.ulpdu) for f in frames.fpdus[:8]])
    return found


def build_mutated_stream(r: random.Random, segments: list[bytes]) -> bytes:
    """Return a stream with one mutation: within a segment, with a correct CRC, or at any octet."""
    segments = list(segments)
    if r.random() < 0.6:
        i = r.randrange(len(segments))
        way = r.random()
        if way < 0.8:
            segments[i] = mutate_octets(r, segments[i], r.choice((1, 1, 2)))
        elif way < 0.9:
            segments.insert(i, segments[i])
        else:
            r.shuffle(segments)
        return b"".join(bytes(FPDU(ulpdu=Raw(s[: 1 << 15]))) for s in segments)
    return mutate_octets(
        r, b"".join(bytes(FPDU(ulpdu=Raw(s))) for s in segments), r.choice((1, 1, 2, 4))
    )


def test_mutated_rc_streams_do_no_harm(build_dir: Path) -> None:
    r = random.Random(f"rc {SEED}")
    hand, live = SavedInput(build_dir, "rc"), LiveRc()
    sound = live.build_valid_streams()
    assert len(sound) > 4, "the recorded streams are missing"
    for i in range(RC):
        try:
            live.attack_and_check(hand.save_input(build_mutated_stream(r, r.choice(sound))))
            if i % 100 == 99:
                live.check_canaries()
        except (AssertionError, OSError) as e:
            raise hand.build_error_and_keep_input(i, e) from e
    live.check_canaries()
    live.close()
    hand.close()


# ---- start-up


class LiveListener:
    """A listener, with a good connection in the same process."""

    def __init__(self) -> None:
        self.target = Target()
        self.files = count_open_files()

    def attack_and_check(self, octets: bytes) -> None:
        connector = self.target.connector
        want = expected_request_outcome(octets) if len(octets) >= 20 else "short"
        peer = RawPeer(socket.create_connection(connector.address, timeout=LIMIT))
        with contextlib.suppress(ConnectionError):
            peer.send(octets)
        if want == "request":
            event = connector.next_connection_request()
            event.id.reject()
            assert peer.read_reply().r
            event.id.close()
        else:
            with contextlib.suppress(OSError):  # siwarp may have closed the connection already
                peer.sock.shutdown(socket.SHUT_WR)
            said = peer.read_until_end()
            assert (MPAReply(said).r == 1) if want == "rejected" else said == b"", said
            assert connector.p_channel.get_event(0) is None
        peer.close()

    def close(self) -> None:
        wait_until(lambda: self.target.good.scq.poll(1) == [] and count_open_files() <= self.files)
        self.target.check_memory_and_good_peer_unharmed()
        self.target.close()


def test_mutated_mpa_requests_have_the_expected_outcome(build_dir: Path) -> None:
    r = random.Random(f"startup {SEED}")
    hand, live = SavedInput(build_dir, "startup"), LiveListener()
    sound = [
        bytes(MPARequest(rev=1, private_data=b"hello")),
        bytes(MPARequest(rev=2, s=1, ird=4, ord=4, private_data=b"private")),
        bytes(MPARequest(rev=2, s=1, a=1, b=1, c_rtr=1, d_rtr=1, ird=16383, ord=1)),
        bytes(MPARequest(rev=0, c=0)),
    ]
    for i in range(STARTUP):
        try:
            live.attack_and_check(
                hand.save_input(mutate_octets(r, r.choice(sound), r.choice((1, 1, 2))))
            )
        except (AssertionError, OSError) as e:
            raise hand.build_error_and_keep_input(i, e) from e
    live.close()
    hand.close()


# ---- UD


class LiveUd:
    """A UD queue pair and a plain socket that sends to it."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.memory = bytearray([CANARY]) * (3 * PAGE)
        self.mr = self.rig.reg_mr(memoryview(self.memory)[PAGE : 2 * PAGE])
        # Some inputs have the correct Q_Key, which could end a queue pair with error policy ERROR.
        policy = ErrorPolicy.MESSAGE
        self.qp = self.rig.create_ud_qp(
            addr=("127.0.0.1", 0), qkey=QKEY, max_recv_wr=128, error_policy=policy
        )
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.posted = 0
        self.before = self.read_drop_counters()

    def read_drop_counters(self) -> Counter[str]:
        return Counter({name: counter_value(name) for name in DROPS})

    def attack_and_check(self, datagrams: list[bytes]) -> None:
        """Assert that each datagram is delivered or dropped exactly as its octets require."""
        for _ in range(self.posted, 100):
            self.qp.post_recv(RecvWR(5, sg=[self.mr.sge(0, RECV)]))
        want = Counter(expected_datagram_outcome(d) for d in datagrams)
        for d in datagrams:
            self.sock.sendto(d, self.qp.addr)
        found: list[int] = []

        def is_every_datagram_counted() -> bool:
            found.extend(w.byte_len for w in self.qp.rcq.poll(64))
            grown = self.read_drop_counters() - self.before
            # A datagram that is too long increments the counter and also completes a receive.
            return len(found) + sum(grown.values()) - grown["drop_too_long"] == len(datagrams)

        wait_until(is_every_datagram_counted)
        grown = self.read_drop_counters() - self.before
        self.before = self.read_drop_counters()
        self.posted = 100 - len(found)
        too_long = want.pop("too long", 0)
        assert len(found) == want.pop("delivered", 0) + too_long
        assert grown == +Counter({**want, "drop_too_long": too_long})
        assert set(self.memory[:PAGE]) == set(self.memory[PAGE + RECV :]) == {CANARY}

    def close(self) -> None:
        self.sock.close()
        self.rig.close()


def append_crc(octets: bytes) -> bytes:
    return octets + crc32c(octets).to_bytes(4, "little")


def test_mutated_ud_datagrams_are_delivered_or_dropped_as_expected(build_dir: Path) -> None:
    r = random.Random(f"ud {SEED}")
    hand, live = SavedInput(build_dir, "ud"), LiveUd()
    sound = [
        bytes(UDDatagram(segment=DDPDatagram(q_key=QKEY, opcode=op) / Raw(octet_pattern(n))))
        for op in (Opcode.SEND, Opcode.SEND_SE)
        for n in (0, 1, 60, RECV)
    ]
    for start in range(0, UD, 50):
        batch = []
        for _ in range(min(50, UD - start)):
            one = r.choice(sound)
            if r.random() < 0.7:
                batch.append(append_crc(mutate_octets(r, one[:-4], r.choice((1, 1, 2)))))
            else:
                batch.append(mutate_octets(r, one))
        try:
            live.attack_and_check([hand.save_input(d) for d in batch])
        except (AssertionError, OSError):
            # Send the inputs of the batch one by one, to find the input that failed.
            for i, d in enumerate(batch):
                live.before = live.read_drop_counters()
                try:
                    live.attack_and_check([hand.save_input(d)])
                except (AssertionError, OSError) as e:
                    raise hand.build_error_and_keep_input(start + i, e) from e
            raise
    live.close()
    hand.close()


# ---- inputs that caused failures in the past


def test_inputs_that_caused_failures_in_the_past_do_no_harm() -> None:
    kinds = ((b"rc", LiveRc), (b"startup", LiveListener), (b"ud", LiveUd))
    kept = [path.read_bytes().partition(b"\n") for path in sorted(CORPUS.glob("*.bin"))]
    assert {to for to, _, _ in kept} <= {kind for kind, _ in kinds}
    kept += [(kind, b"\n", b"one that only shows that the replay works") for kind, _ in kinds]
    for kind, make in kinds:
        live = make()
        for to, _, octets in kept:
            if to != kind:
                continue
            if isinstance(live, LiveUd):
                live.attack_and_check([octets])
            else:
                live.attack_and_check(octets)
        live.close()


def test_the_mutations_of_all_kinds_total_twenty_thousand_under_asan() -> None:
    assert RC + STARTUP + UD == TOTAL
    assert TOTAL == 20_000 or os.environ.get("SANITIZER") != "asan"
