"""The invariants of replication that a simulation checks all the time.

Rules: a check looks at the controller's image and at the logs of living brokers alone; it visits
what is new since the last look, or all of a log that was truncated meanwhile.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from kwire import attrs
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.replica.partition import Partition
from kwire.simulation.replication.broker import SimReplicaBroker
from kwire.simulation.replication.contents import Content, Contents, Decoded


def demand(condition: bool, text: str) -> None:
    """Raise AssertionError unless an invariant holds."""
    if not condition:
        raise AssertionError(text)


@attrs.define(eq=False)
class ReplicationChecks:
    """The records that producers were promised, and checks that the replicas have them."""

    brokers: Mapping[int, SimReplicaBroker]
    acknowledged: dict[int, Content]
    """The records of each partition that acks=all acknowledged, in the order of the answers."""
    contents: Contents = attrs.field(factory=Contents)
    _watermarks: dict[tuple[int, int, int, int], int] = attrs.field(factory=dict)
    """The high watermark by broker, life, partition and leader epoch."""
    _complete: dict[tuple[int, int], tuple[int, int]] = attrs.field(factory=dict)
    """By broker and partition: the generation of a log, and the number of records it had."""
    _equal: dict[tuple[int, int, int], tuple[int, int, int]] = attrs.field(factory=dict)
    """By partition and two brokers: their logs' generations, and the end up to which they agree."""

    def living(self, topic: str, index: int) -> Iterator[tuple[SimReplicaBroker, Partition]]:
        for broker in self.brokers.values():
            partition = broker.partition(topic, index)
            if partition is not None:
                yield broker, partition

    def check(self, topic: str, index: int, committed: PartitionImage) -> None:
        """Check one partition: invariants 14, 21, 22, 23 and 24."""
        logs: list[tuple[int, int, Decoded]] = []
        leaders: dict[int, int] = {}
        for broker, partition in self.living(topic, index):
            log = partition.log
            if broker.id not in committed.replicas:
                continue  # Its removal is on the way.
            logs.append((broker.id, log.high_watermark, self.contents.of(broker.id, index, log)))
            if partition.leader is not None:
                self._check_leader(broker, partition, index, leaders)
        for node, _, decoded in logs:
            if node in (*committed.isr, *committed.elr):
                self._check_complete(index, node, decoded)
        for place, (node, watermark, own) in enumerate(logs):
            for other, other_watermark, theirs in logs[:place]:
                end = min(watermark, other_watermark)
                self._check_equal(index, (node, own), (other, theirs), end)

    def _check_leader(
        self, broker: SimReplicaBroker, partition: Partition, index: int, leaders: dict[int, int]
    ) -> None:
        """Check that an epoch has one leader, and that its high watermark only grows."""
        assert partition.leader is not None
        epoch, watermark = partition.leader.leader_epoch, partition.high_watermark
        demand(epoch not in leaders, f"two leaders in epoch {epoch}")
        leaders[epoch] = broker.id
        key = broker.id, broker.lives, index, epoch
        before = self._watermarks.get(key, 0)
        demand(watermark >= before, f"high watermark of {broker.id} moved back")
        self._watermarks[key] = watermark

    def _check_complete(self, index: int, node: int, decoded: Decoded) -> None:
        """Check that an in-sync or eligible replica has all that was acknowledged."""
        generation, count = self._complete.get((node, index), (-1, 0))
        acknowledged = self.acknowledged[index]
        first = count if generation == decoded.generation else 0
        for offset, record in islice(acknowledged.items(), first, None):
            demand(
                decoded.content.get(offset) == record,
                f"partition {index}: {node} is in sync or eligible and has "
                f"{decoded.content.get(offset)} at {offset}, acknowledged was {record}",
            )
        self._complete[node, index] = decoded.generation, len(acknowledged)

    def _check_equal(
        self, index: int, first: tuple[int, Decoded], second: tuple[int, Decoded], end: int
    ) -> None:
        """Check that two replicas are equal below both high watermarks."""
        (node, own), (other, theirs) = first, second
        generations = own.generation, theirs.generation
        before = self._equal.get((index, node, other), (-1, -1, 0))
        checked_end = before[2] if before[:2] == generations else 0
        for offset in range(checked_end, end):
            demand(
                own.content.get(offset) == theirs.content.get(offset),
                f"partition {index} offset {offset} below both high watermarks: {node} has "
                f"{own.content.get(offset)}, {other} has {theirs.content.get(offset)}",
            )
        self._equal[index, node, other] = *generations, max(checked_end, end)
