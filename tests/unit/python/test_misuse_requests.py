"""Contradictory work requests, numbers outside of the range of C types, and concurrent closes."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness.verbs_harness import errno_raised_by, poll, wait_until
from unit.python.misuse_harness import VerbsObjects

import siwarp
from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    QP,
    SRQ,
    WC,
    CompChannel,
    MWBindInfo,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    SrqAttr,
    WROpcode,
)

SEND, WRITE, BIND = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.BIND_MW
MASKED = WROpcode.MASKED_ATOMIC_CMP_AND_SWP
#: A remote address that is not mapped in the process.
THERE = RemoteBuffer(0x1000, 8, 7)


def set_send_wr_opcode(wr: SendWR, opcode: int) -> SendWR:
    wr.opcode = opcode
    return wr


def call_send_wr_setter(wr: SendWR, how: str, *what: Any) -> SendWR:
    getattr(wr, how)(*what)
    return wr


#: Send requests with a remote address that their opcode does not use.
SENDS_WITH_REMOTE_ADDRESS: dict[str, Callable[[VerbsObjects], SendWR]] = {
    "a remote buffer": lambda w: SendWR(sg=[w.sge], remote=THERE),
    "set_wr_rdma": lambda w: call_send_wr_setter(SendWR(sg=[w.sge]), "set_wr_rdma", 7, 0x1000),
    "set_wr_atomic": lambda w: call_send_wr_setter(
        SendWR(sg=[w.sge]), "set_wr_atomic", 7, 0x1000, 5, 6
    ),
    "a Write before": lambda w: set_send_wr_opcode(SendWR(opcode=WRITE, remote=THERE), SEND),
    "an atomic before": lambda w: set_send_wr_opcode(
        SendWR(opcode=MASKED, remote=THERE, swap=1 << 60), SEND
    ),
}


@pytest.mark.parametrize("kind", [QPType.UD, QPType.RD], ids=lambda k: k.name)
@pytest.mark.parametrize("what", SENDS_WITH_REMOTE_ADDRESS)
def test_a_remote_address_of_a_request_is_never_used_as_an_address_handle(
    verbs_objects: VerbsObjects, what: str, kind: QPType
) -> None:
    qp = verbs_objects.make_ud_qp(qp_type=kind)
    with pytest.raises(siwarp.Error, match="valid address handle") as caught:
        qp.post_send(SENDS_WITH_REMOTE_ADDRESS[what](verbs_objects))
    assert caught.value.errno == errno.EINVAL
    # With an address handle the request is valid.
    wr = SENDS_WITH_REMOTE_ADDRESS[what](verbs_objects)
    wr.set_wr_ud(AH(verbs_objects.pd, ("127.0.0.1", 9)))
    verbs_objects.make_ud_qp().post_send(wr)
    assert poll(verbs_objects.cq)[0].ok


def test_atomic_masks_are_never_used_as_a_window_nor_an_address_handle_as_a_region(
    verbs_objects: VerbsObjects,
) -> None:
    qp = verbs_objects.connect_endpoint().qp
    masks = SendWR(opcode=MASKED, compare_add_mask=0x1000, swap_mask=0x2000)
    with pytest.raises(siwarp.Error, match="allocated window"):
        qp.post_send(set_send_wr_opcode(masks, BIND))
    mw = MW(verbs_objects.pd)
    wr = SendWR(opcode=BIND)
    wr.set_bind_wr(mw, MWBindInfo(None, 0, 8, 0))
    wr.set_wr_ud(verbs_objects.ah)
    with pytest.raises(siwarp.Error, match="registered memory region"):
        qp.post_send(wr)


def test_set_bind_wr_does_not_change_the_address_handle_of_the_request(
    verbs_objects: VerbsObjects,
) -> None:
    wr = verbs_objects.make_send_wr()
    wr.set_bind_wr(MW(verbs_objects.pd), MWBindInfo(verbs_objects.mr, verbs_objects.mr.addr, 8, 0))
    verbs_objects.make_ud_qp().post_send(wr)
    assert poll(verbs_objects.cq)[0].ok
    verbs_objects.ah.close()
    with pytest.raises(siwarp.Error, match="valid address handle"):
        verbs_objects.make_ud_qp().post_send(wr)


def test_requests_can_use_an_address_handle_after_its_close_failed_with_ebusy(
    verbs_objects: VerbsObjects,
) -> None:
    qp = verbs_objects.make_ud_qp()
    qp.modify(QPAttr(qp_state=QPState.SQD))
    wr = verbs_objects.make_send_wr()
    qp.post_send(wr)
    assert errno_raised_by(verbs_objects.ah.close) == errno.EBUSY
    qp.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(verbs_objects.cq)[0].ok
    qp.post_send(wr)
    assert poll(verbs_objects.cq)[0].ok


# ---- numbers


CALLS_WITH_INVALID_NUMBERS: dict[str, Callable[[VerbsObjects], object]] = {
    "a CQ": lambda w: CQ(w.ctx, 1 << 40),
    "a CQ below zero": lambda w: CQ(w.ctx, -(1 << 40)),
    "a CQ resized": lambda w: w.cq.resize(1 << 40),
    "an SRQ": lambda w: SRQ(w.pd, SrqAttr(1 << 40)),
    "an SRQ below zero": lambda w: SRQ(w.pd, SrqAttr(-1)),
    "elements of an SRQ": lambda w: SRQ(w.pd, SrqAttr(4, max_sge=-1)),
    "a limit": lambda w: SRQ(w.pd).modify(SrqAttr(srq_limit=-1)),
}


@pytest.mark.parametrize("what", CALLS_WITH_INVALID_NUMBERS)
def test_a_number_outside_of_the_c_type_is_refused_like_one_outside_of_the_limits(
    verbs_objects: VerbsObjects, what: str
) -> None:
    with pytest.raises(siwarp.Error, match=r"range [01] to|from 1 to") as caught:
        CALLS_WITH_INVALID_NUMBERS[what](verbs_objects)
    assert caught.value.errno == errno.EINVAL


def test_polling_a_cq_for_more_completions_than_it_can_hold_returns_all(
    verbs_objects: VerbsObjects,
) -> None:
    qp = verbs_objects.make_ud_qp()
    for i in range(20):
        qp.post_send(verbs_objects.make_send_wr(wr_id=i))
    found: list[WC] = []
    wait_until(lambda: found.extend(verbs_objects.cq.poll(1 << 40)) or len(found) >= 20)
    assert [wc.wr_id for wc in found] == list(range(20))
    assert verbs_objects.cq.poll(1 << 40) == []


@pytest.mark.parametrize("length", [-1, -4, 6, 1 << 40])
def test_mr_write_refuses_a_length_beyond_the_data(
    verbs_objects: VerbsObjects, length: int
) -> None:
    with pytest.raises(ValueError, match="the data has 5"):
        verbs_objects.mr.write(b"12345", length)
    assert verbs_objects.mr.read(8) == bytes(8)


def test_a_wait_for_a_cq_event_accepts_an_infinite_time_out(verbs_objects: VerbsObjects) -> None:
    channel = CompChannel(verbs_objects.ctx)
    cq = CQ(verbs_objects.ctx, channel=channel)
    qp = QP(verbs_objects.pd, QPInitAttr(QPType.UD, scq=cq))
    qp.to_init()
    cq.req_notify()
    qp.modify(QPAttr(qp_state=QPState.ERR))
    qp.post_recv(RecvWR(1))
    assert channel.get_cq_event(math.inf) is cq
    assert [wc.wr_id for wc in cq.wait(math.inf)] == [1]


# ---- concurrent closes


Maker = Callable[[VerbsObjects, CompChannel, CMEventChannel], Any]
HANDLE_FACTORIES: dict[str, Maker] = {
    "QP": lambda w, _c, _e: w.make_ud_qp(),
    "CQ": lambda w, channel, _e: CQ(w.ctx, channel=channel),
    "MR": lambda w, _c, _e: MR(w.pd, 8),
    "MW": lambda w, _c, _e: MW(w.pd),
    "AH": lambda w, _c, _e: AH(w.pd, ("127.0.0.1", 9)),
    "SRQ": lambda w, _c, _e: SRQ(w.pd),
    "PD": lambda w, _c, _e: PD(w.ctx),
    "CMID": lambda _w, _c, events: CMID(events),
}


@pytest.mark.parametrize("what", HANDLE_FACTORIES)
def test_two_threads_can_close_the_same_handle_at_the_same_time(
    verbs_objects: VerbsObjects, what: str
) -> None:
    channel, events = CompChannel(verbs_objects.ctx), CMEventChannel(verbs_objects.ctx)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            handle = HANDLE_FACTORIES[what](verbs_objects, channel, events)
            both = threading.Barrier(2)

            def close_at_barrier(handle: Any = handle, both: threading.Barrier = both) -> None:
                both.wait(20)
                handle.close()

            for done in [pool.submit(close_at_barrier), pool.submit(close_at_barrier)]:
                done.result(20)
            assert handle.closed
