"""Measure Apache Kafka's cleaner on the logs of ``benchmarks/compaction.py``, beside kwire's.

    python -m compat_tests.compaction.benchmark [--mb N] [--map-mb N]

Both clean a copy of the same log with an offset map of the same size; both sync what they write.
The JVM has compiled its code before: it cleans each log three times and the last pass counts.
Memory is the largest resident size of the process that cleans. kwire's
has a low priority: on a busy machine compare the CPU seconds, not the speeds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.compaction import NOW_MS, SCENARIOS, SEGMENT_BYTES, MadeLog, measure
from compat_tests.compaction.apache import ApacheCleaner
from compat_tests.compaction.inputs import Pass
from kwire.log.config import LogConfig
from kwire.log.formats import names
from kwire.records import compression

PASSES = 3
HEAP_MB = 256
"""The JVM's heap beside the offset map."""


def measure_apache(log: MadeLog, map_mb: int) -> str:
    """Return a line of the measurements of Apache Kafka's last pass, in kwire's columns."""
    source = Path(log.disk.root) / log.directory
    job = Pass(
        now_ms=NOW_MS,
        first_dirty=0,
        high_watermark=-1,
        memory_bytes=map_mb << 20,
        buffer_bytes=256 << 10,
        start_offset=0,
        config=LogConfig(segment_bytes=SEGMENT_BYTES, cleanup_compact=True, cleanup_delete=False),
    )
    heap = f"-Xmx{map_mb + HEAP_MB}m"
    with tempfile.TemporaryDirectory(dir=log.disk.root) as root:
        cleaner = ApacheCleaner.start(Path(root), (heap, "-XX:+UseG1GC"))
        try:
            for number in range(PASSES):
                copy = Path(root) / str(number) / log.directory
                shutil.copytree(source, copy)
                (copy / f"{names.stem(log.end_offset)}{names.LOG}").touch()
                before_s = cpu_seconds(cleaner.process.pid)
                answer = cleaner.clean(copy, job)
                cpu_s = cpu_seconds(cleaner.process.pid) - before_s
                shutil.rmtree(copy)
            resident_bytes = largest_resident_bytes(cleaner.process.pid)
        finally:
            cleaner.close()
    megabytes = sum(segment.size for segment in log.sources) / 1e6
    elapsed_s = answer["seconds"]  # Without the opening of the log.
    return (
        f"{megabytes / elapsed_s:10.1f}{cpu_s / megabytes * 1000:10.2f}"
        f"{resident_bytes / 1e6:10.0f}{answer['records_read'] / elapsed_s:12.0f}"
        f"{answer['bytes_written'] / answer['bytes_read']:9.2f}"
        f"{(answer['clean_end'] == log.end_offset)!s:>7}"
    )


def cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def largest_resident_bytes(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Measure all scenarios."""
    parser = argparse.ArgumentParser(description="Measure cleaning passes of both brokers.")
    parser.add_argument("--mb", type=int, default=128, help="size of each log")
    parser.add_argument("--map-mb", type=int, default=128, help="size of the offset map")
    arguments = parser.parse_args()
    print(f"{'':32}      MB/s  CPU s/GB        MB   records/s  written  whole")
    with tempfile.TemporaryDirectory(dir=".") as root:
        for record_bytes, codec in SCENARIOS:
            number = compression.NAMES.index(codec)
            name = f"b{record_bytes}-{codec}-0"
            log = MadeLog(root, name, record_bytes, number, arguments.mb << 20)
            lines = {
                "kwire": measure(log, speedups=True, map_mb=arguments.map_mb),
                "Apache Kafka": measure_apache(log, arguments.map_mb),
            }
            for kind, line in lines.items():
                print(f"{record_bytes:5} bytes, {codec:6}{kind:>12}  {line}", flush=True)
            log.disk.remove_tree(name)


if __name__ == "__main__":
    main()
