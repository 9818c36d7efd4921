"""A log with the moments of its roll: the disks after a kill or a power loss before any call."""

import copy
from collections.abc import Callable
from random import Random

import attrs

from kwire.log.manager import LogManager
from kwire.log.partition_log import PartitionLog
from simulation.disk import SimDisk
from simulation.log.sim import Model
from tests.support.log.batches import TIME_MS, append, encode, end_transaction

POWER_SEEDS = range(6)


@attrs.frozen
class Moment:
    """The disks after a kill or a power loss right before one of the disk's calls."""

    call: tuple[str, str]
    after_kill: SimDisk
    after_power_loss: list[SimDisk]
    promised: int
    """Exclusive end of the records that were synced and reported as synced."""
    appended: int


@attrs.define(eq=False)
class ObservedDisk(SimDisk):
    """A disk that reports each call before it is made."""

    on_call: Callable[[str, str], None] | None = None

    def call(self, kind: str, path: str) -> None:
        if self.on_call is not None:
            self.on_call(kind, path)
        super().call(kind, path)


@attrs.define(eq=False)
class Rolling:
    """A log that is about to roll, and the moments since :meth:`watch`."""

    disk: ObservedDisk
    logs: LogManager
    model: Model
    moments: list[Moment] = attrs.Factory(list)

    @property
    def log(self) -> PartitionLog:
        return self.model.log

    def watch(self) -> None:
        self.disk.on_call = self._record

    def _record(self, kind: str, path: str) -> None:
        if kind in ("open", "read", "entries"):
            return
        disk, log = self.disk, self.log
        self.moments.append(
            Moment(
                (kind, path),
                SimDisk(root=copy.deepcopy(disk.root)),
                [disk.power_loss(Random(seed)) for seed in POWER_SEEDS],
                self.model.durable_end_offset,
                log.writer.written_offset,
            )
        )

    def feed(self, count: int) -> None:
        """Append batches of three producers in new epochs, transactions among them."""
        log, model = self.log, self.model
        for step in range(len(model.bases), len(model.bases) + count):
            producer, epoch = step % 3, 1 + step // 9
            state = log.producers.get(producer)
            if step % 5 == 4 and state is not None and state.open_from >= 0:
                done = end_transaction(log, producer, commit=step % 10 == 4, epoch=epoch)
                model.wrote(done.base_offset, [b"marker"])
                continue
            values = [b"%d.0" % step, b"%d.1" % step]
            done = append(
                log,
                values,
                epoch=epoch,
                timestamp_ms=TIME_MS + (step * 7) % 64,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0 if state is None else state.last_sequence + 1,
                transactional=True,
            )
            model.wrote(done.base_offset, values)

    def follow(self, count: int) -> None:
        """Append batches of one fetch, as a leader has them."""
        offset, data = self.log.end_offset, b""
        for number in range(count):
            values = [b"followed %d" % (offset + number)]
            at = offset + number
            data += encode(values, base_offset=at, leader_epoch=9, timestamp_ms=TIME_MS + at)
            self.model.wrote(at, values)
        self.log.append_follower(data, TIME_MS)

    async def flush(self) -> None:
        await self.logs.flush(self.log)
        self.model.flushed = self.log.flush_state.recovery_point
