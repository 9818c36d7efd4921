"""The partitions of one broker, and the requests that wait for them.

The only part of this package that awaits. Rules:

* A request works on a :class:`Partition` synchronously. It awaits here only for followers'
  acknowledgements, bytes to fetch, or a directory to be created.
* A waiter is one :class:`trio.Event`, set by the task that changed the partition. No task polls on
  a timer, so an idle broker sleeps.
* Metadata is applied in the order it is published, one publication at a time.
* A new partition's files may be created after its topic's creation was answered: by the first
  request for the partition, or else in the background.  So a topic of a thousand partitions exists
  and is usable at once.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Final

import attrs
import trio

from kwire.configs.resource_types import BROKER, TOPIC
from kwire.drive import Slices, Wakes
from kwire.errors import (
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kwire.log.cold import Job, WouldWait, run_all
from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import THREADS, DiskThreads
from kwire.metrics import BYTES_IN, BYTES_OUT, MESSAGES_IN, Metrics
from kwire.records.compression import NAMES, NONE
from kwire.records.header import BatchHeader, Buffer
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.leader import Leader, Moved
from kwire.replica.partition import ACKS_ALL, Located, Partition, Produced, Traffic
from kwire.replica.ports import Delta, Directory, Logs, Metadata, PartitionState, TopicState
from kwire.replica.purgatory import (
    ByteWait,
    ByteWaits,
    FetchIsolation,
    OffsetWaits,
    WaitTimes,
    Wake,
)
from kwire.replica.unpacking import Unpacker

log = logging.getLogger(__name__)

_INTERNAL: Final = "__"
_AT_ONCE: Final = 8
"""New partitions of a publication that are created before :meth:`ReplicaService.apply` returns."""
_FLUSH_RETRY_S: Final = 1.0
_WOKEN_AT_ONCE: Final = 16
"""Fetches that are answered before other tasks run, about a millisecond."""


@attrs.define(eq=False)
class ReplicaService:
    """The partitions this broker holds, by name and by topic id."""

    node: int
    logs: Logs
    configs: Callable[[str], LogConfig]
    """Returns a topic's current settings, by topic name."""
    sessions: FetchSessions
    now: Callable[[], float] = trio.current_time
    metrics: Metrics = attrs.field(factory=Metrics)
    image: Metadata | None = None
    lag_max_s: float = 30.0
    """``replica.lag.time.max.ms``."""
    _by_name: dict[tuple[str, int], Partition] = attrs.field(factory=dict)
    _by_id: dict[tuple[bytes, int], Partition] = attrs.field(factory=dict)
    _offline: set[tuple[bytes, int]] = attrs.field(factory=set)
    """Partitions assigned here without a log: their directory failed or had no room. A request for
    one tries again to create its log."""
    _told_of_copies: set[str] = attrs.field(factory=set)
    """Topics that were logged as having no working replication."""
    _due: dict[tuple[bytes, int], None] = attrs.field(factory=dict)
    """Partitions still to be created, by the first request or in the background."""
    _more_due: trio.Event = attrs.field(factory=trio.Event)
    _puts_off: bool = False
    _nursery: trio.Nursery | None = None
    _flushing: set[Partition] = attrs.field(factory=set)
    """Partitions whose logs a task is syncing."""
    _to_wake: Wakes = attrs.field(factory=lambda: Wakes(_WOKEN_AT_ONCE))
    """Fetches that are complete and are to be woken."""
    _times: WaitTimes[trio.Event] = attrs.field(factory=WaitTimes)
    """The times at which fetches are answered with the bytes there are."""
    _until_time: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _bytes: ByteWaits[Partition, trio.Event] = attrs.field(factory=ByteWaits)
    _on_role: list[Callable[[Partition], None]] = attrs.field(factory=list)
    _readers: DiskThreads = attrs.field(factory=DiskThreads)
    """Threads that read for lookups; writes and flushes have others."""
    _unpacker: Unpacker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._unpacker = Unpacker(self._readers)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def offline(self) -> int:
        """The number of replicas without a log because their directory failed or had no room."""
        return len(self._offline)

    def partitions(self) -> Iterable[Partition]:
        return self._by_name.values()

    def on_role(self, listener: Callable[[Partition], None]) -> None:
        """Call ``listener`` for every partition that gained or lost its role here."""
        self._on_role.append(listener)

    # Lookups. The common case is one dict access; the rest finds the error for a missing partition.

    def held(self, topic: str, partition: int) -> Partition | None:
        """Return the partition if it exists; unlike :meth:`get` this creates none."""
        return self._by_name.get((topic, partition))

    def get(self, topic: str, partition: int) -> Partition:
        found = self._by_name.get((topic, partition))
        if found is None:
            topic_id = None if self.image is None else self.image.topic_ids.get(topic)
            found = None if topic_id is None else self._make_due(topic_id, partition)
            if found is None:
                raise self._missing_name(topic, partition)
        return found

    def get_by_id(self, topic_id: bytes, partition: int) -> Partition:
        found = self._by_id.get((topic_id, partition))
        if found is None:
            found = self._make_due(topic_id, partition)
            if found is None:
                raise self._missing_id(topic_id, partition)
        return found

    def leader(self, topic: str, partition: int) -> Partition:
        """Return the partition if this broker leads it."""
        found = self.get(topic, partition)
        if found.leader is None:
            raise NotLeaderOrFollower
        return found

    def _missing_name(
        self, topic: str, partition: int
    ) -> UnknownTopicOrPartition | NotLeaderOrFollower | KafkaStorageError:
        image = self.image
        topic_id = None if image is None else image.topic_ids.get(topic)
        if image is None or topic_id is None:
            return UnknownTopicOrPartition()
        return self._elsewhere(image, topic_id, partition)

    def _missing_id(
        self, topic_id: bytes, partition: int
    ) -> UnknownTopicId | UnknownTopicOrPartition | NotLeaderOrFollower | KafkaStorageError:
        image = self.image
        if image is None or image.topics.get(topic_id) is None:
            return UnknownTopicId()
        return self._elsewhere(image, topic_id, partition)

    def _elsewhere(
        self, image: Metadata, topic_id: bytes, partition: int
    ) -> UnknownTopicOrPartition | NotLeaderOrFollower | KafkaStorageError:
        state = image.topics[topic_id].partitions.get(partition)
        if state is None:
            return UnknownTopicOrPartition()
        if (topic_id, partition) in self._offline:
            return KafkaStorageError()
        return NotLeaderOrFollower()

    # Producing.

    async def prepare(self, partition: Partition, records: Buffer, header: BatchHeader) -> Buffer:
        """Check keys and change the codec of a batch if the topic's settings require that.

        Return the batch to append, which differs from ``records`` only if the codec changes.
        """
        config = partition.config
        size = header.size
        if config.cleanup_compact:
            await self._unpacker.check_keys(records, header)
        wanted = config.compression_type
        if wanted == "producer":
            return records
        codec = NONE if wanted == "uncompressed" else NAMES.index(wanted)
        if codec == header.compression:
            return records
        made = await self._unpacker.recompress(memoryview(records)[:size], header, codec)
        if len(made) > config.max_message_bytes:
            raise MessageTooLarge(
                f"{len(made)} bytes as {wanted}, at most {config.max_message_bytes} are allowed"
            )
        return made

    def append(
        self,
        partition: Partition,
        records: Buffer,
        header: BatchHeader,
        acks: int,
        now_ms: int,
        *,
        from_client: bool = True,
    ) -> Produced:
        """Append a checked batch as the leader: the only way to append to a partition.

        It counts the batch, wakes the fetches that it completes and starts a sync if the topic
        requires one. The batch may be acknowledged after :meth:`wait_acknowledged`.
        """
        produced = partition.append(
            records, header, acks, self.now(), now_ms, from_client=from_client
        )
        size = produced.size_bytes
        if size:
            traffic = partition.traffic
            traffic.messages_in.value += produced.end_offset - produced.base_offset
            traffic.bytes_in.value += size
            if self._bytes.is_watched(partition):
                for upto in produced.readable:
                    self._to_wake.wake(self._bytes.grew(partition, upto, size))
        if not produced.is_stored:
            self._flush_soon(partition)
        return produced

    async def wait_acknowledged(
        self, partition: Partition, produced: Produced, acks: int, deadline: float
    ) -> None:
        """Wait until a batch may be acknowledged: stored here and, for acks=all, committed.

        The deadline applies to the followers. This broker's own disk has none: the queued writes
        are in memory, and bounded because their producers wait too.
        """
        end_offset, epoch = produced.end_offset, produced.leader_epoch
        await self._wait_stored(partition, end_offset, epoch)
        if acks == ACKS_ALL:
            left_s = max(0.0, deadline - self.now())
            await self.wait_committed(partition, end_offset, left_s, epoch)

    async def _wait_stored(self, partition: Partition, end_offset: int, epoch: int) -> None:
        if self._checked_leader(partition, epoch).log_end < end_offset:
            await self._wait_for(partition.writes, end_offset, math.inf)
            if self._checked_leader(partition, epoch).log_end < end_offset:
                raise KafkaStorageError(f"{partition.log.partition}: not synced")

    async def wait_committed(
        self, partition: Partition, end_offset: int, timeout_s: float, epoch: int | None = None
    ) -> None:
        """Wait until the in-sync replicas hold everything before ``end_offset`` (acks=all)."""
        epoch = partition.leader_epoch if epoch is None else epoch
        leader = self._checked_leader(partition, epoch)
        if partition.high_watermark < end_offset:
            await self._wait_for(partition.commits, end_offset, timeout_s)
            leader = self._checked_leader(partition, epoch)
        if leader.under_min_isr:
            raise NotEnoughReplicasAfterAppend
        if partition.high_watermark < end_offset:
            raise KafkaStorageError(f"{partition.log.partition}: not synced")

    def _checked_leader(self, partition: Partition, epoch: int) -> Leader:
        """Return the leader's state if this broker still leads in this epoch."""
        leader = partition.leader
        if leader is None or leader.leader_epoch != epoch:
            if (partition.topic_id, partition.partition) in self._offline:
                raise KafkaStorageError
            raise NotLeaderOrFollower
        return leader

    @staticmethod
    async def _wait_for(waits: OffsetWaits[object], end_offset: int, timeout_s: float) -> None:
        event = trio.Event()
        waits.watch(end_offset, event)
        with trio.move_on_after(timeout_s) as scope:
            try:
                await event.wait()
            finally:
                if not event.is_set():
                    waits.forget(event)
        if scope.cancelled_caught:
            raise RequestTimedOut

    # Syncing, for topics that require it before records are readable (``flush.messages``).

    def _flush_soon(self, partition: Partition) -> None:
        """Start a sync of a log if ``flush.messages`` requires one, at most one at a time."""
        if not partition.log.must_flush or partition in self._flushing:
            return
        if self._nursery is None:
            partition.log.flush()
            self._on_stored(partition)
        else:
            self._flushing.add(partition)
            self._nursery.start_soon(self._flush, partition)

    async def _flush(self, partition: Partition) -> None:
        """Sync until no required sync is left; each fsync serves every batch before it."""
        opened = partition.log
        try:
            while (
                (leader := partition.leader) is not None
                and opened.must_flush
                and leader.log_end < opened.end_offset
            ):
                try:
                    await self.logs.flush(opened, opened.end_offset)
                except KafkaStorageError as error:
                    log.error("flush failed partition=%s error=%s", opened.partition, error)
                    _set([*partition.commits.all(), *partition.writes.all()])
                    await trio.sleep(_FLUSH_RETRY_S)
                else:
                    self._on_stored(partition)
        finally:
            self._flushing.discard(partition)

    def _on_stored(self, partition: Partition) -> None:
        """Complete the waits for newly written or synced records."""
        moved = partition.on_stored(self.now())
        if partition.leader is not None:
            _set(partition.writes.reached(partition.leader.log_end))
        if moved is not None:
            self._moved(partition, moved)

    # Fetching.

    async def wait_for_data(
        self,
        partitions: Sequence[Partition],
        *,
        missing_bytes: int,
        upto: FetchIsolation,
        timeout_s: float,
    ) -> Wake | None:
        """Return when ``missing_bytes`` more are readable, a role changed, or time is up.

        If the append completed other fetches as well, they share the returned object.
        """
        event = trio.Event()
        wait: ByteWait[Partition, trio.Event] = ByteWait(event, upto, missing_bytes)
        self._bytes.watch(wait, partitions)
        try:
            if self._nursery is None:
                with trio.move_on_after(timeout_s):
                    await event.wait()
            else:
                self._end_at(self.now() + timeout_s, event)
                await event.wait()
        finally:
            self._bytes.forget(wait)
            self._times.forget(event)
        return wait.woken_with

    def _end_at(self, at: float, event: trio.Event) -> None:
        """Wake a fetch at a time, at a tenth of the cost of a cancel scope of its own."""
        self._times.watch(at, event)
        if at < self._until_time.deadline:
            self._until_time.deadline = at

    async def _keep_times(self) -> None:
        """Wake the fetches whose time is up, and all when cancelled; sleep in between."""
        try:
            while True:
                with trio.CancelScope(deadline=self._times.deadline) as self._until_time:
                    await trio.sleep_forever()
                self._to_wake.wake(self._times.pop_due(self.now()))
        finally:
            self._to_wake.wake(self._times.pop_due(math.inf))

    async def warm(self, cold: Sequence[WouldWait]) -> None:
        """Read in threads the data that lookups need, so that it is in the page cache."""
        jobs: dict[Disk, list[Job]] = {}
        for each in cold:
            jobs.setdefault(each.disk, []).append(each.job)
        async with trio.open_nursery() as nursery:
            for disk, ours in jobs.items():
                for first in range(min(THREADS, len(ours))):
                    share = partial(run_all, ours[first::THREADS])
                    nursery.start_soon(self._readers.run, disk, share)

    def follower_fetched(
        self, partition: Partition, node: int, *, offset: int, log_start: int, broker_epoch: int
    ) -> None:
        """Record the offsets of a follower's fetch.

        That may move the high watermark, and so wake producers and consumers.
        """
        leader = partition.check_leader()
        moved = leader.fetched(
            node,
            offset=offset,
            log_start=log_start,
            now=self.now(),
            broker_epoch=broker_epoch,
        )
        if moved is not None:
            self._moved(partition, moved)

    def log_written(self, opened: PartitionLog) -> None:
        """Account for the queued writes of a log that a slow directory has written."""
        partition = self._by_name.get(opened.partition)
        if partition is not None and partition.log is opened:
            self._on_stored(partition)
            self._flush_soon(partition)
            self._to_wake.wake(self._bytes.changed(partition))

    def _moved(self, partition: Partition, moved: Moved) -> None:
        stable_before = partition.last_stable_offset
        size = partition.on_committed(moved)
        _set(partition.commits.reached(moved.to_offset))
        if self._bytes.is_watched(partition):
            kinds = [FetchIsolation.HIGH_WATERMARK]
            if partition.last_stable_offset > stable_before:
                kinds.append(FetchIsolation.STABLE)
            for upto in kinds:
                self._to_wake.wake(self._bytes.grew(partition, upto, size))

    async def locate(self, partition: Partition, timestamp: int, upto: FetchIsolation) -> Located:
        """Return the offset of a timestamp, searching batches in slices if necessary."""
        search = partition.search(timestamp)
        if search is None:
            return partition.locate(timestamp, upto)
        epoch = partition.check_leader().leader_epoch
        try:
            found = await self._unpacker.search(search)
        except OSError as error:
            raise KafkaStorageError(str(error)) from error
        self._checked_leader(partition, epoch)
        return partition.locate(timestamp, upto, found)

    def delete_before(self, partition: Partition, offset: int) -> int:
        """Delete records for DeleteRecords; return the low watermark of all replicas.

        Fetches that wait on the partition are woken to check their offsets again.
        """
        before = partition.log.start_offset
        start = partition.delete_before(offset)
        if start > before:
            self._to_wake.wake(self._bytes.changed(partition))
        leader = partition.check_leader()
        return leader.low_watermark(start)

    async def keep_starts(self, partitions: Iterable[Partition]) -> None:
        """Return once the deletions of :meth:`delete_before` are durable."""
        await self.logs.keep_starts([partition.log for partition in partitions])

    # Following the metadata.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Create deferred partitions, one at a time, and sync logs, until cancelled.

        While it does not run, no partition is deferred, and logs are synced at once.
        """
        self._puts_off = True
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._make_all_due)
                nursery.start_soon(self._to_wake.run)
                nursery.start_soon(self._keep_times)
                task_status.started()
        finally:
            self._puts_off = False
            self._nursery = None

    async def _make_all_due(self) -> None:
        while True:
            while self._due:
                self._make_due(*next(iter(self._due)))
                await trio.lowlevel.checkpoint()
            self._more_due = trio.Event()
            await self._more_due.wait()

    async def apply(self, delta: Delta) -> None:
        """Apply a publication: deleted topics, changed partitions and changed settings."""
        self.image = image = delta.after
        slices = Slices(self.now)
        for topic_id, topic in delta.deleted_topics.items():
            for index in topic.partitions:
                self._due.pop((topic_id, index), None)
                self._offline.discard((topic_id, index))
                held = self._by_id.get((topic_id, index))
                if held is not None:
                    self._remove(held)
                elif (lost := self._lost_log(topic, index)) is not None:
                    self._delete_log(lost)
                await slices.pause()
            if topic.name not in image.topic_ids:
                for metric in (MESSAGES_IN, BYTES_IN, BYTES_OUT):
                    self.metrics.forget(metric, topic.name)
        await self._reconfigure(delta.configs, slices)
        made = 0
        for topic_id, indexes in delta.partitions.items():
            changed = image.topics.get(topic_id)
            if changed is not None:
                for index in sorted(indexes):
                    if made < _AT_ONCE or not self._put_off(changed, index):
                        made += (topic_id, index) not in self._by_id
                        self._apply_partition(changed, index)
                    await slices.pause()

    def _put_off(self, topic: TopicState, index: int) -> bool:
        """Defer the creation of a new partition; return whether it is deferred.

        Partitions of internal topics are never deferred.
        """
        key = topic.id, index
        state = topic.partitions.get(index)
        if key in self._due or (
            self._puts_off
            and state is not None
            and self.node in state.replicas
            and key not in self._by_id
            and (topic.name, index) not in self._by_name
            and not topic.name.startswith(_INTERNAL)
            and self.logs.get(topic.name, index) is None
        ):
            self._due[key] = None
            self._more_due.set()
            return True
        return False

    def _make_due(self, topic_id: bytes, index: int) -> Partition | None:
        """Create a deferred or offline partition by the newest metadata; None if there is none."""
        key = topic_id, index
        if key not in self._due and key not in self._offline:
            return None
        self._due.pop(key, None)
        topic = None if self.image is None else self.image.topics.get(topic_id)
        state = None if topic is None else topic.partitions.get(index)
        if topic is None or state is None or self.node not in state.replicas:
            return None
        held = self._add(topic, index)
        return None if held is None else self._given_role(held, state)

    def _apply_partition(self, topic: TopicState, index: int) -> None:
        state = topic.partitions.get(index)
        held = self._by_id.get((topic.id, index))
        if state is None or self.node not in state.replicas:
            self._due.pop((topic.id, index), None)
            if held is not None:
                self._remove(held)
            return
        if held is None:
            stale = self._by_name.get((topic.name, index))
            if stale is not None:
                self._remove(stale)
            self._due.pop((topic.id, index), None)
            held = self._add(topic, index)
        if held is not None:
            self._given_role(held, state)

    def _given_role(self, held: Partition, state: PartitionState) -> Partition | None:
        """Make this broker the partition's leader or follower; None if its directory fails."""
        try:
            self._take_role(held, state)
        except KafkaStorageError as error:
            log.error("no role topic=%s partition=%d error=%s", held.topic, held.partition, error)
            self._lose(held)
            return None
        return held

    def _add(self, topic: TopicState, index: int) -> Partition | None:
        config = self.configs(topic.name)
        try:
            opened = self.logs.create(topic.name, topic.id, index, config)
        except (OSError, KafkaStorageError) as error:
            if (topic.id, index) not in self._offline:
                text = "partition has no log topic=%s partition=%d error=%s"
                log.error(text, topic.name, index, error)
            self._offline.add((topic.id, index))
            return None
        self._offline.discard((topic.id, index))
        return self.adopt(topic.name, topic.id, index, opened)

    def adopt(self, topic: str, topic_id: bytes, index: int, opened: PartitionLog) -> Partition:
        """Add a partition whose log is open, and return it."""
        cell = self.metrics.cell
        traffic = Traffic(cell(MESSAGES_IN, topic), cell(BYTES_IN, topic), cell(BYTES_OUT, topic))
        made = Partition(topic, index, topic_id, opened, traffic)
        self._by_name[topic, index] = self._by_id[topic_id, index] = made
        return made

    def directory_failed(self, directory: Directory) -> None:
        """Mark the partitions of a failed log directory as offline.

        Requests for them then get KafkaStorageError.
        """
        for partition in list(self._by_name.values()):
            if partition.log.disk is directory.disk:
                self._lose(partition)

    def _lose(self, partition: Partition) -> None:
        self._let_go(partition)
        self._offline.add((partition.topic_id, partition.partition))

    def _let_go(self, partition: Partition) -> None:
        self._by_name.pop((partition.topic, partition.partition), None)
        self._by_id.pop((partition.topic_id, partition.partition), None)
        self._wake(partition, partition.follow(-1, partition.leader_epoch))

    def _lost_log(self, topic: TopicState, index: int) -> PartitionLog | None:
        """Return the open log of a partition without a role here, if it can be deleted."""
        opened = self.logs.get(topic.name, index)
        if opened is None or opened.topic_id != topic.id or opened.disk.failed is not None:
            return None
        return opened

    def _remove(self, partition: Partition) -> None:
        self._let_go(partition)
        self._delete_log(partition.log)

    def _delete_log(self, opened: PartitionLog) -> None:
        try:
            self.logs.delete_soon(opened)
        except (OSError, KafkaStorageError):
            log.exception("cannot delete partition=%s", opened.partition)

    def _tell_of_copies(self, topic: str, replicas: int) -> None:
        """Log once per topic with several replicas that replication is not available."""
        if replicas > 1 and topic not in self._told_of_copies:
            self._told_of_copies.add(topic)
            text = "replication is not available, acks=all will time out topic=%s replicas=%d"
            log.warning(text, topic, replicas)

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        if state.leader != self.node:
            if partition.leader is not None or partition.leader_epoch != state.leader_epoch:
                self._wake(partition, partition.follow(state.leader, state.leader_epoch))
            return
        leader = partition.leader
        if leader is not None and leader.leader_epoch == state.leader_epoch:
            leader.replicas_changed(state.replicas)
            moved = leader.settled(state.isr, state.partition_epoch, self.now())
            if moved is not None:
                self._moved(partition, moved)
            return
        lost = [*partition.commits.all(), *partition.writes.all()]
        now = self.now()
        self._tell_of_copies(partition.topic, len(state.replicas))
        partition.lead(
            Leader.take_over(
                node=self.node,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                replicas=state.replicas,
                isr=state.isr,
                log_end=partition.log.end_offset,
                high_watermark=partition.high_watermark,
                min_isr=partition.config.min_insync_replicas,
                now=now,
                lag_max=self.lag_max_s,
            ),
            now,
        )
        self._wake(partition, lost)
        self._flush_soon(partition)

    async def _reconfigure(self, changed: Set[tuple[int, str]], slices: Slices) -> None:
        """Apply changed settings, of some topics, or of brokers and so of all topics."""
        topics = {name for kind, name in changed if kind == TOPIC}
        everywhere = any(kind == BROKER for kind, _ in changed)
        if not topics and not everywhere:
            return
        for partition in list(self._by_name.values()):
            if everywhere or partition.topic in topics:
                self._configure(partition, self.configs(partition.topic))
            await slices.pause()

    def _configure(self, partition: Partition, config: LogConfig) -> None:
        partition.configure(config)
        leader = partition.leader
        if leader is not None:
            self._flush_soon(partition)
            self._on_stored(partition)
            moved = leader.advance(self.now())
            if moved is not None:
                self._moved(partition, moved)

    def _wake(self, partition: Partition, lost: Iterable[object]) -> None:
        """Wake all waits of a partition whose role changed, and call the role listeners."""
        _set(lost)
        self._to_wake.wake(self._bytes.changed(partition))
        for listener in self._on_role:
            listener(partition)


def _set(events: Iterable[object]) -> None:
    for event in events:
        assert isinstance(event, trio.Event)
        event.set()
