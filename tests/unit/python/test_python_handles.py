from __future__ import annotations

import errno
import gc
import os
import socket
import subprocess
import sys
import threading

import pytest
from unit.device.test_device_fork import wait_for_sleeping_threads_under_asan
from unit.python.python_harness import UDResources

import siwarp
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
    _ffi,
    source_toward,
)


def run_python_code(code: str, tmp_path: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=str(tmp_path),
        check=False,
    )


def test_a_handle_can_be_closed_twice_and_its_repr_says_closed(ud_resources: UDResources) -> None:
    mr = MR(ud_resources.pd, 100)
    mr.close()
    mr.close()
    assert mr.closed
    assert "closed" in repr(mr)


def test_calls_on_closed_queue_pairs_and_cqs_raise_state_error(ud_resources: UDResources) -> None:
    wr = SendWR(sg=[ud_resources.mr.sge(0, 1)], ah=AH(ud_resources.pd, ud_resources.qp.addr))
    qp = QP(ud_resources.pd, QPInitAttr(QPType.UD, scq=ud_resources.cq))
    qp.close()
    cq = CQ(ud_resources.ctx)
    cq.close()
    for use in (
        lambda: qp.post_send(wr),
        lambda: qp.post_recv([RecvWR()]),
        lambda: qp.qp_num,
        lambda: cq.poll(),
        lambda: cq.poll(16),
        lambda: QP(ud_resources.pd, QPInitAttr(QPType.UD, scq=cq)),
    ):
        with pytest.raises(siwarp.StateError, match="closed"):
            use()


def test_closing_an_object_with_children_fails_with_ebusy_and_names_the_children(
    ud_resources: UDResources,
) -> None:
    with pytest.raises(siwarp.StateError) as caught:
        ud_resources.pd.close()
    assert caught.value.errno == errno.EBUSY
    assert repr(ud_resources.qp) in str(caught.value)
    assert repr(ud_resources.mr) in str(caught.value)
    assert not ud_resources.pd.closed


def test_leaving_a_with_block_closes_the_objects_of_a_device_newest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    shut = _ffi.Handle._destroy_c_object

    def note_kind_and_destroy_handle(self: _ffi.Handle) -> None:
        order.append(self._what)
        shut(self)

    monkeypatch.setattr(_ffi.Handle, "_destroy_c_object", note_kind_and_destroy_handle)
    with Context() as ctx:
        pd = PD(ctx)
        cq = CQ(ctx, channel=CompChannel(ctx))
        mr = MR(pd, 10)
        qp = QP(pd, QPInitAttr(QPType.UD, scq=cq))
    assert all(handle.closed for handle in (ctx, pd, cq, mr, qp))
    assert order == ["QP", "CQ", "completion channel", "MR", "PD", "context"]


def test_registered_memory_cannot_be_resized_until_its_region_is_closed(
    ud_resources: UDResources,
) -> None:
    memory = bytearray(100)
    mr = MR(ud_resources.pd, memory)
    with pytest.raises(BufferError):
        memory.append(0)
    mr.close()
    memory.append(0)
    assert len(memory) == 101


def test_a_handle_keeps_its_parent_objects_alive() -> None:
    cq = CQ(Context())
    gc.collect()
    assert cq.poll() == []
    assert not cq.context.closed
    with cq.context:
        pass


def test_a_garbage_collected_handle_is_destroyed_by_the_next_call(
    ud_resources: UDResources,
) -> None:
    before = len(_ffi._dropped)
    in_c = []
    memory = bytearray(10)

    def create_region_and_drop_reference() -> None:
        MR(ud_resources.pd, memory)
        in_c.append(len(_ffi._dropped))

    thread = threading.Thread(target=create_region_and_drop_reference)
    thread.start()
    thread.join()
    # Garbage collection of the region made no C call.
    assert in_c == [before + 1]
    with pytest.raises(BufferError):
        # Resizing fails, because the memory is still registered.
        memory.append(0)
    _ffi.destroy_objects_of_dropped_handles()
    memory.append(0)
    assert not _ffi._dropped


def test_garbage_collected_handles_in_a_cycle_are_destroyed_children_first() -> None:
    class Holder:
        pass

    holder = Holder()
    holder.me = holder
    holder.ctx = Context()
    holder.pd = PD(holder.ctx)
    holder.cq = CQ(holder.ctx)
    holder.qp = QP(holder.pd, QPInitAttr(QPType.UD, scq=holder.cq))
    port = holder.qp.qp_num
    del holder
    gc.collect()
    _ffi.destroy_objects_of_dropped_handles()
    assert not _ffi._dropped
    # The UDP port of the queue pair is free, so the queue pair has been destroyed.
    with Context() as ctx, PD(ctx) as pd, CQ(ctx) as cq:
        QP(pd, QPInitAttr(QPType.UD, scq=cq, addr=("127.0.0.1", port))).close()


def test_destroying_a_garbage_collected_cq_with_unacknowledged_events_does_not_hang() -> None:
    with Context() as ctx, PD(ctx) as pd, CompChannel(ctx) as channel:
        cq = CQ(ctx, channel=channel)
        qp = QP(pd, QPInitAttr(QPType.UD, scq=cq))
        qp.to_rts()
        cq.req_notify()
        qp.post_send(SendWR(ah=AH(pd, qp.addr)))
        assert channel.get_cq_event(5) is cq
        qp.close()
        del qp, cq
        gc.collect()
        _ffi.destroy_objects_of_dropped_handles()
        assert not _ffi._dropped


def test_a_process_with_open_handles_exits_without_an_error(tmp_path: object) -> None:
    done = run_python_code(
        "from siwarp.verbs import *\n"
        "import threading, time\n"
        "ctx = Context(); pd = PD(ctx); cq = CQ(ctx, channel=CompChannel(ctx))\n"
        "qp = QP(pd, QPInitAttr(QPType.UD, scq=cq)); qp.to_rts()\n"
        "mr = MR(pd, 100)\n"
        "threading.Thread(target=lambda: cq.wait(), daemon=True).start()\n"
        "while not cq.channel._waiters: time.sleep(0.01)\n"
        "print('end')",
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_forked_child_that_exits_leaves_the_parents_handles_working(
    ud_resources: UDResources,
) -> None:
    wait_for_sleeping_threads_under_asan()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            # Closing the inherited queue pair in the child must not disturb the parent.
            ud_resources.qp.close()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    ud_resources.qp.post_recv(RecvWR(1, sg=[ud_resources.mr.sge(0, 10)]))
    ud_resources.qp.post_send(
        SendWR(2, sg=[ud_resources.mr.sge(10, 10)], ah=AH(ud_resources.pd, ud_resources.qp.addr))
    )
    assert {wc.check().wr_id for wc in wait_for_completions(ud_resources, 2)} == {1, 2}


def wait_for_completions(ud: UDResources, count: int) -> list[siwarp.verbs.WC]:
    found: list[siwarp.verbs.WC] = []
    while len(found) < count:
        wcs = ud.cq.wait(5)
        assert wcs, f"{len(found)} of {count} completions arrived"
        found += wcs
    return found


def test_opening_an_unknown_device_fails_with_enodev_and_names_the_known_devices() -> None:
    with pytest.raises(siwarp.Error, match="siw_lo") as caught:
        Context("siw_nowhere")
    assert caught.value.errno == errno.ENODEV


def test_a_device_can_be_opened_by_its_name_its_interface_or_its_address() -> None:
    for name in ("siw_lo", "lo", "127.0.0.1", "::1", None):
        with Context(name) as ctx:
            assert ctx.name == "siw_lo"
            assert "127.0.0.1" in ctx.device.addresses


def test_source_toward_a_link_local_address_includes_the_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = socket.if_nametoindex("lo")
    for bound, told in (
        (("fe80::1", 9, 0, index), "fe80::1%lo"),
        (("fe80::1%lo", 9, 0, index), "fe80::1%lo"),
        (("::1", 9, 0, 0), "::1"),
        (("127.0.0.1", 9), "127.0.0.1"),
    ):
        with monkeypatch.context() as kernel:
            kernel.setattr(socket.socket, "getsockname", lambda _self, bound=bound: bound, False)
            assert source_toward(("127.0.0.1", 9)) == told
