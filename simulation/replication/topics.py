"""The topics of the simulated cluster: one for producers, and the coordinators' internal topics."""

from typing import Final

from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.types import CONSUMER_OFFSETS, TRANSACTION_STATE
from simulation.replication.checks import TOPIC
from simulation.replication.clients import SimClient
from simulation.replication.history import demand
from simulation.replication.links import host_of
from simulation.replication.settings import (
    GROUP_PARTITIONS,
    NODES,
    REPLICAS,
    TRANSACTION_PARTITIONS,
)

_CONFIGS: Final = {
    "min.insync.replicas": "2",
    "internal.segment.bytes": "2000",
    "flush.ms": "1500",
    "retention.ms": "-1",
}
Creatable = CreateTopicsRequest.CreatableTopic


async def create_topics(client: SimClient) -> None:
    """Create all topics, with replicas chosen at random."""
    counts = {
        TOPIC: client.world.partition_count,
        CONSUMER_OFFSETS: GROUP_PARTITIONS,
        TRANSACTION_STATE: TRANSACTION_PARTITIONS,
    }
    await create(client, [_topic(client, name, count) for name, count in counts.items()])


async def create(client: SimClient, topics: list[Creatable]) -> None:
    request = CreateTopicsRequest(topics=topics, timeout_ms=5_000)
    answer = await client.pool.call(host_of(NODES[0]), 9092, request)
    demand(not any(topic.error_code for topic in answer.topics), f"creation of topics: {answer}")


def _topic(client: SimClient, name: str, count: int) -> Creatable:
    return creatable(client, name, count, "delete" if name == TOPIC else "compact")


def creatable(client: SimClient, name: str, count: int, policy: str) -> Creatable:
    """Return a topic whose replicas are chosen at random."""
    assignment = Creatable.CreatableReplicaAssignment
    return Creatable(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            assignment(partition_index=index, broker_ids=client.random.sample(NODES, REPLICAS))
            for index in range(count)
        ],
        configs=[
            Creatable.CreatableTopicConfig(name=setting, value=value)
            for setting, value in {**_CONFIGS, "cleanup.policy": policy}.items()
        ],
    )
