"""Deadlines, compared with a naive model, and the cost of postponing one."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from kwire.coordinator.timers import Timers

CHANGES = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.one_of(st.none(), st.integers(0, 50)),
        st.integers(0, 3),
    )
)


@given(CHANGES)
def test_same_as_looking_at_all_of_them(changes: list[tuple[str, int | None, int]]) -> None:
    timers, twin, now = Timers(), dict[str, int](), 0
    for name, at, passed in changes:
        timers.set(name, at)
        twin.pop(name, None)
        if at is not None:
            twin[name] = at
        assert timers.deadline <= min(twin.values(), default=inf)
        now += passed
        fired = set()
        while (due := timers.pop_due(now)) is not None:
            fired.add(due)
        assert fired == {name for name, at in twin.items() if at <= now}
        twin = {name: at for name, at in twin.items() if at > now}
        assert len(timers) == len(twin)
        assert timers.deadline > now


def test_without_deadlines_nothing_is_due() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.set("a", None)
    assert timers.pop_due(2.0) is None
    assert timers.deadline == inf


def test_heartbeats_do_not_pile_up() -> None:
    timers = Timers()
    for step in range(10_000):
        timers.set(step % 10, 10.0 + step)
    assert len(timers._heap) == 10


def test_setting_and_cancelling_does_not_pile_up() -> None:
    timers = Timers()
    timers.set("other", 5.0)
    for step in range(10_000):
        timers.set(step, 10.0 + step)
        timers.set(step, None)
    assert len(timers._heap) < 200
    assert timers.pop_due(20_000.0) == "other"
    assert timers.pop_due(20_000.0) is None
