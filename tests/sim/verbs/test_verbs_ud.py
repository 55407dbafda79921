"""UD queue pairs: sizes, addresses, keys, errors, dropped messages, and flushing."""

from __future__ import annotations

import errno

import net
import pytest
from harness.verbs_harness import (
    INVALID_SGE_KINDS,
    Pair,
    Rig,
    assert_counter_grows,
    assert_no_completion,
    make_invalid_sges,
    poll,
)

from siwarp.base.library import ffi
from siwarp.verbs import (
    QPAttr,
    QPState,
    RecvWR,
    SendFlag,
    SendWR,
    WCStatus,
    WROpcode,
)

MAX_V4 = 65507 - 18 - 4
MAX_V6 = 65527 - 18 - 4


@pytest.mark.clause("DGRAM-UD-9", "DGRAM-UD-10")
@pytest.mark.parametrize(("host", "most"), [(net.HERE, MAX_V4), (net.HERE_V6, MAX_V6)])
def test_a_ud_send_above_the_largest_size_completes_with_a_length_error(
    rig: Rig, host: str, most: int
) -> None:
    pair = Pair(rig, host=host)
    pair.post_receive()
    pair.send(bytes(most))
    assert poll(pair.rcq)[0].byte_len == most
    pair.post_receive()
    pair.send(bytes(most + 1), wr_id=9)
    assert [(w.wr_id, w.status) for w in poll(pair.scq, 2)] == [
        (2, WCStatus.SUCCESS),
        (9, WCStatus.LOC_LEN_ERR),
    ]
    assert_no_completion(pair.rcq)


@pytest.mark.parametrize("octets", [1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 4], ids=hex)
def test_a_send_length_that_no_datagram_can_have_is_a_length_error(pair: Pair, octets: int) -> None:
    a = pair.rig.create_ud_qp(pair.scq, max_send_sge=2)
    wr = SendWR(3, sg=[pair.out.sge(0, 4), pair.out.sge(0, 4)], ah=pair.to_b)
    wr.sg[0].length = octets // 2
    wr.sg[1].length = octets - octets // 2
    for wrs in (wr, [wr, wr]):
        a.post_send(wrs)
        assert poll(pair.scq)[0].status == WCStatus.LOC_LEN_ERR
        if isinstance(wrs, list):
            assert poll(pair.scq)[0].status == WCStatus.WR_FLUSH_ERR
        a.to_rts()
    assert_no_completion(pair.rcq)


# ---- work requests


def test_inline_data_may_be_changed_after_posting_and_needs_no_key(rig: Rig) -> None:
    pair = Pair(rig, max_inline_data=64)
    assert pair.a.cap.max_inline_data == 64
    memory = bytearray(b"inline-data")
    address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
    from siwarp.verbs import SGE

    pair.post_receive()
    wr = SendWR(5, sg=[SGE(address, 11, 0xDEAD)], ah=pair.to_b, send_flags=SendFlag.INLINE)
    pair.a.post_send(wr)
    memory[:] = bytes(11)
    assert poll(pair.rcq)[0].byte_len == 11
    assert pair.into.read(11) == b"inline-data"
    assert_no_completion(pair.scq)  # no completion, because the Send is not signaled


def test_unsignaled_sends_raise_no_completion_unless_sig_all_is_set(rig: Rig) -> None:
    for sig_all in (False, True):
        pair = Pair(rig, sig_all=sig_all)
        for i in range(3):
            pair.post_receive(wr_id=i)
        pair.send(b"a", wr_id=10, flags=0)
        pair.send(b"b", wr_id=11)
        pair.send(b"c", wr_id=12, flags=0)
        assert len(poll(pair.rcq, 3)) == 3
        ids = [10, 11, 12] if sig_all else [11]
        assert [w.wr_id for w in poll(pair.scq, len(ids))] == ids
        assert_no_completion(pair.scq)


def test_a_list_of_requests_is_posted_up_to_the_first_invalid_request(pair: Pair) -> None:
    for i in range(3):
        pair.post_receive(wr_id=i)
    wrs = [SendWR(i, sg=[pair.out.sge(0, i)], ah=pair.to_b) for i in range(4)]
    wrs[2]._c.opcode = WROpcode.RDMA_READ
    with pytest.raises(OSError) as e:
        pair.a.post_send(wrs)
    assert e.value.errno == errno.EINVAL and e.value.bad_wr is wrs[2]
    assert [w.wr_id for w in poll(pair.scq, 2)] == [0, 1]
    assert [w.byte_len for w in poll(pair.rcq, 2)] == [0, 1]
    assert_no_completion(pair.rcq)


# ---- Q_Keys


@pytest.mark.clause("DGRAM-UD-4")
def test_only_messages_with_the_q_key_of_the_receiver_are_received(rig: Rig) -> None:
    cq, scq = rig.create_cq(), rig.create_cq()
    b = rig.create_ud_qp(cq, qkey=0x1234)
    a = rig.create_ud_qp(scq, qkey=0x7777)
    mr = rig.reg_mr(bytearray(16))
    to_b = rig.create_ah(b)
    b.post_recv(RecvWR(1, sg=[mr.sge(8, 8)]))
    for wrong in (0, 0x1235, 0x7777):
        with assert_counter_grows("drop_qkey", 1):
            a.post_send(SendWR(2, sg=[mr.sge(0, 4)], ah=to_b, remote_qkey=wrong))
            assert poll(scq)[0].ok
            assert_no_completion(cq)
    a.post_send(SendWR(2, sg=[mr.sge(0, 4)], ah=to_b, remote_qkey=0x1234))
    assert poll(cq)[0].ok


def test_a_new_q_key_is_valid_from_the_call_of_modify(rig: Rig) -> None:
    cq = rig.create_cq()
    b = rig.create_ud_qp(cq, qkey=1)
    a = rig.create_ud_qp()
    to_b = rig.create_ah(b)
    b.post_recv([RecvWR(1), RecvWR(2)])
    a.post_send(SendWR(2, ah=to_b, remote_qkey=1))
    assert poll(cq)[0].wr_id == 1
    b.modify(QPAttr(qkey=2))
    with assert_counter_grows("drop_qkey", 1):
        a.post_send(SendWR(2, ah=to_b, remote_qkey=1))
        assert_no_completion(cq)
    a.post_send(SendWR(2, ah=to_b, remote_qkey=2))
    assert poll(cq)[0].wr_id == 2


# ---- messages that are dropped


def test_a_message_to_a_queue_pair_in_init_is_dropped_and_counted(rig: Rig) -> None:
    rcq = rig.create_cq()
    a, b = rig.create_ud_qp(), rig.create_qp(rcq)
    b.modify(QPAttr(qp_state=QPState.INIT))
    mr = rig.reg_mr(bytearray(64))
    b.post_recv(RecvWR(1, sg=[mr.sge()]))
    with assert_counter_grows("drop_no_buffer", 1):
        a.post_send(SendWR(2, sg=[mr.sge(0, 8)], ah=rig.create_ah(b)))
        assert_no_completion(rcq)
    b.modify(QPAttr(qp_state=QPState.RTR))
    a.post_send(SendWR(3, sg=[mr.sge(0, 8)], ah=rig.create_ah(b)))
    assert poll(rcq)[0].ok


@pytest.mark.clause("DGRAM-UD-13")
def test_a_ud_message_without_a_receive_is_dropped_and_counted(pair: Pair) -> None:
    with assert_counter_grows("drop_no_buffer", 2):
        pair.send(b"one")
        pair.send(b"two")
        assert_no_completion(pair.rcq)
    pair.post_receive()
    pair.send(b"three")
    assert poll(pair.rcq)[0].ok and pair.into.read(5) == b"three"


@pytest.mark.parametrize(
    "junk",
    [b"", b"x", bytes(21), bytes(22), bytes(100), b"\x41\x43" + bytes(60), b"\xff" * 65507],
    ids=lambda j: f"{len(j)}_octets",
)
def test_datagrams_that_are_not_datagram_iwarp_are_ignored(pair: Pair, junk: bytes) -> None:
    pair.post_receive()
    with net.open_udp_socket() as alien:
        alien.sendto(junk, pair.b.addr)
    assert_no_completion(pair.rcq)
    pair.send(b"ours")
    (wc,) = poll(pair.rcq)
    assert (wc.ok, wc.byte_len) == (True, 4)


def test_a_datagram_without_crc_is_dropped_by_a_queue_pair_with_crc(rig: Rig) -> None:
    cq = rig.create_cq()
    careful = rig.create_ud_qp(cq)
    careless = rig.create_ud_qp(crc=False)
    mr = rig.reg_mr(bytearray(b"data" + bytes(8)))
    careful.post_recv(RecvWR(1, sg=[mr.sge(4, 8)]))
    with assert_counter_grows("drop_crc", 1):
        careless.post_send(SendWR(2, sg=[mr.sge(0, 4)], ah=rig.create_ah(careful)))
        assert_no_completion(cq)
    assert mr.read(8, 4) == bytes(8)


@pytest.mark.parametrize("which", INVALID_SGE_KINDS)
@pytest.mark.parametrize("size", ["small", "large"])
def test_an_invalid_key_of_a_ud_send_completes_with_a_protection_error(
    pair: Pair, which: str, size: str
) -> None:
    from siwarp.verbs import SGE

    first = pair.out.sge(0, 8000 if size == "large" else 4)
    sg = [first, SGE(*make_invalid_sges(pair)[which])]
    a = pair.rig.create_ud_qp(pair.scq, max_send_sge=2)
    pair.post_receive()
    a.post_send(SendWR(3, sg=sg, ah=pair.to_b, send_flags=0))
    (wc,) = poll(pair.scq)
    assert (wc.wr_id, wc.status, wc.vendor_err) == (3, WCStatus.LOC_PROT_ERR, 0)
    assert_no_completion(pair.rcq)
