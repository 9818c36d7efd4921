"""Offsets of topic partitions, and Spark's log of them. Plain data only.

An offset names the next record to read, so ends are exclusive.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import attrs

Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""The next offset by topic and partition."""

LOG_VERSION: Final = "v1"


def dump(offsets: Offsets) -> str:
    """Return the offsets in the form that Spark's Kafka source reads."""
    return json.dumps(
        {t: {str(p): o for p, o in sorted(offsets[t].items())} for t in sorted(offsets)},
        separators=(",", ":"),
    )


def parse(text: str) -> Offsets:
    """Parse the output of `dump`; raise ValueError for anything else."""
    return {
        str(topic): {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in json.loads(text).items()
    }


def of_log_entry(text: str) -> Offsets:
    """Return the offsets of the single source in an entry of a checkpoint's offset log."""
    version, *lines = text.splitlines() or [""]
    if version != LOG_VERSION or len(lines) != 2:
        raise ValueError(f"an offset log of version {version} with {len(lines)} lines is unknown")
    return parse(lines[1])


def later(first: Offsets, second: Offsets) -> Offsets:
    """Return the later offset of each partition."""
    merged: dict[str, dict[int, int]] = {}
    for offsets in (first, second):
        for topic, partitions in offsets.items():
            positions = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                positions[partition] = max(offset, positions.get(partition, 0))
    return merged


def with_absent(offsets: Offsets, others: Offsets) -> Offsets:
    """Return ``offsets``, extended by the partitions that only ``others`` has."""
    names = {**offsets, **others}
    return {name: {**others.get(name, {}), **offsets.get(name, {})} for name in names}


@attrs.frozen(order=True)
class Range:
    """The offsets of one partition in one batch."""

    topic: str
    partition: int
    start: int
    end: int
    """Exclusive."""


@attrs.frozen
class Ranges:
    """The offsets of one batch, without empty partitions."""

    ranges: tuple[Range, ...]

    @classmethod
    def between(cls, start: Offsets, end: Offsets) -> "Ranges":
        """Return the ranges from one set of offsets to a later one.

        A partition without a start is new; Spark reads it from its beginning.
        """
        return cls(tuple(sorted(_between(start, end))))

    @classmethod
    def parse(cls, text: str) -> "Ranges":
        """Parse the output of `dump`."""
        return cls(
            tuple(
                sorted(
                    Range(topic, int(partition), int(start), int(end))
                    for topic, partitions in json.loads(text).items()
                    for partition, (start, end) in partitions.items()
                )
            )
        )

    def dump(self) -> str:
        """Return ``{"orders":{"0":[100,200]}}``."""
        shown: dict[str, dict[str, list[int]]] = {}
        for part in self.ranges:
            shown.setdefault(part.topic, {})[str(part.partition)] = [part.start, part.end]
        return json.dumps(shown, separators=(",", ":"))

    @property
    def count(self) -> int:
        """The number of offsets; a topic with transactions has fewer records."""
        return sum(part.end - part.start for part in self.ranges)

    @property
    def ends(self) -> Offsets:
        """The offsets after this batch, for its own partitions."""
        return offsets_of((part.topic, part.partition, part.end) for part in self.ranges)


def _between(start: Offsets, end: Offsets) -> Iterator[Range]:
    for topic, partitions in end.items():
        for partition, until in partitions.items():
            first = start.get(topic, {}).get(partition, 0)
            if until > first:
                yield Range(topic, partition, first, until)


def offsets_of(items: Iterable[tuple[str, int, int]]) -> Offsets:
    """Return the offsets from (topic, partition, offset) triples."""
    offsets: dict[str, dict[int, int]] = {}
    for topic, partition, offset in items:
        offsets.setdefault(topic, {})[partition] = offset
    return offsets


def lag(position: Offsets, ends: Offsets) -> int:
    """Return the number of offsets between a position and the ends of the partitions."""
    return sum(
        max(0, end - position.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )
