"""Calls that the library refuses: one for each reason code that a call can return."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.rc_harness import Wire
from harness.verbs_harness import settings
from unit.python import test_misuse_mw
from unit.python.misuse_harness import World

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
)

NULL = ffi.NULL
THERE = RemoteBuffer(0x1000, 8, 7)
PLAIN = AccessFlag.LOCAL_WRITE

Call = Callable[[World], object]


def addr(host: str = "127.0.0.1", port: int = 9) -> Any:
    out = ffi.new("struct siw_addr *")
    assert lib.siw_addr_parse(host.encode(), port, out) == 0
    return out


def send_wr(w: World, **members: Any) -> Any:
    """Return a work request as the C struct, not wrapped in a Python object."""
    wr = ffi.new("struct siw_send_wr *", {"opcode": WROpcode.SEND, **members})
    wr.wr.ud.ah = w.ah._live()
    return wr


def post(qp: QP, wr: Any) -> int:
    return int(lib.siw_post_send(qp._live(), wr, NULL))


def interrupted(w: World) -> object:
    """Interrupt a waiting C call with a signal whose Python handler does nothing."""
    channel = CompChannel(w.ctx)
    out, context = ffi.new("struct siw_cq **"), ffi.new("void **")
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    stop = threading.Event()

    def knock() -> None:
        while not stop.wait(0.02):
            signal.pthread_kill(main, signal.SIGUSR1)

    knocking = threading.Thread(target=knock)
    knocking.start()
    try:
        return lib.siw_get_cq_event(channel._live(), out, context, 20000)
    finally:
        stop.set()
        knocking.join()
        signal.signal(signal.SIGUSR1, before)


def destroyed(w: World) -> object:
    srq = SRQ(w.pd)
    c = srq._live()
    srq.close()
    return lib.siw_destroy_srq(c)


def gone_region(w: World) -> object:
    memory = ffi.new("char[]", 64)
    mr = lib.siw_reg_mr(w.pd._live(), memory, 64, 1)
    assert lib.siw_dereg_mr(mr) == 0
    return lib.siw_dereg_mr(mr)


def share_of_closed(w: World) -> object:
    qp = w.ud()
    c = qp._live()
    qp.close()
    init = ffi.new("struct siw_qp_init_attr *")
    init.send_cq = init.recv_cq = w.cq._live()
    init.qp_type, init.shared_socket_qp = QPType.UD, c
    return lib.siw_create_qp(w.pd._live(), init)


def no_port(w: World) -> QP:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with settings(rc_port_first=port, rc_port_last=port):
            return w.rc(by_qpn=True)


def elsewhere(w: World) -> object:
    ah = AH(w.pd, ("127.0.0.1", 9), source="127.0.0.1")
    qp = QP(w.pd, QPInitAttr(scq=w.cq, addr=("127.0.0.2", 0)))
    qp.to_rts(QPAttr(qkey=1))
    return qp.post_send(SendWR(sg=[w.sge], ah=ah))


def uc_elsewhere(w: World) -> None:
    qp = QP(w.pd, QPInitAttr(QPType.UC, scq=w.cq, every_addr=True))
    qp.to_init(QPAttr(qkey=1))
    qp.to_rtr(QPAttr(ah_attr=AHAttr("127.0.0.1", 9, "::1")))


def every_fd(w: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        QP(w.pd, QPInitAttr(scq=w.cq, every_addr=True)).to_init(QPAttr(qkey=1, fd=s))


def full_socket(w: World) -> None:
    qps = [w.ud(QPState.RESET)]
    for _ in range(256):
        qps.append(QP(w.pd, QPInitAttr(scq=w.cq, rcq=w.cq, shared_socket_qp=qps[0])))


def in_a_group(w: World) -> Any:
    qp = w.ud(QPState.RESET)
    qp.attach_mcast("239.192.7.77")
    return qp


def overflown(w: World) -> CQ:
    cq = CQ(w.ctx, 1)
    qp = w.rig.qp(cq)
    qp.to_init()
    qp.post_recv([RecvWR()] * 4)
    qp.modify(QPAttr(qp_state=QPState.ERR))
    return cq


def many_peers(w: World) -> None:
    qp = QP(w.pd, QPInitAttr(QPType.RD, scq=w.cq, max_peers=1))
    qp.to_rts()
    for port in (9, 10):
        qp.post_send(SendWR(sg=[w.sge], ah=AH(w.pd, ("127.0.0.1", port))))


def imm_to_anybody(w: World) -> None:
    with settings(mpa_announce=0):
        end = w.connected()
    end.qp.post_send(SendWR(opcode=WROpcode.SEND_WITH_IMM, sg=[w.sge]))


def no_reads_on_rd(w: World) -> None:
    qp = w.rig.qp(w.cq, qp_type=QPType.RD)
    qp.to_rts(QPAttr(max_rd_atomic=0))
    qp.post_send(SendWR(opcode=WROpcode.RDMA_READ, sg=[w.sge], remote=THERE, ah=w.ah))


def outstanding(w: World) -> None:
    qp = w.connected().qp
    qp.modify(QPAttr(qp_state=QPState.SQD))
    qp.modify(QPAttr(max_rd_atomic=1000))


def in_sqd(w: World) -> tuple[Any, MR]:
    both = Wire(w.rig, w.other).connect()
    both[0].qp.modify(QPAttr(qp_state=QPState.SQD))
    mr = w.rig.mr(64, PLAIN | AccessFlag.MW_BIND)
    return both, mr


def region_in_use(w: World) -> object:
    both, mr = in_sqd(w)
    both[0].qp.post_send(SendWR(sg=[mr.sge()]))
    return lib.siw_dereg_mr(mr._live())


def bound_region(w: World) -> object:
    both, mr = in_sqd(w)
    MW(w.pd).bind(both[0].qp, mr)
    return lib.siw_dereg_mr(mr._live())


def handle_in_use(w: World) -> object:
    qp = w.ud()
    qp.modify(QPAttr(qp_state=QPState.SQD))
    qp.post_send(w.send())
    return lib.siw_destroy_ah(w.ah._live())


def small_srq(w: World) -> None:
    srq = SRQ(w.pd, SrqAttr(max_wr=8))
    srq.post_recv([RecvWR(n) for n in range(8)])
    srq.modify(SrqAttr(max_wr=4), 1)


def taken_id(w: World) -> CMID:
    cm_id = w.id()
    cm_id.bind_qp(w.rc())
    return cm_id


def listening(w: World) -> CMID:
    cm_id = w.id()
    cm_id.listen(("127.0.0.1", 0))
    return cm_id


def ask_too_much(w: World) -> None:
    cm_id = CMID(CMEventChannel(w.ctx), ud=True)
    cm_id.connect(("127.0.0.1", 9), ConnParam(private_data=b"x" * 181))


def accepted_in_err(w: World) -> None:
    listener, asking = CMEventChannel(w.ctx), CMEventChannel(w.other.ctx)
    door = CMID(listener)
    door.listen(("127.0.0.1", 0))
    caller = CMID(asking)
    caller.bind_qp(w.other.qp(qp_type=QPType.RC))
    caller.connect(door.local_addr)
    event = listener.get_event(20)
    assert event is not None
    qp = w.rc()
    event.id.bind_qp(qp)
    qp.modify(QPAttr(qp_state=QPState.ERR))
    event.id.accept()


def connect(**param: Any) -> Call:
    return lambda w: taken_id(w).connect(("127.0.0.1", 9), ConnParam(**param))


def c_modify(qp: QP, mask: int, **members: Any) -> int:
    attr = ffi.new("struct siw_qp_attr *", members)
    return int(lib.siw_modify_qp(qp._live(), attr, mask))


def uc(w: World) -> QP:
    qp = w.rig.qp(w.cq, qp_type=QPType.UC)
    qp.to_init()
    return qp


def uc_ready(w: World) -> QP:
    qp = uc(w)
    qp.to_rts(QPAttr(ah_attr=("127.0.0.1", 9)))
    return qp


def unbound_socket(w: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        w.ud(QPState.RESET).modify(QPAttr(qp_state=QPState.INIT, fd=s))


def bound_socket(w: World, qp: QP) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        qp.modify(QPAttr(qp_state=QPState.INIT, fd=s))


def sharing(w: World) -> QP:
    first = w.ud(QPState.RESET)
    QP(w.pd, QPInitAttr(scq=w.cq, rcq=w.cq, shared_socket_qp=first))._keep = (first,)
    return first


def second_capture(tmp: Path) -> Call:
    def call(_: World) -> object:
        assert lib.siw_capture_start(str(tmp / "one.pcapng").encode()) == 0
        rc = lib.siw_capture_start(str(tmp / "two.pcapng").encode())
        lib.siw_capture_stop()
        return rc

    return call


def group_port(w: World) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("", lib.siw_setting_value(setting("mcast_port"))))
        w.ud().attach_mcast("239.192.7.78")


def setting(name: str) -> int:
    names = [ffi.string(lib.siw_setting_name(i)) for i in range(lib.siw_settings_count())]
    return names.index(name.encode())


def of_devices(tmp: Path) -> list[Call]:
    """Devices, protection domains, captures, addresses."""
    return [
        lambda _: lib.siw_alloc_pd(NULL),
        destroyed,
        lambda w: lib.siw_poll_cq(w.cq._live(), -1, NULL),
        lambda w: w.rc().modify(QPAttr(rnr_retry=8)),
        lambda w: lib.siw_get_cq_event(
            CompChannel(w.ctx)._live(), ffi.new("struct siw_cq **"), NULL, 0
        ),
        interrupted,
        lambda _: lib.siw_open_device_by_addr(addr("192.0.2.1")),
        lambda w: lib.siw_close_device(w.ctx._live()),
        lambda _: lib.siw_faults_set(b"loss=banana"),
        second_capture(tmp),
        lambda _: lib.siw_capture_start(b"/dev/null"),
        lambda _: lib.siw_addr_parse(b"no address", 1, ffi.new("struct siw_addr *")),
        lambda w: lib.siw_create_ah(w.pd._live(), ffi.new("struct siw_addr *")),
        lambda w: (w.ud(), lib.siw_dealloc_pd(w.pd._live())),
        lambda _: lib.siw_capture_start(b"/nowhere/at/all"),
    ]


def of_memory() -> list[Call]:
    """Regions and windows."""
    return [
        lambda w: lib.siw_reg_mr(w.pd._live(), ffi.cast("void *", 4096), (1 << 63) + 4096, 0),
        lambda w: lib.siw_reg_mr(w.pd._live(), ffi.cast("void *", (1 << 64) - 4096), 8192, 0),
        lambda w: lib.siw_reg_mr(w.pd._live(), ffi.cast("void *", 4096), 8, 0),
        lambda w: MR(w.pd, 8, PLAIN | AccessFlag.ZERO_BASED, iova=8),
        lambda w: MR(w.pd, 8, PLAIN | AccessFlag.REMOTE_INVALIDATE | AccessFlag.MW_BIND, qp=w.rc()),
        lambda w: lib.siw_reg_mr_qp(w.ud()._live(), ffi.new("char[8]"), 8, 0),
        region_in_use,
        bound_region,
        gone_region,
        lambda w: (lambda mr: mr.rereg(pd=PD(w.ctx)))(MR(w.pd, 8, qp=w.rc())),
        lambda w: (lambda held: lib.siw_dealloc_mw(held[0]._live()))(test_misuse_mw.posted(w)),
        handle_in_use,
    ]


def of_queues() -> list[Call]:
    """Completion queues and shared receive queues."""
    return [
        lambda w: (lambda ch: (CQ(w.ctx, channel=ch), lib.siw_destroy_comp_channel(ch._live())))(
            CompChannel(w.ctx)
        ),
        lambda w: CQ(w.ctx, comp_vector=1),
        lambda w: (w.ud(), lib.siw_destroy_cq(w.cq._live())),
        lambda w: (lambda cq: (filled(w, cq), cq.resize(1)))(CQ(w.ctx, 8)),
        lambda w: (lambda cq: QP(w.pd, QPInitAttr(scq=cq)))(overflown(w)),
        lambda w: SRQ(w.pd).modify(SrqAttr(srq_limit=1000)),
        lambda w: SRQ(w.pd).modify(SrqAttr(max_wr=5), 4),
        small_srq,
        lambda w: (
            lambda srq: (QP(w.pd, QPInitAttr(scq=w.cq, srq=srq)), lib.siw_destroy_srq(srq._live()))
        )(SRQ(w.pd)),
        lambda w: SRQ(w.pd, SrqAttr(1)).post_recv([RecvWR()] * 2),
        lambda w: SRQ(w.pd, SrqAttr(1)).post_recv(RecvWR(sg=[w.sge] * 3)),
    ]


def of_queue_pairs() -> list[Call]:
    """Creating queue pairs, and choosing their sockets."""
    return [
        lambda w: QP(w.pd, QPInitAttr(QPType.RC, scq=w.cq, max_write_records=8)),
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, error_policy=9)),
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, error_policy="error", qkey=0)).to_init(),
        lambda w: lib.siw_create_qp(
            w.pd._live(), ffi.new("struct siw_qp_init_attr *", {"qp_type": QPType.UD})
        ),
        lambda w: QP(w.pd, QPInitAttr(QPType.RC, scq=w.cq, shared_socket_qp=w.ud())),
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, shared_socket_qp=w.ud(), addr=("127.0.0.1", 0))),
        lambda w: QP(w.pd, QPInitAttr(scq=w.cq, shared_socket_qp=w.ud(), crc=False)),
        share_of_closed,
        full_socket,
        elsewhere,
        uc_elsewhere,
        every_fd,
        no_port,
    ]


def of_states() -> list[Call]:
    """State transitions of queue pairs."""
    return [
        lambda w: (lambda qp: lib.siw_destroy_qp(qp._live()))(in_a_group(w)),
        lambda w: (lambda qp: qp.modify(QPAttr(qp_state=QPState.INIT)))(
            (lambda q: (q.modify(QPAttr(qp_state=QPState.ERR)), q)[1])(w.ud())
        ),
        outstanding,
        lambda w: c_modify(uc(w), 1 | 128 | 256, qp_state=2, path_mtu=255),
        unbound_socket,
        lambda w: bound_socket(w, sharing(w)),
        lambda w: bound_socket(w, in_a_group(w)),
        lambda w: uc(w).modify(QPAttr(qp_state=QPState.RTR)),
        lambda w: uc(w).modify(QPAttr(qp_state=QPState.RTR, ah_attr=("127.0.0.1", 0))),
        lambda w: uc(w).modify(QPAttr(qp_state=QPState.RTR, ah_attr=("::1", 9))),
    ]


def of_groups_and_records() -> list[Call]:
    """Multicast groups, Write-Records, and queries of lost peers."""
    return [
        lambda w: w.rc().attach_mcast("239.192.7.77"),
        lambda w: w.ud().attach_mcast("127.0.0.1"),
        lambda w: w.ud().attach_mcast("ff02::7"),
        lambda w: w.ud().detach_mcast("239.192.7.77"),
        group_port,
        lambda w: w.rc().drops(),
        lambda w: lib.siw_query_record(w.ud()._live(), 0, NULL, NULL, 0),
        lambda w: lib.siw_query_record(w.ud()._live(), 5, NULL, NULL, 0),
        many_peers,
    ]


def of_requests() -> list[Call]:
    """Work requests."""
    return [
        lambda w: post(w.ud(), send_wr(w, num_sge=1)),
        lambda w: uc_ready(w).post_send(SendWR(opcode=WROpcode.RDMA_READ, remote=THERE)),
        lambda w: rd(w).post_send(w.send(opcode=WROpcode.LOCAL_INV)),
        lambda w: w.connected().qp.post_send(SendWR(opcode=WROpcode.RDMA_WRITE_RECORD)),
        lambda w: rd(w).post_send(SendWR(sg=[w.sge])),
        lambda w: w.ud().post_send(SendWR(opcode=WROpcode.RDMA_WRITE_RECORD, remote=THERE)),
        lambda w: w.ud().post_send(
            SendWR(
                opcode=WROpcode.RDMA_WRITE_RECORD,
                remote=THERE,
                ah=AH(w.pd, ("239.192.7.77", 0)),
            )
        ),
        no_reads_on_rd,
        lambda w: w.connected(max_send_sge=2).qp.post_send(
            SendWR(opcode=WROpcode.ATOMIC_FETCH_AND_ADD, sg=[w.mr.sge(0, 4)], remote=THERE)
        ),
        imm_to_anybody,
        lambda w: w.ud(max_inline_data=0).post_send(
            w.send(sg=[SGE(w.mr.addr, 8, w.mr.lkey)], send_flags=SendFlag.INLINE)
        ),
    ]


def of_connections() -> list[Call]:
    """Connection identifiers."""
    return [
        lambda w: (lambda e: (CMID(e), lib.siw_cm_destroy_channel(e._live())))(
            CMEventChannel(w.ctx)
        ),
        lambda w: taken_id(w).bind_qp(w.rc()),
        lambda w: listening(w).bind_qp(w.rc()),
        lambda w: taken_id(w).listen(("127.0.0.1", 0)),
        accepted_in_err,
        connect(private_data=b"x" * 509),
        connect(rev=1, peer_to_peer=1),
        connect(peer_to_peer=64),
        connect(initiator_depth=1000),
        lambda w: listening(w).listen(("127.0.0.1", 0)),
        lambda w: w.id().establish(),
        ask_too_much,
        lambda w: CMID(CMEventChannel()).listen(("127.0.0.1", 0)),
        lambda w: listening(w).set_device(w.other.ctx),
        lambda w: w.id().migrate(CMEventChannel(w.other.ctx)),
    ]


def rows(tmp: Path) -> list[Call]:
    """Return calls that are refused, in addition to those of test_misuse and test_misuse_mw."""
    of_objects = of_memory() + of_queues() + of_queue_pairs() + of_states()
    return of_devices(tmp) + of_objects + of_groups_and_records() + of_requests() + of_connections()


def filled(w: World, cq: CQ) -> None:
    qp = w.rig.qp(cq)
    qp.to_init()
    qp.post_recv([RecvWR()] * 4)
    qp.modify(QPAttr(qp_state=QPState.ERR))


def rd(w: World) -> QP:
    qp = w.rig.qp(w.cq, qp_type=QPType.RD)
    qp.to_rts()
    return qp
