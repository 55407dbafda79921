"""A flood of SIDR queries; tests/sim/verbs/test_cm_ud_hostile.py has more tests of queries."""

from __future__ import annotations

import pytest
from harness.verbs_harness import Rig, counter_value, wait_until
from unit.cm.ud_harness import SidrEndpoints, build_sidr_query, plain_udp_socket

from siwarp.inspect import crc32c


@pytest.fixture
def sidr_listener_and_client(rig: Rig) -> SidrEndpoints:
    return SidrEndpoints(rig)


def build_sidr_query_fast(id: int, template: bytes = build_sidr_query()) -> bytes:
    """Return the same octets as ``build_sidr_query(id)``, which needs milliseconds for them."""
    head = template[:8] + id.to_bytes(8, "big") + template[16:-4]
    return head + crc32c(head).to_bytes(4, "little")


def test_a_flood_of_forged_sidr_queries_occupies_at_most_half_of_the_pending_limit(
    rig: Rig,
) -> None:
    ends = SidrEndpoints(rig)
    before = counter_value("sidr_cookies") + counter_value("drop_rxq_overflow")
    with plain_udp_socket() as s:
        for i in range(1, 2001):
            s.sendto(build_sidr_query_fast(i), ends.door.local_addr)
        wait_until(
            lambda: (
                counter_value("sidr_cookies") + counter_value("drop_rxq_overflow") - before
                >= 2000 - 512
            )
        )
    found = 0
    while ends.answering.get_event(0):
        found += 1
    assert found <= 512
