"""The records of `__transaction_state`: one per transactional id, with its latest state.

Values are written in version 1 if `transaction.version` is 1 or 2, else in version 0, which has no
tagged fields.
"""

import struct
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import Final

from kwire.codec.compile import decode, encode
from kwire.codec.messages.transaction_records import TransactionLogKey, TransactionLogValue
from kwire.codec.schema import spec_of
from kwire.coordinator.decision import Record
from kwire.transaction.model import Transaction, TransactionState
from kwire.types import TopicPartition

_PREFIX: Final = struct.Struct(">h")
_KEY_TYPE: Final = 0
_TOPIC: Final = attrgetter("topic")
_INDEX: Final = attrgetter("partition")

Partitions = TransactionLogValue.PartitionsSchema


def store(record: Record) -> tuple[bytes, bytes | None]:
    """Encode a record's key and value."""
    key = _PREFIX.pack(_KEY_TYPE) + encode(record.key, 0)
    if record.value is None:
        return key, None
    version = record.version or 0
    return key, _PREFIX.pack(version) + encode(record.value, version)


def load(key: bytes, value: bytes | None) -> Record | None:
    """Decode a stored record; None if kwire does not use it. Raises ValueError if it is damaged."""
    if len(key) < _PREFIX.size or (value is not None and len(value) < _PREFIX.size):
        raise ValueError("record without a type")
    (kind,) = _PREFIX.unpack_from(key)
    if kind != _KEY_TYPE:
        return None
    decoded_key = decode(TransactionLogKey, key[2:], 0)
    if value is None:
        return Record(decoded_key)
    (version,) = _PREFIX.unpack_from(value)
    if version not in spec_of(TransactionLogValue).versions:
        raise ValueError(f"value version {version}")
    return Record(decoded_key, decode(TransactionLogValue, value[2:], version), version)


def record_of(transaction: Transaction, transaction_version: int) -> Record:
    """Return the record of a state; the finalized `transaction.version` selects its version."""
    version = 1 if transaction_version else 0
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=_topics(transaction),
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.client_transaction_version = transaction.client_version
    return Record(TransactionLogKey(transactional_id=transaction.transactional_id), value, version)


def tombstone(transactional_id: str) -> Record:
    return Record(TransactionLogKey(transactional_id=transactional_id))


def transaction_of(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """Return the state that a record holds; raises ValueError for an unknown status."""
    state = TransactionState(value.transaction_status)
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            chain.from_iterable(
                map(TopicPartition, repeat(topic.topic), topic.partition_ids)
                for topic in value.transaction_partitions or ()
            )
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )


def _topics(transaction: Transaction) -> list[Partitions] | None:
    """Return the partitions by topic, sorted; None in the state Empty, as Kafka writes it."""
    if transaction.state is TransactionState.EMPTY:
        return None
    return [
        Partitions(topic=topic, partition_ids=list(map(_INDEX, partitions)))
        for topic, partitions in groupby(sorted(transaction.partitions), _TOPIC)
    ]
