"""Contradictory requests, numbers out of the range of C types, and concurrent closes."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness.verbs_harness import poll, refused, until
from unit.python.misuse_harness import World

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
#: An address in the peer's memory that is not mapped in this process.
THERE = RemoteBuffer(0x1000, 8, 7)


def changed(wr: SendWR, opcode: int) -> SendWR:
    wr.opcode = opcode
    return wr


def told(wr: SendWR, how: str, *what: Any) -> SendWR:
    getattr(wr, how)(*what)
    return wr


#: Each request has a location that its opcode does not use.
SENDS: dict[str, Callable[[World], SendWR]] = {
    "a remote buffer": lambda w: SendWR(sg=[w.sge], remote=THERE),
    "set_wr_rdma": lambda w: told(SendWR(sg=[w.sge]), "set_wr_rdma", 7, 0x1000),
    "set_wr_atomic": lambda w: told(SendWR(sg=[w.sge]), "set_wr_atomic", 7, 0x1000, 5, 6),
    "a Write before": lambda w: changed(SendWR(opcode=WRITE, remote=THERE), SEND),
    "an atomic before": lambda w: changed(SendWR(opcode=MASKED, remote=THERE, swap=1 << 60), SEND),
}


@pytest.mark.parametrize("kind", [QPType.UD, QPType.RD], ids=lambda k: k.name)
@pytest.mark.parametrize("what", SENDS)
def test_an_address_in_the_peers_memory_is_never_taken_for_an_address_handle(
    world: World, what: str, kind: QPType
) -> None:
    qp = world.ud(qp_type=kind)
    with pytest.raises(siwarp.Error, match="valid address handle") as caught:
        qp.post_send(SENDS[what](world))
    assert caught.value.errno == errno.EINVAL
    # With an address handle it is a normal request.
    wr = SENDS[what](world)
    wr.set_wr_ud(AH(world.pd, ("127.0.0.1", 9)))
    world.ud().post_send(wr)
    assert poll(world.cq)[0].ok


def test_masks_are_never_taken_for_a_window_nor_an_address_handle_for_a_region(
    world: World,
) -> None:
    qp = world.connected().qp
    masks = SendWR(opcode=MASKED, compare_add_mask=0x1000, swap_mask=0x2000)
    with pytest.raises(siwarp.Error, match="allocated window"):
        qp.post_send(changed(masks, BIND))
    mw = MW(world.pd)
    wr = SendWR(opcode=BIND)
    wr.set_bind_wr(mw, MWBindInfo(None, 0, 8, 0))
    wr.set_wr_ud(world.ah)
    with pytest.raises(siwarp.Error, match="registered memory region"):
        qp.post_send(wr)


def test_a_bind_does_not_spoil_the_address_handle_of_the_same_request(world: World) -> None:
    wr = world.send()
    wr.set_bind_wr(MW(world.pd), MWBindInfo(world.mr, world.mr.addr, 8, 0))
    world.ud().post_send(wr)
    assert poll(world.cq)[0].ok
    world.ah.close()
    with pytest.raises(siwarp.Error, match="valid address handle"):
        world.ud().post_send(wr)


def test_an_address_handle_that_could_not_close_is_still_that_of_its_requests(world: World) -> None:
    qp = world.ud()
    qp.modify(QPAttr(qp_state=QPState.SQD))
    wr = world.send()
    qp.post_send(wr)
    assert refused(world.ah.close) == errno.EBUSY
    qp.modify(QPAttr(qp_state=QPState.RTS))
    assert poll(world.cq)[0].ok
    qp.post_send(wr)
    assert poll(world.cq)[0].ok


# ---- numbers


NUMBERS: dict[str, Callable[[World], object]] = {
    "a CQ": lambda w: CQ(w.ctx, 1 << 40),
    "a CQ below zero": lambda w: CQ(w.ctx, -(1 << 40)),
    "a CQ resized": lambda w: w.cq.resize(1 << 40),
    "an SRQ": lambda w: SRQ(w.pd, SrqAttr(1 << 40)),
    "an SRQ below zero": lambda w: SRQ(w.pd, SrqAttr(-1)),
    "elements of an SRQ": lambda w: SRQ(w.pd, SrqAttr(4, max_sge=-1)),
    "a limit": lambda w: SRQ(w.pd).modify(SrqAttr(srq_limit=-1)),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_a_number_beyond_cs_types_is_refused_as_one_beyond_the_limits_is(
    world: World, what: str
) -> None:
    with pytest.raises(siwarp.Error, match=r"range [01] to|from 1 to") as caught:
        NUMBERS[what](world)
    assert caught.value.errno == errno.EINVAL


def test_polling_for_more_than_there_can_be_takes_what_there_is(world: World) -> None:
    qp = world.ud()
    for i in range(20):
        qp.post_send(world.send(wr_id=i))
    found: list[WC] = []
    until(lambda: found.extend(world.cq.poll(1 << 40)) or len(found) >= 20)
    assert [wc.wr_id for wc in found] == list(range(20))
    assert world.cq.poll(1 << 40) == []


@pytest.mark.parametrize("length", [-1, -4, 6, 1 << 40])
def test_no_more_and_no_less_of_the_data_is_written_into_a_region_than_there_is(
    world: World, length: int
) -> None:
    with pytest.raises(ValueError, match="the data has 5"):
        world.mr.write(b"12345", length)
    assert world.mr.read(8) == bytes(8)


def test_a_wait_may_be_infinite(world: World) -> None:
    channel = CompChannel(world.ctx)
    cq = CQ(world.ctx, channel=channel)
    qp = QP(world.pd, QPInitAttr(QPType.UD, scq=cq))
    qp.to_init()
    cq.req_notify()
    qp.modify(QPAttr(qp_state=QPState.ERR))
    qp.post_recv(RecvWR(1))
    assert channel.get_cq_event(math.inf) is cq
    assert [wc.wr_id for wc in cq.wait(math.inf)] == [1]


# ---- closing


Maker = Callable[[World, CompChannel, CMEventChannel], Any]
MAKERS: dict[str, Maker] = {
    "QP": lambda w, _c, _e: w.ud(),
    "CQ": lambda w, channel, _e: CQ(w.ctx, channel=channel),
    "MR": lambda w, _c, _e: MR(w.pd, 8),
    "MW": lambda w, _c, _e: MW(w.pd),
    "AH": lambda w, _c, _e: AH(w.pd, ("127.0.0.1", 9)),
    "SRQ": lambda w, _c, _e: SRQ(w.pd),
    "PD": lambda w, _c, _e: PD(w.ctx),
    "CMID": lambda _w, _c, events: CMID(events),
}


@pytest.mark.parametrize("what", MAKERS)
def test_of_two_threads_that_close_the_same_handle_neither_fails(world: World, what: str) -> None:
    channel, events = CompChannel(world.ctx), CMEventChannel(world.ctx)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            handle = MAKERS[what](world, channel, events)
            both = threading.Barrier(2)

            def close(handle: Any = handle, both: threading.Barrier = both) -> None:
                both.wait(20)
                handle.close()

            for done in [pool.submit(close), pool.submit(close)]:
                done.result(20)
            assert handle.closed
