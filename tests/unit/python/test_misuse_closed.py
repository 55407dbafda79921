"""Calls on closed objects and calls with invalid C arguments, which return errors."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from harness.rc_harness import End
from harness.verbs_harness import poll
from hostile.vanishing import PAGE, RemovableMemory
from unit.python.misuse_harness import VerbsObjects

import siwarp
from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SGE,
    SRQ,
    CompChannel,
    Context,
    MWBind,
    MWBindInfo,
    QPAttr,
    QPAttrMask,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    WCStatus,
    WROpcode,
)

EINVAL, ENOMEM, EBUSY, EBADF = errno.EINVAL, errno.ENOMEM, errno.EBUSY, errno.EBADF
SEND, WRITE, READ = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ
State, Limit, Plain = siwarp.StateError, siwarp.LimitError, siwarp.Error


# ---- all methods of closed objects


Handles = dict[str, tuple[Any, list[Callable[[Any], object]]]]


def create_queue_handles(w: VerbsObjects) -> Handles:
    """Return queue pairs, CQs and SRQs, each with all calls that can be made on it."""
    return {
        "QP": (
            w.make_ud_qp(),
            [
                lambda h: h.modify(QPAttr(qp_state=QPState.RESET)),
                lambda h: h.to_init(),
                lambda h: h.to_rtr(),
                lambda h: h.to_rts(),
                lambda h: h.query(),
                lambda h: h.drops(),
                lambda h: h.qp_state,
                lambda h: h.qp_num,
                lambda h: h.addr,
                lambda h: h.peer,
                lambda h: h.post_send(w.make_send_wr()),
                lambda h: h.post_send([w.make_send_wr()]),
                lambda h: h.post_recv(RecvWR()),
                lambda h: h.post_recv([RecvWR()]),
                lambda h: w.make_cm_id().bind_qp(h),
                lambda h: MR(w.pd, 8, qp=h),
                lambda h: h.__enter__(),
            ],
        ),
        "CQ": (
            w.rig.create_cq(channel=w.rig.create_channel()),
            [
                lambda h: h.poll(),
                lambda h: h.poll(9),
                lambda h: h.req_notify(),
                lambda h: h.wait(0),
                lambda h: h.resize(9),
                lambda h: h.capacity,
                lambda h: QP(w.pd, QPInitAttr(scq=h)),
            ],
        ),
        "SRQ": (
            SRQ(w.pd),
            [
                lambda h: h.post_recv(RecvWR()),
                lambda h: h.query(),
                lambda h: QP(w.pd, QPInitAttr(scq=w.cq, srq=h)),
            ],
        ),
        "CompChannel": (
            w.rig.create_channel(),
            [
                lambda h: h.fileno(),
                lambda h: h.get_cq_event(0),
                lambda h: CQ(w.ctx, channel=h),
            ],
        ),
    }


def create_memory_handles(w: VerbsObjects, end: End) -> Handles:
    """Return memory objects, PDs and AHs, each with all calls that can be made on it."""
    return {
        "MR": (
            w.rig.reg_mr(8),
            [
                lambda h: h.sge(),
                lambda h: h.remote(),
                lambda h: h.read(),
                lambda h: h.write(b"x"),
                lambda h: h.rereg(access=0),
                lambda h: SendWR().set_bind_wr(MW(w.pd), MWBindInfo(h, 0, 0, 0)),
                lambda h: MW(w.pd).bind(end.qp, h),
            ],
        ),
        "MW": (
            MW(w.pd),
            [
                lambda h: h.rkey,
                lambda h: h.bind(end.qp, w.mr),
                lambda h: h.invalidate(end.qp),
                lambda h: SendWR().set_bind_wr(h, MWBindInfo(w.mr, 0, 0, 0)),
                lambda h: end.qp.bind_mw(h, MWBind(MWBindInfo(None, 0, 0, 0))),
            ],
        ),
        "PD": (
            PD(w.ctx),
            [
                lambda h: MR(h, 8),
                lambda h: MW(h),
                lambda h: AH(h, ("::1", 1)),
                lambda h: QP(h, QPInitAttr(scq=w.cq)),
                lambda h: SRQ(h),
                lambda h: w.mr.rereg(pd=h),
            ],
        ),
        "AH": (AH(w.pd, ("::1", 1)), [lambda h: SendWR(ah=h), lambda h: SendWR().set_wr_ud(h)]),
    }


def create_connection_handles(w: VerbsObjects, end: End) -> Handles:
    """Return devices and connection objects, each with all calls that can be made on it."""
    return {
        "Context": (
            Context(),
            [
                lambda h: h.query_device(),
                lambda h: h.get_async_event(0),
                lambda h: PD(h),
                lambda h: CQ(h),
                lambda h: CompChannel(h),
                lambda h: CMEventChannel(h),
            ],
        ),
        "CMEventChannel": (
            CMEventChannel(w.ctx),
            [lambda h: h.fileno(), lambda h: h.get_event(0), lambda h: CMID(h)],
        ),
        "CMID": (
            end.id,
            [
                lambda h: h.bind_qp(w.make_rc_qp()),
                lambda h: h.listen(("127.0.0.1", 0)),
                lambda h: h.connect(("127.0.0.1", 1)),
                lambda h: h.accept(),
                lambda h: h.reject(),
                lambda h: h.disconnect(),
                lambda h: h.local_addr,
                lambda h: h.peer_addr,
            ],
        ),
    }


def create_all_handles(w: VerbsObjects) -> Handles:
    """Return an object of each kind, each with all calls that can be made on it."""
    end = w.connect_endpoint()
    return (
        create_queue_handles(w) | create_memory_handles(w, end) | create_connection_handles(w, end)
    )


@pytest.mark.parametrize(
    "name",
    ["QP", "CQ", "MR", "MW", "PD", "AH", "SRQ", "CompChannel", "Context", "CMEventChannel", "CMID"],
)
def test_every_call_on_a_closed_handle_raises_an_error_with_ebadf(
    verbs_objects: VerbsObjects, name: str
) -> None:
    handle, calls = create_all_handles(verbs_objects)[name]
    handle.close()
    handle.close()
    assert "closed" in repr(handle)
    for i, call in enumerate(calls):
        with pytest.raises(State, match="closed") as caught:
            call(handle)
        assert caught.value.errno == EBADF, i


# ---- misuse of the C API


def test_null_pointers_are_refused_by_functions_of_the_c_api(verbs_objects: VerbsObjects) -> None:
    null, w = ffi.NULL, verbs_objects
    pd, qp = w.pd._c_object(), w.make_ud_qp()._c_object()
    addr = ffi.new("struct siw_addr *")
    attr, init = ffi.new("struct siw_qp_attr *"), ffi.new("struct siw_qp_init_attr *")
    for made in (
        lambda: lib.siw_alloc_pd(null),
        lambda: lib.siw_reg_mr(null, null, 0, 0),
        lambda: lib.siw_reg_mr_qp(null, null, 0, 0),
        lambda: lib.siw_create_ah(null, addr),
        lambda: lib.siw_create_ah(pd, null),
        # The address has no address family.
        lambda: lib.siw_create_ah(pd, addr),
        lambda: lib.siw_create_qp(null, init),
        lambda: lib.siw_create_qp(pd, null),
        # The attributes of the queue pair name no CQ.
        lambda: lib.siw_create_qp(pd, init),
    ):
        assert not made() and ffi.errno == EINVAL
    for rc in (
        lib.siw_dealloc_pd(null),
        lib.siw_dereg_mr(null),
        lib.siw_destroy_ah(null),
        lib.siw_query_ah(null, addr),
        lib.siw_destroy_qp(null),
        lib.siw_modify_qp(null, attr, 0),
        lib.siw_modify_qp(qp, null, 1),
        lib.siw_query_qp(null, attr, init),
        lib.siw_post_send(null, null, null),
        lib.siw_post_recv(null, null, null),
    ):
        assert rc == -EINVAL
    assert lib.siw_rereg_mr(null, 1, pd, null, 0, 0) == -4
    assert lib.siw_query_qp(qp, null, null) == 0


CALL_WITH_NULL_PROGRAM = """
from siwarp._siwarp import ffi, lib
for name in dir(lib):
    call = getattr(lib, name)
    if not name.startswith("siw_") or not callable(call):
        continue
    kind = ffi.typeof(call)
    if not any(arg.kind == "pointer" for arg in kind.args):
        continue
    print(name, end=" ", flush=True)
    ffi.errno = 0
    got = call(*(ffi.NULL if arg.kind == "pointer" else 0 for arg in kind.args))
    if kind.result.kind == "pointer":
        print("NULL" if got == ffi.NULL else "something", ffi.errno)
    else:
        print(got)
"""

#: The results, for NULL arguments, of functions that accept NULL or cannot report an error.
RESULTS_WITH_NULL = {
    "siw_free_device_list": "None",
    "siw_get_device_list": "something 0",
    "siw_device_info": "NULL 0",
    "siw_context_info": "NULL 0",
    "siw_addr_format": "NULL 0",
    "siw_ack_async_event": "None",
    "siw_ack_cq_events": "None",
    "siw_cm_set_context": "None",
    # A CM channel without a device is allowed.
    "siw_cm_create_channel": "something 0",
    "siw_reason_record": "None",
    "siw_log_refused_call": "None",
    "siw_faults_get": "0",
    "siw_qp_num": "0",
    "siw_srq_num": "0",
    "siw_rereg_mr": "-4",
    "siw_settings_advice_for_former_name": "NULL 0",
    "siw_setting_set": str(-errno.ENOENT),
    "siw_setting_set_text": str(-errno.ENOENT),
}


def test_every_c_function_refuses_null_arguments() -> None:
    """Each function with pointers is called with NULL for each pointer and 0 for each number."""
    found = subprocess.run(
        [sys.executable, "-c", CALL_WITH_NULL_PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stdout.splitlines()[-1:]
    said = dict(line.split(" ", 1) for line in found.stdout.splitlines())
    assert len(said) > 60
    for name, answer in said.items():
        refusal = {str(-EINVAL), f"NULL {EINVAL}"}
        assert answer in ({RESULTS_WITH_NULL[name]} if name in RESULTS_WITH_NULL else refusal), name


def test_posting_an_empty_list_succeeds_and_null_scatter_gather_lists_are_refused(
    verbs_objects: VerbsObjects,
) -> None:
    qp = verbs_objects.make_ud_qp()._c_object()
    assert lib.siw_post_send(qp, ffi.NULL, ffi.NULL) == 0
    assert lib.siw_post_recv(qp, ffi.NULL, ffi.NULL) == 0
    for kind, post in (("send", lib.siw_post_send), ("recv", lib.siw_post_recv)):
        for num_sge in (1, -1, 17, 1 << 30):
            wr = ffi.new(f"struct siw_{kind}_wr *", {"num_sge": num_sge})
            if kind == "send":
                wr.opcode, wr.wr.ud.ah = SEND, verbs_objects.ah._c_object()
            bad = ffi.new(f"struct siw_{kind}_wr **")
            assert post(qp, wr, bad) == -EINVAL, num_sge
            assert bad[0] == wr
    assert verbs_objects.cq.poll(1) == []


def test_the_attributes_of_queue_pair_state_transitions_can_be_queried() -> None:
    ask = lib.siw_qp_step_attrs
    assert ask(QPType.UD, QPState.RESET, QPState.INIT) == QPAttrMask.QKEY | QPAttrMask.FD
    assert ask(QPType.UD, QPState.RESET, QPState.RTS) == -EINVAL
    assert ask(QPType.RC, QPState.RTS, QPState.SQD) == QPAttrMask.EN_SQD_ASYNC_NOTIFY
    at_rts = QPAttrMask.QKEY | QPAttrMask.CUR_STATE | QPAttrMask.RATE_LIMIT
    assert ask(QPType.UD, QPState.RTS, -1) == at_rts
    assert ask(7, 0, 0) == ask(QPType.UD, 9, 1) == ask(QPType.UD, 0, 9) == -EINVAL


def test_sending_from_unmapped_memory_fails_without_a_crash(verbs_objects: VerbsObjects) -> None:
    """A send from registered memory that the program has unmapped fails with LOC_PROT_ERR."""
    memory = RemovableMemory(PAGE, "unmapped")
    mr = lib.siw_reg_mr(verbs_objects.pd._c_object(), ffi.cast("void *", memory.addr), PAGE, 0)
    memory.remove_pages()
    qp = verbs_objects.make_ud_qp()
    qp.post_send(verbs_objects.make_send_wr(sg=[SGE(memory.addr, 64, mr.lkey)]))
    assert poll(verbs_objects.cq)[0].status == WCStatus.LOC_PROT_ERR
    assert lib.siw_dereg_mr(mr) == 0
