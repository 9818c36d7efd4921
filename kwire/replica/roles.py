"""This broker's role in each of its partitions, as the metadata assigns it.

This module sets up a partition's leader and passes changed settings to it. When the role changes,
all waits of the partition end, so that their requests check the role again. A leader that continues
in the next epoch keeps its producers' waits: its log is the same, and clients that got an error
would send their records again. Such an epoch begins, for example, when a reassignment has removed a
replica.
"""

from collections.abc import Callable

import attrs

from kwire.log.config import LogConfig
from kwire.replica.completion import Completion
from kwire.replica.leader import PartitionLeader, brokers
from kwire.replica.partition import Partition
from kwire.replica.ports import PartitionState
from kwire.replica.required_syncs import RequiredSyncs
from kwire.types import NO_LEADER


@attrs.define(eq=False, repr=False)
class Roles:
    """Assigns roles to partitions; reports each change to the subscribers."""

    node: int
    lag_max_s: float
    now: Callable[[], float]
    completion: Completion
    syncs: RequiredSyncs
    is_eligible: Callable[[int, int], bool]
    """Returns whether a broker, with the broker epoch of its last fetch, may be in an ISR."""
    lag_max_messages: int | None = None
    _listeners: list[Callable[[Partition], None]] = attrs.field(factory=list)

    def subscribe(self, listener: Callable[[Partition], None]) -> None:
        """Call ``listener`` for every partition that gained or lost its role here."""
        self._listeners.append(listener)

    def update(self, partition: Partition, state: PartitionState) -> None:
        """Lead or follow according to the metadata; raises KafkaStorageError.

        A leader in the same epoch continues with the replicas and the ISR of the metadata.
        """
        if state.leader != self.node:
            if partition.leader is not None or partition.leader_epoch != state.leader_epoch:
                self._follow(partition, state.leader, state.leader_epoch)
            return
        leader = partition.leader
        if leader is None or leader.leader_epoch != state.leader_epoch:
            self._lead(partition, state)
            return
        leader.on_replicas_changed(state.replicas)
        leader.elr = brokers(tuple(state.elr))
        self.completion.on_replicas_changed(partition)
        change = leader.on_isr_committed(state.isr, state.partition_epoch, self.now())
        if change is not None:
            self.completion.on_committed(partition, change)
        self.completion.on_low_watermark(partition)

    def end(self, partition: Partition) -> None:
        """End this broker's role in a partition that is removed or whose directory failed."""
        self._follow(partition, NO_LEADER, partition.leader_epoch)

    def configure(self, partition: Partition, config: LogConfig) -> None:
        """Apply changed settings, but no lower min.insync.replicas (:meth:`lower_minimum`)."""
        partition.configure(config)
        leader = partition.leader
        if leader is not None:
            self.syncs.start(partition)
            self.completion.on_stored(partition)
            change = leader.advance(self.now())
            if change is not None:
                self.completion.on_committed(partition, change)

    def lower_minimum(self, partition: Partition) -> None:
        """Let a leader commit by a lower min.insync.replicas."""
        leader, minimum = partition.leader, partition.config.min_insync_replicas
        if leader is not None and leader.min_isr > minimum:
            leader.min_isr = minimum
            change = leader.advance(self.now())
            if change is not None:
                self.completion.on_committed(partition, change)

    def _lead(self, partition: Partition, state: PartitionState) -> None:
        now, former = self.now(), partition.leader
        if former is not None and former.leader_epoch != state.leader_epoch - 1:
            former = None  # Another broker may have led in between.
        leader = PartitionLeader.take_over(
            node=self.node,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=state.replicas,
            isr=state.isr,
            log=partition.log,
            log_end=partition.log.end_offset,
            min_isr=partition.config.min_insync_replicas,
            now=now,
            lag_max=self.lag_max_s,
            lag_max_messages=self.lag_max_messages,
            is_eligible=self.is_eligible,
            former=former,
        )
        leader.elr = brokers(tuple(state.elr))
        partition.lead(leader, now)
        self._on_changed(partition, leads_on=former is not None)
        self.syncs.start(partition)

    def _follow(self, partition: Partition, leader: int, leader_epoch: int) -> None:
        partition.follow(leader, leader_epoch)
        self._on_changed(partition)

    def _on_changed(self, partition: Partition, *, leads_on: bool = False) -> None:
        self.completion.on_role_changed(partition, leads_on=leads_on)
        for listener in self._listeners:
            listener(partition)
