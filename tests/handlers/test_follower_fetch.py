"""Consumers that read from followers (KIP-392): what a follower serves, and whom a leader names."""

import pytest
import trio

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.describe_producers import DescribeProducersRequest
from kwire.configs.broker import RACK_AWARE_SELECTOR, BrokerConfig
from kwire.records import control
from kwire.records.build import New, batch
from kwire.replica.fetcher.followed_partition import FollowedPartition
from kwire.replica.partition import Partition
from tests.support.handlers.broker import NODE, NOW_MS, Broker, broker, create_topic, write
from tests.support.handlers.fetch import Fetcher, at, fetch, values

HERE, THERE, NOWHERE = "here", "there", "nowhere"


async def follower_of_two() -> tuple[Broker, FollowedPartition]:
    """Make a follower of broker 2 with two records, of which one is committed."""
    subject = broker()
    partition = await create_topic(subject, replicas=(2, NODE), leader=2)
    followed = FollowedPartition(partition, 2, 0)
    copy(followed, b"a", high_watermark=0)
    copy(followed, b"b", high_watermark=1)
    subject.replicas._completion.on_copied(partition)
    return subject, followed


def copy(followed: FollowedPartition, value: bytes, *, high_watermark: int) -> None:
    end = followed.partition.log.end_offset
    records = batch([New(b"k", value)], timestamp_ms=NOW_MS, base_offset=end, leader_epoch=0)
    followed.append(records, high_watermark, 0, NOW_MS)


async def test_follower_serves_records_below_its_high_watermark() -> None:
    """Invariant 38."""
    subject, _ = await follower_of_two()
    (data,) = await fetch(subject, at("t"))
    assert values(data) == [(0, b"a")]
    assert (data.high_watermark, data.preferred_read_replica) == (1, -1)
    for offset in (1, 2):
        (data,) = await fetch(subject, at("t", offset))
        assert (data.error_code, len(data.records)) == (0, 0)


async def test_follower_that_has_started_serves_nothing_until_its_leader_confirms_its_log() -> None:
    """Invariant 38: a power loss may have brought back records that were truncated."""
    subject = broker()
    partition = await create_topic(subject, replicas=(2, NODE), leader=2)
    records = batch([New(b"k", b"a")], timestamp_ms=NOW_MS, base_offset=0, leader_epoch=0)
    partition.log.append_follower(records, NOW_MS)
    partition.log.high_watermark = 1
    for offset in (0, 1):
        (data,) = await fetch(subject, at("t", offset), max_wait_ms=60_000)
        assert (data.error_code, bytes(data.records)) == (errors.OffsetNotAvailable.code, b"")
    FollowedPartition(partition, 2, 0).append(b"", 1, 0, NOW_MS)
    (data,) = await fetch(subject, at("t"))
    assert values(data) == [(0, b"a")]


async def test_replica_that_has_led_serves_as_a_follower_at_once() -> None:
    """Its consumers have read its records already."""
    subject = broker()
    partition = await create_topic(subject, replicas=(NODE, 2))
    write(subject, partition, b"a")
    await fetch(subject, at("t", 1), replica_id=2)
    await subject.publish(
        r.PartitionChangeRecord(partition_id=0, topic_id=partition.topic_id, leader=2)
    )
    assert partition.leader is None
    (data,) = await fetch(subject, at("t"))
    assert values(data) == [(0, b"a")]


@pytest.mark.parametrize(
    ("topic", "version", "expected"),
    [
        (at("t", 3), 12, errors.OffsetOutOfRange),
        (at("t"), 10, errors.NotLeaderOrFollower),
        (at("t", current_leader_epoch=1), 12, errors.UnknownLeaderEpoch),
    ],
)
async def test_follower_refuses_what_it_cannot_serve(topic, version, expected) -> None:
    """Offsets beyond its end, consumers that know leaders only, and epochs that it lacks."""
    subject, _ = await follower_of_two()
    (data,) = await fetch(subject, topic, version=version)
    assert data.error_code == expected.code


async def test_follower_describes_the_producers_of_its_copy() -> None:
    """Invariant 61: a tool looks for hanging transactions on each broker."""
    subject = broker()
    partition = await create_topic(subject, replicas=(2, NODE), leader=2)
    records = batch(
        [New(b"k", b"open")],
        timestamp_ms=NOW_MS,
        producer_id=5,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    FollowedPartition(partition, 2, 0).append(records, 1, 0, NOW_MS)
    topic = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])
    answer = await subject.call(DescribeProducersRequest(topics=[topic]))
    (described,) = answer.topics[0].partitions
    (producer,) = described.active_producers
    assert (described.error_code, producer.producer_id, producer.producer_epoch) == (0, 5, 3)
    assert producer.current_txn_start_offset == 0


async def test_other_followers_cannot_fetch_from_a_follower() -> None:
    subject, _ = await follower_of_two()
    (data,) = await fetch(subject, at("t"), replica_id=3)
    assert data.error_code == errors.NotLeaderOrFollower.code


async def test_long_poll_at_a_follower_ends_with_the_high_watermark(autojump_clock) -> None:
    subject, followed = await follower_of_two()
    on_copied = subject.replicas._completion.on_copied
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def replicate() -> None:
            await trio.sleep(1)
            copy(followed, b"c", high_watermark=1)
            on_copied(followed.partition)
            await trio.sleep(1)
            copy(followed, b"d", high_watermark=2)
            on_copied(followed.partition)

        (data,) = await fetch(subject, at("t", 1), max_wait_ms=60_000)
    assert values(data) == [(1, b"b")]
    assert trio.current_time() == pytest.approx(2)


@pytest.mark.parametrize("is_copied_before_start", [False, True])
async def test_commit_of_the_former_leaders_records_wakes_consumers(
    autojump_clock: trio.testing.MockClock, is_copied_before_start: bool
) -> None:
    subject, followed = await follower_of_two()
    partition = followed.partition
    if is_copied_before_start:
        partition.uncommitted.clear()
    await subject.publish(
        r.PartitionChangeRecord(partition_id=0, topic_id=partition.topic_id, leader=NODE)
    )
    assert (partition.high_watermark, partition.log.end_offset) == (1, 2)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def replicate() -> None:
            await trio.sleep(1)
            await fetch(subject, at("t", 2, current_leader_epoch=1), replica_id=2)

        (data,) = await fetch(subject, at("t", 1), max_wait_ms=60_000)
    assert values(data) == [(1, b"b")]
    assert trio.current_time() == pytest.approx(1)


@pytest.mark.parametrize("has_session", [False, True])
async def test_end_of_a_transaction_wakes_read_committed_fetch_at_a_follower(
    autojump_clock: trio.testing.MockClock, has_session: bool
) -> None:
    """The marker alone has fewer bytes than the fetch requests; the records before it count."""
    subject = broker()
    partition = await create_topic(subject, replicas=(2, NODE), leader=2)
    followed = FollowedPartition(partition, 2, 0)
    records = batch(
        [New(b"k", b"x" * 500)],
        timestamp_ms=NOW_MS,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    followed.append(records, 1, 0, NOW_MS)
    subject.replicas._completion.on_copied(partition)
    fetcher = Fetcher(subject, isolation_level=1, min_bytes=400)
    if has_session:
        assert not (await fetcher.fetch(0))[0].records
    marker = control.end_txn_marker(
        commit=True,
        coordinator_epoch=0,
        producer_id=5,
        producer_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=1,
    )
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def replicate() -> None:
            await trio.sleep(1)
            followed.append(marker, 2, 0, NOW_MS)
            subject.replicas._completion.on_copied(partition)

        answers = await fetcher.fetch(*(() if has_session else (0,)), wait_ms=60_000)
    assert values(answers[0])[0] == (0, b"x" * 500)
    assert trio.current_time() == pytest.approx(1)


async def leader_of_three(**settings: str) -> tuple[Broker, Partition]:
    """Make a leader with a follower in its own rack and one in another."""
    subject = broker()
    selector = {"replica.selector.class": RACK_AWARE_SELECTOR, **settings}
    subject.current.config = BrokerConfig(selector)
    for node, rack in ((NODE, HERE), (2, THERE), (3, HERE)):
        endpoint = r.RegisterBrokerRecord.BrokerEndpoint(
            name="PLAINTEXT", host="localhost", port=9000 + node, security_protocol=0
        )
        await subject.publish(
            r.RegisterBrokerRecord(
                broker_id=node,
                incarnation_id=bytes(16),
                rack=rack,
                fenced=False,
                broker_epoch=1,
                end_points=[endpoint],
            )
        )
    partition = await create_topic(subject, replicas=(NODE, 2, 3))
    write(subject, partition, b"a")
    for node in (2, 3):
        await fetch(subject, at("t", 1), replica_id=node)
    return subject, partition


async def read_replica(subject: Broker, rack: str, offset: int = 0, **changes: int) -> int:
    (data,) = await fetch(subject, at("t", offset), rack_id=rack, max_wait_ms=60_000, **changes)
    assert data.error_code == 0
    assert bool(data.records) is (data.preferred_read_replica < 0)
    return data.preferred_read_replica


async def test_leader_names_the_replica_in_the_consumers_rack() -> None:
    subject, _ = await leader_of_three()
    assert await read_replica(subject, THERE) == 2
    for rack in (HERE, NOWHERE, ""):
        assert await read_replica(subject, rack) == -1
    assert await read_replica(subject, THERE, isolation_level=1) == 2


async def test_leader_without_selector_names_no_replica() -> None:
    name = "org.apache.kafka.common.replica.LeaderSelector"
    subject, _ = await leader_of_three(**{"replica.selector.class": name})
    assert await read_replica(subject, THERE) == -1


async def test_leader_names_no_replica_that_lacks_the_offset_or_is_not_in_sync() -> None:
    subject, partition = await leader_of_three()
    leader = partition.leader
    assert leader is not None
    leader.followers[2].log_end = 0
    write(subject, partition, b"b")
    await fetch(subject, at("t", 2), replica_id=3)
    leader.followers[2].log_end = 2
    partition.log.high_watermark = 2
    assert await read_replica(subject, THERE, 1) == 2
    leader.followers[2].log_end = 0
    assert await read_replica(subject, THERE, 1) == -1
    leader.followers[2].log_end, leader.isr = 2, frozenset({NODE, 3})
    assert await read_replica(subject, THERE, 1) == -1


async def test_fenced_broker_is_not_named() -> None:
    subject, _ = await leader_of_three()
    await subject.publish(r.FenceBrokerRecord(id=2, epoch=1))
    assert await read_replica(subject, THERE) == -1


def test_unknown_selector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be org\.apache\.kafka"):
        assert BrokerConfig({"replica.selector.class": "com.example.Nearest"})
