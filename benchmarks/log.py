"""Measure an append and a read of a log.

    python benchmarks/log.py [--batches N]

Prints microseconds of one core per batch of 16 KB, the write itself apart, and CPU seconds per GB.
The numbers in the comments of kwire/log come from here.
"""

import argparse
import tempfile
import time
from collections.abc import Callable

from kwire.log.disk import RealDisk
from kwire.log.partition_log import PartitionLog, create
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


def main() -> None:
    """Run all measurements on a temporary directory."""
    parser = argparse.ArgumentParser(description="Measure appends to a log and reads of it.")
    parser.add_argument("--batches", type=int, default=10_000, help="appended in a measurement")
    batches = parser.parse_args().batches
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
