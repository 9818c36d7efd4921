"""Limits of CreateTopics and CreatePartitions; the codes are Apache Kafka 4.3.1's."""

import pytest

from kwire import errors
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.raftmeta.controller.state import whole
from kwire.raftmeta.controller.topics import (
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from kwire.types import METADATA_TOPIC, ZERO_UUID
from tests.support.raftmeta.clusters import Cluster

Topic = CreateTopicsRequest.CreatableTopic


def create(*counts: int) -> CreateTopicsRequest:
    topics = [
        Topic(name=f"t{number}", num_partitions=count, replication_factor=1)
        for number, count in enumerate(counts)
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000)


@pytest.mark.parametrize(
    "counts",
    [
        (100_000,),
        (2**31 - 1,),
        (10_000,),  # with the topic's own record one too many
        (1, 10_000),  # nothing of the request is done
        (6_000, 6_000),
    ],
)
def test_creation_of_too_many_partitions_is_refused(counts: tuple[int, ...]) -> None:
    cluster = Cluster()
    with pytest.raises(errors.PolicyViolation):
        whole(decide_create_topics(cluster.state, create(*counts)))


def test_creation_at_the_limit_of_partitions_is_accepted() -> None:
    cluster = Cluster()
    reply = cluster.do(decide_create_topics, create(9_000, 0, -1))
    assert [topic.error_code for topic in reply.topics] == [0, errors.InvalidPartitions.code, 0]


def test_topic_with_the_name_of_the_metadata_log_is_refused_whoever_asks() -> None:
    cluster = Cluster()
    request = create(1)
    request.topics[0].name = METADATA_TOPIC
    (topic,) = cluster.do(decide_create_topics, request).topics
    assert (topic.error_code, cluster.records) == (errors.InvalidRequest.code, [])
    assert topic.error_message == "Creation of internal topic __cluster_metadata is prohibited."


def test_topic_that_a_request_names_twice_is_created_once() -> None:
    cluster = Cluster()
    request = create(1, 1)
    request.topics[1].name = request.topics[0].name
    reply = cluster.do(decide_create_topics, request)
    codes = [topic.error_code for topic in reply.topics]
    assert codes == [errors.NONE, errors.TopicAlreadyExists.code]
    assert cluster.kinds() == ["Topic", "Partition"]


def test_create_partitions_beyond_the_limit_is_refused() -> None:
    cluster = Cluster()
    cluster.do(decide_create_topics, create(1, 1))
    topics = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=6_000, assignments=None)
        for name in ("t0", "t1")
    ]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=False)
    with pytest.raises(errors.PolicyViolation):
        whole(decide_create_partitions(cluster.state, request))
    request.topics = topics[:1]
    reply = cluster.do(decide_create_partitions, request)
    assert reply.results[0].error_code == 0


def test_create_topics_response_has_the_settings_of_each_topic() -> None:
    """Topics without settings share a list of defaults, which another's settings do not change."""
    cluster = Cluster()
    request = create(1, 1, 1)
    config = Topic.CreatableTopicConfig
    request.topics[1].configs = [config(name="retention.ms", value="5000")]
    retention = [
        {shown.name: (shown.value, shown.config_source) for shown in topic.configs}["retention.ms"]
        for topic in cluster.do(decide_create_topics, request).topics
    ]
    assert retention == [("604800000", 5), ("5000", 1), ("604800000", 5)]


@pytest.mark.parametrize("named_first", [True, False])
@pytest.mark.parametrize("id_count", [1, 2])
def test_topic_that_a_request_gives_by_name_and_by_id_is_not_deleted(
    named_first: bool, id_count: int
) -> None:
    cluster = Cluster()
    topic_id, other_id = cluster.topic("t", [1]), cluster.topic("other", [1])
    shape = DeleteTopicsRequest.DeleteTopicState
    topics = [shape(topic_id=topic_id)] * id_count
    topics.insert(0 if named_first else id_count, shape(name="t"))
    request = DeleteTopicsRequest(topics=[*topics, shape(name="other")], timeout_ms=1000)
    reply = cluster.do(decide_delete_topics, request)
    results = {(each.name, each.topic_id): each.error_message for each in reply.responses}
    expected: dict[tuple[str | None, bytes], str | None] = {
        ("t", topic_id): "The provided topic name maps to an ID that was already supplied.",
        ("other", other_id): None,
    }
    if id_count > 1:
        expected[None, topic_id] = "Duplicate topic id."
    assert results == expected
    assert [record.topic_id for record in cluster.records] == [other_id]


def test_topic_given_twice_by_name_is_deleted_by_its_id() -> None:
    cluster = Cluster()
    topic_id = cluster.topic("t", [1])
    shape = DeleteTopicsRequest.DeleteTopicState
    topics = [shape(name="t"), shape(name="t"), shape(topic_id=topic_id)]
    reply = cluster.do(decide_delete_topics, DeleteTopicsRequest(topics=topics, timeout_ms=1000))
    results = {(each.name, each.topic_id): each.error_code for each in reply.responses}
    assert results == {("t", ZERO_UUID): errors.InvalidRequest.code, ("t", topic_id): errors.NONE}
