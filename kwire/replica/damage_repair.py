"""The repair of damaged batches with the bytes of other replicas.

Rules: any replica repairs itself, whatever its role. It copies the missing batches from in-sync
replicas with consumer fetches, which leaders and followers answer up to their high watermark. If a
compacted log lacks a batch that no other replica has in the same form, it adopts all closed
segments of another replica. This takes a long time, so it has its own task and a rate limit, and
the first attempt to repair a log does not include it: a broker that is restarting may be back soon.
Nothing that is intact is removed, so the replica stays in sync and its log keeps its end. A repair
that fails is retried; meanwhile only the damaged batches are unreadable. See
docs/decisions/0031-damaged-batches.md.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.clock import Clock
from kwire.codec.messages.fetch import FetchRequest
from kwire.drive import Slices
from kwire.errors import KafkaError, raise_for_code
from kwire.log.compaction.job import CleaningFailed
from kwire.log.deadlines import Deadlines
from kwire.log.directories.prefix_copy import CopyVoid
from kwire.log.partition_log import PartitionLog
from kwire.log.scrubber import LogScrubber
from kwire.log.segments.damage import DamagedRange
from kwire.records.header import Buffer
from kwire.replica.fetch_sessions import FINAL_EPOCH, NO_SESSION
from kwire.replica.partition import Partition
from kwire.replica.ports import LeaderBroker, LeaderUnreachable, PartitionState
from kwire.replica.replacement import Gap, Unsuitable, prefix_batches, suitable_batches
from kwire.replica.throttles import RateLimit
from kwire.waits import Signal

if TYPE_CHECKING:
    from kwire.replica.hosted_partitions import HostedPartitions

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
"""The number of bytes after which fetched batches are written before more are fetched."""
FETCH_BYTES: Final = 64 * 1024
"""The size of a fetch, unless one batch is larger; the batches are checked in one turn."""
PAUSE_MIN_S: Final = 0.01
"""The shortest pause of a copy that exceeds its rate limit."""
RETRY_S: Final = 2.0
RETRY_MAX_S: Final = 300.0
"""The largest delay before a repair is retried; the delay doubles up to it."""
PATIENCE: Final = 3
"""The number of failures after which readers get CORRUPT_MESSAGE, instead of being told to wait."""
_CONSUMER: Final = -1
Lacking = tuple[DamagedRange, list[str]]
"""A damaged range for which no broker had the batches, and why."""
_WAIT_MS: Final = 100


@attrs.define(eq=False, repr=False)
class DamageRepair:
    """Repairs the damaged logs of one broker, one after the other.

    In parallel with other repairs, the closed segments of one log at a time are copied.
    """

    node: int
    partitions: "HostedPartitions"
    scrubber: LogScrubber
    """Knows the damage of the logs in all directories, and writes to damaged segments."""
    connect: Callable[[int], LeaderBroker]
    """Returns the connection to a broker; the first call on it connects."""
    clock: Clock
    copy_limit: RateLimit = attrs.field(factory=RateLimit)
    """The limit on the bytes of closed segments that are copied."""
    _prefixes: dict[PartitionLog, list[Lacking]] = attrs.field(init=False, factory=dict)
    """The logs whose closed segments are copied, in order, with what the repair lacks."""
    _has_prefixes: Signal = attrs.field(init=False, factory=Signal)
    _due: Deadlines[PartitionLog] = attrs.field(init=False, factory=Deadlines)
    _failures: dict[PartitionLog, int] = attrs.field(init=False, factory=dict)
    """The number of consecutive failed repairs, by log."""

    def on_damaged(self, log: PartitionLog, ranges: Sequence[DamagedRange]) -> None:
        """Begin to repair a log in which damage was found."""
        self._set_under_repair(log, ranges)
        self._due.arm(log, self.clock.now())

    async def run(self) -> None:
        """Repair logs until cancelled; sleep while none is damaged."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._copy_prefixes)
            slices = Slices(self.clock.now)
            while True:  # Neither an attempt nor a wait for due work is certain to await anything.
                for log in await self._due.wait(self.clock):
                    await self._try(log)
                    await slices.pause()

    def _set_under_repair(self, log: PartitionLog, ranges: Sequence[DamagedRange]) -> None:
        """Let readers wait for the repair, unless there is little hope for it."""
        partition = self._partition_of(log)
        is_expected = (
            partition is not None
            and self._failures.get(log, 0) < PATIENCE
            and bool(self._sources(partition))
        )
        state = None if partition is None else self._state(partition)
        is_alone = state is not None and tuple(state.replicas) == (self.node,)
        for damaged in ranges:
            damaged.is_under_repair, damaged.is_lost = is_expected, is_alone

    async def _try(self, log: PartitionLog) -> None:
        """Repair a log; if that fails, retry later or have all closed segments copied."""
        partition, is_repaired = self._partition_of(log), False
        try:
            is_repaired = partition is None or await self._repair(partition)
        except Exception:  # A fault here must not end the broker.
            logger.exception("repair failed partition=%s", log.partition)
        if is_repaired:
            self._failures.pop(log, None)
        elif log not in self._prefixes:
            self._on_failed(log)

    def _on_failed(self, log: PartitionLog) -> None:
        """Schedule a retry for damage that could not be repaired."""
        count = self._failures[log] = self._failures.get(log, 0) + 1
        self._set_under_repair(log, self.scrubber.damage_of(log))
        delay_s = min(RETRY_S * (1 << min(count - 1, 16)), RETRY_MAX_S)
        self._due.arm(log, self.clock.now() + delay_s)

    def _partition_of(self, log: PartitionLog) -> Partition | None:
        """Return the partition of a log; None if this broker no longer hosts it."""
        partition = self.partitions.find(*log.partition)
        return partition if partition is not None and partition.log is log else None

    def _state(self, partition: Partition) -> PartitionState | None:
        image = self.partitions.image
        topic = None if image is None else image.topics.get(partition.topic_id)
        return None if topic is None else topic.partitions.get(partition.partition)

    def _sources(self, partition: Partition) -> list[int]:
        """Return the other in-sync brokers, the leader first."""
        image, state = self.partitions.image, self._state(partition)
        if image is None or state is None:
            return []
        nodes = sorted(set(state.isr) - {self.node}, key=lambda node: node != state.leader)
        return [n for n in nodes if (b := image.brokers.get(n)) is not None and b.is_active]

    async def _repair(self, partition: Partition) -> bool:
        """Repair the damage of a partition's log; return whether none is left."""
        log = partition.log
        if not partition.is_confirmed:
            return False
        lacking = list[Lacking]()
        for damaged in self.scrubber.damage_of(log):
            reasons = await self._try_sources(partition, partial(self._copy, partition, damaged))
            if reasons is not None:
                lacking.append((damaged, reasons))
        closed_end = log.segments.active.base_offset
        is_closed = any(damaged.first_offset < closed_end for damaged, _ in lacking)
        if is_closed and _is_compacted(log) and self._failures.get(log, 0):
            self._prefixes[log] = lacking
            self._has_prefixes.notify()
            return False
        for damaged, reasons in lacking:
            self._report(log, damaged, reasons)
        return not self.scrubber.damage_of(log)

    async def _copy_prefixes(self) -> None:
        """Copy the closed segments of one log after the other until cancelled."""
        while True:
            while not self._prefixes:
                await self._has_prefixes.wait()
            log = next(iter(self._prefixes))
            reasons: list[str] | None = []
            try:
                partition = self._partition_of(log)
                if partition is not None:
                    reasons = await self._try_sources(
                        partition, partial(self._copy_prefix, partition)
                    )
            except Exception:  # A fault here must not end the broker.
                logger.exception("copy failed partition=%s", log.partition)
            lacking = self._prefixes.pop(log)
            if not self.scrubber.damage_of(log):
                self._failures.pop(log, None)
                continue
            for damaged, others in lacking:
                if reasons is not None or damaged.first_offset >= log.segments.active.base_offset:
                    self._report(log, damaged, others + (reasons or []))
            self._on_failed(log)

    async def _try_sources(
        self, partition: Partition, copy: Callable[[int], Awaitable[None]]
    ) -> list[str] | None:
        """Copy from one of the other in-sync brokers; if all fail, return the reason."""
        reasons = []
        for broker in self._sources(partition):
            try:
                await copy(broker)
            except (KafkaError, LeaderUnreachable, Unsuitable, CopyVoid, CleaningFailed) as error:
                reasons.append(f"broker {broker}: {error!r}")
            else:
                return None
        return reasons

    def _report(self, log: PartitionLog, damaged: DamagedRange, reasons: Sequence[str]) -> None:
        level = logging.ERROR if self._failures.get(log, 0) in (0, PATIENCE) else logging.DEBUG
        logger.log(
            level,
            "cannot repair partition=%s offset=%d end_offset=%d reasons=%s",
            log.partition,
            damaged.first_offset,
            damaged.end_offset,
            "; ".join(reasons) or "no other replica is in sync",
        )

    async def _copy(self, partition: Partition, damaged: DamagedRange, broker: int) -> None:
        """Copy a damaged range from another broker, in pieces.

        Return early if the range is no longer in the log.
        """
        log, source = partition.log, self.connect(broker)
        is_compacted = _is_compacted(log)
        while True:
            size = damaged.size
            stored = await self.scrubber.read_damaged(log, damaged) if is_compacted else None
            data, end_offset = bytearray(), damaged.first_offset
            while len(data) < min(size, PIECE_BYTES):
                end = min(damaged.end_offset, log.high_watermark)
                gap = Gap(end_offset, end, size - len(data))
                max_bytes = min(gap.size, FETCH_BYTES)
                records = await _fetch(source, partition, end_offset, max_bytes)
                rest = None if stored is None else memoryview(stored)[len(data) :]
                taken, end_offset = suitable_batches(records, gap, log.epochs, rest)
                data += memoryview(records)[:taken]
            is_restored = await self.scrubber.restore(log, damaged, data, end_offset)
            if not is_restored or len(data) >= size:
                return

    async def _copy_prefix(self, partition: Partition, broker: int) -> None:
        """Replace the closed segments of a compacted log by the batches of another broker."""
        log, source = partition.log, self.connect(broker)
        async with self.scrubber.copying_prefix(log) as copy:
            has_all = False
            while not has_all and copy.next_offset < copy.end_offset:
                while self.copy_limit.is_exceeded(self.clock.now()):
                    pause_s = self.copy_limit.pause_s(self.clock.now())
                    await trio.sleep(max(pause_s, PAUSE_MIN_S))
                offset = max(copy.next_offset, log.log_start)
                records = await _fetch(source, partition, offset, FETCH_BYTES)
                self.copy_limit.record(len(records), self.clock.now())
                batches, has_all = prefix_batches(
                    records, copy.next_offset, copy.end_offset, log.epochs
                )
                await copy.append(records, batches)
            await copy.finish()


def _is_compacted(log: PartitionLog) -> bool:
    """Return whether a pass has cleaned the log, or may clean it on another replica."""
    return log.config.cleanup_compact or log.clean_state.clean_end is not None


async def _fetch(source: LeaderBroker, partition: Partition, offset: int, max_bytes: int) -> Buffer:
    """Fetch from ``offset`` as a consumer does; raises KafkaError and LeaderUnreachable."""
    topic = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=max_bytes,
        session_id=NO_SESSION,
        session_epoch=FINAL_EPOCH,
        topics=[
            topic(
                topic=partition.topic,
                topic_id=partition.topic_id,
                partitions=[
                    topic.FetchPartition(
                        partition=partition.partition,
                        fetch_offset=offset,
                        partition_max_bytes=max_bytes,
                    )
                ],
            )
        ],
    )
    response = await source.fetch(request)
    raise_for_code(response.error_code)
    for topic_answer in response.responses:
        for answer in topic_answer.partitions:
            raise_for_code(answer.error_code)
            return answer.records or b""
    raise LeaderUnreachable("the response lacks the partition")
