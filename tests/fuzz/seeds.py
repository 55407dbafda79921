"""Writes seed corpora, built with scapy, into a folder: one subfolder for each fuzz target."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

from scapy.packet import Packet, Raw
from scapy.utils import rdpcap

from siwarp.inspect import (
    FPDU,
    SIDR,
    AtomicRequest,
    DDPDatagram,
    DDPTagged,
    DDPUntagged,
    DeliveryCount,
    MPAReply,
    MPARequest,
    Opcode,
    PrivateHead,
    QuotedReadRequest,
    QuotedTagged,
    QuotedUntagged,
    ReadRequest,
    RecordDatagram,
    RecordHeader,
    Requester,
    SIDRType,
    Terminate,
    UCDatagram,
    UDDatagram,
    split_stream,
    tcp_streams,
)
from siwarp.inspect.mpa import mark_stream

CRC, MARKERS, STRICT, INITIATOR, REFUSE, OWN = 1, 2, 4, 8, 16, 32
STAG, SINK = int.from_bytes(b"STAG", "big"), int.from_bytes(b"SINK", "big")
REGION = int.from_bytes(b"REGION\0\0", "big")
BASE = 0x10000
CAPTURES = Path(__file__).parent.parent / "captures"


def build_send(n: int, msn: int = 1, **fields: int) -> Packet:
    return DDPUntagged(opcode=Opcode.SEND, msn=msn, **fields) / Raw(bytes(n))


def build_write(to: int, n: int, **fields: int) -> Packet:
    return DDPTagged(opcode=Opcode.RDMA_WRITE, stag=STAG, to=to, **fields) / Raw(bytes(n))


def build_read_request(msn: int, n: int) -> Packet:
    ask = ReadRequest(sink_stag=7, size=n, src_stag=STAG, src_to=REGION)
    return DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=msn) / ask


def build_atomic_request(msn: int, code: int = 0, offset: int = 0) -> Packet:
    ask = AtomicRequest(code=code, request=msn, stag=STAG, to=REGION + offset, data=1)
    return DDPUntagged(opcode=Opcode.ATOMIC_REQUEST, qn=1, msn=msn) / ask


def build_immediate(msn: int, n: int = 8) -> Packet:
    return DDPUntagged(opcode=Opcode.IMMEDIATE, msn=msn) / Raw(bytes(n))


def build_terminate() -> Packet:
    return DDPUntagged(opcode=Opcode.TERMINATE, qn=2, msn=1) / build_terminate_body()


def build_terminate_body(**bits: int) -> Terminate:
    bits = bits or {"m": 1, "d": 1, "r": 1}
    return Terminate(
        layer=0, etype=1, code=1, quoted_ddp=QuotedUntagged(qn=1, msn=1),
        quoted_rdma=QuotedReadRequest(size=7), **bits,
    )  # fmt: skip


def make_seed_segment_lists(to: int) -> list[list[Packet]]:
    return [
        [build_send(10), build_send(0, 2), build_send(300, 3)],
        [build_send(50, l=0), build_send(50, mo=50)],
        [
            build_write(to, 100),
            build_write(to, 2000, l=0),
            build_write(to + 2000, 900),
            build_send(4),
        ],
        [
            build_write(to, 0),
            build_read_request(1, 100),
            build_read_request(2, 0),
            build_read_request(3, 2500),
            build_send(20),
        ],
        [build_send(1), build_terminate()],
        [DDPUntagged(opcode=Opcode.SEND_INVALIDATE, inv_stag=STAG) / Raw(b"x"), build_send(1, 2)],
        [DDPUntagged(opcode=Opcode.SEND_SE) / Raw(b"x")],
        [build_send(12_000)],
        [build_write(to, 100), build_immediate(1), build_immediate(2), build_send(4, 3)],
        [build_immediate(1, 9)],
        [
            build_atomic_request(1),
            build_atomic_request(2, 2),
            build_read_request(3, 8),
            build_atomic_request(4),
        ],
        [build_send(1), build_atomic_request(1, 1)],
        [build_atomic_request(1, offset=4)],
        [DDPUntagged(opcode=15) / Raw(b"\1\0\0\0IMM!body"), build_send(1, 2)],
        [
            Requester(rnr_retry=3),
            build_send(1),
            build_write(to, 8),
            Requester(flags=0),
            build_send(1, 2),
        ],
        [
            Requester(),
            build_send(1),
            DeliveryCount(sends=2, writes=1),
            DeliveryCount(sends=4, writes=1),
        ],
        [DeliveryCount(sends=1, l=0), Requester(rnr_retry=8)],
        [DDPUntagged(opcode=15, l=0) / Raw(b"\2\0"), DDPUntagged(opcode=15, mo=2) / Raw(bytes(30))],
    ]


def frame_segments(packets: list[Packet]) -> bytes:
    return b"".join(bytes(FPDU(ulpdu=p)) for p in packets)


def load_recorded_tcp_streams() -> list[bytes]:
    octets = [
        s for p in sorted(CAPTURES.glob("*.pcap")) for s in tcp_streams(rdpcap(str(p))).values()
    ]
    assert octets, "no captures"
    return octets


def make_framed_seed_streams(to: int) -> list[bytes]:
    out = []
    for packets in make_seed_segment_lists(to):
        for flags in (0, CRC, STRICT, OWN):
            out.append(bytes([flags, 0]) + frame_segments(packets))
        out.append(bytes([0, 4 | 8 | 16]) + frame_segments(packets))
        marked = mark_stream([FPDU(ulpdu=p) for p in packets], 0)
        out.append(bytes([CRC | MARKERS, 0]) + marked)
    for octets in load_recorded_tcp_streams():
        fpdus = split_stream(octets).fpdus[:12]
        out.append(bytes([CRC, 0]) + b"".join(bytes(f) for f in fpdus))
    return out


def make_startup_seed_streams() -> list[bytes]:
    first = frame_segments([build_send(10)])
    requests = [
        MPARequest(rev=1, private_data=b"hello"),
        MPARequest(rev=2, s=1, ird=4, ord=4, private_data=b"x" * 20),
        MPARequest(rev=2, s=1, a=1, b=1, c_rtr=1, d_rtr=1),
        MPARequest(rev=0),
        MPARequest(m=1),
    ]
    replies = [
        MPAReply(rev=2, s=1, ird=4, ord=4, private_data=b"yes"),
        MPAReply(rev=2, s=1, a=1, c_rtr=1),
        MPAReply(rev=1, private_data=b"old"),
        MPAReply(rev=2, s=1, r=1, private_data=b"no"),
    ]
    out = [bytes([f, 0]) + bytes(x) + first for x in requests for f in (0, CRC, MARKERS, REFUSE)]
    out += [
        bytes([INITIATOR | f, c]) + bytes(x) + first
        for x in replies
        for f in (0, OWN, REFUSE)
        for c in (0, 4)
    ]
    return out + [bytes([CRC, 0]) + octets[:2000] for octets in load_recorded_tcp_streams()]


def make_read_response_seed_streams() -> list[bytes]:
    def build_read_response(to: int, n: int, last: int = 1) -> Packet:
        head = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=SINK, to=to, l=last)
        return head / Raw(bytes(n))

    cases = [
        [build_read_response(0, 100)],
        [build_read_response(0, 40, 0), build_read_response(40, 60), build_send(5)],
        [build_send(5), build_read_response(0, 99)],
    ]
    return [bytes([INITIATOR | f, 0]) + frame_segments(c) for c in cases for f in (0, CRC)]


def make_ud_seed_datagrams() -> list[bytes]:
    def build_ud_datagram(n: int, op: Opcode = Opcode.SEND) -> bytes:
        octets = bytes(UDDatagram(segment=DDPDatagram(q_key=0x11223344, opcode=op) / Raw(bytes(n))))
        return len(octets).to_bytes(2, "big") + octets

    def build_private_opcode_datagram(n: int, subcode: int) -> bytes:
        head = DDPDatagram(q_key=0x11223344, opcode=Opcode.PRIVATE) / PrivateHead(subcode=subcode)
        octets = bytes(UDDatagram(segment=head / Raw(bytes(n))))
        return len(octets).to_bytes(2, "big") + octets

    def build_error_datagram(msn: int) -> bytes:
        quoted = QuotedUntagged(msn=msn, inv_stag=0x11223344)
        body = bytes(Terminate(layer=1, etype=2, code=5, m=1, d=1, quoted_ddp=quoted))
        head = DDPDatagram(q_key=0x11223344, opcode=Opcode.TERMINATE, qn=2)
        octets = bytes(UDDatagram(segment=head / Raw(body)))
        return len(octets).to_bytes(2, "big") + octets

    def build_write_record_datagram(number: int, n: int, length: int, last: int) -> bytes:
        to = int.from_bytes(b"TOHITOLO", "big")
        head = RecordHeader(message_id=number, to=to, length=length)
        segment = bytes(DDPTagged(opcode=15, stag=STAG, to=to, l=last) / head) + bytes(n)
        octets = bytes(RecordDatagram(q_key=0x11223344, segment=segment))
        return len(octets).to_bytes(2, "big") + octets

    def build_write_record_error_datagram(more: int) -> bytes:
        quoted = QuotedTagged(opcode=15, stag=STAG)
        body = Terminate(layer=0, etype=2, code=6, m=1, d=1, r=1, quoted_ddp=quoted)
        octets = bytes(body)[: 6 + 14] + bytes(RecordHeader())[:more]
        segment = DDPDatagram(q_key=0x11223344, opcode=Opcode.TERMINATE, qn=2) / Raw(octets)
        datagram = bytes(UDDatagram(segment=segment))
        return len(datagram).to_bytes(2, "big") + datagram

    records = (
        build_write_record_datagram(1, 9, 9, 1)
        + build_write_record_datagram(2, 50, 100, 0)
        + build_write_record_datagram(3, 20, 90, 0)
        + build_write_record_datagram(2, 1, 9, 0)
    )
    errors = (
        build_error_datagram(1)
        + build_error_datagram(3)
        + build_error_datagram(3)
        + build_error_datagram(9)
        + build_ud_datagram(4, Opcode.SEND_INVALIDATE)
    )
    records += (
        build_write_record_datagram(4, 9, 8, 1)
        + build_write_record_error_datagram(20)
        + build_write_record_error_datagram(19)
    )
    private_ones = (
        build_private_opcode_datagram(0, 1)
        + build_private_opcode_datagram(200, 2)
        + build_private_opcode_datagram(201, 1)
        + build_private_opcode_datagram(9, 3)
    )
    sets = [
        errors,
        records,
        private_ones,
        build_ud_datagram(0) + build_ud_datagram(20) + build_ud_datagram(200),
        build_ud_datagram(201),
        build_ud_datagram(3, Opcode.SEND_SE) * 10,
    ]
    return [bytes([f, 0]) + s for s in sets for f in (0, CRC, REFUSE)]


def make_uc_seed_datagrams() -> list[bytes]:
    def build_uc_datagram(psn: int, segment: bytes, flags: int = 0) -> bytes:
        octets = bytes(UCDatagram(psn=psn, q_key=0x11223344, flags=flags, segment=segment))
        return len(octets).to_bytes(2, "big") + octets

    def build_uc_send(psn: int, mo: int, n: int, last: int, opcode: int = 3) -> bytes:
        head = DDPUntagged(opcode=opcode, msn=1, mo=mo, l=last)
        return build_uc_datagram(psn, bytes(head) + bytes([1]) + bytes(n - 1), int(mo == 0))

    def build_uc_write(psn: int, n: int, last: int, flags: int) -> bytes:
        head = DDPTagged(opcode=0, stag=STAG, to=int.from_bytes(b"TOHITOLO", "big"), l=last)
        return build_uc_datagram(psn, bytes(head) + bytes(n), flags)

    imm = build_uc_datagram(2, bytes(DDPUntagged(opcode=8)) + bytes(8))
    sets = [
        build_uc_send(0, 0, 50, 0) + build_uc_send(1, 50, 50, 0) + build_uc_send(2, 100, 50, 1),
        build_uc_send(0, 0, 50, 1, 15) + build_uc_send(1, 0, 250, 1),
        build_uc_write(0, 50, 0, 1) + build_uc_write(1, 50, 1, 0) + imm,
        build_uc_send(0, 0, 9, 0) + build_uc_send(0, 0, 9, 1) + build_uc_send(5, 9, 9, 1),
    ]
    return [bytes([f, 0]) + s for s in sets for f in (0, CRC)]


def make_rd_fuzz_inputs() -> list[bytes]:
    """Return inputs of fuzz_rd.c: sequences of steps, some written by hand and some random."""
    short, wrap, calm, no_batches = 1, 2, 4, 8
    send, arrive, drop, again, wait, turn, hold, restart, speak = 0, 2, 4, 5, 6, 7, 8, 9, 10
    damage, reset, run, full = 12, 13, 14, 15
    first = 4  # the number of the datagram type DATA
    everybody = bytes([run, 0])

    def encode_send_step(a: int, b: int, n: int = 4, size: int = 99) -> bytes:
        return bytes([send, (4 - n) << 6 | pairs[a, b], *[size] * n])

    def encode_forged_datagram_step(who: int, to: int, kind: int, *rest: int) -> bytes:
        return bytes([speak, 0, who | to << 2, kind - first, *rest])

    pairs = {(h % 3, (h % 3 + 1 + (h >> 2) % 2) % 3): h for h in range(64)}
    met = (
        encode_forged_datagram_step(1, 0, 6, 0, 0, 9, 0)
        + everybody
        + encode_forged_datagram_step(1, 0, 8, 0, 0, 9, 0)
        + everybody
    )
    early = (
        b"".join(encode_forged_datagram_step(1, 0, 4, n, 0, 9, 0, 200) for n in range(1, 8))
        + everybody
    )
    out = [
        encode_send_step(0, 1) + everybody + encode_send_step(1, 0) + everybody,
        encode_send_step(0, 1) + encode_send_step(1, 0) + everybody * 2,
        encode_send_step(0, 1)
        + everybody
        + encode_send_step(0, 1)
        + bytes([drop, 0, drop, 1])
        + everybody * 3,
        encode_send_step(0, 1) + everybody + bytes([again, 0, again, 5, again, 9]) + everybody,
        bytes([hold, 0x81]) + encode_send_step(0, 1) * 3 + everybody + bytes([hold, 1]) + everybody,
        encode_send_step(0, 1) * 9
        + everybody
        + bytes([damage, 0, 7, damage, 2, 40])
        + everybody * 2,
        encode_send_step(0, 1)
        + everybody
        + bytes([restart, 0x81])
        + encode_send_step(0, 1)
        + everybody * 2,
        encode_send_step(0, 1)
        + everybody
        + bytes([restart, 1])
        + everybody
        + bytes([again, 60] * 9),
        encode_send_step(0, 1) + bytes([wait, 34]) + everybody + bytes([reset, 203]) + everybody,
        bytes([full, 0x80]) + encode_send_step(0, 1) + everybody + bytes([full, 0]) + everybody,
        encode_send_step(0, 1) + bytes([arrive, 0, turn, 1, arrive, 0, turn, 0] * 4) + everybody,
        met
        + early
        + encode_forged_datagram_step(1, 0, 4, 0, 0, 9, 0, 200)
        + everybody
        + encode_forged_datagram_step(1, 0, 10, 0, 0, 9, 0),
        met
        + encode_send_step(0, 1)
        + encode_forged_datagram_step(1, 0, 5, 0, 3, 255, 0, 255, 255)
        + everybody,
        met
        + encode_forged_datagram_step(1, 0, 9, 0, 0, 9, 0, 250)
        + everybody
        + encode_forged_datagram_step(0x31, 1, 6, 0, 0, 9, 0)
        + everybody,
    ]
    rng = random.Random(1)
    often = [send, send, arrive, arrive, drop, again, wait, turn, hold, run, run, speak, speak]
    for n in range(24):
        steps = b"".join(
            bytes([rng.choice([*often, restart, damage, reset, full])])
            + rng.randbytes(rng.randrange(2, 9))
            for _ in range(40 * (1 + n % 5))
        )
        out.append(steps)
    return [bytes([f]) + s for s in out for f in (0, calm, wrap | no_batches, short, wrap | calm)]


def make_netlink_seed_messages() -> list[bytes]:
    def build_netlink_message(kind: int, body: bytes) -> bytes:
        return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body

    name = struct.pack("=HH8s", 9, 3, b"eth0\0")
    link = struct.pack("=BBHiII", 0, 0, 1, 3, 0x41, 0) + name
    addr = struct.pack("=BBBBI", 2, 24, 0, 0, 3)
    return [
        b"\3" + build_netlink_message(k, b)
        for k, b in ((16, link), (17, link), (20, addr), (21, addr))
    ]


def make_sidr_seed_frames() -> list[bytes]:
    answer = SIDR(type=SIDRType.ANSWER, id=1, qpn=0x10001, gid="::ffff:127.0.0.1", data=b"me")
    frames = [
        SIDR(type=SIDRType.QUESTION, id=1, data=bytes(180)),
        answer,
        SIDR(type=SIDRType.REFUSAL, id=1, status=2, data=b"no"),
        SIDR(type=SIDRType.COOKIE, id=1, cookie=1),
    ]
    return [flag + bytes(frame) for frame in frames for flag in (b"\0", b"\1")]


def main() -> None:
    corpora = {
        "fuzz_mpa_startup": make_startup_seed_streams(),
        "fuzz_mpa_rx": make_framed_seed_streams(BASE),
        "fuzz_ddp_stream": make_framed_seed_streams(BASE),
        "fuzz_rdmap": make_framed_seed_streams(REGION) + make_read_response_seed_streams(),
        "fuzz_datagram": make_ud_seed_datagrams(),
        "fuzz_uc": make_uc_seed_datagrams(),
        "fuzz_terminate": [
            bytes(build_terminate_body()),
            bytes(build_terminate_body(m=1)),
            bytes(build_terminate_body(m=0, d=0)),
            b"\x10\x01\x03\0",
        ],
        "fuzz_netlink": make_netlink_seed_messages(),
        "fuzz_rd": make_rd_fuzz_inputs(),
        "fuzz_sidr": make_sidr_seed_frames(),
    }
    for name, seeds in corpora.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        for i, seed in enumerate(seeds):
            (folder / f"seed-{i:03}").write_bytes(seed)


if __name__ == "__main__":
    main()
