"""The fetchers of a broker: one task for each leader from which it copies partitions.

While this broker follows a partition, the fetcher of its leader copies it. No fetcher has a
partition that this broker leads or that has no leader. A fetcher without partitions ends.
"""

from collections.abc import Callable

import attrs
import trio

from kwire.log.manager import LogManager
from kwire.replica.fetcher.config import FetcherConfig
from kwire.replica.fetcher.leader_fetcher import LeaderFetcher
from kwire.replica.partition import Partition
from kwire.replica.ports import LeaderBroker
from kwire.replica.throttles import RateLimit
from kwire.types import NO_LEADER


@attrs.define(eq=False, repr=False)
class ReplicaFetchers:
    """All fetchers of one broker."""

    config: FetcherConfig
    logs: LogManager
    connect: Callable[[int], LeaderBroker]
    """Returns the connection to a broker; the first call on it connects."""
    broker_epoch: Callable[[], int]
    """Returns the broker epoch for fetches, by which the leader recognizes a restart."""
    now: Callable[[], float]
    now_ms: Callable[[], int]
    on_copied: Callable[[Partition], None]
    throttle: RateLimit
    """The limit on the bytes that this broker fetches for throttled replicas."""
    _fetchers: dict[int, LeaderFetcher] = attrs.field(factory=dict)
    _leaders: dict[Partition, int] = attrs.field(factory=dict)
    """The leader from which each partition is fetched."""
    _scopes: dict[int, trio.CancelScope] = attrs.field(factory=dict)
    _nursery: trio.Nursery | None = None

    def on_role_changed(self, partition: Partition) -> None:
        """Fetch a partition from its current leader, or stop if this broker does not follow it."""
        former = self._leaders.pop(partition, NO_LEADER)
        leader = NO_LEADER if partition.leader is not None else partition.leader_id
        if former != NO_LEADER:
            self._fetchers[former].remove(partition)
        if leader not in (NO_LEADER, self.config.node):
            self._leaders[partition] = leader
            self._fetcher(leader).add(partition)
        if former not in (NO_LEADER, leader) and not self._fetchers[former]:
            self._end(former)

    def on_written(self, partition: Partition) -> None:
        """Resume fetching a partition after a slow disk has written its batches."""
        leader = self._leaders.get(partition)
        if leader is not None:
            self._fetchers[leader].on_written(partition)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for leader in self._fetchers:
                self._start(leader)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _fetcher(self, leader: int) -> LeaderFetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = LeaderFetcher(
                self.config,
                self.connect(leader),
                self.logs,
                self.broker_epoch,
                self.now,
                self.now_ms,
                self.on_copied,
                self.throttle,
            )
            self._start(leader)
        return fetcher

    def _start(self, leader: int) -> None:
        if self._nursery is not None and leader not in self._scopes:
            scope = self._scopes[leader] = trio.CancelScope()
            self._nursery.start_soon(self._run_fetcher, self._fetchers[leader], scope)

    def _end(self, leader: int) -> None:
        fetcher = self._fetchers.pop(leader)
        fetcher.leader.drop()
        scope = self._scopes.pop(leader, None)
        if scope is not None:
            scope.cancel()

    async def _run_fetcher(self, fetcher: LeaderFetcher, scope: trio.CancelScope) -> None:
        with scope:
            await fetcher.run()
