"""A broker with damaged logs, and another one that has the same records."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kwire.log.config import LogConfig, ScrubSettings
from kwire.log.partition_log import PartitionLog
from kwire.log.scrubber import LogScrubber, make_scrubber
from kwire.log.segments.damage import DamagedRange
from kwire.replica.damage_repair import DamageRepair
from kwire.replica.partition import Partition
from simulation.log.thread_workers import ThreadChecker
from tests.support.clock import Clock
from tests.support.log.batches import TIME_MS, append
from tests.support.log.manager import ID
from tests.support.replica.damaged import Broker, Image, Registered, State, Topic, file_bytes
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene
from tests.turns.logs import COMPACTED, Logs, batches, fill, in_meter, logs_of_a_directory

OWN: Final = 1
OTHER: Final = 2


@attrs.define(eq=False)
class Hosted:
    """The partitions of the broker, all of which have the same state."""

    partitions: dict[tuple[str, int], Partition] = attrs.field(factory=dict)
    _states: dict[int, State] = attrs.field(factory=dict)

    @property
    def image(self) -> Image:
        return Image({ID: Topic(self._states)}, {node: Registered() for node in (OWN, OTHER)})

    def add(self, log: PartitionLog, *, is_confirmed: bool) -> None:
        topic, number = log.partition
        partition = Partition(topic, number, ID, log, is_confirmed=is_confirmed)
        self.partitions[topic, number] = partition
        self._states[number] = State(isr=(OWN, OTHER), replicas=(OWN, OTHER))

    def find(self, topic: str, index: int) -> Partition | None:
        return self.partitions.get((topic, index))


@attrs.frozen
class Damaged:
    """The logs of the broker, what scrubs them, and what is hosted."""

    logs: Logs
    scrubber: LogScrubber
    hosted: Hosted

    async def find(self) -> list[tuple[PartitionLog, list[DamagedRange]]]:
        """Scrub all logs, which is not measured; return what is damaged."""
        damage: list[tuple[PartitionLog, list[DamagedRange]]] = []
        self.scrubber.subscribe(lambda log, ranges: damage.append((log, list(ranges))))
        (scrub,) = self.scrubber.scrubs
        await scrub.run_pass(ThreadChecker(in_meter(self.logs)))
        return damage

    async def repair(self, other: PartitionLog, seconds: float) -> None:
        """Measure repairs from another broker, which last at most so long."""
        damage = await self.find()
        partitions: Any = self.hosted
        sources = {OTHER: Broker(other)}
        repair = DamageRepair(OWN, partitions, self.scrubber, sources.__getitem__, Clock())
        for log, ranges in damage:
            repair.on_damaged(log, ranges)
        await trio.lowlevel.checkpoint()
        with self.logs.meter.measuring():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(repair.run, name="repair.run")
                await trio.sleep(seconds)
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def damaged_logs(meter: TurnMeter) -> AsyncIterator[Damaged]:
    async with logs_of_a_directory(meter) as logs:
        scrubber = make_scrubber(
            logs.manager.services.values(),
            lambda: ThreadChecker(in_meter(logs)),
            ScrubSettings(interval_s=1e9, bytes_per_second=1e12),
        )
        yield Damaged(logs, scrubber, Hosted())


DAMAGED: Final = Scene("repairs of damaged logs", damaged_logs)
row = DAMAGED.operation


@row("repair of a file of zeros", "batches", 30_000, "replica.damage_repair.run")
async def repair_file(damaged: Damaged, size: int) -> None:
    logs = damaged.logs
    log, other = logs.create("zeros"), logs.create("intact")
    for each in (log, other):
        fill(each, size)
        each.roll(TIME_MS)
        append(each, [b"v"])
        each.flush_state.flush()
        each.high_watermark = each.end_offset
    damaged.hosted.add(log, is_confirmed=True)
    before, segment = file_bytes(log), log.segments[0]
    segment.file.write((bytes(segment.size),), 0)
    await damaged.repair(other, 60)
    assert file_bytes(log) == before


@row(
    "copy of closed segments of a compacted log",
    "batches",
    30_000,
    "replica.damage_repair._copy_prefixes",
)
async def copy_prefix(damaged: Damaged, size: int) -> None:
    """The other broker has removed the record whose batch is damaged here."""
    logs = damaged.logs
    log, other = logs.create("damaged", **COMPACTED), logs.create("compacted", **COMPACTED)
    fill(log, size)
    for chunk in batches(size - 1, 1):
        other.append_follower(chunk, TIME_MS)
    for each in (log, other):
        each.roll(TIME_MS)
        append(each, [b"v"])
        each.flush_state.flush()
        each.high_watermark = each.end_offset
    damaged.hosted.add(log, is_confirmed=True)
    logs.disk.rot(log.segments[0].file.path, 65)
    await damaged.repair(other, 60)
    assert file_bytes(log) == file_bytes(other)


@row(
    "damaged logs that no leader has confirmed",
    "logs",
    2_000,
    "replica.damage_repair.run",
)
async def wait_confirmed(damaged: Damaged, size: int) -> None:
    logs = damaged.logs
    for number in range(size):
        log = logs.manager.create("many", ID, number, LogConfig())
        append(log, [b"v"])
        log.roll(TIME_MS)
        log.flush_state.flush()
        logs.disk.rot(log.segments[0].file.path, 65)
        damaged.hosted.add(log, is_confirmed=False)
        await trio.lowlevel.checkpoint()
    await damaged.repair(log, 10)
    assert damaged.scrubber.damage_counts()[0] == size
