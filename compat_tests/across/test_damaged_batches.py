"""Produced batches whose records are damaged: the error codes of Apache Kafka 4.3.1, and that every
client reads what is accepted."""

from __future__ import annotations

from typing import Any

from compat_tests.confluent_kafka import clients as confluent
from compat_tests.harness.broker import Broker
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect
from compat_tests.kafka_python import clients as kafka_python
from kwire import errors
from kwire.codec.messages.produce import ProduceRequest
from kwire.records.header import parse
from kwire.testing.wire import WireClient
from tests.support.records import damaged
from tests.support.records.vectors import lines

EITHER = {"varint_overlong": {errors.InvalidRecord.code, errors.UnknownServerError.code}}
"""Cases in which kwire has a better error than Kafka, which fails to read the record."""
BATCH_COUNT = 300


def produce(client: WireClient, topic: str, batch: bytes) -> int:
    """Return the error code for a batch."""
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[data(name=topic, partition_data=[partition])]
    )
    code = 0

    def is_final() -> bool:
        nonlocal code
        answer = client.call(request, 9)
        code = answer.responses[0].partition_responses[0].error_code
        return code != errors.NotLeaderOrFollower.code

    eventually(is_final, "an answer of the leader")
    return code


def test_damaged_batches_get_the_recorded_errors(broker: Broker, topic: str):
    """The answers of a real broker in tests/vectors/corrupt_records.jsonl.gz."""
    confluent.create(broker.address, topic, retention_ms="-1")
    differences: list[Any] = []
    with connect(broker.address) as client:
        for case in lines("corrupt_records.jsonl.gz"):
            expected = EITHER.get(case["case"], {case["broker"]["error_code"]})
            code = produce(client, topic, bytes.fromhex(case["hex"]))
            if code not in expected:
                differences.append((case["id"], case["case"], code, expected))
    assert not differences


def test_accepted_batches_are_read_by_all_clients(broker: Broker, topic: str):
    """Random damage to uncompressed records; those that only some clients read are left out."""
    confluent.create(broker.address, topic, retention_ms="-1")
    record_count = 0
    with connect(broker.address) as connection:
        for seed in range(BATCH_COUNT):
            batch = damaged.batch_of(seed, codecs=1)
            if damaged.is_accepted(batch) and damaged.oddity(batch):
                continue
            if produce(connection, topic, batch) == 0:
                record_count += parse(batch).record_count
    assert record_count > 100
    for client in (confluent, kafka_python):
        assert len(client.read(broker.address, topic, record_count)) == record_count
