"""Transactions of kafka-python producers, and its administration of them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec, TransactionState
from kafka.errors import (
    CommitFailedError,
    KafkaError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from kafka.structs import OffsetAndMetadata

from compat_tests.harness.wait import collect, eventually
from compat_tests.kafka_python.clients import admin, consumer, create, fill, poll, producer, read

COMMITTED = {"isolation_level": "read_committed"}


@contextmanager
def transactional(address, name, **settings):
    with producer(address, transactional_id=name, **settings) as client:
        client.init_transactions()
        yield client


def write(client, topic, values, partition=0):
    futures = [client.send(topic, value.encode(), partition=partition) for value in values]
    client.flush()
    return [future.get(30) for future in futures]


def visible(address, topic, count, **settings):
    return [record.value.decode() for record in read(address, topic, count, **settings)]


def end(client, *, commit):
    client.commit_transaction() if commit else client.abort_transaction()


def test_committed_transactions_are_read_and_aborted_ones_are_not(broker, topic, unique):
    create(broker.address, topic)
    with transactional(broker.address, unique("txn")) as client:
        for number in range(6):
            client.begin_transaction()
            write(client, topic, [f"{number}-{index}" for index in range(3)])
            end(client, commit=number % 2 == 0)
    expected = [f"{number}-{index}" for number in (0, 2, 4) for index in range(3)]
    assert visible(broker.address, topic, 9, **COMMITTED) == expected
    assert visible(broker.address, topic, 18) == [
        f"{number}-{index}" for number in range(6) for index in range(3)
    ]


def test_open_transaction_hides_its_records_and_all_after_them(broker, topic, unique):
    create(broker.address, topic)
    partition = TopicPartition(topic, 0)
    with (
        transactional(broker.address, unique("txn")) as client,
        consumer(broker.address, **COMMITTED) as reader,
    ):
        client.begin_transaction()
        write(client, topic, ["open"])
        fill(broker.address, topic, [b"plain"])
        reader.assign([partition])
        reader.seek_to_beginning(partition)
        assert poll(reader, 1000) == []
        assert reader.end_offsets([partition]) == {partition: 0}
        client.commit_transaction()
        assert [r.value for r in collect(lambda: poll(reader), 2)] == [b"open", b"plain"]


def test_newer_producer_fences_the_older(broker, topic, unique):
    create(broker.address, topic)
    name = unique("txn")
    with transactional(broker.address, name) as zombie:
        zombie.begin_transaction()
        write(zombie, topic, ["zombie"])
        with transactional(broker.address, name) as heir:
            heir.begin_transaction()
            write(heir, topic, ["heir"])
            heir.commit_transaction()
        with pytest.raises(ProducerFencedError):
            zombie.commit_transaction()
    assert visible(broker.address, topic, 1, **COMMITTED) == ["heir"]


def test_transaction_that_takes_too_long_is_aborted(broker, topic, unique):
    create(broker.address, topic)
    settings = {"transaction_timeout_ms": 1000, "delivery_timeout_ms": 30_000}
    with transactional(broker.address, unique("txn"), **settings) as client:
        client.begin_transaction()
        write(client, topic, ["late"])
        fill(broker.address, topic, [b"after"])
        assert visible(broker.address, topic, 1, **COMMITTED) == ["after"]
        with pytest.raises(KafkaError):
            client.commit_transaction()


def test_offsets_are_committed_with_the_transaction(broker, topic, group, unique):
    source = unique("source")
    create(broker.address, topic)
    create(broker.address, source)
    fill(broker.address, source, [b"%d" % number for number in range(20)])
    place = TopicPartition(source, 0)
    with (
        transactional(broker.address, unique("txn")) as client,
        consumer(broker.address, source, group_id=group, enable_auto_commit=False) as reader,
    ):
        records = collect(lambda: poll(reader), 20)
        for position, commit in ((10, True), (20, False)):
            client.begin_transaction()
            write(client, topic, [r.value.decode() for r in records[position - 10 : position]])
            offsets = {place: OffsetAndMetadata(position, "note", -1)}
            client.send_offsets_to_transaction(offsets, reader.group_metadata())
            end(client, commit=commit)
        assert reader.committed(place, metadata=True)[:2] == (10, "note")
    assert visible(broker.address, topic, 10, **COMMITTED) == [str(n) for n in range(10)]


def test_offsets_of_a_member_that_was_removed_are_refused(broker, topic, group, unique):
    """A transaction cannot commit the offsets of a generation that has ended (KIP-447)."""
    create(broker.address, topic)
    fill(broker.address, topic, [b"1"])
    place = TopicPartition(topic, 0)
    with (
        transactional(broker.address, unique("txn")) as client,
        consumer(broker.address, topic, group_id=group, enable_auto_commit=False) as reader,
    ):
        collect(lambda: poll(reader), 1)
        metadata = reader.group_metadata()
        reader.unsubscribe()
        client.begin_transaction()
        with pytest.raises(CommitFailedError):
            client.send_offsets_to_transaction({place: OffsetAndMetadata(1, "", -1)}, metadata)
        client.abort_transaction()
    with consumer(broker.address, group_id=group) as reader:
        assert reader.committed(place) is None


def test_time_out_above_the_brokers_maximum_is_refused(broker, unique):
    settings = {"transactional_id": unique("txn"), "transaction_timeout_ms": 900_001}
    client = KafkaProducer(bootstrap_servers=broker.address, **settings)
    try:
        with pytest.raises(KafkaError, match="InvalidTransactionTimeoutError"):
            client.init_transactions()
    finally:
        client.close(timeout=10)


def test_open_transaction_is_listed_described_and_aborted_by_an_admin(broker, topic, unique):
    create(broker.address, topic)
    place, name = TopicPartition(topic, 0), unique("txn")
    with transactional(broker.address, name) as client, admin(broker.address) as tool:
        client.begin_transaction()
        write(client, topic, ["open"])
        fill(broker.address, topic, [b"plain"])
        described = tool.describe_transactions([name])[name]
        assert described.state is TransactionState.ONGOING
        assert described.topic_partitions == {place}
        filters = {"state_filters": ["Ongoing"], "transactional_id_pattern": f"{name[:-2]}.*"}
        (listing,) = [row for rows in tool.list_transactions(**filters).values() for row in rows]
        assert (listing.transactional_id, listing.producer_id) == (name, described.producer_id)
        (writer,) = [
            state
            for state in tool.describe_producers([place])[place].active_producers
            if state.current_transaction_start_offset == 0
        ]
        assert writer.producer_id == described.producer_id
        tool.abort_transaction(
            AbortTransactionSpec(place, writer.producer_id, writer.producer_epoch)
        )
        assert visible(broker.address, topic, 1, **COMMITTED) == ["plain"]
        eventually(
            lambda: all(
                state.current_transaction_start_offset < 0
                for state in tool.describe_producers([place])[place].active_producers
            ),
            "the partition has no open transaction",
        )
        client.abort_transaction()
        with pytest.raises(TransactionalIdNotFoundError):
            tool.describe_transactions([unique("unknown")])
