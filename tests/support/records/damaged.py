"""Produced batches with a right header and CRC, whose payloads are damaged by a seed.

`compat_tests/across/damaged_trial.py` judges many of them, and reads them with several clients.
"""

import random
from functools import cache
from typing import Final

from kwire.errors import KafkaError
from kwire.records import build, compression, header, iterate, validate
from kwire.replica.unpacking import PAYLOAD_MAX, check_payload
from tests.support.speedups.fuzz import NUMBERS

PAIRS = ((b"key", b"value"), (None, bytes(30)), (b"", None), (b"k" * 70, b"v" * 70))
HEADERS: tuple[tuple[tuple[bytes, bytes | None], ...], ...] = (
    (),
    ((b"h", b"v"),),
    ((b"", None), (b"i", b"w" * 65)),
)
HEAD: Final = header.parse(build.batch([build.New(None, None)], timestamp_ms=1_700_000_000_000))


@cache
def _record(
    index: int,
    pair: tuple[bytes | None, bytes | None],
    headers: tuple[tuple[bytes, bytes | None], ...],
) -> bytes:
    return build.encode_record(index, index, *pair, headers)


def batch_of(seed: int, codecs: int = 5) -> bytes:
    """Return the batch of a seed, damaged before or after its compression in most cases."""
    source = random.Random(seed)
    count = source.choice((1, 2, 3, 20))
    payload = bytearray()
    for index in range(count):
        payload += _record(index, source.choice(PAIRS), source.choice(HEADERS))
    for _ in range(source.choice((0, 1, 1, 2, 3))):
        at = source.randrange(len(payload) or 1)
        payload += bytes(not payload)
        match source.randrange(4):
            case 0:
                payload[at] ^= 1 << source.randrange(8)
            case 1:
                payload[at] = source.randrange(256)
            case 2:
                payload[at:at] = source.choice(NUMBERS)
            case _:
                del payload[at : at + source.choice((1, 1, 2, 9)) if at else 1]
    count = max(1, source.choice((count,) * 9 + (count + 1, count - 1)))
    codec = source.randrange(codecs)
    packed = bytearray(compression.compress(codec, payload))
    if codec and packed and source.random() < 0.3:
        at = source.randrange(len(packed))
        if source.random() < 0.5:
            packed[at] ^= 1 << source.randrange(8)
        else:
            del packed[at : at + source.choice((1, 4, 1 << 20))]
    if source.random() < 0.05:
        codec = source.randrange(codecs)
    return build.assemble(
        HEAD._replace(attributes=codec, record_count=count, last_offset_delta=count - 1), packed
    )


def is_accepted(batch: bytes) -> bool:
    """Return whether a leader stores the batch; any error but the protocol's is raised."""
    try:
        head = validate.check_produced(batch, max_message_bytes=1 << 20)
        check_payload(memoryview(batch)[header.HEADER_SIZE :], head, False, PAYLOAD_MAX)
    except (KafkaError, compression.BadPayload):
        return False
    return True


def oddity(batch: bytes) -> str | None:
    """Return why kafka-python or librdkafka may fail on records that Apache Kafka reads.

    kafka-python takes the attributes of a record for a number of several bytes, and a header's key
    for UTF-8; librdkafka refuses sizes below -1; both drop records whose offsets are not in order.
    """
    head = header.parse(batch)
    plain = bytes(compression.decompress(head.compression, batch[header.HEADER_SIZE :], 1 << 28))
    rebuilt = bytearray()
    for index, record in enumerate(iterate.unpacked_records(plain, head)):
        if record.offset != index:
            return "offsets not in order"
        delta = record.timestamp - head.base_timestamp
        rebuilt += build.encode_record(delta, record.offset, *record[3:])
        try:
            for name, _ in record.headers:
                name.decode()
        except UnicodeDecodeError:
            return "header key not in UTF-8"
    if bytes(rebuilt) != plain:
        return "attributes, negative sizes, or numbers longer than needed"
    return None


def read(batch: bytes) -> int:
    """Read the records with kafka-python; return their number."""
    from kafka.record.default_records import DefaultRecordBatch

    return len(list(DefaultRecordBatch(batch)))


def check(seed: int) -> bool:
    """Judge the batch of a seed; return whether it is accepted, and then also readable."""
    batch = batch_of(seed)
    if not is_accepted(batch):
        return False
    try:
        assert oddity(batch) or read(batch) == header.parse(batch).record_count
    except Exception as error:
        error.add_note(f"seed {seed}: accepted, but not readable")
        raise
    return True
