"""Several UD queue pairs on one socket: delivery by number, and separate states and attributes."""

from __future__ import annotations

import errno
import socket
import threading

import pytest
from harness.descriptors import count_open_descriptors
from harness.share_harness import QKEY, QPsOnOneSocket, send_message
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    errno_raised_by,
    octet_pattern,
    poll,
    wait_until,
)

from siwarp.inspect import UDDatagram
from siwarp.verbs import (
    AH,
    CQ,
    PD,
    QP,
    AccessFlag,
    Error,
    LimitError,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    WCStatus,
    WROpcode,
)


@pytest.mark.clause("DGRAM-SHARE-2", "DGRAM-SHARE-4", "DGRAM-SHARE-5")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_each_queue_pair_on_a_shared_socket_receives_the_messages_for_its_number(
    rig: Rig, host: str
) -> None:
    a, b = QPsOnOneSocket(rig, 3, host), QPsOnOneSocket(rig, 3, host)
    assert len({qp.addr for qp in b.qps}) == 1
    assert [qp.qp_num for qp in b.qps] == [i << 16 | b.qps[0].addr[1] for i in range(3)]
    for i in (2, 0, 1):
        for j in range(3):
            b.post_receive(j)
            send_message(rig, a.qps[i], b.qps[j], octet_pattern(64, 3 * i + j), QKEY + j)
            (got,) = poll(b.cqs[j])
            assert (got.ok, got.wr_id, got.byte_len) == (True, j, 64)
            assert (got.qp_num, got.src_qp) == (b.qps[j].qp_num, a.qps[i].qp_num)
            assert got.source == a.qps[i].addr
            assert b.mrs[j].read(64) == octet_pattern(64, 3 * i + j)
    assert all(not cq.poll(4) for cq in b.cqs)


@pytest.mark.clause("DGRAM-SHARE-3", "DGRAM-SHARE-6")
def test_the_ud_header_has_both_queue_pair_indexes_and_a_message_count_per_queue_pair(
    rig: Rig,
) -> None:
    a = QPsOnOneSocket(rig, 3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.settimeout(10)
        where = peer.getsockname()
        mr = rig.reg_mr(bytearray(b"abc"))
        for qp, index in ((a.qps[2], 7), (a.qps[0], 255), (a.qps[2], 0)):
            qp.post_send(
                SendWR(sg=[mr.sge()], ah=rig.create_ah(where), remote_qpn=index << 16 | where[1])
            )
        heads = [UDDatagram(peer.recv(2048)).segment for _ in range(3)]
        # A QPN with port 0 combines the port of the address handle with the index of the QPN.
        a.qps[1].post_send(SendWR(sg=[mr.sge()], ah=rig.create_ah(where), remote_qpn=9 << 16))
        heads.append(UDDatagram(peer.recv(2048)).segment)
    found = [(h.queue, h.dest_index, h.source_index, h.msn) for h in heads]
    # MSNs count each queue pair's own messages.
    assert found == [(0, 7, 2, 1), (0, 255, 0, 1), (0, 0, 2, 2), (0, 9, 1, 1)]


@pytest.mark.clause("DGRAM-SHARE-6")
@pytest.mark.parametrize("state", [QPState.RESET, QPState.INIT, QPState.ERR])
@pytest.mark.parametrize("down", [0, 1, 2])
def test_a_stopped_queue_pair_drops_only_its_own_messages(
    rig: Rig, state: QPState, down: int
) -> None:
    b = QPsOnOneSocket(rig, 3)
    if state == QPState.INIT:
        b.qps[down].modify(QPAttr(qp_state=QPState.RESET))
    b.qps[down].modify(QPAttr(qp_state=state))
    others = [i for i in range(3) if i != down]
    for i in others:
        b.post_receive(i)
    with assert_counter_grows("drop_no_buffer", 1):
        send_message(rig, b.qps[others[0]], b.qps[down], b"x", QKEY + down)
        for i in others:
            send_message(rig, b.qps[others[0]], b.qps[i], b"abc", QKEY + i)
            assert poll(b.cqs[i])[0].byte_len == 3


@pytest.mark.clause("DGRAM-SHARE-7")
def test_a_shared_socket_is_closed_with_its_last_queue_pair(rig: Rig) -> None:
    b = QPsOnOneSocket(rig, 3)
    host, port = b.qps[0].addr
    for gone, left in ((0, (1, 2)), (2, (1,))):
        b.qps[gone].close()
        for i in left:
            b.post_receive(i)
            send_message(rig, b.qps[left[0]], b.qps[i], b"abcd", QKEY + i)
            assert poll(b.cqs[i])[0].byte_len == 4
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            assert errno_raised_by(other.bind, (host, port)) == errno.EADDRINUSE
    b.qps[1].close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((host, port))


@pytest.mark.clause("DGRAM-SHARE-1", "DGRAM-SHARE-8")
def test_256_queue_pairs_share_a_socket_and_a_freed_index_is_reused_as_late_as_possible(
    rig: Rig,
) -> None:
    cq = rig.create_cq()
    first = rig.create_qp(cq)
    rest = [rig.create_qp(cq, shared_socket_qp=first) for _ in range(255)]
    assert [qp.qp_num >> 16 for qp in rest] == list(range(1, 256))
    with pytest.raises(LimitError, match="256 QPs share this socket") as e:
        rig.create_qp(cq, shared_socket_qp=rest[7])
    assert e.value.errno == errno.ENOSPC
    for index in (200, 3, 77):
        rest[index - 1].close()
    again = [rig.create_qp(cq, shared_socket_qp=first) for _ in range(3)]
    assert [qp.qp_num >> 16 for qp in again] == [3, 77, 200]
    again[1].close()
    again[0].close()
    # The search for a free index continues after 200 and wraps around, so it finds 3 before 77.
    assert rig.create_qp(cq, shared_socket_qp=first).qp_num >> 16 == 3


def advance_rc_qp_numbers(rig: Rig, cq: CQ, number: int) -> None:
    """Create RC queue pairs until the next one would get this number."""
    for _ in range(number - (1 << 23)):
        qp = rig.create_qp(cq, qp_type=QPType.RC)
        last = qp.qp_num
        qp.close()
        if last == number - 1:
            return
    raise AssertionError(f"no RC queue pair got a number below {number:#x}")


def create_qp_with_low_port(rig: Rig, cq: CQ) -> QP:
    """Create a UD queue pair with a low port, so that the QPNs of RC queue pairs soon reach those
    of the queue pairs that share its socket.
    """
    for port in range(1100, 1400):
        try:
            return rig.create_qp(cq, addr=("127.0.0.1", port))
        except Error as e:
            assert e.errno == errno.EADDRINUSE
    raise AssertionError("the ports 1100 to 1399 are all in use")


@pytest.mark.clause("DGRAM-SHARE-2")
def test_a_new_rc_queue_pair_skips_the_number_of_a_queue_pair_on_a_shared_socket(rig: Rig) -> None:
    cq = rig.create_cq()
    first = create_qp_with_low_port(rig, cq)
    sharers = [rig.create_qp(cq, shared_socket_qp=first) for _ in range(128)]
    number = sharers[-1].qp_num
    assert number == 128 << 16 | first.addr[1]
    advance_rc_qp_numbers(rig, cq, number)
    assert rig.create_qp(cq, qp_type=QPType.RC).qp_num == number + 1


@pytest.mark.clause("DGRAM-SHARE-2")
def test_a_new_queue_pair_on_a_shared_socket_skips_the_number_of_an_rc_queue_pair(rig: Rig) -> None:
    cq = rig.create_cq()
    first = create_qp_with_low_port(rig, cq)
    port = first.addr[1]
    advance_rc_qp_numbers(rig, cq, 128 << 16 | port)
    rc = rig.create_qp(cq, qp_type=QPType.RC)
    assert rc.qp_num == 128 << 16 | port
    numbers = [rig.create_qp(cq, shared_socket_qp=first).qp_num for _ in range(128)]
    assert numbers[126:] == [127 << 16 | port, 129 << 16 | port]


def test_messages_of_queue_pairs_on_a_shared_socket_are_neither_lost_nor_mixed_up(rig: Rig) -> None:
    n, each = 4, 100
    a, b = QPsOnOneSocket(rig, n, max_send_wr=256), QPsOnOneSocket(rig, n, max_recv_wr=256)
    ahs = [rig.create_ah(qp) for qp in b.qps]
    for i in range(n):
        a.mrs[i].write(octet_pattern(32, i))
        b.qps[i].post_recv([RecvWR(k, sg=[b.mrs[i].sge(0, 32)]) for k in range(each)])
    for i in range(n):
        a.qps[i].post_send(
            [
                SendWR(
                    k,
                    sg=[a.mrs[i].sge(0, 32)],
                    ah=ahs[i],
                    remote_qpn=b.qps[i].qp_num,
                    remote_qkey=QKEY + i,
                )
                for k in range(each)
            ]
        )
    for i in range(n):
        assert [w.wr_id for w in poll(a.cqs[i], each)] == list(range(each))
        got = poll(b.cqs[i], each)
        assert [w.wr_id for w in got] == list(range(each))
        assert {(w.status, w.src_qp) for w in got} == {(WCStatus.SUCCESS, a.qps[i].qp_num)}
        assert b.mrs[i].read(32) == octet_pattern(32, i)


@pytest.mark.clause("DGRAM-SHARE-3")
def test_threads_may_send_on_queue_pairs_of_one_socket_at_the_same_time(rig: Rig) -> None:
    n, each = 4, 150
    a, b = QPsOnOneSocket(rig, n), QPsOnOneSocket(rig, n, max_recv_wr=256)
    ahs = [rig.create_ah(qp) for qp in b.qps]
    done: list[int] = []
    for i in range(n):
        b.qps[i].post_recv([RecvWR(k, sg=[b.mrs[i].sge(k, 1)]) for k in range(each)])

    def send_on_queue_pair(i: int) -> None:
        out = rig.reg_mr(bytearray(range(each)))
        for k in range(each):
            a.qps[i].post_send(
                SendWR(
                    k,
                    sg=[out.sge(k, 1)],
                    ah=ahs[i],
                    remote_qpn=b.qps[i].qp_num,
                    remote_qkey=QKEY + i,
                )
            )
            assert poll(a.cqs[i])[0].ok
        done.append(i)

    threads = [threading.Thread(target=send_on_queue_pair, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for i in range(n):
        got = poll(b.cqs[i], each, limit=30)
        assert {(w.status, w.src_qp) for w in got} == {(WCStatus.SUCCESS, a.qps[i].qp_num)}
        assert b.mrs[i].read(each) == bytes(range(each))
    for t in threads:
        t.join(30)
    assert sorted(done) == list(range(n))


@pytest.mark.clause("DGRAM-SHARE-6")
def test_queue_pairs_on_a_shared_socket_may_have_different_pds_and_srqs(rig: Rig) -> None:
    cq, other = rig.create_cq(), PD(rig.ctx)
    srq = rig.create_srq()
    first = rig.create_ud_qp(cq, addr=("127.0.0.1", 0))
    second = rig.create_qp(cq, shared_socket_qp=first, srq=srq)
    third = QP(other, QPInitAttr(scq=cq, rcq=cq, shared_socket_qp=second))
    for qp in (second, third):
        qp.to_rts(QPAttr(qkey=0))
    mr = rig.reg_mr(bytearray(b"......"))
    srq.post_recv(RecvWR(5, sg=[mr.sge()]))
    send_message(rig, first, second, b"shared", 0)
    assert [(w.ok, w.wr_id, w.byte_len) for w in poll(cq)] == [(True, 5, 6)]
    # A key of the first protection domain is invalid in the other.
    third.post_recv(RecvWR(6, sg=[mr.sge()]))
    send_message(rig, first, third, b"closed", 0)
    assert [(w.status, w.wr_id) for w in poll(cq)] == [(WCStatus.LOC_PROT_ERR, 6)]
    assert mr.read(6) == b"shared"
    with pytest.raises(Error, match="another PD"):
        third.post_send(SendWR(sg=[mr.sge()], ah=rig.create_ah(first)))
    assert AH(other, first.addr).dest == first.addr


def test_invalid_socket_sharing_is_refused_with_a_reason(rig: Rig) -> None:
    cq = rig.create_cq()
    first = rig.create_qp(cq)
    rc = rig.create_qp(cq, qp_type=QPType.RC)
    with Rig().ctx as far:
        pd = PD(far)
        elsewhere = CQ(far, 4)
        with pytest.raises(Error, match="shared_socket_qp belongs to another context"):
            QP(pd, QPInitAttr(scq=elsewhere, rcq=elsewhere, shared_socket_qp=first))
    for init, words in (
        (QPInitAttr(QPType.RC, shared_socket_qp=first), "shared_socket_qp is for UD QPs only"),
        (QPInitAttr(shared_socket_qp=rc), "shared_socket_qp is for UD QPs only"),
        (
            QPInitAttr(shared_socket_qp=first, addr=("127.0.0.1", 0)),
            "and addr exclude each other",
        ),
        (QPInitAttr(shared_socket_qp=first, crc=False), "shared_socket_qp has crc=True"),
    ):
        init.scq = init.rcq = cq
        with pytest.raises(Error, match=words) as e:
            QP(rig.pd, init)
        assert e.value.errno == errno.EINVAL


def test_a_shared_socket_cannot_be_replaced_by_a_socket_of_the_program(rig: Rig) -> None:
    b = QPsOnOneSocket(rig, 2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("127.0.0.1", 0))
        port = mine.getsockname()[1]
        for qp in b.qps:
            qp.modify(QPAttr(qp_state=QPState.RESET))
            with pytest.raises(Error, match="shares its socket"):
                qp.to_init(QPAttr(fd=mine))
        b.qps[1].close()
        b.qps[0].to_rts(QPAttr(fd=mine))
    assert b.qps[0].qp_num == port
    joined = rig.create_qp(b.cqs[1], shared_socket_qp=b.qps[0])
    assert joined.qp_num == 1 << 16 | port


def test_a_queue_pair_on_a_shared_socket_opens_no_file_descriptor(rig: Rig) -> None:
    cq = rig.create_cq()
    first = rig.create_qp(cq)
    before = count_open_descriptors()
    more = [rig.create_qp(cq, shared_socket_qp=first) for _ in range(50)]
    assert count_open_descriptors() == before
    for qp in more:
        qp.close()
    wait_until(lambda: first.qp_state == QPState.RESET)


@pytest.mark.clause("DGRAM-SHARE-5")
@pytest.mark.parametrize("told", [False, True], ids=["by the handle", "by remote_qpn"])
@pytest.mark.parametrize("opcode", [WROpcode.SEND, WROpcode.SEND_WITH_IMM])
def test_a_reply_by_a_completions_address_handle_reaches_the_sending_queue_pair(
    rig: Rig, opcode: WROpcode, told: bool
) -> None:
    a, b = QPsOnOneSocket(rig, 3), QPsOnOneSocket(rig, 2)
    for i, qp in enumerate(a.qps):
        b.post_receive(1)
        send_message(rig, qp, b.qps[1], b"who is it", QKEY + 1)
        (asked,) = poll(b.cqs[1])
        assert (asked.src_qp, asked.source) == (qp.qp_num, a.qps[0].addr)
        a.post_receive(i, 50 + i)
        # Verbs programs reply in this way. By the port alone, the reply would reach the first queue
        # pair of the socket.
        with AH(rig.pd, wc=asked) as back:
            wr = SendWR(
                9, opcode, send_flags=SendFlag(0), ah=back, remote_qkey=QKEY + i,
                remote_qpn=asked.src_qp if told else 0,
            )  # fmt: skip
            b.qps[1].post_send(wr)
            (got,) = poll(a.cqs[i])
            assert (got.wr_id, got.qp_num, got.src_qp) == (50 + i, qp.qp_num, b.qps[1].qp_num)
    assert all(cq.poll(1) == [] for cq in a.cqs)


def test_a_write_record_by_a_completions_address_handle_reaches_the_sending_queue_pair(
    rig: Rig,
) -> None:
    cq = rig.create_cq()
    first = rig.create_ud_qp(cq, qkey=QKEY, max_write_records=4)
    second = rig.create_ud_qp(cq, qkey=QKEY, shared_socket_qp=first, max_write_records=4)
    mr = rig.reg_mr(bytearray(8), AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE)
    other = QPsOnOneSocket(rig, 1)
    other.post_receive(0)
    send_message(rig, second, other.qps[0], b"write to me", QKEY)
    (asked,) = poll(other.cqs[0])
    out = rig.reg_mr(bytearray(b"written"))
    wr = SendWR(
        1, WROpcode.RDMA_WRITE_RECORD, sg=[out.sge()], ah=AH(rig.pd, wc=asked), remote=mr.remote()
    )
    other.qps[0].post_send(wr)
    (wc,) = poll(cq)
    assert (wc.qp_num, mr.read(7)) == (second.qp_num, b"written")
