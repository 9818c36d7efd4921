"""Requests to create, delete and grow topics of a client that has only some of the rights."""

from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.handlers.create_partitions import create_partitions
from kwire.handlers.create_topics import create_topics
from kwire.handlers.delete_topics import delete_topics
from kwire.handlers.shared.context import Context, Principal
from kwire.raftmeta.controller.topics import PARTITIONS_MAX
from kwire.raftmeta.metadata.image import MetadataImage
from tests.support.handlers.services import services_of
from tests.support.raftmeta.clusters import Cluster
from tests.support.raftmeta.no_others import only_controller
from tests.support.raftmeta.one_leader import OneLeader, active_controller

OWN, OTHER = "own", "other"


class OwnTopicOnly:
    """Allows everything with one topic, and describing another one."""

    def allows(self, principal: Any, host: str, operation: str, kind: str, name: str) -> bool:
        return kind == "Topic" and (name == OWN or operation == "Describe")


def context_of(cluster: Cluster) -> Context:
    """Return a client's context at the active controller of a cluster."""
    controller = active_controller(OneLeader(at_once=True), cluster)
    authorizer: Any = OwnTopicOnly()
    services = services_of(
        active_controller=only_controller(controller),
        image=cluster.state.image,
        authorizer=authorizer,
    )
    return Context(services=services, principal=Principal("User", "ann"), api_version=6)


def cluster_of_topics(may_delete: str = "true") -> Cluster:
    cluster = Cluster(delete_topic_enable=may_delete)
    for name in (OWN, OTHER):
        cluster.topic(name, [1])
    return cluster


def creations() -> CreateTopicsRequest:
    shape = CreateTopicsRequest.CreatableTopic
    counts = {OWN: PARTITIONS_MAX + 1, OTHER: 1}
    return CreateTopicsRequest(
        topics=[
            shape(name=name, num_partitions=count, replication_factor=1)
            for name, count in counts.items()
        ]
    )


def growth() -> CreatePartitionsRequest:
    shape = CreatePartitionsRequest.CreatePartitionsTopic
    topics = [shape(name=name, count=PARTITIONS_MAX + 2, assignments=None) for name in (OWN, OTHER)]
    return CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=False)


def deletion(*states: DeleteTopicsRequest.DeleteTopicState) -> DeleteTopicsRequest:
    shape = DeleteTopicsRequest.DeleteTopicState
    named = states or (shape(name=OWN), shape(name=OTHER))
    return DeleteTopicsRequest(topics=[*named], timeout_ms=1000)


@pytest.mark.parametrize(
    ("handler", "request_", "error"),
    [
        (create_topics, creations(), errors.PolicyViolation),
        (create_partitions, growth(), errors.PolicyViolation),
        (delete_topics, deletion(), errors.TopicDeletionDisabled),
    ],
    ids=["CreateTopics", "CreatePartitions", "DeleteTopics"],
)
async def test_request_that_fails_as_a_whole_is_answered_for_each_topic(
    handler: Any, request_: Any, error: type[errors.KafkaError]
) -> None:
    """Java's admin client reports a topic that a response lacks as an unknown server error."""
    cluster = Cluster() if handler is create_topics else cluster_of_topics(may_delete="false")
    answer = await handler(context_of(cluster), request_)
    results = next(
        getattr(answer, n) for n in ("topics", "results", "responses") if hasattr(answer, n)
    )
    assert [(result.name, result.error_code) for result in results] == [
        (OWN, error.code),
        (OTHER, error.code),
    ]


async def test_right_to_delete_a_topic_by_id_is_checked_before_the_topic_is_published() -> None:
    """The controller knows a new topic earlier than the node that checks the client's rights."""
    cluster = cluster_of_topics()
    context = context_of(cluster)
    topic = cluster.state.image.topic(OTHER)
    assert topic is not None
    context.services.current.image = MetadataImage()
    by_id = DeleteTopicsRequest.DeleteTopicState(topic_id=topic.id)
    answer: Any = await delete_topics(context, deletion(by_id))
    (result,) = answer.responses
    assert (result.name, result.error_code) == (OTHER, errors.TopicAuthorizationFailed.code)
    assert result.error_message == "Topic authorization failed."
    assert context.controller.state.image.topic(OTHER) is not None
