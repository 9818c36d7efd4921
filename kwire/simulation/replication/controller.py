"""The controller of the replication's simulation: the product's decisions on one state."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

import trio

from kwire import attrs
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.configs.load import broker_config
from kwire.raftmeta.controller.brokers import decide_fence_stale
from kwire.raftmeta.controller.features import SUPPORTED, cluster_min_isr
from kwire.raftmeta.controller.leader_updates import decide_leader_updates
from kwire.raftmeta.controller.partitions import decide_reassign
from kwire.raftmeta.controller.state import ELR, ControllerState, Decision
from kwire.raftmeta.metadata.image import Applied, MetadataImage
from kwire.storage_format.format import feature_records
from kwire.waits import Signal

Q = TypeVar("Q")
R = TypeVar("R")
Decide = Callable[[ControllerState, Q, float], Decision[R]]

CLUSTER_ID: Final = "sim"
SESSION_MS: Final = 3000
SETTINGS: Final = {
    "process.roles": "controller",
    "node.id": "100",
    "controller.quorum.voters": "100@localhost:9093",
    "listeners": "CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "broker.session.timeout.ms": str(SESSION_MS),
    "min.insync.replicas": "2",
    "log.dirs": "data",
}


@attrs.define(eq=False)
class SimController:
    """One controller that never fails: the quorum has simulations of its own."""

    random: Random
    has_elr: bool = False
    batches: list[Sequence[MetadataRecord]] = attrs.field(factory=list)
    """The records of each decision, in order."""
    state: ControllerState = attrs.field(init=False)
    cluster_id: str = CLUSTER_ID
    _changed: Signal = attrs.field(factory=Signal)
    _ends: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.state = ControllerState(
            config=broker_config(SETTINGS),
            random=self.random,
            cluster_id=CLUSTER_ID,
            supported_features=dict(SUPPORTED),
        )
        levels = {"metadata.version": 30, ELR: int(self.has_elr)}
        self._write([*feature_records(levels), cluster_min_isr(self.state)])

    @property
    def image(self) -> MetadataImage:
        return self.state.image

    @property
    def version(self) -> int:
        """The number of decisions that wrote records."""
        return len(self.batches)

    def decide(self, decide: Decide[Q, R], request: Q) -> R:
        """Decide, write the records and return the reply; raises KafkaError."""
        while True:
            decision = decide(self.state, request, trio.current_time())
            self._write(decision.records)
            if not decision.again:
                return decision.reply

    def _write(self, records: Sequence[MetadataRecord]) -> None:
        if records:
            last = self.state.next_offset + len(records) - 1
            self.state.apply(records, Applied(last, 1, 0))
            self.batches.append(tuple(records))
            self._ends.append(last)
            self._changed.notify()

    def offset_of(self, version: int) -> int:
        """Return the offset of the last record of the first ``version`` decisions."""
        return self._ends[version - 1] if version else -1

    def records_after(self, version: int) -> list[Sequence[MetadataRecord]]:
        """Return the decisions after the first ``version``."""
        return self.batches[version:]

    async def wait_records(self, version: int) -> list[Sequence[MetadataRecord]]:
        """Wait until there are more than ``version`` decisions."""
        while self.version <= version:
            await self._changed.wait()
        return self.records_after(version)

    async def wait_image(self, condition: Callable[[MetadataImage], bool]) -> None:
        """Wait until the image meets a condition."""
        while not condition(self.image):
            await self._changed.wait()

    def create_topic(self, name: str, replicas: Sequence[Sequence[int]]) -> bytes:
        """Create a topic with these replicas for its partitions, all of them in sync."""
        topic_id = self.state.new_id()
        records: list[MetadataRecord] = [r.TopicRecord(name=name, topic_id=topic_id)]
        records += [
            r.PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=list(nodes),
                isr=list(nodes),
                leader=nodes[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=[b"d" * 15 + bytes([node]) for node in nodes],
            )
            for index, nodes in enumerate(replicas)
        ]
        self._write(records)
        return topic_id

    def reassign(self, name: str, index: int, replicas: list[int] | None) -> None:
        """Move a partition; None cancels a move. What is not possible is refused."""
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic
        partition = topic.ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[topic(name=name, partitions=[partition])]
        )
        self.decide(decide_reassign, request)

    async def run(self) -> None:
        """Fence brokers whose sessions end, and continue large changes, until cancelled."""
        while True:
            await trio.sleep(0.1)
            self.decide(decide_fence_stale, None)
            while self.state.leader_update_queue:
                self.decide(decide_leader_updates, None)
