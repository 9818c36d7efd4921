"""librdkafka's admin client."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat_tests.confluent_kafka.clients import (
    admin,
    consumer,
    create,
    deliver,
    poll,
    producer,
)
from compat_tests.harness.wait import collect, eventually


@pytest.fixture
def client(broker):
    return admin(broker.address)


def code(future):
    with pytest.raises(KafkaException) as caught:
        future.result(30)
    return caught.value.args[0].name()


def names(client):
    return set(client.list_topics(timeout=30).topics)


def test_topics(client, topic):
    new = NewTopic(topic, 3, 1, config={"retention.ms": "123456"})
    client.create_topics([new])[topic].result(30)
    assert code(client.create_topics([new])[topic]) == "TOPIC_ALREADY_EXISTS"
    assert len(client.list_topics(topic, timeout=30).topics[topic].partitions) == 3
    client.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    eventually(
        lambda: len(client.list_topics(topic, timeout=30).topics[topic].partitions) == 5, "five"
    )
    shrunk = client.create_partitions([NewPartitions(topic, 2)])[topic]
    assert code(shrunk) == "INVALID_PARTITIONS"
    client.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in names(client), "the topic is gone")
    assert code(client.delete_topics([topic])[topic]) == "UNKNOWN_TOPIC_OR_PART"


def test_validate_only_and_invalid(client, topic):
    client.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(30)
    assert topic not in names(client)
    assert code(client.create_topics([NewTopic("a b", 1, 1)])["a b"]) == "TOPIC_EXCEPTION"
    assert (
        code(client.create_topics([NewTopic(topic, 1, 9)])[topic]) == "INVALID_REPLICATION_FACTOR"
    )


def test_describe_topics(client, topic):
    from confluent_kafka import TopicCollection

    create_and_describe = client.create_topics([NewTopic(topic, 2, 1)])
    create_and_describe[topic].result(30)
    description = client.describe_topics(TopicCollection([topic]))[topic].result(30)
    assert [p.id for p in description.partitions] == [0, 1]
    assert len(str(description.topic_id)) > 10


def test_incremental_configs(broker_kind, client, topic):
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)

    def value(name):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (future,) = client.describe_configs([resource]).values()
        return future.result(30)[name].value

    def change(name, operation, text, *expected):
        entry = ConfigEntry(name, text, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        (future,) = client.incremental_alter_configs([resource]).values()
        future.result(30)
        if broker_kind == "kafka":  # A broker answers before it has applied the change.
            eventually(lambda: value(name) in expected, "the change is applied")
        assert value(name) in expected

    change("retention.ms", AlterConfigOpType.SET, "777", "777")
    change(
        "cleanup.policy", AlterConfigOpType.APPEND, "compact", "delete,compact", "compact,delete"
    )
    change("cleanup.policy", AlterConfigOpType.SUBTRACT, "delete", "compact")
    change("retention.ms", AlterConfigOpType.DELETE, None, "604800000")
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        change("retention.ms", AlterConfigOpType.SET, "soon")


def test_cluster_and_broker(broker, client):
    cluster = client.describe_cluster().result(30)
    assert len(cluster.cluster_id) == 22
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == broker.address
    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    (future,) = client.describe_configs([resource]).values()
    assert future.result(30)["num.partitions"].value == "4"


def test_list_offsets_and_delete_records(broker, client, topic):
    create(broker.address, topic, retention_ms="-1")
    messages = [{"topic": topic, "value": b"x", "timestamp": 1000 + n % 7} for n in range(10)]
    deliver(producer(broker.address), messages)

    def ask(spec):
        partition = TopicPartition(topic, 0)
        return client.list_offsets({partition: spec})[partition].result(30).offset

    assert (ask(OffsetSpec.earliest()), ask(OffsetSpec.latest())) == (0, 10)
    assert ask(OffsetSpec.max_timestamp()) == 6
    assert ask(OffsetSpec.for_timestamp(1004)) == 4
    (future,) = client.delete_records([TopicPartition(topic, 0, 6)]).values()
    assert future.result(30).low_watermark == 6
    assert (ask(OffsetSpec.earliest()), ask(OffsetSpec.latest())) == (6, 10)


def test_groups(broker, client, topic, group):
    create(broker.address, topic, 2)
    deliver(producer(broker.address), [{"topic": topic, "value": b"x", "partition": 0}] * 5)
    with consumer(broker.address, group) as reader:
        reader.subscribe([topic])
        collect(lambda: poll(reader), 5)
        reader.commit(asynchronous=False)
        description = client.describe_consumer_groups([group])[group].result(30)
        assert description.state.name == "STABLE"
        assert description.partition_assignor == "range"
        (member,) = description.members
        assert len(member.assignment.topic_partitions) == 2
        assert code(client.delete_consumer_groups([group])[group]) == "NON_EMPTY_GROUP"
    listed = client.list_consumer_groups().result(30)
    assert listed.errors == []
    assert group in {group_listing.group_id for group_listing in listed.valid}

    def offsets():
        request = ConsumerGroupTopicPartitions(group)
        answer = client.list_consumer_group_offsets([request])[group].result(30)
        return {p.partition: p.offset for p in answer.topic_partitions}

    assert offsets() == {0: 5}
    change = ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 0)]
    )
    client.alter_consumer_group_offsets([change])[group].result(30)
    assert offsets() == {0: 2, 1: 0}
    client.delete_consumer_groups([group])[group].result(30)
    assert code(client.delete_consumer_groups([group])[group]) == "GROUP_ID_NOT_FOUND"
