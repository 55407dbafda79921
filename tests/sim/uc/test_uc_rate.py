"""The rate limit of UD and UC queue pairs: enforced, separate for each, and removable."""

from __future__ import annotations

import errno
from collections.abc import Callable

import net
import pytest
from harness.uc_harness import Ends
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
#: Polls that find nothing take up to 1 ms each.
LATE_S = 0.01
#: At this rate (kbit/s) a message of LONG octets occupies the limit for 8 minutes, and later
#: messages wait.
SLOWEST = 1
LONG = 60_000
#: Octets of headers and CRC: of a Send on UD, and of the first segment of a Send on UC.
ON_UD, ON_UC = 22, 34
MANY = 20


def limit(qp: QP, kbits: int) -> None:
    qp.modify(QPAttr(rate_limit=kbits))


def timed(qp: QP, work: list[SendWR], at_once: int) -> float:
    """Post requests in batches of ``at_once``, poll until all are complete; return the seconds."""
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


def judge(took: float, octets: int, last: int, kbits: int) -> None:
    """Check the rate: at most a burst and a datagram too fast, and slower only because of polls."""
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
def test_ud_sends_at_its_rate(rig: Rig, kbits: int, size: int, at_once: int) -> None:
    out = rig.reg_mr(bytearray(size))
    with net.open_udp_socket() as sock, rig.create_ud_qp(max_send_wr=128) as qp:
        limit(qp, kbits)
        n = kbits * 40 // (size + ON_UD) + 1  # so many messages take 0.32 s at this rate
        wr = SendWR(1, sg=[out.sge()], ah=rig.create_ah(sock.getsockname()))
        took = timed(qp, [wr] * n, at_once)
        judge(took, n * (size + ON_UD), size + ON_UD, kbits)


@pytest.mark.parametrize(("size", "kbits"), [(100, 5_000), (3000, 50_000), (200_000, 50_000)])
def test_uc_sends_at_its_rate(rig: Rig, size: int, kbits: int) -> None:
    ends = Ends(rig, size=size, max_send_wr=128, attrs={"path_mtu": 4096})
    limit(ends.a, kbits)
    n = kbits * 40 // size
    took = timed(ends.a, [SendWR(1, sg=[ends.out.sge()])] * n, 1)
    judge(took, n * (size + ON_UC), 4096 + ON_UC, kbits)


def test_write_records_go_at_the_rate(rig: Rig) -> None:
    size = 150_000
    out = rig.reg_mr(bytearray(size))
    with net.open_udp_socket() as sock, rig.create_ud_qp(max_send_wr=128) as qp:
        limit(qp, 50_000)
        wr = SendWR(
            1, WROpcode.RDMA_WRITE_RECORD, sg=[out.sge()],
            ah=rig.create_ah(sock.getsockname()), remote=out.remote(),
        )  # fmt: skip
        judge(timed(qp, [wr] * 12, 1), 12 * size, 65_507, 50_000)


def test_messages_to_a_group_go_at_the_rate(rig: Rig) -> None:
    out = rig.reg_mr(bytearray(1000))
    with rig.create_ud_qp(max_send_wr=128) as qp:
        limit(qp, 10_000)
        took = timed(
            qp, [SendWR(1, sg=[out.sge()], ah=rig.create_ah(("239.192.7.92", 0)))] * 200, 8
        )
        judge(took, 200 * (1000 + ON_UD), 1000 + ON_UD, 10_000)


class Waiting:
    """A queue pair that has sent one long message, behind which other messages wait for minutes."""

    def __init__(
        self, rig: Rig, kind: QPType = QPType.UD, sock: QP | None = None, size: int = LONG
    ) -> None:
        self.out = rig.reg_mr(bytearray(size))
        self.at = net.open_udp_socket()
        if kind == QPType.UC:
            self.qp = rig.create_qp(qp_type=kind, max_send_wr=64)
            self.qp.to_rts(QPAttr(ah_attr=self.at.getsockname(), rate_limit=SLOWEST))
            wr = SendWR(1, sg=[self.out.sge()])
        else:
            self.qp = rig.create_qp(shared_socket_qp=sock, max_send_wr=64)
            self.qp.to_rts(QPAttr(qkey=0, rate_limit=SLOWEST))
            wr = SendWR(1, sg=[self.out.sge()], ah=rig.create_ah(self.at.getsockname()))
        self.qp.post_send([wr] * MANY)
        assert poll(self.qp.scq)[0].ok
        assert_no_completion(self.qp.scq)

    def others(self) -> list[WCStatus]:
        found = poll(self.qp.scq, MANY - 1)
        self.at.close()
        return [WCStatus(wc.status) for wc in found]


KINDS = pytest.mark.parametrize("kind", [QPType.UD, QPType.UC], ids=["ud", "uc"])


@KINDS
@pytest.mark.parametrize("kbits", [0, 1_000_000])
def test_what_waits_goes_when_the_limit_does(rig: Rig, kind: QPType, kbits: int) -> None:
    waiting = Waiting(rig, kind)
    limit(waiting.qp, kbits)
    assert waiting.others() == [WCStatus.SUCCESS] * (MANY - 1)


@pytest.mark.parametrize("shared", [False, True])
def test_others_do_not_wait(rig: Rig, shared: bool) -> None:
    first = rig.create_ud_qp(max_send_wr=64)
    waiting = Waiting(rig, sock=first if shared else None)
    wr = SendWR(1, sg=[waiting.out.sge(0, 100)], ah=rig.create_ah(waiting.at.getsockname()))
    for _ in range(10):
        first.post_send([wr] * 32)
        assert all(wc.ok for wc in poll(first.scq, 32))
    assert_no_completion(waiting.qp.scq)
    assert first.query()[0].rate_limit == 0
    limit(waiting.qp, 0)
    assert len(waiting.others()) == MANY - 1


@KINDS
def test_in_error_what_waits_is_flushed(rig: Rig, kind: QPType) -> None:
    waiting = Waiting(rig, kind)
    waiting.qp.modify(QPAttr(qp_state=QPState.ERR))
    assert waiting.others() == [WCStatus.WR_FLUSH_ERR] * (MANY - 1)


@KINDS
@pytest.mark.parametrize("end", [QP.close, lambda qp: qp.modify(QPAttr(qp_state=QPState.RESET))])
def test_a_queue_pair_ends_while_some_wait(
    rig: Rig, kind: QPType, end: Callable[[QP], None]
) -> None:
    waiting = Waiting(rig, kind)
    cq = waiting.qp.scq
    end(waiting.qp)
    assert_no_completion(cq)
    waiting.at.close()


def test_short_messages_wait_though_one_call_could_send_them(rig: Rig) -> None:
    waiting = Waiting(rig, size=4000)
    limit(waiting.qp, 0)
    assert waiting.others() == [WCStatus.SUCCESS] * (MANY - 1)


def test_reset_ends_the_limit(rig: Rig) -> None:
    waiting = Waiting(rig)
    waiting.qp.modify(QPAttr(qp_state=QPState.RESET))
    waiting.qp.to_rts(QPAttr(qkey=0))
    assert waiting.qp.query()[0].rate_limit == 0
    wr = SendWR(1, sg=[waiting.out.sge()], ah=rig.create_ah(waiting.at.getsockname()))
    waiting.qp.post_send([wr] * (MANY - 1))
    assert waiting.others() == [WCStatus.SUCCESS] * (MANY - 1)


def test_in_sqd_what_waits_stays(rig: Rig) -> None:
    waiting = Waiting(rig)
    waiting.qp.modify(QPAttr(qp_state=QPState.SQD))
    limit(waiting.qp, 0)
    assert_no_completion(waiting.qp.scq)
    waiting.qp.modify(QPAttr(qp_state=QPState.RTS))
    assert waiting.others() == [WCStatus.SUCCESS] * (MANY - 1)


def test_memory_of_what_waits_is_busy(rig: Rig) -> None:
    waiting = Waiting(rig)
    assert errno_raised_by(waiting.out.close) == errno.EBUSY
    limit(waiting.qp, 0)
    waiting.others()
    wait_until(lambda: waiting.out.close() is None)


def test_only_datagrams_have_a_limit(rig: Rig) -> None:
    ud = rig.create_ud_qp()
    limit(ud, 4_294_967_295)
    assert ud.query()[0].rate_limit == 4_294_967_295
    rd = rig.create_qp(qp_type=QPType.RD)
    rd.to_rts()
    assert errno_raised_by(limit, rd, 1000) == errno.EINVAL
    assert errno_raised_by(limit, rig.create_qp(qp_type=QPType.RC), 1000) == errno.EINVAL
    assert (
        errno_raised_by(limit, rig.create_qp(), 1000) == errno.EINVAL
    )  # a rate limit cannot be set in RESET
