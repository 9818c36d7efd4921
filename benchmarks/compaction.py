"""Measure cleaning passes over a made directory, in the process that a node uses for them.

    python benchmarks/compaction.py [--mb N] [--directory DIR]

A log has segments of 64 MB of batches of 16 KB; each key is written four times. Prints for the C
module and for Python alone: megabytes of the log a second (each is read twice, and a quarter is
written), CPU seconds for a GB of the log, and the largest resident memory of the process, which
has an offset map of as many MB as ``--map-mb`` says. ``--directory`` keeps the logs. Linux only.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from kwire.log.compaction.job import CleanedGroup, CleaningJob, CleaningSummary, SourceSegment
from kwire.log.compaction.messages import HEADER, Answer, Request, pack, unpack_answer
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.formats import names
from kwire.log.segments.segment import Segment
from kwire.records import compression
from kwire.records.build import New, batch
from kwire.records.header import parse

SEGMENT_BYTES = 64 << 20
BATCH_BYTES = 16_000
VERSIONS = 4
NOW_MS = 1_700_000_000_000
SCENARIOS = ((100, "none"), (100, "lz4"), (100, "zstd"), (1000, "none"), (1000, "lz4"))


class MadeLog:
    """A log on a disk, and its segments."""

    def __init__(self, root: str, directory: str, record_bytes: int, codec: int, size: int) -> None:
        self.disk = RealDisk(root)
        self.directory = directory
        self.end_offset = 0
        self.sources: list[SourceSegment] = []
        self.disk.make_directory(directory)
        self._batches = self._make(record_bytes, codec)
        written = 0
        while written < size:
            written += self._write_segment(min(SEGMENT_BYTES, size - written))

    def _make(self, record_bytes: int, codec: int) -> Iterator[bytes]:
        """Yield batches; a key comes again after a quarter of them at random, or later."""
        random = Random(1)
        count = BATCH_BYTES // record_bytes
        text = b"".join(b"%x" % random.getrandbits(32) for _ in range(50_000))
        keys: list[bytes] = []
        while True:
            records = []
            for _ in range(count):
                if len(keys) < 1 or random.random() < 1 / VERSIONS:
                    keys.append(b"key-%012d" % len(keys))
                key = random.choice(keys) if random.random() > 1 / VERSIONS else keys[-1]
                start = random.randrange(len(text) - record_bytes)
                records.append(New(key, text[start : start + record_bytes - 24]))
            yield batch(
                records, timestamp_ms=NOW_MS, base_offset=self.end_offset, compression=codec
            )

    def _write_segment(self, size: int) -> int:
        base_offset = self.end_offset
        segment = Segment(self.disk, self.directory, base_offset, 0)
        segment.create(NOW_MS)
        while segment.size < size:
            data = next(self._batches)
            header = parse(data)
            segment.write([data], uses_reserve=False)
            segment.note(len(data), header.next_offset, header.max_timestamp, segment.interval)
            self.end_offset = header.next_offset
        segment.close_indexes()
        segment.write_indexes()
        segment.file.close()
        self.sources.append(
            SourceSegment(base_offset, segment.size, NOW_MS, NOW_MS, has_txn_index=False)
        )
        return segment.size

    def job(self, map_mb: int) -> CleaningJob:
        return CleaningJob(
            directory=self.directory,
            segments=tuple(self.sources),
            next_base=self.end_offset,
            first_dirty=0,
            end_offset=self.end_offset,
            now_ms=NOW_MS,
            later_aborted=(),
            config=LogConfig(segment_bytes=SEGMENT_BYTES),
            memory_bytes=map_mb << 20,
            load_factor=0.9,
            buffer_bytes=256 << 10,
            active_producers={},
            bytes_per_second=math.inf,
        )


class Worker:
    """A cleaner's process."""

    def __init__(self, *, speedups: bool) -> None:
        environment = {**os.environ, "KWIRE_SPEEDUPS": "on" if speedups else "off"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kwire.log.compaction.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def clean(self, root: str, job: CleaningJob) -> tuple[CleaningSummary, list[CleanedGroup]]:
        """Run a pass whose groups are not put in place, so that the log can be cleaned again."""
        groups = []
        self._send(("clean", root, job))
        while True:
            answer = self._read()
            match answer:
                case ("group", CleanedGroup() as group):
                    groups.append(group)
                    self._send(("next",))
                case ("done", CleaningSummary() as summary):
                    return summary, groups
                case _:
                    raise RuntimeError(f"the pass failed: {answer}")

    def end(self) -> tuple[float, int]:
        """End the process; return its CPU seconds and the largest number of bytes resident."""
        assert self._process.stdin is not None
        # Not the usage's maximum, which counts the memory of this process before the exec.
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        resident_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        self._process.stdin.close()
        _, _, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = 0
        return usage.ru_utime + usage.ru_stime, resident_bytes

    def _send(self, request: Request) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(pack(request))
        self._process.stdin.flush()

    def _read(self) -> Answer:
        assert self._process.stdout is not None
        (size,) = HEADER.unpack(self._process.stdout.read(HEADER.size))
        return unpack_answer(self._process.stdout.read(size))


def measure(log: MadeLog, *, speedups: bool, map_mb: int) -> str:
    """Return a line of the measurements of one pass."""
    worker = Worker(speedups=speedups)
    started = time.perf_counter()
    summary, groups = worker.clean(log.disk.root, log.job(map_mb))
    elapsed_s = time.perf_counter() - started
    cpu_s, resident_bytes = worker.end()
    for group in groups:
        for suffix in group.suffixes:
            name = f"{names.stem(group.base_offset)}{suffix}{names.CLEANED}"
            log.disk.remove(f"{log.directory}/{name}")
    megabytes = sum(source.size for source in log.sources) / 1e6
    return (
        f"{megabytes / elapsed_s:10.1f}{cpu_s / megabytes * 1000:10.2f}"
        f"{resident_bytes / 1e6:10.0f}{summary.records_read / elapsed_s:12.0f}"
        f"{summary.bytes_written / summary.bytes_read:9.2f}"
        f"{(summary.clean_end == log.end_offset)!s:>7}"
    )


@contextmanager
def folder(path: str | None) -> Iterator[str]:
    if path is not None:
        Path(path).mkdir(parents=True, exist_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory(dir=".") as root:
        yield root


def main() -> None:
    """Measure all scenarios."""
    parser = argparse.ArgumentParser(description="Measure cleaning passes over made logs.")
    parser.add_argument("--mb", type=int, default=128, help="size of each log")
    parser.add_argument("--map-mb", type=int, default=128, help="size of the offset map")
    parser.add_argument("--directory", help="where the logs are made and kept")
    arguments = parser.parse_args()
    columns = ("MB/s", "CPU s/GB", "MB", "records/s", "written", "whole")
    widths = (10, 10, 10, 12, 9, 7)
    heads = "".join(f"{name:>{width}}" for name, width in zip(columns, widths, strict=True))
    print(f"{'':32}{heads}")
    with folder(arguments.directory) as root:
        for record_bytes, codec in SCENARIOS:
            number = compression.NAMES.index(codec)
            name = f"b{record_bytes}-{codec}-0"
            log = MadeLog(root, name, record_bytes, number, arguments.mb << 20)
            for speedups in (True, False):
                line = measure(log, speedups=speedups, map_mb=arguments.map_mb)
                kind = "C" if speedups else "Python"
                print(f"{record_bytes:5} bytes, {codec:6}{kind:>12}  {line}", flush=True)
            if arguments.directory is None:
                log.disk.remove_tree(name)


if __name__ == "__main__":
    main()
