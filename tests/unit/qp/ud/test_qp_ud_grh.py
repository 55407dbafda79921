"""UD with a GRH: 40 octets in RoCE v2's format before each message."""

from __future__ import annotations

import errno
import ipaddress
import struct

import pytest
from harness.verbs_harness import (
    MCAST_PORT,
    Pair,
    Rig,
    assert_counter_grows,
    errno_raised_by,
    octet_pattern,
    poll,
)

from siwarp._siwarp import ffi, lib
from siwarp.verbs import AH, QPType, RecvWR, SendWR, WCFlag, WCStatus, WROpcode

QKEY = 5


def address_octets(host: str) -> bytes:
    return ipaddress.ip_address(host).packed


def ones_complement_sum_of_ip_header(header: bytes) -> int:
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def check_grh_and_get_sl(grh: bytes, source: str, dest: str, payload: int, head: int = 0) -> int:
    """Check a GRH against the RFCs' header formats; return the expected sl of its completion."""
    udp = 8 + 18 + head + payload + 4  # UDP header, DDP header, payload, CRC32C
    assert len(grh) == 40
    if ":" in dest:
        assert grh[:4] == bytes([0x60, 0, 0, 0])
        assert struct.unpack(">HBB", grh[4:8]) == (udp, 17, 64)
        assert (grh[8:24], grh[24:40]) == (address_octets(source), address_octets(dest))
        return 9
    assert grh[:20] == bytes(20)
    ip = grh[20:]
    assert struct.unpack(">BBHHHBB", ip[:10]) == (0x45, 0, 20 + udp, 0, 0, 64, 17)
    assert ones_complement_sum_of_ip_header(ip) == 0xFFFF
    assert (ip[12:16], ip[16:20]) == (address_octets(source), address_octets(dest))
    return 10


class GrhPair(Pair):
    """A Pair whose queue pair b receives messages with a GRH."""

    def __init__(self, rig: Rig, host: str = "127.0.0.1", **kwargs: object) -> None:
        super().__init__(rig, host=host)
        self.host = host
        srq = kwargs.get("srq")
        self.b = rig.create_ud_qp(
            scq=self.idle,
            rcq=self.rcq,
            addr=(host, 0),
            grh=True,
            qkey=QKEY,
            max_recv_sge=1 if srq else 16,
            srq=srq,
        )
        self.to_b = rig.create_ah(self.b)

    def send_message(self, octets: bytes, opcode: WROpcode = WROpcode.SEND) -> None:
        self.out.write(octets)
        sge = self.out.sge(0, len(octets))
        self.a.post_send(
            SendWR(3, sg=[sge], opcode=opcode, ah=self.to_b, remote_qkey=QKEY, imm_data=77)
        )
        assert poll(self.scq)[0].ok


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("size", [0, 1, 64, 4096, 4097, 65000])
def test_a_message_with_grh_begins_with_the_ip_header_of_its_datagram(
    rig: Rig, host: str, size: int
) -> None:
    pair = GrhPair(rig, host)
    pair.post_receive(9, 70000)
    pair.send_message(octet_pattern(size))
    (wc,) = poll(pair.rcq)
    assert (wc.ok, wc.wr_id, wc.byte_len) == (True, 9, 40 + size)
    assert wc.wc_flags == WCFlag.GRH
    assert wc.sl == check_grh_and_get_sl(pair.into.read(40), host, host, size)
    assert pair.into.read(40 + size)[40:] == octet_pattern(size)
    assert (wc.source, wc.destination) == (pair.a.addr, pair.b.addr)


def test_a_grh_contains_the_addresses_of_both_ends(rig: Rig) -> None:
    mr, out, cq = rig.reg_mr(bytearray(200)), rig.reg_mr(bytearray(b"abc")), rig.create_cq()
    a = rig.create_ud_qp(rig.create_cq(), addr=("127.0.0.5", 0))
    b = rig.create_ud_qp(cq, addr=("127.9.8.7", 0), grh=True)
    b.post_recv(RecvWR(1, sg=[mr.sge()]))
    a.post_send(SendWR(sg=[out.sge()], ah=rig.create_ah(b)))
    (wc,) = poll(cq)
    assert wc.destination == b.addr
    check_grh_and_get_sl(mr.read(40), "127.0.0.5", "127.9.8.7", 3)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_immediate_data_arrives_with_a_grh(rig: Rig, host: str) -> None:
    pair = GrhPair(rig, host)
    pair.post_receive(1, 1000)
    pair.send_message(octet_pattern(100), WROpcode.SEND_WITH_IMM)
    (wc,) = poll(pair.rcq)
    assert (wc.byte_len, wc.imm_data) == (140, 77)
    assert wc.wc_flags == WCFlag.GRH | WCFlag.WITH_IMM
    check_grh_and_get_sl(pair.into.read(40), host, host, 100, head=8)
    assert pair.into.read(140)[40:] == octet_pattern(100)


@pytest.mark.parametrize(
    "parts", [(40, 64), (1, 39, 64), (20, 84), (41, 63), (104,), (8,) * 13, (0, 40, 0, 64)]
)
def test_a_grh_may_span_several_scatter_elements(rig: Rig, parts: tuple[int, ...]) -> None:
    pair = GrhPair(rig)
    at, sges = 0, []
    for part in parts:
        sges.append(pair.into.sge(at, part))
        at += part + 7  # seven octets between the pieces must stay unchanged
    pair.into.write(b"\xee" * (at + 40))
    pair.b.post_recv(RecvWR(1, sg=sges))
    pair.send_message(octet_pattern(64))
    (wc,) = poll(pair.rcq)
    assert (wc.ok, wc.byte_len) == (True, 104)
    memory, got, at = pair.into.read(at + 40), b"", 0
    for part in parts:
        got += memory[at : at + part]
        assert memory[at + part : at + part + 7] == b"\xee" * 7
        at += part + 7
    check_grh_and_get_sl(got[:40], "127.0.0.1", "127.0.0.1", 64)
    assert got[40:] == octet_pattern(64)


@pytest.mark.parametrize("length", [0, 39, 40, 103])
def test_a_receive_too_short_for_grh_and_payload_is_a_length_error(rig: Rig, length: int) -> None:
    pair = GrhPair(rig)
    pair.into.write(b"\xee" * 200)
    pair.post_receive(1, length)
    with assert_counter_grows("drop_too_long", 1):
        pair.send_message(octet_pattern(64))
        (wc,) = poll(pair.rcq)
    assert wc.status == WCStatus.LOC_LEN_ERR
    assert pair.into.read(200) == b"\xee" * 200
    pair.post_receive(2, 104)  # the queue pair still receives messages
    pair.send_message(octet_pattern(64))
    assert poll(pair.rcq)[0].byte_len == 104


def test_a_grh_is_not_written_past_the_end_of_its_region(rig: Rig) -> None:
    pair = GrhPair(rig)
    small, wide = rig.reg_mr(bytearray(30)), pair.into
    pair.b.post_recv(RecvWR(1, sg=[small.sge(), wide.sge(0, 200)]))
    pair.send_message(octet_pattern(64))
    assert poll(pair.rcq)[0].byte_len == 104
    assert small.read(30) + wide.read(10)[:10] != bytes(40)
    gone = rig.reg_mr(bytearray(30))
    sge = gone.sge()
    pair.b.post_recv(RecvWR(2, sg=[sge, wide.sge(0, 200)]))
    gone.close()
    wide.write(b"\xee" * 200)
    pair.send_message(octet_pattern(64))
    assert poll(pair.rcq)[0].status == WCStatus.LOC_PROT_ERR
    assert wide.read(200) == b"\xee" * 200


def test_receives_of_an_srq_begin_with_a_grh_only_for_queue_pairs_with_grh(rig: Rig) -> None:
    srq = rig.create_srq()
    pair = GrhPair(rig, srq=srq)
    plain = rig.create_ud_qp(scq=pair.idle, rcq=pair.rcq, addr=("127.0.0.1", 0), srq=srq, qkey=QKEY)
    for to, size in ((pair.b, 104), (plain, 64), (pair.b, 104)):
        srq.post_recv(RecvWR(size, sg=[pair.into.sge(0, 1000)]))
        pair.to_b = rig.create_ah(to)
        pair.send_message(octet_pattern(64))
        (wc,) = poll(pair.rcq)
        assert (wc.qp_num, wc.byte_len) == (to.qp_num, size)
        assert pair.into.read(size)[-64:] == octet_pattern(64)


def test_queue_pairs_on_one_socket_enable_the_grh_independently(rig: Rig) -> None:
    pair = GrhPair(rig)
    cq = rig.create_cq()
    other = rig.create_ud_qp(cq, shared_socket_qp=pair.b, qkey=QKEY)
    third = rig.create_ud_qp(cq, shared_socket_qp=pair.b, qkey=QKEY, grh=True)
    out = rig.reg_mr(bytearray(octet_pattern(64)))
    for to, size in ((other, 64), (third, 104)):
        to.post_recv(RecvWR(1, sg=[pair.into.sge(0, 1000)]))
        pair.a.post_send(
            SendWR(sg=[out.sge()], ah=pair.to_b, remote_qpn=to.qp_num, remote_qkey=QKEY)
        )
        (wc,) = poll(cq)
        assert (wc.byte_len, wc.destination) == (size, pair.b.addr)
    check_grh_and_get_sl(pair.into.read(40), "127.0.0.1", "127.0.0.1", 64)


def test_the_grh_of_a_multicast_message_has_the_group_as_its_destination(rig: Rig) -> None:
    host, group = "127.0.0.1", "239.192.7.92"
    pair = GrhPair(rig, host)
    plain = rig.create_ud_qp(scq=pair.idle, rcq=pair.rcq, addr=(host, 0), qkey=QKEY)
    members = [pair.b, plain, rig.create_ud_qp(pair.rcq, addr=(host, 0), qkey=QKEY, grh=True)]
    for i, qp in enumerate(members):
        qp.attach_mcast(group)
        qp.post_recv(RecvWR(i, sg=[pair.into.sge(1000 * i, 1000)]))
    pair.to_b = AH(rig.pd, (group, 0))
    pair.send_message(octet_pattern(64), WROpcode.SEND_WITH_IMM)
    for wc in poll(pair.rcq, 3):
        grh = wc.wr_id != 1
        assert (wc.ok, wc.byte_len, wc.imm_data) == (True, 104 if grh else 64, 77)
        assert wc.destination == (group, MCAST_PORT)
        got = pair.into.read(3000)[1000 * wc.wr_id :][: wc.byte_len]
        assert got[-64:] == octet_pattern(64)
        if grh:
            assert wc.sl == check_grh_and_get_sl(got[:40], host, group, 64, head=8)
    for qp in members:
        qp.detach_mcast(group)


def test_a_write_record_has_no_grh(rig: Rig) -> None:
    pair = GrhPair(rig)
    target = rig.reg_mr(bytearray(64), 3)
    b = rig.create_ud_qp(
        scq=pair.idle, rcq=pair.rcq, addr=("127.0.0.1", 0), grh=True, max_write_records=4
    )
    pair.a.post_send(
        SendWR(
            sg=[pair.out.sge(0, 64)],
            opcode=WROpcode.RDMA_WRITE_RECORD,
            ah=rig.create_ah(b),
            remote=target.remote(),
        )
    )
    (wc,) = poll(pair.rcq)
    assert (wc.byte_len, wc.wc_flags & WCFlag.GRH, wc.destination) == (64, 0, None)


def test_a_query_returns_the_grh_attribute_and_types_other_than_ud_refuse_it(rig: Rig) -> None:
    assert [rig.create_qp(grh=grh).query()[1].grh for grh in (False, True)] == [False, True]
    for kind in (QPType.RC, QPType.UC, QPType.RD):
        assert errno_raised_by(rig.create_qp, qp_type=kind, grh=True) == errno.EINVAL
        assert ffi.string(lib.siw_reason_name()) == b"WRONG_TYPE"


def test_the_grh_of_a_queue_pair_bound_to_the_wildcard_address_contains_that_address(
    rig: Rig,
) -> None:
    """A GRH holds the wildcard address for a queue pair bound to the wildcard address.

    siwarp does not know the destination address of datagrams to such a queue pair.
    """
    cq, mr, out = rig.create_cq(), rig.reg_mr(bytearray(200)), rig.reg_mr(bytearray(b"abc"))
    b = rig.create_ud_qp(cq, addr=("0.0.0.0", 0), grh=True)
    b.post_recv(RecvWR(1, sg=[mr.sge()]))
    a = rig.create_ud_qp(rig.create_cq(), addr=("127.0.0.1", 0))
    a.post_send(SendWR(sg=[out.sge()], ah=rig.create_ah(("127.0.0.1", b.addr[1]))))
    assert poll(cq)[0].destination == ("0.0.0.0", b.addr[1])
    check_grh_and_get_sl(mr.read(40), "127.0.0.1", "0.0.0.0", 3)
