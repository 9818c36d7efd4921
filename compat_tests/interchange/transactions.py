"""Transactions in every state of their life, left in a data directory.

A decided end whose markers are not written yet exists for milliseconds only. Here a client with the
id that may write to internal topics appends the coordinator's record of it, and the node stops.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)

from compat_tests.confluent_kafka.clients import (
    consumer,
    create,
    deliver,
    is_end,
    partition_of,
    producer,
    value_of,
)
from compat_tests.harness.wait import eventually
from compat_tests.interchange import view
from compat_tests.kafka_python.clients import admin
from kwire.transaction import records
from kwire.transaction.model import EPOCH_BUMP, TransactionState

TOPIC = "written-in-transactions"
STATES = ("committed", "aborted", "open", "commit-decided", "abort-decided")
"""The transactional ids: what has happened to each one's second transaction."""
DECIDED = {
    "commit-decided": TransactionState.PREPARE_COMMIT,
    "abort-decided": TransactionState.PREPARE_ABORT,
}
TIME_OUT_MS = 900_000
"""The brokers' maximum, so that the open transaction stays open."""
GROUPS = [f"group-of-{name}" for name in STATES]
STATE_TOPIC = "__transaction_state"
PASSING = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)


def fill(address: str) -> None:
    """Leave one transactional id in each state."""
    create(address, TOPIC, len(STATES))
    for partition, name in enumerate(STATES):
        client = producer(address, transactional_id=name, transaction_timeout_ms=TIME_OUT_MS)
        client.init_transactions(60)
        for number in range(2):
            client.begin_transaction()
            client.produce(TOPIC, f"{name}-{number}".encode(), partition=partition)
            assert client.flush(60) == 0
            with consumer(address, f"group-of-{name}") as reader:
                places = [TopicPartition(TOPIC, partition, number + 1)]
                metadata = reader.consumer_group_metadata()
                client.send_offsets_to_transaction(places, metadata, 60)
            if number == 0 or name == "committed":
                client.commit_transaction(60)
            elif name == "aborted":
                client.abort_transaction(60)
    for name, state in DECIDED.items():
        decide(address, name, state)


def decide(address: str, name: str, state: TransactionState) -> None:
    """Append the record that the coordinator writes when it decides the end."""
    partition, key, value = newest_record(address, name)
    record = records.load(key, value)
    assert record is not None
    changed: Any = record.value
    assert changed.transaction_status == TransactionState.ONGOING, "the second transaction is open"
    changed.transaction_status = state
    if changed.client_transaction_version >= EPOCH_BUMP:
        changed.producer_epoch += 1
        changed.previous_producer_id = changed.producer_id
    new_key, new_value = records.store(record)
    client = producer(address, client_id="__admin_client", acks="all")
    deliver(
        client, [{"topic": STATE_TOPIC, "partition": partition, "key": new_key, "value": new_value}]
    )


def newest_record(address: str, name: str) -> tuple[int, bytes, bytes]:
    """Return the newest record of a transactional id, with its partition."""
    settings = {"bootstrap.servers": address, "group.id": "unused", "enable.partition.eof": True}
    client = Consumer({**settings, "auto.offset.reset": "earliest"})
    newest: dict[bytes, tuple[int, bytes, bytes]] = {}
    try:
        count = len(client.list_topics(STATE_TOPIC, 30).topics[STATE_TOPIC].partitions)
        client.assign([TopicPartition(STATE_TOPIC, number, 0) for number in range(count)])
        ended = 0
        while ended < count:
            for message in client.consume(500, 1.0):
                if message.error() is not None:
                    ended += is_end(message)
                    continue
                key = message.key()
                assert key is not None
                newest[key] = (partition_of(message), key, value_of(message))
    finally:
        client.close()
    (row,) = [row for key, row in newest.items() if key.endswith(name.encode())]
    return row


def wait_finished(address: str) -> dict[str, Any]:
    """Wait until every decided end has its markers, and return what clients see then."""
    places = [(TOPIC, partition) for partition in range(len(STATES))]

    def stable() -> bool:
        offsets = view.offsets(address, places)
        open_place = (TOPIC, STATES.index("open"))
        return all(
            offsets["stable"][place] == offsets["end"][place]
            for place in places
            if place != open_place
        )

    eventually(stable, "markers of all decided transactions")
    eventually(lambda: describe(address)["open"][0] == "Ongoing", "the coordinator has loaded")
    eventually(
        lambda: not any("Prepare" in states[0] for states in describe(address).values()),
        "the coordinators' ends are complete",
    )
    return {
        "records": view.records(address, places, "read_committed"),
        "uncommitted": view.records(address, places),
        "offsets": view.offsets(address, places),
        "committed": view.committed_offsets(address, GROUPS),
        "described": describe(address),
    }


def describe(address: str) -> dict[str, tuple[str, int, int, int, list[Any]]]:
    """Return each id's state, producer id, epoch, time-out and partitions."""

    def ask() -> Any:
        try:
            with admin(address) as client:
                return client.describe_transactions(STATES)
        except PASSING:
            return None

    return {
        name: (
            str(details.state.value),
            details.producer_id,
            details.producer_epoch,
            details.transaction_timeout_ms,
            sorted(details.topic_partitions),
        )
        for name, details in eventually(ask, "descriptions of the transactions").items()
    }


def go_on(address: str) -> None:
    """Write one more transaction with every id; it ends what is open."""
    for partition, name in enumerate(STATES):
        client = producer(address, transactional_id=name)
        client.init_transactions(60)
        client.begin_transaction()
        client.produce(TOPIC, f"{name}-later".encode(), partition=partition)
        client.commit_transaction(60)
