"""Write seed corpora, built with scapy, into the given folder: one subfolder for each harness."""

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


def send(n: int, msn: int = 1, **fields: int) -> Packet:
    return DDPUntagged(opcode=Opcode.SEND, msn=msn, **fields) / Raw(bytes(n))


def write(to: int, n: int, **fields: int) -> Packet:
    return DDPTagged(opcode=Opcode.RDMA_WRITE, stag=STAG, to=to, **fields) / Raw(bytes(n))


def read(msn: int, n: int) -> Packet:
    ask = ReadRequest(sink_stag=7, size=n, src_stag=STAG, src_to=REGION)
    return DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=1, msn=msn) / ask


def atomic(msn: int, code: int = 0, offset: int = 0) -> Packet:
    ask = AtomicRequest(code=code, request=msn, stag=STAG, to=REGION + offset, data=1)
    return DDPUntagged(opcode=Opcode.ATOMIC_REQUEST, qn=1, msn=msn) / ask


def immediate(msn: int, n: int = 8) -> Packet:
    return DDPUntagged(opcode=Opcode.IMMEDIATE, msn=msn) / Raw(bytes(n))


def terminate() -> Packet:
    return DDPUntagged(opcode=Opcode.TERMINATE, qn=2, msn=1) / told()


def told(**bits: int) -> Terminate:
    bits = bits or {"m": 1, "d": 1, "r": 1}
    return Terminate(
        layer=0, etype=1, code=1, quoted_ddp=QuotedUntagged(qn=1, msn=1),
        quoted_rdma=QuotedReadRequest(size=7), **bits,
    )  # fmt: skip


def segments(to: int) -> list[list[Packet]]:
    return [
        [send(10), send(0, 2), send(300, 3)],
        [send(50, l=0), send(50, mo=50)],
        [write(to, 100), write(to, 2000, l=0), write(to + 2000, 900), send(4)],
        [write(to, 0), read(1, 100), read(2, 0), read(3, 2500), send(20)],
        [send(1), terminate()],
        [DDPUntagged(opcode=Opcode.SEND_INVALIDATE, inv_stag=STAG) / Raw(b"x"), send(1, 2)],
        [DDPUntagged(opcode=Opcode.SEND_SE) / Raw(b"x")],
        [send(12_000)],
        [write(to, 100), immediate(1), immediate(2), send(4, 3)],
        [immediate(1, 9)],
        [atomic(1), atomic(2, 2), read(3, 8), atomic(4)],
        [send(1), atomic(1, 1)],
        [atomic(1, offset=4)],
        [DDPUntagged(opcode=15) / Raw(b"\1\0\0\0IMM!body"), send(1, 2)],
        [Requester(rnr_retry=3), send(1), write(to, 8), Requester(flags=0), send(1, 2)],
        [Requester(), send(1), DeliveryCount(sends=2, writes=1), DeliveryCount(sends=4, writes=1)],
        [DeliveryCount(sends=1, l=0), Requester(rnr_retry=8)],
        [DDPUntagged(opcode=15, l=0) / Raw(b"\2\0"), DDPUntagged(opcode=15, mo=2) / Raw(bytes(30))],
    ]


def stream(packets: list[Packet]) -> bytes:
    return b"".join(bytes(FPDU(ulpdu=p)) for p in packets)


def recorded() -> list[bytes]:
    octets = [
        s for p in sorted(CAPTURES.glob("*.pcap")) for s in tcp_streams(rdpcap(str(p))).values()
    ]
    assert octets, "no captures"
    return octets


def streams(to: int) -> list[bytes]:
    out = []
    for packets in segments(to):
        for flags in (0, CRC, STRICT, OWN):
            out.append(bytes([flags, 0]) + stream(packets))
        out.append(bytes([0, 4 | 8 | 16]) + stream(packets))
        marked = mark_stream([FPDU(ulpdu=p) for p in packets], 0)
        out.append(bytes([CRC | MARKERS, 0]) + marked)
    for octets in recorded():
        fpdus = split_stream(octets).fpdus[:12]
        out.append(bytes([CRC, 0]) + b"".join(bytes(f) for f in fpdus))
    return out


def startups() -> list[bytes]:
    first = stream([send(10)])
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
    return out + [bytes([CRC, 0]) + octets[:2000] for octets in recorded()]


def responses() -> list[bytes]:
    def answer(to: int, n: int, last: int = 1) -> Packet:
        head = DDPTagged(opcode=Opcode.RDMA_READ_RESPONSE, stag=SINK, to=to, l=last)
        return head / Raw(bytes(n))

    cases = [
        [answer(0, 100)],
        [answer(0, 40, 0), answer(40, 60), send(5)],
        [send(5), answer(0, 99)],
    ]
    return [bytes([INITIATOR | f, 0]) + stream(c) for c in cases for f in (0, CRC)]


def datagrams() -> list[bytes]:
    def one(n: int, op: Opcode = Opcode.SEND) -> bytes:
        octets = bytes(UDDatagram(segment=DDPDatagram(q_key=0x11223344, opcode=op) / Raw(bytes(n))))
        return len(octets).to_bytes(2, "big") + octets

    def private(n: int, subcode: int) -> bytes:
        head = DDPDatagram(q_key=0x11223344, opcode=Opcode.PRIVATE) / PrivateHead(subcode=subcode)
        octets = bytes(UDDatagram(segment=head / Raw(bytes(n))))
        return len(octets).to_bytes(2, "big") + octets

    def error(msn: int) -> bytes:
        quoted = QuotedUntagged(msn=msn, inv_stag=0x11223344)
        body = bytes(Terminate(layer=1, etype=2, code=5, m=1, d=1, quoted_ddp=quoted))
        head = DDPDatagram(q_key=0x11223344, opcode=Opcode.TERMINATE, qn=2)
        octets = bytes(UDDatagram(segment=head / Raw(body)))
        return len(octets).to_bytes(2, "big") + octets

    def record(number: int, n: int, length: int, last: int) -> bytes:
        to = int.from_bytes(b"TOHITOLO", "big")
        head = RecordHeader(message_id=number, to=to, length=length)
        segment = bytes(DDPTagged(opcode=15, stag=STAG, to=to, l=last) / head) + bytes(n)
        octets = bytes(RecordDatagram(q_key=0x11223344, segment=segment))
        return len(octets).to_bytes(2, "big") + octets

    def record_error(more: int) -> bytes:
        quoted = QuotedTagged(opcode=15, stag=STAG)
        body = Terminate(layer=0, etype=2, code=6, m=1, d=1, r=1, quoted_ddp=quoted)
        octets = bytes(body)[: 6 + 14] + bytes(RecordHeader())[:more]
        segment = DDPDatagram(q_key=0x11223344, opcode=Opcode.TERMINATE, qn=2) / Raw(octets)
        datagram = bytes(UDDatagram(segment=segment))
        return len(datagram).to_bytes(2, "big") + datagram

    records = record(1, 9, 9, 1) + record(2, 50, 100, 0) + record(3, 20, 90, 0) + record(2, 1, 9, 0)
    errors = error(1) + error(3) + error(3) + error(9) + one(4, Opcode.SEND_INVALIDATE)
    records += record(4, 9, 8, 1) + record_error(20) + record_error(19)
    private_ones = private(0, 1) + private(200, 2) + private(201, 1) + private(9, 3)
    sets = [
        errors,
        records,
        private_ones,
        one(0) + one(20) + one(200),
        one(201),
        one(3, Opcode.SEND_SE) * 10,
    ]
    return [bytes([f, 0]) + s for s in sets for f in (0, CRC, REFUSE)]


def unreliable() -> list[bytes]:
    def one(psn: int, segment: bytes, flags: int = 0) -> bytes:
        octets = bytes(UCDatagram(psn=psn, q_key=0x11223344, flags=flags, segment=segment))
        return len(octets).to_bytes(2, "big") + octets

    def send(psn: int, mo: int, n: int, last: int, opcode: int = 3) -> bytes:
        head = DDPUntagged(opcode=opcode, msn=1, mo=mo, l=last)
        return one(psn, bytes(head) + bytes([1]) + bytes(n - 1), int(mo == 0))

    def write(psn: int, n: int, last: int, flags: int) -> bytes:
        head = DDPTagged(opcode=0, stag=STAG, to=int.from_bytes(b"TOHITOLO", "big"), l=last)
        return one(psn, bytes(head) + bytes(n), flags)

    imm = one(2, bytes(DDPUntagged(opcode=8)) + bytes(8))
    sets = [
        send(0, 0, 50, 0) + send(1, 50, 50, 0) + send(2, 100, 50, 1),
        send(0, 0, 50, 1, 15) + send(1, 0, 250, 1),
        write(0, 50, 0, 1) + write(1, 50, 1, 0) + imm,
        send(0, 0, 9, 0) + send(0, 0, 9, 1) + send(5, 9, 9, 1),
    ]
    return [bytes([f, 0]) + s for s in sets for f in (0, CRC)]


def reliable() -> list[bytes]:
    """Return inputs of fuzz_rd.c: some sequences of steps are written out, and some are random."""
    short, wrap, calm, no_batches = 1, 2, 4, 8
    send, arrive, drop, again, wait, turn, hold, restart, speak = 0, 2, 4, 5, 6, 7, 8, 9, 10
    damage, reset, run, full = 12, 13, 14, 15
    first = 4  # the type DATA
    everybody = bytes([run, 0])

    def segments(a: int, b: int, n: int = 4, size: int = 99) -> bytes:
        return bytes([send, (4 - n) << 6 | pairs[a, b], *[size] * n])

    def said(who: int, to: int, kind: int, *rest: int) -> bytes:
        return bytes([speak, 0, who | to << 2, kind - first, *rest])

    pairs = {(h % 3, (h % 3 + 1 + (h >> 2) % 2) % 3): h for h in range(64)}
    met = said(1, 0, 6, 0, 0, 9, 0) + everybody + said(1, 0, 8, 0, 0, 9, 0) + everybody
    early = b"".join(said(1, 0, 4, n, 0, 9, 0, 200) for n in range(1, 8)) + everybody
    out = [
        segments(0, 1) + everybody + segments(1, 0) + everybody,
        segments(0, 1) + segments(1, 0) + everybody * 2,
        segments(0, 1) + everybody + segments(0, 1) + bytes([drop, 0, drop, 1]) + everybody * 3,
        segments(0, 1) + everybody + bytes([again, 0, again, 5, again, 9]) + everybody,
        bytes([hold, 0x81]) + segments(0, 1) * 3 + everybody + bytes([hold, 1]) + everybody,
        segments(0, 1) * 9 + everybody + bytes([damage, 0, 7, damage, 2, 40]) + everybody * 2,
        segments(0, 1) + everybody + bytes([restart, 0x81]) + segments(0, 1) + everybody * 2,
        segments(0, 1) + everybody + bytes([restart, 1]) + everybody + bytes([again, 60] * 9),
        segments(0, 1) + bytes([wait, 34]) + everybody + bytes([reset, 203]) + everybody,
        bytes([full, 0x80]) + segments(0, 1) + everybody + bytes([full, 0]) + everybody,
        segments(0, 1) + bytes([arrive, 0, turn, 1, arrive, 0, turn, 0] * 4) + everybody,
        met + early + said(1, 0, 4, 0, 0, 9, 0, 200) + everybody + said(1, 0, 10, 0, 0, 9, 0),
        met + segments(0, 1) + said(1, 0, 5, 0, 3, 255, 0, 255, 255) + everybody,
        met + said(1, 0, 9, 0, 0, 9, 0, 250) + everybody + said(0x31, 1, 6, 0, 0, 9, 0) + everybody,
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


def netlink() -> list[bytes]:
    def message(kind: int, body: bytes) -> bytes:
        return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body

    name = struct.pack("=HH8s", 9, 3, b"eth0\0")
    link = struct.pack("=BBHiII", 0, 0, 1, 3, 0x41, 0) + name
    addr = struct.pack("=BBBBI", 2, 24, 0, 0, 3)
    return [b"\3" + message(k, b) for k, b in ((16, link), (17, link), (20, addr), (21, addr))]


def resolution() -> list[bytes]:
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
        "fuzz_mpa_startup": startups(),
        "fuzz_mpa_rx": streams(BASE),
        "fuzz_ddp_stream": streams(BASE),
        "fuzz_rdmap": streams(REGION) + responses(),
        "fuzz_datagram": datagrams(),
        "fuzz_uc": unreliable(),
        "fuzz_terminate": [
            bytes(told()),
            bytes(told(m=1)),
            bytes(told(m=0, d=0)),
            b"\x10\x01\x03\0",
        ],
        "fuzz_netlink": netlink(),
        "fuzz_rd": reliable(),
        "fuzz_sidr": resolution(),
    }
    for name, seeds in corpora.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        for i, seed in enumerate(seeds):
            (folder / f"seed-{i:03}").write_bytes(seed)


if __name__ == "__main__":
    main()
