"""`kwire-pipeline backfill`: write a range of records that the tables lack.

The range is given by offsets or times. A record is written only if neither table has its offset. So
a range may overlap records in the tables, and an interrupted backfill is simply repeated. Changes
by key need a sequence, so that an older change does not overwrite a newer one. A backfill holds the
checkpoint's lease, so no run writes at the same time. Records after the checkpoint's offsets are
left to the next run.
"""

import json
from collections.abc import Iterator
from functools import partial

import attrs
from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.commands.show import show, warner
from kwire_pipeline.commands.tables import on_tables
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Loaded
from kwire_pipeline.config.values import Mode, Start, TableFormat
from kwire_pipeline.engine import identity, proof, source
from kwire_pipeline.engine.batch import Tolerance, count, judge
from kwire_pipeline.engine.by_key.sequence import apply_changes, check_remembered
from kwire_pipeline.engine.by_key.upsert import all_changes, check_no_null, last_changes
from kwire_pipeline.engine.cluster import Cluster, Topic
from kwire_pipeline.engine.faults import NO_FAULTS, Faults, Place
from kwire_pipeline.engine.following import stored_schema
from kwire_pipeline.engine.identity import Identity
from kwire_pipeline.engine.lease import Lease
from kwire_pipeline.engine.offline import State, check_offsets, holding
from kwire_pipeline.engine.offsets import Offsets, Range, Ranges
from kwire_pipeline.engine.preparation import check_tables, prepare_tables
from kwire_pipeline.engine.proof import SPOT
from kwire_pipeline.engine.schemas import classifying, schemas_of
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.shape_and_tables import origin_of, shape_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape


def backfill(loaded: Loaded, *, first: str | None, end: str | None, table: str | None) -> int:
    """Backfill a range and print what was written."""
    if first is None or end is None:
        raise Refusal("backfill needs --from and --to, such as --from 2026-11-01 --to 2026-11-02")
    bounds = bound_of("--from", first), bound_of("--to", end)
    return on_tables(loaded, table, partial(backfill_table, bounds=bounds))


def bound_of(option: str, text: str) -> Start:
    """Parse a time, or offsets as JSON."""
    try:
        return Start.parse(json.loads(text) if text.lstrip().startswith("{") else text)
    except ValueError as error:
        raise Refusal(f"{option}: {error}") from None


def backfill_table(spark: SparkSession, pipeline: Pipeline, *, bounds: tuple[Start, Start]) -> int:
    """Backfill one table."""
    records, rows, letters = backfill_range(spark, pipeline, bounds)
    became = (
        "written to the table"
        if pipeline.table.mode is Mode.APPEND
        else "applied by key unless a newer change of the key was there"
    )
    shown = f"{records:,} records: {rows:,} {became}, {letters:,} written to the dead letters"
    show(pipeline, [f"{shown}; the others were there, or are dropped or ignored"])
    return 0


def backfill_range(
    spark: SparkSession,
    pipeline: Pipeline,
    bounds: tuple[Start, Start],
    faults: Faults = NO_FAULTS,
) -> tuple[int, int, int]:
    """Return the number of records, and how many were written as rows and as dead letters.

    For a table changed by key, the second number counts the changes compared with the table's rows.
    """
    set_session(spark)
    check_supported(pipeline)
    with holding(spark, pipeline, warner(pipeline)) as (lease, state):
        check_offsets(pipeline, state, "backfill")
        ranges = resolve(spark, pipeline, state, bounds)
        shape = shape_of(pipeline, stored_schema(pipeline, state.identity))
        check_tables(pipeline, state.destinations, is_new_start=False)
        prepare_tables(spark, pipeline, shape, state.destinations)
        work = Work(spark, pipeline, state, shape, lease, faults)
        parts = list(pieces(ranges, pipeline.limits.max_offsets_per_trigger))
        written = [work.write(part) for part in parts]
        current = attrs.evolve(state.identity, verify_from=verify_start(state.identity, ranges))
        if current.verify_from != state.identity.verify_from:
            lease.check()
            Folder(spark, pipeline.checkpoint).write(identity.FILE, current.dump())
    records, rows, letters = (sum(each[n] for each in written) for n in range(3))
    return records, rows, letters


def check_supported(pipeline: Pipeline) -> None:
    """Raise Refusal for a pipeline whose tables do not show which records they contain."""
    if pipeline.table.format is TableFormat.PARQUET:
        raise Refusal(
            "backfill adds rows that belong to no batch: use table.format iceberg or delta"
        )
    if pipeline.dead_letters.topic is not None:
        raise Refusal("backfill needs a table of dead letters: set dead_letters.table")
    if pipeline.table.mode is Mode.UPSERT and not pipeline.table.sequence_by:
        raise Refusal(
            "backfill into a table that is changed by key needs table.sequence_by: old changes "
            "would overwrite newer ones"
        )


def resolve(
    spark: SparkSession, pipeline: Pipeline, state: State, bounds: tuple[Start, Start]
) -> Ranges:
    """Return the offsets between two bounds, up to the checkpoint's."""
    check_same(*bounds)
    with Cluster.of(spark, pipeline) as cluster:
        topics = cluster.topics(state.identity.topics)
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        identity.check_cluster(state.identity, cluster.cluster_id(), topic_ids)
        beginnings = cluster.beginnings(topics.values())
        for option, bound in zip(("--from", "--to"), bounds, strict=True):
            check_known(option, bound, beginnings)
        first, end = (offsets_at(cluster, topics, bound, beginnings) for bound in bounds)
    return between(first, end, state.position, beginnings)


def check_same(first: Start, end: Start) -> None:
    """Raise Refusal if only one of the two bounds has a partition, which then cannot be read."""
    if first.offsets is None or end.offsets is None:
        return
    for topic, partition in sorted(partitions_of(first.offsets) ^ partitions_of(end.offsets)):
        raise Refusal(
            f"only one of --from and --to names partition {partition} of {topic}: name the same "
            "partitions in both"
        )


def check_known(option: str, bound: Start, starts: Offsets) -> None:
    """Raise Refusal if a bound names a partition that the pipeline's topics do not have."""
    for topic, partition in sorted(partitions_of(bound.offsets or {}) - partitions_of(starts)):
        raise Refusal(
            f"{option} names partition {partition} of {topic}, which the pipeline does not read"
        )


def partitions_of(offsets: Offsets) -> set[tuple[str, int]]:
    """Return the partitions that have an offset, with their topics."""
    return {(topic, partition) for topic, each in offsets.items() for partition in each}


def offsets_at(
    cluster: Cluster, topics: dict[str, Topic], bound: Start, beginnings: Offsets
) -> Offsets:
    """Return the offsets of a bound; offsets given by the user may name only some partitions."""
    if bound.offsets is not None:
        return bound.offsets
    if bound.at_end:
        return cluster.ends(topics.values())
    if bound.timestamp_ms is None:
        return beginnings
    return cluster.at_time(topics.values(), bound.timestamp_ms)


def between(first: Offsets, end: Offsets, position: Offsets, beginnings: Offsets) -> Ranges:
    """Return the ranges to read; raise Refusal if a topic no longer has all of their records."""
    ranges = []
    for topic, partitions in first.items():
        for partition, start in partitions.items():
            until = min(
                end.get(topic, {}).get(partition, 0), position.get(topic, {}).get(partition, 0)
            )
            if start < until and start < beginnings[topic][partition]:
                raise Refusal(
                    f"the range starts at offset {start}, but partition {partition} of {topic} "
                    f"begins at {beginnings[topic][partition]}: start the range there"
                )
            if start < until:
                ranges.append(Range(topic, partition, start, until))
    return Ranges(tuple(sorted(ranges)))


def pieces(ranges: Ranges, limit: int) -> Iterator[Range]:
    """Yield the ranges in pieces of at most ``limit`` offsets."""
    for part in ranges.ranges:
        for start in range(part.start, part.end, limit):
            yield attrs.evolve(part, start=start, end=min(start + limit, part.end))


def verify_start(stored: Identity, ranges: Ranges) -> Offsets | None:
    """Return where `verify` begins after a backfill, which may join the range already verified."""
    begin = stored.verify_from
    first = {t: dict(p) for t, p in (stored.start if begin is None else begin).items()}
    joined = False
    for part in ranges.ranges:
        former = first.get(part.topic, {}).get(part.partition)
        if former is not None and part.start < former <= part.end:
            first[part.topic][part.partition], joined = part.start, True
    return first if joined else begin


@attrs.frozen
class Work:
    """The backfill of one table."""

    spark: SparkSession
    pipeline: Pipeline
    state: State
    shape: Shape
    lease: Lease
    faults: Faults

    def write(self, part: Range) -> tuple[int, int, int]:
        """Write one piece of a range; return the numbers of records, rows and dead letters."""
        start, end = ({part.topic: {part.partition: o}} for o in (part.start, part.end))
        records = source.records(self.spark, self.pipeline, start, end)
        raw = records.join(self._spots(start, end), list(SPOT), "left_anti")
        raw = raw.select(*records.columns)
        schemas = schemas_of(
            self.pipeline,
            Folder(self.spark, self.pipeline.checkpoint),
            self.state.identity.pipeline_id,
        )
        letters = self.state.destinations.dead_letters
        with classifying(raw, self.shape, schemas) as (batch, shape):
            counts = count(batch, shape)
            tolerance = Tolerance(
                max_bad_share=self.pipeline.max_bad_share,
                min_bad_records=self.pipeline.min_bad_records,
            )
            judge(counts, Ranges((part,)), shape, tolerance, has_letters=letters is not None)
            self.lease.check()
            if counts.good or counts.deletions:
                self._write_rows(batch, shape)
            self.faults.reach(Place.AFTER_TABLE)
            self.lease.check()
            if counts.dead_letters and letters is not None:
                letters.add(frames.misfits(batch, shape))
        return records.count(), counts.good + counts.deletions, counts.dead_letters

    def _spots(self, start: Offsets, end: Offsets) -> DataFrame:
        """Return the offsets of a range that are in one of the tables."""
        table, letters = self.state.destinations.table, self.state.destinations.dead_letters
        written = origin_of(self.pipeline).spots(table.read())
        if letters is not None:
            written = written.unionAll(letters.read().select(*SPOT))
        return written.where(proof.within(start, end))

    def _write_rows(self, batch: DataFrame, shape: Shape) -> None:
        destinations = self.state.destinations
        if shape.changes.keys:
            changes = last_changes(all_changes(batch, shape, destinations.transform), shape)
            if destinations.transform is not None:
                check_no_null(changes, shape.changes)
            check_remembered(changes, shape, destinations)
            apply_changes(changes, shape, destinations, None)
            return
        destinations.table.add(destinations.rows_of(batch, shape))
