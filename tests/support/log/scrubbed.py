"""Logs with closed segments, and the damage that a scrub should find in them."""

import math
from random import Random
from typing import Any

from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog, create
from kwire.log.scrub.job import SegmentJob
from kwire.log.scrub.segment_check import check_segment
from kwire.log.segments.damage import Damage
from kwire.log.segments.segment import Segment
from kwire.records.header import BatchHeader
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS, append, end_transaction

DIRECTORY = "t-0"


def make_log(batch_count: int = 12, **config: Any) -> PartitionLog:
    """Return a log of one closed segment, flushed, and a few batches after it.

    The batches have two records each and belong to the leader epochs 3 and, from the middle
    onwards, 5.
    """
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    settings = LogConfig(**{"index_interval_bytes": 200, **config})
    log = create(disk, DIRECTORY, TopicPartition("t", 0), now_ms=TIME_MS, config=settings)
    for number in range(batch_count):
        epoch = 3 if number < batch_count // 2 else 5
        append(log, [b"first of %d" % number, b"second of %d" % number], epoch=epoch)
    log.roll(TIME_MS)
    append(log, [b"active"], epoch=5)
    log.flush_state.flush()
    log.high_watermark = log.end_offset
    return log


def fill_with_transactions(log: PartitionLog, count: int) -> None:
    """Append three segments of ``count`` batches of transactions, most of which are aborted.

    Each roll comes in the middle of transactions. Timestamps go back at times.
    """
    random, sequences = Random(1), dict.fromkeys(range(4), 0)
    for number in range(3 * count):
        if number and not number % count:
            log.roll(TIME_MS)
        producer = random.randrange(4)
        if number % 5 == 4 and log.producers.get(producer) is not None:
            end_transaction(log, producer, commit=random.random() < 0.3)
            continue
        append(
            log,
            [b"v" * random.randrange(30)],
            timestamp_ms=TIME_MS + number * 10 + random.randint(-30, 30),
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
        )
        sequences[producer] += 1


def first_segment(log: PartitionLog) -> Segment:
    """Return the first segment."""
    return log.segments[0]


def batches(log: PartitionLog) -> list[tuple[int, BatchHeader]]:
    """Return position and header of each batch of the first segment."""
    return list(first_segment(log).scan())


def job_of(log: PartitionLog) -> SegmentJob:
    segment = first_segment(log)
    return SegmentJob(
        directory=log.segments.directory,
        base_offset=segment.base_offset,
        end_offset=log.segments[1].base_offset,
        size=segment.size,
        epochs=tuple(log.epochs.entries()),
        bytes_per_second=math.inf,
    )


def find_damage(log: PartitionLog) -> Damage:
    """Check the first segment and return its damage."""
    return Damage(check_segment(log.disk, job_of(log), lambda size: None).damage)


def rot(log: PartitionLog, position: int, mask: int = 1) -> None:
    """Flip bits of one byte of the first segment's file."""
    assert isinstance(log.disk, SimDisk)
    log.disk.rot(first_segment(log).file.path, position, mask)
