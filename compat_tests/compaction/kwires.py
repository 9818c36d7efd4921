"""kwire's log over a partition's directory: what it makes of the files, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from compat_tests.compaction.inputs import Pass
from kwire.log.aborted_transactions import find_aborted
from kwire.log.disk import RealDisk
from kwire.log.formats.txn_index import AbortedTxn
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import StoredOffsets, open_log
from kwire.records.header import parse
from kwire.types import TopicPartition


class State(NamedTuple):
    """An open log."""

    start_offset: int
    end_offset: int
    stable_offset: int
    bases: list[int]
    """The segments' base offsets."""
    producers: dict[int, tuple[int, int, int, int]]
    """Epoch, last data offset, timestamp and start of the open transaction."""
    aborted: list[AbortedTxn]
    epochs: list[tuple[int, int]]


def open_directory(directory: Path, job: Pass, point: int | None) -> PartitionLog:
    """Open a partition's directory with this recovery point; None: after a clean stop."""
    topic, _, partition = directory.name.rpartition("-")
    return open_log(
        RealDisk(str(directory.parent)),
        directory.name,
        TopicPartition(topic, int(partition)),
        now_ms=job.now_ms,
        config=job.config,
        offsets=StoredOffsets(
            clean=point is None,
            recovery_point=(1 << 62) if point is None else point,
            log_start=job.start_offset,
        ),
    )


def load(directory: Path, job: Pass, point: int | None) -> State:
    """Open a partition's directory, look every batch up by its offset, and close the log."""
    log = open_directory(directory, job, point)
    try:
        log.high_watermark = log.end_offset
        check_reads(log)
        return State(
            log.log_start,
            log.end_offset,
            log.producers.last_stable_offset(log.high_watermark),
            [segment.base_offset for segment in log.segments],
            {
                producer.producer_id: (
                    producer.epoch,
                    producer.batches[-1].last_offset if producer.batches else -1,
                    producer.timestamp,
                    producer.open_from,
                )
                for producer in log.producers.all()
            },
            find_aborted(log.segments, log.log_start, log.end_offset),
            list(log.epochs.entries()),
        )
    finally:
        log.close()


def check_reads(log: PartitionLog) -> None:
    """Check that a read at any offset of a batch begins with that batch, as consumers need it."""
    for segment in log.segments:
        for _, header in segment.scan(0):
            for offset in (header.base_offset, header.last_offset):
                if offset < log.log_start:
                    continue
                with log.read(offset, 1, end_offset=log.end_offset) as region:
                    first = parse(region.read())
                assert first.base_offset == header.base_offset, (offset, first, header)
