"""Requests of old versions get the newest shape, and responses the shape of an old version."""

from typing import Any

import pytest

from kwire.codec.compile import decode, encode
from kwire.codec.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_partition,
    api_versions,
    delete_topics,
    describe_groups,
    end_txn,
    find_coordinator,
    init_producer_id,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    txn_offset_commit,
    update_features,
)
from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult as TxnPartition,
)
from kwire.codec.messages.add_partitions_to_txn import AddPartitionsToTxnRequest as AddPartitions
from kwire.codec.messages.add_partitions_to_txn import AddPartitionsToTxnTopic as TxnTopic
from kwire.codec.messages.add_partitions_to_txn import AddPartitionsToTxnTopicResult as TxnResult
from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kwire.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.codec.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from kwire.codec.schema import spec_of

Group = OffsetFetchRequest.OffsetFetchRequestGroup
RequestedTopic = OffsetFetchRequest.OffsetFetchRequestTopic
GroupOffsets = OffsetFetchResponse.OffsetFetchResponseGroup
TopicOffsets = GroupOffsets.OffsetFetchResponseTopics
OldTopicOffsets = OffsetFetchResponse.OffsetFetchResponseTopic
Member = LeaveGroupRequest.MemberIdentity
LeaveResult = LeaveGroupResponse.MemberResponse
State = DeleteTopicsRequest.DeleteTopicState
Txn = AddPartitions.AddPartitionsToTxnTransaction
Coordinator = FindCoordinatorResponse.Coordinator
Isr = AlterPartitionRequest.TopicData
Feature = UpdateFeaturesRequest.FeatureUpdateKey


def isr_request(**fields: Any) -> AlterPartitionRequest:
    partition = Isr.PartitionData(partition_index=0, leader_epoch=1, partition_epoch=2, **fields)
    topic = Isr(topic_id=bytes(16), partitions=[partition])
    return AlterPartitionRequest(broker_id=1, topics=[topic])


def join_request(timeout_ms: int, knows: bool, skips: bool) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=7,
        rebalance_timeout_ms=timeout_ms,
        member_id="",
        protocol_type="consumer",
        knows_member_id_required=knows,
        can_skip_assignment=skips,
    )


WIDENED: list[tuple[Any, list[int], Any, dict[str, Any]]] = [
    (find_coordinator, [0, 3], FindCoordinatorRequest(key="g"), {"coordinator_keys": ["g"]}),
    (
        leave_group,
        [0, 2],
        LeaveGroupRequest(group_id="g", member_id="m"),
        {"group_id": "g", "members": [Member(member_id="m")]},
    ),
    (
        delete_topics,
        [1, 5],
        DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1),
        {"topics": [State(name="a"), State(name="b")], "timeout_ms": 1},
    ),
    (
        offset_fetch,
        [1, 7],
        OffsetFetchRequest(
            group_id="g", topics=[RequestedTopic(name="t", partition_indexes=[1, 2])]
        ),
        {
            "groups": [
                Group(
                    group_id="g",
                    topics=[Group.OffsetFetchRequestTopics(name="t", partition_indexes=[1, 2])],
                )
            ]
        },
    ),
    (
        offset_fetch,  # null topics: all of them
        [2, 7],
        OffsetFetchRequest(group_id="g", topics=None),
        {"groups": [Group(group_id="g", topics=None)]},
    ),
    (
        offset_fetch,  # an empty list: none of them
        [1, 7],
        OffsetFetchRequest(group_id="g"),
        {"groups": [Group(group_id="g")]},
    ),
    (
        update_features,
        [0],
        UpdateFeaturesRequest(
            feature_updates=[Feature(feature="f", max_version_level=0, allow_downgrade=True)]
        ),
        {"feature_updates": [Feature(feature="f", max_version_level=0, upgrade_type=2)]},
    ),
    (metadata, [0], MetadataRequest(topics=[]), {"topics": None, "version": 0}),
    (metadata, [1], MetadataRequest(topics=[]), {"topics": [], "version": 1}),
    (metadata, [13], MetadataRequest(topics=[]), {"topics": []}),
]


@pytest.mark.parametrize(("module", "versions", "request_", "expected"), WIDENED)
def test_old_request_is_widened(
    module: Any, versions: list[int], request_: Any, expected: dict[str, Any]
):
    for version in versions:
        old = decode_in(request_, version)
        assert module.widen_request(old, version) == type(request_)(**expected)


@pytest.mark.parametrize("version", [0, 3])
def test_old_request_adds_the_partitions_of_one_clients_transaction(version: int):
    request = AddPartitions(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=3,
        v3_and_below_producer_epoch=4,
        v3_and_below_topics=[TxnTopic(name="t", partitions=[1])],
    )
    transaction = Txn(
        transactional_id="x",
        producer_id=3,
        producer_epoch=4,
        topics=[TxnTopic(name="t", partitions=[1])],
    )
    widened = add_partitions_to_txn.widen_request(decode_in(request, version), version)
    assert widened == AddPartitions(transactions=[transaction], from_broker=False)


def decode_in(message: Any, version: int) -> Any:
    """Return the message as one version carries it: fields it lacks have their defaults."""
    return decode(type(message), encode(message, version), version)


@pytest.mark.parametrize(("module", "versions", "request_", "expected"), WIDENED)
def test_newest_request_is_not_changed(
    module: Any, versions: list[int], request_: Any, expected: dict[str, Any]
):
    fields = {name: value for name, value in expected.items() if name != "version"}
    newest = type(request_)(**fields)
    version = spec_of(type(request_)).versions.last
    assert module.widen_request(newest, version) == type(request_)(**fields)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (0, join_request(7, knows=False, skips=False)),
        (3, join_request(20, knows=False, skips=False)),
        (4, join_request(20, knows=True, skips=False)),
        (9, join_request(20, knows=True, skips=True)),
    ],
)
def test_join_request_says_what_its_version_understands(version: int, expected: JoinGroupRequest):
    sent = join_request(20, knows=False, skips=False)
    assert join_group.widen_request(decode_in(sent, version), version) == expected


def test_isr_without_epochs_is_widened():
    states = [Isr.PartitionData.BrokerState(broker_id=broker) for broker in (3, 1)]
    sent = decode_in(isr_request(new_isr=[3, 1]), 2)
    assert alter_partition.widen_request(sent, 2) == isr_request(new_isr_with_epochs=states)
    sent = decode_in(isr_request(new_isr_with_epochs=states), 3)
    assert alter_partition.widen_request(sent, 3) == isr_request(new_isr_with_epochs=states)


@pytest.mark.parametrize("version", [0, 3])
def test_old_response_has_one_coordinator(version: int):
    coordinator = Coordinator(
        key="g", node_id=1, host="h", port=9, error_code=15, error_message="no"
    )
    response = FindCoordinatorResponse(coordinators=[coordinator])
    narrow = find_coordinator.narrow_response(response, version, FindCoordinatorRequest())
    assert narrow == FindCoordinatorResponse(
        node_id=1, host="h", port=9, error_code=15, error_message="no"
    )
    encode(narrow, version)
    coordinator = Coordinator(key="g", node_id=1, host="h", port=9)
    response = FindCoordinatorResponse(coordinators=[coordinator])
    narrow = find_coordinator.narrow_response(response, version, FindCoordinatorRequest())
    assert narrow.error_message == "NONE"


@pytest.mark.parametrize(
    ("whole", "member", "expected"),
    [
        (0, 25, 25),
        (0, 0, 0),
        (16, 25, 16),  # not the coordinator: it looked no member up
    ],
)
def test_old_leave_response_has_one_error_code(whole: int, member: int, expected: int):
    request = LeaveGroupRequest(group_id="g")
    response = LeaveGroupResponse(error_code=whole, members=[LeaveResult(error_code=member)])
    narrow = leave_group.narrow_response(response, 2, request)
    assert narrow == LeaveGroupResponse(error_code=expected)
    response = LeaveGroupResponse(error_code=whole, members=[LeaveResult(error_code=member)])
    narrow = leave_group.narrow_response(response, 3, request)
    assert narrow.members == [LeaveResult(error_code=member)]


def offset_response(error: int, **fields: Any) -> OffsetFetchResponse:
    partition = TopicOffsets.OffsetFetchResponsePartitions(**fields)
    topics = [] if error else [TopicOffsets(name="t", partitions=[partition])]
    group = GroupOffsets(group_id="g", topics=topics, error_code=error)
    return OffsetFetchResponse(groups=[group])


def old_offset_response(error: int, **fields: Any) -> OffsetFetchResponse:
    partition = OldTopicOffsets.OffsetFetchResponsePartition(**fields)
    topics = [OldTopicOffsets(name="t", partitions=[partition])] if fields else []
    return OffsetFetchResponse(topics=topics, error_code=error)


FIELDS = {"partition_index": 1, "committed_offset": 5, "metadata": "x", "error_code": 3}


@pytest.mark.parametrize(
    ("version", "response", "expected"),
    [
        (1, offset_response(0, **FIELDS), old_offset_response(0, **FIELDS)),
        (7, offset_response(0, **FIELDS), old_offset_response(0, **FIELDS)),
        (2, offset_response(16), old_offset_response(16)),
        (
            1,  # this version has no error code but the partition's
            offset_response(16),
            old_offset_response(0, partition_index=1, committed_offset=-1, error_code=16),
        ),
    ],
)
def test_old_offset_fetch_response_has_one_group(
    version: int, response: OffsetFetchResponse, expected: OffsetFetchResponse
):
    topics = [RequestedTopic(name="t", partition_indexes=[1])]
    request = OffsetFetchRequest(group_id="g", topics=topics)
    request = offset_fetch.widen_request(request, version)
    narrow = offset_fetch.narrow_response(response, version, request)
    assert narrow == expected
    encode(narrow, version)


def test_newest_offset_fetch_response_is_not_changed():
    narrow = offset_fetch.narrow_response(offset_response(16), 8, OffsetFetchRequest())
    assert narrow == offset_response(16)


def txn_results(code: int) -> list[TxnResult]:
    partition = TxnPartition(partition_index=1, partition_error_code=code)
    return [TxnResult(name="t", results_by_partition=[partition])]


@pytest.mark.parametrize(
    ("version", "whole", "partition", "expected"),
    [
        (3, 0, 0, 0),
        (3, 0, 90, 90),
        (1, 0, 90, 47),  # PRODUCER_FENCED, for a client that only has INVALID_PRODUCER_EPOCH
        (3, 51, 0, 51),
    ],
)
def test_old_response_has_partitions_of_one_transaction(
    version: int, whole: int, partition: int, expected: int
):
    sent = AddPartitions(
        v3_and_below_transactional_id="x",
        v3_and_below_topics=[TxnTopic(name="t", partitions=[1])],
    )
    request = add_partitions_to_txn.widen_request(sent, version)
    response = add_partitions_to_txn.AddPartitionsToTxnResponse(error_code=whole)
    if not whole:
        result = response.AddPartitionsToTxnResult(
            transactional_id="x", topic_results=txn_results(partition)
        )
        response.results_by_transaction = [result]
    narrow = add_partitions_to_txn.narrow_response(response, version, request)
    assert narrow.results_by_topic_v3_and_below == txn_results(expected)
    encode(narrow, version)


NO_ID = init_producer_id.InitProducerIdResponse(error_code=90, producer_epoch=-1)


@pytest.mark.parametrize(
    ("module", "response", "version"),
    [
        (init_producer_id, NO_ID, 4),
        (end_txn, end_txn.EndTxnResponse(error_code=90), 2),
        (add_offsets_to_txn, add_offsets_to_txn.AddOffsetsToTxnResponse(error_code=90), 2),
    ],
)
def test_old_response_has_invalid_producer_epoch_for_a_fenced_producer(
    module: Any, response: Any, version: int
):
    assert module.narrow_response(response, version, None).error_code == 90
    assert module.narrow_response(response, version - 1, None).error_code == 47


@pytest.mark.parametrize(
    ("module", "response", "code", "expected", "version"),
    [
        (offset_commit, offset_commit.OffsetCommitResponse, 69, 22, 9),
        (txn_offset_commit, txn_offset_commit.TxnOffsetCommitResponse, 14, 15, 2),
    ],
)
def test_partition_errors_are_those_of_the_version(
    module: Any, response: Any, code: int, expected: int, version: int
):
    def of(code: int) -> Any:
        topic = next(v for k, v in vars(response).items() if k.endswith("Topic"))
        partition = next(v for k, v in vars(topic).items() if k.endswith("Partition"))
        partitions = [partition(partition_index=0, error_code=code)]
        return response(topics=[topic(name="t", partitions=partitions)])

    assert module.narrow_response(of(code), version, None) == of(code)
    assert module.narrow_response(of(code), version - 1, None) == of(expected)


def test_unknown_group_is_dead_in_old_versions():
    def of(code: int, state: str, text: str | None) -> describe_groups.DescribeGroupsResponse:
        group = describe_groups.DescribeGroupsResponse.DescribedGroup(
            group_id="g",
            group_state=state,
            protocol_type="",
            protocol_data="",
            error_code=code,
            error_message=text,
        )
        return describe_groups.DescribeGroupsResponse(groups=[group])

    unknown = of(69, "", "no group g")
    assert describe_groups.narrow_response(unknown, 6, None) == of(69, "", "no group g")  # type: ignore[arg-type]
    assert describe_groups.narrow_response(unknown, 5, None) == of(0, "Dead", None)  # type: ignore[arg-type]


def test_features_with_minimum_0_are_left_out_of_old_responses():
    Key = api_versions.ApiVersionsResponse.SupportedFeatureKey
    features = [Key(name=f"from-{low}", min_version=low, max_version=3) for low in (0, 1)]
    request = api_versions.ApiVersionsRequest()
    for version, expected in ((4, features), (3, features[1:])):
        response = api_versions.ApiVersionsResponse(supported_features=features)
        narrow = api_versions.narrow_response(response, version, request)
        assert narrow.supported_features == expected


def test_missing_protocol_is_empty_in_old_versions():
    response = JoinGroupResponse(protocol_name=None, leader="", member_id="")
    request = join_request(1, knows=True, skips=True)
    assert join_group.narrow_response(response, 7, request).protocol_name is None
    assert join_group.narrow_response(response, 6, request).protocol_name == ""


@pytest.mark.parametrize(("version", "epoch"), [(1, -1), (3, -1), (4, 7), (11, 7)])
def test_leader_epoch_of_an_offset_is_returned_from_version_4(version, epoch):
    Partition = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    partition = Partition(partition_index=0, timestamp=1, offset=2, leader_epoch=7)
    response = ListOffsetsResponse(
        topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[partition])]
    )
    narrow = list_offsets.narrow_response(response, version, ListOffsetsRequest(replica_id=-1))
    assert narrow.topics[0].partitions[0].leader_epoch == epoch
    encode(narrow, version)
