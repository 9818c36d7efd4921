"""Measures how long a request keeps the event loop busy, for the request-time quota (KIP-124).

kwire has one thread, so a request's time is the time of its own steps; its waits, and the steps of
other requests in the meantime, are not counted.
"""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeAlias, TypeVar

from kwire.handlers.shared.client_quotas import REQUEST_TIME
from kwire.handlers.shared.context import Context
from kwire.replica.throttles import RateLimit

T = TypeVar("T")
# Any: the values that an awaitable exchanges with the event loop, which only those two understand.
Exchange: TypeAlias = Any


@coroutine
def measure_steps(
    work: Awaitable[T], now: Callable[[], float], count: Callable[[float], None]
) -> Generator[Exchange, Exchange, T]:
    """Await ``work``, and call ``count`` with the seconds of each of its steps."""
    steps = work.__await__()
    answer: Exchange = None
    error: BaseException | None = None
    while True:
        started = now()
        try:
            if error is not None:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            count(now() - started)
        answer, error = None, None
        try:
            answer = yield request
        except BaseException as caught:  # noqa: BLE001  Cancellation, which the work has to handle.
            error = caught


async def count_steps(
    context: Context, limit: RateLimit, work: Awaitable[T], now: Callable[[], float], started: float
) -> T:
    """Await the rest of a request's work, and count its time on the loop since ``started``."""
    count_time(context, limit, now() - started)
    return await measure_steps(work, now, partial(count_time, context, limit))


def count_time(context: Context, limit: RateLimit, seconds: float) -> None:
    """Count the seconds for which a request has kept the loop busy."""
    context.broker.client_quotas.count_time(limit, seconds, context.clock.now())


def throttle_after(context: Context, limit: RateLimit, busy_s: float) -> int:
    """Count the seconds of a request; return the throttle time of its client, if any."""
    quotas, now = context.broker.client_quotas, context.clock.now()
    quotas.count_time(limit, busy_s, now)
    return context.count_throttle(REQUEST_TIME, quotas.throttle_ms(limit, now))
