"""The kinds of partitions that the comparison with Apache Kafka's cleaner uses.

A shape says how likely each event is in the history of a partition; ``inputs.py`` draws a history
from it by a seed. Probabilities are per batch unless said otherwise.
"""

from __future__ import annotations

from typing import Final

import attrs

from kwire.records import compression

ALL_CODECS: Final = (
    compression.NONE,
    compression.GZIP,
    compression.SNAPPY,
    compression.LZ4,
    compression.ZSTD,
)
SMALL_GAP: Final = 300
WIDE_GAP: Final = 1 << 30
"""A few of these in a row exceed what one segment's indexes can express."""


@attrs.frozen(kw_only=True)
class Shape:
    """The probabilities by which a partition's history is drawn."""

    key_count: int = 12
    records_max: int = 6
    """The most records of a batch."""
    tombstones: float = 0.15
    """Probability per record."""
    keyless: float = 0.0
    """Probability per record; such records are from before the topic was compacted."""
    untimed: float = 0.0
    """Probability of a batch whose records have no timestamp (-1)."""
    value_max: int = 60
    """The largest value's bytes, about."""
    max_message_bytes: int = 1024 * 1024
    """The topic's limit by now; its older batches may be larger."""
    delete_retention_ms: int = 60_000
    foreign_markers: float = 0.0
    """Probability of a control batch of a type that is no transaction marker."""
    idempotent: float = 0.2
    transactional: float = 0.2
    empty_transactions: float = 0.02
    """Markers without data, as after a producer that was fenced."""
    idle_producers: float = 0.2
    """Probability per round of a pause in which producers expire."""
    epoch_bumps: float = 0.1
    """Probability, per transaction, of a marker that carries the producer's next epoch."""
    codecs: tuple[int, ...] = (compression.NONE, compression.ZSTD)
    gaps: float = 0.02
    gap_max: int = SMALL_GAP
    rolls: float = 0.03
    leader_changes: float = 0.03
    segment_bytes: int = 2_500
    segment_index_bytes: int = 1 << 16
    index_interval_bytes: int = 300
    slots: tuple[int, int] = (5_000, 5_000)
    """The smallest and largest number of slots of the cleaner's offset map."""
    append_time: bool = False
    also_delete: bool = False
    start_moves: float = 0.0
    """Probability per round that records are deleted from the log's front."""
    bounds: float = 0.2
    """Probability per round that the cleaner must stop below the active segment."""
    restarts_dirty: float = 0.1
    """Probability per round that the first dirty offset is not where the last pass ended."""
    is_offsets_topic: bool = False
    has_own_groups: bool = False
    """Whether the two cleaners may choose other segments to merge.

    If the map is full before a gap of 2^31 offsets, Apache Kafka takes the first uncleanable offset
    for the end of the last segment, and so leaves one alone that would fit.
    """
    batches: tuple[int, int] = (20, 60)
    """Batches appended per round."""
    rounds: int = 3


SHAPES: Final[dict[str, Shape]] = {
    "plain": Shape(idempotent=0, transactional=0, empty_transactions=0, gaps=0),
    "tombstones": Shape(tombstones=0.6, key_count=8, rounds=5, batches=(8, 25)),
    "producers": Shape(idempotent=0.8, transactional=0, idle_producers=0.5, rounds=4),
    "transactions": Shape(transactional=0.85, idempotent=0.05, empty_transactions=0.08, rounds=4),
    "fenced": Shape(transactional=0.5, empty_transactions=0.4, epoch_bumps=0.6, rounds=4),
    "codecs": Shape(codecs=ALL_CODECS[1:], records_max=20, segment_bytes=4_000),
    "keyless": Shape(keyless=0.3, tombstones=0.3),
    "append time": Shape(append_time=True, tombstones=0.4, rounds=4),
    "untimed": Shape(untimed=0.5, tombstones=0.3, rounds=4),
    "gaps": Shape(gaps=0.3),
    "wide": Shape(gaps=0.15, gap_max=WIDE_GAP, segment_bytes=20_000, rolls=0.2),
    "wide, small map": Shape(
        gaps=0.15,
        gap_max=WIDE_GAP,
        segment_bytes=20_000,
        rolls=0.2,
        slots=(8, 30),
        has_own_groups=True,
    ),
    "offsets": Shape(is_offsets_topic=True, tombstones=0.2, codecs=(compression.NONE,)),
    "mixed policy": Shape(also_delete=True, start_moves=0.5),
    "many segments": Shape(segment_bytes=350, rolls=0.2, batches=(25, 40)),
    "small indexes": Shape(
        segment_bytes=30_000, rolls=0.1, segment_index_bytes=400, index_interval_bytes=1
    ),
    "small map": Shape(slots=(4, 40), key_count=40, rounds=4),
    "large batches": Shape(value_max=9_000, segment_bytes=60_000, max_message_bytes=800),
    "foreign markers": Shape(foreign_markers=0.1, transactional=0.5),
    "no retention": Shape(
        delete_retention_ms=0, tombstones=0.5, transactional=0.4, empty_transactions=0.3, rounds=4
    ),
    "retained forever": Shape(delete_retention_ms=(1 << 63) - 1, tombstones=0.5, rounds=4),
    "far horizon": Shape(delete_retention_ms=1 << 61, tombstones=0.5, rounds=4),
    "rare keys": Shape(key_count=2, tombstones=0.5, rounds=5, transactional=0.4),
}
"""By name."""
