"""Measure an append to a log, a read of it, and its start after a kill.

    python benchmarks/log.py [--batches N] [--segments N]

Prints microseconds of one core per batch of 16 KB, the write itself apart, and CPU seconds per GB.
The numbers in the comments of kwire/log come from here. The start opens logs of 10 and 10,000 full
segments, whose files are sparse, and prints microseconds of one core per segment.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable

from kwire.log.disk import RealDisk
from kwire.log.formats import names, offset_index, time_index
from kwire.log.partition_log import PartitionLog, create
from kwire.log.recovery import StoredOffsets, open_log
from kwire.records.build import New, batch
from kwire.records.header import parse
from kwire.types import TopicPartition


def cpu(work: Callable[[], None]) -> float:
    """Return the CPU seconds that ``work`` takes in this thread."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


class NoWrites:
    """A wrapper of the active file whose writes do nothing, to measure all other costs."""

    def __init__(self, log: PartitionLog) -> None:
        self._file = log.segments.active.file
        self.path = self._file.path
        self.size, self.close = self._file.size, self._file.close
        self.read, self.read_cached = self._file.read, self._file.read_cached
        self.read_stored = self._file.read_stored
        self.pin, self.unpin, self.is_cached = (
            self._file.pin,
            self._file.unpin,
            self._file.is_cached,
        )
        self.fileno, self.sync = self._file.fileno, self._file.sync
        self.truncate, self.allocate = self._file.truncate, self._file.allocate

    def write(self, parts: object, position: int) -> None:
        """Do nothing."""


def produce(
    log: PartitionLog, size: int, producer_id: int, batches: int
) -> tuple[int, Callable[[], None]]:
    """Return the total bytes of batches of ``size`` bytes, and the function that appends them.

    They are an idempotent producer's if ``producer_id`` is not negative.
    """
    count = max(size // 1000, 1)
    value = New(None, b"v" * (1000 if size > 1000 else size - 80))
    data = batch([value] * count, timestamp_ms=1, producer_id=producer_id, producer_epoch=0)
    header = parse(data)
    parsed = [(memoryview(data), header._replace(base_sequence=n * count)) for n in range(batches)]

    def work() -> None:
        for buffer, header in parsed:
            log.append_leader(buffer, header, 0, 1)

    return len(data) * batches, work


SEGMENT_BYTES = 1 << 30
SEGMENT_RECORDS = 1_000_000
INDEX_BYTES = 8 * (SEGMENT_BYTES // 4096)


def full_segments(root: str, directory: str, count: int) -> int:
    """Write a log of sparse full segments and two real ones; return its end offset.

    The real ones, at its end, are what a start reads. An index is as large as that of a real
    segment, but only its first and last entries are not zero.
    """
    disk, begin = RealDisk(root), count * SEGMENT_RECORDS
    disk.make_directory(directory)
    log = create(disk, directory, TopicPartition("t", 0), now_ms=1, base_offset=begin)
    for _ in range(2):
        produce(log, 300, 7, 1)[1]()
        log.roll(1)
    log.flush_state.flush()
    log.segments.release()
    disk.write(f"{directory}/{names.EPOCHS_FILE}", b"0\n1\n0 0\n")
    entry, time_entry = offset_index.ENTRY, time_index.ENTRY
    last = SEGMENT_RECORDS - 1
    for number in range(count):
        path = os.path.join(root, directory, names.stem(number * SEGMENT_RECORDS))
        with open(path + names.LOG, "wb") as file:
            file.truncate(SEGMENT_BYTES)
        with open(path + names.INDEX, "wb") as file:
            file.write(entry.pack(5, 4096))
            file.seek(INDEX_BYTES - entry.size)
            file.write(entry.pack(last, SEGMENT_BYTES - 4096))
        with open(path + names.TIME_INDEX, "wb") as file:
            file.write(time_entry.pack(1, 5) + time_entry.pack(2, last))
    return log.end_offset


def start_after_kill(count: int) -> None:
    """Measure the opening of a log of ``count`` full segments that was not closed cleanly."""
    with tempfile.TemporaryDirectory(dir=".") as root:
        end_offset = full_segments(root, "t-0", count)
        stored = StoredOffsets(recovery_point=end_offset, high_watermark=end_offset)
        logs = list[PartitionLog]()
        disk, partition = RealDisk(root), TopicPartition("t", 0)
        spent = cpu(lambda: logs.append(open_log(disk, "t-0", partition, now_ms=1, offsets=stored)))
        assert (logs[0].log_start, logs[0].end_offset) == (0, end_offset)
        logs[0].segments.release()
    print(f"{f'start after a kill, {count} segments':40}{spent / count * 1e6:10.1f}")


def main() -> None:
    """Run all measurements on temporary directories."""
    parser = argparse.ArgumentParser(description="Measure appends to a log and reads of it.")
    parser.add_argument("--batches", type=int, default=10_000, help="appended in a measurement")
    parser.add_argument("--segments", type=int, default=10_000, help="of the larger log")
    options = parser.parse_args()
    batches = options.batches
    print(f"{'':40}{'us each':>10}{'s per GB':>10}")
    for size in (300, 16_000):
        for producer_id in (-1, 7):
            for real in (False, True):
                with tempfile.TemporaryDirectory(dir=".") as root:
                    disk = RealDisk(root)
                    disk.make_directory("t-0")
                    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=1)
                    if not real:
                        log.segments.active.file = NoWrites(log)
                    total, work = produce(log, size, producer_id, batches)
                    spent = cpu(work)
                    what = f"append {size} B" + (" idempotent" if producer_id >= 0 else "")
                    what += ", written" if real else ", no write"
                    print(f"{what:40}{spent / batches * 1e6:10.1f}{spent / total * 1e9:10.2f}")
                    if real and producer_id < 0:
                        read(log, size)
    for count in (10, options.segments):
        start_after_kill(count)


def read(log: PartitionLog, size: int) -> None:
    """Measure locating up to 64 KB anywhere in the log, and the last record."""
    offsets = range(0, log.end_offset, max(log.end_offset // 2000, 1))

    def anywhere() -> None:
        for offset in offsets:
            log.read(offset, 65536, end_offset=log.end_offset).close()

    def tail() -> None:
        for _ in range(2000):
            log.read(log.end_offset - 1, 65536, end_offset=log.end_offset).close()

    for what, work, count in (("anywhere", anywhere, len(offsets)), ("tail", tail, 2000)):
        print(f"{f'locate {what}, batches of {size}':40}{cpu(work) / count * 1e6:10.1f}")


if __name__ == "__main__":
    main()
