"""The data that survives a stop, and a kill in the middle of a load."""

from __future__ import annotations

import threading
from functools import partial

from kafka import KafkaConsumer, TopicPartition

from compat_tests.harness.wait import collect, eventually
from compat_tests.kafka_python.clients import admin, consumer, create, fill, poll, producer

LOAD = {"linger_ms": 2, "batch_size": 2000, "reconnect_backoff_max_ms": 200}


def test_everything_is_there_after_a_restart(own_broker, topic, group):
    address = own_broker.address
    create(address, topic, 2, retention_ms="1234567890")
    fill(address, topic, [b"%d" % number for number in range(10)], partition=0)
    with consumer(address, topic, group_id=group) as reader:
        collect(lambda: poll(reader), 10)
        reader.commit({TopicPartition(topic, 0): _offset(6)})
    with admin(address) as client:
        before = (client.describe_cluster()["cluster_id"], client.describe_topics([topic]))
        client.delete_records({TopicPartition(topic, 0): 3})
    own_broker.restart()
    with admin(address) as client:
        topics = client.describe_topics([topic])
        assert client.describe_cluster()["cluster_id"] == before[0]
        assert topics[0]["topic_id"] == before[1][0]["topic_id"]
        assert len(topics[0]["partitions"]) == 2
    with consumer(address, topic, group_id=group) as reader:
        assert [int(r.value) for r in collect(lambda: poll(reader), 4)] == [6, 7, 8, 9]
        partition = TopicPartition(topic, 0)
        assert reader.beginning_offsets([partition]) == {partition: 3}
        assert reader.end_offsets([partition]) == {partition: 10}


def has_more(acknowledged: list[int], count: int) -> bool:
    return len(acknowledged) > count


def has_partitions(reader: KafkaConsumer) -> bool:
    return bool(poll(reader) or reader.assignment())


def _offset(offset):
    from kafka.structs import OffsetAndMetadata

    return OffsetAndMetadata(offset, "", -1)


def test_kill_during_a_load_loses_nothing_acknowledged(own_broker, topic, group):
    """Two kills under a producer's load lose no acknowledged record; the client retries."""
    address = own_broker.address
    create(address, topic, 2)
    acknowledged: list[int] = []
    failed: list[str] = []
    stop = threading.Event()

    def load() -> None:
        with producer(address, **LOAD) as client:
            number = 0
            while not stop.is_set():
                future = client.send(topic, b"%d" % number, partition=number % 2)
                future.add_callback(lambda _, n=number: acknowledged.append(n))
                future.add_errback(lambda error: failed.append(repr(error)))
                number += 1
                stop.wait(0.0005)
            client.flush(60)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(2):
            goal = len(acknowledged) + 300
            eventually(partial(has_more, acknowledged, goal), "acknowledgements")
            with consumer(address, topic, group_id=group) as reader:
                assert collect(partial(poll, reader), 1)
                reader.commit()
                places = {p: reader.committed(p) for p in reader.assignment()}
            own_broker.kill()
            own_broker.start()
            goal = len(acknowledged) + 100
            eventually(partial(has_more, acknowledged, goal), "acknowledgements again")
            with consumer(address, topic, group_id=group) as reader:
                eventually(partial(has_partitions, reader), "partitions")
                assert {p: reader.committed(p) for p in places} == places
    finally:
        stop.set()
        thread.join(120)
    assert not thread.is_alive()
    assert failed == []
    with consumer(address) as reader:
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        reader.assign(partitions)
        end = sum(reader.end_offsets(partitions).values())
        numbers = [(r.partition, int(r.value)) for r in collect(lambda: poll(reader), end)]
    assert set(acknowledged) <= {number for _, number in numbers}
    for partition in (0, 1):  # Idempotent: once each and in order, despite the retries.
        own = [number for at, number in numbers if at == partition]
        assert own == sorted(set(own))


def test_groups_resume_after_a_kill(own_broker, topic, group):
    address = own_broker.address
    create(address, topic, 1)
    fill(address, topic, [b"0", b"1", b"2"])
    with consumer(address, topic, group_id=group) as reader:
        collect(lambda: poll(reader), 3)
        reader.commit()
        own_broker.kill()
        own_broker.start()
        fill(address, topic, [b"3"])
        assert [r.value for r in collect(lambda: poll(reader), 1)] == [b"3"]
