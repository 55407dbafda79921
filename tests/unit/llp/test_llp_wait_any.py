"""Waits for the sockets of several pollers, which must end if and only if one poller has work."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from unit.llp.llp_harness import LlpSocket, Poller, wait_any

#: The maximum number of wait sets of one wait, and of hot sockets of a poller.
MOST_POLLERS, MOST_HOT = 16, 16
#: Time-outs in us: a wait on a poller with work ends long before LONG, others end after SHORT.
LONG, SHORT = 10_000_000, 1000
EACH_POLLER = pytest.mark.parametrize("which", [0, 1, 2])


@pytest.fixture
def three_pollers(llp_helpers: SimpleNamespace) -> Iterator[list[Poller]]:
    pollers = [llp_helpers.Poller() for _ in range(3)]
    yield pollers
    for p in pollers:
        p.close()


@pytest.fixture(name="sender")
def sending_socket(llp_helpers: SimpleNamespace) -> Iterator[LlpSocket]:
    poller = llp_helpers.Poller()
    yield poller.open_udp()
    poller.close()


def open_hot_socket(poller: Poller, sender: LlpSocket) -> LlpSocket:
    sock = poller.open_udp()
    assert sender.sendto(sock.local_addr(), b"x") == 0
    poller.wait_until_socket_ready(sock)
    assert sock.receive_all() == 1
    return sock


@EACH_POLLER
@pytest.mark.parametrize("state", ["cold", "hot", "armed"])
def test_a_datagram_for_any_poller_ends_a_wait_for_all_pollers(
    three_pollers: list[Poller], sender: LlpSocket, which: int, state: str
) -> None:
    socks = [p.open_udp() if state == "cold" else open_hot_socket(p, sender) for p in three_pollers]
    for p in three_pollers:
        p.drain_ready_sockets()
        if state == "armed":
            p.arm()
    assert wait_any(three_pollers, SHORT) == 0
    assert sender.sendto(socks[which].local_addr(), b"x") == 0
    assert wait_any(three_pollers, LONG) == 1
    three_pollers[which].poll_until_ready(socks[which])
    assert socks[which].receive_all() == 1
    three_pollers[which].drain_ready_sockets()
    assert wait_any(three_pollers, SHORT) == 0


@EACH_POLLER
def test_a_wake_call_on_any_poller_ends_a_wait_for_all_pollers(
    three_pollers: list[Poller], which: int
) -> None:
    three_pollers[which].wake()
    assert wait_any(three_pollers, LONG) == 1
    three_pollers[which].poll()
    assert wait_any(three_pollers, SHORT) == 0


def make_socket_ready(poller: Poller, sender: LlpSocket) -> None:
    poller.open_udp().resume()


def arm_and_disarm_poller(poller: Poller, sender: LlpSocket) -> None:
    open_hot_socket(poller, sender)
    poller.arm()
    poller.disarm()


def set_timer_of_socket(poller: Poller, sender: LlpSocket) -> None:
    poller.open_udp().set_timer(1)


@EACH_POLLER
@pytest.mark.parametrize("change", [make_socket_ready, arm_and_disarm_poller, set_timer_of_socket])
def test_a_wait_ends_if_one_of_its_wait_sets_has_become_incomplete(
    three_pollers: list[Poller],
    sender: LlpSocket,
    llp_helpers: SimpleNamespace,
    which: int,
    change: Callable[[Poller, LlpSocket], None],
) -> None:
    sets = llp_helpers.ffi.new("struct siw_llp_waitset[]", 3)
    for i, p in enumerate(three_pollers):
        llp_helpers.lib.siw_llp_waitset_fill(p.c, sets + i)
    assert llp_helpers.lib.siw_llp_wait_any(sets, 3, -1, SHORT) == 0
    change(three_pollers[which], sender)
    assert llp_helpers.lib.siw_llp_wait_any(sets, 3, -1, LONG) == 1


@EACH_POLLER
def test_a_wait_ends_when_the_first_timer_of_any_poller_is_due(
    three_pollers: list[Poller], which: int
) -> None:
    for i, p in enumerate(three_pollers):
        p.open_udp().set_timer(1 if i == which else 1 << 62)
    assert wait_any(three_pollers, LONG) == 1
    assert len(three_pollers[which].poll()) == 1
    assert wait_any(three_pollers, 0) == 1, "the socket is ready until it is read"


def test_an_event_on_an_additional_descriptor_ends_a_wait_for_several_pollers(
    three_pollers: list[Poller], llp_helpers: SimpleNamespace
) -> None:
    fd = llp_helpers.lib.siw_llp_event_fd_open()
    assert wait_any(three_pollers, SHORT, fd) == 0
    llp_helpers.lib.siw_llp_event_fd_set(fd)
    assert wait_any(three_pollers, LONG, fd) == 1
    llp_helpers.lib.siw_llp_event_fd_close(fd)


def test_a_wait_for_no_poller_ends_by_time_out_or_additional_descriptor(
    llp_helpers: SimpleNamespace,
) -> None:
    fd = llp_helpers.lib.siw_llp_event_fd_open()
    assert wait_any([], SHORT, fd) == 0
    llp_helpers.lib.siw_llp_event_fd_set(fd)
    assert wait_any([], LONG, fd) == 1
    llp_helpers.lib.siw_llp_event_fd_close(fd)


def test_an_empty_wait_set_among_others_has_no_effect(
    three_pollers: list[Poller], llp_helpers: SimpleNamespace
) -> None:
    sets = llp_helpers.ffi.new("struct siw_llp_waitset[]", 2)
    llp_helpers.lib.siw_llp_waitset_fill(three_pollers[0].c, sets + 1)
    assert llp_helpers.lib.siw_llp_wait_any(sets, 2, -1, SHORT) == 0
    three_pollers[0].wake()
    assert llp_helpers.lib.siw_llp_wait_any(sets, 2, -1, LONG) == 1


def test_a_wait_covers_all_hot_sockets_of_the_maximum_number_of_pollers(
    llp_helpers: SimpleNamespace, sender: LlpSocket
) -> None:
    with llp_helpers.temporary_setting("hot_sockets", MOST_HOT):
        pollers = [llp_helpers.Poller() for _ in range(MOST_POLLERS)]
    last = [[open_hot_socket(p, sender) for _ in range(MOST_HOT)][-1] for p in pollers]
    for p in pollers:
        assert len(p.hot_fds()) == MOST_HOT
        p.drain_ready_sockets()
    fd = llp_helpers.lib.siw_llp_event_fd_open()
    assert wait_any(pollers, SHORT, fd) == 0
    for p, sock in zip(pollers, last, strict=True):
        assert sender.sendto(sock.local_addr(), b"x") == 0
        assert wait_any(pollers, LONG, fd) == 1
        p.wait_until_socket_ready(sock)
        assert sock.receive_all() == 1
        p.drain_ready_sockets()
    assert wait_any(pollers, SHORT, fd) == 0
    llp_helpers.lib.siw_llp_event_fd_set(fd)
    assert wait_any(pollers, LONG, fd) == 1
    llp_helpers.lib.siw_llp_event_fd_close(fd)
    for p in pollers:
        p.close()


def test_a_signal_ends_a_wait_for_several_pollers_with_eintr(
    run_in_child: Callable[[str], None],
) -> None:
    run_in_child("""
pollers = [Poller() for _ in range(3)]
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05)
assert wait_any(pollers, 10_000_000) == -4, "EINTR"
for p in pollers:
    p.close()
""")


@pytest.mark.parametrize("scenario", ["wake", "move", "cancel"])
def test_threads_that_wait_for_several_pollers_miss_no_event(
    build_dir: Path, scenario: str
) -> None:
    """Check wake-ups of any poller, sockets that move between pollers, and cancelled threads."""
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-pollers", scenario],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
