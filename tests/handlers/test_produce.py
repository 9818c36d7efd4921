"""Produce: stored batches, refused batches, and waits for replicas."""

from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.produce import ProduceRequest
from kwire.configs.broker import BrokerConfig
from kwire.configs.resource_types import TOPIC
from kwire.handlers.dispatch import Dispatcher
from kwire.log.config import LogConfig
from kwire.net.framing import Disconnect
from kwire.net.waiting_answers import Unfinished
from kwire.records import build, compression, control, header, iterate
from kwire.replica.log_config import log_config
from kwire.replica.partition import Partition
from simulation.replication.links import join_parts
from tests.support.handlers.broker import (
    NOW_MS,
    Broker,
    broker,
    create_topic,
    one_batch,
    read_log,
    topic_id,
)
from tests.support.handlers.produce import Data, Topic, produce, request


@pytest.mark.parametrize("acks", [1, -1])
async def test_offsets_are_consecutive(acks: int):
    subject = broker()
    partition = await create_topic(subject)
    for base_offset in (0, 2, 4):
        (answer,) = await produce(subject, ("t", 0, one_batch(b"a", b"b")), acks=acks)
        assert (answer.error_code, answer.base_offset) == (0, base_offset)
        assert (answer.log_append_time_ms, answer.log_start_offset) == (-1, 0)
    assert partition.high_watermark == 6
    heads = [h for _, h in header.headers(read_log(partition))]
    assert [(h.base_offset, h.leader_epoch) for h in heads] == [(0, 0), (2, 0), (4, 0)]


CASES = [
    # The reason, the partition, the batch, changes of the request, the error.
    ("unknown topic", ("nope", 0), one_batch(), {}, errors.UnknownTopicOrPartition),
    ("empty topic", ("", 0), one_batch(), {}, errors.UnknownTopicOrPartition),
    ("empty topic, old version", ("", 0), one_batch(), {"version": 3},
     errors.UnknownTopicOrPartition),
    ("unknown partition", ("t", 7), one_batch(), {}, errors.UnknownTopicOrPartition),
    ("led elsewhere", ("other", 0), one_batch(), {}, errors.NotLeaderOrFollower),
    ("not a batch", ("t", 0), b"rubbish" * 20, {}, errors.CorruptMessage),
    ("null records: Kafka never answers them", ("t", 0), None, {}, errors.InvalidRecord),
    ("no records", ("t", 0), b"", {}, errors.InvalidRecord),
    ("acks of two brokers", ("t", 0), one_batch(), {"acks": 2}, errors.InvalidRequiredAcks),
    ("too large", ("small", 0), one_batch(bytes(500)), {}, errors.MessageTooLarge),
    ("larger than a segment", ("segments", 0), one_batch(bytes(500)), {},
     errors.RecordListTooLarge),
    ("from the future", ("t", 0), one_batch(timestamp_ms=NOW_MS + 3_600_001), {},
     errors.InvalidTimestamp),
    ("no key in a compacted topic", ("compact", 0), one_batch(key=None), {},
     errors.InvalidRecord),
    ("the broker's own topic", ("__consumer_offsets", 0), one_batch(), {},
     errors.InvalidTopicException),
    ("a sequence that leaves a gap", ("t", 0),
     one_batch(producer_id=7, producer_epoch=0, base_sequence=9), {},
     errors.OutOfOrderSequenceNumber),
    ("a producer's old epoch", ("t", 0),
     one_batch(producer_id=8, producer_epoch=1, base_sequence=1), {},
     errors.InvalidProducerEpoch),
    ("a transaction without an id", ("t", 0),
     one_batch(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), {},
     errors.TransactionalIdAuthorizationFailed),
    ("a partition that is not in the transaction", ("t", 0),
     one_batch(producer_id=7, producer_epoch=0, base_sequence=1, transactional=True),
     {"transactional_id": "tx"}, errors.InvalidTxnState),
    ("zstd before version 7", ("t", 0), one_batch(compression=4), {"version": 6},
     errors.UnsupportedCompressionType),
]  # fmt: skip


@pytest.mark.parametrize(("where", "batch", "changes", "expected"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
async def test_refused_partition_fails_alone(
    where: tuple[str, int], batch: bytes | None, changes: dict[str, Any], expected: type
):
    """Invariant 99."""
    subject = broker()
    await create_topic(subject, "good")
    await create_topic(subject)
    await create_topic(subject, "__consumer_offsets")
    await subject.create("other", replicas=(2,), leader=2)
    await create_topic(subject, "small", max_message_bytes=300)
    await create_topic(subject, "segments", segment_bytes=300)
    await create_topic(subject, "compact", cleanup_compact=True)
    for producer, epoch in ((7, 0), (8, 2)):
        await produce(
            subject,
            ("t", 0, one_batch(producer_id=producer, producer_epoch=epoch, base_sequence=0)),
        )
    bad, good = await produce(subject, (*where, batch), ("good", 0, one_batch()), **changes)
    assert (bad.error_code, bad.base_offset) == (expected.code, -1)  # type: ignore[attr-defined]
    assert bad.log_append_time_ms == -1
    errors_with_start_offset = (
        errors.OutOfOrderSequenceNumber,
        errors.InvalidProducerEpoch,
        errors.InvalidTimestamp,
    )
    assert bad.log_start_offset == (0 if expected in errors_with_start_offset else -1)
    # acks belongs to the whole request, every other error to one partition.
    assert (good.error_code == 0) is (expected is not errors.InvalidRequiredAcks)


async def test_a_batch_has_to_fit_into_a_segment():
    """Apache Kafka's answers: a whole segment fits, and the limit comes before the sequence."""
    subject = broker()
    batch = one_batch(bytes(500), producer_id=7, producer_epoch=0, base_sequence=0)
    partition = await create_topic(subject, segment_bytes=len(batch))
    (answer,) = await produce(subject, ("t", 0, batch))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    larger = one_batch(bytes(501), producer_id=7, producer_epoch=0, base_sequence=9)
    (answer,) = await produce(subject, ("t", 0, larger))
    assert answer.error_code == errors.RecordListTooLarge.code
    future = one_batch(bytes(501), timestamp_ms=NOW_MS + 3_600_001)
    (answer,) = await produce(subject, ("t", 0, future))
    assert answer.error_code == errors.InvalidTimestamp.code
    assert partition.log.end_offset == 1


@pytest.mark.parametrize("transactional_id", [None, "tx"])
@pytest.mark.parametrize("acks", [1, -1])
async def test_control_batches_of_clients_are_refused(acks: int, transactional_id: str | None):
    """Invariant 63: a client must not write transaction markers or leader changes."""
    subject = broker()
    partition = await create_topic(subject)
    marker = control.end_txn_marker(
        commit=True, coordinator_epoch=0, producer_id=5, producer_epoch=0, timestamp_ms=NOW_MS
    )
    leader = one_batch(control=True)
    # Apache Kafka looks for the transactional id before it looks at the batch.
    first = errors.InvalidRecord if transactional_id else errors.TransactionalIdAuthorizationFailed
    for batch, expected in ((marker, first), (leader, errors.InvalidRecord)):
        (answer,) = await produce(
            subject, ("t", 0, batch), acks=acks, transactional_id=transactional_id
        )
        assert (answer.error_code, answer.base_offset) == (expected.code, -1)
    assert partition.log.end_offset == 0


async def test_acks_0_gets_no_answer_and_errors_disconnect():
    """Invariant 103."""
    subject = broker()
    partition = await create_topic(subject)
    assert await subject.call(request(("t", 0, one_batch()), acks=0), 9) is None
    assert partition.log.end_offset == 1
    with pytest.raises(Disconnect):
        await subject.call(request(("nope", 0, one_batch()), acks=0), 9)


async def test_repeated_batches_are_acknowledged_with_their_first_offset():
    """Invariant 50: the last five are remembered, the sixth is out of order."""
    subject = broker()
    partition = await create_topic(subject)
    batches = [
        one_batch(b"a", b"b", producer_id=3, producer_epoch=0, base_sequence=2 * n)
        for n in range(6)
    ]
    for n, batch in enumerate(batches):
        (answer,) = await produce(subject, ("t", 0, batch))
        assert answer.base_offset == 2 * n
    for n, batch in list(enumerate(batches))[1:]:
        (answer,) = await produce(subject, ("t", 0, batch))
        assert (answer.error_code, answer.base_offset) == (0, 2 * n)
        # Kafka gives the batch's own time here, whether its client or the broker set it.
        assert answer.log_append_time_ms == NOW_MS
    (answer,) = await produce(subject, ("t", 0, batches[0]))
    assert answer.error_code == errors.OutOfOrderSequenceNumber.code
    assert partition.log.end_offset == 12


async def test_unknown_producer_may_begin_at_any_sequence():
    """Invariant 53 (KIP-360)."""
    subject = broker()
    await create_topic(subject)
    (answer,) = await produce(
        subject, ("t", 0, one_batch(producer_id=3, producer_epoch=0, base_sequence=100))
    )
    assert answer.error_code == 0


async def test_log_append_time_is_the_brokers():
    subject = broker()
    partition = await create_topic(subject, log_append_time=True)
    subject.wall.ms = NOW_MS + 77
    (answer,) = await produce(subject, ("t", 0, one_batch(timestamp_ms=5)))
    assert answer.log_append_time_ms == NOW_MS + 77
    head = header.parse(read_log(partition))
    assert head.is_log_append_time
    assert head.max_timestamp == NOW_MS + 77


async def test_append_time_of_a_producer_is_refused_where_the_broker_sets_it():
    subject = broker()
    await create_topic(subject, log_append_time=True)
    batch = build.stamp(one_batch(), base_offset=0, leader_epoch=-1, append_time_ms=NOW_MS)
    changed = bytearray(one_batch())
    changed[: len(batch)] = batch
    (answer,) = await produce(subject, ("t", 0, bytes(changed)))
    assert answer.error_code == errors.InvalidTimestamp.code


async def test_batch_is_synced_before_it_is_acknowledged():
    """``flush.messages``."""
    subject = broker()
    partition = await create_topic(subject, flush_messages=3)
    for end, durable in ((2, 0), (4, 4), (6, 4), (8, 8)):
        await produce(subject, ("t", 0, one_batch(b"a", b"b")), acks=1)
        log = partition.log
        assert (log.end_offset, log.flush_state.recovery_point) == (end, durable)


async def test_topic_may_be_named_by_id():
    subject = broker()
    await create_topic(subject)
    topic = Topic(topic_id=topic_id("t"), partition_data=[Data(index=0, records=one_batch())])
    unknown, empty = (
        Topic(topic_id=each, partition_data=[Data(index=0, records=one_batch())])
        for each in (b"?" * 16, bytes(16))
    )
    answer = await subject.call(
        ProduceRequest(acks=1, timeout_ms=0, topic_data=[topic, unknown, empty]), 13
    )
    first, *others = answer.responses
    assert (first.topic_id, first.partition_responses[0].error_code) == (topic_id("t"), 0)
    for other in others:
        assert other.partition_responses[0].error_code == errors.UnknownTopicId.code


@pytest.mark.parametrize("codec_name", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
async def test_batches_are_stored_with_the_topics_compression(codec_name: str):
    subject = broker()
    partition = await create_topic(subject, compression_type=codec_name)
    for codec in range(5):
        (answer,) = await produce(subject, ("t", 0, one_batch(b"v" * 100, compression=codec)))
        assert answer.error_code == 0
    buf = read_log(partition)
    for pos, head in header.headers(buf):
        assert ("uncompressed", "gzip", "snappy", "lz4", "zstd")[head.compression] == codec_name
        assert [r.value for r in iterate.records(buf, pos, head)] == [b"v" * 100]


@pytest.mark.parametrize(
    ("codec_name", "level", "used"),
    [
        ("gzip", "1", 1),
        ("gzip", "3", 3),
        ("gzip", "-1", None),
        ("zstd", "-1", -1),
        ("zstd", "19", 19),
    ],
)
async def test_batches_are_compressed_at_the_topics_level(
    codec_name: str, level: str, used: int | None
):
    """A batch that comes in the topic's codec keeps the level of its producer."""
    overrides = {"compression.type": codec_name, f"compression.{codec_name}.level": level}
    config = log_config(overrides, BrokerConfig({}))
    subject = broker()
    partition = await create_topic(
        subject, compression_type=codec_name, compression_level=config.compression_level
    )
    codec, text = compression.NAMES.index(codec_name), b"".join(b"%d," % i for i in range(2000))
    own = one_batch(text, compression=codec)
    for sent in (one_batch(text), own):
        (answer,) = await produce(subject, ("t", 0, sent))
        assert answer.error_code == 0
    buf = read_log(partition)
    (first, _), (second, _) = header.headers(buf)
    plain = one_batch(text)[header.HEADER_SIZE :]
    assert buf[first + header.HEADER_SIZE : second] == compression.compress(codec, plain, used)
    assert buf[second + header.HEADER_SIZE :] == own[header.HEADER_SIZE :]


async def test_error_names_the_records_without_a_key():
    subject = broker()
    await create_topic(subject, cleanup_compact=True)
    batch = build.batch(
        [build.New(key, b"v") for key in (b"k", None, b"k", None)], timestamp_ms=NOW_MS
    )
    (answer,) = await produce(subject, ("t", 0, batch))
    assert answer.error_code == errors.InvalidRecord.code
    assert [record.batch_index for record in answer.record_errors] == [1, 3]


async def test_bytes_after_a_batch_are_dropped():
    subject = broker()
    partition = await create_topic(subject)
    await produce(subject, ("t", 0, one_batch() + b"12345"), ("t", 0, one_batch()))
    assert [h.base_offset for _, h in header.headers(read_log(partition))] == [0, 1]


async def register_other(subject: Broker) -> None:
    """Register broker 2."""
    from kwire.codec.messages import metadata_records as r

    await subject.publish(
        r.RegisterBrokerRecord(
            broker_id=2,
            incarnation_id=bytes(16),
            broker_epoch=1,
            end_points=[
                r.RegisterBrokerRecord.BrokerEndpoint(
                    name="PLAINTEXT", host="there", port=99, security_protocol=0
                )
            ],
            rack="r",
        )
    )


async def test_new_leader_is_returned():
    """KIP-951."""
    subject = broker()
    await subject.create("other", replicas=(2,), leader=2)
    await register_other(subject)
    for old in (3, 9):
        answer = await subject.call(request(("other", 0, one_batch())), old)
        (failed,) = answer.responses[0].partition_responses
        assert failed.error_code == errors.NotLeaderOrFollower.code
    answer = await subject.call(request(("other", 0, one_batch())), 12)
    (failed,) = answer.responses[0].partition_responses
    assert failed.error_code == errors.NotLeaderOrFollower.code
    assert (failed.current_leader.leader_id, failed.current_leader.leader_epoch) == (2, 0)
    (node,) = answer.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (2, "there", 99, "r")


class TestSeveralReplicas:
    """acks=all with a follower whose fetches the test makes (invariant 28)."""

    async def both(self, **settings: Any) -> tuple[Broker, Partition]:
        subject = broker()
        return subject, await create_topic(subject, replicas=(1, 2), **settings)

    def follow(self, subject: Broker, partition: Partition, offset: int) -> None:
        subject.replicas.on_follower_fetched(
            partition, 2, offset=offset, log_start=0, broker_epoch=1
        )

    async def test_acks_all_waits_for_the_follower(self, autojump_clock: Any):
        subject, partition = await self.both()
        async with trio.open_nursery() as nursery:

            async def follower() -> None:
                await trio.sleep(0.5)
                assert partition.high_watermark == 0
                self.follow(subject, partition, 1)

            nursery.start_soon(follower)
            (answer,) = await produce(subject, ("t", 0, one_batch()))
        assert answer.error_code == 0
        assert trio.current_time() == pytest.approx(autojump_clock.current_time())
        assert partition.high_watermark == 1

    async def test_next_request_is_appended_while_the_first_waits(self, autojump_clock: Any):
        """A follower copies the batches of several requests of one connection at once."""
        subject, partition = await self.both()
        requests = Dispatcher(subject.services, ListenerType.BROKER).for_connection("A", "peer")
        frame = memoryview(request_frame(0, 9, 1, "c", request(("t", 0, one_batch()))))[4:]
        await requests.dispatcher.prepare(0, 9)
        answers = [requests.answer_now(frame) for _ in range(3)]
        assert (partition.log.end_offset, partition.high_watermark) == (3, 0)
        self.follow(subject, partition, 2)
        results: list[tuple[int, int]] = []
        for answer in answers:
            assert isinstance(answer, Unfinished)
            _, response = read_response(0, 9, join_parts(await answer.finish())[4:])
            (produced,) = response.responses[0].partition_responses
            results.append((produced.error_code, produced.base_offset))
        assert results == [(0, 0), (0, 1), (errors.RequestTimedOut.code, -1)]

    async def test_acks_1_does_not_wait(self):
        subject, partition = await self.both()
        (answer,) = await produce(subject, ("t", 0, one_batch()), acks=1)
        assert (answer.error_code, partition.high_watermark) == (0, 0)

    async def test_acks_all_times_out(self, autojump_clock: Any):
        subject, partition = await self.both()
        start = trio.current_time()
        (answer,) = await produce(subject, ("t", 0, one_batch()), timeout_ms=700)
        assert answer.error_code == errors.RequestTimedOut.code
        assert trio.current_time() - start == pytest.approx(0.7)
        assert len(partition.commits) == 0

    async def test_leadership_lost_during_the_wait_is_an_error(self, autojump_clock: Any):
        subject, _ = await self.both()
        async with trio.open_nursery() as nursery:

            async def resign() -> None:
                await trio.sleep(0.1)
                await subject.lead_again("t", leader=2)

            nursery.start_soon(resign)
            (answer,) = await produce(subject, ("t", 0, one_batch()))
        assert answer.error_code == errors.NotLeaderOrFollower.code

    async def test_new_leader_is_returned_after_the_wait(self, autojump_clock: Any):
        """KIP-951: a producer that waited goes on with the new leader at once."""
        subject, _ = await self.both()
        await register_other(subject)
        async with trio.open_nursery() as nursery:

            async def resign() -> None:
                await trio.sleep(0.1)
                await subject.lead_again("t", leader=2)

            nursery.start_soon(resign)
            answer = await subject.call(request(("t", 0, one_batch())), 12)
        (failed,) = answer.responses[0].partition_responses
        assert failed.error_code == errors.NotLeaderOrFollower.code
        assert (failed.current_leader.leader_id, failed.current_leader.leader_epoch) == (2, 1)
        assert [node.port for node in answer.node_endpoints] == [99]

    async def test_too_few_in_sync_replicas_refuse_the_append(self):
        subject, partition = await self.both(isr=(1,), min_insync_replicas=2)
        (answer,) = await produce(subject, ("t", 0, one_batch()))
        assert answer.error_code == errors.NotEnoughReplicas.code
        assert partition.log.end_offset == 0
        (answer,) = await produce(subject, ("t", 0, one_batch()), acks=1)
        assert answer.error_code == 0

    async def test_lower_minimum_commits_nothing_on_a_leader_that_the_same_metadata_replace(self):
        """Invariants 22 and 29: the next leader was elected before the minimum was lowered."""
        subject, partition = await self.both(isr=(1,), min_insync_replicas=2)
        await produce(subject, ("t", 0, one_batch()), acks=1)
        subject.configs["t"] = LogConfig(min_insync_replicas=1)
        await subject.publish(
            r.PartitionChangeRecord(partition_id=0, topic_id=topic_id("t"), leader=2, isr=[2]),
            r.ConfigRecord(
                resource_type=TOPIC, resource_name="t", name="min.insync.replicas", value="1"
            ),
        )
        assert (partition.log.end_offset, partition.high_watermark) == (1, 0)

    async def test_lower_minimum_commits_what_waited_for_more_replicas(self):
        subject, partition = await self.both(isr=(1,), min_insync_replicas=2)
        await produce(subject, ("t", 0, one_batch()), acks=1)
        subject.configs["t"] = LogConfig(min_insync_replicas=1)
        await subject.publish(
            r.ConfigRecord(
                resource_type=TOPIC, resource_name="t", name="min.insync.replicas", value="1"
            )
        )
        assert partition.high_watermark == 1

    async def test_too_few_in_sync_replicas_after_the_append_are_an_error(
        self, autojump_clock: Any
    ):
        """The record is stored, and it is not known whether it will be committed."""
        subject, partition = await self.both(min_insync_replicas=2)
        async with trio.open_nursery() as nursery:

            async def shrink() -> None:
                await trio.sleep(0.1)
                assert partition.leader is not None
                partition.leader.isr = frozenset({1})
                partition.commits.reach(1)

            nursery.start_soon(shrink)
            (answer,) = await produce(subject, ("t", 0, one_batch()))
        assert answer.error_code == errors.NotEnoughReplicasAfterAppend.code
        assert partition.log.end_offset == 1
