"""Deadlines, compared with a naive model, and the cost of postponing one."""

from math import inf
from random import Random
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from kwire.clock import SteadyWall
from kwire.coordinator.timers import DeadlineClock, Timers
from tests.support.raftmeta.work import calls_in

CHANGES = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.one_of(st.none(), st.integers(0, 50)),
        st.integers(0, 3),
    )
)


@given(CHANGES)
def test_due_deadlines_are_those_of_a_naive_model(
    changes: list[tuple[str, int | None, int]],
) -> None:
    timers, now = Timers(), 0
    deadlines: dict[str, int] = {}
    for name, at, elapsed in changes:
        timers.set(name, at)
        deadlines.pop(name, None)
        if at is not None:
            deadlines[name] = at
        assert timers.deadline <= min(deadlines.values(), default=inf)
        now += elapsed
        due_names = set()
        while (due := timers.pop_due(now)) is not None:
            due_names.add(due)
        assert due_names == {name for name, at in deadlines.items() if at <= now}
        deadlines = {name: at for name, at in deadlines.items() if at > now}
        assert len(timers) == len(deadlines)
        assert timers.deadline > now


def test_cancelled_deadline_is_never_due() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.set("a", None)
    assert timers.pop_due(2.0) is None
    assert timers.deadline == inf


def test_postponed_deadline_keeps_one_heap_entry() -> None:
    timers = Timers()
    for step in range(10_000):
        timers.set(step % 10, 10.0 + step)
    assert len(timers._heap) == 10


def test_one_call_moves_few_of_many_postponed_deadlines() -> None:
    """Members that were loaded together have sent heartbeats since."""

    def work(count: int) -> int:
        timers = Timers()
        for name in range(count):
            timers.set(name, 10.0)
        for name in range(1, count):
            timers.set(name, 20.0)
        timers.set(0, None)
        timers.set("due", 10.0)
        calls = calls_in(lambda: timers.pop_due(10.0))
        while timers.deadline <= 10.0:
            names.append(timers.pop_due(10.0))
        return calls

    names: list[Any] = []
    assert work(10_000) == work(1_000)
    assert [name for name in names if name is not None] == ["due", "due"]


def test_cancelled_deadlines_leave_the_heap() -> None:
    timers = Timers()
    timers.set("other", 5.0)
    for step in range(10_000):
        timers.set(step, 10.0 + step)
        timers.set(step, None)
    assert len(timers._heap) < 200
    assert timers.pop_due(20_000.0) == "other"
    assert timers.pop_due(20_000.0) is None


@attrs.define
class SetClock:
    """A clock and a lease that a test sets."""

    time: float = 0.0
    lease_over_s: float = 0.0

    def now(self) -> float:
        return self.time

    def now_ms(self) -> int:
        return 0


def test_deadline_has_passed_at_the_time_to_wait_for() -> None:
    """A rounded sum would wake the coordinator again and again at a deadline still ahead."""
    random = Random(7)
    for _ in range(20_000):
        source = SetClock(lease_over_s=random.uniform(0, 100))
        clock = DeadlineClock(source, source, SteadyWall(source))
        deadline = random.uniform(0, 1e5)
        source.time = clock.passes_at(deadline)
        assert clock.now() >= deadline
