"""A fault plan between the upper layers and real sockets on loopback."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time

import pytest
from pace import limit_exceeded
from unit.llp.test_llp_capture import capturing, comment, payload, read

#: Additional seconds for a sanitizer or a loaded machine.
LATE = 5.0


@contextlib.contextmanager
def plan(kit, text):
    rv = kit.lib.siw_faults_install(text.encode())
    assert rv == 0, kit.ffi.string(kit.lib.siw_faults_reason()).decode()
    try:
        yield
    finally:
        assert kit.lib.siw_faults_install(kit.ffi.NULL) == 0


def receive(port, sock, quiet=0.15, most=10**6):
    """Return what arrives, by polling and waiting, until nothing has arrived for ``quiet`` seconds.

    Loopback delivers a datagram within sendto, so 0 is enough to see that none was sent.
    """
    got, end = [], time.monotonic() + quiet
    while len(got) < most:
        moved = False
        for s in port.poll():
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
            port.wait(20000)
    return got


def numbered(n):
    return [i.to_bytes(4, "big") for i in range(n)]


def send_all(sock, dest, datagrams):
    for data in datagrams:
        assert sock.sendto(dest, data) == 0


def test_an_invalid_plan_changes_nothing_and_is_explained(kit):
    with plan(kit, "loss=1%"):
        assert kit.lib.siw_faults_install(b"loss=1%;delay=2") == -errno.EINVAL
        why = kit.ffi.string(kit.lib.siw_faults_reason()).decode()
        assert why.startswith("clause 2, character 15: ")
        out = kit.ffi.new("char[64]")
        assert kit.lib.siw_faults_current(out, 64) == 7
        assert kit.ffi.string(out) == b"loss=1%"
    assert kit.lib.siw_faults_current(out, 64) == 0


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_losses_are_the_same_for_the_same_seed_and_equal_the_counter(port, kit, way):
    runs = []
    for seed in (7, 7, 8):
        a, b = port.udp(), port.udp()
        counters = kit.Counters()
        with plan(kit, f"{way}:loss=10%,seed={seed}"):
            send_all(a, b.local(), numbered(1000))
            runs.append(receive(port, b))
        assert 1000 - len(runs[-1]) == counters["fault_loss"]
        # Five standard deviations of the binomial distribution.
        assert abs(counters["fault_loss"] - 100) <= 5 * math.sqrt(1000 * 0.1 * 0.9)
        assert runs[-1] == sorted(runs[-1])
        a.close()
        b.close()
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_plan_is_over_when_it_ends(port, kit):
    a, b = port.udp(), port.udp()
    with plan(kit, "loss=100%"):
        send_all(a, b.local(), numbered(10))
    send_all(a, b.local(), numbered(10))
    assert receive(port, b, most=10) == numbered(10)


def test_bursts_take_datagrams_in_a_row(port, kit):
    a, b = port.udp(), port.udp()
    with plan(kit, "tx:loss=5%,burst=4"):
        send_all(a, b.local(), numbered(1000))
        got = {int.from_bytes(d, "big") for d in receive(port, b)}
    lost = "".join("." if i in got else "x" for i in range(1000))
    runs = [len(r) for r in lost[:-4].split(".") if r]
    assert runs
    assert all(r % 4 == 0 for r in runs)


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_duplicates_come_one_behind_the_other(port, kit, way):
    a, b = port.udp(), port.udp()
    counters = kit.Counters()
    with plan(kit, f"{way}:dup=20%"):
        send_all(a, b.local(), numbered(500))
        got = receive(port, b)
    assert sorted(set(got)) == numbered(500)
    assert len(got) == 500 + counters["fault_dup"]
    assert counters["fault_dup"] > 50
    assert got == sorted(got)


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_reordered_datagrams_are_overtaken_by_up_to_three_and_none_is_lost(port, kit, way):
    a, b = port.udp(), port.udp()
    counters = kit.Counters()
    with plan(kit, f"{way}:reorder=10%"):
        send_all(a, b.local(), numbered(500))
        got = [int.from_bytes(d, "big") for d in receive(port, b, quiet=0.5)]
    assert sorted(got) == list(range(500))
    late = [n for at, n in enumerate(got) if any(m > n for m in got[:at])]
    # A held datagram next to another held one may not be late itself.
    assert 0 < len(late) <= counters["fault_reorder"]
    assert counters["fault_reorder"] <= 50 + 5 * math.sqrt(45)
    assert max(sum(m > n for m in got[:at]) for at, n in enumerate(got)) <= 3


def test_a_reordered_datagram_that_nothing_overtakes_comes_nevertheless(port, kit):
    a, b = port.udp(), port.udp()
    with plan(kit, "tx:reorder=100%"):
        began = time.monotonic()
        send_all(a, b.local(), [b"alone"])
        assert receive(port, b, quiet=LATE, most=1) == [b"alone"]
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("fault", ["dup=100%", "reorder=100%"])
def test_a_limit_counts_what_the_rate_takes_a_duplicate_not(port, kit, fault):
    a, b = port.udp(), port.udp()
    counters = kit.Counters()
    with plan(kit, f"tx:rate=8kbit,limit=3,{fault}"):
        send_all(a, b.local(), [bytes(1000)] * 10)
        assert counters["fault_limit"] == 7
    # When the plan ends, what it has held back is sent at once.
    assert len(receive(port, b)) == (6 if fault.startswith("dup") else 3)


@pytest.mark.parametrize("delay", ["", ",delay=1us"])
@pytest.mark.parametrize("way", ["tx", "rx"])
def test_only_ecn_capable_datagrams_are_marked(port, kit, way, delay):
    capable, plain, b = port.udp(), port.udp(), port.udp()
    seg, source = kit.ffi.new("uint32_t *"), kit.ffi.new("struct siw_addr *")
    room = kit.ffi.new("char[]", 100)
    assert kit.lib.siw_llp_udp_ecn(capable.c) == 0
    assert kit.lib.siw_llp_udp_ecn(b.c) == 0

    def marked(sender):
        assert sender.sendto(b.local(), b"x") == 0
        while (rv := kit.lib.siw_llp_udp_recv_dense(b.c, source, room, 100, seg)) < 0:
            assert rv == -errno.EAGAIN
            port.poll_until(b)
        return kit.lib.siw_llp_udp_ce(b.c)

    with plan(kit, f"{way}:mark=100%{delay}"):
        assert marked(capable)
        assert not marked(plain)
    assert not marked(capable)


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_corrupted_datagram_has_one_bit_changed(port, kit, way):
    a, b = port.udp(), port.udp()
    counters = kit.Counters()
    with plan(kit, f"{way}:corrupt=20%"):
        send_all(a, b.local(), [bytes(100)] * 300)
        got = receive(port, b)
    bits = [sum(o.bit_count() for o in d) for d in got]
    assert len(got) == 300
    assert set(bits) == {0, 1}
    assert sum(bits) == counters["fault_corrupt"]


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_delayed_datagram_comes_no_earlier_and_wakes_a_sleeper(port, kit, way):
    a, b = port.udp(), port.udp()
    counters = kit.Counters()
    with plan(kit, f"{way}:delay=60ms"):
        began = time.monotonic()
        send_all(a, b.local(), numbered(5))
        assert receive(port, b, quiet=LATE, most=5) == numbered(5)
        took = time.monotonic() - began
    assert 0.06 <= took < LATE
    assert counters["fault_delay"] == 5
    port.settle()
    assert port.wait(1000) == 0, "nothing is due any more"


def test_a_wait_without_an_end_is_over_when_a_datagram_is_due(port, kit):
    a, b = port.udp(), port.udp()
    port.settle()
    with plan(kit, "tx:delay=30ms"):
        port.arm()
        began = time.monotonic()
        send_all(a, b.local(), [b"x"])
        while b not in port.poll():
            assert port.wait(-1) == 1
            assert time.monotonic() - began < LATE
        assert time.monotonic() - began >= 0.03
        port.disarm()


def test_a_rate_spaces_datagrams(port, kit):
    a, b = port.udp(), port.udp()
    with plan(kit, "tx:rate=4Mbit"):
        began = time.monotonic()
        send_all(a, b.local(), [bytes(1000)] * 50)
        assert len(receive(port, b, quiet=LATE, most=50)) == 50
        # 50 datagrams of 1000 octets at 4 Mbit/s take 100 ms.
        assert 0.1 <= time.monotonic() - began < LATE


def test_more_than_the_limit_waiting_for_a_rate_is_dropped(port, kit):
    a, b = port.udp(), port.udp()
    counters = kit.Counters()
    with plan(kit, "tx:rate=800kbit,limit=10"):
        send_all(a, b.local(), [bytes(1000)] * 50)
        got = receive(port, b, quiet=0.5)
    assert len(got) + counters["fault_limit"] == 50
    assert 10 <= len(got) <= 20


def test_a_blackout_takes_what_comes_in_its_time(port, kit):
    a, b = port.udp(), port.udp()
    counters = kit.Counters()
    with plan(kit, "tx:blackout=100s@0s"):
        send_all(a, b.local(), numbered(5))
        assert receive(port, b, quiet=0) == []
    assert counters["fault_blackout"] == 5
    with plan(kit, "tx:blackout=100s@100s"):
        send_all(a, b.local(), numbered(5))
        assert receive(port, b, most=5) == numbered(5)


def test_a_clause_is_for_its_peer_alone(port, kit):
    a, b, c = port.udp(), port.udp(), port.udp()
    with plan(kit, f"tx:loss=100%,peer=127.0.0.1:{kit.port_of(b.local())}"):
        for dest in (b, c):
            send_all(a, dest.local(), numbered(5))
        assert receive(port, c, most=5) == numbered(5)
        assert receive(port, b, quiet=0) == []


def test_what_is_held_when_a_plan_ends_comes_at_once(port, kit):
    a, b = port.udp(), port.udp()
    with plan(kit, "delay=1000s"):
        send_all(a, b.local(), numbered(5))
        assert receive(port, b, quiet=0) == []
    assert receive(port, b, quiet=LATE, most=5) == numbered(5)


def test_what_is_held_when_a_socket_closes_is_counted_and_freed(port, kit):
    a, b = port.udp(), port.udp()
    counters = kit.Counters()
    with plan(kit, "tx:delay=1000s"):
        send_all(a, b.local(), numbered(5))
        a.close()
        assert counters["fault_closed"] == 5
        assert receive(port, b, quiet=0) == []


def test_a_batch_is_split_while_a_plan_is_on(port, kit):
    a, b = port.udp(), port.udp()
    buf = kit.ffi.from_buffer(bytes(3000))

    def batch():
        return kit.lib.siw_llp_udp_send_batch(a.c, b.local(), buf, 3000, 1000)

    assert batch() in (0, -errno.EOPNOTSUPP)
    with plan(kit, "loss=1%"):
        assert batch() == -errno.ECONNREFUSED


# ---- streams


def pump(port, a, b, data, piece=50000, seconds=30.0):
    """Send data from a to b, sleeping between; return what arrived, and the seconds it took."""
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
            a.want(False)
        for s in port.poll():
            while s is b:
                rv, more = s.recv()
                if rv <= 0:
                    assert rv == -errno.EAGAIN, (rv, sent, len(got))
                    break
                got += more
                idle = False
        if idle:
            assert port.wait(int(seconds * 1e6)) == 1
    # Compared in a loop, because pytest's explanation of two long differing values takes minutes.
    wrong = next((i for i, (x, y) in enumerate(zip(got, data, strict=True)) if x != y), None)
    assert wrong is None, f"octet {wrong} came wrong"
    return time.monotonic() - began


@pytest.mark.parametrize("way", ["tx", "rx"])
@pytest.mark.parametrize(
    "text", ["short=40%", "delay=20ms", "jitter=5ms,delay=1ms", "delay=5ms,limit=20KB,short=50%"]
)
def test_a_streams_octets_come_whole_and_in_order(port, kit, way, text):
    a, b = port.pair()
    data = os.urandom(400_000)
    with plan(kit, f"{way}:{text}"):
        took = pump(port, a, b, data)
    if "delay" in text:
        assert took >= 0.001


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_streams_rate_is_kept(port, kit, way):
    a, b = port.pair()
    with plan(kit, f"{way}:rate=40Mbit"):
        # A megabyte at 40 Mbit/s takes 200 ms.
        assert 0.2 <= pump(port, a, b, os.urandom(1_000_000)) < 0.2 + LATE


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_streams_blackout_holds_octets_until_it_is_over(port, kit, way):
    a, b = port.pair()
    with plan(kit, f"{way}:blackout=100ms@0s"):
        assert 0.09 <= pump(port, a, b, os.urandom(100_000)) < 0.1 + LATE


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_a_stream_changes_the_bits_that_are_counted(port, kit, way):
    a, b = port.pair()
    counters = kit.Counters()
    data = bytes(500_000)
    with plan(kit, f"{way}:corrupt=5%,short=10%"), pytest.raises(AssertionError, match="wrong"):
        pump(port, a, b, data)
    assert counters["fault_corrupt"] > 0


@pytest.mark.parametrize("way", ["tx", "rx"])
@pytest.mark.parametrize("text", ["reset=100KB", "reset=50ms"])
def test_a_reset_ends_the_stream_at_both_ends(port, kit, way, text):
    a, b = port.pair()
    counters = kit.Counters()
    ended = set()
    # The plan applies to one side of the connection.
    where = f"peer=127.0.0.1:{kit.port_of(b.local())}"
    if way == "rx":
        where = f"peer=127.0.0.1:{kit.port_of(a.local())}"
    with plan(kit, f"{way}:{text},{where}"):
        end = time.monotonic() + 2 * LATE
        data = bytes(10000)
        # The plan applies to an existing connection from its next transfer on.
        assert a.send(b"x") == 1
        kit.until(lambda: b.recv()[0] == 1)
        while len(ended) < 2:
            assert time.monotonic() < end, ended
            for s in port.poll():
                rv = s.recv()[0]
                if rv < 0 and rv != -errno.EAGAIN:
                    assert rv == -errno.ECONNRESET
                    ended.add(s)
            # The last octets before the reset are part of one call's data.
            if "KB" in text and a not in ended and -errno.EAGAIN != a.send(data) < 0:
                ended.add(a)
            if "ms" in text:
                port.wait(10000)
        assert a.send(data) < 0
    assert counters["fault_reset"] == 1


def test_a_stream_ends_behind_what_is_held(port, kit):
    a, b = port.pair()
    data = os.urandom(30_000)
    with plan(kit, "delay=30ms"):
        assert a.send(data) == len(data)
        assert kit.lib.siw_llp_tcp_shutdown(a.c) == 0
        got, end = b"", time.monotonic() + 2 * LATE
        while True:
            assert time.monotonic() < end
            rv = -errno.EAGAIN
            if b in port.poll():
                rv, more = b.recv()
                got += more
            if rv == 0:
                break
            if rv < 0:
                port.wait(50000)
        assert got == data


def test_nobody_spins_while_a_streams_octets_wait(port, kit):
    a, b = port.pair()
    port.settle()
    data = os.urandom(200_000)
    with plan(kit, "rx:rate=4Mbit,limit=20KB"):
        before = time.process_time()
        pump(port, a, b, data)
        # 200 KB at 4 Mbit/s take 400 ms, nearly all of it asleep.
        assert time.process_time() - before < 0.4 or "SANITIZER" in os.environ


def test_a_capture_has_what_the_socket_gave_and_took_and_why_it_was_dropped(port, kit, tmp_path):
    a, b = port.udp(), port.udp()
    path = tmp_path / "faults.pcapng"
    with capturing(path):
        with plan(kit, "tx:loss=100%"):
            send_all(a, b.local(), [b"never sent"])
        with plan(kit, "rx:loss=100%"):
            send_all(a, b.local(), [b"dropped here"])
            assert receive(port, b, quiet=0) == []
        with plan(kit, "tx:delay=1000s"):
            send_all(a, b.local(), [b"late"])
            assert receive(port, b, quiet=0) == []
        assert receive(port, b, quiet=LATE, most=1) == [b"late"]
    told = [(payload(p), comment(p)) for p in read(path)]
    assert [octets for octets, _ in told] == [b"dropped here"] * 2 + [b"late"] * 2
    assert "fault_loss" in told[1][1]
    assert [told[i][1] for i in (0, 2, 3)] == [None] * 3


def test_a_corrupted_datagram_is_captured_as_it_left(port, kit, tmp_path):
    a, b = port.udp(), port.udp()
    path = tmp_path / "corrupt.pcapng"
    with capturing(path), plan(kit, "tx:corrupt=100%"):
        send_all(a, b.local(), [bytes(50)])
        got = receive(port, b, quiet=LATE, most=1)
    assert [payload(p) for p in read(path)] == got * 2
    assert got != [bytes(50)]


def test_both_ends_of_two_threads_keep_a_streams_order_under_a_plan(kit):
    """Sending and receiving on one socket may run concurrently, together with the poller."""
    port = kit.Port()
    a, b = port.pair()
    data = os.urandom(300_000)
    done = threading.Event()

    def send():
        at, end = 0, time.monotonic() + 6 * LATE
        while at < len(data) and time.monotonic() < end:
            rv = a.send(data[at : at + 3000])
            if rv > 0:
                at += rv
        done.set()

    with plan(kit, "tx:delay=1ms,limit=30KB; short=30%"):
        thread = threading.Thread(target=send)
        thread.start()
        got, end = b"", time.monotonic() + 6 * LATE
        while len(got) < len(data) and time.monotonic() < end:
            for s in port.poll():
                rv, more = s.recv()
                assert rv >= 0 or rv == -errno.EAGAIN
                got += more if s is b else b""
        thread.join()
    assert done.is_set()
    assert got == data
    port.close()
