"""AddPartitionsToTxn of brokers and clients: missing markers, several transactions at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from kwire.errors import NONE, ConcurrentTransactions, CoordinatorNotAvailable, InvalidRequest
from kwire.transaction.model import TransactionState
from kwire.transaction.transitions import Producer
from tests.support.handlers.broker import Broker, broker, create_topic
from tests.support.transaction.world import NAME, T0, World


@asynccontextmanager
async def coordinator() -> AsyncIterator[tuple[Broker, World, Producer]]:
    """Make a broker with a coordinator whose only transaction lacks its marker."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        await world.start()
        subject = broker()
        await create_topic(subject)
        subject.replace(transactions=lambda: world.coordinator)
        producer = await world.init()
        await world.add(producer, T0)
        world.brokers.may_serve = trio.Event()
        yield subject, world, await world.end(producer, commit=True)
        nursery.cancel_scope.cancel()


def request_of(producer: Producer, version: int) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(name=T0.topic, partitions=[T0.partition])]
    if version < 4:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=NAME,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=topics,
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


async def test_broker_is_answered_at_once_while_a_marker_is_missing(
    autojump_clock: object,
) -> None:
    """Its guard would let records into a transaction that a later marker ends (invariant 56)."""
    async with coordinator() as (subject, world, producer):
        assert world.brokers.may_serve is not None
        codes: list[int] = []

        async def add() -> None:
            answer = await subject.call(request_of(producer, 5), 5)
            (topic,) = answer.results_by_transaction[0].topic_results
            codes.append(topic.results_by_partition[0].partition_error_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            await trio.sleep(0.05)
            world.brokers.may_serve.set()
        assert codes == [ConcurrentTransactions.code]
        await world.settle()
        await add()
        assert codes[1:] == [NONE]


async def test_producer_is_answered_when_the_missing_marker_is_written(
    autojump_clock: object,
) -> None:
    async with coordinator() as (subject, world, producer):
        assert world.brokers.may_serve is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subject.call, request_of(producer, 3), 3)
            await trio.sleep(0.05)
            world.brokers.may_serve.set()
        assert (await world.state()).state is TransactionState.ONGOING


async def test_transactions_of_a_broker_are_decided_before_the_first_is_committed(
    autojump_clock: object,
) -> None:
    """A request with many of them takes one commit, not one after the other."""
    async with coordinator() as (subject, world, _):
        names = [f"name-{number}" for number in range(20)]
        producers = [await world.init(name) for name in names]
        request = AddPartitionsToTxnRequest()
        for name, producer in zip(names, producers, strict=True):
            (transaction,) = request_of(producer, 5).transactions
            transaction.transactional_id = name
            request.transactions.append(transaction)
        world.log.replicas_lag = True
        answers: list[AddPartitionsToTxnResponse] = []

        async def add() -> None:
            answers.append(await subject.call(request, 5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            await trio.testing.wait_all_tasks_blocked()
            (shard,) = world.coordinator.service.machines()
            assert len(shard.ongoing) == 20
            assert not answers
            world.log.catch_up()
        results = answers[0].results_by_transaction
        assert [result.transactional_id for result in results] == names
        assert {
            r.topic_results[0].results_by_partition[0].partition_error_code for r in results
        } == {NONE}


async def test_broker_is_answered_in_time_although_one_commit_is_late(
    autojump_clock: object,
) -> None:
    """Producers on the broker wait for the answer, also those of other transactional ids."""
    async with coordinator() as (subject, world, _):
        producer = await world.init("late")
        request = AddPartitionsToTxnRequest()
        for name in ("late", ""):
            (transaction,) = request_of(producer, 5).transactions
            transaction.transactional_id = name
            request.transactions.append(transaction)
        world.log.replicas_lag = True
        began = trio.current_time()
        for _ in range(2):  # The second request finds the partition in the transaction.
            answer = await subject.call(request, 5)
            assert [
                result.topic_results[0].results_by_partition[0].partition_error_code
                for result in answer.results_by_transaction
            ] == [CoordinatorNotAvailable.code, InvalidRequest.code]
        assert trio.current_time() - began < 3
        world.log.catch_up()
        answer = await subject.call(request, 5)
        (topic,) = answer.results_by_transaction[0].topic_results
        assert topic.results_by_partition[0].partition_error_code == NONE
