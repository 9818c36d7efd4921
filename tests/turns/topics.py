"""Requests about 10,000 topics, from their creation to their deletion."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from kwire.codec.messages.alter_configs import AlterConfigsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.describe_configs import DescribeConfigsRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.list_config_resources import ListConfigResourcesRequest
from kwire.configs.resource_types import TOPIC
from tests.support.turns.meter import TurnMeter
from tests.support.turns.node import MeteredNode, metered_node
from tests.support.turns.table import Scene

ALL: Final = 10_000
AT_ONCE: Final = 1_000
"""The topics that are created, or whose settings change, in one measured request."""
MOST_AT_ONCE: Final = 4_500
"""The topics of one request: two records each, and a request may write 10,000."""
NAMES: Final = [f"topic-{number}" for number in range(ALL)]


@asynccontextmanager
async def node_of_topics(meter: TurnMeter) -> AsyncIterator[MeteredNode]:
    async with metered_node(meter) as node:
        await node.call(create_request(["first"]))  # Imports the modules of all settings.
        yield node


TOPICS: Final = Scene("requests about topics", node_of_topics)
row = TOPICS.operation


def create_request(names: list[str]) -> CreateTopicsRequest:
    shape = CreateTopicsRequest.CreatableTopic
    topics = [shape(name=name, num_partitions=1, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=60_000)


@row("CreateTopics", "topics", AT_ONCE, "CreateTopics")
async def create(node: MeteredNode, size: int) -> None:
    (answer,) = await node.measure(create_request(NAMES[:size]))
    assert not any(topic.error_code for topic in answer.topics)
    with node.meter.measuring():
        await trio.sleep(30)
    for start in range(size, ALL, MOST_AT_ONCE):
        answer = await node.call(create_request(NAMES[start : start + MOST_AT_ONCE]))
        assert not any(topic.error_code for topic in answer.topics)
    await trio.sleep(30)


@row("IncrementalAlterConfigs", "topics", AT_ONCE, "IncrementalAlterConfigs", after="CreateTopics")
async def alter(node: MeteredNode, size: int) -> None:
    shape = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = shape.AlterableConfig(name="retention.ms", config_operation=0, value="1000000")
    resources = [
        shape(resource_type=TOPIC, resource_name=name, configs=[config]) for name in NAMES[:size]
    ]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    (answer,) = await node.measure(request)
    assert not any(response.error_code for response in answer.responses)
    with node.meter.measuring():
        await trio.sleep(5)


@row("AlterConfigs", "topics", AT_ONCE, "AlterConfigs", after="CreateTopics")
async def replace(node: MeteredNode, size: int) -> None:
    shape = AlterConfigsRequest.AlterConfigsResource
    config = shape.AlterableConfig(name="retention.ms", value="2000000")
    resources = [
        shape(resource_type=TOPIC, resource_name=name, configs=[config]) for name in NAMES[:size]
    ]
    request = AlterConfigsRequest(resources=resources, validate_only=False)
    (answer,) = await node.measure(request)
    assert not any(response.error_code for response in answer.responses)
    with node.meter.measuring():
        await trio.sleep(5)


@row("DescribeConfigs", "topics", ALL, "DescribeConfigs", after="CreateTopics")
async def describe(node: MeteredNode, size: int) -> None:
    shape = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        shape(resource_type=TOPIC, resource_name=name, configuration_keys=["retention.ms"])
        for name in NAMES
    ]
    await node.measure(DescribeConfigsRequest(resources=resources))


@row("ListConfigResources", "topics", ALL, "ListConfigResources", after="CreateTopics")
async def list_resources(node: MeteredNode, size: int) -> None:
    await node.measure(ListConfigResourcesRequest(resource_types=[TOPIC]))


@row("DeleteTopics", "topics", ALL, "DeleteTopics", after="CreateTopics")
async def delete(node: MeteredNode, size: int) -> None:
    shape = DeleteTopicsRequest.DeleteTopicState
    topics = [shape(name=name) for name in NAMES]
    (answer,) = await node.measure(DeleteTopicsRequest(topics=topics, timeout_ms=60_000))
    assert not any(topic.error_code for topic in answer.responses)
    with node.meter.measuring():
        await trio.sleep(120)
