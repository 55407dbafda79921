"""Peers that are silent, slow or closed at each stage of a connection, and hundreds of peers."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator

import pytest
from harness.rc_harness import SEND, End, ListenerAndConnector, create_plain_listener
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    counter_value,
    octet_pattern,
    poll,
    wait_until,
)
from hostile.peer import (
    HELLO,
    RawPeer,
    accept_raw_initiator,
    build_mpa_request_frame,
    check_that_new_connections_work,
    connect_raw_peer,
)
from pace import scale_limit

from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, CMEventType
from siwarp.inspect import FPDU, DDPUntagged, MPAReply, Opcode, split_stream
from siwarp.verbs import WCStatus

REQUEST = bytes(build_mpa_request_frame())


@contextlib.contextmanager
def temporarily_change_settings(**values: int) -> Iterator[None]:
    """Change settings for the duration of the block."""
    names = [ffi.string(lib.siw_setting_name(i)).decode() for i in range(lib.siw_settings_count())]
    before = {n: int(lib.siw_setting_value(names.index(n))) for n in values}
    for name, value in values.items():
        assert lib.siw_setting_set(name.encode(), value) == 0
    try:
        yield
    finally:
        for name, value in before.items():
            lib.siw_setting_set(name.encode(), value)


@pytest.fixture(name="connector")
def listener_and_connector() -> Iterator[ListenerAndConnector]:
    rig = Rig()
    yield ListenerAndConnector(rig)
    rig.close()


@contextlib.contextmanager
def open_listener_with_settings(**values: int) -> Iterator[ListenerAndConnector]:
    """Yield a listener on a separate device that is opened with these settings."""
    with temporarily_change_settings(**values):
        rig = Rig()
        yield ListenerAndConnector(rig)
        rig.close()


@contextlib.contextmanager
def check_process_uses_little_cpu(seconds: float = 0.4, share: float = 0.35) -> Iterator[None]:
    """Assert that this process uses little CPU time for some time after the block.

    A thread that spins uses all of the CPU time; the limit leaves a margin for timer ticks on a
    slow machine.
    """
    yield
    time.sleep(0.05)
    cpu = time.process_time()
    time.sleep(seconds)
    used = time.process_time() - cpu
    assert used < share * seconds, f"{used:.2f} s of CPU in {seconds} s of doing nothing"


def connect_many_peers(
    address: tuple[str, int], n: int, source: str | None = None
) -> list[RawPeer]:
    """Return TCP connections to a listener, as many as its kernel queue permits."""
    made = []
    for _ in range(n):
        s = socket.socket()
        if source:
            s.bind((source, 0))
        s.settimeout(5)
        # The listener may close the connection before connect() returns.
        with contextlib.suppress(ConnectionResetError):
            s.connect(address)
        made.append(RawPeer(s))
    return made


def count_closed_peers(peers: list[RawPeer]) -> int:
    """Return how many of these peers were closed by the other end."""
    n = 0
    for p in peers:
        p.sock.setblocking(False)
        try:
            n += p.sock.recv(1) == b""
        except BlockingIOError:
            pass
        except OSError as e:
            assert e.errno in (errno.ECONNRESET, errno.ENOTCONN), e
            n += 1
    return n


# ---- no thread is kept awake


def test_silent_connections_cost_no_cpu(connector: ListenerAndConnector) -> None:
    peers = connect_many_peers(connector.address, 50)
    with check_process_uses_little_cpu():
        pass
    check_that_new_connections_work(connector)
    for p in peers:
        p.close()


def test_unanswered_requests_at_and_beyond_the_limit_cost_no_cpu_time(
    connector: ListenerAndConnector,
) -> None:
    with temporarily_change_settings(max_requests=8, source_share=100):
        capped = ListenerAndConnector(connector.active)
    before = counter_value("startups_paused")
    peers = connect_many_peers(capped.address, 20)
    for p in peers:
        p.send(REQUEST)
    wait_until(lambda: counter_value("startups_paused") > before)
    with check_process_uses_little_cpu():
        pass
    # All requests are served in the end; requests beyond the limit wait.
    for _ in range(20):
        request = capped.next_connection_request()
        request.id.reject()
        request.id.close()
    assert all(p.read_reply().r for p in peers)
    for p in peers:
        p.close()
    check_that_new_connections_work(capped)


@pytest.mark.parametrize("octets", [4096, 1 << 20])
def test_octets_sent_before_the_mpa_reply_cost_no_cpu_time_and_are_delivered_later(
    connector: ListenerAndConnector, octets: int
) -> None:
    peer = connect_raw_peer(connector.address)
    peer.send(REQUEST, HELLO)
    send = FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / octet_pattern(1000))
    early = bytes(send)
    peer.send(early)
    nothing = bytes(FPDU(ulpdu=b"")) * 64
    peer.sock.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < octets:
            sent += peer.sock.send(nothing[sent % len(nothing) :])
    request = connector.next_connection_request()
    with check_process_uses_little_cpu():
        pass
    end = End(connector.passive, request.id, connector.p_channel, size=1 << 12)
    end.post_receive(1, 0, 1000)
    end.id.accept()
    assert end.next_cm_event().type == CMEventType.ESTABLISHED
    (wc,) = poll(end.rcq)
    assert (wc.status, wc.byte_len) == (WCStatus.SUCCESS, 1000)
    assert end.mem.read(1000) == octet_pattern(1000)
    peer.close()
    end.wait_for_error_state()
    end.close()


def test_an_established_connection_with_an_unread_event_costs_no_cpu_time(
    connector: ListenerAndConnector,
) -> None:
    """The initiator has received the Reply and octets after the Reply, but its program fetches no
    event.
    """
    listener = create_plain_listener()
    a = End(connector.active, CMID(connector.a_channel), connector.a_channel, size=4096)
    a.id.connect(listener.getsockname())
    peer = RawPeer(listener.accept()[0])
    peer.read_exactly(20 + 4)
    reply = MPAReply(rev=2, c=1, s=1, ird=4, ord=4)
    send = FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / octet_pattern(64))
    peer.send(reply, send)
    with check_process_uses_little_cpu():
        pass
    a.post_receive(1, 0, 64)
    assert a.next_cm_event().type == CMEventType.ESTABLISHED
    assert poll(a.rcq)[0].ok and a.mem.read(64) == octet_pattern(64)
    peer.close()
    a.wait_for_error_state()
    a.close()
    listener.close()


def test_a_peer_that_is_silent_within_an_fpdu_costs_no_cpu_time(
    connector: ListenerAndConnector,
) -> None:
    peer, end = accept_raw_initiator(connector)
    fpdu = bytes(FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / octet_pattern(20_000)))
    end.post_receive(1, 0, 20_000)
    done = 0
    for upto in (1, 2, 19, 9000, len(fpdu)):
        peer.send(fpdu[done:upto])
        done = upto
        with check_process_uses_little_cpu(0.15, 0.6):
            pass
    assert poll(end.rcq)[0].ok and end.mem.read(20_000) == octet_pattern(20_000)
    peer.close()
    end.wait_for_error_state()
    end.close()


# ---- peers that leave


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("octets", [0, 1, 16, 19, 20, 21, "reply", "hello", "fpdu", "half"])
def test_a_peer_that_closes_or_resets_at_any_stage_does_not_affect_other_connections(
    connector: ListenerAndConnector, octets: int | str, reset: bool
) -> None:
    frame = bytes(build_mpa_request_frame(private_data=b"x" * 8))
    if isinstance(octets, int):
        peer = connect_raw_peer(connector.address)
        peer.send(frame[:octets])
        peer.close(reset)
    else:
        peer, end = accept_raw_initiator(connector, hello=octets != "reply")
        end.post_receive(1, 0, 100)
        whole = bytes(FPDU(ulpdu=DDPUntagged(opcode=Opcode.SEND, msn=1) / octet_pattern(100)))
        if octets in ("fpdu", "half"):
            peer.send(whole if octets == "fpdu" else whole[:50])
        if octets == "fpdu":
            assert poll(end.rcq)[0].ok
        peer.close(reset)
        assert end.next_cm_event().type == CMEventType.DISCONNECTED
        end.wait_for_error_state()
        if octets != "fpdu":
            assert poll(end.rcq)[0].status == WCStatus.WR_FLUSH_ERR
        end.close()
    check_that_new_connections_work(connector)


def test_a_peer_that_shuts_down_its_sending_side_receives_the_queued_octets(
    connector: ListenerAndConnector,
) -> None:
    peer, end = accept_raw_initiator(connector, size=1 << 16)
    end.mem.write(octet_pattern(1 << 16))
    end.post(SEND, 1, length=1 << 16)
    assert poll(end.scq)[0].ok
    peer.sock.shutdown(socket.SHUT_WR)
    fpdus = split_stream(peer.read_until_end()).fpdus
    assert b"".join(bytes(f.ulpdu.payload) for f in fpdus) == octet_pattern(1 << 16)
    assert end.next_cm_event().type == CMEventType.DISCONNECTED
    end.wait_for_error_state()
    end.close()
    check_that_new_connections_work(connector)


# ---- limits


def test_connections_beyond_the_limit_of_half_open_connections_are_served_later() -> None:
    with open_listener_with_settings(
        max_startups=4, source_share=100, mpa_timeout_ms=400
    ) as connector:
        with assert_counter_grows("startup_timeouts", 4):
            before = counter_value("startups_paused")
            silent = connect_many_peers(connector.address, 4)
            good = connect_many_peers(connector.address, 1)[0]
            good.send(REQUEST)
            wait_until(lambda: counter_value("startups_paused") > before)
            # The Request is delivered after one of the silent connections has timed out.
            request = connector.next_connection_request(5)
            wait_until(lambda: count_closed_peers(silent) == 4)
        request.id.reject()
        assert good.read_reply().r
        for p in (*silent, good):
            p.close()
        request.id.close()
        check_that_new_connections_work(connector)


def test_one_source_cannot_use_all_half_open_connections(connector: ListenerAndConnector) -> None:
    with temporarily_change_settings(max_startups=40, source_share=50):
        fair = ListenerAndConnector(connector.active)
    with assert_counter_grows("startups_refused", 30):
        bad = connect_many_peers(fair.address, 50, "127.0.0.66")
        wait_until(lambda: count_closed_peers(bad) == 30)
    good = connect_many_peers(fair.address, 1, "127.0.0.5")[0]
    good.send(REQUEST)
    request = fair.next_connection_request()
    assert request.id.peer_addr[0] == "127.0.0.5"
    request.id.reject()
    assert good.read_reply().r
    # After the connections of this source are closed, the source can connect again.
    for p in bad:
        p.close()
    wait_until(lambda: _is_request_delivered(fair, "127.0.0.66"))
    request.id.close()
    good.close()


def test_silent_connections_of_two_sources_do_not_delay_a_good_client(
    connector: ListenerAndConnector,
) -> None:
    with temporarily_change_settings(max_startups=64, source_share=75):
        fair = ListenerAndConnector(connector.active)
    bad = connect_many_peers(fair.address, 48, "127.0.0.66") + connect_many_peers(
        fair.address, 48, "127.0.0.67"
    )
    for source in ("127.0.0.5", "127.0.0.66"):
        began = time.monotonic()
        good = connect_many_peers(fair.address, 1, source)[0]
        good.send(REQUEST)
        request = fair.next_connection_request()
        assert request.id.peer_addr[0] == source
        request.id.reject()
        assert good.read_reply().r
        assert time.monotonic() - began < scale_limit(1.0)
        request.id.close()
        good.close()
    for p in bad:
        p.close()


def _is_request_delivered(connector: ListenerAndConnector, source: str) -> bool:
    """Return whether a Request from this source is delivered."""
    peer = connect_many_peers(connector.address, 1, source)[0]
    try:
        peer.send(REQUEST)
        event = connector.p_channel.get_event(0.5)
        if event is None:
            return False
        event.id.reject()
        event.id.close()
        return bool(peer.read_reply().r)
    except (OSError, AssertionError):
        return False
    finally:
        peer.close()


def test_one_source_cannot_use_all_slots_for_unanswered_requests(
    connector: ListenerAndConnector,
) -> None:
    with temporarily_change_settings(max_requests=10, source_share=50):
        fair = ListenerAndConnector(connector.active)
    with assert_counter_grows("startups_refused", 5):
        bad = []
        for _ in range(10):
            bad += connect_many_peers(fair.address, 1, "127.0.0.66")
            with contextlib.suppress(OSError):
                bad[-1].send(REQUEST)
            time.sleep(0.005)
        wait_until(lambda: count_closed_peers(bad) == 5)
    good = connect_many_peers(fair.address, 1, "127.0.0.5")[0]
    good.send(REQUEST)
    seen = [fair.next_connection_request() for _ in range(6)]
    assert sorted(r.id.peer_addr[0] for r in seen) == ["127.0.0.5"] + ["127.0.0.66"] * 5
    for r in seen:
        r.id.reject()
        r.id.close()
    for p in (*bad, good):
        p.close()
    check_that_new_connections_work(fair)


def test_a_listener_that_is_closed_at_its_limit_closes_all_pending_connections(
    connector: ListenerAndConnector,
) -> None:
    with temporarily_change_settings(max_startups=3, source_share=100):
        capped = ListenerAndConnector(connector.active)
    before = counter_value("startups_paused")
    peers = connect_many_peers(capped.address, 8)
    wait_until(lambda: counter_value("startups_paused") > before)
    capped.listener.close()
    wait_until(lambda: count_closed_peers(peers) == 8)
    for p in peers:
        p.close()
    check_that_new_connections_work(connector)
