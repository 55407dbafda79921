"""Small networks of tests/scale/worlds.py: fair, reproducible, and with bounded memory.

The results for these networks and for 1,000 devices are in docs/background/scale-in-worlds.md.
"""

from __future__ import annotations

import os

import pytest
from scale.worlds import WORLDS, measure_simulated_world

#: The allowed range of a flow's share relative to the mean share. The goal is 0.5 to 2; flows over
#: the simulated TCP (the ring) are fairer.
ALLOWED_SHARES = {"bottleneck": (0.5, 2), "mesh": (0.5, 2), "ring": (0.9, 1.1)}
#: KiB of memory per device, and per flow at both ends; twice the measured values.
KIB_PER_DEVICE, KIB_PER_FLOW = 600, 450
#: A factor for the memory limits of sanitized code.
MEMORY_FACTOR = 10 if "SANITIZER" in os.environ else 1


@pytest.mark.parametrize("name", WORLDS)
def test_flows_of_ten_devices_have_fair_shares(name: str) -> None:
    figures = measure_simulated_world(name, 10, measured=30)
    least, most = ALLOWED_SHARES[name]
    assert least <= figures.least <= figures.most <= most, figures


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("devices", [10, 100])
def test_a_seed_produces_the_same_trace_of_a_network(name: str, devices: int) -> None:
    first, again = (
        measure_simulated_world(name, devices, warm_up=0.1, measured=0.2) for _ in range(2)
    )
    other = measure_simulated_world(name, devices, seed=8, warm_up=0.1, measured=0.2)
    assert first.trace_hash == again.trace_hash != other.trace_hash
    assert (first.packets, first.mean) == (again.packets, again.mean)


@pytest.mark.parametrize("name", WORLDS)
def test_memory_of_a_world_is_bounded_per_device_and_per_flow(name: str) -> None:
    figures = measure_simulated_world(name, 100, warm_up=0.1, measured=0.2)
    assert figures.device_octets <= KIB_PER_DEVICE * MEMORY_FACTOR << 10, figures
    assert figures.flow_octets <= KIB_PER_FLOW * MEMORY_FACTOR << 10, figures
