"""The parts that staged faults share: the cluster, and an operator's requests."""

from collections.abc import Sequence
from random import Random
from typing import Final

import attrs
import trio

from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.records.build import New, batch
from simulation.replication.checks import TOPIC, ReplicationChecks
from simulation.replication.clients import (
    BEFORE_TOPIC_IDS,
    TIME_MS,
    VALUE_BYTES,
    SimClient,
    World,
)
from simulation.replication.metadata_checks import Books

_ADMIN: Final = -950
BROKER: Final = "PLAINTEXT"
"""The listener of brokers."""
PREFERRED: Final = 0
UNCLEAN: Final = 1
_PREPARED_S: Final = 10.0
"""The time in which a staged fault's partition must be in sync; otherwise the fault is skipped."""


@attrs.define(eq=False)
class Scene:
    """The cluster in which a staged fault is played."""

    world: World
    books: Books
    random: Random
    checks: ReplicationChecks
    _count: int = 0
    """The number of records produced so far."""

    async def prepare(self, nursery: trio.Nursery, topic: str, index: int) -> list[int]:
        """Return the leader and its followers once all are in sync; an empty list if they fail."""
        self.world.wire.calm()
        for machine in self.world.machines.values():
            machine.start(nursery)
        deadline = trio.current_time() + _PREPARED_S
        while trio.current_time() < deadline:
            await trio.sleep(0.1)
            state = self.books.image.partition(topic, index)
            if state is None or state.is_reassigning or set(state.isr) != set(state.replicas):
                continue
            machines = [self.world.machines[node] for node in state.replicas]
            if state.leader >= 0 and all(m.is_serving and not m.is_paused for m in machines):
                followers = [node for node in state.replicas if node != state.leader]
                self.random.shuffle(followers)
                return [state.leader, *followers]
        return []

    def client(self) -> SimClient:
        return SimClient(_ADMIN, self.world, self.random)

    def state(self, index: int) -> PartitionImage:
        state = self.books.image.partition(TOPIC, index)
        assert state is not None
        return state

    async def produce(self, node: int, index: int, count: int) -> None:
        """Let a leader append records, acknowledged without waiting for followers.

        It must not acknowledge them while it is fenced (invariant 34).
        """
        topic = ProduceRequest.TopicProduceData
        for _ in range(count):
            self._count += 1
            value = (b"late-%d" % self._count).ljust(VALUE_BYTES)
            data = batch([New(None, value)], timestamp_ms=TIME_MS)
            partition = topic.PartitionProduceData(index=index, records=data)
            request = ProduceRequest(
                acks=1,
                timeout_ms=1_000,
                topic_data=[topic(name=TOPIC, partition_data=[partition])],
            )
            client = self.client()
            answer = await client.call(node, request, version=BEFORE_TOPIC_IDS)
            if answer is not None and not answer.responses[0].partition_responses[0].error_code:
                client.demand_unfenced()

    async def reassign(
        self, node: int, index: int, replicas: Sequence[int], *, topic: str = TOPIC
    ) -> None:
        each = AlterPartitionReassignmentsRequest.ReassignableTopic
        partition = each.ReassignablePartition(partition_index=index, replicas=list(replicas))
        request = AlterPartitionReassignmentsRequest(
            topics=[each(name=topic, partitions=[partition])], timeout_ms=3_000
        )
        await self.client().call(node, request)

    async def elect_leader(self, node: int, topic: str, index: int, kind: int) -> None:
        request = ElectLeadersRequest(
            election_type=kind,
            topic_partitions=[ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[index])],
            timeout_ms=3_000,
        )
        await self.client().call(node, request)
