"""Answers to old versions that differ from the newest version's, as those of Kafka 4.3.1."""

import pytest

from kwire import errors
from kwire.codec.messages import delete_topics, describe_cluster, metadata
from kwire.codec.messages.fetch import FetchRequest, FetchResponse, narrow_response
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from tests.support.handlers.broker import NOW_MS, broker, create_topic, one_batch, write
from tests.support.handlers.list_offsets import offsets
from tests.support.handlers.produce import produce


@pytest.mark.parametrize(
    ("timestamp", "since"),
    [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99), (NOW_MS, 1)],
)
@pytest.mark.parametrize("version", range(1, 12))
async def test_special_timestamps_need_their_version(timestamp: int, since: int, version: int):
    subject = broker()
    write(subject, await create_topic(subject))
    error = (await offsets(subject, timestamp, version=version))[0]
    assert error == (0 if version >= since else errors.UnsupportedVersion.code)


@pytest.mark.parametrize(
    ("version", "expected"), [(3, errors.LeaderNotAvailable), (5, errors.OffsetNotAvailable)]
)
async def test_unavailable_end_offset_has_the_error_of_the_version(
    version: int, expected: type[errors.KafkaError]
):
    subject = broker()
    write(subject, await create_topic(subject, replicas=(1, 2)))
    await subject.lead_again("t")
    assert (await offsets(subject, -1, version=version))[0] == expected.code


@pytest.mark.parametrize(("version", "expected"), [(5, errors.NotLeaderOrFollower.code), (6, 56)])
def test_failed_disk_has_the_error_of_the_version(version: int, expected: int):
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData(
        partition_index=0, error_code=56, high_watermark=-1, records=b""
    )
    answer = FetchResponse(responses=[topic(partitions=[partition])])
    narrow_response(answer, version, FetchRequest(max_wait_ms=0, min_bytes=0))
    assert partition.error_code == expected


@pytest.mark.parametrize(
    ("version", "error", "expected", "replicas"),
    [
        (0, errors.ListenerNotFound.code, errors.LeaderNotAvailable.code, [1]),
        (0, 0, errors.ReplicaNotAvailable.code, [1]),
        (1, 0, 0, [1, 2]),
        (5, errors.ListenerNotFound.code, errors.LeaderNotAvailable.code, [1, 2]),
        (6, errors.ListenerNotFound.code, errors.ListenerNotFound.code, [1, 2]),
    ],
)
def test_unreachable_leaders_and_replicas_have_the_error_of_the_version(
    version: int, error: int, expected: int, replicas: list[int]
):
    topic = metadata.MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition(
        error_code=error,
        partition_index=0,
        leader_id=1,
        replica_nodes=[1, 2],
        isr_nodes=[1, 2],
        offline_replicas=[2],
    )
    answer = metadata.MetadataResponse(topics=[topic(name="t", partitions=[partition])])
    metadata.narrow_response(answer, version, metadata.MetadataRequest())
    assert (partition.error_code, partition.replica_nodes) == (expected, replicas)
    assert partition.isr_nodes == replicas


@pytest.mark.parametrize(
    ("version", "error", "expected"),
    [
        (2, errors.TopicDeletionDisabled, errors.InvalidRequest),
        (3, errors.TopicDeletionDisabled, errors.TopicDeletionDisabled),
        (2, errors.UnknownTopicOrPartition, errors.UnknownTopicOrPartition),
    ],
)
def test_disabled_deletion_of_topics_has_the_error_of_the_version(
    version: int, error: type[errors.KafkaError], expected: type[errors.KafkaError]
):
    shape = delete_topics.DeleteTopicsResponse.DeletableTopicResult
    answer = delete_topics.DeleteTopicsResponse(responses=[shape(name="t", error_code=error.code)])
    request = delete_topics.DeleteTopicsRequest(timeout_ms=0)
    delete_topics.narrow_response(answer, version, request)
    assert answer.responses[0].error_code == expected.code


@pytest.mark.parametrize(
    ("version", "error", "expected"),
    [
        (0, errors.MismatchedEndpointType, errors.InvalidRequest),
        (0, errors.ClusterAuthorizationFailed, errors.ClusterAuthorizationFailed),
        (1, errors.MismatchedEndpointType, errors.MismatchedEndpointType),
        (1, errors.UnsupportedEndpointType, errors.UnsupportedEndpointType),
    ],
)
def test_wrong_kind_of_listener_has_the_error_of_the_version(
    version: int, error: type[errors.KafkaError], expected: type[errors.KafkaError]
):
    answer = describe_cluster.DescribeClusterResponse(error_code=error.code, cluster_id="")
    request = describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=False)
    describe_cluster.narrow_response(answer, version, request)
    assert answer.error_code == expected.code


@pytest.mark.parametrize(
    ("producer_id", "epoch", "expected"), [(-1, -1, 0), (7, 3, 0), (-1, 3, 42), (7, -1, 42)]
)
async def test_producer_id_needs_its_epoch(producer_id: int, epoch: int, expected: int):
    answer = await broker().call(
        InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=0,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
    )
    assert answer.error_code == expected


async def test_negative_producer_id_is_no_producer():
    subject = broker()
    partition = await create_topic(subject)
    batch = one_batch(producer_id=-5, producer_epoch=0, base_sequence=9)
    for _ in range(2):
        (answer,) = await produce(subject, ("t", 0, batch))
        assert answer.error_code == 0
    assert (partition.log.end_offset, len(partition.log.producers)) == (2, 0)
