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
from unit.python.python_harness import UD

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


def take(ud: UD, count: int) -> list[siwarp.verbs.WC]:
    found: list[siwarp.verbs.WC] = []
    deadline = time.monotonic() + 10
    while len(found) < count:
        found += ud.cq.poll(16)
        assert time.monotonic() < deadline, f"{len(found)} of {count} completions came: {found}"
    return found


def test_a_message_arrives_with_its_octets_and_its_source(ud_each_family: UD) -> None:
    ud = ud_each_family
    ud.mr.write(b"hello")
    ud.qp.post_recv(RecvWR(1, sg=[ud.mr.sge(100, 50)]))
    ud.qp.post_send(SendWR(2, sg=[ud.mr.sge(0, 5)], ah=AH(ud.pd, ud.qp.addr)))
    by_id = {wc.wr_id: wc for wc in take(ud, 2)}
    assert by_id[2].opcode == WCOpcode.SEND
    assert by_id[2].source is None
    assert by_id[1].opcode == WCOpcode.RECV
    assert by_id[1].byte_len == 5
    assert by_id[1].source == ud.qp.addr
    assert by_id[1].src_qp == ud.qp.qp_num
    assert ud.mr.read(5, 100) == b"hello"


def test_an_empty_queue_polls_to_an_empty_list(ud: UD) -> None:
    assert ud.cq.poll() == []
    assert ud.cq.poll(16) == []


def test_completions_are_values_that_later_polls_leave_alone(ud: UD) -> None:
    ah = AH(ud.pd, ud.qp.addr)
    ud.qp.post_send(SendWR(1, sg=[ud.mr.sge(0, 1)], ah=ah))
    first = take(ud, 1)[0]
    ud.qp.post_send(SendWR(2, sg=[ud.mr.sge(0, 2)], ah=ah))
    second = take(ud, 1)[0]
    assert (first.wr_id, second.wr_id) == (1, 2)


def test_a_list_is_posted_in_its_order(ud: UD) -> None:
    ah = AH(ud.pd, ud.qp.addr)
    ud.qp.post_recv([RecvWR(100 + i, sg=[ud.mr.sge(64 * i, 64)]) for i in range(20)])
    ud.qp.post_send([SendWR(i, sg=[ud.mr.sge(2000, i)], ah=ah) for i in range(20)])
    wcs = take(ud, 40)
    assert [wc.wr_id for wc in wcs if wc.opcode == WCOpcode.SEND] == list(range(20))
    recvs = [wc for wc in wcs if wc.opcode == WCOpcode.RECV]
    assert [wc.wr_id for wc in recvs] == [100 + i for i in range(20)]
    assert [wc.byte_len for wc in recvs] == list(range(20))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(lists=st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6))
def test_the_same_requests_can_be_posted_in_any_lists_again_and_again(
    ud: UD, lists: list[list[int]]
) -> None:
    requests = [RecvWR(i, sg=[ud.mr.sge(0, 1)]) for i in range(4)]
    expected = []
    for numbers in lists:
        if len(numbers) == 1:
            ud.qp.post_recv(requests[numbers[0]])
        else:
            ud.qp.post_recv([requests[n] for n in numbers])
        expected += numbers
    ud.qp.modify(QPAttr(qp_state=QPState.ERR))
    wcs = take(ud, len(expected))
    assert [wc.wr_id for wc in wcs] == expected
    assert all(wc.status == WCStatus.WR_FLUSH_ERR for wc in wcs)
    assert ud.cq.poll(16) == []
    ud.qp.modify(QPAttr(qp_state=QPState.RESET))
    ud.qp.to_rts()


def test_the_first_request_that_is_not_taken_is_told_and_those_before_it_are_posted(
    ud: UD,
) -> None:
    ah = AH(ud.pd, ud.qp.addr)
    good = [SendWR(i, sg=[ud.mr.sge(0, 8)], ah=ah) for i in range(2)]
    bad = SendWR(9, sg=[ud.mr.sge(0, 8)])
    with pytest.raises(siwarp.Error, match="address handle") as caught:
        ud.qp.post_send([*good, bad, good[0]])
    assert caught.value.bad_wr is bad
    assert [wc.wr_id for wc in take(ud, 2)] == [0, 1]


def test_a_full_receive_queue_is_a_limit_error(ud: UD) -> None:
    wr = RecvWR(sg=[ud.mr.sge(0, 1)])
    with pytest.raises(siwarp.LimitError, match=str(ud.qp.cap.max_recv_wr)) as caught:
        ud.qp.post_recv([wr] * (ud.qp.cap.max_recv_wr + 1))
    assert caught.value.errno == errno.ENOMEM
    assert caught.value.bad_wr is wr


def test_a_message_longer_than_a_datagram_completes_with_an_error_that_names_the_limit(
    ud: UD,
) -> None:
    most = ud.ctx.query_device().max_ud_msg
    ah = AH(ud.pd, ud.qp.addr)
    with MR(ud.pd, most + 1) as mr:
        ud.qp.post_send(SendWR(sg=[mr.sge(0, most)], ah=ah))
        assert take(ud, 1)[0].ok
        ud.qp.post_send(SendWR(7, sg=[mr.sge()], ah=ah))
        with pytest.raises(siwarp.LimitError, match="max_ud_msg") as caught:
            take(ud, 1)[0].check()
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
def test_a_request_that_cannot_be_is_refused_with_the_reason(
    ud: UD, make: object, words: str
) -> None:
    with pytest.raises(siwarp.Error, match=words) as caught:
        ud.qp.post_send(make(ud, AH(ud.pd, ud.qp.addr)))  # type: ignore[operator]
    assert caught.value.errno == errno.EINVAL


def test_only_requests_can_be_posted(ud: UD) -> None:
    for wrong in ("x", RecvWR(), 5, [RecvWR()]):
        with pytest.raises(TypeError):
            ud.qp.post_send(wrong)  # type: ignore[arg-type]


def test_posting_before_the_state_allows_it_says_what_to_do(ud: UD) -> None:
    qp = QP(ud.pd, QPInitAttr(QPType.UD, scq=ud.cq))
    with pytest.raises(siwarp.StateError, match="INIT first"):
        qp.post_recv(RecvWR())
    qp.to_init()
    qp.post_recv(RecvWR())
    with pytest.raises(siwarp.StateError, match="to_rts"):
        qp.post_send(SendWR(ah=AH(ud.pd, ud.qp.addr)))
    with pytest.raises(siwarp.StateError, match="from INIT to RTS"):
        qp.modify(QPAttr(qp_state=QPState.RTS))
    qp.to_rts()
    assert qp.qp_state == QPState.RTS


def test_scattered_elements_are_gathered_in_their_order(ud: UD) -> None:
    ud.mr.write(b"abcdefghij")
    parts = [ud.mr.sge(8, 2), ud.mr.sge(0, 3), ud.mr.sge(5, 0), ud.mr.sge(3, 5)]
    ud.qp.post_recv(RecvWR(1, sg=[ud.mr.sge(100, 4), ud.mr.sge(200, 100)]))
    ud.qp.post_send(SendWR(sg=parts, ah=AH(ud.pd, ud.qp.addr), send_flags=0))
    assert take(ud, 1)[0].check().byte_len == 10
    assert ud.mr.read(4, 100) + ud.mr.read(6, 200) == b"ijabcdefgh"


def test_an_element_can_be_changed_between_two_posts(ud: UD) -> None:
    wr = SendWR(sg=[ud.mr.sge(0, 1)], ah=AH(ud.pd, ud.qp.addr), send_flags=0)
    for length in (1, 17, 3):
        wr.sg[0].length = length
        ud.qp.post_recv(RecvWR(sg=[ud.mr.sge(100, 100)]))
        ud.qp.post_send(wr)
        assert take(ud, 1)[0].byte_len == length


def test_inline_octets_are_taken_when_posted(ud: UD) -> None:
    ud.mr.write(b"first")
    ud.qp.post_recv(RecvWR(sg=[ud.mr.sge(100, 100)]))
    flags = SendFlag.INLINE
    ud.qp.post_send(SendWR(sg=[ud.mr.sge(0, 5)], ah=AH(ud.pd, ud.qp.addr), send_flags=flags))
    ud.mr.write(b"later")
    take(ud, 1)
    assert ud.mr.read(5, 100) == b"first"


def test_a_wrong_key_is_a_completion_with_an_error_and_check_raises_it(ud: UD) -> None:
    wrong = SGE(ud.mr.addr, 8, ud.mr.lkey ^ 1)
    ud.qp.post_send(SendWR(3, sg=[wrong], ah=AH(ud.pd, ud.qp.addr)))
    wc = take(ud, 1)[0]
    assert (wc.wr_id, wc.status) == (3, WCStatus.LOC_PROT_ERR)
    assert "LOC_PROT_ERR" in repr(wc)
    with pytest.raises(siwarp.Error, match="LOC_PROT_ERR"):
        wc.check()


def test_a_request_whose_address_handle_was_closed_is_refused(ud: UD) -> None:
    ah = AH(ud.pd, ud.qp.addr)
    wr = SendWR(sg=[ud.mr.sge(0, 1)], ah=ah)
    ud.qp.post_send(wr)
    take(ud, 1)
    ah.close()
    with pytest.raises(siwarp.Error, match="valid address handle"):
        ud.qp.post_send(wr)
    wr.set_wr_ud(AH(ud.pd, AHAttr(*ud.qp.addr)))
    ud.qp.post_send(wr)
    assert take(ud, 1)[0].ok


def test_an_address_handle_of_a_completion_leads_back_to_the_sender(ud: UD) -> None:
    other = QP(ud.pd, QPInitAttr(QPType.UD, scq=ud.cq))
    other.to_rts()
    ud.qp.post_recv(RecvWR(1, sg=[ud.mr.sge(0, 9)]))
    other.post_recv(RecvWR(2, sg=[ud.mr.sge(9, 9)]))
    other.post_send(SendWR(ah=AH(ud.pd, ud.qp.addr), send_flags=0))
    asked = take(ud, 1)[0]
    assert asked.wr_id == 1
    back = AH(ud.pd, wc=asked)
    assert back.dest == other.addr
    ud.qp.post_send(SendWR(ah=back, send_flags=0))
    assert take(ud, 1)[0].wr_id == 2
    with pytest.raises(siwarp.Error, match="destination"):
        AH(ud.pd)


def test_a_users_own_socket_becomes_the_queue_pairs(ud: UD) -> None:
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind(("127.0.0.1", 0))
    port = own.getsockname()[1]
    qp = QP(ud.pd, QPInitAttr(QPType.UD, scq=ud.cq))
    qp.to_rts(QPAttr(fd=own))
    assert own.fileno() == -1  # the queue pair has taken over the descriptor
    assert qp.qp_num == port
    qp.post_recv(RecvWR(5, sg=[ud.mr.sge(0, 9)]))
    ud.qp.post_send(SendWR(sg=[ud.mr.sge(0, 3)], ah=AH(ud.pd, ("127.0.0.1", port)), send_flags=0))
    assert take(ud, 1)[0].wr_id == 5


def test_a_port_in_use_is_eaddrinuse(ud: UD) -> None:
    with pytest.raises(siwarp.Error, match="another") as caught:
        QP(ud.pd, QPInitAttr(QPType.UD, scq=ud.cq, addr=ud.qp.addr))
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("crc", [True, False])
def test_query_tells_what_the_queue_pair_was_made_with(ud: UD, crc: bool) -> None:
    cap = QPCap(3, 5, 2, 2, 16)
    qp = QP(ud.pd, QPInitAttr(QPType.UD, scq=ud.cq, cap=cap, crc=crc, sq_sig_all=True))
    qp.to_init(QPAttr(qkey=0x1234))
    attr, init = qp.query()
    assert (attr.qp_state, attr.qkey) == (QPState.INIT, 0x1234)
    assert (init.qp_type, init.crc, init.sq_sig_all) == (QPType.UD, crc, True)
    assert init.cap == qp.cap
    assert qp.cap.max_send_wr >= 3 and qp.cap.max_recv_wr >= 5
    assert init.addr == qp.addr == ("127.0.0.1", qp.qp_num)


def test_capabilities_above_the_devices_are_refused(ud: UD) -> None:
    most = ud.ctx.query_device().max_sge
    with pytest.raises(siwarp.Error, match="device limit") as caught:
        QP(ud.pd, QPInitAttr(scq=ud.cq, cap=QPCap(max_send_sge=most + 1)))
    assert caught.value.errno == errno.EINVAL


def test_an_address_is_a_host_and_a_port(ud: UD) -> None:
    with pytest.raises(TypeError, match="host, port"):
        AH(ud.pd, "127.0.0.1:4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="65535"):
        AH(ud.pd, ("127.0.0.1", 65536))
    assert AH(ud.pd, ("localhost", 9)).dest[1] == 9
    with pytest.raises(siwarp.Error, match="nor a known host"):
        AH(ud.pd, ("name.invalid", 9))


def test_an_event_comes_for_a_completion_and_is_counted_until_acknowledged(ud: UD) -> None:
    ud.cq.req_notify()
    ud.qp.post_send(SendWR(1, ah=AH(ud.pd, ud.qp.addr)))
    assert ud.channel.get_cq_event(5) is ud.cq
    ud.cq.ack_events(1)
    assert take(ud, 1)[0].wr_id == 1
    assert ud.channel.get_cq_event(0) is None


def test_a_queue_without_a_channel_cannot_be_waited_for(ud: UD) -> None:
    with CQ(ud.ctx) as cq, pytest.raises(siwarp.StateError, match="channel"):
        cq.wait(1)


def test_other_threads_run_while_one_waits_and_a_waiting_channel_does_not_close(ud: UD) -> None:
    answers: list[object] = []
    ud.cq.req_notify()
    thread = threading.Thread(target=lambda: answers.append(ud.channel.get_cq_event(20)))
    thread.start()
    time.sleep(0.1)
    assert thread.is_alive()
    with pytest.raises(siwarp.StateError, match="a thread waits") as caught:
        ud.qp.close()
        ud.cq.close()
        ud.channel.close()
    assert caught.value.errno == errno.EBUSY
    # The CQ has been destroyed, so no event will come for it: the wait ends by a completion of
    # another CQ.
    cq = CQ(ud.ctx, channel=ud.channel)
    qp = QP(ud.pd, QPInitAttr(QPType.UD, scq=cq))
    qp.to_rts()
    cq.req_notify()
    qp.post_send(SendWR(ah=AH(ud.pd, qp.addr)))
    thread.join(10)
    assert answers == [cq]


INTERRUPTED = """
import os, sys, time
from siwarp.verbs import *
ctx = Context(); channel = CompChannel(ctx); cq = CQ(ctx, channel=channel)
print("waiting", flush=True)
try:
    channel.get_cq_event()
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


def test_ctrl_c_interrupts_a_wait_within_a_tenth_of_a_second(tmp_path: object) -> None:
    delays = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED],
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


def test_threads_that_poll_one_queue_get_each_completion_once(ud: UD) -> None:
    count = 2000
    ah = AH(ud.pd, ud.qp.addr)
    seen: list[int] = []
    done = threading.Event()

    def poll(n: int) -> None:
        while not done.is_set():
            seen.extend([wc.wr_id for wc in ud.cq.poll(n)])

    threads = [threading.Thread(target=poll, args=(n,)) for n in (1, 1, 4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    for i in range(count):
        while i - len(seen) >= 64 and time.monotonic() < deadline:
            time.sleep(0.0001)
        ud.qp.post_send(SendWR(i, sg=[ud.mr.sge(0, 8)], ah=ah))
    while len(seen) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    done.set()
    for thread in threads:
        thread.join(10)
    assert sorted(seen) == list(range(count))
