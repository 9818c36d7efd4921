"""The loads of a coordinator's partitions: each log is replayed from its start to its end.

A few partitions are loaded concurrently, so that a long log does not hold up the others; together,
their slices take as long as a single slice. If a load fails, even because of a bug in a machine,
the error is logged and the load is repeated with an empty shard, after a delay that doubles: a
damaged log stays damaged. Meanwhile that partition answers COORDINATOR_LOAD_IN_PROGRESS; all others
are served.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs
import trio

from kwire.clock import Clock
from kwire.coordinator.decision import Decision, Machine, Moment
from kwire.coordinator.replay import Replay
from kwire.coordinator.shard import Phase, Shard
from kwire.drive import SLICE_SECONDS, Slices
from kwire.errors import CorruptMessage, KafkaError
from kwire.waits import Signal

if TYPE_CHECKING:
    from kwire.coordinator.ports import ShardLog

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Machine)

_LOADS_AT_ONCE: Final = 4
_RETRY_SECONDS: Final = 1.0
_RETRY_MAX_SECONDS: Final = 60.0


@attrs.define(eq=False, repr=False)
class Loader(Generic[M]):
    """The shards to load, and the tasks that load them."""

    log: "ShardLog"
    clock: Clock
    moment: Callable[[], Moment]
    """Returns the current time for decisions."""
    queue: deque[Shard[M]]
    is_queued: Signal
    """Set when a shard is put into the queue."""
    perform: Callable[[Shard[M], Decision], None]
    """Carries out a decision that follows the replay."""
    replace: Callable[[Shard[M]], Shard[M]]
    """Replaces a half loaded shard by an empty one, which it returns."""
    on_active: Callable[[Shard[M]], None]
    """Called when a shard is loaded."""

    async def run(self, nursery: trio.Nursery) -> None:
        """Load queued shards until cancelled."""
        for _ in range(_LOADS_AT_ONCE - 1):
            nursery.start_soon(self._load_queued, nursery)
        await self._load_queued(nursery)

    async def _load_queued(self, nursery: trio.Nursery) -> None:
        while True:
            await self.is_queued.wait()
            if not self.queue:
                self.is_queued.clear()
                continue
            shard = self.queue.popleft()
            if shard.phase is not Phase.LOADING:
                continue
            try:
                await self._load(shard)
            except Exception as error:  # A fault must not end the node.
                if shard.phase is Phase.LOADING:
                    is_fault = not isinstance(error, (KafkaError, OSError, ValueError))
                    text = "loading failed partition=%s error=%r"
                    logger.error(text, shard.partition, error, exc_info=is_fault)
                    nursery.start_soon(self._retry, self.replace(shard))

    async def _retry(self, shard: Shard[M]) -> None:
        shard.failures += 1
        await trio.sleep(min(_RETRY_SECONDS * 2 ** (shard.failures - 1), _RETRY_MAX_SECONDS))
        self.queue.append(shard)
        self.is_queued.set()

    async def _load(self, shard: Shard[M]) -> None:
        """Replay the partition up to its log end at the start of the load.

        If this raises, the shard is half loaded and must be replaced. It returns early if the shard
        is resigned.
        """
        clock, partition = self.clock, shard.partition
        slices = Slices(seconds=SLICE_SECONDS / _LOADS_AT_ONCE)
        offset, end = self.log.bounds(partition)
        shard.written = end
        began = clock.now()
        replay = Replay(partition, shard.machine, shard.in_order)
        while offset < end:
            reached = offset
            try:
                buf = await self.log.read(partition, offset)
            except CorruptMessage as error:
                if error.next_offset is None:
                    raise
                logger.error("damaged batches skipped partition=%s %s", partition, error)
                offset = error.next_offset
                continue
            for position in replay.read(buf, offset):
                reached = position
                await slices.pause()
                if shard.phase is not Phase.LOADING:
                    return
            if reached == offset:
                logger.warning("log ends early partition=%s offset=%d", partition, offset)
                break
            offset = reached
        for _ in replay.finish():
            await slices.pause()
            if shard.phase is not Phase.LOADING:
                return
        for step in shard.machine.on_loaded():
            self.perform(shard, step(self.moment()))
            await slices.pause()
            if shard.phase is not Phase.LOADING:
                return
        shard.phase = Phase.ACTIVE
        self.on_active(shard)
        elapsed_ms = (clock.now() - began) * 1000
        logger.info("coordinator loaded partition=%s end=%d ms=%d", partition, end, elapsed_ms)
