"""One pass over the partitions of a fetch, with one byte budget.

Synchronous; :mod:`kwire.replica.fetching` runs a pass in turns, waits, and begins the next. Rules:

* Records are not read: an answer has a region of a file, which stays open until it is sent or
  dropped.
* At least one batch is returned even if it exceeds every limit (KIP-74), so that no reader gets
  stuck.
* A partition succeeds or fails on its own; an error answers the whole fetch at once.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import attrs

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
from kwire.log.cold_lookups import MAY_WAIT, WouldWait
from kwire.log.disk_health import lacks_descriptors
from kwire.log.formats.txn_index import LISTED_MAX, AbortedTxn
from kwire.log.partition_log import Elsewhere
from kwire.log.region import FileRegion
from kwire.replica.fetch_sessions import FetchPartition
from kwire.replica.fetch_waits import SessionWatch
from kwire.replica.leader import PartitionLeader
from kwire.replica.partition import FetchIsolation, Partition, ReadResult, SharedRead, SharedReads
from kwire.replica.replicas import ReplicaService, check_follower
from kwire.replica.throttles import is_throttled

logger = logging.getLogger(__name__)

CONSUMER: Final = -1
_NOT_READ: Final = ReadResult(-1, -1, -1)
"""The result for a partition that has to be read before the answer is sent."""
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
    may_read: Callable[[str | bytes], bool] | None = None
    """Returns whether the client may read a topic, by its name or its id; None if every client may
    read everything."""
    rack: str = ""
    """The consumer's rack if leaders may redirect it to other replicas, else empty."""
    nearest_follower: Callable[[PartitionLeader, int], int | None] | None = None
    """Returns the follower in this rack from which the consumer should read an offset (KIP-392)."""


@attrs.define(eq=False, repr=False)
class FetchPass:
    """The results of one pass, and the data for deciding whether to send them or to wait."""

    replicas: ReplicaService
    options: FetchOptions
    watch: "SessionWatch | None"
    """The watch of the fetch's session, if it has one."""
    shared_reads: SharedReads | None = None
    """The reads shared by consumers whose fetches the same append has completed."""
    shared: SharedRead | None = attrs.field(init=False, default=None)
    """The shared read that the last visit has used or left for others; None if there is none."""
    attempt: int = 0
    """The number of times that threads have read what lookups need; see :data:`MAY_WAIT`."""
    results: list[ReadResult] = attrs.field(init=False, factory=list)
    """The results, in the order of the visits."""
    total_bytes: int = attrs.field(init=False, default=0)
    listed_count: int = attrs.field(init=False, default=0)
    """The aborted transactions of the results; :data:`LISTED_MAX` of them end the reading."""
    is_urgent: bool = attrs.field(init=False, default=False)
    """True if the answer must not wait: it has an error, a diverging log, another replica to
    read from, or a high watermark that the follower does not know yet; or it ends with a segment
    although records of the next one are readable."""
    is_usual: bool = attrs.field(init=False, default=True)
    """True while each result has only the first fields: offsets and records."""
    holds_back: bool = attrs.field(init=False, default=False)
    """True if a throttled follower gets no records, which no append can change."""
    cold: list[WouldWait] = attrs.field(init=False, factory=list)
    """The lookups that would have waited for a disk; any of them makes this pass unusable."""
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
            and not self.is_urgent
            and (
                self.holds_back
                or bool(self.watch)
                or any(result.partition for result in self.results)
            )
        )

    def has_changed(self, result: ReadResult) -> bool:
        """Return whether a partition's result may have changed.

        This is the case if its readable end has moved, this broker no longer leads it, or it was
        not read at all.
        """
        partition = result.partition
        if partition is None:
            return True
        is_lost = partition.leader is None and not self.options.reads_followers
        return is_lost or partition.readable_end(self.options.isolation) != result.end_offset

    def on_turn(self) -> None:
        """Check this broker's lease, at the start of each turn (invariant 34)."""
        self.is_lease_over = self.options.reader == CONSUMER and self.replicas.is_lease_over

    def visit_all(self, requested: Iterable[FetchPartition]) -> None:
        """Read partitions in one turn and add their results; an exception drops the pass."""
        self.on_turn()
        try:
            self.results.extend(map(self._visit, requested))
        except BaseException:
            self.drop()
            raise

    def visit_again(self, requested: FetchPartition, position: int) -> None:
        """Read a partition; its result replaces the one at ``position``, or is added at the end."""
        results = self.results
        if position < len(results):
            self._take_back(position)
            results[position] = self._visit(requested)
        else:
            results.append(self._visit(requested))

    def _take_back(self, position: int) -> None:
        """Remove what one partition added to this pass, and close its file."""
        result, self.results[position] = self.results[position], _NOT_READ
        self.listed_count -= len(result.aborted or ())
        if result.records is not None:
            self.total_bytes -= len(result.records)
            _close(result.records)

    def _visit(self, requested: FetchPartition) -> ReadResult:
        requested.is_settled = False
        may_read = self.options.may_read
        try:
            if may_read is not None and not may_read(requested.ref[0]):
                raise TopicAuthorizationFailed
            partition = self.replicas.partitions.look_up(*requested.ref)
            if self.is_lease_over:
                self.replicas.check_lease()
            shared_reads = self.shared_reads or partition.shared_reads
            if shared_reads is None or self.options.reader > CONSUMER:
                return self._read(partition, requested)
            return self._read_shared(shared_reads, partition, requested)
        except WouldWait as cold:
            self.cold.append(cold)
            return _NOT_READ
        except Elsewhere:
            return self._refuse(_not_here(self.options.reader))
        except KafkaError as error:
            return self._refuse(error)

    def _read_shared(
        self, shared_reads: SharedReads, partition: Partition, requested: FetchPartition
    ) -> ReadResult:
        """Return the result of an equal request, or read the partition and share the result."""
        options, self.shared = self.options, None
        max_bytes = min(options.max_bytes - self.total_bytes, requested.max_bytes)
        key = (
            partition,
            requested.ref,  # the encoded response names the topic or its id
            requested.fetch_offset,
            max_bytes,
            requested.leader_epoch,
            requested.last_fetched_epoch,
            not self.total_bytes,
            self.listed_count < LISTED_MAX,
            options.isolation,
            options.zstd_allowed,
            options.reads_followers,
            options.rack,
        )
        state = _readable_state(partition)
        shared = shared_reads.reads.get(key)
        if shared is None and shared_reads.is_full:
            return self._read(partition, requested)
        if shared is not None and shared.state == state:
            self.shared = shared
            partition.read_count += 1
            self.total_bytes += shared.size
            if self.total_bytes < options.min_bytes:
                self.is_urgent |= _ends_early(partition, requested, shared.result)
            if shared.result.aborted:
                self._count_listed(shared.result.aborted)
            if self.watch is not None:
                _watch(self.watch, options.reader, partition, requested, shared.result)
            return shared.result
        result = self._read(partition, requested)
        data = _small(result.records)
        if data is not None:
            result = result._replace(records=data)
            self.shared = SharedRead(state, result, len(data), {})
            shared_reads.keep(key, self.shared)
        return result

    def _read(self, partition: Partition, requested: FetchPartition) -> ReadResult:
        options = self.options
        reader, holds_back = options.reader, self._check(partition, requested)
        if options.nearest_follower is not None and partition.leader is not None:
            broker = options.nearest_follower(partition.leader, requested.fetch_offset)
            if broker is not None:
                self.is_urgent, self.is_usual = True, False
                return _redirect(partition, options.isolation, broker)
        max_bytes = min(options.max_bytes - self.total_bytes, requested.max_bytes)
        if holds_back or self.listed_count >= LISTED_MAX:
            max_bytes = 0
        try:
            result = partition.read(
                requested.fetch_offset,
                max_bytes,
                isolation=options.isolation,
                at_least_one=not (self.total_bytes or holds_back),
                last_fetched_epoch=requested.last_fetched_epoch,
                wait=MAY_WAIT[self.attempt],
            )
        except OSError as error:
            result = self._read_without_files(partition, requested, error)
        if result.diverging is not None:
            self.is_urgent, self.is_usual = True, False
        elif reader > CONSUMER:
            result = self._on_follower_fetched(partition, requested, result)
        else:
            partition.read_count += result.records is not None
            if result.aborted:
                self._count_listed(result.aborted)
        if self.watch is not None:
            _watch(self.watch, reader, partition, requested, result)
        if holds_back:
            self.holds_back = True
            return result._replace(partition=None)
        if result.records is not None:
            self.total_bytes += len(result.records)
            if self.total_bytes < options.min_bytes:
                self.is_urgent |= _ends_early(partition, requested, result)
        return result

    def _count_listed(self, aborted: Sequence[AbortedTxn]) -> None:
        self.is_usual = False
        self.listed_count += len(aborted)
        self.is_urgent |= self.listed_count >= LISTED_MAX

    def _check(self, partition: Partition, requested: FetchPartition) -> bool:
        """Check the reader; return whether it is a throttled follower, which gets no records."""
        options, holds_back = self.options, False
        if options.reads_followers:
            if requested.leader_epoch != partition.leader_epoch:
                partition.check_epoch(requested.leader_epoch)
            if not partition.is_confirmed:  # The consumer returns to the leader (KIP-392).
                raise OffsetNotAvailable
        else:
            leader = partition.check_leader(requested.leader_epoch)
            if options.reader > CONSUMER:
                check_follower(leader, options.reader, options.broker_epoch, requested.leader_epoch)
                holds_back = _must_hold_back(self.replicas, options.reader, partition, leader)
        if not options.zstd_allowed and partition.config.compression_type == "zstd":
            raise UnsupportedCompressionType
        return holds_back

    def _read_without_files(
        self, partition: Partition, requested: FetchPartition, error: OSError
    ) -> ReadResult:
        """Return only offsets if this pass has taken the last free descriptor.

        The answer is then sent without waiting for more bytes, which frees its descriptors.
        """
        if self.total_bytes and lacks_descriptors(error):
            self.is_urgent = True
            return partition.read(
                requested.fetch_offset, 0, isolation=self.options.isolation, at_least_one=False
            )
        names = partition.topic, partition.partition
        logger.error("cannot read topic=%s partition=%d error=%s", *names, error)
        raise KafkaStorageError from error

    def _on_follower_fetched(
        self, partition: Partition, requested: FetchPartition, result: ReadResult
    ) -> ReadResult:
        """Record a follower's position; return the result with the offsets that this moved."""
        try:
            self.replicas.on_follower_fetched(
                partition,
                self.options.reader,
                offset=requested.fetch_offset,
                log_start=requested.log_start,
                broker_epoch=self.options.broker_epoch,
            )
        except BaseException:
            _close(result.records)
            raise
        # A follower that has only a lower high watermark is answered at once (KIP-1166).
        self.is_urgent |= requested.known_high_watermark < partition.high_watermark
        if result.high_watermark == partition.high_watermark:
            return result
        high_watermark, stable = partition.readable_ends
        return result._replace(high_watermark=high_watermark, last_stable=stable)

    def _refuse(self, error: KafkaError) -> ReadResult:
        # Unknown partitions are reported when the wait ends, as in Kafka, to slow the client down.
        self.is_usual = False
        is_urgent = not isinstance(error, _NOT_EVEN_LOOKED)
        self.is_urgent |= is_urgent
        return ReadResult(-1, -1, -1, None if is_urgent else (), error=error)

    def count_bytes(self) -> None:
        """Count the bytes sent to a consumer, or the throttled bytes sent to a follower."""
        if not self.total_bytes:
            return
        replicas, throttled_bytes = self.replicas, 0
        is_consumer = self.options.reader == CONSUMER
        for result in self.results:
            if result.records is None or result.partition is None:
                continue
            if is_consumer:
                result.partition.traffic.bytes_out.value += len(result.records)
            elif _is_throttled(replicas, result.partition):
                throttled_bytes += len(result.records)
        if throttled_bytes:
            replicas.throttles.leader.record(throttled_bytes, replicas.now())

    def drop(self) -> None:
        """Close the files of results that will not be sent."""
        for result in self.results:
            _close(result.records)

    def release(self) -> None:
        """Close the files before a wait; their data is read again after it."""
        self.holds_back = False
        if not self.total_bytes:
            return
        for position, result in enumerate(self.results):
            if result.records is not None:
                self._take_back(position)


def _close(records: FileRegion | bytes | None) -> None:
    if isinstance(records, FileRegion):
        records.close()


def _readable_state(partition: Partition) -> tuple[object, ...]:
    """Return the state that a read depends on besides its arguments.

    While the state is equal, reads with equal arguments give the same result.
    """
    log = partition.log
    high_watermark = log.high_watermark
    return (
        partition.leader,
        partition.leader_epoch,
        log.log_start,
        log.local_start,
        log.segments.replacements,
        high_watermark,
        log.epochs.at(high_watermark - 1),  # logs with the same epoch there are equal below it
        log.producers.last_stable_offset(high_watermark, log.log_start),
        log.config,
    )


def _ends_early(partition: Partition, requested: FetchPartition, result: ReadResult) -> bool:
    """Return whether a result ends with its segment although the next one can be read, too."""
    segments, last_offset = partition.log.segments, result.end_offset - 1
    return segments.index_of(requested.fetch_offset) < segments.index_of(last_offset)


def _redirect(partition: Partition, isolation: FetchIsolation, broker: int) -> ReadResult:
    """Return a result without records that names the follower to read from (KIP-392)."""
    return ReadResult(
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start,
        (),
        end_offset=partition.readable_end(isolation),
        partition=partition,
        preferred_replica=broker,
    )


def _not_here(reader: int) -> KafkaError:
    """Return the error for records that only remote storage has.

    A follower then starts copying at the local start. A consumer retries, whereas after
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
    except OSError:  # sending the region will fail too, and report the error
        return None
    if len(data) < len(region):
        return None
    region.close()
    return data


def _must_hold_back(
    replicas: ReplicaService, reader: int, partition: Partition, leader: PartitionLeader
) -> bool:
    """Return whether the throttle holds back a follower outside the ISR (KIP-73)."""
    if reader in leader.isr or not _is_throttled(replicas, partition):
        return False
    return replicas.throttles.leader.is_exceeded(replicas.now())


def _is_throttled(replicas: ReplicaService, partition: Partition) -> bool:
    """Return whether the leader throttle applies to this broker's replica of the partition."""
    throttled = partition.config.leader_throttled_replicas
    return is_throttled(throttled, partition.partition, replicas.node)


def _watch(
    watch: SessionWatch,
    reader: int,
    partition: Partition,
    requested: FetchPartition,
    result: ReadResult,
) -> None:
    """Have the fetch's session watch a partition from now on."""
    watch.on_visited(requested.ref, partition)
    requested.is_settled = _is_settled(reader, partition, requested, result)


def _is_settled(
    reader: int, partition: Partition, requested: FetchPartition, result: ReadResult
) -> bool:
    """Return whether only a change of the partition can change the answer."""
    if requested.fetch_offset < result.end_offset or result.diverging is not None:
        return False
    leader = partition.leader
    return reader < 0 or (leader is not None and reader in leader.isr)
