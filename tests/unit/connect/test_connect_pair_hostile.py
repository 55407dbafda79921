"""Descriptors of the MPA Requests that a queue pair holds; tests/sim/verbs has more tests."""

from __future__ import annotations

import pytest
from harness.descriptors import count_open_descriptors
from harness.pair_harness import LOW, End, build_valid_mpa_request, tcp_connect_to
from harness.verbs_harness import Rig, temporary_settings, wait_until
from pace import scale_limit


@pytest.mark.parametrize("who", ["the peer", "time", "the queue pair"])
def test_a_held_mpa_request_is_released_by_the_peer_a_time_out_or_its_queue_pair(
    rig: Rig, who: str
) -> None:
    fds = count_open_descriptors()
    with temporary_settings(mpa_timeout_ms=round(1000 * scale_limit(0.15))):
        end = End(rig)
        end.to_init_with_receives()
        mine = count_open_descriptors()
        callers = [tcp_connect_to(end) for _ in range(20)]
        for i, s in enumerate(callers):
            s.sendall(build_valid_mpa_request(end, LOW + i))
        wait_until(lambda: count_open_descriptors() == mine + 40)
        if who == "the peer":
            for s in callers:
                s.close()
        elif who == "the queue pair":
            end.close()
        wait_until(lambda: count_open_descriptors() <= mine + 20)
        for s in callers:
            s.close()
        if who != "the queue pair":
            end.close()
    channel = end.cq.channel
    end.cq.close()
    assert channel is not None
    channel.close()
    assert count_open_descriptors() == fds
