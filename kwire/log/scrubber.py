"""Schedules the scrub of all directories: one pass over the closed segments of each per interval.

Rules: the directories are independent, each with its own worker, which runs only during a pass.
Between two passes nothing wakes up. Without the scrub's setting this module is not loaded.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import attrs
import trio

from kwire.clock import Clock
from kwire.log.config import ScrubSettings
from kwire.log.directories.directory_service import DirectoryService
from kwire.log.directories.log_scrub import LogScrub, OnDamaged
from kwire.log.directories.prefix_copy import PrefixCopy, copying_prefix
from kwire.log.directories.segment_checker import SegmentChecker
from kwire.log.disk import Disk
from kwire.log.partition_log import PartitionLog
from kwire.log.segments.damage import DamagedRange
from kwire.records.header import Buffer

logger = logging.getLogger(__name__)

FIRST_PASS_S: Final = 60.0
"""The delay of the first pass after a start, unless the interval is shorter."""


@attrs.define(eq=False, repr=False)
class LogScrubber:
    """The scrub of all logs of a broker."""

    scrubs: Sequence[LogScrub]
    services: Mapping[Disk, DirectoryService]
    clock: Clock
    make_checker: Callable[[], SegmentChecker]
    settings: ScrubSettings

    def _scrub_of(self, log: PartitionLog) -> LogScrub:
        """Return the scrub of a log's directory."""
        return next(scrub for scrub in self.scrubs if scrub.directory.disk is log.disk)

    def subscribe(self, on_damaged: OnDamaged) -> None:
        """Set the function that is called for each segment in which a check found damage."""
        for scrub in self.scrubs:
            scrub.on_damaged = on_damaged

    def damage_of(self, log: PartitionLog) -> Sequence[DamagedRange]:
        """Return the known damage of a log."""
        return self._scrub_of(log).damage_of(log)

    async def read_damaged(self, log: PartitionLog, damaged: DamagedRange) -> bytes:
        """Return the bytes of a damaged range (:meth:`LogScrub.read_damaged`)."""
        return await self._scrub_of(log).read_damaged(log, damaged)

    async def restore(
        self, log: PartitionLog, damaged: DamagedRange, data: Buffer, end_offset: int
    ) -> bool:
        """Write intact batches to the start of a damaged range (:meth:`LogScrub.restore`)."""
        return await self._scrub_of(log).restore(log, damaged, data, end_offset)

    def copying_prefix(self, log: PartitionLog) -> AbstractAsyncContextManager[PrefixCopy]:
        """Return a context for replacing the log's closed segments (:func:`copying_prefix`)."""
        return copying_prefix(self.services, log)

    async def run(self) -> None:
        """Scrub the directories until cancelled."""
        async with trio.open_nursery() as nursery:
            for scrub in self.scrubs:
                nursery.start_soon(self._run, scrub)

    async def _run(self, scrub: LogScrub) -> None:
        interval_s = self.settings.interval_s
        await trio.sleep(min(FIRST_PASS_S, interval_s))
        while scrub.directory.online:
            began = self.clock.now()
            checker = self.make_checker()
            try:
                await scrub.run_pass(checker)
            except Exception:  # A fault here must not end the broker.
                logger.exception("scrub failed directory=%s", scrub.directory.name)
            finally:
                await checker.close()
            await trio.sleep(max(0.0, began + interval_s - self.clock.now()))

    # -- metrics

    @property
    def byte_count(self) -> int:
        """The number of bytes checked since the start."""
        return sum(scrub.byte_count for scrub in self.scrubs)

    @property
    def restored_count(self) -> int:
        """The number of damaged ranges restored since the start."""
        return sum(scrub.restored_count for scrub in self.scrubs)

    def damage_counts(self) -> tuple[int, int]:
        """Return the numbers of damaged segments and of damaged ranges."""
        segments = [segment for scrub in self.scrubs for segment in scrub.damaged_segments()]
        return len(segments), sum(len(segment.damage) for segment in segments)

    def index_counts(self) -> tuple[int, int]:
        """Return the numbers of index files found wrong since the start, and of those rebuilt."""
        repairs = [scrub.indexes for scrub in self.scrubs]
        return sum(each.wrong_count for each in repairs), sum(
            each.rebuilt_count for each in repairs
        )


def make_scrubber(
    services: Iterable[DirectoryService],
    make_checker: Callable[[], SegmentChecker],
    settings: ScrubSettings,
) -> LogScrubber:
    """Return the scrub of these directories, of which there must be at least one."""
    services = list(services)
    scrubs = [
        LogScrub(
            service.directory,
            service.clock,
            service.in_thread,
            service.busy,
            service.random_below,
            settings.bytes_per_second,
        )
        for service in services
    ]
    by_disk = {service.directory.disk: service for service in services}
    return LogScrubber(scrubs, by_disk, services[0].clock, make_checker, settings)
