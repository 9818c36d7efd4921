"""Records that one client writes and every other client reads: compression and partitioning."""

from __future__ import annotations

import pytest

from compat_tests.aiokafka import clients as aio
from compat_tests.confluent_kafka import clients as confluent
from compat_tests.harness.wait import eventually
from compat_tests.kafka_python import clients as python

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COUNT = 100
VALUES = [b"%d" % number for number in range(COUNT)]
KEYS = [b"key-%d" % number for number in range(COUNT)]


def write_python(broker, jvm, topic, codec):
    choice = None if codec == "none" else codec
    with python.producer(broker.address, compression_type=choice, linger_ms=20) as client:
        for key, value in zip(KEYS, VALUES, strict=True):
            client.send(topic, key=key, value=value)


def write_confluent(broker, jvm, topic, codec):
    client = confluent.producer(
        broker.address, compression_type=codec, linger_ms=20, partitioner="murmur2_random"
    )
    pairs = zip(KEYS, VALUES, strict=True)
    confluent.deliver(
        client, [{"topic": topic, "key": key, "value": value} for key, value in pairs]
    )


def write_aiokafka(broker, jvm, topic, codec):
    async def main():
        choice = None if codec == "none" else codec
        async with aio.producer(broker.address, compression_type=choice, linger_ms=20) as client:
            for key, value in zip(KEYS, VALUES, strict=True):
                await client.send(topic, value, key=key)

    aio.run(main())


def write_java(broker, jvm, topic, codec):
    settings = [f"compression.type={codec}", "linger.ms=20"]
    jvm.scenario("Scenarios", "produce", broker.address, topic, str(COUNT), "key", *settings)


WRITERS = {
    "kafka-python": write_python,
    "confluent-kafka": write_confluent,
    "aiokafka": write_aiokafka,
    "java": write_java,
}


def read_python(broker, jvm, topic, partitions):
    records = python.read(broker.address, topic, COUNT)
    return [(r.partition, r.offset, r.key, r.value) for r in records]


def read_confluent(broker, jvm, topic, partitions):
    messages = confluent.read(broker.address, topic, COUNT, partitions)
    return [(m.partition(), m.offset(), m.key(), m.value()) for m in messages]


def read_aiokafka(broker, jvm, topic, partitions):
    async def main():
        async with aio.consumer(broker.address, topic) as client:
            return await aio.collect(client, COUNT)

    return [(r.partition, r.offset, r.key, r.value) for r in aio.run(main())]


def read_java(broker, jvm, topic, partitions):
    records = jvm.scenario("Scenarios", "consume", broker.address, topic, str(COUNT))["records"]
    return [(r["partition"], r["offset"], r["key"].encode(), r["value"].encode()) for r in records]


READERS = [read_python, read_confluent, read_aiokafka, read_java]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_client_reads_what_one_wrote(broker, jvm, topic, writer, codec):
    python.create(broker.address, topic)
    WRITERS[writer](broker, jvm, topic, codec)
    expected = [(0, n, KEYS[n], VALUES[n]) for n in range(COUNT)]
    for reader in READERS:
        assert reader(broker, jvm, topic, 1) == expected, reader.__name__


def test_the_same_key_goes_to_the_same_partition_in_every_client(broker, jvm, unique):
    places = {}
    for name, write in WRITERS.items():
        topic = unique(name)
        python.create(broker.address, topic, 11)
        write(broker, jvm, topic, "none")
        places[name] = {key: at for at, _, key, _ in read_python(broker, jvm, topic, 11)}
    assert len(set(places["java"].values())) == 11
    assert all(partitions == places["java"] for partitions in places.values())


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_codec_replaces_the_producers(broker, jvm, topic, codec):
    """With compression.type on the topic, the broker recompresses, and every client can read."""
    python.create(broker.address, topic, compression_type=codec)
    write_python(broker, jvm, topic, "gzip" if codec != "gzip" else "zstd")
    expected = [(0, n, KEYS[n], VALUES[n]) for n in range(COUNT)]
    for reader in READERS:
        assert reader(broker, jvm, topic, 1) == expected, reader.__name__


def test_members_of_different_libraries_share_a_group(broker, topic, group):
    """Members of both libraries agree on the range assignor; each partition has one owner."""
    python.create(broker.address, topic, 4)
    with (
        python.members(broker.address, 1, topic, group_id=group) as (member,),
        confluent.consumer(broker.address, group, partition_assignment_strategy="range") as other,
    ):
        other.subscribe([topic])
        assignments: list[set[int]] = []

        def both():
            assignments[:] = [
                {p.partition for p in member.assignment},
                {p for _, p in confluent.owned_partitions(other)},
            ]
            confluent.poll(other, 0.05)
            return sorted(map(len, assignments)) == [2, 2] and not assignments[0] & assignments[1]

        eventually(both, "two members with two partitions each")
