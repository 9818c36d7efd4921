"""A run at an interval outlives a restart of its brokers."""

from collections.abc import Callable

import pytest

from kwire_pipeline.engine.query import patiently
from kwire_pipeline.errors import Failure, Refusal


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
