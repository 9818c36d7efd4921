"""The broker half of a node: partitions, groups, producer ids, the controller session."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.configs.broker import BrokerConfig
from kwire.configs.resource_types import TOPIC
from kwire.drive import Slices
from kwire.errors import KafkaStorageError, raise_for_code
from kwire.handlers.shared.client_quotas import ClientQuotas
from kwire.handlers.shared.context import BrokerServices
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.move_rules import MoveRules
from kwire.log.manager import (
    delete_unassigned,
    find_duplicates,
    retire_outdated,
    retire_strays,
)
from kwire.log.partition_log import PartitionLog
from kwire.node import build
from kwire.node.core import Core
from kwire.node.groups import NodeGroups
from kwire.node.replication import ClusterConnections
from kwire.node.share_states import NodeShareStates
from kwire.node.shares import NodeShares
from kwire.node.transactions import NodeTransactions
from kwire.raftmeta.broker.lifecycle import BrokerLifecycle
from kwire.raftmeta.controller.brokers import decide_on_broker
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.storage.levels import DIRECTORIES, METADATA_VERSION
from kwire.replica.coordinator_log import CoordinatorLog
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.fetcher.config import FetcherConfig
from kwire.replica.hosted_partitions import HostedPartitions
from kwire.replica.log_config import log_config
from kwire.replica.markers import Markers
from kwire.replica.partition import Partition
from kwire.replica.producer_ids import ProducerIds
from kwire.replica.replicas import ReplicaService
from kwire.replica.throttles import RateLimit, Throttles
from kwire.speedups import IMPLEMENTATION
from kwire.storage_format.directories import CannotOpenError
from kwire.types import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from kwire.codec.messages.assign_replicas_to_dirs import (
        AssignReplicasToDirsRequest,
        AssignReplicasToDirsResponse,
    )
    from kwire.node.directory_assignments import DirectoryAssignments
    from kwire.node.scrubbing import Scrubbing
    from kwire.telemetry.receiver import TelemetryReceiver

SESSION_EVICTION_S: Final = 120.0


def _checks_records(validation: str) -> bool:
    """Return whether records are checked; in pure Python only on request, because it is slow."""
    return validation == "records" or (validation == "auto" and IMPLEMENTATION == "c")


def _move_limit(config: BrokerConfig) -> RateLimit:
    """Return the limit on copying between log directories."""
    return RateLimit(
        config.replica_alter_log_dirs_io_max_bytes_per_second,
        config.alter_log_dirs_replication_quota_window_num,
        config.alter_log_dirs_replication_quota_window_size_seconds,
    )


def _client_quotas(config: BrokerConfig) -> ClientQuotas:
    return ClientQuotas(config.quota_window_num, config.quota_window_size_seconds)


def _make_telemetry(core: Core) -> "TelemetryReceiver | None":
    config = core.config
    if not config.kwire_client_metrics_max_series:
        return None
    from kwire.telemetry.receiver import TelemetryReceiver

    receiver = TelemetryReceiver(
        core.metrics,
        core.clock,
        core.random.randbytes,
        max_bytes=config.telemetry_max_bytes,
        max_series=config.kwire_client_metrics_max_series,
    )

    async def follow(delta: MetadataDelta) -> None:
        await receiver.subscriptions.follow(delta.configs, delta.after.config)

    core.publisher.add_applier(follow)
    return receiver


@attrs.define(eq=False, repr=False)
class BrokerHalf:
    """The broker half of one node; created before the node runs."""

    core: Core
    lifecycle: BrokerLifecycle = attrs.field(init=False)
    replicas: ReplicaService = attrs.field(init=False)
    groups: NodeGroups = attrs.field(init=False)
    transactions: NodeTransactions = attrs.field(init=False)
    share_states: NodeShareStates = attrs.field(init=False)
    shares: NodeShares = attrs.field(init=False)
    services: BrokerServices = attrs.field(init=False)
    """The parts that requests may use."""
    scrubbing: "Scrubbing | None" = attrs.field(init=False, default=None)
    """The scrub of the logs; None if it is off."""
    has_opened_logs: bool = False
    """True once the logs are open; logs that were never opened cannot count as cleanly closed."""
    _have_all_failed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _move_limit: RateLimit = attrs.field(init=False)
    """The limit of copies between log directories."""

    def __attrs_post_init__(self) -> None:
        core = self.core
        self._move_limit = _move_limit(core.config)
        self.lifecycle = self._make_lifecycle()
        self.replicas = self._make_replicas()
        log = CoordinatorLog(self.replicas, core.clock)
        self.share_states = NodeShareStates(core, log)
        self.groups = NodeGroups(core, log, self.share_states.persister)
        self.replicas.roles.subscribe(self.groups.on_role_changed)
        markers = Markers(
            replicas=self.replicas,
            end_group_transaction=self.groups.end_transaction,
            clock=core.clock,
            timeout_ms=lambda: core.current.config.request_timeout_ms,
        )
        producer_ids = ProducerIds(self._allocate_producer_ids)
        self.transactions = NodeTransactions(core, log, markers, producer_ids.take)
        self.replicas.roles.subscribe(self.transactions.on_role_changed)
        self.replicas.roles.subscribe(self.share_states.on_role_changed)
        self.shares = NodeShares(core, self.replicas, self.share_states.persister)
        self.replicas.roles.subscribe(self.shares.on_role_changed)
        self.services = BrokerServices(
            replicas=self.replicas,
            groups=self.groups.coordinator,
            producer_ids=producer_ids,
            markers=markers,
            verifier=self.transactions,
            transactions=self.transactions.coordinator,
            share_states=self.share_states.coordinator,
            client_quotas=_client_quotas(core.config),
            share=self.shares.service,
            telemetry=_make_telemetry(core),
        )
        self.scrubbing = self._make_scrubbing()
        core.publisher.add_applier(self.replicas.applier.apply)
        core.publisher.subscribe(self._on_image_published)

    def _make_replicas(self) -> ReplicaService:
        core, config = self.core, self.core.config
        slots = config.max_incremental_fetch_session_cache_slots
        quota_windows = (
            config.replication_quota_window_num,
            config.replication_quota_window_size_seconds,
        )
        replicas = ReplicaService(
            node=config.node_id,
            logs=core.logs,
            configs=self.log_config,
            now=core.clock.now,
            sessions=FetchSessions(
                slots, SESSION_EVICTION_S, lambda: core.random.randrange(1, 1 << 31)
            ),
            metrics=core.metrics,
            lag_max_s=config.replica_lag_time_max_ms / 1000,
            lag_max_messages=config.replica_lag_max_messages,
            checks_records=_checks_records(config.kwire_produce_validation),
            throttles=Throttles(
                RateLimit(config.leader_replication_throttled_rate, *quota_windows),
                RateLimit(config.follower_replication_throttled_rate, *quota_windows),
            ),
            cluster=self._make_connections(),
            lease=self.lifecycle.lease,
            fetcher_config=FetcherConfig(
                node=config.node_id,
                max_wait_ms=config.replica_fetch_wait_max_ms,
                min_bytes=config.replica_fetch_min_bytes,
                max_bytes=config.replica_fetch_response_max_bytes,
                partition_max_bytes=config.replica_fetch_max_bytes,
                backoff_s=config.replica_fetch_backoff_ms / 1000,
            ),
        )
        core.logs.subscribe(
            on_written=replicas.on_log_written,
            on_offline=self._on_directory_failed,
            on_deleted=replicas.partitions.on_log_deleted,
        )
        core.logs.moves.rules = MoveRules(
            throttle=self._move_limit,
            thread_count=config.num_replica_alter_log_dirs_threads,
            on_moved=replicas.on_log_moved,
        )
        return replicas

    def _make_scrubbing(self) -> "Scrubbing | None":
        core = self.core
        settings, make_checker = build.scrub_settings(core.config), core.make_checker
        if settings is None or make_checker is None:
            return None
        from kwire.node.scrubbing import make_scrubbing

        return make_scrubbing(core, self.replicas.partitions, settings, make_checker)

    def throttle(self, config: BrokerConfig) -> None:
        """Apply the settings that throttle replication."""
        throttles = self.replicas.throttles
        throttles.leader.bytes_per_s = config.leader_replication_throttled_rate
        throttles.follower.bytes_per_s = config.follower_replication_throttled_rate
        self._move_limit.bytes_per_s = config.replica_alter_log_dirs_io_max_bytes_per_second

    def _make_connections(self) -> ClusterConnections:
        core, config = self.core, self.core.config
        timeout_s = config.replica_socket_timeout_ms / 1000
        return ClusterConnections(
            config.inter_broker_listener,
            lambda: core.publisher.image,
            core.broker_pool(timeout_s),
            core.active_controller,
            core.clock,
            lambda: self.lifecycle.epoch,
        )

    def _on_directory_failed(self, directory: LogDirectory) -> None:
        self.replicas.partitions.on_directory_failed(directory)
        self.lifecycle.directory_failed(directory.directory_id)
        if not any(each.online for each in self.core.logs.directories):
            self._have_all_failed.set()

    async def _end_without_directories(self) -> None:
        """End the node when its last log directory fails: it can neither lead nor follow."""
        await self._have_all_failed.wait()
        failures = "; ".join(str(each.disk.failed) for each in self.core.logs.directories)
        raise KafkaStorageError(f"all log directories have failed: {failures}")

    def log_config(self, topic: str) -> LogConfig:
        """Return a topic's settings in the metadata that its partitions follow, no newer ones."""
        image = self.replicas.partitions.image or self.core.publisher.image
        return log_config(image.config(TOPIC, topic), self.core.current.config)

    def _make_lifecycle(self) -> BrokerLifecycle:
        core = self.core
        return BrokerLifecycle(
            config=core.config,
            cluster_id=core.identity.cluster_id,
            incarnation_id=core.incarnation_id,
            endpoints=core.broker_listeners,
            features=core.features,
            log_dirs=[
                directory.directory_id
                for directory in core.logs.directories
                if directory.directory_id != ZERO_UUID  # Offline, and unknown to the controller.
            ],
            publisher=core.publisher,
            ask=partial(core.active_controller.call, decide_on_broker),
            clock=core.clock,
            local=core.controller,
            is_gone=core.channel.is_gone,
            has_no_active=core.channel.has_no_active,
        )

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        from kwire.raftmeta.controller.producer_id_blocks import decide_allocate_producer_ids

        request = self.lifecycle.producer_ids()
        reply = await self.core.active_controller.call(decide_allocate_producer_ids, request)
        raise_for_code(reply.error_code)
        return reply.producer_id_start, reply.producer_id_len

    async def _assign_directories(
        self, request: "AssignReplicasToDirsRequest"
    ) -> "AssignReplicasToDirsResponse":
        from kwire.raftmeta.controller.partitions import decide_assign_directories

        return await self.core.active_controller.call(decide_assign_directories, request)

    def _on_image_published(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.deleted_topics:
            self.groups.on_topics_deleted({t.id: t.name for t in delta.deleted_topics.values()})
            self.share_states.on_topics_deleted()
        if self.core.config.node_id in delta.brokers or METADATA_VERSION in delta.features:
            self.lifecycle.on_image_published(image)

    async def start(self, nursery: trio.Nursery) -> None:
        """Open the logs, apply the metadata and join the cluster, so that clients can be served."""
        core = self.core
        await core.logs.open(self.log_config)
        self.has_opened_logs = True
        await retire_strays(core.logs, self._is_known)
        await delete_unassigned(core.logs, self._is_assigned)
        await retire_outdated(core.logs, self._assigned_directory)
        refuse_duplicates(core.logs.directories)
        nursery.start_soon(self._end_without_directories)
        await nursery.start(core.logs.run)
        if self.scrubbing is not None:
            nursery.start_soon(self.scrubbing.run)
        self.groups.nursery = self.transactions.nursery = nursery
        self.share_states.nursery = self.shares.nursery = nursery
        await nursery.start(self.replicas.run)
        self._report_directories(nursery)
        await nursery.start(core.publisher.run)
        await self.lifecycle.start(core.logs.previous_epoch)
        if core.controller.is_alone:
            await core.publisher.wait_applied(core.quorum.next_offset - 1)
        else:
            await core.publisher.wait_for(self._serves)
        self.groups.on_metadata_caught_up()
        self.share_states.on_metadata_caught_up()
        await nursery.start(self.lifecycle.run)

    def _report_directories(self, nursery: trio.Nursery) -> None:
        """Report to the controller which directory holds each partition.

        The modules for this are loaded with the first partition.
        """
        core = self.core
        moves = core.logs.moves

        @cache
        def assignments() -> "DirectoryAssignments":
            from kwire.node.directory_assignments import DirectoryAssignments

            reports = DirectoryAssignments(
                core.config.node_id,
                lambda: core.publisher.image,
                lambda partition: moves.directory_of(partition.log).directory_id,
                lambda: self.lifecycle.epoch,
                self._assign_directories,
            )
            nursery.start_soon(run, reports)
            return reports

        async def run(reports: "DirectoryAssignments") -> None:
            await self.lifecycle.wait_registered()
            await reports.run()

        def on_role_changed(partition: Partition) -> None:
            assignments().on_role_changed(partition)

        def on_log_unreachable(topic_id: bytes, index: int) -> None:
            assignments().on_log_unreachable(topic_id, index)

        async def wait_assigned(log: PartitionLog, directory: LogDirectory) -> None:
            reports, key = assignments(), (log.topic_id, log.partition.partition)
            reports.report(key, directory.directory_id)
            await core.publisher.wait_for(
                lambda image: not reports.is_missing(key, directory.directory_id)
            )

        def on_given_up(log: PartitionLog) -> None:
            partition = self.replicas.partitions.find(*log.partition)
            if partition is not None:
                assignments().on_role_changed(partition)
                return
            # The directory may have failed: then the controller must elect another leader, but the
            # metadata still name the target.
            directory_id = moves.directory_of(log).directory_id
            assignments().report((log.topic_id, log.partition.partition), directory_id)

        nursery.start_soon(
            _report_after_upgrade, core.publisher, self.replicas.partitions, on_role_changed
        )
        moves.rules.wait_assigned, moves.rules.on_given_up = wait_assigned, on_given_up
        self.replicas.roles.subscribe(on_role_changed)
        self.replicas.partitions.on_log_unreachable = on_log_unreachable

    def _serves(self, image: MetadataImage) -> bool:
        """Return whether the image has this incarnation of the broker, unfenced."""
        own = image.brokers.get(self.core.config.node_id)
        return own is not None and own.epoch == self.lifecycle.epoch and not own.fenced

    def _is_known(self, partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether the metadata has a partition that was found in a log directory."""
        topic = self.core.publisher.image.topic(partition.topic)
        return (
            topic is not None
            and topic_id in (topic.id, ZERO_UUID)
            and partition.partition in topic.partitions
        )

    def _is_assigned(self, partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether the metadata has a replica of the partition on this broker."""
        topic = self.core.publisher.image.topic(partition.topic)
        if topic is None or topic_id not in (topic.id, ZERO_UUID):
            return False
        return self.core.config.node_id in topic.partitions[partition.partition].replicas

    def _assigned_directory(self, partition: TopicPartition) -> bytes | None:
        """Return the id of the log directory that the metadata have for this broker's replica."""
        state = self.core.publisher.image.partition(*partition)
        return None if state is None else state.directory(self.core.config.node_id)


def _has_directories(image: MetadataImage) -> bool:
    """Return whether a metadata.version is known that names the directories of replicas."""
    return image.features.get(METADATA_VERSION, 0) >= DIRECTORIES


async def _report_after_upgrade(
    publisher: MetadataPublisher, hosted: HostedPartitions, report: Callable[[Partition], None]
) -> None:
    """Report all directories once an upgrade has made room for them in the metadata."""
    if _has_directories(publisher.image):
        return
    await publisher.wait_for(_has_directories)
    slices = Slices()
    for partition in list(hosted):
        if hosted.find_by_id(partition.topic_id, partition.partition) is partition:
            report(partition)
        await slices.pause()


def refuse_duplicates(directories: Sequence[LogDirectory]) -> None:
    """Raise CannotOpenError if a partition is in several directories."""
    for partition in find_duplicates(directories):
        paths = [each.name for each in directories if partition in each.logs]
        raise CannotOpenError(
            f"partition {partition} is in several log directories: {', '.join(paths)}; move "
            "all but one of its directories elsewhere (keep the one with the newest records)"
        )
