"""A partition: a log and this broker's role in it, used by Produce and Fetch.

Synchronous throughout: a method decides, writes to the page cache and returns. Its caller then
completes the waits for the change (:mod:`kwire.replica.completion`). Rules:

* Consumers see nothing at or above the high watermark, read_committed consumers nothing at or above
  the last stable offset (invariant 13); followers read up to the end of the written records.
* After a start, a follower serves no consumer until its leader has confirmed its log. A power loss
  can undo an unsynced truncation, but keep the high watermark stored after it; then records that
  were never committed are below the high watermark.
* No code here reads the records of a batch; a fetched range is a region of a file.
* A request may name a leader epoch; it is rejected if the partition's leader epoch differs.
"""

import enum
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

import attrs

from kwire.errors import (
    FencedLeaderEpoch,
    KafkaError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from kwire.log import timestamp_search
from kwire.log.aborted_transactions import read_committed
from kwire.log.config import LogConfig
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.partition_log import PartitionLog
from kwire.log.region import FileRegion
from kwire.metrics import Cell
from kwire.records.header import NO_TIMESTAMP, BatchHeader, Buffer
from kwire.replica.leader import HighWatermarkChange, PartitionLeader
from kwire.replica.verification import Verifications
from kwire.waits import OffsetWaits

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
NO_EPOCH: Final = -1
ACKS_ALL: Final = -1
UNCOMMITTED_MAX: Final = 1024
"""The most batches above the high watermark whose sizes are tracked one by one."""


SHARED_MAX: Final = 16
"""The most reads shared by fetches completed together; most of these request the same."""


class FetchIsolation(enum.IntEnum):
    """The bound up to which a fetch may read the log."""

    HIGH_WATERMARK = 0
    STABLE = 1
    """The last stable offset: read_committed."""
    LOG_END = 2
    """The log end offset: followers replicate uncommitted records."""


class ProduceResult(NamedTuple):
    """The result of appending a producer's batch."""

    base_offset: int
    append_time_ms: int
    """The append time, -1 unless the topic uses LogAppendTime."""
    log_start: int
    end_offset: int
    """The offset after the batch; acks=all waits until the high watermark reaches it."""
    leader_epoch: int
    """The epoch of the append; in another epoch these offsets may belong to other batches."""
    readable: tuple[FetchIsolation, ...] = ()
    """The isolation levels whose fetches can read more now."""
    size_bytes: int = 0
    """The size of the batch, 0 for a duplicate."""
    is_stored: bool = False
    """True if this broker has stored the batch, so that acks=1 need not wait."""


class ReadResult(NamedTuple):
    """A partition's result for a fetcher: records, the point of divergence, or an error.

    The first fields are those of a usual response, in wire order; ``error`` and
    ``preferred_replica`` are for the callers of :meth:`Partition.read`.
    """

    high_watermark: int
    last_stable: int
    log_start: int
    aborted: Sequence[AbortedTxn] | None = None
    """For read_committed, the aborted transactions that overlap the records."""
    records: FileRegion | bytes | None = None
    """None if there are none; a region is never empty."""
    end_offset: int = -1
    """The end offset of what this fetcher may read."""
    partition: "Partition | None" = None
    """The partition that was read; None if there is nothing that may change."""
    diverging: tuple[int, int] | None = None
    error: KafkaError | None = None
    preferred_replica: int = -1
    """The follower that the consumer should read from."""


class SharedRead(NamedTuple):
    """A partition's result that several fetches share."""

    state: tuple[object, ...]
    """The partition's state when it was read."""
    result: ReadResult
    """The result of the read, with its records in memory."""
    size: int
    frames: dict[Hashable, bytes]
    """The bytes that responses with only this answer share, by version
    (:class:`kwire.handlers.shared.shared_response.SharedResponse`)."""


@attrs.define(eq=False, repr=False)
class SharedReads:
    """The reads shared by fetches of one isolation level that one append completed.

    A fetch with equal arguments reuses a read. The object lives as long as the last of these
    fetches, and holds at most :data:`SHARED_MAX` reads.
    """

    reads: dict[Hashable, SharedRead] = attrs.Factory(dict)

    @property
    def is_full(self) -> bool:
        """True if only reads that are known already are kept."""
        return len(self.reads) >= SHARED_MAX

    def keep(self, key: Hashable, read: SharedRead) -> None:
        """Share a read with later fetches that request the same."""
        if key in self.reads or not self.is_full:
            self.reads[key] = read


class OffsetLookupResult(NamedTuple):
    """The answer to an offset lookup; -1 for a value that does not exist."""

    offset: int
    timestamp: int
    leader_epoch: int


class ReadableEnds(NamedTuple):
    """The offsets up to which consumers may read."""

    high_watermark: int = 0
    stable: int = 0


UNKNOWN_OFFSET: Final = OffsetLookupResult(-1, -1, -1)


@attrs.define(eq=False, repr=False)
class Traffic:
    """The traffic counters of a topic's partitions; services add to them."""

    messages_in: Cell = attrs.field(factory=Cell)
    bytes_in: Cell = attrs.field(factory=Cell)
    bytes_out: Cell = attrs.field(factory=Cell)


class Uncommitted(list[tuple[int, int]]):
    """The end offset and size of each batch above the high watermark, in log order.

    The last of :data:`UNCOMMITTED_MAX` entries also covers all later batches: with acks=1 a leader
    may accept records for hours while its high watermark waits for replicas. It is a list, because
    an empty deque takes 760 bytes, in each of a node's partitions.
    """

    __slots__ = ()

    def add(self, end_offset: int, size: int) -> None:
        """Count a batch at the end of the log."""
        if len(self) >= UNCOMMITTED_MAX:
            size += self.pop()[1]
        self.append((end_offset, size))

    def on_copied(self, end_offset: int, size: int) -> None:
        """Count a copied range, and forget batches that a truncation has removed."""
        while self and self[-1][0] >= end_offset:
            self.pop()
        self.add(end_offset, size)

    def on_committed(self, end_offset: int) -> int:
        """Return the bytes that became readable when the high watermark moved to ``end_offset``.

        The result is at least 1: sizes of records written before the broker started are not known.
        """
        size = count = 0
        for batch_end, batch_size in self:
            if batch_end > end_offset:
                break
            size += batch_size
            count += 1
        del self[:count]
        return max(1, size)

    def on_role_changed(self, high_watermark: int, end_offset: int) -> None:
        """Keep only the batches between these offsets."""
        self.on_committed(high_watermark)
        while self and self[-1][0] > end_offset:
            self.pop()


@attrs.define(eq=False, repr=False)
class Partition:
    """One partition on this broker."""

    topic: str
    partition: int
    topic_id: bytes
    log: PartitionLog
    traffic: Traffic = attrs.field(factory=Traffic)
    leader: PartitionLeader | None = None
    """Set while this broker leads."""
    leader_id: int = -1
    leader_epoch: int = -1
    commits: OffsetWaits = attrs.field(factory=OffsetWaits)
    """Waits for the high watermark to reach an offset."""
    writes: OffsetWaits = attrs.field(factory=OffsetWaits)
    """Waits for this broker to store records up to an offset (``leader.log_end``)."""
    deletions: OffsetWaits = attrs.field(factory=OffsetWaits)
    """Waits for the logs of all replicas to begin at an offset or later."""
    verifications: Verifications = attrs.field(factory=Verifications)
    uncommitted: Uncommitted = attrs.field(factory=Uncommitted)
    """The end offset and size of each batch above the high watermark."""
    copied: ReadableEnds = attrs.field(factory=ReadableEnds)
    """The readable ends when the waits of this follower's consumers were last completed."""
    read_count: int = 0
    """The number of consumers' reads since the last append that found records."""
    shared_reads: SharedReads | None = None
    """The reads since the last append, which its many consumers share; None if it has few."""
    is_confirmed: bool = False
    """True if this broker has led, or a leader has confirmed the log, since the broker started."""

    def begin_reads(self, shared_from: int) -> None:
        """Begin to count the reads after an append, and share them if there were many before."""
        self.shared_reads = SharedReads() if self.read_count >= shared_from else None
        self.read_count = 0

    @property
    def config(self) -> LogConfig:
        return self.log.config

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        log = self.log
        return log.producers.last_stable_offset(log.high_watermark, log.log_start)

    @property
    def readable_ends(self) -> ReadableEnds:
        return ReadableEnds(self.high_watermark, self.last_stable_offset)

    def _stored_end(self, before: int) -> int:
        """Return the end offset of the stored records: written and, if the topic requires, synced.

        ``before`` is the previous stored end. Acknowledgements, the high watermark and consumers
        never go beyond the stored end.
        """
        log = self.log
        if log.must_flush:
            return max(before, log.flush_state.recovery_point)
        return log.writer.written_offset

    def configure(self, config: LogConfig) -> None:
        """Apply changed settings; a leader keeps a higher min.insync.replicas for now."""
        self.log.configure(config)
        if self.leader is not None:
            self.leader.min_isr = max(self.leader.min_isr, config.min_insync_replicas)

    def lead(self, leader: PartitionLeader, now: float) -> None:
        """Become the leader."""
        self.log.epochs.assign(leader.leader_epoch, self.log.end_offset)
        leader.log_end = self._stored_end(self.log.high_watermark)
        self.leader = leader
        self.leader_id = leader.node
        self.leader_epoch = leader.leader_epoch
        self.is_confirmed = True
        if not leader.leads_on:
            self.verifications.on_elected()
        leader.advance(now)
        self.uncommitted.on_role_changed(self.high_watermark, self.log.end_offset)

    def follow(self, leader_id: int, leader_epoch: int) -> None:
        """Stop leading."""
        self.leader = None
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.uncommitted.on_role_changed(self.high_watermark, self.log.end_offset)
        self.copied = self.readable_ends

    def check_leader(self, epoch: int = NO_EPOCH) -> PartitionLeader:
        """Return the leader's state if this broker leads and the request's epoch is current."""
        leader = self.leader
        if epoch not in (NO_EPOCH, self.leader_epoch):
            self.check_epoch(epoch)
        if leader is None:
            raise NotLeaderOrFollower
        return leader

    def check_epoch(self, epoch: int) -> None:
        """Raise FencedLeaderEpoch or UnknownLeaderEpoch for another epoch (invariant 24)."""
        if epoch == NO_EPOCH or epoch == self.leader_epoch:
            return
        raise FencedLeaderEpoch if epoch < self.leader_epoch else UnknownLeaderEpoch

    def append(
        self,
        records: Buffer,
        header: BatchHeader,
        acks: int,
        now: float,
        now_ms: int,
        *,
        from_client: bool = True,
    ) -> ProduceResult:
        """Append a producer's checked batch, or return the offsets of the batch that it repeats.

        Timestamps and sequences of coordinators' batches are not checked. This is the general path;
        :mod:`kwire.replica.usual_append` does the same for usual batches.
        """
        leader = self.check_leader()
        log = self.log
        if acks == ACKS_ALL and leader.under_min_isr:
            raise NotEnoughReplicas(
                f"{len(leader.isr)} replicas in sync, {leader.effective_min_isr} are needed"
            )
        config = self.config
        config.check_batch(header, now_ms, from_client=from_client)
        size = header.size
        if size != len(records):
            records = memoryview(records)[:size]
        done = log.append_leader(
            records, header, leader.leader_epoch, now_ms, from_client=from_client
        )
        end_offset = done.last_offset + 1
        if done.is_duplicate:
            return ProduceResult(
                done.base_offset,
                done.timestamp_ms,
                done.log_start,
                end_offset,
                leader.leader_epoch,
                is_stored=end_offset <= leader.log_end,
            )
        stamp = done.timestamp_ms if config.log_append_time else NO_TIMESTAMP
        readable = self.on_appended(leader, end_offset, size, now)
        return ProduceResult(
            done.base_offset,
            stamp,
            done.log_start,
            end_offset,
            leader.leader_epoch,
            readable,
            size,
            end_offset <= leader.log_end,
        )

    def on_appended(
        self, leader: PartitionLeader, end_offset: int, size: int, now: float
    ) -> tuple[FetchIsolation, ...]:
        """Account for a batch at the end of the log; return the isolation levels it affects."""
        change = leader.on_appended(self._stored_end(leader.log_end), now)
        if change is None or change.to_offset < end_offset:
            self.uncommitted.add(end_offset, size)
        if change is None:
            return _FOLLOWERS
        unstable = self.log.producers.first_unstable(change.to_offset)
        if unstable is None or unstable > change.from_offset:
            return EVERYONE
        return _UNCOMMITTED

    def on_stored(self, now: float) -> HighWatermarkChange | None:
        """Advance the leader's log end offset after a thread has written or synced records."""
        leader = self.leader
        return None if leader is None else leader.on_appended(self._stored_end(leader.log_end), now)

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: FetchIsolation,
        at_least_one: bool = True,
        last_fetched_epoch: int = NO_EPOCH,
        wait: bool = True,
    ) -> ReadResult:
        """Return a range from ``offset`` onwards.

        With ``max_bytes`` 0 and without ``at_least_one``, the result has offsets but no region.
        Raises OffsetOutOfRange or Elsewhere, or WouldWait without ``wait``.
        """
        log = self.log
        high_watermark, log_start = log.high_watermark, log.log_start
        stable = log.producers.last_stable_offset(high_watermark, log_start)
        aborted: Sequence[AbortedTxn] | None = () if isolation is FetchIsolation.STABLE else None
        if last_fetched_epoch != NO_EPOCH:
            diverging = self._diverging(last_fetched_epoch, offset)
            if diverging is not None:
                return ReadResult(
                    high_watermark, stable, log_start, aborted, None, -1, self, diverging
                )
        if isolation is FetchIsolation.LOG_END:
            end = log.writer.written_offset
        else:
            end = high_watermark if isolation is FetchIsolation.HIGH_WATERMARK else stable
        if not log_start <= offset <= log.end_offset:
            raise OffsetOutOfRange
        if offset >= end or (max_bytes <= 0 and not at_least_one):
            return ReadResult(high_watermark, stable, log_start, aborted, None, end, self)
        if isolation is FetchIsolation.STABLE:
            region, aborted = read_committed(
                log, offset, max_bytes, end_offset=end, at_least_one=at_least_one, wait=wait
            )
        else:
            region = log.read(
                offset, max_bytes, end_offset=end, at_least_one=at_least_one, wait=wait
            )
        records = region if len(region) else None
        return ReadResult(high_watermark, stable, log_start, aborted, records, end, self)

    def readable_end(self, isolation: FetchIsolation) -> int:
        """Return the end offset up to which fetches of this isolation level may read now."""
        if isolation is FetchIsolation.LOG_END:
            return self.log.writer.written_offset
        if isolation is FetchIsolation.HIGH_WATERMARK:
            return self.high_watermark
        return self.last_stable_offset

    def _diverging(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """Return where the fetcher's log diverges, None if it does not (invariants 26 and 27)."""
        epoch, end = self.end_of_epoch(last_fetched_epoch)
        if epoch < 0 or end < 0:
            raise OffsetOutOfRange
        if epoch < last_fetched_epoch or end < offset:
            return epoch, end
        return None

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the log's largest epoch that is not above ``epoch``, and its end offset."""
        if epoch == self.leader_epoch and self.leader is not None:
            return epoch, self.log.end_offset
        return self.log.epochs.end_of(epoch, self.log.end_offset)

    def search(self, timestamp: int) -> timestamp_search.Search | None:
        """Return the search to run before :meth:`locate`; None if it needs no search."""
        if timestamp == MAX_TIMESTAMP:
            return timestamp_search.youngest(self.log)
        return timestamp_search.first_at_least(self.log, timestamp) if timestamp >= 0 else None

    def locate(
        self,
        timestamp: int,
        isolation: FetchIsolation,
        record: timestamp_search.OffsetAndTimestamp | None = None,
    ) -> OffsetLookupResult:
        """Return the offset for a timestamp, or for a special position given as a negative number.

        ``record`` is the result of :meth:`search`.
        """
        self.check_leader()
        log = self.log
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            start = log.log_start if timestamp == EARLIEST else log.local_start
            epoch = log.epochs.at(start)
            return OffsetLookupResult(start, -1, NO_EPOCH if epoch is None else epoch)
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return UNKNOWN_OFFSET
        end = self.readable_end(isolation)
        if timestamp == LATEST:
            self._check_end(isolation)
            return OffsetLookupResult(end, -1, self.leader_epoch)
        if record is None or not log.log_start <= record.offset < end:
            self._check_end(isolation)
            return UNKNOWN_OFFSET
        epoch = log.epochs.at(record.offset)
        return OffsetLookupResult(
            record.offset, record.timestamp, NO_EPOCH if epoch is None else epoch
        )

    def _check_end(self, isolation: FetchIsolation) -> None:
        """Raise OffsetNotAvailable until the high watermark reaches this epoch's start (KIP-207).

        Until then consumers of the previous leader may have seen a larger end offset.
        """
        leader = self.check_leader()
        if isolation is not FetchIsolation.LOG_END and self.high_watermark < leader.epoch_start:
            raise OffsetNotAvailable

    def delete_before(self, offset: int) -> int:
        """Move the log start to ``offset``, -1 for the high watermark, and return it."""
        self.check_leader()
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise OffsetOutOfRange
        if target > self.log.log_start:
            self.log.advance_log_start(target)
        return self.log.log_start


_FOLLOWERS: Final = (FetchIsolation.LOG_END,)
_UNCOMMITTED: Final = (FetchIsolation.LOG_END, FetchIsolation.HIGH_WATERMARK)
EVERYONE: Final = (FetchIsolation.LOG_END, FetchIsolation.HIGH_WATERMARK, FetchIsolation.STABLE)
