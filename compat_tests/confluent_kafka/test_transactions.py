"""Transactions of librdkafka producers, and what readers see of them."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from compat_tests.confluent_kafka.clients import consumer, create, poll, producer, read
from compat_tests.harness.wait import collect


def transactional(address, name, **settings):
    client = producer(address, transactional_id=name, **settings)
    client.init_transactions(30)
    return client


def write(client, topic, values, partition=0):
    for value in values:
        client.produce(topic, value.encode(), partition=partition)
    assert client.flush(30) == 0


def visible(address, topic, count, isolation="read_committed"):
    messages = read(address, topic, count, isolation_level=isolation)
    return [message.value().decode() for message in messages]


def test_committed_transactions_are_read_and_aborted_ones_are_not(broker, topic, unique):
    create(broker.address, topic)
    client = transactional(broker.address, unique("txn"))
    for number in range(10):
        client.begin_transaction()
        write(client, topic, [f"{number}-{index}" for index in range(3)])
        client.commit_transaction(30) if number % 2 == 0 else client.abort_transaction(30)
    expected = [f"{number}-{index}" for number in range(0, 10, 2) for index in range(3)]
    assert visible(broker.address, topic, len(expected)) == expected
    everything = visible(broker.address, topic, 30, "read_uncommitted")
    assert everything == [f"{number}-{index}" for number in range(10) for index in range(3)]


def test_open_transaction_hides_its_records_and_all_after_them(broker, topic, unique):
    create(broker.address, topic)
    client = transactional(broker.address, unique("txn"))
    client.begin_transaction()
    write(client, topic, ["open"])
    plain = producer(broker.address)
    write(plain, topic, ["plain"])
    with consumer(broker.address, unique("group"), isolation_level="read_committed") as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert poll(reader, 1.0) == []
        client.commit_transaction(30)
        assert [m.value() for m in collect(lambda: poll(reader), 2)] == [b"open", b"plain"]


def test_newer_producer_fences_the_older(broker, topic, unique):
    create(broker.address, topic)
    name = unique("txn")
    zombie = transactional(broker.address, name)
    zombie.begin_transaction()
    write(zombie, topic, ["zombie"])
    heir = transactional(broker.address, name)
    heir.begin_transaction()
    write(heir, topic, ["heir"])
    heir.commit_transaction(30)
    with pytest.raises(KafkaException) as failure:
        zombie.commit_transaction(30)
    assert failure.value.args[0].code() == KafkaError._FENCED
    assert visible(broker.address, topic, 1) == ["heir"]


def test_transaction_that_takes_too_long_is_aborted(own_broker, topic, unique):
    create(own_broker.address, topic)
    client = transactional(own_broker.address, unique("txn"), transaction_timeout_ms=1000)
    client.begin_transaction()
    write(client, topic, ["late"])
    write(producer(own_broker.address), topic, ["after"])
    began = time.monotonic()
    assert visible(own_broker.address, topic, 1) == ["after"]
    assert time.monotonic() - began < 45
    with pytest.raises(KafkaException):
        client.commit_transaction(30)


def test_offsets_are_committed_with_the_transaction(broker, topic, unique):
    source, group = unique("source"), unique("group")
    create(broker.address, topic)
    create(broker.address, source)
    write(producer(broker.address), source, [str(number) for number in range(20)])
    client = transactional(broker.address, unique("txn"))
    with consumer(broker.address, group) as reader:
        reader.subscribe([source])
        messages = collect(lambda: poll(reader), 20)
        for end, commit in ((10, True), (20, False)):
            client.begin_transaction()
            write(client, topic, [message.value().decode() for message in messages[end - 10 : end]])
            positions = [TopicPartition(source, 0, end)]
            metadata = reader.consumer_group_metadata()
            client.send_offsets_to_transaction(positions, metadata, 30)
            client.commit_transaction(30) if commit else client.abort_transaction(30)
        committed = reader.committed([TopicPartition(source, 0)], 30)
        assert [position.offset for position in committed] == [10]
    assert visible(broker.address, topic, 10) == [str(number) for number in range(10)]


def test_broker_restart_finishes_what_was_decided(own_broker, topic, unique):
    create(own_broker.address, topic)
    client = transactional(own_broker.address, unique("txn"))
    for number in range(20):
        client.begin_transaction()
        write(client, topic, [str(number)])
        client.commit_transaction(30)
        if number % 7 == 3:
            own_broker.kill()
            own_broker.start()
    assert visible(own_broker.address, topic, 20) == [str(number) for number in range(20)]


def test_producer_finds_its_transaction_aborted_after_a_broker_restart(own_broker, topic, unique):
    create(own_broker.address, topic)
    name = unique("txn")
    client = transactional(own_broker.address, name)
    client.begin_transaction()
    write(client, topic, ["open"])
    own_broker.kill()
    own_broker.start()
    heir = transactional(own_broker.address, name)
    heir.begin_transaction()
    write(heir, topic, ["heir"])
    heir.commit_transaction(30)
    assert visible(own_broker.address, topic, 1) == ["heir"]


def test_many_partitions_end_together(broker, topic, unique):
    create(broker.address, topic, 20)
    client = transactional(broker.address, unique("txn"))
    for commit in (True, False, True):
        client.begin_transaction()
        for partition in range(20):
            client.produce(topic, b"%d" % commit, partition=partition)
        client.commit_transaction(30) if commit else client.abort_transaction(30)
    messages = read(broker.address, topic, 40, 20, isolation_level="read_committed")
    assert {message.value() for message in messages} == {b"1"}
    assert len(messages) == 40


def test_transaction_without_records_ends(broker, unique):
    client = transactional(broker.address, unique("txn"))
    for commit in (True, False, True, False):
        client.begin_transaction()
        client.commit_transaction(30) if commit else client.abort_transaction(30)


def test_time_out_above_the_brokers_maximum_is_refused(broker, unique):
    client = producer(
        broker.address, transactional_id=unique("txn"), transaction_timeout_ms=900_001
    )
    with pytest.raises(KafkaException) as failure:
        client.init_transactions(30)
    assert failure.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
