"""A run at an interval outlives a restart of its brokers."""

from collections.abc import Callable

import pytest

from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.patience import LONGEST_WAIT_S, Outage, patiently


class Time:
    """A clock that only waiting moves."""

    now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def answer_after(time: Time, until_s: float, error: Exception) -> Callable[[], str]:
    def ask() -> str:
        if time.now_s < until_s:
            raise error
        return "topics"

    return ask


def test_brokers_may_be_away_for_a_while() -> None:
    time = Time()
    ask = answer_after(time, 40, Failure("no broker answers"))
    assert patiently(ask, 300, clock=time.clock, sleep=time.sleep) == "topics"
    assert time.now_s == 40


@pytest.mark.parametrize(
    ("error", "patience_s", "waited_s"),
    [
        (Failure("no broker answers"), 300, 300),
        (Failure("no"), 0, 0),
        (Refusal("no topic"), 300, 0),
    ],
)
def test_patience_ends(error: Exception, patience_s: float, waited_s: float) -> None:
    """A refusal is not waited for, since another answer would be the same."""
    time = Time()
    with pytest.raises(type(error)):
        patiently(answer_after(time, 1000, error), patience_s, clock=time.clock, sleep=time.sleep)
    assert time.now_s == waited_s


def test_waits_of_an_outage_grow_and_end_with_the_patience() -> None:
    outage = Outage(patience_s=300)
    now_s = 0.0
    waits: list[float] = []
    while (wait_s := outage.on_failure(now_s, started_s=now_s - 1)) is not None:
        assert outage.is_first_failure == (not waits)
        waits.append(wait_s)
        now_s += wait_s
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 57]
    assert now_s == 300


def test_batch_ends_an_outage() -> None:
    outage = Outage(patience_s=300)
    assert outage.on_batch(0) is None
    for now_s in (10, 20, 40):
        outage.on_failure(now_s, started_s=now_s)
    assert outage.on_batch(70) == 60
    assert outage.on_batch(80) is None
    assert outage.on_failure(900, started_s=890) == 1


def test_query_that_has_run_without_new_records_ends_an_outage() -> None:
    outage = Outage(patience_s=300)
    outage.on_failure(0, started_s=-1)
    assert outage.on_failure(1000, started_s=1) == 1
    assert outage.on_failure(1001 + LONGEST_WAIT_S, started_s=1001) == 2
