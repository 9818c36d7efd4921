"""The transaction coordinator under faults: what was decided is finished, and nothing else."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio
import trio.testing

from kwire.coordinator import loading
from kwire.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    ProducerFenced,
    TransactionalIdNotFound,
    UnsupportedVersion,
)
from kwire.transaction.model import MAX_EPOCH, TransactionState
from kwire.transaction.settings import TransactionSettings
from kwire.transaction.transitions import Producer
from kwire.types import NO_LEADER, TopicPartition
from tests.support.transaction.world import NAME, T0, T1, U0, DataPartition, Led, World


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """Make a world whose coordinator serves."""
    async with trio.open_nursery() as nursery:
        subject = World(nursery)
        await subject.start()
        yield subject
        nursery.cancel_scope.cancel()


async def test_end_is_answered_before_its_markers_are_written(autojump_clock: object) -> None:
    """Invariant 59."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0, T1)
        subject.brokers.may_serve = trio.Event()
        await subject.end(producer, commit=True)
        assert (await subject.state()).state is TransactionState.PREPARE_COMMIT
        assert subject.has_open_transactions
        subject.brokers.may_serve.set()
        await subject.settle()
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT
        assert not subject.has_open_transactions


async def test_markers_wait_until_the_decision_is_committed(autojump_clock: object) -> None:
    """Invariant 59."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.log.replicas_lag = True
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await subject.end(producer, commit=True)

            nursery.start_soon(end)
            await trio.sleep(5)
            assert not subject.brokers.requests
            subject.log.catch_up()
        await subject.settle()
        assert subject.directions() == [True]


@pytest.mark.parametrize("commit", [True, False])
async def test_coordinator_that_takes_over_finishes_what_was_decided(
    commit: bool, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 59: also if other tasks run between the replay and the end of the load."""
    monkeypatch.setattr(loading, "SLICE_SECONDS", 0.0)
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0, U0)
        subject.brokers.may_serve = trio.Event()
        await subject.end(producer, commit=commit)
        await subject.init("another")
        subject.stop()
        subject.brokers.may_serve = None
        # The load takes a while after it has read the decision.
        subject.log.page_batches, subject.log.read_delay = 1, 1.0
        await subject.start()
        await subject.settle()
        subject.log.read_delay = 0.0
        complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        assert (await subject.state()).state is complete
        assert subject.directions(T0) == subject.directions(U0) == [commit]
        (marker,) = subject.brokers.partitions[T0].markers
        assert marker.coordinator_epoch == subject.epoch == 2
        sent = len(subject.brokers.requests)
        await subject.start()
        await subject.settle()
        assert len(subject.brokers.requests) == sent, "a complete transaction has no markers left"


async def test_producer_of_another_transactional_id_is_fenced(autojump_clock: object) -> None:
    """Invariant 54: its epoch is that of the id's own producer, or its last one."""
    async with world() as subject:
        other = await subject.init("another")
        for _ in range(2):
            own = await subject.init()
            with pytest.raises(ProducerFenced):
                await subject.init(producer=Producer(other.id, own.epoch))
            with pytest.raises(ProducerFenced):
                await subject.init(producer=Producer(other.id, own.epoch - 1))


async def test_open_transaction_goes_on_under_the_next_coordinator(autojump_clock: object) -> None:
    """Invariant 59."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        await subject.start()
        await subject.add(producer, T1)
        await subject.end(producer, commit=True)
        await subject.settle()
        assert subject.directions(T0) == subject.directions(T1) == [True]


async def test_marker_has_the_epoch_after_the_transaction_and_its_version(
    autojump_clock: object,
) -> None:
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        await subject.end(producer, commit=True)
        await subject.settle()
        (marker,) = subject.brokers.partitions[T0].markers
        assert (marker.producer_epoch, marker.transaction_version) == (producer.epoch + 1, 2)
        older = await subject.init("older")
        await subject.add(older, T0, name="older", version=0)
        await subject.end(older, commit=False, name="older", version=0)
        await subject.settle()
        marker = subject.brokers.partitions[T0].markers[-1]
        assert (marker.producer_epoch, marker.transaction_version) == (older.epoch, 0)


@pytest.mark.parametrize(
    "break_",
    ["refused", "unreachable", "fault", "answer lost", "no leader", "leader moves", "complete"],
)
async def test_markers_are_sent_until_every_partition_has_them(
    break_: str, autojump_clock: object
) -> None:
    """Invariant 61."""
    async with world() as subject:
        brokers = subject.brokers
        producer = await subject.init()
        await subject.add(producer, T0, T1, U0)
        match break_:
            case "refused":
                brokers.refusals = [NotLeaderOrFollower.code, NotEnoughReplicas.code] * 3
            case "unreachable":
                brokers.failures = [NetworkException() for _ in range(10)]
            case "fault":
                brokers.failures = [ZeroDivisionError("a bug")] * 3
            case "answer lost":
                brokers.answers_lost = 2
            case "no leader":
                brokers.partitions[T1].leader = NO_LEADER
            case "leader moves":
                brokers.may_serve = trio.Event()
            case "complete":
                brokers.may_serve = trio.Event()
        await subject.end(producer, commit=True)
        await trio.sleep(2)
        if subject.has_open_transactions:
            assert (await subject.state()).state is TransactionState.PREPARE_COMMIT
        if break_ == "complete":
            subject.log.failure = NotEnoughReplicas()
        brokers.partitions[T1].leader = 2
        if brokers.may_serve is not None:
            brokers.may_serve.set()
        await trio.sleep(2)
        subject.log.failure = None
        await subject.settle()
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT
        assert not subject.has_open_transactions


async def test_late_completion_does_not_complete_the_next_transaction(
    autojump_clock: object,
) -> None:
    """Invariants 59 and 61: without epoch bumps the next transaction has the same producer."""
    async with world() as subject:
        brokers = subject.brokers
        producer = await subject.init()
        await subject.add(producer, T0, version=0)
        brokers.may_serve = trio.Event()
        await subject.end(producer, commit=True, version=0)
        subject.log.replicas_lag = True
        brokers.may_serve.set()
        # The completion is written, but not committed in time, so it is repeated.
        await trio.sleep(subject.settings.commit_timeout_ms / 1000 + 0.1)
        subject.log.catch_up()
        brokers.may_serve = trio.Event()
        await subject.add(producer, T0, version=0)
        await subject.end(producer, commit=True, version=0)
        await trio.sleep(10)
        assert (await subject.state()).state is TransactionState.PREPARE_COMMIT
        brokers.may_serve.set()
        await subject.settle()
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT
        assert subject.directions() == [True, True]


async def test_request_is_refused_once_the_lease_is_over(autojump_clock: object) -> None:
    """Invariants 34 and 72: another coordinator may have decided since."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.log.lease.end = trio.current_time()
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: subject.init(),
            lambda: subject.add(producer, T1),
            lambda: subject.end(producer, commit=True),
            lambda: subject.coordinator.verify(NAME, producer, [T0]),
            lambda: subject.state(),
        ]
        for attempt in attempts:
            with pytest.raises(NotCoordinator):
                await attempt()
        with pytest.raises(CoordinatorNotAvailable):
            await subject.coordinator.list_transactions(lambda _: True)
        subject.log.lease.keep(trio.current_time())
        assert (await subject.state()).state is TransactionState.ONGOING


@pytest.mark.parametrize("is_sent", [False, True], ids=["before the markers", "after the markers"])
async def test_coordinator_finishes_what_was_decided_when_its_lease_is_renewed(
    is_sent: bool, autojump_clock: object
) -> None:
    """Invariants 59 and 61."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.brokers.may_serve = trio.Event()
        subject.log.replicas_lag = not is_sent

        async def end() -> None:
            with pytest.raises(KafkaError) if not is_sent else nullcontext():
                await subject.end(producer, commit=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            await trio.sleep(0.1)
            subject.log.lease.end = trio.current_time()
            subject.log.catch_up()
            subject.brokers.may_serve.set()
        await trio.sleep(5)
        (shard,) = subject.coordinator.service.machines()
        assert shard.transactions[NAME].state is TransactionState.PREPARE_COMMIT
        subject.log.lease.keep(trio.current_time())
        await subject.settle()
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT
        assert subject.directions() == [True]


async def test_deleted_topic_does_not_keep_a_transaction_open(autojump_clock: object) -> None:
    """Invariant 60."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0, TopicPartition("deleted", 0))
        await subject.end(producer, commit=True)
        await subject.settle()
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT
        await subject.add(Producer(producer.id, producer.epoch + 1), T1)
        del subject.brokers.partitions[T1]
        await subject.end(Producer(producer.id, producer.epoch + 1), commit=True)
        await subject.settle()
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT


async def test_former_coordinator_stops_sending(autojump_clock: object) -> None:
    """Invariant 60."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.brokers.failures = [NetworkException() for _ in range(1000)]
        await subject.end(producer, commit=True)
        await trio.sleep(5)
        subject.coordinator.service.on_resigned(0)
        subject.coordinator.on_role_changed(_role_of_a_follower())
        await trio.sleep(2)
        sent = len(subject.brokers.requests)
        await trio.sleep(60)
        assert len(subject.brokers.requests) == sent


def _role_of_a_follower() -> Led:
    return Led(leader=None, leader_epoch=9)


async def test_new_producer_aborts_the_open_transaction_of_the_older(
    autojump_clock: object,
) -> None:
    """Invariant 54."""
    async with world() as subject:
        zombie = await subject.init()
        await subject.add(zombie, T0)
        subject.brokers.may_serve = trio.Event()
        for _ in range(2):  # The second finds the markers missing.
            with pytest.raises(ConcurrentTransactions):
                await subject.init()
        subject.brokers.may_serve.set()
        await subject.settle()
        assert subject.directions() == [False]
        heir = await subject.init()
        assert heir.epoch > zombie.epoch
        with pytest.raises(ProducerFenced):
            await subject.add(zombie, T0)
        for commit in (True, False):
            with pytest.raises(ProducerFenced):
                await subject.end(zombie, commit=commit)
        await subject.add(heir, T0)
        await subject.end(heir, commit=True)
        await subject.settle()
        assert subject.directions() == [False, True]


@pytest.mark.parametrize("epoch", [None, MAX_EPOCH - 1])
async def test_fenced_producer_cannot_go_on_before_the_newer_producer_has_its_epoch(
    epoch: int | None, autojump_clock: object
) -> None:
    """Invariant 54: otherwise it could begin one transaction after the other, and the newer
    producer would find an open one each time that it asks."""
    async with world() as subject:
        zombie = await subject.init()
        if epoch is not None:
            subject.set_epoch(epoch)
            zombie = Producer(zombie.id, epoch)
        await subject.add(zombie, T0)
        with pytest.raises(ConcurrentTransactions):
            await subject.init()
        await subject.settle()
        for commit in (True, False):
            with pytest.raises(ProducerFenced):
                await subject.end(zombie, commit=commit)
        for number in (zombie.epoch, -2, -MAX_EPOCH - 1):
            with pytest.raises(ProducerFenced):
                await subject.init(producer=Producer(zombie.id, number))
        heir = await subject.init()
        await subject.add(heir, T0)
        await subject.end(heir, commit=True)


async def test_zombie_that_goes_on_does_not_abort_the_transaction_of_the_newer_producer(
    autojump_clock: object,
) -> None:
    """Invariant 54: a zombie's InitProducerId after an error (KIP-360), and a late retry of it."""
    async with world() as subject:
        zombie = await subject.init()
        heir = await subject.init(producer=zombie)
        await subject.add(heir, T0)
        stranger = Producer(heir.id, heir.epoch + 1)
        for former in (zombie, stranger):
            with pytest.raises(ProducerFenced):
                await subject.init(producer=former)
        await subject.settle()
        await subject.add(heir, T1)
        heir = await subject.end(heir, commit=True)
        await subject.settle()
        assert subject.directions(T0) == subject.directions(T1) == [True]
        subject.set_epoch(MAX_EPOCH - 1)
        used_up = Producer(heir.id, MAX_EPOCH - 1)
        heir = await subject.init(producer=used_up)
        await subject.add(heir, T0)
        with pytest.raises(ProducerFenced):
            await subject.init(producer=used_up)
        await subject.end(heir, commit=True)


@pytest.mark.parametrize("version", [0, 2])
async def test_transaction_that_takes_too_long_is_aborted(
    version: int, autojump_clock: object
) -> None:
    """Invariant 55."""
    async with world() as subject:
        subject.version = version
        producer = await subject.init(timeout_ms=20_000)
        await subject.add(producer, T0, version=version)
        await trio.sleep(19)
        assert (await subject.state()).state is TransactionState.ONGOING
        await trio.sleep(25)
        state = await subject.state()
        assert state.state is TransactionState.COMPLETE_ABORT
        assert state.producer_epoch == producer.epoch + 1
        assert subject.directions() == [False]
        with pytest.raises(ProducerFenced):
            await subject.add(producer, T0)
        with pytest.raises(KafkaError):
            await subject.end(producer, commit=True, version=version)


async def test_transaction_that_takes_too_long_is_aborted_at_the_last_epoch(
    autojump_clock: object,
) -> None:
    """Invariant 55."""
    async with world() as subject:
        producer = await subject.init(timeout_ms=20_000)
        subject.set_epoch(MAX_EPOCH - 1)
        last = Producer(producer.id, MAX_EPOCH - 1)
        await subject.add(last, T0)
        subject.id_failures = [NetworkException()]
        await trio.sleep(50)
        assert subject.directions() == [False]
        state = await subject.state()
        assert (state.state, state.producer_epoch) == (TransactionState.COMPLETE_ABORT, 0)
        assert state.producer_id != producer.id
        with pytest.raises(InvalidProducerIdMapping):
            await subject.add(last, T0)
        heir = await subject.init()
        await subject.add(heir, T0)
        await subject.end(heir, commit=True)
        await subject.settle()
        assert subject.directions() == [False, True]


async def test_restart_of_the_coordinator_does_not_stop_the_time_out(
    autojump_clock: object,
) -> None:
    """Invariant 55."""
    async with world() as subject:
        await subject.add(await subject.init(timeout_ms=20_000), T0)
        await trio.sleep(10)
        await subject.start()
        await trio.sleep(35)
        assert subject.directions() == [False]


async def test_time_out_above_the_maximum_is_refused(autojump_clock: object) -> None:
    """Invariant 55."""
    async with world() as subject:
        for timeout_ms in (900_001, 0, -1):
            with pytest.raises(InvalidTransactionTimeout):
                await subject.init(timeout_ms=timeout_ms)
        await subject.init(timeout_ms=900_000)


async def test_repeated_end_has_the_same_answer_and_the_other_direction_is_refused(
    autojump_clock: object,
) -> None:
    """Invariant 58."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.brokers.may_serve = trio.Event()
        after = await subject.end(producer, commit=True)
        with pytest.raises(ConcurrentTransactions):  # Until the markers are written.
            await subject.end(producer, commit=True)
        subject.brokers.may_serve.set()
        await subject.settle()
        assert await subject.end(producer, commit=True) == after
        with pytest.raises(InvalidTxnState):
            await subject.end(producer, commit=False)
        await subject.start()
        assert await subject.end(producer, commit=True) == after
        assert subject.directions() == [True]


@pytest.mark.parametrize("epoch", [3, MAX_EPOCH - 1])
async def test_next_transaction_is_concurrent_while_markers_are_missing(
    epoch: int, autojump_clock: object
) -> None:
    """Invariant 58."""
    async with world() as subject:
        producer = await subject.init()
        subject.set_epoch(epoch)
        producer = Producer(producer.id, epoch)
        await subject.add(producer, T0)
        subject.brokers.may_serve = trio.Event()
        following = await subject.end(producer, commit=True)
        assert (following.id == producer.id) == (epoch == 3)
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: subject.add(following, T1),
            lambda: subject.coordinator.verify(NAME, following, [T1]),
            lambda: subject.end(following, commit=False),
            lambda: subject.end(following, commit=True),
            lambda: subject.init(producer=following),
            lambda: subject.end(producer, commit=True),
        ]
        for attempt in attempts:
            with pytest.raises(ConcurrentTransactions):
                await attempt()
        subject.brokers.may_serve.set()
        await subject.settle()
        assert await subject.end(producer, commit=True) == following
        await subject.add(following, T1)
        await subject.end(following, commit=False)
        await subject.settle()
        assert (subject.directions(T0), subject.directions(T1)) == ([True], [False])


async def test_delayed_end_does_not_touch_the_next_transaction(autojump_clock: object) -> None:
    """Invariant 57."""
    async with world() as subject:
        first = await subject.init()
        await subject.add(first, T0)
        second = await subject.end(first, commit=False)
        await subject.settle()
        await subject.add(second, T0)
        for commit in (True, False):
            with pytest.raises(ProducerFenced):
                await subject.end(first, commit=commit)
        assert (await subject.state()).state is TransactionState.ONGOING
        await subject.end(second, commit=True)
        await subject.settle()
        assert subject.directions() == [False, True]


async def test_next_transaction_waits_a_moment_for_the_markers_of_the_last(
    autojump_clock: object,
) -> None:
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.brokers.may_serve = trio.Event()
        after = await subject.end(producer, commit=True)
        with pytest.raises(ConcurrentTransactions):
            await subject.add(after, T0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.add, after, T0)
            await trio.sleep(0.05)
            subject.brokers.may_serve.set()
        assert (await subject.state()).state is TransactionState.ONGOING


async def test_idle_transactional_id_expires_and_an_open_one_does_not(
    autojump_clock: object,
) -> None:
    async with world() as subject:
        subject.settings = TransactionSettings(expiration_ms=3_600_000, max_timeout_ms=10**9)
        await subject.init("idle")
        busy = await subject.init("busy", timeout_ms=10**9)
        await subject.add(busy, T0, name="busy")
        await trio.sleep(3 * 3600)
        with pytest.raises(TransactionalIdNotFound):
            await subject.state("idle")
        assert (await subject.state("busy")).state is TransactionState.ONGOING
        await subject.start()
        with pytest.raises(TransactionalIdNotFound):
            await subject.state("idle")
        with pytest.raises(InvalidProducerIdMapping):
            await subject.end(busy, commit=True, name="idle")


async def test_decision_that_is_not_written_changes_nothing(autojump_clock: object) -> None:
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        before = await subject.state()
        subject.log.failure = NotEnoughReplicas()
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: subject.end(producer, commit=True),
            lambda: subject.add(producer, T1),
            subject.init,
        ]
        for attempt in attempts:
            with pytest.raises(CoordinatorNotAvailable):
                await attempt()
        subject.log.failure = None
        assert await subject.state() == before
        assert not subject.brokers.requests


async def test_outage_is_logged_once_while_retries_go_on(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The abort of a timed-out transaction is retried each second, its markers twice a second."""
    caplog.set_level(logging.INFO)

    def lines(event: str) -> int:
        return sum(message.startswith(event) for message in caplog.messages)

    async with world() as subject:
        await subject.add(await subject.init(timeout_ms=1000), T0)
        subject.log.failure = NotEnoughReplicas()
        await trio.sleep(60)
        assert lines("step postponed") == 1
        assert lines("transaction timed out") == 0
        subject.log.failure = None
        await trio.sleep(1.5)
        assert lines("transaction timed out") == 1

        subject.log.lease.end = trio.current_time()
        subject.coordinator.on_prepared(0)
        await trio.sleep(60)
        assert lines("markers postponed") == 1


async def test_broker_that_cannot_read_markers_is_logged_once_and_asked_once_a_second(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 61: it gets the markers once it was upgraded."""
    async with world() as subject:
        text = "WriteTxnMarkers: the other node supports 0 to 0"
        subject.brokers.failures = [UnsupportedVersion(text) for _ in range(1000)]
        producer = await subject.init()
        await subject.add(producer, T0)
        await subject.end(producer, commit=True)
        await trio.sleep(60)
        assert 60 <= len(subject.brokers.requests) <= 66
        lines = [message for message in caplog.messages if message.startswith("markers not")]
        assert len(lines) == 1
        assert text in lines[0]
        subject.brokers.failures.clear()
        await subject.settle()
        assert subject.brokers.partitions[T0].markers
        assert not subject.has_open_transactions


async def test_other_node_is_asked_for_another_coordinator(autojump_clock: object) -> None:
    async with world() as subject:
        await subject.init()
        subject.coordinator.service.on_resigned(0)
        with pytest.raises(NotCoordinator):
            await subject.state(NAME)


async def test_markers_of_many_partitions_are_sent_in_several_requests(
    autojump_clock: object,
) -> None:
    async with world() as subject:
        producer = await subject.init()
        many = [TopicPartition("many", index) for index in range(12_000)]
        subject.brokers.partitions.update((partition, DataPartition()) for partition in many)
        await subject.add(producer, T0, *many)
        await subject.end(producer, commit=True)
        await subject.settle()
        sizes = [
            sum(len(marker.partitions) for marker in markers)
            for _, markers in subject.brokers.requests
        ]
        assert sizes == [5_000, 5_000, 2_001]
        assert not subject.has_open_transactions
        assert (await subject.state()).state is TransactionState.COMPLETE_COMMIT


async def test_fenced_marker_is_not_sent_again(autojump_clock: object) -> None:
    """Invariant 60."""
    async with world() as subject:
        producer = await subject.init()
        await subject.add(producer, T0)
        subject.brokers.refusals = [InvalidProducerEpoch.code]
        await subject.end(producer, commit=True)
        await subject.settle()
        assert len(subject.brokers.requests) == 1
