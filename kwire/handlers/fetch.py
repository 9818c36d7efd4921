"""Fetch (API key 1): ranges of logs, for consumers and followers.

Records are sent as file regions, without being read. A request that finds fewer than ``min_bytes``
waits for more (once, or repeatedly for read_committed), for at most ``max_wait_ms`` in total, and
then returns what is there. At least one batch is returned even if it exceeds every limit (KIP-74),
so that no reader gets stuck. Sessions (KIP-227) leave out unchanged partitions.

One append may complete the waits of several consumers. If their requests are equal, they share a
partition's answer (its fields and bytes) while the state of the partition stays the same. Each
request still has its own session, byte budget and permission to read the topic.

One partition costs 35 us, from decoding to the pieces to send (``benchmarks/data_path.py``).
"""

import logging
from collections.abc import Generator
from typing import Final, TypeVar

from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.configs.broker import RACK_AWARE_SELECTOR
from kwire.drive import give_way, run_by_size
from kwire.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
)
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.leader_hints import add_leader_hint
from kwire.log.cold import WouldWait
from kwire.log.region import FileRegion
from kwire.replica.byte_waits import FetchIsolation, SharedRead, SharedReads
from kwire.replica.fetch_sessions import FetchContext, FetchPartition, Ref
from kwire.replica.fetch_waits import EventWatch, FetchWait
from kwire.replica.leader import Leader
from kwire.replica.partition import Partition, ReadResult
from kwire.replica.read_replicas import ReadReplica, select
from kwire.replica.replicas import ReplicaService, check_follower
from kwire.replica.throttles import is_throttled
from kwire.types import ZERO_UUID

RequestTopic = FetchRequest.FetchTopic
TopicAnswer = FetchResponse.FetchableTopicResponse
Answer = TopicAnswer.PartitionData
Aborted = Answer.AbortedTransaction

T = TypeVar("T")

logger = logging.getLogger(__name__)

_NO_DIVERGENCE: Final = Answer.EpochEndOffset()
_NO_LEADER: Final = Answer.LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = Answer.SnapshotId()
_UNREAD: Final = Answer(partition_index=-1, high_watermark=-1, records=b"")
"""The placeholder for the answer of a partition that has not been read yet."""
_NOT_EVEN_LOOKED: Final = (UnknownTopicOrPartition, UnknownTopicId, TopicAuthorizationFailed)
"""The errors for which Kafka returns an empty list of aborted transactions instead of null."""
_TURN_PARTITIONS: Final = 64
"""The number of partitions read before other tasks get a turn: about a millisecond."""
_SHARED_BYTES: Final = 64 << 10
"""The largest size in bytes of an answer that is read into memory once for all requests that share
it. Larger answers are sent with sendfile."""
_READ_COMMITTED: Final = 1
_CONSUMER: Final = -1


def discard(response: FetchResponse) -> None:
    """Close the files of a response that will not be sent."""
    for topic in response.responses:
        for partition in topic.partitions:
            if isinstance(partition.records, FileRegion):
                partition.records.close()


@handles(FetchRequest, discard=discard)
async def fetch(context: Context, request: FetchRequest) -> FetchResponse:
    replicas = context.replicas
    state = request.replica_state
    replica = request.replica_id if request.replica_id >= 0 else state.replica_id
    sessions, now = replicas.sessions, replicas.now()
    count = sum(len(topic.partitions) for topic in request.topics)
    partitions = await run_by_size(_requested_partitions(request.topics), count, _TURN_PARTITIONS)
    fetch_context = sessions.begin(
        session_id=request.session_id,
        epoch=request.session_epoch,
        partitions=partitions,
        removals=_removed_partitions(request),
        privileged=replica >= 0,
        now=now,
    )
    if replica >= 0:
        isolation = FetchIsolation.LOG_END
    elif request.isolation_level == _READ_COMMITTED:
        isolation = FetchIsolation.STABLE
    else:
        isolation = FetchIsolation.HIGH_WATERMARK
    try:
        return await _answer(context, request, fetch_context, isolation, replica)
    except BaseException:
        sessions.cancel(fetch_context)
        raise


async def _answer(
    context: Context,
    request: FetchRequest,
    fetch_context: FetchContext,
    isolation: FetchIsolation,
    replica: int,
) -> FetchResponse:
    replicas = context.replicas
    max_bytes = min(request.max_bytes, context.config.fetch_max_bytes)
    requested, session = fetch_context.partitions, fetch_context.session
    watch = None if session is None else replicas.fetch_waits.watch(session, replica)
    if watch is not None and request.forgotten_topics_data:
        watch.remove(_removed_partitions(request))
    reading = _Reading(context, request, isolation, max_bytes, replica, watch, None, False)
    answers = await reading.all_in_turns(requested)
    if reading.cold:
        reading = await _read_warm(reading, request, max_bytes)
        answers = await reading.all_in_turns(requested)
    deadline = replicas.now() + request.max_wait_ms / 1000
    may_wait = request.max_wait_ms > 0
    while may_wait and reading.must_wait and replicas.now() < deadline:
        wait = await _begin_wait(reading)
        if wait is None:
            await _read_again(reading, fetch_context, answers)
            continue
        reading.drop()
        timeout_s = max(0.0, deadline - replicas.now())
        shared_reads = await replicas.fetch_waits.finish(wait, timeout_s)
        fetch_context.add_changed()
        reading = _Reading(
            context, request, isolation, max_bytes, replica, watch, shared_reads, False
        )
        answers = await reading.all_in_turns(requested)
        if reading.cold:
            reading = await _read_warm(reading, request, max_bytes)
            answers = await reading.all_in_turns(requested)
        # The end of a transaction also wakes read_committed fetches that still lack bytes.
        may_wait = isolation is FetchIsolation.STABLE
    try:
        reading.count()
        finishing = replicas.sessions.finishing(fetch_context, answers, replicas.now())
        session_id, sent = await run_by_size(finishing, len(answers), _TURN_PARTITIONS)
        topics = await run_by_size(_grouping_by_topic(sent), len(sent), _TURN_PARTITIONS)
        response = FetchResponse(session_id=session_id, responses=topics)
        if reading.refused:
            _add_hints(context, reading, response)
    except BaseException:
        reading.drop()
        raise
    return response


async def _begin_wait(reading: "_Reading") -> FetchWait | None:
    """Start a wait for the partitions of ``reading``; return None if any has changed meanwhile.

    No other task runs between comparing a partition and adding it, so no append is missed: an
    append either changes the partition before the comparison or counts for the wait.
    """
    waits, count = reading.context.replicas.fetch_waits, 0
    wait = waits.begin(reading.missing_bytes, reading.isolation, reading.watch)
    try:
        if reading.watch is not None:
            has_changed = reading.watch.has_changes
        else:
            has_changed = False
            for partition, end in reading.visits.values():
                has_changed = reading.has_changed(partition, end)
                if has_changed or wait.is_over:
                    break
                waits.add(wait, (partition,))
                count += 1
                if count % _TURN_PARTITIONS == 0:
                    await give_way()
        if has_changed:
            await waits.discard_in_turns(wait)
    except BaseException:
        waits.discard(wait)
        reading.drop()
        raise
    return None if has_changed else wait


def _requested_partitions(
    topics: list[RequestTopic],
) -> Generator[None, None, list[FetchPartition]]:
    partitions = []
    for topic in topics:
        by_id = topic.topic_id != ZERO_UUID or not topic.topic
        for p in topic.partitions:
            partitions.append(
                FetchPartition(
                    topic.topic,
                    topic.topic_id,
                    p.partition,
                    p.fetch_offset,
                    p.partition_max_bytes,
                    p.current_leader_epoch,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                    by_id,
                    p.high_watermark,
                )
            )
            yield
    return partitions


def _removed_partitions(request: FetchRequest) -> list[Ref]:
    return [
        (topic.topic or topic.topic_id, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]


def _grouping_by_topic(
    sent: list[tuple[FetchPartition, Answer]],
) -> Generator[None, None, list[TopicAnswer]]:
    """Group the answers by topic in the session's order; only adjacent partitions are merged."""
    topics: list[TopicAnswer] = []
    previous: FetchPartition | None = None
    for requested, answer in sent:
        yield
        if (
            previous is not None
            and requested.topic_id == previous.topic_id
            and requested.topic == previous.topic
        ):
            topics[-1].partitions.append(answer)
        else:
            topics.append(
                TopicAnswer(topic=requested.topic, topic_id=requested.topic_id, partitions=[answer])
            )
        previous = requested
    return topics


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


async def _read_warm(cold: "_Reading", request: FetchRequest, max_bytes: int) -> "_Reading":
    """Let threads read what the lookups of ``cold`` need from the disk; return a new reading."""
    cold.drop()
    await cold.context.replicas.warm(cold.cold)
    context, isolation, replica = cold.context, cold.isolation, cold.replica
    return _Reading(context, request, isolation, max_bytes, replica, cold.watch, cold.shared_reads)


class _Reading:
    """One pass over the partitions of a request, with one byte budget."""

    def __init__(
        self,
        context: Context,
        request: FetchRequest,
        isolation: FetchIsolation,
        max_bytes: int,
        replica: int,
        watch: EventWatch | None = None,
        shared_reads: SharedReads | None = None,
        wait: bool = True,
    ) -> None:
        self.context = context
        self.isolation = isolation
        self.replica = replica
        self.watch = watch
        self.shared_reads = shared_reads if replica == _CONSUMER else None
        self.broker_epoch = request.replica_state.replica_epoch
        self.is_lease_over = replica == _CONSUMER and context.replicas.is_lease_over
        self.zstd_allowed = request.zstd_allowed
        self.reads_followers = replica == _CONSUMER and request.reads_followers
        selects_by_rack = context.config.replica_selector_class == RACK_AWARE_SELECTOR
        self.rack = request.rack_id if selects_by_rack and self.reads_followers else ""
        """The consumer's rack if leaders may redirect it to other replicas, else empty."""
        self.min_bytes = min(request.min_bytes, max_bytes)
        self.remaining_bytes = max_bytes
        self.wait = wait
        self.cold: list[WouldWait] = []
        """The lookups that would have waited for a disk; any of them makes this pass unusable."""
        self.total = 0
        self.urgent = False
        """True if the answer must not wait: it has an error, a diverging log, another replica to
        read from, or a high watermark that the follower does not know yet."""
        self.visits: dict[FetchPartition, tuple[Partition, int]] = {}
        """The partitions that were read, each with the end (exclusive) of its readable offsets."""
        self.holds_back = False
        """True if a throttled follower gets no records, which no append can change."""
        self.sizes: dict[FetchPartition, tuple[Partition, int]] = {}
        """The partitions whose answers have records, each with the records' size in bytes."""
        self.regions: list[FileRegion] = []
        """The regions of the answers; each keeps a file open until it is sent or dropped."""
        self.refused: dict[FetchPartition, tuple[Answer, KafkaError]] = {}

    def all(self, requested: list[FetchPartition]) -> list[Answer]:
        answers: list[Answer] = []
        try:
            answers.extend(map(self.visit, requested))
        except BaseException:
            self.drop()
            raise
        return answers

    async def all_in_turns(self, requested: list[FetchPartition]) -> list[Answer]:
        """Read many partitions, letting other tasks run in between."""
        if len(requested) <= _TURN_PARTITIONS:
            return self.all(requested)
        answers: list[Answer] = []
        for first in range(0, len(requested), _TURN_PARTITIONS):
            answers += self.all(requested[first : first + _TURN_PARTITIONS])
            try:
                await give_way()
            except BaseException:
                self.drop()
                raise
        return answers

    def take_back(self, requested: FetchPartition, answer: Answer) -> None:
        """Remove what one answer added to this pass, and close its file."""
        self.visits.pop(requested, None)
        self.refused.pop(requested, None)
        size = self.sizes.pop(requested, (None, 0))[1]
        self.total -= size
        self.remaining_bytes += size
        if isinstance(answer.records, FileRegion):
            answer.records.close()

    @property
    def may_wait(self) -> bool:
        """True if a wait may change the answer."""
        return bool(self.visits or self.holds_back or self.watch)

    @property
    def missing_bytes(self) -> int:
        return self.min_bytes - self.total

    @property
    def must_wait(self) -> bool:
        """True while there are fewer bytes than requested and a wait may bring more."""
        return self.missing_bytes > 0 and self.may_wait and not self.urgent

    def has_changed(self, partition: Partition, end: int) -> bool:
        """Return whether the readable end is no longer ``end``, or this broker stopped leading."""
        is_lost = partition.leader is None and not self.reads_followers
        return is_lost or partition.readable_end(self.isolation) != end

    def visit(self, requested: FetchPartition) -> Answer:
        requested.is_settled = False
        try:
            replicas = self.context.replicas
            if requested.by_id:
                partition = replicas.partitions.get_by_id(requested.topic_id, requested.partition)
            else:
                partition = replicas.partitions.get(requested.topic, requested.partition)
            if not self.context.is_allowed("Read", "Topic", partition.topic):
                raise TopicAuthorizationFailed
            if self.shared_reads is not None and not self.is_lease_over:
                return self._read_shared(self.shared_reads, partition, requested)
            return self._read(partition, requested)
        except WouldWait as cold:
            self.cold.append(cold)
            return Answer(partition_index=requested.partition, high_watermark=-1, records=b"")
        except KafkaError as error:
            return self._refuse_partition(requested, error)
        except OSError as error:
            logger.error(
                "cannot read topic=%s partition=%d error=%s",
                requested.topic,
                requested.partition,
                error,
            )
            return self._refuse_partition(requested, KafkaStorageError())

    def _read_shared(
        self, shared_reads: SharedReads, partition: Partition, requested: FetchPartition
    ) -> Answer:
        """Return the answer to an equal request, or read the partition and share the answer."""
        max_bytes = min(self.remaining_bytes, requested.max_bytes)
        key = (
            partition,
            requested.partition,
            requested.fetch_offset,
            max_bytes,
            requested.leader_epoch,
            requested.last_fetched_epoch,
            not self.total,
            self.zstd_allowed,
            self.reads_followers,
            self.rack,
        )
        state = partition.readable_state()
        shared = shared_reads.reads.get(key)
        if shared is not None and shared.state == state:
            self.visits[requested] = partition, shared.end_offset
            self._add(partition, requested, shared.size)
            return shared.answer
        answer = self._read(partition, requested)
        data = _small(answer.records)
        if data is not None:
            answer.records = data
            shared_reads.keep(key, SharedRead(state, answer, len(data), self.visits[requested][1]))
        return answer

    def _read(self, partition: Partition, requested: FetchPartition) -> Answer:
        holds_back = False
        if self.is_lease_over:
            raise NotLeaderOrFollower("the broker's session may have ended")
        if self.reads_followers:
            partition.check_epoch(requested.leader_epoch)
            if not partition.is_confirmed:  # The consumer returns to the leader (KIP-392).
                raise OffsetNotAvailable
        else:
            leader = partition.check_leader(requested.leader_epoch)
            if self.replica > _CONSUMER:
                check_follower(leader, self.replica, self.broker_epoch)
                holds_back = _must_hold_back(self, partition, leader)
        if not self.zstd_allowed and partition.config.compression_type == "zstd":
            raise UnsupportedCompressionType
        if self.rack and partition.leader is not None:
            offset = requested.fetch_offset
            broker = _nearest_follower(self.context, self.rack, partition.leader, offset)
            if broker is not None:
                return self._redirect(partition, requested, broker)
        result = partition.read(
            requested.fetch_offset,
            0 if holds_back else min(self.remaining_bytes, requested.max_bytes),
            isolation=self.isolation,
            at_least_one=not (self.total or holds_back),
            last_fetched_epoch=requested.last_fetched_epoch,
            wait=self.wait,
        )
        if self.watch is not None:
            self.watch.add(requested.ref, partition)
            requested.is_settled = _is_settled(self.replica, partition, requested, result)
        if holds_back:
            self.holds_back = True
        else:
            self.visits[requested] = partition, result.end_offset
        if result.region is not None:
            self.regions.append(result.region)
        if self.replica > _CONSUMER and result.diverging is None:
            self._follower(partition, requested)
        return self._answer(partition, requested, result)

    def _redirect(self, partition: Partition, requested: FetchPartition, broker: int) -> Answer:
        """Return an answer without records that names the follower to read from (KIP-392)."""
        self.urgent = True
        self.visits[requested] = partition, partition.readable_end(self.isolation)
        return Answer(
            partition_index=requested.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.start_offset,
            preferred_read_replica=broker,
            records=b"",
        )

    def _answer(
        self, partition: Partition, requested: FetchPartition, result: ReadResult
    ) -> Answer:
        region = result.region
        size = 0 if region is None else len(region)
        if size:
            self._add(partition, requested, size)
        diverging = _NO_DIVERGENCE
        if result.diverging is not None:
            epoch, end = result.diverging
            diverging = Answer.EpochEndOffset(epoch=epoch, end_offset=end)
            self.urgent = True
        aborted = None
        if self.isolation is FetchIsolation.STABLE:
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

    def _add(self, partition: Partition, requested: FetchPartition, size: int) -> None:
        self.total += size
        self.remaining_bytes -= size
        self.sizes[requested] = partition, size

    def _follower(self, partition: Partition, requested: FetchPartition) -> None:
        self.context.replicas.on_follower_fetched(
            partition,
            self.replica,
            offset=requested.fetch_offset,
            log_start=requested.log_start,
            broker_epoch=self.broker_epoch,
        )
        # A follower that knows only a lower high watermark is answered at once (KIP-1166).
        if requested.known_high_watermark < partition.high_watermark:
            self.urgent = True

    def _refuse_partition(self, requested: FetchPartition, error: KafkaError) -> Answer:
        # An unknown partition is reported only when the wait ends, as in Kafka: nothing else would
        # slow down a client that keeps fetching it.
        if not isinstance(error, _NOT_EVEN_LOOKED):
            self.urgent = True
        answer = Answer(
            partition_index=requested.partition,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=[] if isinstance(error, _NOT_EVEN_LOOKED) else None,
            records=b"",
        )
        self.refused[requested] = answer, error
        return answer

    def count(self) -> None:
        """Count the bytes sent to a consumer, or the throttled bytes sent to a follower."""
        if self.replica == _CONSUMER:
            for partition, size in self.sizes.values():
                partition.traffic.bytes_out.value += size
            return
        replicas = self.context.replicas
        throttled_bytes = sum(
            size for each, size in self.sizes.values() if _is_throttled(replicas, each)
        )
        if throttled_bytes:
            replicas.throttles.leader.record(throttled_bytes, replicas.now())

    def drop(self) -> None:
        """Close the files of answers that will not be sent."""
        for region in self.regions:
            region.close()


async def _read_again(
    reading: _Reading, fetch_context: FetchContext, answers: list[Answer]
) -> None:
    """Reread the partitions that have changed since ``reading``, and replace their answers.

    A session also adds other partitions that have changed. As in the first reading, other tasks run
    in between, and threads read what lookups would wait for.
    """
    requested, replicas = fetch_context.partitions, reading.context.replicas
    reading.is_lease_over = reading.replica == _CONSUMER and replicas.is_lease_over
    try:
        if reading.watch is not None:
            changed = fetch_context.add_changed()
            answers += [_UNREAD] * (len(requested) - len(answers))
        else:
            changed = await _changed_in_turns(reading)
        positions = {each: position for position, each in enumerate(requested)}
        for reading.wait in (False, True):
            reading.cold, cold = [], []
            for count, each in enumerate(changed, 1):
                position, cold_count = positions[each], len(reading.cold)
                reading.take_back(each, answers[position])
                answers[position] = reading.visit(each)
                if len(reading.cold) > cold_count:
                    cold.append(each)
                if count % _TURN_PARTITIONS == 0:
                    await give_way()
            if not cold:
                break
            await replicas.warm(reading.cold)
            changed = cold
    except BaseException:
        reading.drop()
        raise


async def _changed_in_turns(reading: _Reading) -> list[FetchPartition]:
    """Return the partitions that have changed since they were read."""
    changed = []
    for count, (requested, visit) in enumerate(reading.visits.items(), 1):
        if reading.has_changed(*visit):
            changed.append(requested)
        if count % _TURN_PARTITIONS == 0:
            await give_way()
    return changed


def _must_hold_back(reading: _Reading, partition: Partition, leader: Leader) -> bool:
    """Return whether the replication throttle holds back a follower outside the ISR (KIP-73)."""
    replicas = reading.context.replicas
    return (
        reading.replica not in leader.isr
        and _is_throttled(replicas, partition)
        and replicas.throttles.leader.is_exceeded(replicas.now())
    )


def _is_throttled(replicas: ReplicaService, partition: Partition) -> bool:
    """Return whether the leader throttle applies to this broker's replica of the partition."""
    throttled = partition.config.leader_throttled_replicas
    return is_throttled(throttled, partition.partition, replicas.node)


def _is_settled(
    replica: int, partition: Partition, requested: FetchPartition, result: ReadResult
) -> bool:
    """Return whether only a change of the partition can change the answer."""
    if requested.fetch_offset < result.end_offset or result.diverging is not None:
        return False
    leader = partition.leader
    return replica < 0 or (leader is not None and replica in leader.isr)


def _nearest_follower(context: Context, rack: str, leader: Leader, offset: int) -> int | None:
    """Return the follower that a consumer should read from, or None for the leader (KIP-392)."""
    brokers = context.image.brokers
    own = brokers.get(leader.node)
    followers = []
    for node, follower in leader.followers.items():
        broker = brokers.get(node)
        if (
            node in leader.isr
            and follower.log_start <= offset <= follower.log_end
            and broker is not None
            and not broker.fenced
            and broker.endpoint(context.listener) is not None
        ):
            near = ReadReplica(follower.log_end, follower.caught_up_at, node, broker.rack)
            followers.append(near)
    return select(rack, None if own is None else own.rack, followers)


def _add_hints(context: Context, reading: _Reading, response: FetchResponse) -> None:
    for requested, (answer, error) in reading.refused.items():
        add_leader_hint(
            context,
            error,
            topic=requested.topic,
            topic_id=requested.topic_id,
            partition=requested.partition,
            answer=answer,
            response=response,
        )
