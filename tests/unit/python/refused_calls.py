"""Calls that the library refuses, one for each reason code that a call can return."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.rc_harness import ListenerAndConnector
from harness.verbs_harness import temporary_settings
from unit.python import test_misuse_mw
from unit.python.misuse_harness import VerbsObjects

from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, CMEventChannel, ConnParam
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SGE,
    SRQ,
    AccessFlag,
    AHAttr,
    CompChannel,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    SrqAttr,
    WROpcode,
    arrays,
)

NULL = ffi.NULL
THERE = RemoteBuffer(0x1000, 8, 7)
PLAIN = AccessFlag.LOCAL_WRITE

Call = Callable[[VerbsObjects], object]


def parse_addr(host: str = "127.0.0.1", port: int = 9) -> Any:
    out = ffi.new("struct siw_addr *")
    assert lib.siw_addr_parse(host.encode(), port, out) == 0
    return out


def make_send_wr_struct(w: VerbsObjects, **members: Any) -> Any:
    """Return a send work request as a C struct that is not wrapped in a Python object."""
    wr = ffi.new("struct siw_send_wr *", {"opcode": WROpcode.SEND, **members})
    wr.wr.ud.ah = w.ah._c_object()
    return wr


def post_send_wr_struct(qp: QP, wr: Any) -> int:
    return int(lib.siw_post_send(qp._c_object(), wr, NULL))


def wait_interrupted_by_signal(w: VerbsObjects) -> object:
    """Interrupt a waiting C call with signals whose Python handler does nothing."""
    channel = CompChannel(w.ctx)
    out, context = ffi.new("struct siw_cq **"), ffi.new("void **")
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    stop = threading.Event()

    def send_signals_until_stopped() -> None:
        while not stop.wait(0.02):
            signal.pthread_kill(main, signal.SIGUSR1)

    knocking = threading.Thread(target=send_signals_until_stopped)
    knocking.start()
    try:
        return lib.siw_get_cq_event(channel._c_object(), out, context, 20000)
    finally:
        stop.set()
        knocking.join()
        signal.signal(signal.SIGUSR1, before)


def destroy_srq_twice(w: VerbsObjects) -> object:
    srq = SRQ(w.pd)
    c = srq._c_object()
    srq.close()
    return lib.siw_destroy_srq(c)


def deregister_mr_twice(w: VerbsObjects) -> object:
    memory = ffi.new("char[]", 64)
    mr = lib.siw_reg_mr(w.pd._c_object(), memory, 64, 1)
    assert lib.siw_dereg_mr(mr) == 0
    return lib.siw_dereg_mr(mr)


def share_socket_of_closed_qp(w: VerbsObjects) -> object:
    qp = w.make_ud_qp()
    c = qp._c_object()
    qp.close()
    init = ffi.new("struct siw_qp_init_attr *")
    init.send_cq = init.recv_cq = w.cq._c_object()
    init.qp_type, init.shared_socket_qp = QPType.UD, c
    return lib.siw_create_qp(w.pd._c_object(), init)


def create_qp_without_free_port(w: VerbsObjects) -> QP:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with temporary_settings(rc_port_first=port, rc_port_last=port):
            return w.make_rc_qp(by_qpn=True)


def send_from_other_address(w: VerbsObjects) -> object:
    ah = AH(w.pd, ("127.0.0.1", 9), source="127.0.0.1")
    qp = QP(w.pd, QPInitAttr(scq=w.cq, addr=("127.0.0.2", 0)))
    qp.to_rts(QPAttr(qkey=1))
    return qp.post_send(SendWR(sg=[w.sge], ah=ah))


def connect_uc_from_other_family(w: VerbsObjects) -> None:
    qp = QP(w.pd, QPInitAttr(QPType.UC, scq=w.cq, every_addr=True))
    qp.to_init(QPAttr(qkey=1))
    qp.to_rtr(QPAttr(ah_attr=AHAttr("127.0.0.1", 9, "::1")))


def set_fd_of_every_addr_qp(w: VerbsObjects) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        QP(w.pd, QPInitAttr(scq=w.cq, every_addr=True)).to_init(QPAttr(qkey=1, fd=s))


def exceed_qps_per_shared_socket(w: VerbsObjects) -> None:
    qps = [w.make_ud_qp(QPState.RESET)]
    for _ in range(256):
        qps.append(QP(w.pd, QPInitAttr(scq=w.cq, rcq=w.cq, shared_socket_qp=qps[0])))


def create_qp_in_multicast_group(w: VerbsObjects) -> Any:
    qp = w.make_ud_qp(QPState.RESET)
    qp.attach_mcast("239.192.7.77")
    return qp


def create_overflowed_cq(w: VerbsObjects) -> CQ:
    cq = CQ(w.ctx, 1)
    qp = w.rig.create_qp(cq)
    qp.to_init()
    qp.post_recv([RecvWR()] * 4)
    qp.modify(QPAttr(qp_state=QPState.ERR))
    return cq


def exceed_max_peers(w: VerbsObjects) -> None:
    qp = QP(w.pd, QPInitAttr(QPType.RD, scq=w.cq, max_peers=1))
    qp.to_rts()
    for port in (9, 10):
        qp.post_send(SendWR(sg=[w.sge], ah=AH(w.pd, ("127.0.0.1", port))))


def send_imm_without_mpa_announcement(w: VerbsObjects) -> None:
    with temporary_settings(mpa_announce=0):
        end = w.connect_endpoint()
    end.qp.post_send(SendWR(opcode=WROpcode.SEND_WITH_IMM, sg=[w.sge]))


def read_with_zero_read_depth(w: VerbsObjects) -> None:
    qp = w.rig.create_qp(w.cq, qp_type=QPType.RD)
    qp.to_rts(QPAttr(max_rd_atomic=0))
    qp.post_send(SendWR(opcode=WROpcode.RDMA_READ, sg=[w.sge], remote=THERE, ah=w.ah))


def set_excessive_read_depth_in_sqd(w: VerbsObjects) -> None:
    qp = w.connect_endpoint().qp
    qp.modify(QPAttr(qp_state=QPState.SQD))
    qp.modify(QPAttr(max_rd_atomic=1000))


def connect_pair_and_move_one_to_sqd(w: VerbsObjects) -> tuple[Any, MR]:
    both = ListenerAndConnector(w.rig, w.other).connect()
    both[0].qp.modify(QPAttr(qp_state=QPState.SQD))
    mr = w.rig.reg_mr(64, PLAIN | AccessFlag.MW_BIND)
    return both, mr


def deregister_mr_of_posted_send(w: VerbsObjects) -> object:
    both, mr = connect_pair_and_move_one_to_sqd(w)
    both[0].qp.post_send(SendWR(sg=[mr.sge()]))
    return lib.siw_dereg_mr(mr._c_object())


def deregister_bound_mr(w: VerbsObjects) -> object:
    both, mr = connect_pair_and_move_one_to_sqd(w)
    MW(w.pd).bind(both[0].qp, mr)
    return lib.siw_dereg_mr(mr._c_object())


def destroy_ah_of_posted_send(w: VerbsObjects) -> object:
    qp = w.make_ud_qp()
    qp.modify(QPAttr(qp_state=QPState.SQD))
    qp.post_send(w.make_send_wr())
    return lib.siw_destroy_ah(w.ah._c_object())


def shrink_full_srq(w: VerbsObjects) -> None:
    srq = SRQ(w.pd, SrqAttr(max_wr=8))
    srq.post_recv([RecvWR(n) for n in range(8)])
    srq.modify(SrqAttr(max_wr=4), 1)


def create_cm_id_with_qp(w: VerbsObjects) -> CMID:
    cm_id = w.make_cm_id()
    cm_id.bind_qp(w.make_rc_qp())
    return cm_id


def create_listening_cm_id(w: VerbsObjects) -> CMID:
    cm_id = w.make_cm_id()
    cm_id.listen(("127.0.0.1", 0))
    return cm_id


def connect_with_long_private_data(w: VerbsObjects) -> None:
    cm_id = CMID(CMEventChannel(w.ctx), ud=True)
    cm_id.connect(("127.0.0.1", 9), ConnParam(private_data=b"x" * 181))


def accept_with_qp_in_err(w: VerbsObjects) -> None:
    listener, asking = CMEventChannel(w.ctx), CMEventChannel(w.other.ctx)
    door = CMID(listener)
    door.listen(("127.0.0.1", 0))
    caller = CMID(asking)
    caller.bind_qp(w.other.create_qp(qp_type=QPType.RC))
    caller.connect(door.local_addr)
    event = listener.get_event(20)
    assert event is not None
    qp = w.make_rc_qp()
    event.id.bind_qp(qp)
    qp.modify(QPAttr(qp_state=QPState.ERR))
    event.id.accept()


def make_connect_function(**param: Any) -> Call:
    return lambda w: create_cm_id_with_qp(w).connect(("127.0.0.1", 9), ConnParam(**param))


def modify_qp_with_attr_struct(qp: QP, mask: int, **members: Any) -> int:
    attr = ffi.new("struct siw_qp_attr *", members)
    return int(lib.siw_modify_qp(qp._c_object(), attr, mask))


def create_uc_qp_in_init(w: VerbsObjects) -> QP:
    qp = w.rig.create_qp(w.cq, qp_type=QPType.UC)
    qp.to_init()
    return qp


def create_uc_qp_in_rts(w: VerbsObjects) -> QP:
    qp = create_uc_qp_in_init(w)
    qp.to_rts(QPAttr(ah_attr=("127.0.0.1", 9)))
    return qp


def pass_unbound_socket(w: VerbsObjects) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        w.make_ud_qp(QPState.RESET).modify(QPAttr(qp_state=QPState.INIT, fd=s))


def pass_bound_socket(w: VerbsObjects, qp: QP) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        qp.modify(QPAttr(qp_state=QPState.INIT, fd=s))


def create_qp_with_shared_socket(w: VerbsObjects) -> QP:
    first = w.make_ud_qp(QPState.RESET)
    QP(w.pd, QPInitAttr(scq=w.cq, rcq=w.cq, shared_socket_qp=first))._keep = (first,)
    return first


def make_function_starting_two_captures(tmp: Path) -> Call:
    def start_two_captures(_: VerbsObjects) -> object:
        assert lib.siw_capture_start(str(tmp / "one.pcapng").encode()) == 0
        rc = lib.siw_capture_start(str(tmp / "two.pcapng").encode())
        lib.siw_capture_stop()
        return rc

    return start_two_captures


def attach_mcast_with_port_taken(w: VerbsObjects) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("", lib.siw_setting_value(setting_index("mcast_port"))))
        w.make_ud_qp().attach_mcast("239.192.7.78")


def setting_index(name: str) -> int:
    names = [ffi.string(lib.siw_setting_name(i)) for i in range(lib.siw_settings_count())]
    return names.index(name.encode())


def list_misuse_of_devices(tmp: Path) -> list[Call]:
    """Return refused calls that concern devices, protection domains, captures and addresses."""
    return [
        lambda _: lib.siw_alloc_pd(NULL),
        destroy_srq_twice,
        lambda w: lib.siw_poll_cq(w.cq._c_object(), -1, NULL),
        lambda w: w.make_rc_qp().modify(QPAttr(rnr_retry=8)),
        lambda w: lib.siw_get_cq_event(
            CompChannel(w.ctx)._c_object(), ffi.new("struct siw_cq **"), NULL, 0
        ),
        wait_interrupted_by_signal,
        lambda _: lib.siw_open_device_by_addr(parse_addr("192.0.2.1")),
        lambda w: lib.siw_close_device(w.ctx._c_object()),
        lambda _: lib.siw_faults_set(b"loss=banana"),
        make_function_starting_two_captures(tmp),
        lambda _: lib.siw_capture_start(b"/dev/null"),
        lambda _: lib.siw_addr_parse(b"no address", 1, ffi.new("struct siw_addr *")),
        lambda w: lib.siw_create_ah(w.pd._c_object(), ffi.new("struct siw_addr *")),
        lambda w: (w.make_ud_qp(), lib.siw_dealloc_pd(w.pd._c_object())),
        lambda _: lib.siw_capture_start(b"/nowhere/at/all"),
    ]


def list_refused_memory_calls() -> list[Call]:
    """Return refused calls that concern memory regions and windows."""
    return [
        lambda w: lib.siw_reg_mr(w.pd._c_object(), ffi.cast("void *", 4096), (1 << 63) + 4096, 0),
        lambda w: lib.siw_reg_mr(w.pd._c_object(), ffi.cast("void *", (1 << 64) - 4096), 8192, 0),
        lambda w: lib.siw_reg_mr(w.pd._c_object(), ffi.cast("void *", 4096), 8, 0),
        lambda w: MR(w.pd, 8, PLAIN | AccessFlag.ZERO_BASED, iova=8),
        lambda w: MR(
            w.pd, 8, PLAIN | AccessFlag.REMOTE_INVALIDATE | AccessFlag.MW_BIND, qp=w.make_rc_qp()
        ),
        lambda w: lib.siw_reg_mr_qp(w.make_ud_qp()._c_object(), ffi.new("char[8]"), 8, 0),
        deregister_mr_of_posted_send,
        deregister_bound_mr,
        deregister_mr_twice,
        lambda w: (lambda mr: mr.rereg(pd=PD(w.ctx)))(MR(w.pd, 8, qp=w.make_rc_qp())),
        lambda w: (lambda held: lib.siw_dealloc_mw(held[0]._c_object()))(
            test_misuse_mw.post_bind_in_sqd(w)
        ),
        destroy_ah_of_posted_send,
    ]


def refused_calls_of_queues() -> list[Call]:
    """Return refused calls that concern completion queues and shared receive queues."""
    return [
        lambda w: (
            lambda ch: (CQ(w.ctx, channel=ch), lib.siw_destroy_comp_channel(ch._c_object()))
        )(CompChannel(w.ctx)),
        lambda w: CQ(w.ctx, comp_vector=w.ctx.num_comp_vectors),
        lambda w: (w.make_ud_qp(), lib.siw_destroy_cq(w.cq._c_object())),
        lambda w: (lambda cq: (fill_cq(w, cq), cq.resize(1)))(CQ(w.ctx, 8)),
        lambda w: (lambda cq: QP(w.pd, QPInitAttr(scq=cq)))(create_overflowed_cq(w)),
        lambda w: SRQ(w.pd).modify(SrqAttr(srq_limit=1000)),
        lambda w: SRQ(w.pd).modify(SrqAttr(max_wr=5), 4),
        shrink_full_srq,
        lambda w: (
            lambda srq: (
                QP(w.pd, QPInitAttr(scq=w.cq, srq=srq)),
                lib.siw_destroy_srq(srq._c_object()),
            )
        )(SRQ(w.pd)),
        lambda w: SRQ(w.pd, SrqAttr(1)).post_recv([RecvWR()] * 2),
        lambda w: SRQ(w.pd, SrqAttr(1)).post_recv(RecvWR(sg=[w.sge] * 3)),
    ]


def list_misuse_of_queue_pairs() -> list[Call]:
    """Return refused calls that create queue pairs or choose their sockets."""
    return [
        lambda w: QP(w.pd, QPInitAttr(QPType.RC, scq=w.cq, max_write_records=8)),
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, error_policy=9)),
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, error_policy="error", qkey=0)).to_init(),
        lambda w: lib.siw_create_qp(
            w.pd._c_object(), ffi.new("struct siw_qp_init_attr *", {"qp_type": QPType.UD})
        ),
        lambda w: QP(w.pd, QPInitAttr(QPType.RC, scq=w.cq, shared_socket_qp=w.make_ud_qp())),
        lambda w: QP(
            w.pd, QPInitAttr(scq=w.cq, shared_socket_qp=w.make_ud_qp(), addr=("127.0.0.1", 0))
        ),
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, shared_socket_qp=w.make_ud_qp(), crc=False)),
        share_socket_of_closed_qp,
        exceed_qps_per_shared_socket,
        send_from_other_address,
        connect_uc_from_other_family,
        set_fd_of_every_addr_qp,
        create_qp_without_free_port,
    ]


def list_misuse_of_states() -> list[Call]:
    """Return refused calls that change the state of queue pairs."""
    return [
        lambda w: (lambda qp: lib.siw_destroy_qp(qp._c_object()))(create_qp_in_multicast_group(w)),
        lambda w: (lambda qp: qp.modify(QPAttr(qp_state=QPState.INIT)))(
            (lambda q: (q.modify(QPAttr(qp_state=QPState.ERR)), q)[1])(w.make_ud_qp())
        ),
        set_excessive_read_depth_in_sqd,
        lambda w: modify_qp_with_attr_struct(
            create_uc_qp_in_init(w), 1 | 128 | 256, qp_state=2, path_mtu=255
        ),
        pass_unbound_socket,
        lambda w: pass_bound_socket(w, create_qp_with_shared_socket(w)),
        lambda w: pass_bound_socket(w, create_qp_in_multicast_group(w)),
        lambda w: create_uc_qp_in_init(w).modify(QPAttr(qp_state=QPState.RTR)),
        lambda w: create_uc_qp_in_init(w).modify(
            QPAttr(qp_state=QPState.RTR, ah_attr=("127.0.0.1", 0))
        ),
        lambda w: create_uc_qp_in_init(w).modify(QPAttr(qp_state=QPState.RTR, ah_attr=("::1", 9))),
    ]


def list_refused_multicast_calls() -> list[Call]:
    """Return refused calls that concern multicast groups, Write-Records and queries of peers."""
    return [
        lambda w: w.make_rc_qp().attach_mcast("239.192.7.77"),
        lambda w: w.make_ud_qp().attach_mcast("127.0.0.1"),
        lambda w: w.make_ud_qp().attach_mcast("ff02::7"),
        lambda w: w.make_ud_qp().detach_mcast("239.192.7.77"),
        attach_mcast_with_port_taken,
        lambda w: w.make_rc_qp().drops(),
        lambda w: lib.siw_query_record(w.make_ud_qp()._c_object(), 0, NULL, NULL, 0),
        lambda w: lib.siw_query_record(w.make_ud_qp()._c_object(), 5, NULL, NULL, 0),
        exceed_max_peers,
    ]


def post_array(w: VerbsObjects, **fields: int) -> None:
    """Post an array of one UD Send; the fields have these values."""
    wrs = arrays.send_array(1)
    for name, value in fields.items():
        wrs[name] = value
    w.make_ud_qp().post_send_array(wrs, arrays.AHList([w.ah]))


def list_misuse_of_requests() -> list[Call]:
    """Return refused calls that post work requests."""
    return [
        lambda w: post_send_wr_struct(w.make_ud_qp(), make_send_wr_struct(w, num_sge=1)),
        lambda w: create_uc_qp_in_rts(w).post_send(SendWR(opcode=WROpcode.RDMA_READ, remote=THERE)),
        lambda w: create_rd_qp_in_rts(w).post_send(w.make_send_wr(opcode=WROpcode.LOCAL_INV)),
        lambda w: w.connect_endpoint().qp.post_send(SendWR(opcode=WROpcode.RDMA_WRITE_RECORD)),
        lambda w: create_rd_qp_in_rts(w).post_send(SendWR(sg=[w.sge])),
        lambda w: w.make_ud_qp().post_send(SendWR(opcode=WROpcode.RDMA_WRITE_RECORD, remote=THERE)),
        lambda w: w.make_ud_qp().post_send(
            SendWR(
                opcode=WROpcode.RDMA_WRITE_RECORD,
                remote=THERE,
                ah=AH(w.pd, ("239.192.7.77", 0)),
            )
        ),
        read_with_zero_read_depth,
        lambda w: w.connect_endpoint(max_send_sge=2).qp.post_send(
            SendWR(opcode=WROpcode.ATOMIC_FETCH_AND_ADD, sg=[w.mr.sge(0, 4)], remote=THERE)
        ),
        send_imm_without_mpa_announcement,
        lambda w: post_array(w, opcode=WROpcode.BIND_MW),
        lambda w: post_array(w, send_flags=SendFlag.INLINE),
        lambda w: post_array(w, ah=1),
        lambda w: w.make_ud_qp(max_inline_data=0).post_send(
            w.make_send_wr(sg=[SGE(w.mr.addr, 8, w.mr.lkey)], send_flags=SendFlag.INLINE)
        ),
    ]


def list_misuse_of_connections() -> list[Call]:
    """Return refused calls on connection identifiers."""
    return [
        lambda w: (lambda e: (CMID(e), lib.siw_cm_destroy_channel(e._c_object())))(
            CMEventChannel(w.ctx)
        ),
        lambda w: create_cm_id_with_qp(w).bind_qp(w.make_rc_qp()),
        lambda w: create_listening_cm_id(w).bind_qp(w.make_rc_qp()),
        lambda w: create_cm_id_with_qp(w).listen(("127.0.0.1", 0)),
        accept_with_qp_in_err,
        make_connect_function(private_data=b"x" * 509),
        make_connect_function(rev=1, peer_to_peer=1),
        make_connect_function(peer_to_peer=64),
        make_connect_function(initiator_depth=1000),
        lambda w: create_listening_cm_id(w).listen(("127.0.0.1", 0)),
        lambda w: w.make_cm_id().establish(),
        connect_with_long_private_data,
        lambda w: CMID(CMEventChannel()).listen(("127.0.0.1", 0)),
        lambda w: create_listening_cm_id(w).set_device(w.other.ctx),
        lambda w: w.make_cm_id().migrate(CMEventChannel(w.other.ctx)),
    ]


def list_refused_calls(tmp: Path) -> list[Call]:
    """Return refused calls other than those in test_misuse and test_misuse_mw."""
    of_objects = (
        list_refused_memory_calls()
        + refused_calls_of_queues()
        + list_misuse_of_queue_pairs()
        + list_misuse_of_states()
    )
    return (
        list_misuse_of_devices(tmp)
        + of_objects
        + list_refused_multicast_calls()
        + list_misuse_of_requests()
        + list_misuse_of_connections()
    )


def fill_cq(w: VerbsObjects, cq: CQ) -> None:
    qp = w.rig.create_qp(cq)
    qp.to_init()
    qp.post_recv([RecvWR()] * 4)
    qp.modify(QPAttr(qp_state=QPState.ERR))


def create_rd_qp_in_rts(w: VerbsObjects) -> QP:
    qp = w.rig.create_qp(w.cq, qp_type=QPType.RD)
    qp.to_rts()
    return qp
