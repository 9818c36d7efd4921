"""Requests that clients repeat after the controller that decided them first has failed.

The client does not know whether the first request took effect. If it did, the second changes
nothing, and the answer is the one that Kafka gives (invariant 48).
"""

from functools import partial
from typing import Any

import attrs
import pytest
import trio

from kwire import errors
from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.codec.messages.alter_configs import AlterConfigsRequest
from kwire.codec.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from kwire.configs.resource_types import BROKER, TOPIC
from kwire.raftmeta.controller.brokers import decide_unregister_broker
from kwire.raftmeta.controller.client_quotas import decide_alter_quotas
from kwire.raftmeta.controller.configs import APPEND, SET, decide_alter, decide_incremental_alter
from kwire.raftmeta.controller.feature_updates import decide_update_features
from kwire.raftmeta.controller.partitions import decide_elect_leaders, decide_reassign
from kwire.raftmeta.controller.topics import (
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.storage.levels import ELR
from kwire.types import ZERO_UUID
from tests.support.raftmeta.clusters import Cluster
from tests.support.raftmeta.one_leader import OneLeader, active_controller

decide_features = partial(
    decide_update_features, kraft_version=0, check_kraft_version=lambda level: None
)


def create(name: str, partitions: int = 2) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name, num_partitions=partitions, replication_factor=1)]
    )


def set_config(kind: int, name: str, setting: str, operation: int, value: str) -> Any:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = resource.AlterableConfig(name=setting, config_operation=operation, value=value)
    alteration = resource(resource_type=kind, resource_name=name, configs=[change])
    return IncrementalAlterConfigsRequest(resources=[alteration], validate_only=False)


def all_configs() -> AlterConfigsRequest:
    resource = AlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name="retention.ms", value="7")
    alteration = resource(resource_type=TOPIC, resource_name="t", configs=[config])
    return AlterConfigsRequest(resources=[alteration], validate_only=False)


def reassign(replicas: list[int] | None) -> AlterPartitionReassignmentsRequest:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic.ReassignablePartition(partition_index=0, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[topic(name="t", partitions=[partition])])


def quota() -> AlterClientQuotasRequest:
    entry = AlterClientQuotasRequest.EntryData
    entity = [entry.EntityData(entity_type="user", entity_name="ann")]
    ops = [entry.OpData(key="producer_byte_rate", value=9.0, remove=False)]
    return AlterClientQuotasRequest(entries=[entry(entity=entity, ops=ops)], validate_only=False)


GROW = CreatePartitionsRequest(
    topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=3, assignments=None)],
    timeout_ms=1000,
    validate_only=False,
)
ELECT = ElectLeadersRequest(
    election_type=0,
    topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])],
    timeout_ms=1000,
)
FEATURE = UpdateFeaturesRequest(
    feature_updates=[
        UpdateFeaturesRequest.FeatureUpdateKey(feature=ELR, max_version_level=1, upgrade_type=1)
    ]
)


def delete(name: str | None = None, topic_id: bytes = ZERO_UUID) -> DeleteTopicsRequest:
    topic = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id)
    return DeleteTopicsRequest(topics=[topic], timeout_ms=1000)


REPEATED = [
    (decide_create_topics, create("new"), errors.TopicAlreadyExists),
    (decide_create_partitions, GROW, errors.InvalidPartitions),
    (decide_delete_topics, delete("t"), errors.UnknownTopicOrPartition),
    (decide_incremental_alter, set_config(TOPIC, "t", "retention.ms", SET, "7"), None),
    (decide_incremental_alter, set_config(TOPIC, "t", "cleanup.policy", APPEND, "compact"), None),
    (decide_incremental_alter, set_config(BROKER, "", "message.max.bytes", SET, "7"), None),
    (decide_alter, all_configs(), None),
    (decide_reassign, reassign([3]), None),
    (decide_elect_leaders, ELECT, errors.ElectionNotNeeded),
    (decide_alter_quotas, quota(), None),
    (decide_features, FEATURE, None),
]


def name_of_argument(argument: object) -> str:
    return argument.__name__ if hasattr(argument, "__name__") else type(argument).__name__


@pytest.mark.parametrize(("decide", "request_", "expected"), REPEATED, ids=name_of_argument)
def test_repeated_request_changes_nothing(
    decide: Any, request_: Any, expected: type[errors.KafkaError] | None
) -> None:
    """Invariant 48: the next controller, which has the records of the first, writes none."""
    cluster = Cluster()
    cluster.topic("t", [1, 2], [2, 1])
    if decide is decide_elect_leaders:
        cluster.do(decide_reassign, reassign([2, 1]))
    assert set(codes(cluster.do(decide, request_))) == {0}
    assert cluster.kinds(), "the first time counts"
    before = cluster.state.image
    reply = cluster.do(decide, request_)
    assert set(codes(reply)) == {0 if expected is None else expected.code}
    assert attrs.evolve(cluster.state.image, applied=before.applied) == before


def test_repeated_deletion_or_cancellation_gets_kafkas_error() -> None:
    cluster = Cluster()
    topic_id = cluster.topic("t", [1, 2])
    cluster.do(decide_reassign, reassign([3]))
    for code in (errors.NONE, errors.NoReassignmentInProgress.code):
        assert codes(cluster.do(decide_reassign, reassign(None))) == [code]
    for code in (errors.NONE, errors.UnknownTopicId.code):
        assert codes(cluster.do(decide_delete_topics, delete(topic_id=topic_id))) == [code]
    cluster.do(decide_unregister_broker, UnregisterBrokerRequest(broker_id=3))
    with pytest.raises(errors.BrokerIdNotRegistered):
        cluster.do(decide_unregister_broker, UnregisterBrokerRequest(broker_id=3))


def codes(reply: Any) -> list[int]:
    """Return all error codes in an answer, however deep."""
    if isinstance(reply, list):
        return [code for item in reply for code in codes(item)]
    if not hasattr(reply, "__slots__"):
        return []
    inner = [code for name in reply.__slots__ for code in codes(getattr(reply, name, None))]
    own = getattr(reply, "error_code", None)
    return inner or ([] if own is None else [own])


@pytest.mark.parametrize("survives", [True, False])
async def test_answer_waits_for_the_commit_of_all_that_it_depends_on(survives: bool) -> None:
    """Neither the creation of a topic nor that it exists already is answered before the commit.

    Invariant 48, for an answer that gets lost with the leadership.
    """
    quorum = OneLeader()
    controller = active_controller(quorum, Cluster())
    answers: dict[int, list[int] | str] = {}

    async def ask(turn: int) -> None:
        try:
            answers[turn] = codes(await controller.call(decide_create_topics, create("t")))
        except errors.NotController:
            answers[turn] = "not controller"

    async with trio.open_nursery() as nursery:
        for turn in (1, 2):
            nursery.start_soon(ask, turn)
            await trio.testing.wait_all_tasks_blocked()
            assert (len(quorum.commits), answers) == (1, {}), turn
        if survives:
            quorum.commits[0].complete()
        else:
            controller.on_leadership(LeaderAndEpoch(2, 6))
            quorum.commits[0].complete(errors.NotController())
    if survives:
        assert answers == {1: [0], 2: [errors.TopicAlreadyExists.code]}
    else:
        assert answers == {1: "not controller", 2: "not controller"}
        assert "t" not in controller.state.image.topic_ids
