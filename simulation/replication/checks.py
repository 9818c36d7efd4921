"""The invariants of replication that a simulation checks all the time.

Rules: a check uses only the controller's image and the logs of running brokers. It reads what was
added to a log since the last check, or the whole log if it was truncated since.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import attrs

from kwire.raftmeta.metadata.image import PartitionImage
from kwire.replica.partition import Partition
from simulation.replication.contents import Contents, Decoded
from simulation.replication.history import History, demand
from simulation.replication.node import SimMachine

TOPIC: Final = "t"
"""The topic of the producers."""


@attrs.define(eq=False)
class ReplicationChecks:
    """The acknowledged records, and checks that the replicas have them."""

    brokers: Mapping[int, SimMachine]
    history: History
    contents: Contents = attrs.field(factory=Contents)
    emptied: set[int] = attrs.field(factory=set)
    """The brokers that were restarted with an empty disk."""
    _watermarks: dict[tuple[int, int, int, int], int] = attrs.field(factory=dict)
    """The high watermark by broker, number of its process, partition and leader epoch."""
    _complete: dict[tuple[int, int], tuple[int, int]] = attrs.field(factory=dict)
    """By broker and partition: the generation of the log, and the number of its records."""
    _equal: dict[tuple[int, int, int], tuple[int, int, int]] = attrs.field(factory=dict)
    """By partition and two brokers: the generations of both logs, which are equal up to the end."""

    def living(self, topic: str, index: int) -> Iterator[tuple[SimMachine, Partition]]:
        for broker in self.brokers.values():
            partition = broker.partition(topic, index)
            if partition is not None:
                yield broker, partition

    def check(self, topic: str, index: int, committed: PartitionImage) -> None:
        """Check one partition: invariants 13, 14, 21, 22, 23, 24, 29 and 39."""
        logs: list[tuple[int, int, Decoded]] = []
        leaders: dict[int, int] = {}
        for broker, partition in self.living(topic, index):
            log = partition.log
            if broker.id not in committed.replicas:
                continue  # The replica will be removed.
            # A power loss can undo a truncation but keep the high watermark stored after it; the
            # replica serves no consumer before its leader has confirmed its log.
            watermark = log.high_watermark if partition.is_confirmed else 0
            logs.append((broker.id, watermark, self.contents.of(broker.id, topic, index, log)))
            if partition.leader is not None:
                self._check_leader(broker, partition, index, leaders)
        for node, _, decoded in logs:
            if not self.brokers[node].is_registered:
                continue  # Registering after a power loss removes the broker from the ISR.
            if node in self.emptied and committed.leader < 0:
                continue  # It may be the last member of the ISR, but it must not lead.
            if node in (*committed.isr, *committed.elr):
                self._check_start(index, node, decoded)
                self._check_complete(index, node, decoded)
        for place, (node, watermark, own) in enumerate(logs):
            for other, other_watermark, theirs in logs[:place]:
                end = min(watermark, other_watermark)
                self._check_equal(index, (node, own), (other, theirs), end)

    def _check_leader(
        self, broker: SimMachine, partition: Partition, index: int, leaders: dict[int, int]
    ) -> None:
        """Check that an epoch has one leader, whose high watermark never decreases."""
        assert partition.leader is not None
        epoch, watermark = partition.leader.leader_epoch, partition.high_watermark
        demand(epoch not in leaders, f"two leaders in epoch {epoch}")
        leaders[epoch] = broker.id
        self._check_offsets(broker, partition, index)
        key = broker.id, broker.lives, index, epoch
        before = self._watermarks.get(key, 0)
        demand(watermark >= before, f"high watermark of {broker.id} moved back")
        self._watermarks[key] = watermark

    def _check_offsets(self, broker: SimMachine, partition: Partition, index: int) -> None:
        """Check the order of a leader's start, last stable, high watermark and end offsets."""
        log, watermark = partition.log, partition.high_watermark
        stable = partition.last_stable_offset
        where = f"partition {index} on {broker.id}"
        demand(
            log.log_start <= stable <= watermark <= log.end_offset,
            f"{where}: start {log.log_start}, last stable {stable}, high watermark {watermark}, "
            f"end {log.end_offset}",
        )

    def _check_start(self, index: int, node: int, decoded: Decoded) -> None:
        """Check that an in-sync or eligible replica does not have deleted records."""
        log_start, deleted_end = decoded.log_start, self.history.deleted_end[index]
        demand(
            log_start >= deleted_end,
            f"partition {index}: {node} begins at {log_start}; records below {deleted_end} are "
            "deleted",
        )

    def _check_complete(self, index: int, node: int, decoded: Decoded) -> None:
        """Check that an in-sync or eligible replica has all acknowledged records."""
        history = self.history
        log_start, delete_end = decoded.log_start, history.delete_end[index]
        demand(
            log_start <= delete_end,
            f"partition {index}: {node} begins at {log_start}; nothing from {delete_end} on is "
            "deleted",
        )
        generation, count = self._complete.get((node, index), (-1, 0))
        acknowledged = history.acknowledged[index]
        first = count if generation == decoded.generation else 0
        for offset, value in islice(acknowledged.items(), first, None):
            _, content = decoded.content.get(offset, (-1, None))
            demand(
                content == value or offset < log_start,
                f"partition {index}: {node} is in sync or eligible and has "
                f"{content!r} at {offset}, acknowledged was {value!r}",
            )
        self._complete[node, index] = decoded.generation, len(acknowledged)

    def has_all(self, node: int, topic: str, index: int) -> bool:
        """Return whether a running broker has all acknowledged records of a partition.

        Records of internal topics are not tracked; their logs must reach all high watermarks.
        """
        partition = self.brokers[node].partition(topic, index)
        if partition is None:
            return False
        if topic != TOPIC:
            ends = [copy.log.high_watermark for _, copy in self.living(topic, index)]
            return partition.log.end_offset >= max(ends)
        content = self.contents.of(node, topic, index, partition.log).content
        log_start = partition.log.log_start
        return all(
            offset in content or offset < log_start for offset in self.history.acknowledged[index]
        )

    def open_partitions(self) -> list[str]:
        """Return the partitions whose leader's last stable offset is below its log end."""
        return [
            f"{partition.topic}-{partition.partition} on {machine.id}"
            for machine in self.brokers.values()
            for partition in machine.partitions()
            if partition.leader is not None
            and partition.last_stable_offset != partition.log.end_offset
        ]

    def _check_equal(
        self, index: int, first: tuple[int, Decoded], second: tuple[int, Decoded], end: int
    ) -> None:
        """Check that two replicas are equal below both high watermarks."""
        (node, own), (other, theirs) = first, second
        generations = own.generation, theirs.generation
        before = self._equal.get((index, node, other), (-1, -1, 0))
        checked_end = before[2] if before[:2] == generations else 0
        for offset in range(max(checked_end, own.log_start, theirs.log_start), end):
            demand(
                own.content.get(offset) == theirs.content.get(offset),
                f"partition {index} offset {offset} below both high watermarks: {node} has "
                f"{own.content.get(offset)}, {other} has {theirs.content.get(offset)}",
            )
        self._equal[index, node, other] = *generations, max(checked_end, end)
