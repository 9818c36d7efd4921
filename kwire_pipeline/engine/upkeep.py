"""The maintenance of tables: join small files, remove old snapshots and orphan files.

Rules of this file: no batch may be written during maintenance, because files that are not committed
yet look like orphans, and rows that change cannot be compacted. A batch that is written but not yet
recorded in Spark's checkpoint keeps its mark, because the newest mark of each writer does not
expire. Deletions of keys are forgotten only here, so that a batch is the same in every rerun.
"""

import datetime
from collections.abc import Callable

from kwire_pipeline.config.model import Maintenance
from kwire_pipeline.engine.faults import NO_FAULTS, Faults, Place
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Upkeep


def upkeep_of(settings: Maintenance, now: datetime.datetime) -> Upkeep:
    """Return the limits of maintenance that begins now."""
    return Upkeep(
        now=now,
        forget_before=now - settings.forget_deletions_after,
        target_file_bytes=settings.target_file_bytes,
        expire_before=now - settings.expire_after,
        keep_snapshots=settings.keep_snapshots,
        orphans_before=now - settings.orphans_after,
    )


def maintain(
    destinations: Destinations,
    upkeep: Upkeep,
    check_lease: Callable[[], None],
    faults: Faults = NO_FAULTS,
) -> list[str]:
    """Maintain tables and return lines about what was done."""
    lines = []
    deletions = destinations.deletions
    if deletions is not None and deletions.exists():
        deletions.forget(upkeep.forget_before)
    for table in destinations.tables:
        if table.exists():
            table.protect_marks()
            compaction = table.compact(upkeep)
            faults.reach(Place.DURING_MAINTAIN)
            check_lease()
            lines += [f"{table.name}: {line}" for line in (compaction, *table.expire(upkeep))]
    return lines


class Schedule:
    """A schedule for work at a fixed interval, for the first time one interval from now."""

    def __init__(self, every: datetime.timedelta | None, now_s: float) -> None:
        self._every_s = None if every is None else every.total_seconds()
        self._last_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Return whether it is due; if so, the next interval begins now."""
        if self._every_s is None or now_s - self._last_s < self._every_s:
            return False
        self._last_s = now_s
        return True
