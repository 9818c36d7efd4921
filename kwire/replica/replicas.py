"""The requests of clients and followers to the partitions of one broker.

Rules:

* A request works on a :class:`Partition` synchronously. It waits here only for followers'
  acknowledgements, a required sync, bytes to fetch, or threads that read or unpack.
* A waiting request sleeps on one :class:`trio.Event`, set by the task that changes the partition.
  No task polls on a timer, so an idle broker sleeps.
* Only :meth:`ReplicaService.append` appends to a partition.

:mod:`kwire.replica.metadata_applier` creates, changes and removes the partitions.
"""

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from kwire.errors import (
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownLeaderEpoch,
)
from kwire.log.cold_lookups import Job, WouldWait, run_all
from kwire.log.config import LogConfig
from kwire.log.disk import Disk
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.log.threads import THREADS, DiskThreads
from kwire.metrics import Metrics
from kwire.records.compression import NAMES, NONE
from kwire.records.header import CONTROL, TRANSACTIONAL, BatchHeader, Buffer, parse
from kwire.replica.completion import Completion
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.fetch_waits import FetchWaits
from kwire.replica.fetcher.config import FetcherConfig
from kwire.replica.hosted_partitions import HostedPartitions
from kwire.replica.leader import PartitionLeader
from kwire.replica.metadata_applier import MetadataApplier
from kwire.replica.partition import (
    ACKS_ALL,
    NO_EPOCH,
    FetchIsolation,
    OffsetLookupResult,
    Partition,
    ProduceResult,
)
from kwire.replica.ports import Lease, OtherBrokers
from kwire.replica.replication import Replication
from kwire.replica.required_syncs import RequiredSyncs
from kwire.replica.roles import Roles
from kwire.replica.throttles import Throttles
from kwire.replica.unpacking import Unpacker
from kwire.replica.usual_append import append_usual
from kwire.replica.verification import Guard
from kwire.waits import Deadlines


def check_follower(
    leader: PartitionLeader, node: int, broker_epoch: int, leader_epoch: int
) -> None:
    """Raise NotLeaderOrFollower if the follower sent the fetch before it restarted.

    Raises UnknownLeaderEpoch if the broker holds no replica: it may know a newer assignment of the
    same leader epoch. A fetch without an epoch gets NotLeaderOrFollower.
    """
    follower = leader.followers.get(node)
    if follower is None:
        error = NotLeaderOrFollower if leader_epoch == NO_EPOCH else UnknownLeaderEpoch
        raise error(f"broker {node} holds no replica")
    if 0 <= broker_epoch < follower.broker_epoch:
        raise NotLeaderOrFollower(f"broker {node} has restarted since")


@attrs.define(eq=False, repr=False)
class ReplicaService:
    """The partitions of one broker, and the requests to them."""

    node: int
    logs: LogManager
    configs: Callable[[str], LogConfig]
    """Returns a topic's current settings, by topic name."""
    sessions: FetchSessions
    now: Callable[[], float] = trio.current_time
    metrics: Metrics = attrs.field(factory=Metrics)
    lag_max_s: float = 30.0
    """``replica.lag.time.max.ms``."""
    lag_max_messages: int | None = None
    """``replica.lag.max.messages``."""
    cluster: OtherBrokers | None = None
    """The other brokers and the controller; None for a broker that replicates nothing."""
    fetcher_config: FetcherConfig | None = None
    throttles: Throttles = attrs.field(factory=Throttles)
    checks_records: bool = True
    """True if the records of produced batches are checked, not only their headers."""
    lease: Lease | None = None
    """The lease of this broker's session; None for a broker that no controller fences."""
    partitions: HostedPartitions = attrs.field(init=False)
    roles: Roles = attrs.field(init=False)
    applier: MetadataApplier = attrs.field(init=False)
    fetch_waits: FetchWaits = attrs.field(init=False)
    _replication: Replication | None = attrs.field(init=False, default=None)
    _completion: Completion = attrs.field(init=False)
    _syncs: RequiredSyncs = attrs.field(init=False)
    _readers: DiskThreads = attrs.field(factory=DiskThreads)
    """Threads that read for lookups; writes and flushes use other threads."""
    _deadlines: Deadlines = attrs.field(init=False)
    """The deadlines of waits for followers."""
    unpacker: Unpacker = attrs.field(init=False)
    """Checks the records of produced batches before they are appended."""

    def __attrs_post_init__(self) -> None:
        self.unpacker = Unpacker(self._readers)
        self.fetch_waits = FetchWaits(self.now)
        self._deadlines = Deadlines(self.now)
        self.sessions.on_end = self.fetch_waits.on_session_ended
        self._completion = Completion(self.now, self.fetch_waits)
        self._syncs = RequiredSyncs(self.logs, self._completion)
        self.roles = Roles(
            self.node,
            self.lag_max_s,
            self.now,
            self._completion,
            self._syncs,
            self._is_eligible,
            self.lag_max_messages,
        )
        self.partitions = HostedPartitions(self.logs, self.configs, self.roles, self.metrics)
        self.applier = MetadataApplier(self.partitions, self.now)
        if self.cluster is not None:
            self._replication = Replication(
                self.cluster,
                self.fetcher_config or FetcherConfig(self.node),
                self.logs,
                self._completion,
                self.now,
                self.lag_max_s,
                self._completion.on_copied,
                self.throttles,
            )
            self.roles.subscribe(self._replication.on_role_changed)
            self.applier.on_brokers_changed = self._replication.on_brokers_changed

    def _is_eligible(self, node: int, broker_epoch: int) -> bool:
        """Return whether the metadata lets a broker into an ISR (KIP-841, KIP-903)."""
        image = self.partitions.image
        broker = None if image is None else image.brokers.get(node)
        return broker is not None and broker.is_active and broker_epoch in (-1, broker.epoch)

    @property
    def is_lease_over(self) -> bool:
        """True once another broker may lead this broker's partitions (invariant 34)."""
        return self.lease is not None and self.lease.is_over(self.now())

    def check_lease(self, now: float | None = None) -> None:
        """Raise NotLeaderOrFollower if another broker may already lead this broker's partitions."""
        lease = self.lease
        if lease is not None and lease.is_over(self.now() if now is None else now):
            raise NotLeaderOrFollower("the broker's session may have ended")

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Create deferred partitions, sync logs and wake fetches until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._syncs.run)
            await nursery.start(self.fetch_waits.run)
            await nursery.start(self._deadlines.run)
            await nursery.start(self.applier.run)
            if self._replication is not None:
                await nursery.start(self._replication.run)
            task_status.started()

    # Producing.

    async def recompress(
        self, partition: Partition, records: Buffer, header: BatchHeader
    ) -> tuple[Buffer, BatchHeader]:
        """Return a batch and its header, with the codec that the topic's settings require."""
        config = partition.config
        compression_type = config.compression_type
        codec = NONE if compression_type == "uncompressed" else NAMES.index(compression_type)
        if codec == header.compression:
            return records, header
        whole = memoryview(records)[: header.size]
        batch = await self.unpacker.recompress(whole, header, codec, config.compression_level)
        if len(batch) > config.max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {len(batch)} bytes after compression with {compression_type}, "
                f"at most {config.max_message_bytes} are allowed"
            )
        return batch, parse(batch)

    def append(
        self,
        partition: Partition,
        records: Buffer,
        header: BatchHeader,
        acks: int,
        now_ms: int,
        *,
        from_client: bool = True,
        guard: Guard | None = None,
    ) -> ProduceResult:
        """Append a checked batch as the leader: the only way to append to a partition.

        This counts the batch, wakes the fetches that it completes and starts a sync if the topic
        requires one. The batch may be acknowledged after :meth:`wait_acknowledged`. ``guard``: the
        verification of a transaction's first batch.
        """
        now = self.now()
        if self.lease is not None:
            self.check_lease(now)
        produced = append_usual(partition, records, header, acks, now, now_ms)
        if produced is None:
            is_transactional = header.attributes & TRANSACTIONAL
            if is_transactional:
                partition.check_leader()
                producers = partition.log.producers
                partition.verifications.check(producers, header, guard, from_client=from_client)
            produced = partition.append(records, header, acks, now, now_ms, from_client=from_client)
            if is_transactional and produced.size_bytes:
                partition.verifications.on_appended(header.producer_id)
        base_offset, _, _, end_offset, _, readable, size, is_stored = produced
        if size:
            traffic = partition.traffic
            traffic.messages_in.value += end_offset - base_offset
            traffic.bytes_in.value += size
            ends = header.attributes & CONTROL != 0
            self.fetch_waits.on_readable(partition, readable, size, ends_transaction=ends)
        if not is_stored:
            self._syncs.start(partition)
        return produced

    async def wait_acknowledged(
        self, partition: Partition, produced: ProduceResult, acks: int, deadline: float
    ) -> None:
        """Wait until a batch may be acknowledged: stored here and, for acks=all, committed.

        The deadline applies only to the followers. This broker's own disk has no deadline, because
        its queue of writes is bounded. Raises NotLeaderOrFollower if the lease ended meanwhile.
        """
        end_offset, epoch = produced.end_offset, produced.leader_epoch
        await self._wait_stored(partition, end_offset, epoch)
        if acks == ACKS_ALL:
            left_s = max(0.0, deadline - self.now())
            await self.wait_committed(partition, end_offset, left_s, epoch)
        self.check_lease()

    async def _wait_stored(self, partition: Partition, end_offset: int, epoch: int) -> None:
        if self._checked_leader(partition, epoch).log_end < end_offset:
            await partition.writes.wait(end_offset)
            if self._checked_leader(partition, epoch).log_end < end_offset:
                raise KafkaStorageError(f"{partition.log.partition}: not synced")

    async def wait_committed(
        self, partition: Partition, end_offset: int, timeout_s: float, epoch: int | None = None
    ) -> None:
        """Wait until the in-sync replicas hold everything before ``end_offset`` (acks=all)."""
        epoch = partition.leader_epoch if epoch is None else epoch
        leader = self._checked_leader(partition, epoch)
        if partition.high_watermark < end_offset:
            deadline = self.now() + timeout_s
            if not await partition.commits.wait_until(end_offset, self._deadlines, deadline):
                raise RequestTimedOut
            leader = self._checked_leader(partition, epoch)
        if leader.under_min_isr:
            raise NotEnoughReplicasAfterAppend
        if partition.high_watermark < end_offset:
            raise KafkaStorageError(f"{partition.log.partition}: not synced")

    def _checked_leader(self, partition: Partition, epoch: int) -> PartitionLeader:
        """Return the leader's state if this broker has led continuously since ``epoch``."""
        leader = partition.leader
        if leader is None or epoch < leader.first_epoch:
            if self.partitions.is_offline(partition):
                raise KafkaStorageError
            raise NotLeaderOrFollower
        return leader

    # Fetching.

    async def warm(self, cold: Sequence[WouldWait]) -> None:
        """Bring the data that lookups need into the page cache, in threads."""
        jobs: dict[Disk, list[Job]] = {}
        for each in cold:
            jobs.setdefault(each.disk, []).append(each.job)
        async with trio.open_nursery() as nursery:
            for disk, ours in jobs.items():
                for first in range(min(THREADS, len(ours))):
                    share = partial(run_all, ours[first::THREADS])
                    nursery.start_soon(self._readers.run, disk, share)

    def on_follower_fetched(
        self, partition: Partition, node: int, *, offset: int, log_start: int, broker_epoch: int
    ) -> None:
        """Record the offsets of a follower's fetch that passed :func:`check_follower`.

        This may move the high watermark, and so wake producers and consumers.
        """
        leader = partition.check_leader()
        change = leader.on_fetched(
            node,
            offset=offset,
            log_start=log_start,
            now=self.now(),
            broker_epoch=broker_epoch,
        )
        if change is not None:
            self._completion.on_committed(partition, change)
        if partition.deletions:
            self._completion.on_low_watermark(partition)
        if self._replication is not None:
            self._replication.on_fetched(partition, node)

    def on_log_written(self, log: PartitionLog) -> None:
        """Complete waits after a slow directory has written the queued writes of a log."""
        partition = self.partitions.find(*log.partition)
        if partition is not None and partition.log is log:
            self._completion.on_stored(partition)
            self._syncs.start(partition)
            self._completion.on_bounds_changed(partition)
            if self._replication is not None:
                self._replication.on_written(partition)

    def on_log_moved(self, log: PartitionLog, moved: PartitionLog) -> None:
        """Continue with the copy that replaces a partition's log in another directory."""
        partition = self.partitions.find(*log.partition)
        if partition is not None and partition.log is log:
            partition.log = moved
            if partition.leader is not None:
                partition.leader.log = moved
            self.on_log_written(moved)

    async def locate(
        self, partition: Partition, timestamp: int, isolation: FetchIsolation
    ) -> OffsetLookupResult:
        """Return the offset for a timestamp, searching batches in slices if necessary."""
        self.check_lease()
        search = partition.search(timestamp)
        if search is None:
            return partition.locate(timestamp, isolation)
        epoch = partition.check_leader().leader_epoch
        try:
            record = await self.unpacker.search(search)
        except OSError as error:
            raise KafkaStorageError(str(error)) from error
        self._checked_leader(partition, epoch)
        return partition.locate(timestamp, isolation, record)

    def delete_before(self, partition: Partition, offset: int) -> int:
        """Delete records before ``offset`` for DeleteRecords; return the low watermark."""
        self.check_lease()
        before = partition.log.log_start
        start = partition.delete_before(offset)
        if start > before:
            self._completion.on_bounds_changed(partition)
        leader = partition.check_leader()
        return leader.low_watermark(start)

    async def wait_deleted(self, partition: Partition, start: int, timeout_s: float) -> int:
        """Wait until all replicas' logs begin at ``start`` or later; return their low watermark.

        Raises RequestTimedOut, or NotLeaderOrFollower if another broker leads meanwhile.
        """
        epoch = partition.leader_epoch
        leader = self._checked_leader(partition, epoch)
        if leader.low_watermark(partition.log.log_start) < start:
            deadline = self.now() + timeout_s
            if not await partition.deletions.wait_until(start, self._deadlines, deadline):
                raise RequestTimedOut
            leader = self._checked_leader(partition, epoch)
        return leader.low_watermark(partition.log.log_start)
