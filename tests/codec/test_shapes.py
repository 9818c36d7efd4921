"""Old shapes become the newest one before a handler sees them, and back after."""

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
Asked = OffsetFetchRequest.OffsetFetchRequestTopic
Answered = OffsetFetchResponse.OffsetFetchResponseGroup
AnsweredTopic = Answered.OffsetFetchResponseTopics
OldTopic = OffsetFetchResponse.OffsetFetchResponseTopic
Member = LeaveGroupRequest.MemberIdentity
Left = LeaveGroupResponse.MemberResponse
State = DeleteTopicsRequest.DeleteTopicState
Txn = AddPartitions.AddPartitionsToTxnTransaction
Found = FindCoordinatorResponse.Coordinator
Isr = AlterPartitionRequest.TopicData
Feature = UpdateFeaturesRequest.FeatureUpdateKey


def isr(**fields: Any) -> AlterPartitionRequest:
    partition = Isr.PartitionData(partition_index=0, leader_epoch=1, partition_epoch=2, **fields)
    topic = Isr(topic_id=bytes(16), partitions=[partition])
    return AlterPartitionRequest(broker_id=1, topics=[topic])


def joining(timeout_ms: int, knows: bool, skips: bool) -> JoinGroupRequest:
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
        OffsetFetchRequest(group_id="g", topics=[Asked(name="t", partition_indexes=[1, 2])]),
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
        offset_fetch,  # no topics are all of them
        [2, 7],
        OffsetFetchRequest(group_id="g", topics=None),
        {"groups": [Group(group_id="g", topics=None)]},
    ),
    (
        offset_fetch,  # an empty list asks for nothing
        [1, 7],
        OffsetFetchRequest(group_id="g"),
        {"groups": [Group(group_id="g")]},
    ),
    (
        add_partitions_to_txn,
        [0, 3],
        AddPartitions(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=3,
            v3_and_below_producer_epoch=4,
            v3_and_below_topics=[TxnTopic(name="t", partitions=[1])],
        ),
        {
            "transactions": [
                Txn(
                    transactional_id="x",
                    producer_id=3,
                    producer_epoch=4,
                    topics=[TxnTopic(name="t", partitions=[1])],
                )
            ]
        },
    ),
    (metadata, [0], MetadataRequest(topics=[]), {"topics": None}),
    (metadata, [1, 13], MetadataRequest(topics=[]), {"topics": []}),
    (
        update_features,
        [0],
        UpdateFeaturesRequest(
            feature_updates=[Feature(feature="f", max_version_level=0, allow_downgrade=True)]
        ),
        {"feature_updates": [Feature(feature="f", max_version_level=0, upgrade_type=2)]},
    ),
]


@pytest.mark.parametrize(("module", "versions", "request_", "expected"), WIDENED)
def test_widened(module: Any, versions: list[int], request_: Any, expected: dict[str, Any]):
    for version in versions:
        old = decoded(request_, version)
        assert module.widen_request(old, version) == type(request_)(**expected)


def decoded(message: Any, version: int) -> Any:
    """The message after a journey, so that what the version lacks is at its default."""
    return decode(type(message), encode(message, version), version)


@pytest.mark.parametrize(("module", "versions", "request_", "expected"), WIDENED)
def test_the_newest_shape_stays(
    module: Any, versions: list[int], request_: Any, expected: dict[str, Any]
):
    newest = type(request_)(**expected)
    version = spec_of(type(request_)).versions.last
    assert module.widen_request(newest, version) == type(request_)(**expected)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (0, joining(7, knows=False, skips=False)),
        (3, joining(20, knows=False, skips=False)),
        (4, joining(20, knows=True, skips=False)),
        (9, joining(20, knows=True, skips=True)),
    ],
)
def test_what_a_joining_client_understands(version: int, expected: JoinGroupRequest):
    sent = joining(20, knows=False, skips=False)
    assert join_group.widen_request(decoded(sent, version), version) == expected


def test_an_isr_without_epochs():
    states = [Isr.PartitionData.BrokerState(broker_id=broker) for broker in (3, 1)]
    sent = decoded(isr(new_isr=[3, 1]), 2)
    assert alter_partition.widen_request(sent, 2) == isr(new_isr_with_epochs=states)
    sent = decoded(isr(new_isr_with_epochs=states), 3)
    assert alter_partition.widen_request(sent, 3) == isr(new_isr_with_epochs=states)


@pytest.mark.parametrize("version", [0, 3])
def test_one_coordinator(version: int):
    found = Found(key="g", node_id=1, host="h", port=9, error_code=15, error_message="no")
    response = FindCoordinatorResponse(coordinators=[found])
    narrow = find_coordinator.narrow_response(response, version, FindCoordinatorRequest())
    assert narrow == FindCoordinatorResponse(
        node_id=1, host="h", port=9, error_code=15, error_message="no"
    )
    encode(narrow, version)
    found = Found(key="g", node_id=1, host="h", port=9)
    response = FindCoordinatorResponse(coordinators=[found])
    narrow = find_coordinator.narrow_response(response, version, FindCoordinatorRequest())
    assert narrow.error_message == "NONE"


@pytest.mark.parametrize(
    ("whole", "member", "expected"),
    [
        (0, 25, 25),
        (0, 0, 0),
        (16, 25, 16),  # the coordinator was not here: no group was looked up
    ],
)
def test_leaving_alone(whole: int, member: int, expected: int):
    request = LeaveGroupRequest(group_id="g")
    response = LeaveGroupResponse(error_code=whole, members=[Left(error_code=member)])
    narrow = leave_group.narrow_response(response, 2, request)
    assert narrow == LeaveGroupResponse(error_code=expected)
    response = LeaveGroupResponse(error_code=whole, members=[Left(error_code=member)])
    assert leave_group.narrow_response(response, 3, request).members == [Left(error_code=member)]


def fetched(error: int, **fields: Any) -> OffsetFetchResponse:
    partition = AnsweredTopic.OffsetFetchResponsePartitions(**fields)
    topics = [] if error else [AnsweredTopic(name="t", partitions=[partition])]
    return OffsetFetchResponse(groups=[Answered(group_id="g", topics=topics, error_code=error)])


def old_fetched(error: int, **fields: Any) -> OffsetFetchResponse:
    partition = OldTopic.OffsetFetchResponsePartition(**fields)
    topics = [OldTopic(name="t", partitions=[partition])] if fields else []
    return OffsetFetchResponse(topics=topics, error_code=error)


FIELDS = {"partition_index": 1, "committed_offset": 5, "metadata": "x", "error_code": 3}


@pytest.mark.parametrize(
    ("version", "response", "expected"),
    [
        (1, fetched(0, **FIELDS), old_fetched(0, **FIELDS)),
        (7, fetched(0, **FIELDS), old_fetched(0, **FIELDS)),
        (2, fetched(16), old_fetched(16)),
        (
            1,  # there is no other place for it
            fetched(16),
            old_fetched(0, partition_index=1, committed_offset=-1, error_code=16),
        ),
    ],
)
def test_offsets_of_one_group(
    version: int, response: OffsetFetchResponse, expected: OffsetFetchResponse
):
    asked = [Asked(name="t", partition_indexes=[1])]
    request = OffsetFetchRequest(group_id="g", topics=asked)
    request = offset_fetch.widen_request(request, version)
    narrow = offset_fetch.narrow_response(response, version, request)
    assert narrow == expected
    encode(narrow, version)


def test_offsets_of_many_groups_stay():
    assert offset_fetch.narrow_response(fetched(16), 8, OffsetFetchRequest()) == fetched(16)


def added(code: int) -> list[TxnResult]:
    partition = TxnPartition(partition_index=1, partition_error_code=code)
    return [TxnResult(name="t", results_by_partition=[partition])]


@pytest.mark.parametrize(
    ("version", "whole", "partition", "expected"),
    [
        (3, 0, 0, 0),
        (3, 0, 90, 90),
        (1, 0, 90, 47),  # a fenced producer, to a client that does not know the error
        (3, 51, 0, 51),
    ],
)
def test_partitions_of_one_transaction(version: int, whole: int, partition: int, expected: int):
    sent = AddPartitions(
        v3_and_below_transactional_id="x",
        v3_and_below_topics=[TxnTopic(name="t", partitions=[1])],
    )
    request = add_partitions_to_txn.widen_request(sent, version)
    response = add_partitions_to_txn.AddPartitionsToTxnResponse(error_code=whole)
    if not whole:
        result = response.AddPartitionsToTxnResult(
            transactional_id="x", topic_results=added(partition)
        )
        response.results_by_transaction = [result]
    narrow = add_partitions_to_txn.narrow_response(response, version, request)
    assert narrow.results_by_topic_v3_and_below == added(expected)
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
def test_a_fenced_producer(module: Any, response: Any, version: int):
    assert module.narrow_response(response, version, None).error_code == 90
    assert module.narrow_response(response, version - 1, None).error_code == 47


@pytest.mark.parametrize(
    ("module", "response", "code", "expected", "version"),
    [
        (offset_commit, offset_commit.OffsetCommitResponse, 69, 22, 9),
        (txn_offset_commit, txn_offset_commit.TxnOffsetCommitResponse, 14, 15, 2),
    ],
)
def test_errors_of_partitions(module: Any, response: Any, code: int, expected: int, version: int):
    def of(code: int) -> Any:
        topic = next(v for k, v in vars(response).items() if k.endswith("Topic"))
        partition = next(v for k, v in vars(topic).items() if k.endswith("Partition"))
        partitions = [partition(partition_index=0, error_code=code)]
        return response(topics=[topic(name="t", partitions=partitions)])

    assert module.narrow_response(of(code), version, None) == of(code)
    assert module.narrow_response(of(code), version - 1, None) == of(expected)


def test_a_group_nobody_knows_is_dead():
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


def test_features_an_old_client_cannot_read():
    Key = api_versions.ApiVersionsResponse.SupportedFeatureKey
    features = [Key(name=f"from-{low}", min_version=low, max_version=3) for low in (0, 1)]
    request = api_versions.ApiVersionsRequest()
    for version, expected in ((4, features), (3, features[1:])):
        response = api_versions.ApiVersionsResponse(supported_features=features)
        narrow = api_versions.narrow_response(response, version, request)
        assert narrow.supported_features == expected


def test_a_group_without_protocol():
    response = JoinGroupResponse(protocol_name=None, leader="", member_id="")
    request = joining(1, knows=True, skips=True)
    assert join_group.narrow_response(response, 7, request).protocol_name is None
    assert join_group.narrow_response(response, 6, request).protocol_name == ""


@pytest.mark.parametrize(("version", "epoch"), [(1, -1), (3, -1), (4, 7), (11, 7)])
def test_the_leader_epoch_of_an_offset_is_told_from_version_4(version, epoch):
    spot = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    found = spot(partition_index=0, timestamp=1, offset=2, leader_epoch=7)
    response = ListOffsetsResponse(
        topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[found])]
    )
    narrow = list_offsets.narrow_response(response, version, ListOffsetsRequest(replica_id=-1))
    assert narrow.topics[0].partitions[0].leader_epoch == epoch
    encode(narrow, version)
