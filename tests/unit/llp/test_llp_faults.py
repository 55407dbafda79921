"""Fault plans applied to real sockets on loopback."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time

import pytest
from pace import limit_exceeded
from unit.llp.llp_harness import LoopDescriptor
from unit.llp.test_llp_capture import (
    capture_to_file,
    packet_comment,
    read_packets,
    transport_payload,
)

#: Additional seconds that an event may take under a sanitizer or on a loaded machine.
EXTRA_SECONDS = 5.0


@contextlib.contextmanager
def temporarily_install_fault_plan(llp_helpers, text):
    rv = llp_helpers.lib.siw_faults_install_plan(text.encode())
    assert rv == 0, llp_helpers.ffi.string(llp_helpers.lib.siw_faults_error_text()).decode()
    try:
        yield
    finally:
        assert llp_helpers.lib.siw_faults_install_plan(llp_helpers.ffi.NULL) == 0


def receive_until_quiet(poller, sock, quiet=0.15, most=10**6):
    """Return the datagrams that arrive until none has arrived for ``quiet`` seconds.

    Loopback delivers a datagram within sendto, so with ``quiet=0`` an empty result shows that no
    datagram was sent.
    """
    got, end = [], time.monotonic() + quiet
    while len(got) < most:
        moved = False
        for s in poller.poll():
            while s is sock:
                rv, data, _ = s.recvfrom()
                if rv < 0:
                    assert rv == -errno.EAGAIN
                    break
                got.append(data)
                moved = True
        if moved:
            end = time.monotonic() + quiet
        elif time.monotonic() >= end:
            break
        else:
            poller.wait(20000)
    return got


def numbered_datagrams(n):
    return [i.to_bytes(4, "big") for i in range(n)]


def send_each_datagram(sock, dest, datagrams):
    for data in datagrams:
        assert sock.sendto(dest, data) == 0


def test_an_invalid_fault_plan_is_refused_with_a_reason_and_changes_nothing(llp_helpers):
    with temporarily_install_fault_plan(llp_helpers, "loss=1%"):
        assert llp_helpers.lib.siw_faults_install_plan(b"loss=1%;delay=2") == -errno.EINVAL
        why = llp_helpers.ffi.string(llp_helpers.lib.siw_faults_error_text()).decode()
        assert why.startswith("clause 2, character 15: ")
        out = llp_helpers.ffi.new("char[64]")
        assert llp_helpers.lib.siw_faults_format_current_plan(out, 64) == 7
        assert llp_helpers.ffi.string(out) == b"loss=1%"
    assert llp_helpers.lib.siw_faults_format_current_plan(out, 64) == 0


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_fault_plan_loses_the_same_datagrams_for_the_same_seed(poller, llp_helpers, way):
    runs = []
    for seed in (7, 7, 8):
        a, b = poller.open_udp(), poller.open_udp()
        counters = llp_helpers.Counters()
        with temporarily_install_fault_plan(llp_helpers, f"{way}:loss=10%,seed={seed}"):
            send_each_datagram(a, b.local_addr(), numbered_datagrams(1000))
            runs.append(receive_until_quiet(poller, b))
        assert 1000 - len(runs[-1]) == counters["fault_loss"]
        # The number of losses lies within five standard deviations of the binomial distribution.
        assert abs(counters["fault_loss"] - 100) <= 5 * math.sqrt(1000 * 0.1 * 0.9)
        assert runs[-1] == sorted(runs[-1])
        a.close()
        b.close()
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_fault_plan_has_no_effect_after_its_removal(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    with temporarily_install_fault_plan(llp_helpers, "loss=100%"):
        send_each_datagram(a, b.local_addr(), numbered_datagrams(10))
    send_each_datagram(a, b.local_addr(), numbered_datagrams(10))
    assert receive_until_quiet(poller, b, most=10) == numbered_datagrams(10)


def test_a_burst_of_losses_drops_consecutive_datagrams(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    with temporarily_install_fault_plan(llp_helpers, "tx:loss=5%,burst=4"):
        send_each_datagram(a, b.local_addr(), numbered_datagrams(1000))
        got = {int.from_bytes(d, "big") for d in receive_until_quiet(poller, b)}
    lost = "".join("." if i in got else "x" for i in range(1000))
    runs = [len(r) for r in lost[:-4].split(".") if r]
    assert runs
    assert all(r % 4 == 0 for r in runs)


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_duplicates_arrive_directly_after_their_originals(poller, llp_helpers, way):
    a, b = poller.open_udp(), poller.open_udp()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, f"{way}:dup=20%"):
        send_each_datagram(a, b.local_addr(), numbered_datagrams(500))
        got = receive_until_quiet(poller, b)
    assert sorted(set(got)) == numbered_datagrams(500)
    assert len(got) == 500 + counters["fault_dup"]
    assert counters["fault_dup"] > 50
    assert got == sorted(got)


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_reordered_datagram_is_overtaken_by_at_most_three_datagrams(poller, llp_helpers, way):
    a, b = poller.open_udp(), poller.open_udp()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, f"{way}:reorder=10%"):
        send_each_datagram(a, b.local_addr(), numbered_datagrams(500))
        got = [int.from_bytes(d, "big") for d in receive_until_quiet(poller, b, quiet=0.5)]
    assert sorted(got) == list(range(500))
    late = [n for at, n in enumerate(got) if any(m > n for m in got[:at])]
    # A held datagram next to another held datagram may still arrive in order.
    assert 0 < len(late) <= counters["fault_reorder"]
    assert counters["fault_reorder"] <= 50 + 5 * math.sqrt(45)
    assert max(sum(m > n for m in got[:at]) for at, n in enumerate(got)) <= 3


def test_a_reordered_datagram_without_successors_is_sent_after_a_time_out(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    with temporarily_install_fault_plan(llp_helpers, "tx:reorder=100%"):
        began = time.monotonic()
        send_each_datagram(a, b.local_addr(), [b"alone"])
        assert receive_until_quiet(poller, b, quiet=EXTRA_SECONDS, most=1) == [b"alone"]
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("fault", ["dup=100%", "reorder=100%"])
def test_the_limit_of_a_fault_plan_counts_datagrams_without_their_duplicates(
    poller, llp_helpers, fault
):
    a, b = poller.open_udp(), poller.open_udp()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, f"tx:rate=8kbit,limit=3,{fault}"):
        send_each_datagram(a, b.local_addr(), [bytes(1000)] * 10)
        assert counters["fault_limit"] == 7
    # When the plan is removed, the datagrams that the plan holds are sent immediately.
    assert len(receive_until_quiet(poller, b)) == (6 if fault.startswith("dup") else 3)


@pytest.mark.parametrize("delay", ["", ",delay=1us"])
@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_fault_plan_marks_only_ecn_capable_datagrams(poller, llp_helpers, way, delay):
    capable, plain, b = poller.open_udp(), poller.open_udp(), poller.open_udp()
    seg, source = llp_helpers.ffi.new("uint32_t *"), llp_helpers.ffi.new("struct siw_addr *")
    room = llp_helpers.ffi.new("char[]", 100)
    assert llp_helpers.lib.siw_llp_udp_enable_ecn(capable.c) == 0
    assert llp_helpers.lib.siw_llp_udp_enable_ecn(b.c) == 0

    def send_and_check_ce_mark(sender):
        assert sender.sendto(b.local_addr(), b"x") == 0
        while (rv := llp_helpers.lib.siw_llp_udp_recv_with_gro(b.c, source, room, 100, seg)) < 0:
            assert rv == -errno.EAGAIN
            poller.poll_until_ready(b)
        return llp_helpers.lib.siw_llp_udp_ce_received(b.c)

    with temporarily_install_fault_plan(llp_helpers, f"{way}:mark=100%{delay}"):
        assert send_and_check_ce_mark(capable)
        assert not send_and_check_ce_mark(plain)
    assert not send_and_check_ce_mark(capable)


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_fault_plan_changes_one_bit_of_a_corrupted_datagram(poller, llp_helpers, way):
    a, b = poller.open_udp(), poller.open_udp()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, f"{way}:corrupt=20%"):
        send_each_datagram(a, b.local_addr(), [bytes(100)] * 300)
        got = receive_until_quiet(poller, b)
    bits = [sum(o.bit_count() for o in d) for d in got]
    assert len(got) == 300
    assert set(bits) == {0, 1}
    assert sum(bits) == counters["fault_corrupt"]


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_delayed_datagram_arrives_after_its_delay_and_wakes_a_waiting_thread(
    poller, llp_helpers, way
):
    a, b = poller.open_udp(), poller.open_udp()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, f"{way}:delay=60ms"):
        began = time.monotonic()
        send_each_datagram(a, b.local_addr(), numbered_datagrams(5))
        assert receive_until_quiet(poller, b, quiet=EXTRA_SECONDS, most=5) == numbered_datagrams(5)
        took = time.monotonic() - began
    assert 0.06 <= took < EXTRA_SECONDS
    assert counters["fault_delay"] == 5
    poller.drain_ready_sockets()
    assert poller.wait(1000) == 0, "the wait ended although no datagram was due"


def test_a_wait_without_time_out_ends_when_a_delayed_datagram_is_due(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    poller.drain_ready_sockets()
    with temporarily_install_fault_plan(llp_helpers, "tx:delay=30ms"):
        poller.arm()
        began = time.monotonic()
        send_each_datagram(a, b.local_addr(), [b"x"])
        while b not in poller.poll():
            assert poller.wait(-1) == 1
            assert time.monotonic() - began < EXTRA_SECONDS
        assert time.monotonic() - began >= 0.03
        poller.disarm()


def test_the_rate_of_a_fault_plan_spaces_datagrams(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    with temporarily_install_fault_plan(llp_helpers, "tx:rate=4Mbit"):
        began = time.monotonic()
        send_each_datagram(a, b.local_addr(), [bytes(1000)] * 50)
        assert len(receive_until_quiet(poller, b, quiet=EXTRA_SECONDS, most=50)) == 50
        # 50 datagrams of 1000 octets at 4 Mbit/s take 100 ms.
        assert 0.1 <= time.monotonic() - began < EXTRA_SECONDS


def test_datagrams_beyond_the_limit_of_a_rate_limited_fault_plan_are_dropped(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, "tx:rate=800kbit,limit=10"):
        send_each_datagram(a, b.local_addr(), [bytes(1000)] * 50)
        got = receive_until_quiet(poller, b, quiet=0.5)
    assert len(got) + counters["fault_limit"] == 50
    assert 10 <= len(got) <= 20


def test_a_blackout_drops_the_datagrams_in_its_period(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, "tx:blackout=100s@0s"):
        send_each_datagram(a, b.local_addr(), numbered_datagrams(5))
        assert receive_until_quiet(poller, b, quiet=0) == []
    assert counters["fault_blackout"] == 5
    with temporarily_install_fault_plan(llp_helpers, "tx:blackout=100s@100s"):
        send_each_datagram(a, b.local_addr(), numbered_datagrams(5))
        assert receive_until_quiet(poller, b, most=5) == numbered_datagrams(5)


def test_a_clause_of_a_fault_plan_applies_only_to_its_peer(poller, llp_helpers):
    a, b, c = poller.open_udp(), poller.open_udp(), poller.open_udp()
    with temporarily_install_fault_plan(
        llp_helpers, f"tx:loss=100%,peer=127.0.0.1:{llp_helpers.addr_port(b.local_addr())}"
    ):
        for dest in (b, c):
            send_each_datagram(a, dest.local_addr(), numbered_datagrams(5))
        assert receive_until_quiet(poller, c, most=5) == numbered_datagrams(5)
        assert receive_until_quiet(poller, b, quiet=0) == []


def test_removal_of_a_fault_plan_delivers_delayed_datagrams_immediately(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    with temporarily_install_fault_plan(llp_helpers, "delay=1000s"):
        send_each_datagram(a, b.local_addr(), numbered_datagrams(5))
        assert receive_until_quiet(poller, b, quiet=0) == []
    assert receive_until_quiet(poller, b, quiet=EXTRA_SECONDS, most=5) == numbered_datagrams(5)


def test_datagrams_delayed_by_a_fault_plan_are_dropped_when_their_socket_closes(
    poller, llp_helpers
):
    a, b = poller.open_udp(), poller.open_udp()
    counters = llp_helpers.Counters()
    with temporarily_install_fault_plan(llp_helpers, "tx:delay=1000s"):
        send_each_datagram(a, b.local_addr(), numbered_datagrams(5))
        a.close()
        assert counters["fault_closed"] == 5
        assert receive_until_quiet(poller, b, quiet=0) == []


def test_a_batch_is_refused_while_a_fault_plan_is_installed(poller, llp_helpers):
    a, b = poller.open_udp(), poller.open_udp()
    buf = llp_helpers.ffi.from_buffer(bytes(3000))

    def send_batch():
        return llp_helpers.lib.siw_llp_udp_send_batch(a.c, b.local_addr(), buf, 3000, 1000)

    assert send_batch() in (0, -errno.EOPNOTSUPP)
    with temporarily_install_fault_plan(llp_helpers, "loss=1%"):
        assert send_batch() == -errno.ECONNREFUSED


# ---- streams


def transfer_and_return_seconds(poller, a, b, data, piece=50000, seconds=30.0):
    """Send ``data`` from ``a`` to ``b``, check the received octets and return the seconds taken."""
    sent, got = 0, bytearray()
    began = time.monotonic()
    while len(got) < len(data):
        assert not limit_exceeded(began, seconds), (sent, len(got))
        idle = True
        while sent < len(data):
            rv = a.send(data[sent : sent + piece])
            if rv < 0:
                assert rv == -errno.EAGAIN
                break
            sent += rv
            idle = False
        if sent == len(data):
            a.want_write(False)
        for s in poller.poll():
            while s is b:
                rv, more = s.recv()
                if rv <= 0:
                    assert rv == -errno.EAGAIN, (rv, sent, len(got))
                    break
                got += more
                idle = False
        if idle:
            assert poller.wait(int(seconds * 1e6)) == 1
    # A loop compares the octets, because pytest takes minutes to explain a long difference.
    wrong = next((i for i, (x, y) in enumerate(zip(got, data, strict=True)) if x != y), None)
    assert wrong is None, f"received octet {wrong} is wrong"
    return time.monotonic() - began


@pytest.mark.parametrize("way", ["tx", "rx"])
@pytest.mark.parametrize(
    "text", ["short=40%", "delay=20ms", "jitter=5ms,delay=1ms", "delay=5ms,limit=20KB,short=50%"]
)
def test_under_a_fault_plan_the_octets_of_a_tcp_stream_arrive_complete_and_in_order(
    poller, llp_helpers, way, text
):
    a, b = poller.connected_pair()
    data = os.urandom(400_000)
    with temporarily_install_fault_plan(llp_helpers, f"{way}:{text}"):
        took = transfer_and_return_seconds(poller, a, b, data)
    if "delay" in text:
        assert took >= 0.001


def test_octets_that_a_fault_plan_has_left_out_of_a_read_are_reported(poller, llp_helpers):
    """After each short read, the reader reports that it has handled all octets it has received."""
    loop = LoopDescriptor(poller)
    a, b = poller.connected_pair()
    got = 0
    with temporarily_install_fault_plan(llp_helpers, "rx:short=100%"):
        assert a.send(b"x" * 1000) == 1000
        while got < 1000:
            poller.wait_until_socket_ready(b)
            got += max(b.recv(1000)[0], 0)
            b.note_all_handled()
    loop.close()


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_fault_plan_limits_the_rate_of_a_tcp_stream(poller, llp_helpers, way):
    a, b = poller.connected_pair()
    with temporarily_install_fault_plan(llp_helpers, f"{way}:rate=40Mbit"):
        # A megabyte at 40 Mbit/s takes 200 ms.
        assert (
            0.2
            <= transfer_and_return_seconds(poller, a, b, os.urandom(1_000_000))
            < 0.2 + EXTRA_SECONDS
        )


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_blackout_delays_the_octets_of_a_tcp_stream_until_its_end(poller, llp_helpers, way):
    a, b = poller.connected_pair()
    with temporarily_install_fault_plan(llp_helpers, f"{way}:blackout=100ms@0s"):
        assert (
            0.09
            <= transfer_and_return_seconds(poller, a, b, os.urandom(100_000))
            < 0.1 + EXTRA_SECONDS
        )


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_fault_plan_corrupts_octets_of_a_tcp_stream_and_counts_them(poller, llp_helpers, way):
    a, b = poller.connected_pair()
    counters = llp_helpers.Counters()
    data = bytes(500_000)
    with (
        temporarily_install_fault_plan(llp_helpers, f"{way}:corrupt=5%,short=10%"),
        pytest.raises(AssertionError, match="wrong"),
    ):
        transfer_and_return_seconds(poller, a, b, data)
    assert counters["fault_corrupt"] > 0


@pytest.mark.parametrize("way", ["tx", "rx"])
@pytest.mark.parametrize("text", ["reset=100KB", "reset=50ms"])
def test_a_reset_by_a_fault_plan_ends_the_tcp_stream_at_both_ends(poller, llp_helpers, way, text):
    a, b = poller.connected_pair()
    counters = llp_helpers.Counters()
    ended = set()
    # The fault plan applies to one end of the connection.
    where = f"peer=127.0.0.1:{llp_helpers.addr_port(b.local_addr())}"
    if way == "rx":
        where = f"peer=127.0.0.1:{llp_helpers.addr_port(a.local_addr())}"
    with temporarily_install_fault_plan(llp_helpers, f"{way}:{text},{where}"):
        end = time.monotonic() + 2 * EXTRA_SECONDS
        data = bytes(10000)
        # The plan starts to apply to an existing connection at the next send or receive.
        assert a.send(b"x") == 1
        llp_helpers.wait_until(lambda: b.recv()[0] == 1)
        while len(ended) < 2:
            assert time.monotonic() < end, ended
            for s in poller.poll():
                rv = s.recv()[0]
                if rv < 0 and rv != -errno.EAGAIN:
                    assert rv == -errno.ECONNRESET
                    ended.add(s)
            # The reset may fall within the data of one call, so the call may succeed in part.
            if "KB" in text and a not in ended and -errno.EAGAIN != a.send(data) < 0:
                ended.add(a)
            if "ms" in text:
                poller.wait(10000)
        assert a.send(data) < 0
    assert counters["fault_reset"] == 1


def test_the_end_of_a_tcp_stream_arrives_after_the_delayed_octets(poller, llp_helpers):
    a, b = poller.connected_pair()
    data = os.urandom(30_000)
    with temporarily_install_fault_plan(llp_helpers, "delay=30ms"):
        assert a.send(data) == len(data)
        assert llp_helpers.lib.siw_llp_tcp_shutdown(a.c) == 0
        got, end = b"", time.monotonic() + 2 * EXTRA_SECONDS
        while True:
            assert time.monotonic() < end
            rv = -errno.EAGAIN
            if b in poller.poll():
                rv, more = b.recv()
                got += more
            if rv == 0:
                break
            if rv < 0:
                poller.wait(50000)
        assert got == data


def test_waiting_for_delayed_octets_of_a_tcp_stream_uses_no_cpu_time(poller, llp_helpers):
    a, b = poller.connected_pair()
    poller.drain_ready_sockets()
    data = os.urandom(200_000)
    with temporarily_install_fault_plan(llp_helpers, "rx:rate=4Mbit,limit=20KB"):
        before = time.process_time()
        transfer_and_return_seconds(poller, a, b, data)
        # 200 KB at 4 Mbit/s take 400 ms, and the thread sleeps most of the time.
        assert time.process_time() - before < 0.4 or "SANITIZER" in os.environ


def test_a_capture_under_a_fault_plan_has_the_packets_at_the_socket_and_their_drops(
    poller, llp_helpers, tmp_path
):
    a, b = poller.open_udp(), poller.open_udp()
    path = tmp_path / "faults.pcapng"
    with capture_to_file(path):
        with temporarily_install_fault_plan(llp_helpers, "tx:loss=100%"):
            send_each_datagram(a, b.local_addr(), [b"never sent"])
        with temporarily_install_fault_plan(llp_helpers, "rx:loss=100%"):
            send_each_datagram(a, b.local_addr(), [b"dropped here"])
            assert receive_until_quiet(poller, b, quiet=0) == []
        with temporarily_install_fault_plan(llp_helpers, "tx:delay=1000s"):
            send_each_datagram(a, b.local_addr(), [b"late"])
            assert receive_until_quiet(poller, b, quiet=0) == []
        assert receive_until_quiet(poller, b, quiet=EXTRA_SECONDS, most=1) == [b"late"]
    told = [(transport_payload(p), packet_comment(p)) for p in read_packets(path)]
    assert [octets for octets, _ in told] == [b"dropped here"] * 2 + [b"late"] * 2
    assert "fault_loss" in told[1][1]
    assert [told[i][1] for i in (0, 2, 3)] == [None] * 3


def test_a_datagram_that_a_fault_plan_corrupts_is_captured_as_transmitted(
    poller, llp_helpers, tmp_path
):
    a, b = poller.open_udp(), poller.open_udp()
    path = tmp_path / "corrupt.pcapng"
    with capture_to_file(path), temporarily_install_fault_plan(llp_helpers, "tx:corrupt=100%"):
        send_each_datagram(a, b.local_addr(), [bytes(50)])
        got = receive_until_quiet(poller, b, quiet=EXTRA_SECONDS, most=1)
    assert [transport_payload(p) for p in read_packets(path)] == got * 2
    assert got != [bytes(50)]


def test_two_threads_send_and_receive_on_a_tcp_stream_in_order_under_a_fault_plan(llp_helpers):
    """A thread may send on a socket while another thread polls and receives."""
    poller = llp_helpers.Poller()
    a, b = poller.connected_pair()
    data = os.urandom(300_000)
    done = threading.Event()

    def send_data():
        at, end = 0, time.monotonic() + 6 * EXTRA_SECONDS
        while at < len(data) and time.monotonic() < end:
            rv = a.send(data[at : at + 3000])
            if rv > 0:
                at += rv
        done.set()

    with temporarily_install_fault_plan(llp_helpers, "tx:delay=1ms,limit=30KB; short=30%"):
        thread = threading.Thread(target=send_data)
        thread.start()
        got, end = b"", time.monotonic() + 6 * EXTRA_SECONDS
        while len(got) < len(data) and time.monotonic() < end:
            for s in poller.poll():
                rv, more = s.recv()
                assert rv >= 0 or rv == -errno.EAGAIN
                got += more if s is b else b""
        thread.join()
    assert done.is_set()
    assert got == data
    poller.close()
