"""The maintenance of tables: join small files, remove old snapshots and orphan files.

Rules of this file: no batch may be written during maintenance, because files that are not committed
yet look like orphans, and rows that change cannot be compacted. A batch that is written but not yet
recorded in Spark's checkpoint keeps its mark, because the newest mark of each writer never expires.
Deletions of keys are forgotten only here, so that a batch is the same in every rerun.
"""

import datetime
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from kwire_pipeline.config.model import Maintenance
from kwire_pipeline.engine.faults import NO_FAULTS, Faults, Place
from kwire_pipeline.engine.lease import Files
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Upkeep

FILE: Final = "upkeep.json"
"""The file beside the checkpoint with the time of the last maintenance."""
NEVER: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)
RETRIES: Final = 10
"""The number of attempts of a failing maintenance in one interval."""
FIRST_RETRY: Final = datetime.timedelta(minutes=1)
"""The shortest time until the next attempt."""


def upkeep_of(settings: Maintenance, now: datetime.datetime) -> Upkeep:
    """Return the limits of maintenance that starts now."""
    return Upkeep(
        now=now,
        since=NEVER if settings.every is None else now - settings.every,
        forget_before=now - settings.forget_deletions_after,
        target_file_bytes=settings.target_file_bytes,
        expire_before=now - settings.expire_after,
        keep_snapshots=settings.keep_snapshots,
        orphans_before=now - settings.orphans_after,
    )


class Claims:
    """The tables that this process maintains, so that shared tables are maintained once.

    Threads of several runs claim tables. Each step is one call of a dict, which is atomic.
    """

    def __init__(self) -> None:
        self._first: dict[str, object] = {}
        self._ended: dict[str, datetime.datetime] = {}
        """The time of each table's last maintenance; absent while a thread works at the table."""

    @contextmanager
    def claim(self, name: str, upkeep: Upkeep) -> Iterator[bool]:
        """Yield whether to maintain a table: nobody does now, or has since `upkeep.since`."""
        token = object()
        is_first = self._first.setdefault(name, token) is token
        ended = self._ended.pop(name, None)
        if not is_first and (ended is None or ended > upkeep.since):
            if ended is not None:
                self._ended[name] = ended
            yield False
            return
        ended = NEVER
        try:
            yield True
            ended = upkeep.now
        finally:
            self._ended[name] = ended


def maintain(
    destinations: Destinations,
    upkeep: Upkeep,
    check_lease: Callable[[], None],
    claims: Claims,
    faults: Faults = NO_FAULTS,
) -> list[str]:
    """Maintain tables and return lines about what was done."""
    lines = []
    deletions = destinations.deletions
    if deletions is not None and deletions.exists():
        deletions.forget(upkeep.forget_before)
    for table in destinations.tables:
        with claims.claim(table.name, upkeep) as is_ours:
            if is_ours and table.exists():
                table.protect_marks()
                compaction = table.compact(upkeep)
                faults.reach(Place.DURING_MAINTAIN)
                check_lease()
                lines += [f"{table.name}: {line}" for line in (compaction, *table.expire(upkeep))]
    return lines


@attrs.frozen(kw_only=True)
class Turn:
    """The last maintenance of a pipeline's tables."""

    at: datetime.datetime
    """The time when it ended; before the first maintenance, the time of the pipeline's first run.
    """
    is_done: bool = True
    """False if it failed, so that the next attempt comes sooner."""

    @classmethod
    def read(cls, folder: Files, now: datetime.datetime) -> "Turn":
        """Read the file beside the checkpoint; write a first one if there is none.

        So the interval is measured across restarts, however frequent they are.
        """
        try:
            plain = json.loads(folder.read(FILE) or "{}")
            at = datetime.datetime.fromisoformat(plain["at"]).astimezone(datetime.UTC)
            return cls(at=at, is_done=bool(plain["is_done"]))
        except (ValueError, KeyError, TypeError):
            first = cls(at=now)
            first.write(folder)
            return first

    def write(self, folder: Files) -> None:
        plain = {"at": self.at.isoformat(timespec="seconds"), "is_done": self.is_done}
        folder.write(FILE, json.dumps(plain) + "\n")

    def is_over(self, every: datetime.timedelta, now: datetime.datetime) -> bool:
        """Return whether the next maintenance is due; a time in the future is treated as due."""
        wait = every if self.is_done else min(every, max(every / RETRIES, FIRST_RETRY))
        return not self.at <= now < self.at + wait


def problem_with(turn: Turn | None) -> str:
    """Return the step that a failure has left undone, given the newest turn of a run."""
    is_done = turn is not None and turn.is_done
    return f"{FILE} is not written" if is_done else "the tables are not maintained"
