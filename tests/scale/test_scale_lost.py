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
def test_a_connections_peer_that_is_killed_is_disconnected_and_all_requests_end(
    compiled_programs: dict[str, Path], when: str, persona: str
) -> None:
    run_program(compiled_programs["lost"], when, SIWARP_PERSONA=persona)


@pytest.mark.parametrize("when", ["asked", "asking"])
def test_a_peer_that_is_killed_while_a_connection_is_made(
    compiled_programs: dict[str, Path], when: str
) -> None:
    run_program(compiled_programs["lost"], when)


def test_a_peer_that_lives_and_does_nothing_is_unreachable_after_the_setting(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["lost"], "stopped", SIWARP_MPA_TIMEOUT_MS="700")


def test_a_killed_listener_of_datagrams_is_known_soon(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["lost"], "datagrams")


def test_children_inherit_nothing_and_their_end_leaves_connections_alone(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["inherit"])
