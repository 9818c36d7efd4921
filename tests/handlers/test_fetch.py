"""Fetch: the records and errors of its response, long polls, and fetch sessions."""

from contextlib import suppress
from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.apis import ListenerType
from kwire.codec.frame import request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.primitives import EncodeError
from kwire.configs.broker import BrokerConfig
from kwire.handlers.dispatch import Dispatcher
from kwire.records import control, header
from kwire.replica.partition import Partition
from simulation.disk import SimFile
from tests.support.handlers.broker import (
    NOW_MS,
    Broker,
    broker,
    create_topic,
    topic_id,
    write,
)
from tests.support.handlers.fetch import Fetcher, Topic, at, fetch, request, values


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12, 13, 16, 18])
async def test_every_version_returns_records(version: int):
    subject = broker()
    partition = await create_topic(subject)
    write(subject, partition, b"a", b"b")
    answer = await subject.call(request(at("t")), version)
    (data,) = answer.responses[0].partitions
    assert values(data) == [(0, b"a"), (1, b"b")]
    assert (data.high_watermark, data.last_stable_offset) == (2, 2)
    assert data.aborted_transactions is None


async def test_offset_inside_a_batch_returns_the_batch():
    """Invariant 16."""
    subject = broker()
    partition = await create_topic(subject)
    write(subject, partition, b"a", b"b", b"c")
    write(subject, partition, b"d")
    (data,) = await fetch(subject, at("t", 1))
    assert values(data)[0] == (0, b"a")
    (data,) = await fetch(subject, at("t", 3))
    assert values(data) == [(3, b"d")]


@pytest.mark.parametrize("offset", [-1, 3, 100])
async def test_offset_out_of_range_is_an_error(offset: int):
    """Every offset is -1, and the records are empty, not null, as in Kafka."""
    subject = broker()
    partition = await create_topic(subject)
    write(subject, partition, b"a", b"b")
    (data,) = await fetch(subject, at("t", offset), max_wait_ms=10_000)
    assert data.error_code == errors.OffsetOutOfRange.code
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (-1, -1, -1)
    assert data.records is not None
    assert len(data.records) == 0
    assert data.aborted_transactions is None


@pytest.mark.parametrize(
    ("topic", "version", "expected"),
    [
        (at("nope"), 12, errors.UnknownTopicOrPartition),
        (at("nope"), 13, errors.UnknownTopicId),
        (at(""), 4, errors.UnknownTopicOrPartition),
        (at(""), 12, errors.UnknownTopicOrPartition),
        (Topic(topic_id=bytes(16), partitions=at("t").partitions), 13, errors.UnknownTopicId),
        (at("t", partition=9), 12, errors.UnknownTopicOrPartition),
        (at("t", partition=9), 13, errors.UnknownTopicOrPartition),
        (at("other"), 13, errors.NotLeaderOrFollower),
        (at("t", current_leader_epoch=0), 13, errors.FencedLeaderEpoch),
        (at("t", current_leader_epoch=1), 13, None),
        (at("t", current_leader_epoch=2), 13, errors.UnknownLeaderEpoch),
        (at("offline"), 13, errors.KafkaStorageError),
    ],
)
async def test_partition_error_is_kafkas(
    topic: Topic, version: int, expected: type[errors.KafkaError] | None
):
    subject = broker()
    await create_topic(subject)
    await subject.lead_again("t")
    await subject.create("other", replicas=(2,), leader=2)
    if topic.topic == "offline":
        subject.disk.fail_at("mkdir", OSError("no space"))
        await subject.create("offline")
    (data,) = await fetch(subject, topic, version=version, max_wait_ms=0)
    assert data.error_code == (0 if expected is None else expected.code)


async def register(subject: Broker, node_id: int) -> None:
    await subject.publish(
        r.RegisterBrokerRecord(
            broker_id=node_id,
            incarnation_id=bytes(16),
            broker_epoch=1,
            end_points=[
                r.RegisterBrokerRecord.BrokerEndpoint(
                    name="PLAINTEXT", host="there", port=99, security_protocol=0
                )
            ],
            rack=None,
        )
    )


@pytest.mark.parametrize(
    ("version", "is_hinted"),
    [(4, False), (11, False), (12, False), (15, False), (16, True), (18, True)],
)
async def test_new_leader_is_returned_from_version_16(version: int, is_hinted: bool):
    """KIP-951."""
    subject = broker()
    await subject.create("t", replicas=(2,), leader=2)
    await register(subject, 2)
    answer = await subject.call(request(at("t")), version)
    (data,) = answer.responses[0].partitions
    assert data.error_code == errors.NotLeaderOrFollower.code
    assert data.current_leader.leader_id == (2 if is_hinted else -1)
    assert [(n.node_id, n.port) for n in answer.node_endpoints] == ([(2, 99)] if is_hinted else [])


@pytest.mark.parametrize(
    ("leader_epoch", "expected"),
    [(-1, errors.NotLeaderOrFollower), (0, errors.UnknownLeaderEpoch)],
)
async def test_broker_that_holds_no_replica_is_refused(
    leader_epoch: int, expected: type[errors.KafkaError]
):
    """It may know a reassignment that the leader does not know yet, within one leader epoch."""
    subject = broker()
    await create_topic(subject)
    follower = FetchRequest.ReplicaState(replica_id=7)
    named = at("t", current_leader_epoch=leader_epoch)
    (data,) = await fetch(subject, named, version=17, replica_state=follower)
    assert data.error_code == expected.code


async def test_new_epoch_of_the_same_leader_is_returned():
    """KIP-951: a consumer that missed two elections goes on without a look at the metadata."""
    subject = broker()
    await create_topic(subject)
    await register(subject, 1)
    await subject.lead_again("t")
    subject.current.config = BrokerConfig({"node.id": "1"})
    answer = await subject.call(request(at("t", current_leader_epoch=0)), 18)
    (data,) = answer.responses[0].partitions
    assert data.error_code == errors.FencedLeaderEpoch.code
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (1, 1)
    assert [(n.node_id, n.port) for n in answer.node_endpoints] == [(1, 99)]


@pytest.mark.parametrize(("version", "expected"), [(9, 76), (10, 0)])
async def test_zstd_topic_is_refused_to_old_clients(version: int, expected: int):
    subject = broker()
    await create_topic(subject, compression_type="zstd")
    (data,) = await fetch(subject, at("t"), version=version)
    assert data.error_code == expected


class TestLimits:
    """Invariant 18."""

    async def both(self) -> Broker:
        subject = broker()
        for name in ("a", "b"):
            partition = await create_topic(subject, name)
            for _ in range(3):
                write(subject, partition, bytes(1000))
        return subject

    async def sizes(self, **changes: Any) -> list[int]:
        limit = changes.pop("partition_max_bytes", 1 << 20)
        subject = await self.both()
        topics = (at("a", max_bytes=limit), at("b", max_bytes=limit))
        answers = await fetch(subject, *topics, **changes)
        return [len(list(header.headers(bytes(p.records)))) for p in answers]

    async def test_all_batches_fit(self):
        assert await self.sizes() == [3, 3]

    async def test_first_batch_is_returned_whatever_the_limits(self):
        assert await self.sizes(max_bytes=1) == [1, 0]
        assert await self.sizes(partition_max_bytes=1) == [1, 0]
        assert await self.sizes(max_bytes=0) == [1, 0]

    async def test_partition_max_bytes_limits_each_partition(self):
        assert await self.sizes(partition_max_bytes=2500) == [2, 2]

    async def test_max_bytes_limits_the_response(self):
        assert await self.sizes(max_bytes=2500) == [2, 0]
        assert await self.sizes(max_bytes=4500) == [3, 1]

    async def test_nothing_of_a_batch_that_does_not_fit_is_sent(self):
        subject = await self.both()
        first, second = await fetch(subject, at("a", max_bytes=1100), at("b"), max_bytes=1500)
        assert len(values(first)) == 1
        assert bytes(second.records) == b""

    async def test_partitions_of_a_session_without_room_are_served_next(self):
        subject = broker()
        await create_topic(subject, partitions=3)
        for number in range(3):
            partition = subject.replicas.partitions.get("t", number)
            assert partition is not None
            write(subject, partition, bytes(1000))
        fetcher = Fetcher(subject, max_bytes=1500)
        await fetcher.fetch(0, 1, 2)
        served = []
        for _ in range(4):
            answers = await fetcher.fetch()
            served += [number for number, each in answers.items() if values(each)]
        assert served == [0, 1, 2, 0]


class TestWaiting:
    """Long polls, on a clock that jumps to the next deadline."""

    async def test_fetch_ends_after_max_wait(self, autojump_clock: Any):
        subject = broker()
        await create_topic(subject)
        start = trio.current_time()
        (data,) = await fetch(subject, at("t"), max_wait_ms=500)
        assert (data.error_code, len(data.records)) == (0, 0)
        assert trio.current_time() - start == pytest.approx(0.5)
        assert len(subject.replicas.fetch_waits) == 0

    async def test_bytes_of_all_partitions_count(self, autojump_clock: Any):
        subject = broker()
        a, b = await create_topic(subject, "a"), await create_topic(subject, "b")
        write(subject, a, bytes(300))

        async def later() -> None:
            await trio.sleep(1)
            write(subject, b, bytes(300))
            await trio.sleep(1)
            write(subject, a, bytes(300))

        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            answers = await fetch(subject, at("a"), at("b"), min_bytes=1000, max_wait_ms=9000)
        # What was read before the wait was not sent, and does not count.
        assert a.traffic.bytes_out.value == len(answers[0].records)
        assert trio.current_time() - start == pytest.approx(2)
        assert [len(values(p)) for p in answers] == [2, 1]

    async def test_fetch_with_min_bytes_does_not_wait(self, autojump_clock: Any):
        subject = broker()
        write(subject, await create_topic(subject), b"a")
        start = trio.current_time()
        (data,) = await fetch(subject, at("t"), max_wait_ms=60_000)
        assert trio.current_time() == start
        assert values(data) == [(0, b"a")]

    async def test_fetch_that_ends_with_its_segment_does_not_wait(self, autojump_clock: Any):
        """More records are readable, in the next segment: the client may fetch them at once."""
        subject = broker()
        partition = await create_topic(subject, segment_bytes=300)
        for number in range(3):
            write(subject, partition, b"%d" % number * 200)
        fetchers = [Fetcher(subject, min_bytes=1000), Fetcher(subject, min_bytes=1000)]
        start = trio.current_time()
        for fetcher in fetchers:
            answer = await fetcher.fetch(0, wait_ms=60_000)
            assert values(answer[0]) == [(0, b"0" * 200)]
        assert trio.current_time() == start
        (data,) = await fetch(subject, at("t", 2), min_bytes=1000, max_wait_ms=60_000)
        assert values(data) == [(2, b"2" * 200)]
        assert trio.current_time() == start + 60, "there is nothing behind the last segment"

    @pytest.mark.parametrize("topics", [(), (at("nope"),), (at("t", 5), at("t"))])
    async def test_fetch_with_error_or_without_partitions_does_not_wait(
        self, autojump_clock: Any, topics: tuple[Topic, ...]
    ):
        """Requests without partitions, or with an error that the client should get at once."""
        subject = broker()
        await create_topic(subject)
        start = trio.current_time()
        await fetch(subject, *topics, max_wait_ms=60_000)
        assert trio.current_time() == start

    async def test_lost_leadership_ends_the_wait(self, autojump_clock: Any):
        subject = broker()
        await create_topic(subject, replicas=(1, 2), isr=(1,))

        async def resign() -> None:
            await trio.sleep(1)
            await subject.lead_again("t", leader=2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resign)
            (data,) = await fetch(subject, at("t"), version=10, max_wait_ms=60_000)
        assert data.error_code == errors.NotLeaderOrFollower.code
        assert trio.current_time() < 50

    async def test_cancelled_fetch_leaves_no_wait(self, autojump_clock: Any):
        """The wait of a client that hung up is removed."""
        subject = broker()
        await create_topic(subject)
        with trio.move_on_after(1):
            await fetch(subject, at("t"), max_wait_ms=60_000)
        assert len(subject.replicas.fetch_waits) == 0

    async def test_deletion_of_the_topic_ends_the_wait(self, autojump_clock: Any):
        subject = broker()
        await create_topic(subject)

        async def delete() -> None:
            await trio.sleep(1)
            await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            (data,) = await fetch(subject, at("t"), max_wait_ms=60_000)
        assert data.error_code == errors.UnknownTopicOrPartition.code
        assert subject.logs.get("t", 0) is None


class TestReplicas:
    """A consumer reads to the high watermark, a follower to the log end (invariants 13, 26)."""

    async def both(self) -> tuple[Broker, Partition]:
        subject = broker()
        partition = await create_topic(subject, replicas=(1, 2))
        write(subject, partition, b"a")
        return subject, partition

    async def test_consumers_stay_below_the_high_watermark(self):
        subject, partition = await self.both()
        (data,) = await fetch(subject, at("t"))
        assert (data.high_watermark, values(data)) == (0, [])
        (data,) = await fetch(subject, at("t"), replica_id=2)
        assert values(data) == [(0, b"a")]
        (data,) = await fetch(subject, at("t", 1), replica_id=2)
        assert data.high_watermark == 1 or partition.high_watermark == 1
        (data,) = await fetch(subject, at("t"))
        assert values(data) == [(0, b"a")]

    async def test_offset_above_the_high_watermark_is_not_out_of_range(self):
        subject, _ = await self.both()
        (data,) = await fetch(subject, at("t", 1))
        assert (data.error_code, len(data.records)) == (0, 0)

    async def test_fetch_of_a_follower_wakes_consumers(self, autojump_clock: Any):
        subject, _ = await self.both()

        async def follower() -> None:
            await trio.sleep(1)
            await fetch(subject, at("t", 1), replica_id=2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower)
            (data,) = await fetch(subject, at("t"), max_wait_ms=60_000)
        assert values(data) == [(0, b"a")]
        assert trio.current_time() < 50

    async def test_fetch_of_a_broker_without_replica_is_refused(self):
        subject, _ = await self.both()
        (data,) = await fetch(subject, at("t"), replica_id=3)
        assert data.error_code == errors.NotLeaderOrFollower.code

    async def test_diverging_epoch_is_returned_at_once(self):
        subject, partition = await self.both()
        await subject.lead_again("t")
        write(subject, partition, b"b")
        # Epoch 0 ended at offset 1 here; the follower has more records of it.
        (data,) = await fetch(
            subject, at("t", 5, last_fetched_epoch=0), replica_id=2, max_wait_ms=60_000
        )
        diverging = data.diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (0, 1)
        assert data.error_code == 0
        (data,) = await fetch(subject, at("t", 1, last_fetched_epoch=0), replica_id=2)
        assert values(data) == [(1, b"b")]


class TestTransactions:
    """read_committed ends at the last stable offset and lists aborted ones (invariant 19)."""

    async def test_read_committed_ends_before_an_open_transaction(self):
        subject = broker()
        partition = await create_topic(subject)
        write(subject, partition, b"plain")
        write(
            subject,
            partition,
            b"tx",
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        write(subject, partition, b"later")
        (data,) = await fetch(subject, at("t"), isolation_level=1)
        assert values(data) == [(0, b"plain")]
        assert (data.high_watermark, data.last_stable_offset) == (3, 1)
        assert data.aborted_transactions == []
        (data,) = await fetch(subject, at("t"))
        assert len(values(data)) == 3
        marker = control.end_txn_marker(
            commit=False, coordinator_epoch=0, producer_id=5, producer_epoch=0, timestamp_ms=NOW_MS
        )
        partition.append(marker, header.parse(marker), 1, 0.0, NOW_MS, from_client=False)
        (data,) = await fetch(subject, at("t"), isolation_level=1)
        assert (data.high_watermark, data.last_stable_offset) == (4, 4)
        assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()] == [
            (5, 1)
        ]
        assert [offset for offset, _ in values(data)] == [0, 1, 2, 3]


class TestSessions:
    """The handler's part of KIP-227; the rules are in tests/replica/test_fetch_sessions.py."""

    async def test_session_returns_only_changed_partitions(self):
        subject = broker()
        a = await create_topic(subject, "a")
        await create_topic(subject, "b")
        first = await subject.call(request(at("a"), at("b"), session_epoch=0), 12)
        assert first.session_id > 0
        assert len(first.responses) == 2
        again = await subject.call(request(session_id=first.session_id, session_epoch=1), 12)
        assert (again.session_id, again.responses) == (first.session_id, [])
        write(subject, a, b"x")
        again = await subject.call(request(session_id=first.session_id, session_epoch=2), 12)
        (topic,) = again.responses
        assert (topic.topic, values(topic.partitions[0])) == ("a", [(0, b"x")])

    async def test_unknown_session_is_an_error_of_the_request(self):
        subject = broker()
        answer = await subject.call(request(session_id=5, session_epoch=7), 12)
        assert (answer.error_code, answer.session_id, answer.responses) == (
            errors.FetchSessionIdNotFound.code,
            0,
            [],
        )

    async def test_session_without_partitions_is_closed(self):
        subject = broker()
        await create_topic(subject)
        first = await subject.call(request(at("t"), session_epoch=0), 17)
        forgotten_topic = FetchRequest.ForgottenTopic(topic_id=topic_id("t"), partitions=[0])
        again = await subject.call(
            request(
                session_id=first.session_id,
                session_epoch=1,
                forgotten_topics_data=[forgotten_topic],
            ),
            17,
        )
        assert (again.session_id, again.responses) == (0, [])


async def test_recreated_topic_has_no_old_records():
    """Invariant 40: the old id is unknown, and the old records are not readable."""
    subject = broker()
    write(subject, await create_topic(subject), b"old")
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    await create_topic(subject, identity=topic_id("t2"))
    (data,) = await fetch(subject, at("t"), version=13)
    assert data.error_code == errors.UnknownTopicId.code
    (data,) = await fetch(subject, at("t"), version=12)
    assert (data.error_code, values(data)) == (0, [])


async def test_files_are_released_after_a_fetch(autojump_clock: Any):
    """Regions that are read and not sent are closed; else their files would stay open."""
    subject = broker()
    partition = await create_topic(subject)
    write(subject, partition, b"a")
    file = partition.log.segments.active.file
    assert isinstance(file, SimFile)
    await fetch(subject, at("t"), min_bytes=1000, max_wait_ms=1)
    assert file.pins == 0
    # A partition that fails after others were read must not leave theirs open either.
    await fetch(subject, at("t"), at("nope"), at("t", 100))
    assert file.pins == 0


async def test_late_fetch_of_a_follower_that_was_started_again_keeps_no_file():
    """KIP-903: it is refused; the answer would have had records."""
    subject = broker()
    partition = await create_topic(subject, replicas=(1, 2))
    write(subject, partition, b"a")
    file = partition.log.segments.active.file
    assert isinstance(file, SimFile)
    codes = []
    for epoch in (5, 4):
        replica = FetchRequest.ReplicaState(replica_id=2, replica_epoch=epoch)
        answer = await subject.call(request(at("t"), replica_state=replica), 17)
        codes.append(answer.responses[0].partitions[0].error_code)
    assert codes == [0, errors.NotLeaderOrFollower.code]
    assert file.pins == 0


@pytest.mark.parametrize(
    ("place", "version"),
    [
        ("kwire.handlers.dispatch.encode_response", 6),
        ("kwire.handlers.dispatch.flat_encoder", 17),
        ("kwire.replica.fetch_sessions.FetchSessions.finishing", 17),
        ("kwire.replica.replicas.ReplicaService.on_follower_fetched", 17),
    ],
)
async def test_files_are_released_when_an_answer_fails(
    place: str, version: int, monkeypatch: pytest.MonkeyPatch
):
    """invariant 100: a bug while one request is answered keeps no file open."""
    subject = broker()
    partition = await create_topic(subject, replicas=(1, 2))
    write(subject, partition, b"a")
    file = partition.log.segments.active.file
    assert isinstance(file, SimFile)
    pins = []

    def fail(*args: Any, **more: Any) -> Any:
        pins.append(file.pins)
        raise EncodeError("a bug")

    is_compiled = place.endswith("flat_encoder")
    monkeypatch.setattr(place, (lambda *names: fail) if is_compiled else fail)
    replica = {"replica_state": FetchRequest.ReplicaState(replica_id=2, replica_epoch=1)}
    message = request(at("t"), **(replica if version >= 15 else {"replica_id": 2}))
    frame = request_frame(1, version, 7, "c", message)
    requests = Dispatcher(subject.services, ListenerType.BROKER).for_connection(
        "PLAINTEXT", "127.0.0.1"
    )
    with suppress(EncodeError):
        await requests.answer(memoryview(frame)[4:])
    assert pins == [1]
    assert file.pins == 0
