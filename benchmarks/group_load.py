"""Measure a group coordinator's load of a partition with a million committed offsets.

    python benchmarks/group_load.py [--commits N] [--groups N]

For the load of an empty partition, of commits of as many partitions, and of commits that repeat
those of few partitions: the time, the CPU time, and the longest time for which another task of the
event loop had to wait.  The log is in memory and is read in pieces of 1 MB, as from a disk.
"""

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import attrs
import trio

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kwire.cli import COLLECTOR  # noqa: E402
from kwire.codec.messages.offset_records import OffsetCommitKey, OffsetCommitValue  # noqa: E402
from kwire.coordinator.decision import Record  # noqa: E402
from kwire.coordinator.runtime import CoordinatorRuntime  # noqa: E402
from kwire.group.records import store  # noqa: E402
from kwire.group.settings import GroupSettings  # noqa: E402
from kwire.group.shard import GroupShard  # noqa: E402
from kwire.records.build import New, batch  # noqa: E402
from kwire.replica.coordinator_log import READ_BYTES  # noqa: E402
from kwire.types import CONSUMER_OFFSETS, TopicPartition  # noqa: E402
from tests.support.coordinator.node import FakeLog  # noqa: E402

BATCH_COMMITS: Final = 50
"""The commits of one request, so of one batch."""
PROBE_SECONDS: Final = 0.001
FEW_PARTITIONS: Final = 1_000
TOPIC_ID: Final = bytes(range(16))


class SystemClock:
    """The time of the machine."""

    now = staticmethod(time.perf_counter)

    def now_ms(self) -> int:
        return int(time.time() * 1000)


@attrs.define(eq=False)
class PagedLog(FakeLog):
    """A log whose pieces are made beforehand."""

    pages: dict[int, tuple[bytes, int]] = attrs.field(factory=dict)
    """Each piece and the offset after it, by its first offset."""
    end: int = 0

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        return 0, self.end

    def high_watermark(self, partition: TopicPartition) -> int:
        return self.end

    async def read(self, partition: TopicPartition, offset: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.pages[offset][0]


class Load(NamedTuple):
    """The figures of one load."""

    seconds: float
    cpu_seconds: float
    longest_wait: float
    longest_cpu_wait: float
    """The same in CPU time, which other programs on the machine hardly move."""


def commits(count: int, groups: int, partitions: int) -> Iterator[New]:
    """Yield the records of commits, each of the next of the groups' partitions."""
    for number in range(count):
        place = number % partitions
        key = OffsetCommitKey(
            group=f"group-{place % groups}", topic="topic", partition=place // groups
        )
        value = OffsetCommitValue(
            offset=number,
            leader_epoch=3,
            metadata="",
            commit_timestamp=1_700_000_000_000,
            topic_id=TOPIC_ID,
        )
        yield New(*store(Record(key, value)))


def log_of(records: Iterator[New]) -> PagedLog:
    log = PagedLog()
    page, start = bytearray(), 0
    piece: list[New] = []

    def close_batch() -> None:
        page.extend(batch(piece, timestamp_ms=0, base_offset=log.end))
        log.end += len(piece)
        piece.clear()

    def close_page() -> None:
        nonlocal start
        if page:
            log.pages[start] = (bytes(page), log.end)
        page.clear()
        start = log.end

    for record in records:
        piece.append(record)
        if len(piece) == BATCH_COMMITS:
            close_batch()
        if len(page) >= READ_BYTES:
            close_page()
    if piece:
        close_batch()
    close_page()
    return log


async def load(log: PagedLog) -> Load:
    settings = GroupSettings()
    service = CoordinatorRuntime(
        topic=CONSUMER_OFFSETS,
        log=log,
        clock=SystemClock(),
        make=lambda _: GroupShard(new_id=lambda: "", settings=lambda: settings),
    )
    longest_wait = longest_cpu_wait = 0.0
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        began, cpu = time.perf_counter(), time.process_time()
        service.on_elected(0, 1)
        while 0 not in service.active:
            asleep, asleep_cpu = time.perf_counter(), time.process_time()
            await trio.sleep(PROBE_SECONDS)
            longest_wait = max(longest_wait, time.perf_counter() - asleep - PROBE_SECONDS)
            longest_cpu_wait = max(longest_cpu_wait, time.process_time() - asleep_cpu)
        elapsed_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        nursery.cancel_scope.cancel()
    return Load(elapsed_s, cpu_s, longest_wait, longest_cpu_wait)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the load of a group coordinator.")
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=1_000)
    options = parser.parse_args()
    gc.set_threshold(*COLLECTOR)  # As in a node.
    loads = {
        "empty": PagedLog(),
        "repeated": log_of(commits(options.commits, options.groups, FEW_PARTITIONS)),
        "distinct": log_of(commits(options.commits, options.groups, options.commits)),
    }
    for name, log in loads.items():
        gc.collect()
        gc.freeze()
        figures = trio.run(load, log)
        print(
            f"{name}: {log.end} commits, {figures.seconds:.2f} s, CPU {figures.cpu_seconds:.2f} s,"
            f" longest wait of another task {figures.longest_wait * 1000:.1f} ms,"
            f" {figures.longest_cpu_wait * 1000:.1f} ms of CPU",
            flush=True,
        )


if __name__ == "__main__":
    main()
