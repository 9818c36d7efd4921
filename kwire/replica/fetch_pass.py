"""One pass over the partitions of a fetch, with one byte budget.

Synchronous; :mod:`kwire.replica.fetching` runs a pass in turns, waits, and begins the next. Rules:

* Records are not read: an answer has a region of a file, which stays open until it is sent or
  dropped.
* At least one batch is returned even if it exceeds every limit (KIP-74), so that no reader gets
  stuck.
* A partition succeeds or fails on its own; an error answers the whole fetch at once.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import attrs

from kwire.codec.messages.fetch import FetchResponse
from kwire.errors import (
    KafkaError,
    KafkaStorageError,
    OffsetMovedToTieredStorage,
    OffsetNotAvailable,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
)
from kwire.log.cold import WouldWait
from kwire.log.disk_health import lacks_descriptors
from kwire.log.partition_log import Elsewhere
from kwire.log.region import FileRegion
from kwire.replica.byte_waits import FetchIsolation, SharedRead, SharedReads
from kwire.replica.fetch_sessions import FetchPartition
from kwire.replica.fetch_waits import SessionWatch
from kwire.replica.leader import Leader
from kwire.replica.partition import Partition, ReadResult
from kwire.replica.replicas import ReplicaService, check_follower
from kwire.replica.throttles import is_throttled

Answer = FetchResponse.FetchableTopicResponse.PartitionData
Aborted = Answer.AbortedTransaction

logger = logging.getLogger(__name__)

CONSUMER: Final = -1
_NO_DIVERGENCE: Final = Answer.EpochEndOffset()
_NO_LEADER: Final = Answer.LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = Answer.SnapshotId()
_NOT_EVEN_LOOKED: Final = (UnknownTopicOrPartition, UnknownTopicId, TopicAuthorizationFailed)
"""The errors for which Kafka returns an empty list of aborted transactions instead of null."""
_SHARED_BYTES: Final = 64 << 10
"""The largest size in bytes of an answer that is read into memory once for all requests that share
it. Larger answers are sent with sendfile."""


class FetchOptions(NamedTuple):
    """The arguments of a fetch that apply to all its partitions."""

    isolation: FetchIsolation
    min_bytes: int
    max_bytes: int
    reader: int
    """The broker id of a follower, or :data:`CONSUMER`."""
    broker_epoch: int
    """The follower's broker epoch, -1 if it sent none."""
    zstd_allowed: bool
    reads_followers: bool
    """True if a consumer may read from a follower."""
    may_read: Callable[[str, bytes], bool] | None = None
    """Returns whether the client may read a topic, by its name or, if that is empty, by its id;
    None if every client may read everything."""
    rack: str = ""
    """The consumer's rack if leaders may redirect it to other replicas, else empty."""
    nearest_follower: Callable[[Leader, int], int | None] | None = None
    """Returns the follower in this rack from which the consumer should read an offset (KIP-392)."""


@attrs.define(eq=False, repr=False)
class FetchPass:
    """The answers of one pass, and what decides whether they are sent or a wait comes first."""

    replicas: ReplicaService
    options: FetchOptions
    watch: "SessionWatch | None"
    """The watch of the fetch's session, if it has one."""
    shared_reads: SharedReads | None = None
    """The reads that the consumers whose fetches one append has completed share."""
    shared: SharedRead | None = attrs.field(init=False, default=None)
    """The shared read that the last visit has used or left for others; None if there is none."""
    waits_for_disk: bool = False
    """True if lookups may wait for the disk, because a thread has read what they need."""
    answers: list[Answer] = attrs.field(init=False, factory=list)
    """The answers in the order of the visits."""
    total_bytes: int = attrs.field(init=False, default=0)
    is_urgent: bool = attrs.field(init=False, default=False)
    """True if the answer must not wait: it has an error, a diverging log, another replica to
    read from, or a high watermark that the follower does not know yet."""
    holds_back: bool = attrs.field(init=False, default=False)
    """True if a throttled follower gets no records, which no append can change."""
    cold: list[WouldWait] = attrs.field(init=False, factory=list)
    """The lookups that would have waited for a disk; any of them makes this pass unusable."""
    visits: dict[FetchPartition, tuple[Partition, int]] = attrs.field(init=False, factory=dict)
    """The partitions that were read, each with the end (exclusive) of its readable offsets."""
    refused: dict[FetchPartition, tuple[Answer, KafkaError]] = attrs.field(init=False, factory=dict)
    _sizes: dict[FetchPartition, tuple[Partition, int]] = attrs.field(init=False, factory=dict)
    """The partitions whose answers have records, each with the records' size in bytes."""
    _regions: list[FileRegion] = attrs.field(init=False, factory=list)
    """The regions of the answers."""
    is_lease_over: bool = attrs.field(init=False)
    """True if a consumer gets no records, because another broker may lead by now."""

    @property
    def missing_bytes(self) -> int:
        return self.options.min_bytes - self.total_bytes

    @property
    def must_wait(self) -> bool:
        """True while there are fewer bytes than requested and a wait may bring more."""
        return (
            self.total_bytes < self.options.min_bytes
            and bool(self.visits or self.holds_back or self.watch)
            and not self.is_urgent
        )

    def has_changed(self, partition: Partition, end: int) -> bool:
        """Return whether the readable end is no longer ``end``, or this broker stopped leading."""
        is_lost = partition.leader is None and not self.options.reads_followers
        return is_lost or partition.readable_end(self.options.isolation) != end

    def on_turn(self) -> None:
        """Check this broker's lease, at the start of each turn (invariant 34)."""
        self.is_lease_over = self.options.reader == CONSUMER and self.replicas.is_lease_over

    def visit_all(self, requested: Iterable[FetchPartition]) -> None:
        """Read partitions in one turn and add their answers; an exception drops the pass."""
        self.on_turn()
        try:
            self.answers.extend(map(self._visit, requested))
        except BaseException:
            self.drop()
            raise

    def visit_again(self, requested: FetchPartition, position: int) -> None:
        """Read a partition; its answer replaces the one at ``position``, or is added at the end."""
        if position < len(self.answers):
            self._take_back(requested, self.answers[position])
            self.answers[position] = self._visit(requested)
        else:
            self.answers.append(self._visit(requested))

    def _take_back(self, requested: FetchPartition, answer: Answer) -> None:
        """Remove what one answer added to this pass, and close its file."""
        self.visits.pop(requested, None)
        self.refused.pop(requested, None)
        self.total_bytes -= self._sizes.pop(requested, (None, 0))[1]
        if isinstance(answer.records, FileRegion):
            answer.records.close()

    def _visit(self, requested: FetchPartition) -> Answer:
        requested.is_settled = False
        may_read = self.options.may_read
        try:
            if may_read is not None and not may_read(requested.topic, requested.topic_id):
                raise TopicAuthorizationFailed
            partition = self.replicas.partitions.look_up(
                requested.topic, requested.topic_id, requested.partition
            )
            if self.is_lease_over:
                self.replicas.check_lease()
            if self.shared_reads is not None:
                return self._read_shared(self.shared_reads, partition, requested)
            return self._read(partition, requested)
        except WouldWait as cold:
            self.cold.append(cold)
            return Answer(partition_index=requested.partition, high_watermark=-1, records=b"")
        except Elsewhere:
            return self._refuse(requested, _not_here(self.options.reader))
        except KafkaError as error:
            return self._refuse(requested, error)

    def _read_shared(
        self, shared_reads: SharedReads, partition: Partition, requested: FetchPartition
    ) -> Answer:
        """Return the answer to an equal request, or read the partition and share the answer."""
        options, self.shared = self.options, None
        max_bytes = min(options.max_bytes - self.total_bytes, requested.max_bytes)
        key = (
            partition,
            requested.partition,
            requested.by_id,  # the encoded response names the topic or its id
            requested.fetch_offset,
            max_bytes,
            requested.leader_epoch,
            requested.last_fetched_epoch,
            not self.total_bytes,
            options.zstd_allowed,
            options.reads_followers,
            options.rack,
        )
        state = partition.readable_state()
        shared = shared_reads.reads.get(key)
        if shared is not None and shared.state == state:
            self.shared = shared
            self.visits[requested] = partition, shared.end_offset
            self.total_bytes += shared.size
            self._sizes[requested] = partition, shared.size
            return shared.answer
        answer = self._read(partition, requested)
        data = _small(answer.records)
        if data is not None:
            answer.records = data
            self.shared = SharedRead(state, answer, len(data), self.visits[requested][1], {})
            shared_reads.keep(key, self.shared)
        return answer

    def _read(self, partition: Partition, requested: FetchPartition) -> Answer:
        options, reader, holds_back = self.options, self.options.reader, False
        if options.reads_followers:
            partition.check_epoch(requested.leader_epoch)
            if not partition.is_confirmed:  # The consumer returns to the leader (KIP-392).
                raise OffsetNotAvailable
        else:
            leader = partition.check_leader(requested.leader_epoch)
            if reader > CONSUMER:
                check_follower(leader, reader, options.broker_epoch)
                holds_back = self._must_hold_back(partition, leader)
        if not options.zstd_allowed and partition.config.compression_type == "zstd":
            raise UnsupportedCompressionType
        if options.nearest_follower is not None and partition.leader is not None:
            broker = options.nearest_follower(partition.leader, requested.fetch_offset)
            if broker is not None:
                return self._redirect(partition, requested, broker)
        max_bytes = min(options.max_bytes - self.total_bytes, requested.max_bytes)
        result = self._read_log(partition, requested, 0 if holds_back else max_bytes, holds_back)
        if result.region is not None:
            self._regions.append(result.region)
        if reader > CONSUMER and result.diverging is None:
            result = self._on_follower_fetched(partition, requested, result)
        if self.watch is not None:
            self.watch.on_visited(requested.ref, partition)
            requested.is_settled = _is_settled(reader, partition, requested, result)
        if holds_back:
            self.holds_back = True
        else:
            self.visits[requested] = partition, result.end_offset
        return self._answer(partition, requested, result)

    def _read_log(
        self, partition: Partition, requested: FetchPartition, max_bytes: int, holds_back: bool
    ) -> ReadResult:
        """Return records, or only the offsets if this pass has taken the last free descriptor.

        The answer is then sent without waiting for more bytes, which frees its descriptors.
        """
        try:
            return partition.read(
                requested.fetch_offset,
                max_bytes,
                isolation=self.options.isolation,
                at_least_one=not (self.total_bytes or holds_back),
                last_fetched_epoch=requested.last_fetched_epoch,
                wait=self.waits_for_disk,
            )
        except OSError as error:
            if self.total_bytes and max_bytes and lacks_descriptors(error):
                self.is_urgent = True
                return self._read_log(partition, requested, 0, holds_back)
            names = partition.topic, partition.partition
            logger.error("cannot read topic=%s partition=%d error=%s", *names, error)
            raise KafkaStorageError from error

    def _redirect(self, partition: Partition, requested: FetchPartition, broker: int) -> Answer:
        """Return an answer without records that names the follower to read from (KIP-392)."""
        self.is_urgent = True
        self.visits[requested] = partition, partition.readable_end(self.options.isolation)
        return Answer(
            partition_index=requested.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start,
            preferred_read_replica=broker,
            records=b"",
        )

    def _answer(
        self, partition: Partition, requested: FetchPartition, result: ReadResult
    ) -> Answer:
        region = result.region
        size = 0 if region is None else len(region)
        if size:
            self.total_bytes += size
            self._sizes[requested] = partition, size
        diverging = _NO_DIVERGENCE
        if result.diverging is not None:
            epoch, end = result.diverging
            diverging = Answer.EpochEndOffset(epoch=epoch, end_offset=end)
            self.is_urgent = True
        aborted = None
        if self.options.isolation is FetchIsolation.STABLE:
            aborted = [
                Aborted(producer_id=entry.producer_id, first_offset=entry.first_offset)
                for entry in result.aborted
            ]
        return Answer(
            partition_index=requested.partition,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable,
            log_start_offset=result.log_start,
            diverging_epoch=diverging,
            current_leader=_NO_LEADER,
            snapshot_id=_NO_SNAPSHOT,
            aborted_transactions=aborted,
            records=region if size else b"",
        )

    def _on_follower_fetched(
        self, partition: Partition, requested: FetchPartition, result: ReadResult
    ) -> ReadResult:
        """Record a follower's position; return the result with the offsets that this has moved."""
        self.replicas.on_follower_fetched(
            partition,
            self.options.reader,
            offset=requested.fetch_offset,
            log_start=requested.log_start,
            broker_epoch=self.options.broker_epoch,
        )
        # A follower that knows only a lower high watermark is answered at once (KIP-1166).
        self.is_urgent |= requested.known_high_watermark < partition.high_watermark
        if result.high_watermark == partition.high_watermark:
            return result
        high_watermark, stable = partition.readable_ends
        return result._replace(high_watermark=high_watermark, last_stable=stable)

    def _must_hold_back(self, partition: Partition, leader: Leader) -> bool:
        """Return whether the throttle holds back a follower outside the ISR (KIP-73)."""
        if self.options.reader in leader.isr or not _is_throttled(self.replicas, partition):
            return False
        return self.replicas.throttles.leader.is_exceeded(self.replicas.now())

    def _refuse(self, requested: FetchPartition, error: KafkaError) -> Answer:
        # An unknown partition is reported only when the wait ends, as in Kafka: nothing else would
        # slow down a client that keeps fetching it.
        if not isinstance(error, _NOT_EVEN_LOOKED):
            self.is_urgent = True
        answer = Answer(
            partition_index=requested.partition,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=[] if isinstance(error, _NOT_EVEN_LOOKED) else None,
            records=b"",
        )
        self.refused[requested] = answer, error
        return answer

    def count_bytes(self) -> None:
        """Count the bytes sent to a consumer, or the throttled bytes sent to a follower."""
        if self.options.reader == CONSUMER:
            for partition, size in self._sizes.values():
                partition.traffic.bytes_out.value += size
            return
        replicas = self.replicas
        throttled_bytes = sum(
            size for each, size in self._sizes.values() if _is_throttled(replicas, each)
        )
        if throttled_bytes:
            replicas.throttles.leader.record(throttled_bytes, replicas.now())

    def drop(self) -> None:
        """Close the files of answers that will not be sent."""
        for region in self._regions:
            region.close()

    def release(self) -> None:
        """Close the files before a wait; what was found in them is read again after it."""
        self.drop()
        for requested in self._sizes:
            self.visits.pop(requested, None)
        self._regions, self._sizes, self.total_bytes, self.holds_back = [], {}, 0, False


def _not_here(reader: int) -> KafkaError:
    """Return the error for records that only remote storage has.

    A follower then begins its copy at the local start. A consumer retries; after
    OFFSET_OUT_OF_RANGE it would skip the records.
    """
    return OffsetMovedToTieredStorage() if reader > CONSUMER else KafkaStorageError()


def _small(region: object) -> bytes | None:
    """Return the bytes of a small region in the page cache and close it; otherwise None."""
    if not isinstance(region, FileRegion) or len(region) > _SHARED_BYTES:
        return None
    try:
        if not region.is_cached(region.position, len(region)):
            return None
        data = region.read()
    except OSError:  # sending the region fails too and reports the error
        return None
    if len(data) < len(region):
        return None
    region.close()
    return data


def _is_throttled(replicas: ReplicaService, partition: Partition) -> bool:
    """Return whether the leader throttle applies to this broker's replica of the partition."""
    throttled = partition.config.leader_throttled_replicas
    return is_throttled(throttled, partition.partition, replicas.node)


def _is_settled(
    reader: int, partition: Partition, requested: FetchPartition, result: ReadResult
) -> bool:
    """Return whether only a change of the partition can change the answer."""
    if requested.fetch_offset < result.end_offset or result.diverging is not None:
        return False
    leader = partition.leader
    return reader < 0 or (leader is not None and reader in leader.isr)
