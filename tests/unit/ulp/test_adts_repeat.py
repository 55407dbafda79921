"""Numbered units and reports of the UD channel, without a network: loss, rates, false reports."""

from __future__ import annotations

import itertools
import random

import pytest
from table import run_test_for_each_row

from siwarp.ulp.adts.repeat import LEAST_RATE, MOST_RANGES, REPORT_S, Inbound, Outbound, Report
from siwarp.ulp.adts.wire import WireError


def encode_and_decode_report(report: Report) -> Report:
    return Report.unpack(memoryview(report.pack()))


class LossyLink:
    """Two ends and a link that loses and reorders datagrams; time passes in steps of 1 ms."""

    def __init__(self, seed: int, loss: float, window: int = 64, delay: float = 0.01) -> None:
        self.draw = random.Random(seed)
        self.loss = loss
        self.delay = delay
        self.now = 0.0
        self.sender: Outbound[int] = Outbound()
        self.receiver: Inbound[int] = Inbound(window)
        self.sender.limit = window
        self.flying: list[tuple[float, object]] = []
        self.got: list[int] = []
        self.transmissions = 0
        self.reported_at = 0.0

    def transmit_or_lose(self, what: object) -> None:
        if self.draw.random() >= self.loss:
            self.flying.append((self.now + self.delay * self.draw.uniform(1, 1.3), what))

    def advance_one_millisecond(self) -> None:
        self.now += 0.001
        for number, unit in self.sender.take_due_units(self.now):
            self.transmissions += 1
            self.transmit_or_lose((number, unit))
        if self.sender.unacknowledged and self.sender.must_ask_for_report(self.now):
            self.transmit_or_lose(Report(0, 0, ask=True))
        arrived = [what for at, what in self.flying if at <= self.now]
        self.flying = [one for one in self.flying if one[0] > self.now]
        for what in arrived:
            if isinstance(what, Report):
                if not what.ask:
                    self.sender.process_report(what, self.now)
            elif isinstance(what, tuple):
                for unit in self.receiver.store_unit(*what):
                    self.got.append(unit)
                    self.receiver.count_released_unit(grant=True)
        if self.now - self.reported_at >= REPORT_S:
            self.reported_at = self.now
            self.transmit_or_lose(encode_and_decode_report(self.receiver.make_report()))

    def send_numbers(self, count: int, seconds: float) -> None:
        """Send numbers until all have arrived, for a limited time."""
        end = self.now + seconds
        added = 0
        while (len(self.got) < count or self.sender.unacknowledged) and self.now < end:
            while added < count and self.sender.room > 0:
                self.sender.queue_unit(added, self.now)
                added += 1
            self.advance_one_millisecond()


@pytest.mark.clause("ADTS-UD-3", "ADTS-UD-4")
@pytest.mark.parametrize("loss", [0, 0.01, 0.05, 0.3])
def test_units_arrive_once_and_in_order_in_spite_of_loss(loss: float) -> None:
    link = LossyLink(7, loss)
    link.send_numbers(2000, 300)
    assert link.got == list(range(2000))
    assert link.sender.unacknowledged == 0
    # The number of repeated units is little more than the number of lost ones.
    assert link.transmissions <= 2000 * (1 + 2 * loss) + (0 if not loss else 50)


@pytest.mark.clause("ADTS-UD-6")
def test_the_rate_grows_without_loss_and_decreases_with_it() -> None:
    link = LossyLink(1, 0, window=4096)
    link.send_numbers(4000, 60)
    good = link.sender.rate
    assert good > 1000
    link.loss = 0.3
    link.got.clear()
    link.send_numbers(1000, 60)
    assert link.sender.rate < good


@pytest.mark.clause("ADTS-UD-6")
def test_units_are_sent_at_the_rate_and_not_in_bursts() -> None:
    sender: Outbound[int] = Outbound(rate=1000, limit=1000)
    for unit in range(1000):
        sender.queue_unit(unit, 0.0)
    assert len(list(sender.take_due_units(0.0))) == 8
    assert sender.seconds_until_due() == pytest.approx(0.001)
    sent = [len(list(sender.take_due_units(step / 100))) for step in range(1, 51)]
    assert max(sent) <= 11 and sum(sent) == pytest.approx(500, abs=2)
    # If the timer fires a second late, the units due in that second are not all sent at once.
    assert len(list(sender.take_due_units(1.5))) <= 1000 * REPORT_S


@pytest.mark.clause("ADTS-UD-5")
def test_without_reports_questions_are_asked_and_the_first_unit_is_repeated_at_half_the_rate() -> (
    None
):
    sender: Outbound[int] = Outbound(rate=400, limit=10)
    for unit in range(3):
        sender.queue_unit(unit, 0.0)
    assert [number for number, _ in sender.take_due_units(0.0)] == [0, 1, 2]
    asked = []
    for step in range(1, 1000):
        now = step / 100
        if sender.must_ask_for_report(now):
            asked.append(now)
            assert [number for number, _ in sender.take_due_units(now)] == [0]
    waits = [b - a for a, b in itertools.pairwise(asked)]
    assert waits == sorted(waits) and waits[-1] == pytest.approx(2.0, abs=0.02)
    assert sender.rate == LEAST_RATE


@pytest.mark.clause("ADTS-UD-5")
def test_an_answer_without_ranges_lacks_all_that_was_sent_before_the_question() -> None:
    sender: Outbound[int] = Outbound(limit=8)
    for unit in range(8):
        sender.queue_unit(unit, 0.0)
    assert len(list(sender.take_due_units(0.0))) == 8
    # Units 2 to 7 are not sent again, because they may still be on their way.
    assert sender.process_report(Report(1, 8, 1), 0.02) == [0]
    assert list(sender.take_due_units(0.04)) == []
    assert sender.must_ask_for_report(1.0)
    assert sender.process_report(Report(2, 8, 2), 1.02) == [1]
    assert [number for number, _ in sender.take_due_units(2.0)] == [2, 3, 4, 5, 6, 7]


def test_a_report_lists_the_missing_ranges() -> None:
    receiver: Inbound[int] = Inbound(1000)
    assert receiver.store_unit(0, 0) == [0]
    for number in (3, 4, 7, 8, 3):
        assert receiver.store_unit(number, number) == []
    assert encode_and_decode_report(receiver.make_report(ask=True)) == Report(
        1, 1000, 4, ((1, 2), (5, 2)), True
    )
    assert receiver.has_gaps
    assert receiver.store_unit(1, 1) == [1]
    assert receiver.store_unit(2, 2) == [2, 3, 4]
    for number in range(9, 500, 2):
        receiver.store_unit(number, number)
    assert len(receiver.make_report().missing) == MOST_RANGES


@pytest.mark.clause("ADTS-UD-4", "ADTS-UD-7#a")
def test_the_limit_follows_the_units_that_were_released() -> None:
    receiver: Inbound[int] = Inbound(4)
    for number in range(4):
        receiver.store_unit(number, number)
    assert receiver.make_report().limit == 4
    assert not receiver.count_released_unit(grant=True)
    assert receiver.count_released_unit(grant=True)  # True, because half of the window was released
    assert receiver.make_report().limit == 6
    assert not receiver.count_released_unit(grant=False)
    assert receiver.make_report().limit == 6
    receiver.raise_unit_limit()
    assert receiver.make_report().limit == 7
    with pytest.raises(WireError, match="unit 7 was sent, but the limit is 7"):
        receiver.store_unit(7, 7)


@pytest.mark.clause("ADTS-UD-7#b")
@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report(4, 10), "unit 4, but 3 units were sent"),
        (Report(0, 10, 0, ((1, 3),)), "unit 4, but 3 units were sent"),
        (Report(0, 10, 5), "unit 5, but 3 units were sent"),
        (Report(3, 10), "unit 2, which was not sent"),
    ],
)
def test_a_report_about_units_that_were_not_sent_is_refused(report: Report, words: str) -> None:
    sender: Outbound[int] = Outbound(limit=10)
    for unit in range(2):
        sender.queue_unit(unit, 0.0)
    list(sender.take_due_units(0.0))
    sender.queue_unit(2, 0.0)
    sender._budget = 0
    with pytest.raises(WireError, match=words):
        sender.process_report(report, 0.1)


def test_old_reports_change_nothing() -> None:
    sender: Outbound[int] = Outbound(limit=10)
    for unit in range(4):
        sender.queue_unit(unit, 0.0)
    list(sender.take_due_units(0.0))
    arrived = sender.process_report(Report(3, 20), 0.1)
    arrived += sender.process_report(Report(1, 15, 0, ((1, 2),)), 0.2)
    assert arrived == [0, 1, 2]
    assert sender.limit == 20
    assert list(sender.take_due_units(0.2)) == []


@pytest.mark.clause("ADTS-UD-7#c")
@run_test_for_each_row(
    "octets",
    [
        b"",
        b"ADTR",
        Report(0, 1).pack()[:-1],
        b"ADTS" + Report(0, 1).pack()[4:],
        Report(5, 9, 0, ((4, 1),)).pack(),
        Report(5, 9, 0, ((5, 0),)).pack(),
        Report(5, 9, 0, ((7, 2), (8, 1))).pack(),
        Report(0, 1, 0, tuple((2 * i, 1) for i in range(MOST_RANGES + 1))).pack(),
        Report((1 << 64) - 1, 1).pack(),
        Report(0, 1, 0, (((1 << 64) - 1, 1),)).pack(),
    ],
)
def test_octets_that_are_no_report_are_refused(octets: bytes) -> None:
    with pytest.raises(WireError):
        Report.unpack(memoryview(octets))
