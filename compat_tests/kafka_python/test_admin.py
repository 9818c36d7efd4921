"""kafka-python's admin client: every call has its documented effect or result."""

from __future__ import annotations

import uuid

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from compat_tests.harness.wait import collect, eventually
from compat_tests.harness.wire import connect
from compat_tests.kafka_python.clients import admin, consumer, create, fill, poll
from kwire.codec.messages.alter_configs import AlterConfigsRequest


@pytest.fixture
def client(broker):
    with admin(broker.address) as admin_client:
        yield admin_client


def test_create_describe_delete(client, topic):
    client.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}})
    assert topic in client.list_topics()
    (described,) = client.describe_topics([topic])
    assert described["error_code"] == 0
    partitions = sorted(described["partitions"], key=lambda p: p["partition_index"])
    assert [p["partition_index"] for p in partitions] == [0, 1, 2]
    assert all(len(p["replica_nodes"]) == 1 and p["leader_id"] >= 0 for p in partitions)
    client.delete_topics([topic])
    eventually(lambda: topic not in client.list_topics(), "the topic is gone")
    with pytest.raises(UnknownTopicOrPartitionError):
        client.delete_topics([topic])


def test_a_recreated_topic_is_empty_and_has_a_new_id(broker, client, topic):
    create(broker.address, topic)
    fill(broker.address, topic, [b"old"])
    before = client.describe_topics([topic])[0]["topic_id"]
    client.delete_topics([topic])
    eventually(lambda: topic not in client.list_topics(), "the topic is gone")
    create(broker.address, topic)
    assert client.describe_topics([topic])[0]["topic_id"] != before
    fill(broker.address, topic, [b"new"])
    with consumer(broker.address, topic) as reader:
        assert [(r.offset, r.value) for r in collect(lambda: poll(reader), 1)] == [(0, b"new")]


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("bad/name", {"num_partitions": 1}, InvalidTopicError),
        ("..", {"num_partitions": 1}, InvalidTopicError),
        ("x" * 250, {"num_partitions": 1}, InvalidTopicError),
        ("zero-partitions", {"num_partitions": 0}, InvalidPartitionsError),
        (
            "three-replicas",
            {"num_partitions": 1, "replication_factor": 3},
            InvalidReplicationFactorError,
        ),
    ],
)
def test_invalid_topics_are_refused(client, name, options, error):
    with pytest.raises(error):
        client.create_topics({name: options})
    assert name not in client.list_topics()


def test_create_twice(client, topic):
    client.create_topics({topic: {"num_partitions": 1}})
    with pytest.raises(TopicAlreadyExistsError):
        client.create_topics({topic: {"num_partitions": 1}})


def test_validate_only_creates_nothing(client, topic):
    client.create_topics({topic: {"num_partitions": 1}}, validate_only=True)
    assert topic not in client.list_topics()


def test_bad_topic_config_is_refused(client, topic):
    with pytest.raises(Exception, match="InvalidConfig"):
        client.create_topics({topic: {"num_partitions": 1, "configs": {"retention.ms": "soon"}}})
    with pytest.raises(Exception, match="InvalidConfig"):
        client.create_topics({topic: {"num_partitions": 1, "configs": {"no.such.key": "1"}}})
    assert topic not in client.list_topics()


def test_add_partitions(client, topic):
    client.create_topics({topic: {"num_partitions": 1}})
    client.create_partitions({topic: 3})
    assert len(client.describe_topics([topic])[0]["partitions"]) == 3
    with pytest.raises(InvalidPartitionsError):
        client.create_partitions({topic: 2})


def config_of(client, kind, name):
    resource = ConfigResource(kind, name)
    described = client.describe_configs([resource], config_filter="all")
    (by_name,) = described.values()
    return by_name[name]


def test_topic_configs_set_and_reset(client, topic):
    client.create_topics({topic: {"num_partitions": 1, "configs": {"retention.ms": "1234567"}}})
    before = config_of(client, ConfigResourceType.TOPIC, topic)
    assert before["retention.ms"]["value"] == "1234567"
    assert before["cleanup.policy"]["value"] == "delete"
    resource = ConfigResource(
        ConfigResourceType.TOPIC, topic, {"retention.ms": "7654321", "max.message.bytes": "2000"}
    )
    client.alter_configs([resource])
    after = config_of(client, ConfigResourceType.TOPIC, topic)
    assert after["retention.ms"]["value"] == "7654321"
    assert after["max.message.bytes"]["value"] == "2000"
    client.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["retention.ms"])])
    reset = config_of(client, ConfigResourceType.TOPIC, topic)
    assert reset["retention.ms"]["value"] == "604800000"
    assert reset["max.message.bytes"]["value"] == "2000"


def test_incremental_append_and_subtract(client, topic):
    client.create_topics({topic: {"num_partitions": 1}})

    def change(operation, value):
        configs = {"cleanup.policy": (operation, value)}
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
        return config_of(client, ConfigResourceType.TOPIC, topic)["cleanup.policy"]["value"]

    assert set(change("APPEND", "compact").split(",")) == {"delete", "compact"}
    assert change("SUBTRACT", "delete") == "compact"


def test_a_changed_config_takes_effect(broker, client, topic):
    create(broker.address, topic)
    fill(broker.address, topic, [b"x" * 5000])
    configs = {"max.message.bytes": "1000"}
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])

    def is_refused():
        try:
            fill(broker.address, topic, [b"x" * 5000])
        except Exception as error:
            return "MessageSizeTooLarge" in str(type(error)) + str(error)
        return False

    eventually(is_refused, "the smaller limit")


def test_broker_configs_are_described(broker, client):
    node = client.describe_cluster()["brokers"][0]["broker_id"]
    configs = config_of(client, ConfigResourceType.BROKER, str(node))
    assert configs["num.partitions"]["value"] == "4"
    assert configs["group.initial.rebalance.delay.ms"]["value"] == "0"
    assert int(configs["message.max.bytes"]["value"]) == 1048588


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("background.threads", ["21", "4"]),
        ("log.cleaner.threads", ["3"]),
        ("num.io.threads", ["17", "3"]),
        ("num.network.threads", ["7"]),
        ("num.recovery.threads.per.data.dir", ["5"]),
        ("num.replica.fetchers", ["3"]),
        ("listeners", ["PLAINTEXT://127.0.0.1:1"]),
    ],
)
def test_setting_that_the_broker_could_not_use_is_refused(client, setting, values):
    """A number of threads at most doubles or halves, and the controller keeps its listener."""
    node = str(client.describe_cluster()["brokers"][0]["broker_id"])
    before = config_of(client, ConfigResourceType.BROKER, node)[setting]["value"]
    for value in values:
        resource = ConfigResource(ConfigResourceType.BROKER, node, {setting: value})
        results = client.alter_configs([resource])
        assert "InvalidRequestError" in str(results), results
    assert config_of(client, ConfigResourceType.BROKER, node)[setting]["value"] == before


@pytest.mark.single
def test_threads_are_not_fewer_than_half_after_all_settings_are_replaced(broker, client):
    """AlterConfigs removes the settings that it does not name."""
    name, replacing = "num.io.threads", AlterConfigsRequest.AlterConfigsResource
    node = str(client.describe_cluster()["brokers"][0]["broker_id"])

    def threads():
        return config_of(client, ConfigResourceType.BROKER, node)[name]["value"]

    def change(value):
        client.alter_configs([ConfigResource(ConfigResourceType.BROKER, node, {name: value})])
        eventually(lambda: threads() == str(value), "the new number")

    change(16)
    change(30)
    nothing = replacing(resource_type=4, resource_name=node, configs=[])
    with connect(broker.address) as wire:
        request = AlterConfigsRequest(resources=[nothing], validate_only=False)
        (answer,) = wire.call(request, 2).responses
    assert answer.error_code == InvalidRequestError.errno
    assert threads() == "30"
    change(16)
    change(8)


def test_cluster(broker, client):
    cluster = client.describe_cluster()
    assert len(cluster["cluster_id"]) == 22
    (node,) = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == broker.address
    assert cluster["controller_id"] == node["broker_id"]


def test_log_dirs_count_the_bytes(broker, client, topic):
    create(broker.address, topic)
    fill(broker.address, topic, [b"x" * 1000] * 10)
    (node,) = client.describe_log_dirs({topic: [0]})
    directories = node.get("log_dirs") or node["results"]
    (directory,) = [d for d in directories if d["topics"]]
    (only,) = directory["topics"]
    assert only["partitions"][0]["partition_size"] > 10_000
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0


def test_quorum_and_features(client):
    quorum = client.describe_metadata_quorum()
    (partition,) = quorum["topics"][0]["partitions"]
    assert partition["leader_id"] == partition["current_voters"][0]["replica_id"]
    assert partition["high_watermark"] > 0
    features = client.describe_features()
    assert features["metadata.version"]["finalized"]


def test_partition_offsets_by_spec(broker, client, topic):
    create(broker.address, topic, retention_ms="-1")
    for stamp in (10, 20, 30, 20, 10, 99, 50):
        fill(broker.address, topic, [b"x"], timestamp_ms=stamp)
    partition = TopicPartition(topic, 0)

    def ask(spec):
        return client.list_partition_offsets({partition: spec})[partition].offset

    assert ask(OffsetSpec.EARLIEST) == 0
    assert ask(OffsetSpec.LATEST) == 7
    assert ask(OffsetSpec.MAX_TIMESTAMP) == 5


def test_delete_records(broker, client, topic):
    create(broker.address, topic)
    fill(broker.address, topic, [b"x"] * 10)
    partition = TopicPartition(topic, 0)
    assert client.delete_records({partition: 4})[partition]["low_watermark"] == 4
    with consumer(broker.address) as reader:
        assert reader.beginning_offsets([partition]) == {partition: 4}
    with pytest.raises(Exception, match="OffsetOutOfRange"):
        client.delete_records({partition: 400})
    assert client.delete_records({partition: -1})[partition]["low_watermark"] == 10


def test_groups_listed_described_altered_deleted(broker, client, topic, group):
    create(broker.address, topic, 2)
    fill(broker.address, topic, [b"x"] * 5, partition=0)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer(broker.address, topic, group_id=group) as reader:
        collect(lambda: poll(reader), 5)
        reader.commit()
        assert client.describe_groups([group])[group]["group_state"] == "Stable"
        assert "NonEmptyGroup" in str(client.delete_groups([group]))
    eventually(
        lambda: client.describe_groups([group])[group]["group_state"] == "Empty", "an empty group"
    )
    assert group in {listed["group_id"] for listed in client.list_groups()}
    assert client.list_group_offsets({group: None})[group][first].offset == 5
    client.alter_group_offsets(
        group, {first: OffsetAndMetadata(2, "", -1), second: OffsetAndMetadata(0, "m", -1)}
    )
    offsets = client.list_group_offsets({group: None})[group]
    assert (offsets[first].offset, offsets[second][:2]) == (2, (0, "m"))
    client.delete_group_offsets(group, [second])
    assert set(client.list_group_offsets({group: None})[group]) == {first}
    client.delete_groups([group])
    assert group not in {listed["group_id"] for listed in client.list_groups()}


def test_legacy_alter_configs_replaces_all(client, topic):
    client.create_topics({topic: {"num_partitions": 1, "configs": {"max.message.bytes": "2000"}}})
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "99999999"})
    client.alter_configs([resource], incremental=False)
    assert config_of(client, ConfigResourceType.TOPIC, topic)["retention.ms"]["value"] == "99999999"


def test_topics_by_id_and_by_page(client, topic):
    client.create_topics({topic: {"num_partitions": 5}})
    page = client.describe_topic_partitions([topic], response_partition_limit=3)
    assert [p["partition_index"] for p in page["topics"][0]["partitions"]] == [0, 1, 2]
    assert page["next_cursor"]["topic_name"] == topic
    rest = client.describe_topic_partitions([topic], cursor=page["next_cursor"])
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [3, 4]
    (by_name,) = client.describe_topics([topic])
    (by_id,) = client.describe_topics([uuid.UUID(str(by_name["topic_id"]))])
    assert by_id["name"] == topic
