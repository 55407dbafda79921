"""Misuse of memory windows: the errno, the exception, and the remedy in the message."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from harness.rc_harness import End, ListenerAndConnector
from harness.verbs_harness import poll
from unit.python.misuse_harness import (
    EBUSY,
    EINVAL,
    Plain,
    State,
    VerbsObjects,
    assert_call_refused,
)

from siwarp.verbs import (
    MR,
    MW,
    QP,
    AccessFlag,
    MWBind,
    MWBindInfo,
    MWType,
    QPAttr,
    QPState,
    SendFlag,
    SendWR,
    WCStatus,
    WROpcode,
)

REGION = AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND
RW = AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ
Row = tuple[str, Callable[[VerbsObjects], object], type[Exception], int, str]


def make_bindable_mr(w: VerbsObjects) -> MR:
    return w.rig.reg_mr(64, REGION)


def make_type_1_mw(w: VerbsObjects) -> MW:
    return MW(w.pd, MWType.TYPE_1)


def post_type_1_bind(qp: QP, mw: MW, info: MWBindInfo, flags: int = SendFlag.SIGNALED) -> None:
    qp.bind_mw(mw, MWBind(info, 1, flags))


def post_type_2_bind(
    qp: QP, mw: MW | None, info: MWBindInfo, flags: int = SendFlag.SIGNALED
) -> None:
    wr = SendWR(1, WROpcode.BIND_MW, send_flags=flags)
    if mw is not None:
        wr.set_bind_wr(mw, info)
    qp.post_send(wr)


def make_bind_info(w: VerbsObjects, mr: MR | None = None, access: int = RW) -> MWBindInfo:
    mr = mr or make_bindable_mr(w)
    return MWBindInfo(mr, mr.addr, 8, access)


def make_bind_info_of_closed_mr(w: VerbsObjects) -> MWBindInfo:
    """Return bind information without a region, as after the region has been closed."""
    return MWBindInfo(None, 0, 8, RW)


def post_bind_with_closed_object(w: VerbsObjects, mw: bool) -> None:
    qp, window, mr = w.connect_endpoint().qp, MW(w.pd), make_bindable_mr(w)
    wr = SendWR(1, WROpcode.BIND_MW)
    wr.set_bind_wr(window, make_bind_info(w, mr))
    (window if mw else mr).close()
    qp.post_send(wr)


WINDOW_MISUSE: list[Row] = [
    ("no such type", lambda w: MW(w.pd, 3), Plain, EINVAL, "use a value of MWType"),
    (
        "type 1 by a request",
        lambda w: post_type_2_bind(w.connect_endpoint().qp, make_type_1_mw(w), make_bind_info(w)),
        Plain,
        EINVAL,
        r"bound by QP\.bind_mw",
    ),
    (
        "type 2 by bind_mw",
        lambda w: post_type_1_bind(w.connect_endpoint().qp, MW(w.pd), make_bind_info(w)),
        Plain,
        EINVAL,
        "post_send",
    ),
    (
        "a bind of no window",
        lambda w: post_type_2_bind(w.connect_endpoint().qp, None, make_bind_info(w)),
        Plain,
        EINVAL,
        r"set_bind_wr\(mw",
    ),
    (
        "a window closed since",
        lambda w: post_bind_with_closed_object(w, True),
        Plain,
        EINVAL,
        "allocated window",
    ),
    (
        "a region closed since",
        lambda w: post_bind_with_closed_object(w, False),
        Plain,
        EINVAL,
        "registered memory region",
    ),
    (
        "a bind to no region",
        lambda w: post_type_1_bind(
            w.connect_endpoint().qp, make_type_1_mw(w), make_bind_info_of_closed_mr(w)
        ),
        Plain,
        EINVAL,
        r"MWBindInfo\(mr",
    ),
    (
        "a region of another device",
        lambda w: post_type_2_bind(
            w.connect_endpoint().qp, MW(w.pd), make_bind_info(w, w.other.reg_mr(64, REGION))
        ),
        Plain,
        EINVAL,
        "QP's context",
    ),
    (
        "a window of another device",
        lambda w: post_type_1_bind(
            w.connect_endpoint().qp, MW(w.other.pd, MWType.TYPE_1), make_bind_info(w)
        ),
        Plain,
        EINVAL,
        "QP's context",
    ),
    (
        "local writing through a window",
        lambda w: post_type_2_bind(
            w.connect_endpoint().qp, MW(w.pd), make_bind_info(w, None, AccessFlag.LOCAL_WRITE)
        ),
        Plain,
        EINVAL,
        "only REMOTE_WRITE, REMOTE_READ",
    ),
    (
        "an inline bind",
        lambda w: post_type_2_bind(
            w.connect_endpoint(max_inline_data=64).qp, MW(w.pd), make_bind_info(w), SendFlag.INLINE
        ),
        Plain,
        EINVAL,
        "omit SendFlag.INLINE",
    ),
    (
        "an inline bind of type 1",
        lambda w: post_type_1_bind(
            w.connect_endpoint().qp, make_type_1_mw(w), make_bind_info(w), SendFlag.INLINE
        ),
        Plain,
        EINVAL,
        "SIGNALED, FENCE",
    ),
    (
        "a bind on UD",
        lambda w: post_type_2_bind(w.make_ud_qp(), MW(w.pd), make_bind_info(w)),
        Plain,
        EINVAL,
        "only SEND.*RC",
    ),
    (
        "an invalidation on UD",
        lambda w: w.make_ud_qp().post_send(SendWR(1, WROpcode.LOCAL_INV)),
        Plain,
        EINVAL,
        "only SEND.*RC",
    ),
    (
        "a bind of type 1 on UD",
        lambda w: post_type_1_bind(w.make_ud_qp(), make_type_1_mw(w), make_bind_info(w)),
        Plain,
        EINVAL,
        "is for RC and UC QPs only",
    ),
    (
        "a bind before connecting",
        lambda w: post_type_1_bind(
            w.make_rc_qp(QPState.INIT), make_type_1_mw(w), make_bind_info(w)
        ),
        State,
        EINVAL,
        "connect it first",
    ),
    (
        "octets beside the region",
        lambda w: MW(w.pd).bind(w.connect_endpoint().qp, make_bindable_mr(w), 60, 8),
        ValueError,
        0,
        "not inside",
    ),
    (
        "a region that is bound",
        lambda w: (lambda held: held[1].close())(make_bound_mw(w)),
        State,
        EBUSY,
        "a window is bound to the region.*close or invalidate",
    ),
    (
        "a window with a posted bind",
        lambda w: (lambda held: held[0].close())(post_bind_in_sqd(w)),
        State,
        EBUSY,
        "a bind of this window is outstanding.*poll",
    ),
]


def connect_endpoints(w: VerbsObjects, **kw: int) -> tuple[End, End]:
    """Return both endpoints of a connection, because Python closes an unreferenced endpoint."""
    return ListenerAndConnector(w.rig, w.other).connect(**kw)


def make_bound_mw(w: VerbsObjects) -> tuple[MW, MR, object]:
    mw, mr, both = MW(w.pd), make_bindable_mr(w), connect_endpoints(w)
    mw.bind(both[0].qp, mr)
    assert poll(both[0].scq)[0].ok
    return mw, mr, both


def post_bind_in_sqd(w: VerbsObjects) -> tuple[MW, object]:
    mw, both = MW(w.pd), connect_endpoints(w)
    both[0].qp.modify(QPAttr(qp_state=QPState.SQD))
    mw.bind(both[0].qp, make_bindable_mr(w))
    return mw, both


@pytest.mark.parametrize(
    ("call", "kind", "number", "hint"), [pytest.param(*row[1:], id=row[0]) for row in WINDOW_MISUSE]
)
def test_misuse_of_memory_windows_raises_an_exception_with_errno_and_a_remedy(
    verbs_objects: VerbsObjects,
    call: Callable[[VerbsObjects], object],
    kind: type[Exception],
    number: int,
    hint: str,
) -> None:
    assert_call_refused(call, verbs_objects, kind, number, hint)


def test_the_completion_error_of_a_failed_bind_names_the_remedy(
    verbs_objects: VerbsObjects,
) -> None:
    both = connect_endpoints(verbs_objects)
    MW(verbs_objects.pd).bind(both[0].qp, verbs_objects.rig.reg_mr(64))
    wc = poll(both[0].scq)[0]
    assert wc.status == WCStatus.MW_BIND_ERR
    with pytest.raises(Plain, match=r"MW_BIND_ERR.*AccessFlag\.MW_BIND") as caught:
        wc.check()
    assert caught.value.errno == errno.EIO


def test_binds_fill_the_send_queue_like_other_requests(verbs_objects: VerbsObjects) -> None:
    both = connect_endpoints(verbs_objects, max_send_wr=4)
    end, mw, mr = both[0], make_type_1_mw(verbs_objects), make_bindable_mr(verbs_objects)
    end.qp.modify(QPAttr(qp_state=QPState.SQD))
    for _ in range(4):
        mw.bind(end.qp, mr)
    with pytest.raises(Plain, match="queue of 4 requests is full") as caught:
        mw.bind(end.qp, mr)
    assert caught.value.errno == errno.ENOMEM
    before = mw.rkey
    end.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert [wc.ok for wc in poll(end.scq, 4)] == [True] * 4
    assert mw.rkey == before
