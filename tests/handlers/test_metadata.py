"""Metadata beyond what is compared with Kafka: creation on demand, ids, offline replicas."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages.metadata import MetadataRequest, MetadataResponse
from kwire.codec.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from kwire.handlers.metadata import metadata
from kwire.handlers.shared.context import Context
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.types import METADATA_TOPIC
from tests.support.handlers.admin_node import AdminNode, admin_node
from tests.support.handlers.services import services_of
from tests.support.raftmeta.clusters import CLUSTER, directory, node_config

RequestedTopic = MetadataRequest.MetadataRequestTopic


async def ask(node: AdminNode, *names: str, **more: Any) -> MetadataResponse:
    request = MetadataRequest(topics=[RequestedTopic(name=name) for name in names], **more)
    reply = await metadata(Context(services=node.services), request)
    assert isinstance(reply, MetadataResponse)
    return reply


async def test_unknown_topic_is_created_and_returned_at_once() -> None:
    async with admin_node(num_partitions="3") as node:
        topic = (await ask(node, "new")).topics[0]
        assert (topic.error_code, len(topic.partitions)) == (errors.NONE, 3)
        assert topic.partitions[0].leader_id == 1


async def test_topic_with_the_name_of_the_metadata_log_is_not_created() -> None:
    """Its first partition would have the directory of the metadata log."""
    async with admin_node() as node:
        topic = (await ask(node, METADATA_TOPIC)).topics[0]
        assert topic.error_code == errors.UnknownTopicOrPartition.code
        assert not node.publisher.image.topics


async def test_topic_that_is_named_twice_is_created_once() -> None:
    """A second topic of the name could not be deleted, and Kafka's nodes end if they read of it."""
    async with admin_node() as node:
        reply = await ask(node, "new", "new")
        assert [topic.error_code for topic in reply.topics] == [errors.NONE]
        image = node.publisher.image
        assert [topic.id for topic in image.topics.values()] == [reply.topics[0].topic_id]


@pytest.mark.parametrize(
    ("settings", "more", "name", "code"),
    [
        ({}, {"allow_auto_topic_creation": False}, "new", errors.UnknownTopicOrPartition.code),
        ({"auto_create_topics_enable": "false"}, {}, "new", errors.UnknownTopicOrPartition.code),
        ({}, {}, "a b", errors.InvalidTopicException.code),
        ({"default_replication_factor": "2"}, {}, "new", errors.UnknownTopicOrPartition.code),
    ],
)
async def test_topic_is_not_created(
    settings: dict[str, str], more: dict[str, Any], name: str, code: int
) -> None:
    async with admin_node(**settings) as node:
        assert (await ask(node, name, **more)).topics[0].error_code == code
        assert not node.publisher.image.topics


async def test_topic_stays_unknown_while_the_only_broker_shuts_down() -> None:
    """Java's consumer would end with any other error; after this one it asks again."""
    async with admin_node() as node:
        await node.broker.stop()
        assert (await ask(node, "new")).topics[0].error_code == errors.UnknownTopicOrPartition.code


async def test_topics_beyond_the_limit_of_creations_are_unknown() -> None:
    async with admin_node(num_partitions="6000") as node:
        reply = await ask(node, "one", "two")
        unknown = errors.UnknownTopicOrPartition.code
        assert [topic.error_code for topic in reply.topics] == [unknown, unknown]
        assert reply.brokers


async def test_internal_topic_is_created_in_its_own_shape() -> None:
    async with admin_node(offsets_topic_num_partitions="5") as node:
        topic = (await ask(node, "__consumer_offsets")).topics[0]
        assert (topic.is_internal, len(topic.partitions)) == (True, 5)
        topic_config = node.publisher.image.config(2, "__consumer_offsets")
        assert topic_config["cleanup.policy"] == "compact"


async def test_topic_is_returned_by_id() -> None:
    """Invariant 106."""
    async with admin_node() as node:
        topic_id = (await ask(node, "t")).topics[0].topic_id
        request = MetadataRequest(
            topics=[RequestedTopic(name=None, topic_id=id_) for id_ in (topic_id, b"x" * 16)]
        )
        reply = await metadata(Context(services=node.services), request)
        assert reply is not None
        topic, unknown = reply.topics
        assert (topic.name, topic.error_code) == ("t", errors.NONE)
        assert (unknown.name, unknown.error_code) == (None, errors.UnknownTopicId.code)


def cluster_of_three() -> MetadataImage:
    """Return an image of brokers 1 to 3: 2 is fenced, 3 has no address on the clients' listener."""
    endpoint = RegisterBrokerRecord.BrokerEndpoint
    records: list[Any] = [
        RegisterBrokerRecord(
            broker_id=number,
            incarnation_id=b"i" * 16,
            broker_epoch=number,
            rack=None,
            log_dirs=[directory(number)],
            end_points=[endpoint(name=name, host=f"h{number}", port=9, security_protocol=0)],
        )
        for number, name in ((1, "PLAINTEXT"), (2, "PLAINTEXT"), (3, "OTHER"))
    ]
    records += [
        BrokerRegistrationChangeRecord(broker_id=number, broker_epoch=number, fenced=-1)
        for number in (1, 3)
    ]
    records.append(TopicRecord(name="t", topic_id=b"t" * 16))
    placed = [([1, 2, 3], 1), ([3, 1], 3), ([2], -1), ([1], 1)]
    records += [
        PartitionRecord(
            topic_id=b"t" * 16,
            partition_id=number,
            replicas=replicas,
            isr=replicas,
            leader=leader,
            leader_epoch=number,
            directories=[directory(broker if number < 3 else 9) for broker in replicas],
        )
        for number, (replicas, leader) in enumerate(placed)
    ]
    return apply(MetadataImage(), records)[0]


async def test_response_has_leaders_and_offline_replicas() -> None:
    services = services_of(config=node_config(), image=cluster_of_three(), cluster_id=CLUSTER)
    reply = await metadata(Context(services=services), MetadataRequest(topics=None))
    assert reply is not None
    assert [broker.node_id for broker in reply.brokers] == [1]
    assert reply.controller_id == 1
    partitions = [
        (p.error_code, p.leader_id, p.leader_epoch, p.offline_replicas)
        for p in reply.topics[0].partitions
    ]
    assert partitions == [
        (errors.NONE, 1, 0, [2, 3]),
        (errors.ListenerNotFound.code, -1, 1, [3]),
        (errors.LeaderNotAvailable.code, -1, 2, [2]),
        (errors.NONE, 1, 3, [1]),  # its directory has failed
    ]


async def test_node_without_unfenced_brokers_returns_itself() -> None:
    """A stopping node names itself: librdkafka without any broker retries only after long."""
    fencings = [
        BrokerRegistrationChangeRecord(broker_id=number, broker_epoch=number, fenced=1)
        for number in (1, 3)
    ]
    image = apply(cluster_of_three(), fencings)[0]
    services = services_of(config=node_config(), image=image, cluster_id=CLUSTER)
    reply = await metadata(Context(services=services), MetadataRequest(topics=None))
    assert reply is not None
    assert [(broker.node_id, broker.host) for broker in reply.brokers] == [(1, "h1")]
