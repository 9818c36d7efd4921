"""Records that topics no longer have: an adoption skips them, a new start deletes their rows.

Neither happens unless the user has named the offsets with ``--give-up``. A compacted or recreated
topic may lack any record of its rows.

Rules of this file: plain data only.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NoReturn

import attrs

from kwire_pipeline.engine.offsets import Offsets, Range, Ranges, later
from kwire_pipeline.errors import Permanent, Refusal

GIVE_UP: Final = "--give-up"
NOTHING: Final = Ranges(())


def parse_given_up(text: str | None) -> Ranges:
    """Parse the value of the flag, such as ``{"orders":{"0":[100,200]}}``."""
    if text is None:
        return NOTHING
    try:
        return Ranges.parse(text)
    except (ValueError, TypeError, AttributeError):
        raise Refusal(
            f"{GIVE_UP} {text}: expected offsets by topic and partition, the end exclusive, such "
            'as {"orders":{"0":[100,200]}}'
        ) from None


def check_chosen(chosen: Offsets, ends: Offsets) -> None:
    """Raise Refusal if a first offset is of no partition, or beyond the end of its partition.

    Spark would fail later, when the offset is stored beside the checkpoint and the file no longer
    counts.
    """
    for topic, partitions in sorted(chosen.items()):
        for partition, offset in sorted(partitions.items()):
            end = ends.get(topic, {}).get(partition)
            if end is None:
                raise Refusal(f"source.start: topic {topic} has no partition {partition}")
            if offset > end:
                raise Refusal(
                    f"source.start: partition {partition} of {topic} ends at offset {end}, and "
                    f"{offset} is beyond it"
                )


def wanted_offsets(
    beginnings: Offsets,
    *,
    positions: Offsets,
    chosen: Offsets,
    former: Offsets,
    is_same: Mapping[str, bool],
) -> Offsets:
    """Return the offsets at which an adoption has to continue so that it skips nothing.

    These are the ``positions`` of the tables. A partition that the tables lack begins at the offset
    ``chosen`` in the file, otherwise where the ``former`` checkpoint began. If that is unknown too,
    the partition begins at 0, like a partition added during a run. If the tables lack the whole
    topic, it begins at its first record. A recreated topic begins at 0.
    """

    def resume_at(topic: str, partition: int, first: int) -> int:
        if not is_same.get(topic, True):
            return 0
        for source in (positions, chosen, former):
            offset = source.get(topic, {}).get(partition)
            if offset is not None:
                return offset
        return 0 if topic in positions else first

    return {
        topic: {
            partition: resume_at(topic, partition, first) for partition, first in firsts.items()
        }
        for topic, firsts in beginnings.items()
    }


def check_skipped(resume: Offsets, beginnings: Offsets, given_up: Ranges) -> Offsets:
    """Return the offsets at which an adoption continues; raise Refusal if it would skip records."""
    start = later(resume, beginnings)
    lost = Ranges.between(resume, start)
    if not covers(given_up, lost):
        refuse(
            f"the topics no longer have the records at {lost.dump()}, which the tables lack",
            "--adopt",
            "skips them",
            lost,
        )
    return start


def check_ahead(letters: Offsets, rows: Offsets, letters_name: str, table: str) -> None:
    """Raise Refusal if dead letters are ahead of a table that was rolled back.

    An adoption continues after both, so it would skip the rows between them.
    """
    ahead = Ranges.between(rows, letters)
    if ahead.ranges:
        raise Refusal(
            f"{table} was rolled back, and {letters_name} has later batches (up to "
            f"{ahead.dump()}): roll it back to the same time, then run again"
        )


def check_letters(batch: Ranges, readable: Iterable[Range], given_up: Ranges) -> None:
    """Raise Refusal if a batch lacks dead letters and its records are no longer readable.

    A range is readable from its first offset that a topic still has.
    """
    starts = {(part.topic, part.partition): part.start for part in readable}
    unreadable = [
        attrs.evolve(part, end=starts.get((part.topic, part.partition), part.end))
        for part in batch.ranges
    ]
    lost = Ranges(tuple(part for part in unreadable if part.start < part.end))
    if not covers(given_up, lost):
        refuse(
            f"the newest batch lacks dead letters, and the topics no longer have its records at "
            f"{lost.dump()}",
            "--adopt",
            "gives up their dead letters",
            lost,
        )


def unrefillable(
    rows: Iterable[Range], start: Offsets, unreliable: Collection[str], topics: Collection[str]
) -> Ranges:
    """Return the offsets whose rows a new start at ``start`` deletes and does not write again.

    ``rows`` are ranges that contain the offsets of all rows and dead letters. The rows of
    ``topics`` are deleted; the ``unreliable`` topics among them may lack any record of their rows.
    """
    by_partition: dict[tuple[str, int], Range] = {}
    for part in rows:
        if part.topic not in topics:
            continue
        first = start.get(part.topic, {}).get(part.partition)
        if first is None or part.topic in unreliable:
            first = part.end
        piece = attrs.evolve(part, end=min(part.end, first))
        if piece.start < piece.end:
            other = by_partition.get((part.topic, part.partition), piece)
            by_partition[part.topic, part.partition] = attrs.evolve(
                piece, start=min(piece.start, other.start), end=max(piece.end, other.end)
            )
    return Ranges(tuple(sorted(by_partition.values())))


def check_deleted(lost: Ranges, given_up: Ranges) -> None:
    """Raise Refusal if a new start would lose rows for good that the user has not given up."""
    if not covers(given_up, lost):
        refuse(
            f"the rows of {lost.dump()} would be deleted and not written again, because the topics "
            "may no longer have their records (a compacted topic, or one whose configuration the "
            "brokers do not show, may lack any), or source.start is after them",
            "--from-start",
            "deletes them",
            lost,
        )


def covers(given_up: Ranges, lost: Ranges) -> bool:
    """Return whether all lost offsets are given up."""
    return all(
        any(
            (other.topic, other.partition) == (part.topic, part.partition)
            and other.start <= part.start
            and part.end <= other.end
            for other in given_up.ranges
        )
        for part in lost.ranges
    )


def refuse(problem: str, option: str, effect: str, lost: Ranges) -> NoReturn:
    raise Permanent(f"{problem}: run with {option} {GIVE_UP} '{lost.dump()}', which {effect}")
