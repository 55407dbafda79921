"""The rate limit of UD and UC queue pairs: enforced, per queue pair, and removable."""

from __future__ import annotations

import errno
from collections.abc import Callable

import net
import pytest
from harness.uc_harness import UCPair
from harness.verbs_harness import (
    LIMIT,
    Rig,
    assert_no_completion,
    errno_raised_by,
    poll,
    wait_until,
)

from siwarp.verbs import QP, QPAttr, QPState, QPType, SendWR, WCStatus, WROpcode

BURST_S = 0.002
#: The time of unsuccessful polls, which take up to 1 ms each.
LATE_S = 0.01
#: The rate (kbit/s) at which a message of 60,000 octets occupies the limit for 8 minutes while
#: later messages wait.
SLOWEST_KBITS = 1
LONG_MESSAGE_OCTETS = 60_000
#: Octets of headers and CRC: of a Send on UD, and of the first segment of a Send on UC.
UD_OVERHEAD, UC_OVERHEAD = 22, 34
POSTED_SENDS = 20


def set_rate_limit(qp: QP, kbits: int) -> None:
    qp.modify(QPAttr(rate_limit=kbits))


def seconds_to_complete(qp: QP, work: list[SendWR], at_once: int) -> float:
    """Post requests in batches of ``at_once``; return the seconds until all are complete."""
    began = net.now()
    posted = done = 0
    while done < len(work):
        if posted < len(work) and posted - done <= 128 - at_once:
            qp.post_send(work[posted : posted + at_once])
            posted = min(posted + at_once, len(work))
        for wc in qp.scq.poll(64):
            assert wc.ok
            done += 1
        assert net.now() - began < LIMIT
    return net.now() - began


def check_duration(took: float, octets: int, last: int, kbits: int) -> None:
    """Check the duration of sends. It is at least the time of all datagrams but the last at the
    rate limit, less a burst, and at most LATE_S longer.
    """
    least = (octets - last) * 8 / kbits / 1000 - BURST_S
    assert took >= least
    assert took <= least + LATE_S


@pytest.mark.parametrize(
    ("size", "at_once", "kbits"),
    [
        (100, 32, 1_000), (100, 32, 8_000), (1000, 1, 10_000), (1000, 1, 80_000),
        (20_000, 4, 10_000), (20_000, 4, 100_000),
    ],
)  # fmt: skip
def test_ud_sends_are_transmitted_at_the_rate_limit(
    rig: Rig, kbits: int, size: int, at_once: int
) -> None:
    out = rig.reg_mr(bytearray(size))
    with net.open_udp_socket() as sock, rig.create_ud_qp(max_send_wr=128) as qp:
        set_rate_limit(qp, kbits)
        n = kbits * 40 // (size + UD_OVERHEAD) + 1  # so many messages take 0.32 s at the rate limit
        wr = SendWR(1, sg=[out.sge()], ah=rig.create_ah(sock.getsockname()))
        took = seconds_to_complete(qp, [wr] * n, at_once)
        check_duration(took, n * (size + UD_OVERHEAD), size + UD_OVERHEAD, kbits)


@pytest.mark.parametrize(("size", "kbits"), [(100, 5_000), (3000, 50_000), (200_000, 50_000)])
def test_uc_sends_are_transmitted_at_the_rate_limit(rig: Rig, size: int, kbits: int) -> None:
    ends = UCPair(rig, size=size, max_send_wr=128, attrs={"path_mtu": 4096})
    set_rate_limit(ends.a, kbits)
    n = kbits * 40 // size
    took = seconds_to_complete(ends.a, [SendWR(1, sg=[ends.out.sge()])] * n, 1)
    check_duration(took, n * (size + UC_OVERHEAD), 4096 + UC_OVERHEAD, kbits)


def test_write_records_are_transmitted_at_the_rate_limit(rig: Rig) -> None:
    size = 150_000
    out = rig.reg_mr(bytearray(size))
    with net.open_udp_socket() as sock, rig.create_ud_qp(max_send_wr=128) as qp:
        set_rate_limit(qp, 50_000)
        wr = SendWR(
            1, WROpcode.RDMA_WRITE_RECORD, sg=[out.sge()],
            ah=rig.create_ah(sock.getsockname()), remote=out.remote(),
        )  # fmt: skip
        check_duration(seconds_to_complete(qp, [wr] * 12, 1), 12 * size, 65_507, 50_000)


def test_multicast_messages_are_transmitted_at_the_rate_limit(rig: Rig) -> None:
    out = rig.reg_mr(bytearray(1000))
    with rig.create_ud_qp(max_send_wr=128) as qp:
        set_rate_limit(qp, 10_000)
        took = seconds_to_complete(
            qp, [SendWR(1, sg=[out.sge()], ah=rig.create_ah(("239.192.7.92", 0)))] * 200, 8
        )
        check_duration(took, 200 * (1000 + UD_OVERHEAD), 1000 + UD_OVERHEAD, 10_000)


class DelayedSends:
    """A queue pair that has sent one long message, after which other messages wait for minutes."""

    def __init__(
        self,
        rig: Rig,
        kind: QPType = QPType.UD,
        sock: QP | None = None,
        size: int = LONG_MESSAGE_OCTETS,
    ) -> None:
        self.out = rig.reg_mr(bytearray(size))
        self.at = net.open_udp_socket()
        if kind == QPType.UC:
            self.qp = rig.create_qp(qp_type=kind, max_send_wr=64)
            self.qp.to_rts(QPAttr(ah_attr=self.at.getsockname(), rate_limit=SLOWEST_KBITS))
            wr = SendWR(1, sg=[self.out.sge()])
        else:
            self.qp = rig.create_qp(shared_socket_qp=sock, max_send_wr=64)
            self.qp.to_rts(QPAttr(qkey=0, rate_limit=SLOWEST_KBITS))
            wr = SendWR(1, sg=[self.out.sge()], ah=rig.create_ah(self.at.getsockname()))
        self.qp.post_send([wr] * POSTED_SENDS)
        assert poll(self.qp.scq)[0].ok
        assert_no_completion(self.qp.scq)

    def poll_remaining_statuses(self) -> list[WCStatus]:
        found = poll(self.qp.scq, POSTED_SENDS - 1)
        self.at.close()
        return [WCStatus(wc.status) for wc in found]


with_ud_and_uc = pytest.mark.parametrize("kind", [QPType.UD, QPType.UC], ids=["ud", "uc"])


@with_ud_and_uc
@pytest.mark.parametrize("kbits", [0, 1_000_000])
def test_waiting_sends_are_transmitted_when_the_rate_limit_is_raised_or_removed(
    rig: Rig, kind: QPType, kbits: int
) -> None:
    waiting = DelayedSends(rig, kind)
    set_rate_limit(waiting.qp, kbits)
    assert waiting.poll_remaining_statuses() == [WCStatus.SUCCESS] * (POSTED_SENDS - 1)


@pytest.mark.parametrize("shared", [False, True])
def test_a_rate_limit_does_not_delay_other_queue_pairs(rig: Rig, shared: bool) -> None:
    first = rig.create_ud_qp(max_send_wr=64)
    waiting = DelayedSends(rig, sock=first if shared else None)
    wr = SendWR(1, sg=[waiting.out.sge(0, 100)], ah=rig.create_ah(waiting.at.getsockname()))
    for _ in range(10):
        first.post_send([wr] * 32)
        assert all(wc.ok for wc in poll(first.scq, 32))
    assert_no_completion(waiting.qp.scq)
    assert first.query()[0].rate_limit == 0
    set_rate_limit(waiting.qp, 0)
    assert len(waiting.poll_remaining_statuses()) == POSTED_SENDS - 1


@with_ud_and_uc
def test_sends_that_wait_for_the_rate_limit_are_flushed_in_err(rig: Rig, kind: QPType) -> None:
    waiting = DelayedSends(rig, kind)
    waiting.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert waiting.poll_remaining_statuses() == [WCStatus.WR_FLUSH_ERR] * (POSTED_SENDS - 1)


@with_ud_and_uc
@pytest.mark.parametrize("end", [QP.close, lambda qp: qp.modify(QPAttr(qp_state=QPState.RESET))])
def test_a_queue_pair_may_be_closed_or_reset_while_sends_wait_for_the_rate_limit(
    rig: Rig, kind: QPType, end: Callable[[QP], None]
) -> None:
    waiting = DelayedSends(rig, kind)
    cq = waiting.qp.scq
    end(waiting.qp)
    assert_no_completion(cq)
    waiting.at.close()


def test_short_sends_wait_for_the_rate_limit_although_one_call_could_transmit_them(
    rig: Rig,
) -> None:
    waiting = DelayedSends(rig, size=4000)
    set_rate_limit(waiting.qp, 0)
    assert waiting.poll_remaining_statuses() == [WCStatus.SUCCESS] * (POSTED_SENDS - 1)


def test_reset_removes_the_rate_limit(rig: Rig) -> None:
    waiting = DelayedSends(rig)
    waiting.qp.modify(QPAttr(qp_state=QPState.RESET))
    waiting.qp.to_rts(QPAttr(qkey=0))
    assert waiting.qp.query()[0].rate_limit == 0
    wr = SendWR(1, sg=[waiting.out.sge()], ah=rig.create_ah(waiting.at.getsockname()))
    waiting.qp.post_send([wr] * (POSTED_SENDS - 1))
    assert waiting.poll_remaining_statuses() == [WCStatus.SUCCESS] * (POSTED_SENDS - 1)


def test_sends_that_wait_for_the_rate_limit_remain_in_the_send_queue_in_sqd(rig: Rig) -> None:
    waiting = DelayedSends(rig)
    waiting.qp.modify(QPAttr(qp_state=QPState.SQD))
    set_rate_limit(waiting.qp, 0)
    assert_no_completion(waiting.qp.scq)
    waiting.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert waiting.poll_remaining_statuses() == [WCStatus.SUCCESS] * (POSTED_SENDS - 1)


def test_memory_of_sends_that_wait_for_the_rate_limit_cannot_be_deregistered(rig: Rig) -> None:
    waiting = DelayedSends(rig)
    assert errno_raised_by(waiting.out.close) == errno.EBUSY
    set_rate_limit(waiting.qp, 0)
    waiting.poll_remaining_statuses()
    wait_until(lambda: waiting.out.close() is None)


def test_only_ud_and_uc_queue_pairs_can_have_a_rate_limit(rig: Rig) -> None:
    ud = rig.create_ud_qp()
    set_rate_limit(ud, 4_294_967_295)
    assert ud.query()[0].rate_limit == 4_294_967_295
    rd = rig.create_qp(qp_type=QPType.RD)
    rd.to_rts()
    assert errno_raised_by(set_rate_limit, rd, 1000) == errno.EINVAL
    assert errno_raised_by(set_rate_limit, rig.create_qp(qp_type=QPType.RC), 1000) == errno.EINVAL
    assert (
        errno_raised_by(set_rate_limit, rig.create_qp(), 1000) == errno.EINVAL
    )  # a rate limit cannot be set in RESET
