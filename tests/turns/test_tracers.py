"""The tracer in C counts what the tracer in Python counts."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest

from tests.support.turns.tracer import CTracer, PythonTracer, Tracer

Make = Callable[[Callable[[FrameType], None]], Tracer]


def fail_for(number: int) -> int:
    try:
        if number % 3 == 0:
            raise ValueError(number)
        return number
    except ValueError:
        return 0


def items(count: int) -> Iterator[int]:
    for number in range(count):
        yield fail_for(number)


def work(count: int) -> list[int]:
    return [*items(count), *(each * 2 for each in items(count))]


def count(make: Make, run: Callable[[], object]) -> int:
    tracer = make(lambda frame: None)
    tracer.next_sample = sys.maxsize
    tracer.start()
    run()
    tracer.stop()
    return tracer.units


def need_c_tracer() -> Make:
    if CTracer is None:
        pytest.skip("there is no C compiler")
    return CTracer


@pytest.mark.parametrize("size", [0, 1, 100])
def test_both_tracers_count_the_same(size: int) -> None:
    units = count(PythonTracer, partial(work, size))
    assert count(need_c_tracer(), partial(work, size)) == units > 15 * size


def test_frame_that_was_entered_before_counts_from_its_next_resumption_on() -> None:
    def resume() -> int:
        numbers = items(10)
        next(numbers)
        return count(make, partial(list, numbers))

    make: Make = PythonTracer
    units = resume()
    make = need_c_tracer()
    assert resume() == units > 0


def test_both_tracers_take_the_same_samples() -> None:
    def places(make: Make) -> list[tuple[str, int]]:
        samples: list[tuple[str, int]] = []

        def sample(frame: FrameType) -> None:
            samples.append((frame.f_code.co_name, frame.f_lineno))
            tracer.next_sample = tracer.units + 7

        tracer = make(sample)
        tracer.start()
        work(20)
        tracer.stop()
        return samples

    assert places(need_c_tracer()) == places(PythonTracer)
