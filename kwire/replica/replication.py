"""Replication of partitions, started with the first partition that has several replicas.

Until then, modules that only replication needs are not loaded and its tasks do not run, because
most brokers run alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from kwire.types import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kwire.log.manager import LogManager
    from kwire.replica.completion import Completion
    from kwire.replica.fetcher.config import FetcherConfig
    from kwire.replica.fetcher.fetchers import ReplicaFetchers
    from kwire.replica.isr_changes import IsrChanges
    from kwire.replica.partition import Partition
    from kwire.replica.ports import OtherBrokers
    from kwire.replica.throttles import Throttles


@attrs.define(eq=False, repr=False)
class Replication:
    """The ISR changes of partitions that this broker leads, and fetchers for the others."""

    cluster: OtherBrokers
    config: FetcherConfig
    logs: LogManager
    completion: Completion
    now: Callable[[], float]
    lag_max_s: float
    on_copied: Callable[[Partition], None]
    """Called when a follower's log or high watermark has moved."""
    throttles: Throttles
    isr_changes: IsrChanges | None = attrs.field(init=False, default=None)
    fetchers: ReplicaFetchers | None = attrs.field(init=False, default=None)
    _nursery: trio.Nursery | None = attrs.field(init=False, default=None)

    def on_role_changed(self, partition: Partition) -> None:
        """Copy the partition from its leader or, as the leader, admit followers to the ISR."""
        if self.fetchers is None and self._has_other_replicas(partition):
            self._begin()
        if self.isr_changes is not None and self.fetchers is not None:
            self.isr_changes.on_role_changed(partition)
            self.fetchers.on_role_changed(partition)

    def on_fetched(self, partition: Partition, node: int) -> None:
        """Check whether a follower that has just fetched may join the ISR."""
        if self.isr_changes is None:
            self._begin()
        if self.isr_changes is not None:
            self.isr_changes.on_fetched(partition, node)

    def on_brokers_changed(self, brokers: Iterable[int]) -> None:
        """React to brokers that were fenced, restarted or shut down."""
        if self.isr_changes is not None:
            self.isr_changes.on_brokers_changed(brokers)

    def on_written(self, partition: Partition) -> None:
        """Resume fetching a partition after a slow disk has written its batches."""
        if self.fetchers is not None:
            self.fetchers.on_written(partition)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Copy partitions until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._start()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _has_other_replicas(self, partition: Partition) -> bool:
        if partition.leader is not None:
            return bool(partition.leader.followers)
        return partition.leader_id not in (NO_LEADER, self.config.node)

    def _begin(self) -> None:
        from kwire.replica.fetcher.fetchers import ReplicaFetchers
        from kwire.replica.isr_changes import IsrChanges

        cluster = self.cluster
        self.isr_changes = IsrChanges(
            self.config.node,
            cluster.broker_epoch,
            cluster.alter_partition,
            self.completion,
            self.now,
            self.lag_max_s,
        )
        self.fetchers = ReplicaFetchers(
            self.config,
            self.logs,
            cluster.connect,
            cluster.broker_epoch,
            self.now,
            cluster.now_ms,
            self.on_copied,
            self.throttles.follower,
        )
        self._start()

    def _start(self) -> None:
        if self._nursery is not None and self.fetchers is not None and self.isr_changes is not None:
            self._nursery.start_soon(self.isr_changes.run)
            self._nursery.start_soon(self.fetchers.run)
