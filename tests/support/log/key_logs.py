"""Compaction for tests: logs of keyed records, and a simple pass in place of the real one."""

from collections.abc import Callable, Generator, Iterator

from kwire.log.compaction.job import ActiveProducers, CleanedGroup, CleaningJob, CleaningSummary
from kwire.log.directories.cleaning_runner import Clean
from kwire.log.disk import Disk
from kwire.log.formats import names, offset_index, time_index
from kwire.log.partition_log import LogAppendInfo, PartitionLog
from kwire.records.build import New, batch
from kwire.records.header import BatchHeader, headers, parse
from kwire.records.iterate import records
from tests.support.log.batches import TIME_MS


def put(
    log: PartitionLog,
    key: bytes,
    value: bytes | None,
    *,
    timestamp_ms: int = TIME_MS,
    **more: object,
) -> LogAppendInfo:
    """Append a batch of one record."""
    data = batch([New(key, value)], timestamp_ms=timestamp_ms, **more)  # type: ignore[arg-type]
    return log.append_leader(memoryview(data), parse(data), 0, TIME_MS)


def table(log: PartitionLog) -> dict[bytes, bytes]:
    """Return the last value of each key, without the deleted keys."""
    values: dict[bytes, bytes] = {}
    for _, key, value in read_keys(log):
        values.pop(key, None)
        if value is not None:
            values[key] = value
    return values


def read_keys(log: PartitionLog) -> list[tuple[int, bytes, bytes | None]]:
    """Return offset, key and value of every record that a reader gets."""
    triples, offset = [], log.log_start
    while offset < log.writer.written_offset:
        with log.read(offset, 10_000, end_offset=log.writer.written_offset) as region:
            data = region.read()
        before = offset
        for pos, header in headers(data):
            triples += [
                (record.offset, record.key or b"", record.value)
                for record in records(data, pos, header)
                if record.offset >= log.log_start
            ]
            offset = header.next_offset
        if offset == before:
            break
    return triples


def _batches(disk: Disk, job: CleaningJob, base: int) -> Iterator[tuple[bytes, BatchHeader, bytes]]:
    """Yield bytes, header and key of each batch of a source, which has one record."""
    data = disk.read(f"{job.directory}/{names.stem(base)}{names.LOG}")
    for pos, header in headers(data):
        for record in records(data, pos, header):
            yield data[pos : pos + header.size], header, record.key or b""


def simple_clean(group_size: int = 3) -> Clean:
    """Return a pass over batches of one record, which removes tombstones at once."""

    def clean(
        disk: Disk, job: CleaningJob, pace: Callable[[int], None]
    ) -> Generator[CleanedGroup, ActiveProducers | None, CleaningSummary]:
        del pace
        last: dict[bytes, int] = {}
        for source in job.segments:
            for _, header, key in _batches(disk, job, source.base_offset):
                if header.base_offset >= job.first_dirty:
                    last[key] = header.base_offset
        bases = [source.base_offset for source in job.segments]
        written = 0
        for start in range(0, len(bases), group_size):
            group = _write_group(disk, job, bases[start : start + group_size], last)
            written += group.bytes_written
            yield group
        return CleaningSummary(
            clean_end=job.end_offset,
            map_bytes_read=0,
            bytes_read=sum(source.size for source in job.segments),
            bytes_written=written,
            records_read=0,
            records_kept=0,
            keyless_dropped=0,
            map_utilization=0.0,
        )

    return clean


def _write_group(
    disk: Disk, job: CleaningJob, bases: list[int], last: dict[bytes, int]
) -> CleanedGroup:
    batches: list[bytes] = []
    end = bases[0]
    for base in bases:
        for data, header, key in _batches(disk, job, base):
            value = next(iter(records(data, 0, header))).value
            if header.base_offset == last.get(key, header.base_offset) and value is not None:
                batches.append(data)
                end = header.last_offset
    log = b"".join(batches)
    files = {
        names.LOG: log,
        names.INDEX: offset_index.ENTRY.pack(0, 0)[:0],
        names.TIME_INDEX: time_index.ENTRY.pack(TIME_MS, end - bases[0]) if batches else b"",
    }
    for suffix, data in files.items():
        path = f"{job.directory}/{names.stem(bases[0])}{suffix}{names.CLEANED}"
        disk.write(path, data)
        disk.sync(path)
    return CleanedGroup(
        base_offset=bases[0],
        sources=tuple(bases),
        size=len(log),
        suffixes=tuple(files),
        largest_timestamp_ms=TIME_MS if batches else -1,
        largest_timestamp_offset=end,
        modified_ms=TIME_MS,
        bytes_read=0,
        bytes_written=len(log),
        records_read=0,
        records_kept=len(batches),
        keyless_dropped=0,
    )
