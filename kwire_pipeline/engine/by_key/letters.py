"""Turns dead letters into changes by key, unless their key has a newer change.

If the table has a sequence, rows and the table of deletions show which change is newer. Without a
sequence, the offsets within a partition do: a later change is in the row of its key or, if it
deleted the row, only in the topic. So the topics are read from the first of these letters onwards,
and a replay is refused if a topic no longer has all of these records.
"""

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.engine.by_key.sequence import apply_changes, check_remembered
from kwire_pipeline.engine.by_key.upsert import all_changes, check_no_null, last_changes
from kwire_pipeline.engine.offsets import Offsets, offsets_of
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.destinations import Destinations

SPOT_COUNT = 3
"""The columns of an origin that name a record: topic, partition and offset."""


def apply_letters(
    batch: DataFrame,
    shape: Shape,
    destinations: Destinations,
    later: Callable[[Offsets], DataFrame],
) -> DataFrame:
    """Apply the letters that are changes now; return the topic, partition and offset of each.

    ``later`` classifies the records of the topics from the given offsets onwards.
    """
    changes = all_changes(batch, shape, destinations.transform)
    last = last_changes(changes, shape)
    if destinations.transform is not None:
        check_no_null(last, shape.changes)
    spot = [F.col(f"`{name}`") for name in shape.origin[:SPOT_COUNT]]
    if not shape.changes.sequence:
        keys = [F.col(f"`{key}`") for key in shape.changes.keys]
        others = destinations.table.read().select(*keys, *spot)
        if shape.changes.has_deletions and (start := first_offsets(changes, shape)):
            followers = all_changes(later(start), shape, destinations.transform)
            others = others.unionAll(followers.select(*keys, *spot))
        last = without_followed(last, others, shape)
    else:
        check_remembered(last, shape, destinations)
    apply_changes(last, shape, destinations, None)
    return changes.select(*spot)


def first_offsets(changes: DataFrame, shape: Shape) -> Offsets:
    """Return the offset of the first change of each partition."""
    topic, partition, offset = (F.col(f"`{name}`") for name in shape.origin[:SPOT_COUNT])
    rows = changes.groupBy(topic, partition).agg(F.min(offset)).collect()
    return offsets_of((row[0], row[1], row[2]) for row in rows)


def without_followed(changes: DataFrame, others: DataFrame, shape: Shape) -> DataFrame:
    """Return the changes that no known change of the same key follows.

    A change in another partition may be older or newer, so it is treated as later.
    """
    topic, partition, offset = shape.origin[:SPOT_COUNT]
    keys = " AND ".join(f"change.`{key}` <=> other.`{key}`" for key in shape.changes.keys)
    is_same_partition = " AND ".join(f"change.`{n}` = other.`{n}`" for n in (topic, partition))
    is_earlier = f"{is_same_partition} AND other.`{offset}` <= change.`{offset}`"
    condition = F.expr(f"{keys} AND NOT coalesce({is_earlier}, true)")
    return changes.alias("change").join(others.alias("other"), condition, "left_anti")


def check_readable(start: Offsets, beginnings: Offsets, policies: Mapping[str, str]) -> None:
    """Raise Refusal if a topic may lack a deletion that came after a letter.

    ``policies`` has the cleanup policies of the topics, as far as the brokers show them.
    """
    for topic, partitions in start.items():
        if topic not in policies:
            raise Refusal(
                f"the brokers do not show whether topic {topic} is compacted, and may lack a "
                "deletion that came after a dead letter: give the pipeline's user the right "
                "DescribeConfigs on the topic"
            )
        lacks = [p for p, offset in partitions.items() if beginnings[topic].get(p, 0) > offset]
        if lacks or "compact" in policies[topic]:
            raise Refusal(
                f"topic {topic} may no longer have a deletion that came after a dead letter, which "
                "would write the row again: correct the schema and run with --from-start, or use a "
                "new table with table.sequence_by"
            )
