"""Waits inside the library (``siw_wait_cq``) for peers that are silent, killed, or slow."""

from __future__ import annotations

import errno

import pytest

from siwarp.base.library import ffi, lib
from siwarp.sim import World
from siwarp.testing import pair
from siwarp.testing.end import End
from siwarp.testing.pair import Kind
from siwarp.verbs import SendWR, WCStatus

SILENCE_S = 5.0


def wait_for_completion_status(end: End, ms: int = -1) -> int:
    """Return the status of the next completion, or the negative errno value of the wait."""
    wc = ffi.new("struct siw_wc *")
    null = ffi.NULL
    n = int(lib.siw_wait_cq(end.cq._c_object(), 1, wc, null, null, null, ms))
    return int(wc.status) if n == 1 else n


@pytest.mark.parametrize("kind", ["rc", "rd", "uc", "ud"])
def test_a_wait_for_a_silent_peer_ends_at_its_time_out(world: World, kind: Kind) -> None:
    with pair(kind, sim=world) as ends:

        def measure_timed_out_wait() -> float:
            began = world.now
            assert wait_for_completion_status(ends.a, int(SILENCE_S * 1000)) == -errno.EAGAIN
            return world.now - began

        waiting = world.spawn(measure_timed_out_wait)
        world.run_tasks(within="10s")
        assert waiting.result() == pytest.approx(SILENCE_S, abs=1e-3)


def test_a_wait_without_a_time_out_ends_when_the_peer_of_its_connection_is_killed(
    world: World,
) -> None:
    with pair("rc", sim=world) as ends:
        waiting = world.spawn(wait_for_completion_status, ends.a)
        world.run_for("1s")
        assert not waiting.done()
        world.crash(ends.b.device)
        world.run_tasks(within="1s")
        assert waiting.result() == WCStatus.WR_FLUSH_ERR


def test_a_wait_for_a_send_ends_when_rd_gives_up_a_killed_peer(world: World) -> None:
    with pair("rd", sim=world) as ends:
        world.crash(ends.b.device)
        ends.a.qp.post_send(SendWR(1, sg=[ends.a.mr.sge(0, 8)], ah=ends.a.ah))
        waiting = world.spawn(wait_for_completion_status, ends.a)
        world.run_tasks(within="10min")
        assert waiting.result() == WCStatus.RETRY_EXC_ERR


def test_each_message_of_a_slow_peer_ends_a_wait_when_it_arrives(world: World) -> None:
    with pair("rd", sim=world) as ends:

        def receive_ten_messages() -> list[float]:
            times = []
            for _ in range(10):
                assert wait_for_completion_status(ends.b) == WCStatus.SUCCESS
                times.append(world.now)
            return times

        receiving = world.spawn(receive_ten_messages)
        sent = []
        for _ in range(10):
            world.run_for("1s")
            sent.append(world.now)
            ends.a.qp.post_send(SendWR(1, sg=[ends.a.mr.sge(0, 8)], ah=ends.a.ah))
        world.run_tasks(within="1s")
        assert receiving.result() == pytest.approx(sent, abs=1e-3)
