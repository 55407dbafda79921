"""UD queue pairs: sizes, addresses, keys, errors, dropped messages, and flushing."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import net
import pytest
from harness.verbs_harness import (
    INVALID_SGE_KINDS,
    OWN_QKEY,
    Pair,
    Rig,
    assert_counter_grows,
    errno_raised_by,
    make_invalid_sges,
    octet_pattern,
    poll,
)

from siwarp._siwarp import ffi, lib
from siwarp.verbs import (
    PD,
    QPAttr,
    QPState,
    RecvWR,
    SendFlag,
    SendWR,
    WCOpcode,
    WCStatus,
    WROpcode,
)

MAX_V4 = 65507 - 18 - 4
MAX_V6 = 65527 - 18 - 4
SIZES = [0, 1, 2, 3, 4, 63, 64, 65, 1472, 4095, 4096, 4097, 8192, 60000, MAX_V4 - 1, MAX_V4]


# ---- sizes and data


@pytest.mark.clause("DGRAM-UD-14")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("crc", [True, False], ids=["crc", "no_crc"])
def test_ud_messages_of_every_size_arrive_whole_with_their_source(
    rig: Rig, host: str, crc: bool
) -> None:
    pair = Pair(rig, host=host, crc=crc)
    for i, size in enumerate(SIZES + ([MAX_V6] if host == "::1" else [])):
        data = octet_pattern(size, i)
        pair.into.view[:] = b"\xee" * pair.size
        pair.post_receive(wr_id=1000 + i)
        pair.send(data, wr_id=2000 + i)
        (sent,) = poll(pair.scq)
        assert (sent.wr_id, sent.ok, sent.opcode) == (2000 + i, True, WCOpcode.SEND)
        assert sent.qp_num == pair.a.qp_num and sent.source is None
        (got,) = poll(pair.rcq)
        assert (got.wr_id, got.ok, got.opcode) == (1000 + i, True, WCOpcode.RECV)
        assert (got.byte_len, got.qp_num, got.src_qp) == (size, pair.b.qp_num, pair.a.qp_num)
        assert got.source == pair.a.addr
        assert pair.into.read(size) == data
        assert set(pair.into.read(offset=size)) <= {0xEE}


def test_max_ud_msg_of_the_device_is_the_largest_message_over_ipv4(rig: Rig) -> None:
    assert rig.ctx.query_device().max_ud_msg == MAX_V4


def test_an_address_handle_made_from_a_completion_leads_to_the_sender(ud_pair: Pair) -> None:
    ud_pair.post_receive()
    ud_pair.send(b"ping")
    (got,) = poll(ud_pair.rcq)
    ud_pair.a.post_recv(RecvWR(9, sg=[ud_pair.into.sge(100, 100)]))
    from siwarp.verbs import AH

    back = AH(ud_pair.rig.pd, wc=got)
    ud_pair.b.post_send(SendWR(3, sg=[ud_pair.out.sge(0, 4)], ah=back, remote_qpn=got.src_qp))
    done = poll(ud_pair.idle, 2)
    assert {(w.wr_id, w.status, w.opcode) for w in done} == {
        (3, 0, WCOpcode.SEND),
        (9, 0, WCOpcode.RECV),
    }
    assert ud_pair.into.read(4, 100) == b"ping"


def test_the_qpn_of_a_work_request_overrides_the_port_of_the_address_handle(
    rig: Rig, ud_pair: Pair
) -> None:
    wrong = rig.create_ah(("127.0.0.1", 9))
    ud_pair.post_receive()
    ud_pair.out.write(b"x")
    ud_pair.a.post_send(
        SendWR(1, sg=[ud_pair.out.sge(0, 1)], ah=wrong, remote_qpn=ud_pair.b.qp_num)
    )
    assert poll(ud_pair.rcq)[0].byte_len == 1


def test_a_ud_send_without_a_port_in_address_handle_or_qpn_is_refused(
    rig: Rig, ud_pair: Pair
) -> None:
    nowhere = rig.create_ah(("127.0.0.1", 0))
    assert errno_raised_by(ud_pair.a.post_send, SendWR(1, ah=nowhere)) == errno.EINVAL


def test_inline_data_above_the_granted_maximum_is_refused(rig: Rig) -> None:
    pair = Pair(rig, max_inline_data=60)
    granted = pair.a.cap.max_inline_data
    assert granted >= 60
    pair.post_receive()
    assert errno_raised_by(pair.send, bytes(granted + 1), flags=SendFlag.INLINE) == errno.EINVAL
    pair.send(bytes(granted), flags=SendFlag.INLINE)
    assert poll(pair.rcq)[0].byte_len == granted


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_one_sided_operations_are_refused_on_ud(ud_pair: Pair, opcode: WROpcode) -> None:
    wr = SendWR(1, opcode, sg=[ud_pair.out.sge(0, 1)], ah=ud_pair.to_b)
    assert errno_raised_by(ud_pair.a.post_send, wr) == errno.EINVAL


@pytest.mark.clause("DGRAM-UD-6")
def test_unknown_flags_and_opcodes_are_refused(ud_pair: Pair) -> None:
    wr = SendWR(1, sg=[ud_pair.out.sge(0, 1)], ah=ud_pair.to_b)
    for flags in (16, 32, 1 << 31):
        wr._c.send_flags = flags
        assert errno_raised_by(ud_pair.a.post_send, wr) == errno.EINVAL
    wr._c.send_flags = 0
    for opcode in (1, 5, 9, 10, 255, -1):
        wr._c.opcode = opcode
        assert ud_pair.a._c is not None
        from siwarp._siwarp import lib

        assert lib.siw_post_send(ud_pair.a._c, wr._c, ffi.NULL) == -errno.EINVAL


def test_more_elements_than_the_queue_pairs_maximum_are_refused(rig: Rig) -> None:
    pair = Pair(rig, max_send_sge=2, max_recv_sge=3)
    three = [pair.out.sge(i, 1) for i in range(3)]
    assert errno_raised_by(pair.a.post_send, SendWR(1, sg=three, ah=pair.to_b)) == errno.EINVAL
    four = [pair.into.sge(i, 1) for i in range(4)]
    assert errno_raised_by(pair.b.post_recv, RecvWR(1, sg=four)) == errno.EINVAL
    pair.b.post_recv(RecvWR(2, sg=four[:3]))
    pair.a.post_send(SendWR(1, sg=three[:2], ah=pair.to_b))
    assert poll(pair.rcq)[0].byte_len == 2


def test_a_full_receive_queue_refuses_another_receive(rig: Rig) -> None:
    qp = rig.create_qp(max_recv_wr=4)
    qp.to_init()
    room = qp.cap.max_recv_wr
    assert room >= 4
    qp.post_recv([RecvWR(i) for i in range(room)])
    with pytest.raises(OSError) as e:
        qp.post_recv(RecvWR(99))
    assert e.value.errno == errno.ENOMEM


# ---- addresses


def test_the_number_of_a_ud_queue_pair_is_its_port(rig: Rig) -> None:
    qp = rig.create_qp(addr=("127.0.0.1", 0))
    assert qp.addr == ("127.0.0.1", qp.qp_num) and qp.qp_num > 0
    assert qp.query()[1].addr == qp.addr


def test_a_requested_port_is_bound_and_a_port_in_use_is_refused(rig: Rig) -> None:
    port = net.find_unused_port()
    with net.open_udp_socket("127.0.0.1", port):
        assert errno_raised_by(rig.create_qp, addr=("127.0.0.1", port)) == errno.EADDRINUSE
    qp = rig.create_qp(addr=("127.0.0.1", port))
    assert qp.qp_num == port
    assert errno_raised_by(rig.create_qp, addr=("127.0.0.1", port)) == errno.EADDRINUSE
    qp.close()
    assert rig.create_qp(addr=("127.0.0.1", port)).qp_num == port


def test_binding_to_an_address_that_is_not_of_this_machine_is_refused(rig: Rig) -> None:
    assert errno_raised_by(rig.create_qp, addr=("198.51.100.77", 0)) == errno.EADDRNOTAVAIL


@pytest.mark.clause("DGRAM-UD-16")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_ud_queue_pair_adopts_a_bound_socket_of_the_program(rig: Rig, host: str) -> None:
    pair = Pair(rig, host=host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    mine = socket.socket(family, socket.SOCK_DGRAM)
    mine.bind((host, 0))
    port = mine.getsockname()[1]
    cq = rig.create_cq()
    qp = rig.create_qp(cq)
    first = qp.qp_num
    qp.to_init(QPAttr(fd=mine))
    assert (qp.qp_num, qp.addr) == (port, (host, port)) != (first, qp.addr)
    assert mine.fileno() == -1  # the queue pair has adopted the descriptor
    qp.post_recv(RecvWR(7, sg=[pair.into.sge(0, 10)]))
    qp.to_rts()
    pair.out.write(b"own")
    pair.a.post_send(SendWR(8, sg=[pair.out.sge(0, 3)], ah=rig.create_ah(qp)))
    (got,) = poll(cq)
    assert (got.wr_id, got.source, got.qp_num) == (7, pair.a.addr, port)
    # The queue pair's former port is free again, and the adopted port is free after the close.
    rig.create_qp(addr=("127.0.0.1", first)).close()
    qp.close()
    with socket.socket(family, socket.SOCK_DGRAM) as again:
        again.bind((host, port))


def test_a_descriptor_that_is_not_a_bound_udp_socket_is_refused_and_stays_open(rig: Rig) -> None:
    qp = rig.create_qp()
    number = qp.qp_num
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp:
        assert errno_raised_by(qp.to_init, QPAttr(fd=tcp)) == errno.EINVAL
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    assert errno_raised_by(qp.to_init, QPAttr(fd=1 << 20)) == errno.EBADF
    with Path("/dev/null").open() as file:
        assert errno_raised_by(qp.to_init, QPAttr(fd=file.fileno())) in (
            errno.ENOTSOCK,
            errno.EINVAL,
        )
    assert (qp.qp_num, qp.qp_state) == (number, QPState.RESET)


@pytest.mark.clause("DGRAM-UD-15", "DGRAM-UD-18")
def test_a_ud_send_to_a_closed_port_completes_without_error(rig: Rig, ud_pair: Pair) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        port = gone.getsockname()[1]
    nobody = rig.create_ah(("127.0.0.1", port))
    for i in range(3):  # ICMP reports that the port is unreachable
        ud_pair.a.post_send(SendWR(i, sg=[ud_pair.out.sge(0, 1)], ah=nobody))
        assert poll(ud_pair.scq)[0].ok
    ud_pair.post_receive()
    ud_pair.send(b"still here")
    assert poll(ud_pair.rcq)[0].ok and ud_pair.a.qp_state == QPState.RTS


def test_a_ud_send_to_another_address_family_completes_in_error(rig: Rig, ud_pair: Pair) -> None:
    with assert_counter_grows("send_errors", 1):
        ud_pair.a.post_send(SendWR(4, sg=[ud_pair.out.sge(0, 1)], ah=rig.create_ah(("::1", 5))))
        (wc,) = poll(ud_pair.scq)
    assert (wc.wr_id, wc.status, wc.vendor_err) == (4, WCStatus.GENERAL_ERR, 0)


@pytest.mark.clause("DGRAM-UD-5")
@pytest.mark.parametrize("asked", [OWN_QKEY, OWN_QKEY | 0x5555, 0xFFFFFFFF])
def test_the_top_bit_of_remote_qkey_selects_the_senders_own_q_key(rig: Rig, asked: int) -> None:
    cq = rig.create_cq()
    b = rig.create_ud_qp(cq, qkey=0x7777)
    a = rig.create_ud_qp(qkey=0x7777)
    b.post_recv(RecvWR(1))
    a.post_send(SendWR(2, ah=rig.create_ah(b), remote_qkey=asked))
    assert poll(cq)[0].ok


@pytest.mark.clause("DGRAM-UD-12")
def test_a_ud_message_longer_than_its_receive_consumes_it_and_writes_nothing(ud_pair: Pair) -> None:
    ud_pair.into.view[:] = b"\x55" * ud_pair.size
    ud_pair.post_receive(wr_id=1, length=10)
    ud_pair.post_receive(wr_id=2, length=11, offset=100)
    with assert_counter_grows("drop_too_long", 1):
        ud_pair.send(b"eleven octe")
        (wc,) = poll(ud_pair.rcq)
    assert (wc.wr_id, wc.status) == (1, WCStatus.LOC_LEN_ERR)
    assert set(ud_pair.into.read()) == {0x55}
    assert ud_pair.b.qp_state == QPState.RTS
    ud_pair.send(b"eleven octe")
    (wc,) = poll(ud_pair.rcq)
    assert (wc.wr_id, wc.ok, ud_pair.into.read(11, 100)) == (2, True, b"eleven octe")


@pytest.mark.parametrize("which", INVALID_SGE_KINDS)
def test_a_receive_with_an_invalid_key_completes_with_a_protection_error(
    ud_pair: Pair, which: str
) -> None:
    from siwarp.verbs import SGE

    b = ud_pair.rig.create_ud_qp(ud_pair.rcq, max_recv_sge=2)
    ud_pair.into.view[:] = b"\x55" * ud_pair.size
    b.post_recv(RecvWR(3, sg=[ud_pair.into.sge(0, 2), SGE(*make_invalid_sges(ud_pair)[which])]))
    ud_pair.a.post_send(SendWR(1, sg=[ud_pair.out.sge(0, 6)], ah=ud_pair.rig.create_ah(b)))
    (wc,) = poll(ud_pair.rcq)
    assert (wc.wr_id, wc.status) == (3, WCStatus.LOC_PROT_ERR)
    assert set(ud_pair.into.read()) == {0x55}


def test_a_receive_into_a_read_only_region_completes_with_a_protection_error(ud_pair: Pair) -> None:
    ro = ud_pair.rig.reg_mr(bytearray(8), 0)
    ud_pair.b.post_recv(RecvWR(3, sg=[ro.sge()]))
    ud_pair.send(b"data")
    (wc,) = poll(ud_pair.rcq)
    assert (wc.wr_id, wc.status, ro.read()) == (3, WCStatus.LOC_PROT_ERR, bytes(8))


def test_a_read_only_region_can_be_sent(ud_pair: Pair) -> None:
    ro = ud_pair.rig.reg_mr(b"constant", 0)
    ud_pair.post_receive()
    ud_pair.a.post_send(SendWR(3, sg=[ro.sge()], ah=ud_pair.to_b))
    assert poll(ud_pair.rcq)[0].ok and ud_pair.into.read(8) == b"constant"


def test_an_element_of_length_0_needs_no_memory_region(ud_pair: Pair) -> None:
    from siwarp.verbs import SGE

    a = ud_pair.rig.create_ud_qp(ud_pair.scq, max_send_sge=2)
    ud_pair.post_receive()
    a.post_send(SendWR(3, sg=[SGE(0, 0, 0), ud_pair.out.sge(0, 3)], ah=ud_pair.to_b))
    assert poll(ud_pair.scq)[0].ok
    assert poll(ud_pair.rcq)[0].byte_len == 3


def test_address_handles_of_another_pd_are_refused(rig: Rig, ud_pair: Pair) -> None:
    from siwarp.verbs import AH

    other = AH(PD(rig.ctx), ud_pair.b.addr)
    assert errno_raised_by(ud_pair.a.post_send, SendWR(1, ah=other)) == errno.EINVAL


def test_an_address_handle_begins_with_64_octets_for_the_caller_that_are_initially_zero(
    ud_pair: Pair,
) -> None:
    size = lib.SIW_AH_ROOM
    assert size == 64
    for n in range(3):  # later address handles may reuse the memory of the first
        ah = ud_pair.rig.create_ah(ud_pair.b)
        room = lib.siw_ah_room(ah._c)
        assert room == ffi.cast("void *", ah._c)
        whole = ffi.buffer(room, size)
        assert whole[:] == bytes(size)
        whole[:] = octet_pattern(size, n)
        ud_pair.post_receive()
        ud_pair.a.post_send(SendWR(n, ah=ah))
        assert poll(ud_pair.rcq)[0].ok and poll(ud_pair.scq)[0].ok
        assert whole[:] == octet_pattern(size, n)
        ah.close()
