"""Fetch: what is read, what is waited for, and what sessions leave out."""

from contextlib import suppress
from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.apis import ListenerType
from kwire.codec.frame import request_frame
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.primitives import EncodeError
from kwire.handlers.dispatch import Dispatcher
from kwire.records import control, header, iterate
from kwire.replica.partition import Partition
from kwire.simulation.disk import SimFile
from tests.support.handlers.broker import NOW_MS, Broker, broker, one_batch, topic_id

Topic = FetchRequest.FetchTopic
Asked = Topic.FetchPartition
Answer = FetchResponse.FetchableTopicResponse.PartitionData


def at(
    name: str, offset: int = 0, partition: int = 0, max_bytes: int = 1 << 20, **more: Any
) -> Topic:
    return Topic(
        topic=name,
        topic_id=topic_id(name),
        partitions=[
            Asked(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, **more)
        ],
    )


def request(*topics: Topic, **changes: Any) -> FetchRequest:
    fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "topics": list(topics)}
    return FetchRequest(**(fields | changes))


async def fetch(subject: Broker, *topics: Topic, version: int = 12, **changes: Any) -> list[Answer]:
    answer = await subject.call(request(*topics, **changes), version)
    assert answer.error_code == 0
    return [p for t in answer.responses for p in t.partitions]


async def made(subject: Broker, name: str = "t", **settings: Any) -> Partition:
    found = await subject.create(name, **settings)
    assert found is not None
    return found


def write(subject: Broker, partition: Partition, *values: bytes, **changes: Any) -> None:
    batch = one_batch(*values, **changes)
    subject.replicas.append(partition, batch, header.parse(batch), 1, NOW_MS)


def values(answer: Answer) -> list[tuple[int, bytes | None]]:
    buf = bytes(answer.records)
    return [
        (record.offset, record.value)
        for pos, head in header.headers(buf)
        for record in iterate.records(buf, pos, head)
    ]


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12, 13, 16, 18])
async def test_every_version_reads(version: int):
    subject = broker()
    partition = await made(subject)
    write(subject, partition, b"a", b"b")
    answer = await subject.call(request(at("t")), version)
    (found,) = answer.responses[0].partitions
    assert values(found) == [(0, b"a"), (1, b"b")]
    assert (found.high_watermark, found.last_stable_offset) == (2, 2)
    assert found.aborted_transactions is None


async def test_an_offset_inside_a_batch_gives_the_batch():
    """Invariant 16."""
    subject = broker()
    partition = await made(subject)
    write(subject, partition, b"a", b"b", b"c")
    write(subject, partition, b"d")
    (found,) = await fetch(subject, at("t", 1))
    assert values(found)[0] == (0, b"a")
    (found,) = await fetch(subject, at("t", 3))
    assert values(found) == [(3, b"d")]


@pytest.mark.parametrize("offset", [-1, 3, 100])
async def test_out_of_range(offset: int):
    """The real broker answers so: -1 for every offset, and empty records rather than null."""
    subject = broker()
    partition = await made(subject)
    write(subject, partition, b"a", b"b")
    (found,) = await fetch(subject, at("t", offset), max_wait_ms=10_000)
    assert found.error_code == errors.OffsetOutOfRange.code
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (-1, -1, -1)
    assert found.records is not None
    assert len(found.records) == 0
    assert found.aborted_transactions is None


@pytest.mark.parametrize(
    ("topic", "version", "expected"),
    [
        (at("nope"), 12, errors.UnknownTopicOrPartition),
        (at("nope"), 13, errors.UnknownTopicId),
        (at("t", partition=9), 12, errors.UnknownTopicOrPartition),
        (at("t", partition=9), 13, errors.UnknownTopicOrPartition),
        (at("other"), 13, errors.NotLeaderOrFollower),
        (at("t", current_leader_epoch=0), 13, errors.FencedLeaderEpoch),
        (at("t", current_leader_epoch=1), 13, None),
        (at("t", current_leader_epoch=2), 13, errors.UnknownLeaderEpoch),
        (at("offline"), 13, errors.KafkaStorageError),
    ],
)
async def test_errors(topic: Topic, version: int, expected: type[errors.KafkaError] | None):
    subject = broker()
    await made(subject)
    await subject.lead_again("t")
    await subject.create("other", replicas=(2,), leader=2)
    if topic.topic == "offline":
        subject.disk.fail_at("mkdir", OSError("no space"))
        await subject.create("offline")
    (found,) = await fetch(subject, topic, version=version, max_wait_ms=0)
    assert found.error_code == (0 if expected is None else expected.code)


@pytest.mark.parametrize(
    ("version", "told"),
    [(4, False), (11, False), (12, False), (15, False), (16, True), (18, True)],
)
async def test_leaders_are_hinted_to_those_who_understand(version: int, told: bool):
    """KIP-951."""
    subject = broker()
    await subject.create("t", replicas=(2,), leader=2)
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
            rack=None,
        )
    )
    answer = await subject.call(request(at("t")), version)
    (found,) = answer.responses[0].partitions
    assert found.error_code == errors.NotLeaderOrFollower.code
    assert found.current_leader.leader_id == (2 if told else -1)
    assert [(n.node_id, n.port) for n in answer.node_endpoints] == ([(2, 99)] if told else [])


@pytest.mark.parametrize(("version", "expected"), [(9, 76), (10, 0)])
async def test_zstd_is_not_for_old_clients(version: int, expected: int):
    subject = broker()
    await made(subject, compression_type="zstd")
    (found,) = await fetch(subject, at("t"), version=version)
    assert found.error_code == expected


class TestLimits:
    """Invariant 18."""

    async def both(self) -> Broker:
        subject = broker()
        for name in ("a", "b"):
            partition = await made(subject, name)
            for _ in range(3):
                write(subject, partition, bytes(1000))
        return subject

    async def sizes(self, **changes: Any) -> list[int]:
        limit = changes.pop("partition_max_bytes", 1 << 20)
        subject = await self.both()
        found = await fetch(subject, at("a", max_bytes=limit), at("b", max_bytes=limit), **changes)
        return [len(list(header.headers(bytes(p.records)))) for p in found]

    async def test_all(self):
        assert await self.sizes() == [3, 3]

    async def test_the_first_batch_comes_whatever_the_limits(self):
        assert await self.sizes(max_bytes=1) == [1, 0]
        assert await self.sizes(partition_max_bytes=1) == [1, 0]
        assert await self.sizes(max_bytes=0) == [1, 0]

    async def test_per_partition(self):
        assert await self.sizes(partition_max_bytes=2500) == [2, 2]

    async def test_over_all(self):
        assert await self.sizes(max_bytes=2500) == [2, 0]
        assert await self.sizes(max_bytes=4500) == [3, 1]


class TestWaiting:
    """Long polls, on a clock that jumps."""

    async def test_time_is_up(self, autojump_clock: Any):
        subject = broker()
        await made(subject)
        start = trio.current_time()
        (found,) = await fetch(subject, at("t"), max_wait_ms=500)
        assert (found.error_code, len(found.records)) == (0, 0)
        assert trio.current_time() - start == pytest.approx(0.5)
        assert len(subject.replicas.fetch_waits) == 0

    async def test_bytes_of_all_partitions_count(self, autojump_clock: Any):
        subject = broker()
        a, b = await made(subject, "a"), await made(subject, "b")
        write(subject, a, bytes(300))

        async def later() -> None:
            await trio.sleep(1)
            write(subject, b, bytes(300))
            await trio.sleep(1)
            write(subject, a, bytes(300))

        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            found = await fetch(subject, at("a"), at("b"), min_bytes=1000, max_wait_ms=9000)
        # What was read before the wait was not sent, and does not count.
        assert a.traffic.bytes_out.value == len(found[0].records)
        assert trio.current_time() - start == pytest.approx(2)
        assert [len(values(p)) for p in found] == [2, 1]

    async def test_enough_at_once_does_not_wait(self, autojump_clock: Any):
        subject = broker()
        write(subject, await made(subject), b"a")
        start = trio.current_time()
        (found,) = await fetch(subject, at("t"), max_wait_ms=60_000)
        assert trio.current_time() == start
        assert values(found) == [(0, b"a")]

    @pytest.mark.parametrize("topics", [(), (at("nope"),), (at("t", 5), at("t"))])
    async def test_nothing_to_wait_for(self, autojump_clock: Any, topics: tuple[Topic, ...]):
        """Requests without partitions, or with an error that the client should get at once."""
        subject = broker()
        await made(subject)
        start = trio.current_time()
        await fetch(subject, *topics, max_wait_ms=60_000)
        assert trio.current_time() == start

    async def test_a_lost_leadership_ends_the_wait(self, autojump_clock: Any):
        subject = broker()
        await made(subject, replicas=(1, 2), isr=(1,))

        async def resign() -> None:
            await trio.sleep(1)
            await subject.lead_again("t", leader=2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resign)
            (found,) = await fetch(subject, at("t"), max_wait_ms=60_000)
        assert found.error_code == errors.NotLeaderOrFollower.code
        assert trio.current_time() < 50

    async def test_cancelled(self, autojump_clock: Any):
        """The client went: nothing of its wait is left."""
        subject = broker()
        await made(subject)
        with trio.move_on_after(1):
            await fetch(subject, at("t"), max_wait_ms=60_000)
        assert len(subject.replicas.fetch_waits) == 0

    async def test_deleted_topic(self, autojump_clock: Any):
        subject = broker()
        await made(subject)

        async def delete() -> None:
            await trio.sleep(1)
            await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            (found,) = await fetch(subject, at("t"), max_wait_ms=60_000)
        assert found.error_code == errors.UnknownTopicOrPartition.code
        assert subject.logs.get("t", 0) is None


class TestReplicas:
    """A consumer sees what is committed, a follower what is written (invariants 13, 26)."""

    async def both(self) -> tuple[Broker, Partition]:
        subject = broker()
        partition = await made(subject, replicas=(1, 2))
        write(subject, partition, b"a")
        return subject, partition

    async def test_consumers_stay_below_the_high_watermark(self):
        subject, partition = await self.both()
        (found,) = await fetch(subject, at("t"))
        assert (found.high_watermark, values(found)) == (0, [])
        (found,) = await fetch(subject, at("t"), replica_id=2)
        assert values(found) == [(0, b"a")]
        (found,) = await fetch(subject, at("t", 1), replica_id=2)
        assert found.high_watermark == 1 or partition.high_watermark == 1
        (found,) = await fetch(subject, at("t"))
        assert values(found) == [(0, b"a")]

    async def test_beyond_the_high_watermark_is_waited_for_not_refused(self):
        subject, _ = await self.both()
        (found,) = await fetch(subject, at("t", 1))
        assert (found.error_code, len(found.records)) == (0, 0)

    async def test_a_follower_wakes_consumers(self, autojump_clock: Any):
        subject, _ = await self.both()

        async def follower() -> None:
            await trio.sleep(1)
            await fetch(subject, at("t", 1), replica_id=2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower)
            (found,) = await fetch(subject, at("t"), max_wait_ms=60_000)
        assert values(found) == [(0, b"a")]
        assert trio.current_time() < 50

    async def test_who_is_no_replica_may_not_fetch_as_one(self):
        subject, _ = await self.both()
        (found,) = await fetch(subject, at("t"), replica_id=3)
        assert found.error_code == errors.NotLeaderOrFollower.code

    async def test_diverging_logs_are_told_at_once(self):
        subject, partition = await self.both()
        await subject.lead_again("t")
        write(subject, partition, b"b")
        # Epoch 0 ended at 1 here; the fetcher has more of it.
        (found,) = await fetch(
            subject, at("t", 5, last_fetched_epoch=0), replica_id=2, max_wait_ms=60_000
        )
        diverging = found.diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (0, 1)
        assert found.error_code == 0
        (found,) = await fetch(subject, at("t", 1, last_fetched_epoch=0), replica_id=2)
        assert values(found) == [(1, b"b")]


class TestTransactions:
    """read_committed: up to the first open transaction, with what was aborted (invariant 19)."""

    async def test_isolation(self):
        subject = broker()
        partition = await made(subject)
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
        (found,) = await fetch(subject, at("t"), isolation_level=1)
        assert values(found) == [(0, b"plain")]
        assert (found.high_watermark, found.last_stable_offset) == (3, 1)
        assert found.aborted_transactions == []
        (found,) = await fetch(subject, at("t"))
        assert len(values(found)) == 3
        marker = control.end_txn_marker(
            commit=False, coordinator_epoch=0, producer_id=5, producer_epoch=0, timestamp_ms=NOW_MS
        )
        partition.append(marker, header.parse(marker), 1, 0.0, NOW_MS, from_client=False)
        (found,) = await fetch(subject, at("t"), isolation_level=1)
        assert (found.high_watermark, found.last_stable_offset) == (4, 4)
        assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions or ()] == [
            (5, 1)
        ]
        assert [offset for offset, _ in values(found)] == [0, 1, 2, 3]


class TestSessions:
    """The handler's part of KIP-227; the rules are in tests/replica/test_fetch_sessions.py."""

    async def test_only_changes_are_answered(self):
        subject = broker()
        a = await made(subject, "a")
        await made(subject, "b")
        first = await subject.call(request(at("a"), at("b"), session_epoch=0), 12)
        assert first.session_id > 0
        assert len(first.responses) == 2
        again = await subject.call(request(session_id=first.session_id, session_epoch=1), 12)
        assert (again.session_id, again.responses) == (first.session_id, [])
        write(subject, a, b"x")
        again = await subject.call(request(session_id=first.session_id, session_epoch=2), 12)
        (topic,) = again.responses
        assert (topic.topic, values(topic.partitions[0])) == ("a", [(0, b"x")])

    async def test_errors_are_of_the_whole_request(self):
        subject = broker()
        answer = await subject.call(request(session_id=5, session_epoch=7), 12)
        assert (answer.error_code, answer.session_id, answer.responses) == (
            errors.FetchSessionIdNotFound.code,
            0,
            [],
        )

    async def test_by_id(self):
        subject = broker()
        await made(subject)
        first = await subject.call(request(at("t"), session_epoch=0), 17)
        forgotten = FetchRequest.ForgottenTopic(topic_id=topic_id("t"), partitions=[0])
        again = await subject.call(
            request(
                session_id=first.session_id, session_epoch=1, forgotten_topics_data=[forgotten]
            ),
            17,
        )
        assert (again.session_id, again.responses) == (0, [])


async def test_a_topic_made_again_is_another():
    """Invariant 40: the old id is unknown, and nothing of the old data is seen."""
    subject = broker()
    write(subject, await made(subject), b"old")
    await subject.publish(r.RemoveTopicRecord(topic_id=topic_id("t")))
    await made(subject, identity=topic_id("t2"))
    (found,) = await fetch(subject, at("t"), version=13)
    assert found.error_code == errors.UnknownTopicId.code
    (found,) = await fetch(subject, at("t"), version=12)
    assert (found.error_code, values(found)) == (0, [])


async def test_files_are_let_go(autojump_clock: Any):
    """Every region that is read and not sent is closed, or its file could never be."""
    subject = broker()
    partition = await made(subject)
    write(subject, partition, b"a")
    file = partition.log.segments.active.file
    assert isinstance(file, SimFile)
    await fetch(subject, at("t"), min_bytes=1000, max_wait_ms=1)
    assert file.pins == 0
    # A partition that fails after others were read must not leave theirs open either.
    await fetch(subject, at("t"), at("nope"), at("t", 100))
    assert file.pins == 0


@pytest.mark.parametrize(
    "place",
    [
        "kwire.handlers.dispatch.response_parts",
        "kwire.replica.fetch_sessions.FetchSessions.finish",
        "kwire.replica.service.ReplicaService.on_follower_fetched",
    ],
)
async def test_files_are_let_go_when_an_answer_fails(place: str, monkeypatch: pytest.MonkeyPatch):
    """invariant 100: a bug while one request is answered keeps no file open."""
    subject = broker()
    partition = await made(subject, replicas=(1, 2))
    write(subject, partition, b"a")
    file = partition.log.segments.active.file
    assert isinstance(file, SimFile)
    pins = []

    def fail(*args: Any, **more: Any) -> Any:
        pins.append(file.pins)
        raise EncodeError("a bug")

    monkeypatch.setattr(place, fail)
    replica = FetchRequest.ReplicaState(replica_id=2, replica_epoch=1)
    frame = request_frame(1, 17, 7, "c", request(at("t"), replica_state=replica))
    session = Dispatcher(subject.services, ListenerType.BROKER).session("PLAINTEXT", "127.0.0.1")
    with suppress(EncodeError):
        await session.answer(memoryview(frame)[4:])
    assert pins == [1]
    assert file.pins == 0
