"""Transactions in a partition: markers, the last stable offset, read_committed and verification."""

from typing import Any

import pytest
import trio

from kwire import errors
from kwire.codec.messages.delete_records import DeleteRecordsRequest
from kwire.codec.messages.describe_producers import DescribeProducersRequest
from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.list_offsets import ListOffsetsRequest
from kwire.configs.broker import BrokerConfig
from kwire.records import iterate
from kwire.records.header import headers
from kwire.replica.partition import Partition
from kwire.types import TopicPartition
from tests.support.handlers.broker import NODE, Broker, broker, create_topic, one_batch
from tests.support.handlers.transactions import (
    ScriptedVerifier,
    fetch_request,
    markers_request,
    produce_request,
)

T = TopicPartition("t", 0)
OLD, ABORTABLE, NEW = 10, 11, 12
"""Produce versions of clients that add partitions first, that know TRANSACTION_ABORTABLE, and
that let their records add partitions (KIP-890)."""


def verifier_of(subject: Broker) -> ScriptedVerifier:
    verifier = subject.parts.verifier
    assert isinstance(verifier, ScriptedVerifier)
    return verifier


async def node() -> tuple[Broker, Partition]:
    """Return a broker with a topic, whose transactions the coordinator knows."""
    subject = broker()
    verifier_of(subject).default = errors.NONE
    return subject, await create_topic(subject)


async def send(
    subject: Broker,
    value: bytes = b"tx",
    *,
    producer: int = 5,
    epoch: int = 0,
    sequence: int = 0,
    version: int = OLD,
    **where: Any,
) -> tuple[int, int]:
    """Produce a transactional batch of one record; return error code and offset."""
    batch = one_batch(
        value,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    answer = await subject.call(produce_request(batch, **where), version)
    (partition,) = answer.responses[0].partition_responses
    return partition.error_code, partition.base_offset


async def end(subject: Broker, *topics: tuple[str, list[int]], **marker: Any) -> dict[str, int]:
    """Write a marker; return the error code of each partition."""
    version = 2 if marker.get("transaction_version") else 1
    answer = await subject.call(markers_request(*(topics or (("t", [0]),)), **marker), version)
    (result,) = answer.markers
    assert result.producer_id == marker.get("producer_id", 5)
    return {
        f"{topic.name}-{partition.partition_index}": partition.error_code
        for topic in result.topics
        for partition in topic.partitions
    }


Data = FetchResponse.FetchableTopicResponse.PartitionData


async def read(subject: Broker, offset: int = 0, **changes: Any) -> Data:
    answer = await subject.call(fetch_request(offset, **changes), 12)
    data: Data = answer.responses[0].partitions[0]
    return data


def values(data: Data) -> list[bytes | None]:
    """Return the values of all records that are no markers."""
    records = bytes(data.records or b"")
    return [
        record.value
        for pos, header in headers(records)
        if not header.is_control
        for record in iterate.records(records, pos, header)
    ]


def aborted_of(data: Data) -> list[tuple[int, int]]:
    return [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()]


@pytest.mark.parametrize("commit", [True, False])
async def test_marker_moves_the_last_stable_offset_and_lists_an_abort(commit: bool):
    """Invariants 13, 19 and 61."""
    subject, _ = await node()
    assert await send(subject) == (0, 0)
    data = await read(subject)
    assert (values(data), data.last_stable_offset, data.high_watermark) == ([], 0, 1)
    assert await end(subject, commit=commit) == {"t-0": 0}
    data = await read(subject)
    assert (values(data), data.last_stable_offset, data.high_watermark) == ([b"tx"], 2, 2)
    assert aborted_of(data) == ([] if commit else [(5, 0)])


async def test_end_of_a_transaction_completes_a_read_committed_fetch_with_all_its_bytes():
    """Invariants 18 and 61: the fetch waits for more bytes than the marker has."""
    subject, _ = await node()
    await send(subject, b"x" * 500)
    async with trio.open_nursery() as nursery:

        async def fetch() -> None:
            data = await read(subject, max_wait_ms=60_000, min_bytes=400)
            assert values(data) == [b"x" * 500]
            assert trio.current_time() < began + 60

        began = trio.current_time()
        nursery.start_soon(fetch)
        await trio.testing.wait_all_tasks_blocked()
        await end(subject)


async def test_end_of_a_transaction_completes_no_fetch_that_wants_more_bytes(
    autojump_clock: object,
):
    """Invariant 18."""
    subject, _ = await node()
    await send(subject)
    async with trio.open_nursery() as nursery:

        async def fetch() -> None:
            data = await read(subject, max_wait_ms=5_000, min_bytes=10_000)
            assert trio.current_time() == began + 5
            assert values(data) == [b"tx"]

        began = trio.current_time()
        nursery.start_soon(fetch)
        await trio.testing.wait_all_tasks_blocked()
        await end(subject)


async def test_earlier_open_transaction_holds_records_of_a_later_one_back():
    """Invariants 5 and 13."""
    subject, _ = await node()
    await send(subject, b"first", producer=5)
    await send(subject, b"second", producer=6)
    await end(subject, producer_id=6)
    assert values(await read(subject)) == []
    await end(subject, producer_id=5)
    assert values(await read(subject)) == [b"first", b"second"]


async def test_marker_of_an_older_coordinator_epoch_is_fenced():
    """Invariant 60."""
    subject, partition = await node()
    await send(subject)
    await end(subject, coordinator_epoch=3)
    await send(subject, sequence=1)
    assert await end(subject, commit=False, coordinator_epoch=2) == {
        "t-0": errors.TransactionCoordinatorFenced.code
    }
    assert partition.last_stable_offset == 2
    assert await end(subject, coordinator_epoch=3) == {"t-0": 0}


async def test_marker_of_an_older_producer_epoch_is_refused():
    """Invariant 60."""
    subject, _ = await node()
    await send(subject, epoch=2)
    assert await end(subject, epoch=1) == {"t-0": errors.InvalidProducerEpoch.code}


async def test_strict_marker_needs_an_epoch_above_that_of_the_open_transaction():
    """Invariant 57, KIP-1228: a late marker of one transaction does not end the next."""
    subject, partition = await node()
    await send(subject, epoch=0)
    strict = {"transaction_version": 2}
    assert await end(subject, epoch=0, **strict) == {"t-0": errors.InvalidProducerEpoch.code}
    assert await end(subject, epoch=1, **strict) == {"t-0": 0}
    assert await end(subject, epoch=1, **strict) == {"t-0": 0}, "a repetition, nothing is open"
    await send(subject, b"next", epoch=1)
    assert await end(subject, epoch=1, **strict) == {"t-0": errors.InvalidProducerEpoch.code}
    assert partition.log.producers.first_open() == 3
    assert await end(subject, epoch=1) == {"t-0": 0}, "without the version it ends it"


async def test_largest_epoch_needs_no_bump_for_its_strict_marker():
    subject, _ = await node()
    largest = (1 << 15) - 1
    await send(subject, epoch=largest)
    assert await end(subject, epoch=largest, transaction_version=2) == {"t-0": 0}


async def test_markers_fail_for_each_partition_alone():
    """Invariant 60: a marker for a deleted topic holds up no other."""
    subject, _ = await node()
    await subject.create("other", replicas=(2,), leader=2)
    await send(subject)
    codes = await end(subject, ("t", [0, 7]), ("gone", [0]), ("other", [0]))
    assert codes == {
        "t-0": 0,
        "t-7": errors.UnknownTopicOrPartition.code,
        "gone-0": errors.UnknownTopicOrPartition.code,
        "other-0": errors.NotLeaderOrFollower.code,
    }


@pytest.mark.parametrize("version", [1, 2])
async def test_marker_to_a_recreated_topic_is_written_and_holds_no_reader_back(version: int):
    """Invariant 60: the topic of the transaction's name has none of its records."""
    subject, partition = await node()
    await subject.create("recreated")
    codes = await end(subject, ("recreated", [0]), epoch=1, transaction_version=version)
    assert codes == {"recreated-0": 0}
    recreated = subject.replicas.partitions.get("recreated", 0)
    assert recreated.log.end_offset == 1
    assert recreated.log.producers.last_stable_offset(recreated.high_watermark) == 1
    assert partition.log.end_offset == 0


async def test_marker_is_answered_when_it_is_replicated():
    """Invariant 62."""
    subject = broker()
    verifier_of(subject).default = errors.NONE
    partition = await create_topic(subject, replicas=(1, 2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end, subject)
        await trio.testing.wait_all_tasks_blocked()
        assert partition.log.end_offset == 1
        subject.replicas.on_follower_fetched(partition, 2, offset=1, log_start=0, broker_epoch=-1)
    assert partition.high_watermark == 1


async def test_read_committed_fetch_wakes_when_a_follower_has_the_marker():
    """Invariants 13 and 61."""
    subject = broker()
    verifier_of(subject).default = errors.NONE
    partition = await create_topic(subject, replicas=(1, 2))

    def replicate() -> None:
        subject.replicas.on_follower_fetched(
            partition, 2, offset=partition.log.end_offset, log_start=0, broker_epoch=-1
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: send(subject, b"x" * 500))
        await trio.testing.wait_all_tasks_blocked()
        replicate()
        await trio.testing.wait_all_tasks_blocked()

        async def fetch() -> None:
            data = await read(subject, max_wait_ms=60_000, min_bytes=400)
            assert values(data) == [b"x" * 500]
            assert trio.current_time() < began + 60

        began = trio.current_time()
        nursery.start_soon(fetch)
        nursery.start_soon(end, subject)
        await trio.testing.wait_all_tasks_blocked()
        assert partition.last_stable_offset == 0
        replicate()


async def test_last_stable_offset_is_not_below_the_start_of_deleted_records():
    """Invariants 13 and 61: the transaction's first records are deleted while it is open."""
    subject, partition = await node()
    await send(subject)
    await send(subject, sequence=1)
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    deletion = topic.DeleteRecordsPartition(partition_index=0, offset=1)
    await subject.call(
        DeleteRecordsRequest(topics=[topic(name="t", partitions=[deletion])], timeout_ms=1000)
    )
    assert partition.last_stable_offset == partition.log.log_start == 1
    data = await read(subject, 1)
    assert (data.error_code, data.last_stable_offset, values(data)) == (0, 1, [])
    await end(subject, commit=False)
    data = await read(subject, 1)
    assert (data.last_stable_offset, aborted_of(data)) == (3, [(5, 0)])


async def test_list_offsets_of_read_committed_ends_at_the_last_stable_offset():
    subject, _ = await node()
    await send(subject)

    async def latest(level: int) -> int:
        topic = ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition(partition_index=0, timestamp=-1)
        answer = await subject.call(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=level,
                topics=[topic(name="t", partitions=[partition])],
            ),
            7,
        )
        offset: int = answer.topics[0].partitions[0].offset
        return offset

    assert (await latest(0), await latest(1)) == (1, 0)
    await end(subject)
    assert (await latest(0), await latest(1)) == (2, 2)


async def test_described_producer_has_its_transaction_and_coordinator_epoch():
    """Invariant 61: tools find hanging transactions by it."""
    subject, _ = await node()

    async def describe() -> tuple[int, int, int, int]:
        topic = DescribeProducersRequest.TopicRequest
        answer = await subject.call(
            DescribeProducersRequest(topics=[topic(name="t", partition_indexes=[0])])
        )
        (state,) = answer.topics[0].partitions[0].active_producers
        return (
            state.producer_epoch,
            state.last_sequence,
            state.coordinator_epoch,
            state.current_txn_start_offset,
        )

    await send(subject, epoch=3)
    assert await describe() == (3, 0, -1, 0)
    await end(subject, epoch=4, coordinator_epoch=9)
    assert await describe() == (4, -1, 9, -1)


class TestVerification:
    """KIP-890: a transaction's first batch in a partition is verified (invariant 56)."""

    async def test_coordinator_is_asked_once_for_each_transaction(self):
        subject, _ = await node()
        verifier = verifier_of(subject)
        for sequence in range(3):
            assert (await send(subject, sequence=sequence))[0] == 0
        assert verifier.questions == [("tx", 5, 0, [T], False)]
        await end(subject)
        await send(subject, sequence=3)
        assert len(verifier.questions) == 2

    async def test_new_clients_have_the_partition_added(self):
        subject, _ = await node()
        await send(subject, version=NEW)
        assert verifier_of(subject).questions == [("tx", 5, 0, [T], True)]

    @pytest.mark.parametrize(
        ("error", "version", "expected"),
        [
            (errors.InvalidTxnState, OLD, errors.InvalidTxnState),
            (errors.TransactionAbortable, OLD, errors.InvalidTxnState),
            (errors.TransactionAbortable, ABORTABLE, errors.TransactionAbortable),
            (errors.TransactionAbortable, NEW, errors.TransactionAbortable),
            (errors.ProducerFenced, NEW, errors.InvalidProducerEpoch),
            (errors.InvalidProducerIdMapping, NEW, errors.InvalidProducerIdMapping),
            (errors.CoordinatorLoadInProgress, OLD, errors.NotEnoughReplicas),
            (errors.CoordinatorNotAvailable, NEW, errors.NotEnoughReplicas),
            (errors.NotCoordinator, NEW, errors.NotEnoughReplicas),
            (errors.NetworkException, NEW, errors.NotEnoughReplicas),
            (errors.OperationNotAttempted, NEW, errors.NotEnoughReplicas),
            (errors.UnknownTopicOrPartition, NEW, errors.UnknownTopicOrPartition),
            (errors.ConcurrentTransactions, ABORTABLE, errors.NotEnoughReplicas),
            (errors.ConcurrentTransactions, NEW, errors.ConcurrentTransactions),
        ],
    )
    async def test_coordinators_error_is_one_that_the_client_knows(
        self,
        error: type[errors.KafkaError],
        version: int,
        expected: type[errors.KafkaError],
    ):
        subject, partition = await node()
        verifier_of(subject).codes[T] = error.code
        assert await send(subject, version=version) == (expected.code, -1)
        assert partition.log.end_offset == 0

    async def test_partition_that_is_not_verified_fails_alone(self):
        subject, _ = await node()
        await create_topic(subject, "u")
        verifier_of(subject).codes[T] = errors.InvalidTxnState.code
        assert (await send(subject))[0] == errors.InvalidTxnState.code
        assert await send(subject, topic="u") == (0, 0)

    async def test_marker_during_the_verification_refuses_the_append(self):
        """The answer was about a transaction that has ended meanwhile."""
        subject, partition = await node()
        verifier_of(subject).answers = release = trio.Event()
        codes: list[int] = []

        async def produce() -> None:
            codes.append((await send(subject))[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            await end(subject, commit=False)
            release.set()
        assert codes == [errors.InvalidTxnState.code]
        assert partition.log.producers.first_open() is None

    async def test_duplicate_during_the_verification_does_not_refuse_the_append(self):
        """The producer repeats a batch of its last transaction, whose answer was lost."""
        subject, _ = await node()
        await send(subject, sequence=0)
        await end(subject)
        verifier_of(subject).answers = release = trio.Event()
        async with trio.open_nursery() as nursery:

            async def produce() -> None:
                assert await send(subject, sequence=1) == (0, 2)

            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            verifier_of(subject).answers = None
            assert await send(subject, sequence=0) == (0, 0)
            release.set()

    @pytest.mark.parametrize(
        ("leaders", "code"), [((2, NODE), errors.NotLeaderOrFollower.code), ((NODE,), 0)]
    )
    async def test_verification_lasts_while_the_broker_leads(
        self, leaders: tuple[int, ...], code: int
    ):
        """After another leader's epoch the client has to send again; a next one changes nothing."""
        subject, partition = await node()
        verifier_of(subject).answers = release = trio.Event()
        codes: list[int] = []

        async def produce() -> None:
            codes.append((await send(subject))[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            for leader in leaders:
                await subject.lead_again("t", leader)
            release.set()
        assert codes == [code]
        assert partition.log.end_offset == (code == 0)

    async def test_new_client_waits_for_the_end_of_its_previous_transaction(
        self, autojump_clock: object
    ):
        """The marker comes while the coordinator still answers CONCURRENT_TRANSACTIONS."""
        subject, _ = await node()
        await send(subject, epoch=0, version=NEW)
        verifier = verifier_of(subject)
        verifier.codes[T] = errors.ConcurrentTransactions.code
        async with trio.open_nursery() as nursery:

            async def produce() -> None:
                assert await send(subject, b"next", epoch=1, version=NEW) == (0, 2)

            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            await end(subject, epoch=1, transaction_version=2)
            verifier.codes.clear()

    async def test_new_client_does_not_wait_once_its_previous_transaction_has_ended(
        self, autojump_clock: object
    ):
        """The coordinator answers when the marker is written, so the question is repeated."""
        subject, _ = await node()
        await send(subject, epoch=0, version=NEW)
        verifier = verifier_of(subject)
        verifier.codes[T] = errors.ConcurrentTransactions.code
        verifier.answers = marker = trio.Event()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def produce() -> None:
                assert await send(subject, b"next", epoch=1, version=NEW) == (0, 2)

            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            await end(subject, epoch=1, transaction_version=2)
            verifier.codes.clear()
            marker.set()
        assert trio.current_time() == began

    async def test_new_client_is_verified_again_if_the_marker_came_before_the_answer(
        self, autojump_clock: object
    ):
        """The coordinator of another broker answered about the new transaction meanwhile."""
        subject, _ = await node()
        await send(subject, epoch=0, version=NEW)
        verifier = verifier_of(subject)
        verifier.answers = answer = trio.Event()
        async with trio.open_nursery() as nursery:

            async def produce() -> None:
                assert await send(subject, b"next", epoch=1, version=NEW) == (0, 2)

            nursery.start_soon(produce)
            await trio.testing.wait_all_tasks_blocked()
            await end(subject, epoch=1, transaction_version=2)
            answer.set()
        assert len(verifier.questions) == 3

    async def test_zombie_is_refused_before_the_coordinator_is_asked(self):
        """Invariant 55."""
        subject, _ = await node()
        await send(subject)
        await end(subject, epoch=1)
        assert (await send(subject, sequence=1))[0] == errors.InvalidProducerEpoch.code
        assert len(verifier_of(subject).questions) == 1

    async def test_first_sequence_of_a_new_client_is_zero(self):
        """A batch that overtook the first one is refused."""
        subject, _ = await node()
        assert (await send(subject, sequence=1, version=NEW))[0] == (
            errors.OutOfOrderSequenceNumber.code
        )
        assert await send(subject, sequence=0, version=NEW) == (0, 0)

    async def test_batch_behind_one_whose_verification_failed_is_refused(self):
        subject, _ = await node()
        verifier = verifier_of(subject)
        verifier.codes[T] = errors.NotCoordinator.code
        assert (await send(subject, sequence=4))[0] == errors.NotEnoughReplicas.code
        verifier.codes.clear()
        assert (await send(subject, sequence=5))[0] == errors.OutOfOrderSequenceNumber.code
        assert await send(subject, sequence=4) == (0, 0)

    async def test_several_producers_in_one_request_are_refused(self):
        subject, _ = await node()
        await create_topic(subject, "u")
        request = produce_request(transactional(5))
        request.topic_data += produce_request(transactional(6), "u").topic_data
        answer = await subject.call(request, OLD)
        codes = [topic.partition_responses[0].error_code for topic in answer.responses]
        assert codes == [errors.InvalidProducerIdMapping.code] * 2

    async def test_nothing_is_asked_while_verification_is_disabled(self):
        subject, _ = await node()
        subject.current.config = BrokerConfig(
            {"transaction.partition.verification.enable": "false"}
        )
        verifier_of(subject).default = errors.InvalidTxnState.code
        assert await send(subject) == (0, 0)
        assert verifier_of(subject).questions == []

    async def test_partitions_are_added_while_verification_is_disabled(self):
        """Without it the coordinator would send no marker, and the transaction never end."""
        subject, _ = await node()
        subject.current.config = BrokerConfig(
            {"transaction.partition.verification.enable": "false"}
        )
        assert await send(subject, version=NEW) == (0, 0)
        assert verifier_of(subject).questions == [("tx", 5, 0, [T], True)]

    async def test_plain_batch_inside_a_transaction_is_refused(self):
        """Invariant 63."""
        subject, _ = await node()
        await send(subject)
        plain = one_batch(producer_id=5, producer_epoch=0, base_sequence=1)
        answer = await subject.call(produce_request(plain), OLD)
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == errors.InvalidTxnState.code


def transactional(producer: int) -> bytes:
    return one_batch(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
