"""rdma_cm programs whose peers are killed or stopped, or which fork child processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from abi.abi_harness import run_program

pytestmark = pytest.mark.scales


# With persona iwarp, a Write completes when TCP has accepted it, whatever happens to the peer.
@pytest.mark.parametrize(
    ("when", "persona"), [("idle", "roce"), ("busy", "roce"), ("idle", "iwarp")]
)
def test_when_the_peer_of_a_connection_is_killed_all_requests_complete(
    compiled_programs: dict[str, Path], when: str, persona: str
) -> None:
    run_program(compiled_programs["lost"], when, SIWARP_PERSONA=persona)


@pytest.mark.parametrize("when", ["asked", "asking"])
def test_a_peer_that_is_killed_while_a_connection_is_set_up_is_reported(
    compiled_programs: dict[str, Path], when: str
) -> None:
    run_program(compiled_programs["lost"], when)


def test_a_stopped_peer_is_unreachable_after_the_configured_mpa_timeout(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["lost"], "stopped", SIWARP_MPA_TIMEOUT_MS="700")


def test_a_killed_listener_for_ud_queue_pairs_is_detected_soon(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["lost"], "datagrams")


def test_forked_children_inherit_no_descriptors_and_do_not_affect_connections(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["inherit"])
