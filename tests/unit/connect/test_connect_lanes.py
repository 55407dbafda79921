"""RC queue pairs that connect by GID and QPN, in the lanes of a device with several lanes."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Iterator

import net
import pytest
from harness.lanes_harness import LANES, PAIRS_OF_LANES, LaneRig
from harness.pair_harness import (
    HOST,
    LOW,
    End,
    build_valid_mpa_request,
    connect_pair_by_qpn,
    exchange_sends,
    has_connection,
    tcp_connect_to,
)
from harness.verbs_harness import errno_raised_by, temporary_settings, wait_until

from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import QP, QPAttr, QPInitAttr, QPState, QPType


@pytest.fixture
def lane_rig() -> Iterator[LaneRig]:
    """Provide an open device with four lanes."""
    made = LaneRig()
    yield made
    made.close()


def create_end_in_lane(rig: LaneRig, lane: int) -> End:
    rig.lane = lane
    return End(rig)


def qp_tcp_port(end: End) -> int:
    return end.qp.qp_num & 0xFFFF


def test_each_lane_has_a_tcp_port_of_its_own_for_its_queue_pairs(lane_rig: LaneRig) -> None:
    made = [[create_end_in_lane(lane_rig, lane) for _ in range(3)] for lane in range(LANES)]
    ports = [{qp_tcp_port(end) for end in ends} for ends in made]
    assert all(len(of_lane) == 1 for of_lane in ports)
    assert len(set.union(*ports)) == LANES
    assert len({end.qp.qp_num for ends in made for end in ends}) == 3 * LANES


def test_queue_pairs_of_all_lanes_connect_by_qpn_and_connect_again_after_a_reset(
    lane_rig: LaneRig,
) -> None:
    ends = [
        (create_end_in_lane(lane_rig, one), create_end_in_lane(lane_rig, other))
        for one, other in PAIRS_OF_LANES
    ]
    for _ in range(2):
        for a, b in ends:
            for end in (a, b):
                end.to_init_with_receives()
            connect_pair_by_qpn(a, b)
        for a, b in ends:
            exchange_sends(a, b)
        for pair in ends:
            for end in pair:
                end.qp.modify(QPAttr(qp_state=QPState.RESET))
                end.cq.poll(100)


@pytest.mark.parametrize("lane", range(LANES))
def test_a_queue_pair_of_any_lane_connects_to_itself(lane_rig: LaneRig, lane: int) -> None:
    end = create_end_in_lane(lane_rig, lane)
    end.to_init_with_receives()
    end.to_rts(end.host_and_qpn)
    end.send(b"to myself")
    assert {wc.wr_id for wc in end.wait_for_sends(2)} == {1, 100}
    assert end.mr.read(9) == b"to myself"


@pytest.mark.parametrize("lane", range(LANES))
def test_a_request_is_kept_in_the_lane_of_its_queue_pair_until_rtr(
    lane_rig: LaneRig, lane: int
) -> None:
    end = create_end_in_lane(lane_rig, lane)
    end.to_init_with_receives()
    with tcp_connect_to(end) as peer:
        peer.sendall(build_valid_mpa_request(end))
        end.to_rts((HOST, LOW))
        assert peer.recv(16) == b"MPA ID Rep Frame"
        wait_until(lambda: has_connection(end))


def test_queue_pairs_of_all_lanes_use_one_port_if_only_one_is_permitted(
    lane_rig: LaneRig,
) -> None:
    port = net.find_unused_port()
    with temporary_settings(rc_port_first=port, rc_port_last=port):
        ends = [create_end_in_lane(lane_rig, lane) for lane in (2, 0, 1, 3, 2)]
        assert {qp_tcp_port(end) for end in ends} == {port}
        assert len({end.qp.qp_num for end in ends}) == len(ends)
        for a, b in itertools.pairwise(ends):
            for end in (a, b):
                end.to_init_with_receives()
            connect_pair_by_qpn(a, b)
            exchange_sends(a, b)
            for end in (a, b):
                end.qp.modify(QPAttr(qp_state=QPState.RESET))
                end.cq.poll(100)
        cq = ends[0].cq
        init = QPInitAttr(QPType.RC, scq=cq, rcq=cq, by_qpn=True)
        rest = [QP(lane_rig.pd, init) for _ in range(255 - len(ends))]
        for end in ends[:4]:
            attr = QPInitAttr(QPType.RC, scq=end.cq, rcq=end.cq, by_qpn=True)
            assert errno_raised_by(QP, lane_rig.pd, attr) == errno.EADDRINUSE
        rest.pop().close()
        assert QP(lane_rig.pd, init).qp_num & 0xFFFF == port


def test_threads_that_create_queue_pairs_in_all_lanes_get_different_qpns(
    lane_rig: LaneRig,
) -> None:
    cqs = [create_end_in_lane(lane_rig, lane).cq for lane in range(LANES)]
    made: list[QP] = []

    def create_and_destroy_qps(lane: int) -> None:
        own: list[QP] = []
        for i in range(60):
            init = QPInitAttr(QPType.RC, scq=cqs[lane], rcq=cqs[lane], by_qpn=bool(i % 2))
            own.append(QP(lane_rig.pd, init))
            if i % 3 == 0:
                own.pop(i % len(own)).close()
        made.extend(own)

    threads = [threading.Thread(target=create_and_destroy_qps, args=(i,)) for i in range(LANES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4 * 40
    assert len({qp.qp_num for qp in made}) == len(made)


def test_a_queue_pair_that_a_connection_manager_takes_over_keeps_its_qpn_alone(
    lane_rig: LaneRig,
) -> None:
    stays, leaves = (create_end_in_lane(lane_rig, 1) for _ in range(2))
    port, number = qp_tcp_port(stays), leaves.qp.qp_num
    assert qp_tcp_port(leaves) == port
    CMID(CMEventChannel(lane_rig.ctx)).bind_qp(leaves.qp)
    init = QPInitAttr(QPType.RC, scq=stays.cq, rcq=stays.cq, by_qpn=True)
    made = [QP(lane_rig.pd, init) for _ in range(254)]
    assert number not in [qp.qp_num for qp in made]
    assert leaves.qp.qp_num == number
    assert [qp.qp_num & 0xFFFF == port for qp in made] == [True] * 253 + [False]
