"""The series of steps of coordinators' shards: long work, one decision at a time.

The steps of a series are taken in order, in slices. While a shard cannot be written, all its series
wait, and the step that failed is retried every second. A series that a deadline starts repeatedly,
such as the abort of timed-out transactions, has a name: it does not start while a series of that
name is unfinished. So a partition that is below ``min.insync.replicas`` for an hour does not
accumulate work.

A step that raises an unexpected error, or that can never be written, does not hold up other series.
Its own series skips the step if a deadline repeats the series anyway; otherwise it retries the step
later, after its other steps.
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

import attrs
import trio

from kwire.coordinator.decision import Machine, Step
from kwire.coordinator.shard import Phase, Series, Shard
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.waits import Signal

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Machine)

RETRY_SECONDS: Final = 1.0
_RETRY_AFTER_FAULT_SECONDS: Final = 60.0


@attrs.define(eq=False, repr=False)
class StepRunner(Generic[M]):
    """The task that takes the steps of one coordinator service."""

    take: Callable[[Shard[M], Step], None]
    """Takes one step of a shard; raises the exceptions of the step's decision."""
    _shards: deque[Shard[M]] = attrs.field(factory=deque, init=False)
    """The shards that have steps to take now."""
    _has_shards: Signal = attrs.field(factory=Signal, init=False)

    def schedule(
        self, shard: Shard[M], steps: Iterable[Step], name: Hashable | None = None
    ) -> None:
        """Schedule these steps, unless a series of that name is unfinished."""
        key = object() if name is None else name
        if key not in shard.series:
            shard.series[key] = Series(steps, is_repeated=name is not None)
            self._queue(shard)

    def _queue(self, shard: Shard[M]) -> None:
        if not shard.takes_steps:
            shard.takes_steps = True
            self._shards.append(shard)
            self._has_shards.set()

    async def run(self, nursery: trio.Nursery) -> None:
        """Take scheduled steps until cancelled."""
        while True:
            await self._has_shards.wait()
            self._has_shards.clear()
            slices = Slices()
            while self._shards:
                await self._take_all(self._shards.popleft(), slices, nursery)

    async def _take_all(self, shard: Shard[M], slices: Slices, nursery: trio.Nursery) -> None:
        """Take the steps of a shard until none is left, it resigns, or it cannot be written."""
        while (key := shard.next_series()) is not None:
            series = shard.series[key]
            assert series is not None
            for step in series:
                if shard.phase is Phase.RESIGNED:
                    return
                try:
                    self.take(shard, step)
                except Exception as error:  # noqa: BLE001  A fault must not end the node.
                    if _may_pass(error):
                        self._hold_up(shard, series, step, error, nursery)
                        return
                    delay_s = log_failure("step", shard, error)
                    if not series.is_repeated:
                        series.postpone(step)
                        shard.series[key] = None
                        nursery.start_soon(self._retry_series, shard, key, series, delay_s)
                        break
                await slices.pause()
            else:
                del shard.series[key]
        shard.takes_steps = False

    def _hold_up(
        self, shard: Shard[M], series: Series, step: Step, error: Exception, nursery: trio.Nursery
    ) -> None:
        """Retry this step later, before any other step of the shard."""
        series.put_back(step)
        log_failure("step", shard, error)
        nursery.start_soon(self._retry_shard, shard)

    async def _retry_shard(self, shard: Shard[M]) -> None:
        await trio.sleep(RETRY_SECONDS)
        shard.takes_steps = False
        self._queue(shard)

    async def _retry_series(
        self, shard: Shard[M], key: Hashable, series: Series, delay_s: float
    ) -> None:
        await trio.sleep(delay_s)
        shard.series[key] = series
        self._queue(shard)


def _may_pass(error: Exception) -> bool:
    """Return whether the partition just cannot be written now, so that a retry may help."""
    return isinstance(error, KafkaError) and error.retriable


def log_failure(subject: str, shard: Shard[M], error: Exception) -> float:
    """Log an error and return the seconds until the retry, longer after an unexpected error.

    While a shard cannot be written, this is logged only once.
    """
    partition = shard.partition
    if not _may_pass(error):
        logger.error("%s failed partition=%s", subject, partition, exc_info=error)
        return _RETRY_AFTER_FAULT_SECONDS
    if not shard.is_held_up:
        logger.warning("%s postponed partition=%s error=%r", subject, partition, error)
        shard.is_held_up = True
    return RETRY_SECONDS
