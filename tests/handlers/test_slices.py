"""Large responses are made in slices, and other clients are served in between."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from kwire.codec.messages.describe_configs import DescribeConfigsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.metadata_records import PartitionRecord, TopicRecord
from kwire.handlers.describe_configs import describe_configs
from kwire.handlers.metadata import metadata
from kwire.handlers.shared.context import Context
from kwire.raftmeta.metadata.image_change import apply
from tests.support.handlers.admin_node import admin_node

TOPICS = 10
PARTITIONS = 4_000


class SlowClock:
    """A clock on which a millisecond passes between two readings."""

    def __init__(self) -> None:
        self.readings = 0

    def now(self) -> float:
        self.readings += 1
        return self.readings / 1000

    def now_ms(self) -> int:
        return 0


def everything() -> list[Any]:
    """Return the records of ten topics of 4,000 partitions."""
    records: list[Any] = []
    for number in range(TOPICS):
        topic_id = number.to_bytes(16, "big")
        records.append(TopicRecord(name=f"topic-{number}", topic_id=topic_id))
        records += [
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=[1],
                isr=[1],
                removing_replicas=[],
                adding_replicas=[],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            )
            for index in range(PARTITIONS)
        ]
    return records


RESOURCES = [
    DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=f"topic-{number}", configuration_keys=None
    )
    for number in range(TOPICS)
]


@pytest.mark.parametrize(
    ("handler", "request_", "turns_min"),
    [
        (metadata, MetadataRequest(topics=None), 50),
        (
            metadata,
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="topic-1")]),
            3,
        ),
        (describe_configs, DescribeConfigsRequest(resources=RESOURCES), 2),
    ],
    ids=["metadata-of-all-topics", "metadata-of-a-large-topic", "configs-of-all-topics"],
)
async def test_other_tasks_run_during_a_large_response(
    handler: Callable[[Context, Any], Awaitable[Any]], request_: Any, turns_min: int
) -> None:
    async with admin_node() as node:
        current = node.services.current
        current.image, _ = apply(current.image, everything())
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        services = attrs.evolve(node.services, clock=SlowClock())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            answer = await handler(Context(services=services), request_)
            nursery.cancel_scope.cancel()
        assert answer is not None
        assert turns >= turns_min
