from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.python.python_harness import UDResources

import siwarp
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    QP,
    SGE,
    AHAttr,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendFlag,
    SendWR,
    WCOpcode,
    WCStatus,
)


def poll_completions(ud: UDResources, count: int) -> list[siwarp.verbs.WC]:
    found: list[siwarp.verbs.WC] = []
    deadline = time.monotonic() + 10
    while len(found) < count:
        found += ud.cq.poll(16)
        assert time.monotonic() < deadline, f"{len(found)} of {count} completions arrived: {found}"
    return found


def test_a_ud_message_arrives_with_its_octets_and_its_source(
    ud_resources_each_family: UDResources,
) -> None:
    ud = ud_resources_each_family
    ud.mr.write(b"hello")
    ud.qp.post_recv(RecvWR(1, sg=[ud.mr.sge(100, 50)]))
    ud.qp.post_send(SendWR(2, sg=[ud.mr.sge(0, 5)], ah=AH(ud.pd, ud.qp.addr)))
    by_id = {wc.wr_id: wc for wc in poll_completions(ud, 2)}
    assert by_id[2].opcode == WCOpcode.SEND
    assert by_id[2].source is None
    assert by_id[1].opcode == WCOpcode.RECV
    assert by_id[1].byte_len == 5
    assert by_id[1].source == ud.qp.addr
    assert by_id[1].src_qp == ud.qp.qp_num
    assert ud.mr.read(5, 100) == b"hello"


def test_polling_an_empty_cq_returns_an_empty_list(ud_resources: UDResources) -> None:
    assert ud_resources.cq.poll() == []
    assert ud_resources.cq.poll(16) == []


def test_later_polls_do_not_change_earlier_completions(ud_resources: UDResources) -> None:
    ah = AH(ud_resources.pd, ud_resources.qp.addr)
    ud_resources.qp.post_send(SendWR(1, sg=[ud_resources.mr.sge(0, 1)], ah=ah))
    first = poll_completions(ud_resources, 1)[0]
    ud_resources.qp.post_send(SendWR(2, sg=[ud_resources.mr.sge(0, 2)], ah=ah))
    second = poll_completions(ud_resources, 1)[0]
    assert (first.wr_id, second.wr_id) == (1, 2)


def test_a_list_of_requests_is_posted_in_its_order(ud_resources: UDResources) -> None:
    ah = AH(ud_resources.pd, ud_resources.qp.addr)
    ud_resources.qp.post_recv(
        [RecvWR(100 + i, sg=[ud_resources.mr.sge(64 * i, 64)]) for i in range(20)]
    )
    ud_resources.qp.post_send(
        [SendWR(i, sg=[ud_resources.mr.sge(2000, i)], ah=ah) for i in range(20)]
    )
    wcs = poll_completions(ud_resources, 40)
    assert [wc.wr_id for wc in wcs if wc.opcode == WCOpcode.SEND] == list(range(20))
    recvs = [wc for wc in wcs if wc.opcode == WCOpcode.RECV]
    assert [wc.wr_id for wc in recvs] == [100 + i for i in range(20)]
    assert [wc.byte_len for wc in recvs] == list(range(20))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(lists=st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6))
def test_the_same_requests_can_be_posted_repeatedly_in_any_lists(
    ud_resources: UDResources, lists: list[list[int]]
) -> None:
    requests = [RecvWR(i, sg=[ud_resources.mr.sge(0, 1)]) for i in range(4)]
    expected = []
    for numbers in lists:
        if len(numbers) == 1:
            ud_resources.qp.post_recv(requests[numbers[0]])
        else:
            ud_resources.qp.post_recv([requests[n] for n in numbers])
        expected += numbers
    ud_resources.qp.modify(QPAttr(qp_state=QPState.ERR))
    wcs = poll_completions(ud_resources, len(expected))
    assert [wc.wr_id for wc in wcs] == expected
    assert all(wc.status == WCStatus.WR_FLUSH_ERR for wc in wcs)
    assert ud_resources.cq.poll(16) == []
    ud_resources.qp.modify(QPAttr(qp_state=QPState.RESET))
    ud_resources.qp.to_rts()


def test_the_first_refused_request_of_a_list_is_bad_wr_and_earlier_ones_are_posted(
    ud_resources: UDResources,
) -> None:
    ah = AH(ud_resources.pd, ud_resources.qp.addr)
    good = [SendWR(i, sg=[ud_resources.mr.sge(0, 8)], ah=ah) for i in range(2)]
    bad = SendWR(9, sg=[ud_resources.mr.sge(0, 8)])
    with pytest.raises(siwarp.Error, match="address handle") as caught:
        ud_resources.qp.post_send([*good, bad, good[0]])
    assert caught.value.bad_wr is bad
    assert [wc.wr_id for wc in poll_completions(ud_resources, 2)] == [0, 1]


def test_posting_to_a_full_receive_queue_raises_limit_error(ud_resources: UDResources) -> None:
    wr = RecvWR(sg=[ud_resources.mr.sge(0, 1)])
    with pytest.raises(siwarp.LimitError, match=str(ud_resources.qp.cap.max_recv_wr)) as caught:
        ud_resources.qp.post_recv([wr] * (ud_resources.qp.cap.max_recv_wr + 1))
    assert caught.value.errno == errno.ENOMEM
    assert caught.value.bad_wr is wr


def test_a_ud_message_longer_than_max_ud_msg_completes_with_limit_error(
    ud_resources: UDResources,
) -> None:
    most = ud_resources.ctx.query_device().max_ud_msg
    ah = AH(ud_resources.pd, ud_resources.qp.addr)
    with MR(ud_resources.pd, most + 1) as mr:
        ud_resources.qp.post_send(SendWR(sg=[mr.sge(0, most)], ah=ah))
        assert poll_completions(ud_resources, 1)[0].ok
        ud_resources.qp.post_send(SendWR(7, sg=[mr.sge()], ah=ah))
        with pytest.raises(siwarp.LimitError, match="max_ud_msg") as caught:
            poll_completions(ud_resources, 1)[0].check()
    assert caught.value.errno == errno.EMSGSIZE


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda ud, ah: SendWR(sg=[ud.mr.sge(0, 1)] * 5, ah=ah),
            "has 5 elements.*max_send_sge of the QP is 4",
        ),
        (lambda ud, ah: SendWR(sg=[ud.mr.sge()], ah=ah, send_flags=SendFlag.INLINE), "inline"),
        (lambda ud, ah: SendWR(opcode=0, sg=[ud.mr.sge(0, 1)], ah=ah), "only SEND"),
    ],
)
def test_an_invalid_ud_send_request_is_refused_with_the_reason(
    ud_resources: UDResources, make: object, words: str
) -> None:
    with pytest.raises(siwarp.Error, match=words) as caught:
        ah = AH(ud_resources.pd, ud_resources.qp.addr)
        ud_resources.qp.post_send(make(ud_resources, ah))  # type: ignore[operator]
    assert caught.value.errno == errno.EINVAL


def test_posting_an_object_other_than_a_request_raises_type_error(
    ud_resources: UDResources,
) -> None:
    for wrong in ("x", RecvWR(), 5, [RecvWR()]):
        with pytest.raises(TypeError):
            ud_resources.qp.post_send(wrong)  # type: ignore[arg-type]


def test_the_error_of_posting_in_a_wrong_state_names_the_remedy(ud_resources: UDResources) -> None:
    qp = QP(ud_resources.pd, QPInitAttr(QPType.UD, scq=ud_resources.cq))
    with pytest.raises(siwarp.StateError, match="INIT first"):
        qp.post_recv(RecvWR())
    qp.to_init()
    qp.post_recv(RecvWR())
    with pytest.raises(siwarp.StateError, match="to_rts"):
        qp.post_send(SendWR(ah=AH(ud_resources.pd, ud_resources.qp.addr)))
    with pytest.raises(siwarp.StateError, match="from INIT to RTS"):
        qp.modify(QPAttr(qp_state=QPState.RTS))
    qp.to_rts()
    assert qp.qp_state == QPState.RTS


def test_scatter_gather_elements_are_used_in_order(ud_resources: UDResources) -> None:
    ud_resources.mr.write(b"abcdefghij")
    parts = [
        ud_resources.mr.sge(8, 2),
        ud_resources.mr.sge(0, 3),
        ud_resources.mr.sge(5, 0),
        ud_resources.mr.sge(3, 5),
    ]
    ud_resources.qp.post_recv(
        RecvWR(1, sg=[ud_resources.mr.sge(100, 4), ud_resources.mr.sge(200, 100)])
    )
    ud_resources.qp.post_send(
        SendWR(sg=parts, ah=AH(ud_resources.pd, ud_resources.qp.addr), send_flags=0)
    )
    assert poll_completions(ud_resources, 1)[0].check().byte_len == 10
    assert ud_resources.mr.read(4, 100) + ud_resources.mr.read(6, 200) == b"ijabcdefgh"


def test_a_scatter_gather_element_can_be_changed_between_two_posts(
    ud_resources: UDResources,
) -> None:
    wr = SendWR(
        sg=[ud_resources.mr.sge(0, 1)], ah=AH(ud_resources.pd, ud_resources.qp.addr), send_flags=0
    )
    for length in (1, 17, 3):
        wr.sg[0].length = length
        ud_resources.qp.post_recv(RecvWR(sg=[ud_resources.mr.sge(100, 100)]))
        ud_resources.qp.post_send(wr)
        assert poll_completions(ud_resources, 1)[0].byte_len == length


def test_the_octets_of_an_inline_send_are_copied_when_posted(ud_resources: UDResources) -> None:
    ud_resources.mr.write(b"first")
    ud_resources.qp.post_recv(RecvWR(sg=[ud_resources.mr.sge(100, 100)]))
    flags = SendFlag.INLINE
    ud_resources.qp.post_send(
        SendWR(
            sg=[ud_resources.mr.sge(0, 5)],
            ah=AH(ud_resources.pd, ud_resources.qp.addr),
            send_flags=flags,
        )
    )
    ud_resources.mr.write(b"later")
    poll_completions(ud_resources, 1)
    assert ud_resources.mr.read(5, 100) == b"first"


def test_a_send_with_a_wrong_key_completes_with_an_error_that_check_raises(
    ud_resources: UDResources,
) -> None:
    wrong = SGE(ud_resources.mr.addr, 8, ud_resources.mr.lkey ^ 1)
    ud_resources.qp.post_send(SendWR(3, sg=[wrong], ah=AH(ud_resources.pd, ud_resources.qp.addr)))
    wc = poll_completions(ud_resources, 1)[0]
    assert (wc.wr_id, wc.status) == (3, WCStatus.LOC_PROT_ERR)
    assert "LOC_PROT_ERR" in repr(wc)
    with pytest.raises(siwarp.Error, match="LOC_PROT_ERR"):
        wc.check()


def test_a_request_with_a_closed_address_handle_is_refused(ud_resources: UDResources) -> None:
    ah = AH(ud_resources.pd, ud_resources.qp.addr)
    wr = SendWR(sg=[ud_resources.mr.sge(0, 1)], ah=ah)
    ud_resources.qp.post_send(wr)
    poll_completions(ud_resources, 1)
    ah.close()
    with pytest.raises(siwarp.Error, match="valid address handle"):
        ud_resources.qp.post_send(wr)
    wr.set_wr_ud(AH(ud_resources.pd, AHAttr(*ud_resources.qp.addr)))
    ud_resources.qp.post_send(wr)
    assert poll_completions(ud_resources, 1)[0].ok


def test_an_address_handle_from_a_completion_has_the_sender_as_destination(
    ud_resources: UDResources,
) -> None:
    other = QP(ud_resources.pd, QPInitAttr(QPType.UD, scq=ud_resources.cq))
    other.to_rts()
    ud_resources.qp.post_recv(RecvWR(1, sg=[ud_resources.mr.sge(0, 9)]))
    other.post_recv(RecvWR(2, sg=[ud_resources.mr.sge(9, 9)]))
    other.post_send(SendWR(ah=AH(ud_resources.pd, ud_resources.qp.addr), send_flags=0))
    asked = poll_completions(ud_resources, 1)[0]
    assert asked.wr_id == 1
    back = AH(ud_resources.pd, wc=asked)
    assert back.dest == other.addr
    ud_resources.qp.post_send(SendWR(ah=back, send_flags=0))
    assert poll_completions(ud_resources, 1)[0].wr_id == 2
    with pytest.raises(siwarp.Error, match="destination"):
        AH(ud_resources.pd)


def test_a_queue_pair_takes_over_a_socket_of_the_program(ud_resources: UDResources) -> None:
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind(("127.0.0.1", 0))
    port = own.getsockname()[1]
    qp = QP(ud_resources.pd, QPInitAttr(QPType.UD, scq=ud_resources.cq))
    qp.to_rts(QPAttr(fd=own))
    # The queue pair has taken over the descriptor.
    assert own.fileno() == -1
    assert qp.qp_num == port
    qp.post_recv(RecvWR(5, sg=[ud_resources.mr.sge(0, 9)]))
    ud_resources.qp.post_send(
        SendWR(
            sg=[ud_resources.mr.sge(0, 3)],
            ah=AH(ud_resources.pd, ("127.0.0.1", port)),
            send_flags=0,
        )
    )
    assert poll_completions(ud_resources, 1)[0].wr_id == 5


def test_creating_a_queue_pair_at_a_port_in_use_fails_with_eaddrinuse(
    ud_resources: UDResources,
) -> None:
    with pytest.raises(siwarp.Error, match="another") as caught:
        QP(ud_resources.pd, QPInitAttr(QPType.UD, scq=ud_resources.cq, addr=ud_resources.qp.addr))
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("crc", [True, False])
def test_query_returns_the_attributes_with_which_a_queue_pair_was_created(
    ud_resources: UDResources, crc: bool
) -> None:
    cap = QPCap(3, 5, 2, 2, 16)
    qp = QP(
        ud_resources.pd,
        QPInitAttr(QPType.UD, scq=ud_resources.cq, cap=cap, crc=crc, sq_sig_all=True),
    )
    qp.to_init(QPAttr(qkey=0x1234))
    attr, init = qp.query()
    assert (attr.qp_state, attr.qkey) == (QPState.INIT, 0x1234)
    assert (init.qp_type, init.crc, init.sq_sig_all) == (QPType.UD, crc, True)
    assert init.cap == qp.cap
    assert qp.cap.max_send_wr >= 3 and qp.cap.max_recv_wr >= 5
    assert init.addr == qp.addr == ("127.0.0.1", qp.qp_num)


def test_queue_pair_capabilities_above_the_device_limits_are_refused(
    ud_resources: UDResources,
) -> None:
    most = ud_resources.ctx.query_device().max_sge
    with pytest.raises(siwarp.Error, match="device limit") as caught:
        QP(ud_resources.pd, QPInitAttr(scq=ud_resources.cq, cap=QPCap(max_send_sge=most + 1)))
    assert caught.value.errno == errno.EINVAL


def test_the_address_of_an_address_handle_must_be_a_host_and_a_port(
    ud_resources: UDResources,
) -> None:
    with pytest.raises(TypeError, match="host, port"):
        AH(ud_resources.pd, "127.0.0.1:4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="65535"):
        AH(ud_resources.pd, ("127.0.0.1", 65536))
    assert AH(ud_resources.pd, ("localhost", 9)).dest[1] == 9
    with pytest.raises(siwarp.Error, match="nor a known host"):
        AH(ud_resources.pd, ("name.invalid", 9))


def test_a_completion_raises_one_cq_event_that_is_acknowledged(
    ud_resources: UDResources,
) -> None:
    ud_resources.cq.req_notify()
    ud_resources.qp.post_send(SendWR(1, ah=AH(ud_resources.pd, ud_resources.qp.addr)))
    assert ud_resources.channel.get_cq_event(5) is ud_resources.cq
    ud_resources.cq.ack_events(1)
    assert poll_completions(ud_resources, 1)[0].wr_id == 1
    assert ud_resources.channel.get_cq_event(0) is None


def test_waiting_on_a_cq_without_a_channel_raises_state_error(ud_resources: UDResources) -> None:
    with CQ(ud_resources.ctx) as cq, pytest.raises(siwarp.StateError, match="channel"):
        cq.wait(1)


def test_closing_a_channel_on_which_a_thread_waits_fails_with_ebusy(
    ud_resources: UDResources,
) -> None:
    answers: list[object] = []
    ud_resources.cq.req_notify()
    thread = threading.Thread(target=lambda: answers.append(ud_resources.channel.get_cq_event(20)))
    thread.start()
    time.sleep(0.1)
    assert thread.is_alive()
    with pytest.raises(siwarp.StateError, match="a thread waits") as caught:
        ud_resources.qp.close()
        ud_resources.cq.close()
        ud_resources.channel.close()
    assert caught.value.errno == errno.EBUSY
    # The CQ has been destroyed and raises no event, so the wait ends by a completion of another CQ.
    cq = CQ(ud_resources.ctx, channel=ud_resources.channel)
    qp = QP(ud_resources.pd, QPInitAttr(QPType.UD, scq=cq))
    qp.to_rts()
    cq.req_notify()
    qp.post_send(SendWR(ah=AH(ud_resources.pd, qp.addr)))
    thread.join(10)
    assert answers == [cq]


INTERRUPTED_PROGRAM = """
import os, sys, time
from siwarp.verbs import *
ctx = Context(); channel = CompChannel(ctx); cq = CQ(ctx, channel=channel)
print("waiting", flush=True)
try:
    channel.get_cq_event()
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


def test_ctrl_c_interrupts_a_wait_for_a_cq_event_within_a_tenth_of_a_second(
    tmp_path: object,
) -> None:
    delays = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED_PROGRAM],
            stdout=subprocess.PIPE,
            text=True,
            cwd=str(tmp_path),
        ) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "waiting\n"
                time.sleep(0.2)
                sent = time.monotonic()
                os.kill(process.pid, signal.SIGINT)
                delays.append(float(process.stdout.readline()) - sent)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == 0
    assert min(delays) < 0.1


def test_threads_that_poll_one_cq_get_each_completion_once(ud_resources: UDResources) -> None:
    count = 2000
    ah = AH(ud_resources.pd, ud_resources.qp.addr)
    seen: list[int] = []
    done = threading.Event()

    def poll_until_done(n: int) -> None:
        while not done.is_set():
            seen.extend([wc.wr_id for wc in ud_resources.cq.poll(n)])

    threads = [threading.Thread(target=poll_until_done, args=(n,)) for n in (1, 1, 4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    for i in range(count):
        while i - len(seen) >= 64 and time.monotonic() < deadline:
            time.sleep(0.0001)
        ud_resources.qp.post_send(SendWR(i, sg=[ud_resources.mr.sge(0, 8)], ah=ah))
    while len(seen) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    done.set()
    for thread in threads:
        thread.join(10)
    assert sorted(seen) == list(range(count))
