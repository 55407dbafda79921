"""The states of a queue pair: the complete transition table, and how modify follows it."""

from __future__ import annotations

import errno
import itertools

import pytest
from _siwarp_layers import ffi as layer_ffi
from _siwarp_layers import lib as layer
from harness.verbs_harness import Rig, errno_raised_by, poll

from siwarp._siwarp import ffi, lib
from siwarp.verbs import (
    QP,
    SGE,
    QPAttr,
    QPAttrMask,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    StateError,
    WCStatus,
)

RESET, INIT, RTR, RTS, SQD, SQE, ERR = range(7)
NONE, BIND, RECEIVE, DRAIN, RESUME, FLUSH_SENDS, FLUSH, FORGET = (
    layer.SIW_QPA_NONE,
    layer.SIW_QPA_BIND,
    layer.SIW_QPA_RECEIVE,
    layer.SIW_QPA_DRAIN,
    layer.SIW_QPA_RESUME,
    layer.SIW_QPA_FLUSH_SENDS,
    layer.SIW_QPA_FLUSH,
    layer.SIW_QPA_FORGET,
)
EVENTS = {
    name: getattr(layer, f"SIW_QPE_{name}")
    for name in (
        "STAY",
        "TO_RESET",
        "TO_INIT",
        "TO_RTR",
        "TO_RTS",
        "TO_SQD",
        "TO_ERR",
        "ATTACHED",
        "STARTED",
        "FAILED",
        "SEND_FAILED",
    )
}


def expected_transition(kind: int, state: int, event: str) -> tuple[int, int] | None:
    """Return next state and action that the verbs define for a state and an event, or None."""
    ud = kind != QPType.RC  # UC and RD have the same transitions as UD
    alive = state in (INIT, RTR, RTS, SQD, SQE)
    if state == SQE and not ud:
        return None  # an RC queue pair goes to ERR instead of SQE
    if event == "STAY":
        return state, NONE
    if event == "TO_RESET":
        return RESET, FORGET
    if event == "TO_ERR":
        return ERR, NONE if state == ERR else FLUSH
    if event == "FAILED":
        return (ERR, FLUSH) if alive else (ERR, NONE) if state == ERR else None
    steps = {
        # event: ({from: to}, action for UD, action for RC); None: no such transition
        "TO_INIT": ({RESET: INIT, INIT: INIT}, BIND, BIND),
        # On RC, TO_RTR is for a queue pair that connects by GID and QPN.
        "TO_RTR": ({INIT: RTR}, RECEIVE, RECEIVE),
        "ATTACHED": ({INIT: RTR}, None, NONE),
        "STARTED": ({RTR: RTS}, None, NONE),
        "TO_RTS": (
            {RTR: RTS, RTS: RTS, SQD: RTS, SQE: RTS},
            RESUME if state == SQD else NONE,
            RESUME if state == SQD else NONE,
        ),
        "TO_SQD": ({RTS: SQD, SQD: SQD}, *[NONE if state == SQD else DRAIN] * 2),
        "SEND_FAILED": (
            {RTS: SQE, SQD: SQE, SQE: SQE},
            NONE if state == SQE else FLUSH_SENDS,
            None,
        ),
    }[event]
    action = steps[1] if ud else steps[2]
    if action is None or state not in steps[0]:
        return None
    return steps[0][state], action


@pytest.mark.parametrize("kind", list(QPType), ids=lambda k: k.name)
def test_every_state_and_event_has_the_transition_that_the_verbs_define(kind: QPType) -> None:
    action = layer_ffi.new("int *")
    assert len(EVENTS) == layer.SIW_QPE_COUNT
    for state, (name, event) in itertools.product(range(7), EVENTS.items()):
        got = layer.siw_qp_find_next_state(kind, state, event, action)
        wanted = expected_transition(kind, state, name)
        if wanted is None:
            assert got == -errno.EINVAL, (state, name)
        else:
            assert (got, action[0]) == wanted, (state, name)


CUR, NOTIFY, ACCESS, QKEY = (
    QPAttrMask.CUR_STATE,
    QPAttrMask.EN_SQD_ASYNC_NOTIFY,
    QPAttrMask.ACCESS_FLAGS,
    QPAttrMask.QKEY,
)
AV, PATH_MTU, DEST_QPN, RQ_PSN, SQ_PSN = (
    QPAttrMask.AV,
    QPAttrMask.PATH_MTU,
    QPAttrMask.DEST_QPN,
    QPAttrMask.RQ_PSN,
    QPAttrMask.SQ_PSN,
)
RNR = QPAttrMask.RNR_RETRY | QPAttrMask.MIN_RNR_TIMER
ORD, IRD, FD = QPAttrMask.MAX_QP_RD_ATOMIC, QPAttrMask.MAX_DEST_RD_ATOMIC, QPAttrMask.FD


def allowed_attributes(kind: int, state: int, event: str) -> int:
    """Return the mask of attributes that InfiniBand's table allows in a state transition."""
    ud, uc, rd = kind != QPType.RC, kind == QPType.UC, kind == QPType.RD
    if event not in ("STAY", "TO_INIT", "TO_RTR", "TO_RTS", "TO_SQD"):
        return 0
    mask = 0
    if ud and not (event == "STAY" and state in (RESET, RTR, SQE, ERR)):
        if not (event == "TO_SQD" and state == RTS):
            mask |= QKEY | (ACCESS if uc or rd else 0) | (RNR if rd else 0)
        if event == "TO_INIT":
            mask |= FD
        if rd and (event == "TO_INIT" or (event == "STAY" and state == INIT)):
            mask |= ORD | IRD
        if uc and event == "TO_RTR":
            mask |= AV | PATH_MTU | DEST_QPN | RQ_PSN
        if uc and event == "TO_RTS" and state == RTR:
            mask |= SQ_PSN
        if not rd and mask and (event == "TO_RTS" or state in (RTS, SQD)):
            mask |= QPAttrMask.RATE_LIMIT
    if not ud:
        before = state in (RESET, INIT)
        if before or state in (RTS, SQD):
            mask |= ACCESS | RNR
        if before:
            mask |= ORD | IRD
        if state == SQD and event != "TO_RTS":
            mask |= ORD
        if event == "TO_RTR":
            mask |= AV | PATH_MTU | DEST_QPN | RQ_PSN
        if event == "TO_RTS" and state == RTR:
            mask |= ACCESS | RNR
            mask |= SQ_PSN | ORD | QPAttrMask.TIMEOUT | QPAttrMask.RETRY_CNT
    if event == "TO_RTS" or (event == "STAY" and state == RTS):
        mask |= CUR
    if event == "TO_SQD" and state == RTS:
        mask = NOTIFY
    return mask


@pytest.mark.parametrize("kind", list(QPType), ids=lambda k: k.name)
def test_every_transition_allows_the_attributes_that_the_verbs_define(kind: QPType) -> None:
    for state, (name, event) in itertools.product(range(7), EVENTS.items()):
        got = layer.siw_qp_attrs_of_transition(kind, state, event)
        if expected_transition(kind, state, name) is None:
            assert got == -errno.EINVAL, (state, name)
        else:
            assert got == allowed_attributes(kind, state, name), (state, name)


@pytest.mark.parametrize("kind", [0, 1, 6, 9, -1])
def test_unknown_queue_pair_types_have_no_transitions(kind: int) -> None:
    action = layer_ffi.new("int *")
    for state, event in itertools.product(range(7), EVENTS.values()):
        assert layer.siw_qp_find_next_state(kind, state, event, action) == -errno.EINVAL
        assert layer.siw_qp_attrs_of_transition(kind, state, event) == -errno.EINVAL


@pytest.mark.parametrize("kind", list(QPType), ids=lambda k: k.name)
def test_states_and_events_out_of_range_have_no_transition(kind: QPType) -> None:
    action = layer_ffi.new("int *")
    for state, event in [(-1, 0), (7, 0), (1 << 30, 0), (0, -1), (0, 99), (0, 1 << 30)]:
        assert layer.siw_qp_find_next_state(kind, state, event, action) == -errno.EINVAL
        assert layer.siw_qp_attrs_of_transition(kind, state, event) == -errno.EINVAL


STATE_PATHS = {  # the states through which a UD queue pair reaches each state
    RESET: (),
    INIT: (INIT,),
    RTR: (INIT, RTR),
    RTS: (INIT, RTR, RTS),
    SQD: (INIT, RTR, RTS, SQD),
    SQE: (INIT, RTR, RTS),
    ERR: (ERR,),
}


def move_qp_to_state(rig: Rig, qp: QP, state: int) -> None:
    for step in STATE_PATHS[state]:
        qp.modify(QPAttr(qp_state=step))
    if state == SQE:  # SQE is reached by an error, not by modify
        qp.post_send(SendWR(1, sg=[SGE(8, 8, 0xBAD)], ah=rig.create_ah(qp)))
        assert poll(qp.scq)[0].status == WCStatus.LOC_PROT_ERR
    assert qp.qp_state == state


TARGETS = {
    RESET: "TO_RESET",
    INIT: "TO_INIT",
    RTR: "TO_RTR",
    RTS: "TO_RTS",
    SQD: "TO_SQD",
    ERR: "TO_ERR",
}


def modify_qp_with_raw_mask(qp: QP, mask: int, **attrs: int) -> int:
    """Call the C function siw_modify_qp with an arbitrary mask; return its result."""
    c = ffi.new("struct siw_qp_attr *", {"fd": -1, **attrs})
    return int(lib.siw_modify_qp(qp._c_object(), c, mask))


@pytest.mark.parametrize("start", STATE_PATHS)
@pytest.mark.parametrize("target", range(-1, 9))
def test_modify_follows_the_transition_table_for_a_ud_queue_pair(
    rig: Rig, start: int, target: int
) -> None:
    qp = rig.create_qp()
    move_qp_to_state(rig, qp, start)
    wanted = expected_transition(QPType.UD, start, TARGETS[target]) if target in TARGETS else None
    rc = modify_qp_with_raw_mask(qp, QPAttrMask.STATE, qp_state=target)
    assert rc == (-errno.EINVAL if wanted is None else 0)
    assert qp.qp_state == (start if wanted is None else wanted[0])


@pytest.mark.parametrize("start", [RESET, INIT, ERR])
@pytest.mark.parametrize("target", range(-1, 9))
def test_modify_follows_the_transition_table_for_an_unconnected_rc_queue_pair(
    rig: Rig, start: int, target: int
) -> None:
    qp = rig.create_qp(qp_type=QPType.RC)
    move_qp_to_state(rig, qp, start)
    wanted = expected_transition(QPType.RC, start, TARGETS[target]) if target in TARGETS else None
    if target == RTR:
        wanted = None  # RTR needs attributes of queue pairs that connect by GID and QPN
    rc = modify_qp_with_raw_mask(qp, QPAttrMask.STATE, qp_state=target)
    assert rc == (-errno.EINVAL if wanted is None else 0)
    assert qp.qp_state == (start if wanted is None else wanted[0])


@pytest.mark.parametrize("kind", list(QPType), ids=lambda k: k.name)
def test_an_attribute_not_allowed_for_a_transition_is_refused_and_changes_nothing(
    rig: Rig, kind: QPType
) -> None:
    qp = rig.create_qp(qp_type=kind)
    known = QPAttrMask.STATE | allowed_attributes(kind, RESET, "TO_INIT")
    for bit in range(31):
        if 1 << bit & known:
            continue
        own = QPAttrMask.QKEY if kind != QPType.RC else QPAttrMask.MAX_QP_RD_ATOMIC
        rc = modify_qp_with_raw_mask(
            qp, 1 << bit | QPAttrMask.STATE | own, qp_state=INIT, qkey=77, max_rd_atomic=7
        )
        assert rc == -errno.EINVAL, bit
        attr, _ = qp.query()
        assert (attr.qp_state, attr.qkey, attr.max_rd_atomic) == (RESET, 0, 0)


@pytest.mark.parametrize("name", ["max_rd_atomic", "max_dest_rd_atomic"])
@pytest.mark.parametrize(("value", "fine"), [(-1, False), (0, True), (128, True), (129, False)])
def test_read_depths_beyond_the_devices_limits_are_refused(
    rig: Rig, name: str, value: int, fine: bool
) -> None:
    qp = rig.create_qp(qp_type=QPType.RC)
    dev = rig.ctx.query_device()
    assert (dev.max_qp_rd_atom, dev.max_qp_init_rd_atom) == (128, 128)
    if fine:
        qp.modify(QPAttr(**{name: value}))
        assert getattr(qp.query()[0], name) == value
    else:
        assert errno_raised_by(qp.modify, QPAttr(**{name: value})) == errno.EINVAL
        assert getattr(qp.query()[0], name) == 0


def test_attributes_of_a_refused_transition_are_not_applied(rig: Rig) -> None:
    qp = rig.create_qp()
    assert errno_raised_by(qp.modify, QPAttr(qp_state=QPState.RTS, qkey=5)) == errno.EINVAL
    assert (qp.query()[0].qp_state, qp.query()[0].qkey) == (RESET, 0)
    qp.modify(QPAttr(qp_state=QPState.INIT, qkey=6))
    assert (qp.query()[0].qp_state, qp.query()[0].qkey) == (INIT, 6)


@pytest.mark.parametrize("state", [None, QPState.RTR, QPState.RTS, QPState.ERR, QPState.RESET])
def test_a_socket_is_adopted_only_in_the_transition_to_init(
    rig: Rig, state: QPState | None
) -> None:
    import socket

    qp = rig.create_qp()
    qp.to_init()
    number = qp.qp_num
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("127.0.0.1", 0))
        assert errno_raised_by(qp.modify, QPAttr(qp_state=state, fd=mine)) == errno.EINVAL
        assert (qp.qp_num, qp.qp_state) == (number, INIT)
        assert mine.getsockname()[0] == "127.0.0.1"  # the descriptor still belongs to the test


@pytest.mark.parametrize("kind", [QPType.RC, QPType.UD], ids=lambda k: k.name)
def test_posting_is_refused_in_states_that_do_not_allow_it(rig: Rig, kind: QPType) -> None:
    qp = rig.create_qp(qp_type=kind)
    mr = rig.reg_mr(bytearray(8))
    recv = RecvWR(1, sg=[mr.sge()])
    send = SendWR(2, sg=[mr.sge()])
    if kind == QPType.UD:
        send.set_wr_ud(rig.create_ah(qp))
    with pytest.raises(StateError):
        qp.post_recv(recv)
    states = (INIT, RTR) if kind == QPType.UD else (INIT,)
    with pytest.raises(StateError):
        qp.post_send(send)
    for state in states:
        qp.modify(QPAttr(qp_state=state))
        with pytest.raises(StateError) as e:
            qp.post_send(send)
        assert e.value.errno == errno.EINVAL and e.value.bad_wr is send
        qp.post_recv(recv)
