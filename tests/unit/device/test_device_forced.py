"""A device closed by force together with its child objects (``siw_close_device_forced``)."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pace
import pytest
from harness.rc_harness import SEND, ListenerAndConnector
from harness.verbs_harness import Rig, poll
from pace import scale_limit

from siwarp._siwarp import lib
from siwarp.cm import CMID, CMEventChannel, CMEventType
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    MW,
    PD,
    SRQ,
    AccessFlag,
    CompChannel,
    Context,
    Error,
    LimitError,
    MWType,
    SendWR,
    StateError,
)
from siwarp.verbs._ffi import Handle


def test_a_forced_close_wakes_waiting_threads_and_makes_every_handle_stale(build_dir: Path) -> None:
    done = pace.run_command(
        [build_dir / "tests/c/siw-test-forced"],
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_forced_close_waits_for_a_post_that_stalls(build_dir: Path) -> None:
    done = pace.run_command(
        [build_dir / "tests/c/siw-test-stalled"],
        env={**os.environ, "SIWARP_PERSONA": "roce", "SIWARP_BATCHING": "always"},
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_data_of_completed_sends_reaches_the_peer_after_a_forced_close(size: int) -> None:
    active, passive = Rig("siw_lo"), Rig("siw_lo")
    a, b = ListenerAndConnector(active, passive).connect(size=size)
    data = os.urandom(size)
    a.mem.write(data)
    b.post_receive(7)
    a.post(SEND, length=size)
    assert poll(a.scq)[0].ok
    assert lib.siw_close_device_forced(active.ctx._c_object()) == 0
    wc = poll(b.rcq)[0]
    assert wc.ok and b.mem.read(size) == data
    assert b.next_cm_event().type == CMEventType.DISCONNECTED
    passive.close()


# ---- Context.close(force=True)


def create_one_of_each_object(rig: Rig) -> list[Handle]:
    """Create one of each kind of object that a device can have."""
    a, b = ListenerAndConnector(rig, rig).connect()
    channel = CompChannel(rig.ctx)
    pd = PD(rig.ctx)
    mr = MR(pd, 4096, AccessFlag.LOCAL_WRITE | AccessFlag.MW_BIND)
    ids = CMEventChannel(rig.ctx)
    return [
        channel,
        pd,
        mr,
        MW(pd, MWType.TYPE_1),
        CQ(rig.ctx, 16, channel=channel),
        SRQ(pd),
        AH(pd, ("127.0.0.1", 9)),
        ids,
        CMID(ids),
        rig.pd,
        a.qp,
        b.qp,
    ]


def test_a_forced_close_closes_all_handles_of_the_device_only() -> None:
    rig, other = Rig("siw_lo"), Rig("siw_lo")
    made = create_one_of_each_object(rig)
    send = SendWR(1, ah=made[6], remote_qpn=7)
    with pytest.raises(StateError, match="still open"):
        rig.ctx.close()
    assert not any(one.closed for one in made)
    rig.ctx.close(force=True)
    assert rig.ctx.closed and all(one.closed for one in made)
    for one in (rig.ctx, *made):
        one.close()
        with pytest.raises(StateError) as told:
            one._c_object()
        assert told.value.errno == errno.EBADF
    rig.ctx.close(force=True)
    with pytest.raises(StateError):
        PD(rig.ctx)
    # A request that refers to a handle destroyed by the forced close is refused.
    with pytest.raises(Error):
        other.create_ud_qp().post_send(send)
    # The forced close does not affect another device.
    a, b = ListenerAndConnector(other, other).connect()
    b.post_receive(7)
    a.post(SEND, length=8)
    assert poll(b.rcq)[0].ok
    other.close()


def test_with_blocks_can_be_left_after_a_forced_close() -> None:
    with Context("siw_lo") as ctx, PD(ctx) as pd, MR(pd, 64) as mr:
        view = mr.view
        ctx.close(force=True)
    assert ctx.closed and pd.closed and mr.closed
    with pytest.raises(ValueError, match="released"):
        view[0]


def test_threads_that_wait_poll_or_post_get_an_error_from_a_forced_close() -> None:
    rig = Rig("siw_lo")
    channel, ids = CompChannel(rig.ctx), CMEventChannel(rig.ctx)
    a, b = ListenerAndConnector(rig, rig).connect()
    told: dict[str, BaseException] = {}

    def post_send() -> None:
        with contextlib.suppress(LimitError):
            a.post(SEND, length=8)

    def repeat_call(call: Callable[[], object]) -> None:
        while True:
            call()

    def save_error_of_repeated_call(name: str, call: Callable[[], object]) -> None:
        try:
            repeat_call(call)
        except BaseException as e:
            told[name] = e

    calls = {
        "completion event": channel.get_cq_event,
        "a second one": channel.get_cq_event,
        "asynchronous event": rig.ctx.get_async_event,
        "connection event": ids.get_event,
        "poll": lambda: b.rcq.poll(4),
        "post": post_send,
    }
    threads = [
        threading.Thread(target=save_error_of_repeated_call, args=item, daemon=True)
        for item in calls.items()
    ]
    for thread in threads:
        thread.start()
    # The pause is longer than one wait inside the library lasts.
    time.sleep(0.2)
    rig.ctx.close(force=True)
    for thread in threads:
        thread.join(scale_limit(10))
    assert {name: type(e) for name, e in told.items()} == dict.fromkeys(calls, StateError)


def test_a_forced_close_in_a_forked_child_does_not_close_the_parents_device() -> None:
    rig = Rig("siw_lo")
    a, b = ListenerAndConnector(rig, rig).connect()
    pid = os.fork()
    if not pid:
        rig.ctx.close(force=True)
        os._exit(0 if rig.ctx.closed and a.qp.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    b.post_receive(7)
    a.post(SEND, length=8)
    assert poll(b.rcq)[0].ok
    rig.close()
