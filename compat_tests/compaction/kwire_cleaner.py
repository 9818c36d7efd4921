"""kwire's cleaner over a partition's directory, as a log directory's task runs it."""

from __future__ import annotations

import math
from pathlib import Path

from compat_tests.compaction.apache import Answer
from compat_tests.compaction.inputs import Pass
from compat_tests.compaction.kwires import open_directory
from kwire.log.compaction.clean import clean
from kwire.log.compaction.job import CleanedGroup, CleaningJob, SourceSegment
from kwire.log.disk import RealDisk
from kwire.log.formats import names
from kwire.log.partition_log import PartitionLog


def clean_directory(directory: Path, job: Pass, expected: Answer) -> Answer:
    """Clean a partition's directory; return the clean end and the counters."""
    disk = RealDisk(str(directory.parent))
    log = open_directory(directory, job, None)
    cleaning = make_job(log, job, expected["uncleanable"])
    log.close()
    steps = clean(disk, cleaning, lambda size: None)
    while True:
        try:
            group = next(steps)
        except StopIteration as end:
            summary = end.value
            break
        swap_in(disk, directory.name, group)
    return {
        "clean_end": summary.clean_end,
        "records_read": summary.records_read,
        "records_kept": summary.records_kept,
        "keyless_dropped": summary.keyless_dropped,
    }


def make_job(log: PartitionLog, job: Pass, end_offset: int) -> CleaningJob:
    closed = [s for s in log.segments[:-1] if s.base_offset < end_offset]
    next_base = log.segments[len(closed)].base_offset
    later = log.segments[len(closed) :]
    return CleaningJob(
        directory=log.segments.directory,
        segments=tuple(
            SourceSegment(
                base_offset=segment.base_offset,
                size=segment.size,
                largest_timestamp_ms=-1,
                modified_ms=segment.modified_ms,
                has_txn_index=segment.indexes.may_have_aborted,
            )
            for segment in closed
        ),
        next_base=next_base,
        first_dirty=job.first_dirty,
        end_offset=end_offset,
        now_ms=job.now_ms,
        later_aborted=tuple(
            entry
            for segment in later
            if segment.indexes.may_have_aborted
            for entry in list(segment.indexes.aborted_transactions())
            if entry.first_offset < next_base
        ),
        config=job.config,
        memory_bytes=job.memory_bytes,
        load_factor=job.load_factor,
        buffer_bytes=job.buffer_bytes,
        active_producers={
            producer.producer_id: (
                producer.epoch,
                producer.batches[-1].last_offset if producer.batches else None,
            )
            for producer in log.producers.all()
        },
        bytes_per_second=math.inf,
    )


def swap_in(disk: RealDisk, directory: str, group: CleanedGroup) -> None:
    """Put a group's files in place of the segments that they replace."""
    for base_offset in group.sources:
        stem = f"{directory}/{names.stem(base_offset)}"
        for suffix in names.SEGMENT_SUFFIXES:
            disk.remove(stem + suffix)
        if base_offset != group.base_offset:
            disk.remove(stem + names.SNAPSHOT)
    stem = f"{directory}/{names.stem(group.base_offset)}"
    for suffix in group.suffixes:
        disk.rename(stem + suffix + names.CLEANED, stem + suffix)
