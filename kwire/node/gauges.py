"""The gauges of a node: numbers that other modules track anyway, read when metrics are requested.

Loaded only with ``--metrics-port``. Every function iterates once over the items that it counts and
creates none: a partition that does not exist yet has no numbers. The page may pause between the
items where there can be thousands (:data:`kwire.metrics.Labelled`), so that they may change.
"""

import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from operator import add
from typing import TYPE_CHECKING

import attrs

from kwire import __version__
from kwire import metrics as m
from kwire.clock import Clock
from kwire.group.counts import GroupCounts
from kwire.group.offsets import Committed
from kwire.group.shard import GroupShard
from kwire.log.cleaner import LogCleaner
from kwire.log.disk import Space
from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from kwire.node.broker import BrokerHalf
from kwire.node.core import Core
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.raftmeta.raft.raft_metrics import (
    STATES,
    is_changing_voters,
    observer_count,
    state_name,
    vote,
)
from kwire.replica.leader import PartitionLeader
from kwire.replica.replicas import ReplicaService

if TYPE_CHECKING:
    from kwire.log.scrubber import LogScrubber
    from kwire.node.scrubbing import Scrubbing


def add_gauges(core: Core, broker: BrokerHalf | None) -> GroupCounts:
    """Register gauges so that the node's metrics include every declared metric.

    The numbers of groups are those of the returned counts, which the caller updates.
    """
    metrics = core.metrics
    counts = GroupCounts(tuple if broker is None else broker.groups.machines)
    metrics.register_function(m.BUILD_INFO, lambda: 1, __version__, platform.python_version())
    _add_controller_gauges(metrics, core)
    _add_quorum_gauges(metrics, core)
    if broker is not None:
        _add_broker_gauges(metrics, core, broker.replicas)
        _add_directory_gauges(metrics, core)
        add_cleaner_gauges(metrics, core.logs)
        add_scrub_gauges(metrics, broker.scrubbing)
        add_group_gauges(metrics, broker.replicas, broker.groups.machines)
        _add_share_gauges(metrics, core, broker)
        _add_count_gauges(metrics, counts)
    metrics.declare(value for value in vars(m).values() if isinstance(value, m.Metric))
    return counts


def _add_broker_gauges(metrics: m.Metrics, core: Core, replicas: ReplicaService) -> None:
    def count_leaders(metric: m.Metric, counts: Callable[[PartitionLeader], bool]) -> None:
        def values() -> Iterator[bool]:
            for partition in list(replicas.partitions):
                yield partition.leader is not None and counts(partition.leader)

        metrics.register_label_function(metric, lambda: _fold(values()))

    def under_replicated() -> Iterator[bool]:
        for partition in list(replicas.partitions):
            state = None
            if partition.leader is not None:
                state = core.publisher.image.partition(partition.topic, partition.partition)
            yield state is not None and state.is_under_replicated

    def sizes() -> Iterator[tuple[tuple[str, ...], float]]:
        for partition in list(replicas.partitions):
            yield (partition.topic, str(partition.partition)), partition.log.segments.size

    def high_watermarks() -> Iterator[tuple[tuple[str, ...], float] | None]:
        for partition in list(replicas.partitions):
            if partition.leader is None:
                yield None
            else:
                yield (partition.topic, str(partition.partition)), partition.high_watermark

    metrics.register_function(m.PARTITIONS, lambda: len(replicas.partitions))
    count_leaders(m.LEADERS, lambda leader: True)
    metrics.register_label_function(m.UNDER_REPLICATED, lambda: _fold(under_replicated()))
    count_leaders(m.UNDER_MIN_ISR, lambda leader: leader.under_min_isr)
    count_leaders(m.AT_MIN_ISR, lambda leader: len(leader.isr) == leader.effective_min_isr)
    metrics.register_function(m.OFFLINE_REPLICAS, lambda: replicas.partitions.offline_count)
    metrics.register_function(m.FETCH_SESSIONS, lambda: len(replicas.sessions))
    metrics.register_function(
        m.OFFLINE_DIRECTORIES, lambda: core.logs.statistics()["offline_directories"]
    )
    metrics.register_function(
        m.FULL_DIRECTORIES, lambda: core.logs.statistics()["full_directories"]
    )
    metrics.register_label_function(m.LOG_SIZE, sizes)
    metrics.register_label_function(m.HIGH_WATERMARKS, high_watermarks)


def _add_directory_gauges(metrics: m.Metrics, core: Core) -> None:
    def spaces() -> Iterator[tuple[str, Space]]:
        for directory in core.logs.directories:
            with suppress(OSError):  # The directory may have failed.
                yield directory.name, directory.disk.space()

    metrics.register_label_function(
        m.DIRECTORY_FREE, lambda: (((name,), s.usable) for name, s in spaces())
    )
    metrics.register_label_function(
        m.DIRECTORY_TOTAL, lambda: (((name,), s.total) for name, s in spaces())
    )


def add_cleaner_gauges(metrics: m.Metrics, logs: LogManager) -> None:
    """Show the state of compaction; without a compacted log, the values are zero."""

    def register(metric: m.Metric, read: Callable[[LogCleaner], float]) -> None:
        metrics.register_function(metric, lambda: 0 if logs.cleaner is None else read(logs.cleaner))

    def register_largest(metric: m.Metric, read: Callable[[LogCleaner], Iterable[int]]) -> None:
        def values() -> Iterable[int]:
            return () if logs.cleaner is None else read(logs.cleaner)

        metrics.register_label_function(metric, lambda: _fold(values(), max))

    def uncleanable() -> Iterator[tuple[tuple[str], list[PartitionLog]]]:
        for directory, uncleanable_logs in (
            () if logs.cleaner is None else logs.cleaner.uncleanable()
        ):
            yield (directory.name,), uncleanable_logs

    def uncleanable_bytes() -> Iterator[tuple[tuple[str], float]]:
        for label, uncleanable_logs in uncleanable():
            assert logs.cleaner is not None
            yield label, logs.cleaner.uncleanable_bytes(uncleanable_logs)

    metrics.register_label_function(
        m.UNCLEANABLE_PARTITIONS, lambda: ((label, len(many)) for label, many in uncleanable())
    )
    metrics.register_label_function(m.UNCLEANABLE_BYTES, uncleanable_bytes)
    register_largest(m.MAX_DIRTY_PERCENT, lambda cleaner: cleaner.dirty_percents())
    register(m.CLEANER_SINCE_LAST_RUN, lambda cleaner: cleaner.since_last_run_ms)
    register_largest(m.MAX_COMPACTION_DELAY, lambda cleaner: cleaner.delays_s())
    register(m.CLEANER_RECOPY_PERCENT, lambda cleaner: cleaner.recopy_percent)
    register(m.CLEANER_BUFFER_PERCENT, lambda cleaner: cleaner.max_map_percent)
    register(m.CLEANER_MAX_TIME, lambda cleaner: cleaner.max_clean_s)
    register(m.CLEANER_DEAD_THREADS, lambda cleaner: cleaner.dead_count)


def add_scrub_gauges(metrics: m.Metrics, scrubbing: "Scrubbing | None") -> None:
    """Show the state of the scrub; without one, the values are zero."""

    def register(metric: m.Metric, read: Callable[["LogScrubber"], float]) -> None:
        metrics.register_function(
            metric, lambda: 0 if scrubbing is None else read(scrubbing.scrubber)
        )

    def last_passes() -> Iterator[tuple[tuple[str], float]]:
        for scrub in () if scrubbing is None else scrubbing.scrubber.scrubs:
            yield (scrub.directory.name,), scrub.last_pass_ms

    register(m.SCRUB_BYTES, lambda scrubber: scrubber.byte_count)
    register(m.DAMAGED_SEGMENTS, lambda scrubber: scrubber.damage_counts()[0])
    register(m.DAMAGED_RANGES, lambda scrubber: scrubber.damage_counts()[1])
    register(m.RESTORED_RANGES, lambda scrubber: scrubber.restored_count)
    register(m.WRONG_INDEXES, lambda scrubber: scrubber.index_counts()[0])
    register(m.REBUILT_INDEXES, lambda scrubber: scrubber.index_counts()[1])
    metrics.register_label_function(m.SCRUB_LAST_PASS, last_passes)


def add_group_gauges(
    metrics: m.Metrics, replicas: ReplicaService, machines: Callable[[], Iterable[GroupShard]]
) -> None:
    """Show the offsets of the groups that this node coordinates, and their lag where it leads.

    A node does not ask other nodes for the end of a partition: the partition's leader shows it
    (:data:`~kwire.metrics.HIGH_WATERMARKS`).
    """

    def offsets() -> Iterator[tuple[tuple[str, str, str], float]]:
        """Yield labels and committed offsets; groups may change meanwhile."""
        for machine in machines():
            for group in machine.offsets.groups():
                for topic, partitions in list(machine.offsets.of(group).items()):
                    for number, packed in list(partitions.items()):
                        yield (group, topic, str(number)), Committed.unpack(packed).offset

    metrics.register_label_function(m.GROUP_OFFSET, offsets)
    metrics.register_label_function(m.GROUP_LAG, lambda: _lags(replicas, offsets()))


def _add_count_gauges(metrics: m.Metrics, counts: GroupCounts) -> None:
    metrics.register_label_function(m.GROUP_COUNT, counts.by_kind)
    for metric, kind in (
        (m.CLASSIC_GROUPS, "classic"),
        (m.CONSUMER_GROUPS, "consumer"),
        (m.SHARE_GROUPS, "share"),
        (m.STREAMS_GROUPS, "streams"),
    ):
        metrics.register_label_function(metric, partial(counts.by_state, kind))


def _lags(
    replicas: ReplicaService, offsets: Iterable[tuple[tuple[str, str, str], float] | None]
) -> Iterator[tuple[tuple[str, ...], float] | None]:
    """Yield the lag of each offset that is in a partition led by this node, None of others.

    A node may coordinate a million offsets and lead few of their partitions.
    """
    for each in offsets:
        lag = None
        if each is not None:
            labels, offset = each
            partition = replicas.partitions.find(labels[1], int(labels[2]))
            if partition is not None and partition.leader is not None:
                lag = labels, max(0, partition.high_watermark - offset)
        yield lag


def _add_share_gauges(metrics: m.Metrics, core: Core, broker: BrokerHalf) -> None:
    shares = broker.shares

    def offsets() -> Iterator[tuple[tuple[str, str, str], float] | None]:
        """Yield labels and offsets of stored states; states may change meanwhile."""
        for machine in broker.share_states.machines():
            for of, state in list(machine.states.items()):
                topic = core.publisher.image.topics.get(of.topic_id)
                # Until members have fetched, a group has no start; older releases stored no count.
                if topic is None or min(state.start_offset, state.delivery_complete_count) < 0:
                    yield None
                    continue
                labels = (of.group_id, topic.name, str(of.partition))
                yield labels, state.start_offset + state.delivery_complete_count

    def in_flight() -> Iterator[tuple[tuple[str, str, str], float]]:
        for led in list(shares.partitions()):
            labels = (led.key.group_id, led.partition.topic, str(led.key.partition))
            yield labels, led.in_flight.in_flight_count

    metrics.register_function(m.SHARE_SESSIONS, shares.session_count)
    metrics.register_label_function(m.SHARE_IN_FLIGHT, in_flight)
    metrics.register_label_function(m.SHARE_OFFSET, offsets)
    metrics.register_label_function(m.SHARE_LAG, lambda: _lags(broker.replicas, offsets()))


def _add_controller_gauges(metrics: m.Metrics, core: Core) -> None:
    """Add the gauges of a controller, active or not; without that role, only "active"."""
    metrics.register_function(m.ACTIVE_CONTROLLER, lambda: float(core.controller.is_active))
    if not core.config.is_controller:
        return

    def brokers(fenced: bool) -> int:
        return _count(b for b in core.publisher.image.brokers.values() if b.fenced is fenced)

    def count_partitions(metric: m.Metric, counts: Callable[[PartitionImage], bool]) -> None:
        def values() -> Iterator[bool]:
            topics = core.publisher.image.topics.values()
            return (counts(state) for topic in topics for state in topic.partitions.values())

        metrics.register_label_function(metric, lambda: _fold(values()))

    metrics.register_function(m.ACTIVE_BROKERS, lambda: brokers(fenced=False))
    metrics.register_function(m.FENCED_BROKERS, lambda: brokers(fenced=True))
    metrics.register_function(m.TOPICS, lambda: len(core.publisher.image.topics))
    metrics.register_function(
        m.ALL_PARTITIONS,
        lambda: sum(len(topic.partitions) for topic in core.publisher.image.topics.values()),
    )
    count_partitions(m.LEADERLESS, lambda partition: partition.leader < 0)
    count_partitions(
        m.NOT_PREFERRED, lambda partition: partition.leader != partition.preferred_leader
    )
    metrics.register_function(m.LAST_COMMITTED, lambda: core.quorum.high_watermark - 1)


def _add_quorum_gauges(metrics: m.Metrics, core: Core) -> None:
    state = core.quorum.state

    def states() -> Iterator[tuple[tuple[str, ...], float]]:
        current = state_name(state)
        return (((name,), float(name == current)) for name in STATES)

    def watermark() -> int:
        return -1 if state.high_watermark is None else state.high_watermark

    metrics.register_label_function(m.RAFT_STATE, states)
    metrics.register_function(
        m.RAFT_LEADER, lambda: -1 if state.leader_id is None else state.leader_id
    )
    metrics.register_function(m.RAFT_VOTE, lambda: vote(state))
    metrics.register_function(m.RAFT_EPOCH, lambda: state.epoch)
    metrics.register_function(m.RAFT_HIGH_WATERMARK, watermark)
    metrics.register_function(m.RAFT_LOG_END, lambda: state.log.end_offset)
    metrics.register_function(m.RAFT_LOG_END_EPOCH, lambda: state.log.last_epoch)
    metrics.register_function(m.RAFT_VOTERS, lambda: len(state.voters.ids))
    metrics.register_function(m.RAFT_OBSERVERS, lambda: observer_count(state))
    metrics.register_function(m.RAFT_VOTER_CHANGE, lambda: float(is_changing_voters(state)))
    metrics.register_function(m.LAST_APPLIED, lambda: core.publisher.image.applied.offset)
    metrics.register_function(m.LAST_APPLIED_AT, lambda: core.publisher.image.applied.timestamp_ms)
    core.quorum.add_leadership_listener(Elections(core.clock, metrics.histogram(m.RAFT_ELECTIONS)))


@attrs.define(eq=False, repr=False)
class Elections:
    """Measures how long the node has not known of a quorum leader."""

    _clock: Clock
    _spread: m.Histogram
    _since: float | None = None

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        now = self._clock.now()
        if leader.leader_id is None:
            self._since = now if self._since is None else self._since
        elif self._since is not None:
            self._spread.observe(now - self._since)
            self._since = None


def _count(items: Iterable[object]) -> int:
    return sum(1 for _ in items)


def _fold(
    values: Iterable[float], combine: Callable[[float, float], float] = add
) -> Iterator[tuple[tuple[str, ...], float] | None]:
    """Yield None for each of thousands of values, then their sum, or another fold with 0."""
    total = 0.0
    for value in values:
        total = combine(total, value)
        yield None
    yield (), total
