"""One batch: parsed once, counted, judged, then written to the table and the dead letters.

Counting comes before the first write, because ``max_bad_share`` and an expectation with ``fail``
must reject a batch before any of it is written. The classified batch is therefore persisted:
counting reads the topic and parses, and the writes read what was persisted. A batch that an earlier
run began has marks in the tables; marked parts are not written again, so exactness does not depend
on the order of the writes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.config.values import Action
from kwire_pipeline.engine.by_key.sequence import apply_changes
from kwire_pipeline.engine.by_key.upsert import all_changes, check_no_null, last_changes
from kwire_pipeline.engine.faults import NO_FAULTS, Faults, Place
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.reporting.figures import (
    MAX_REASONS,
    OTHER_REASONS,
    Batch,
    merged_reasons,
)
from kwire_pipeline.engine.schemas import Schemas, classifying
from kwire_pipeline.errors import Failure, Permanent, Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import DELETES, Shape
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Mark


@attrs.frozen(kw_only=True)
class Counts:
    """The records of a batch by class, and their size."""

    good: int
    misfits: int
    unexpected: int
    dropped: int
    deletions: int
    ignored: int
    bytes: int
    unmet: Mapping[str, int]

    @property
    def records(self) -> int:
        written = self.good + self.deletions + self.misfits + self.unexpected
        return written + self.dropped + self.ignored

    @property
    def dead_letters(self) -> int:
        return self.misfits + self.unexpected


@attrs.frozen(kw_only=True)
class Tolerance:
    """The dead letters that a batch may have."""

    max_bad_share: float
    """The highest share of the records; 0 accepts no dead letter at all."""
    min_bad_records: int
    """Fewer dead letters than this are accepted at any share above 0, because of small batches."""

    def is_exceeded(self, dead_letters: int, records: int) -> bool:
        has_enough = dead_letters >= self.min_bad_records or self.max_bad_share == 0
        return has_enough and dead_letters > self.max_bad_share * records


@attrs.frozen(kw_only=True)
class Writer:
    """The writer of batches."""

    shape: Shape
    destinations: Destinations
    tolerance: Tolerance
    by_rows: bool
    """True if a row with one of a batch's offsets proves that the whole batch is written."""
    mark: Callable[[int], Mark]
    """Returns the mark of a batch by its id, without the number of its dead letters."""
    lag: Callable[[Mark], int]
    """Returns the offsets left to read after a batch. If it fails, the batch is still written."""
    check_lease: Callable[[], None]
    """Raises Failure if another run writes; counting before a write can take minutes."""
    faults: Faults = NO_FAULTS
    clock: Callable[[], float] = time.monotonic
    schemas: Schemas | None = None
    """The writers' schemas, if records use a registry."""

    def write(self, raw: DataFrame, batch_id: int, *, may_be_repeated: bool) -> "Result":
        """Write a batch that Spark has read, unless the tables already have it."""
        start_s = self.clock()
        mark = self.mark(batch_id)
        with classifying(
            raw, self.shape, self.schemas, batch_id, may_be_repeated=may_be_repeated
        ) as (batch, shape):
            counts = count(batch, shape)
            mark = attrs.evolve(mark, letter_count=counts.dead_letters)
            has_letters = self.destinations.dead_letters is not None
            judge(counts, mark.ranges, shape, self.tolerance, has_letters=has_letters)
            own = attrs.evolve(self, shape=shape)
            letters = self.destinations.dead_letters
            if counts.dead_letters and letters is not None:
                letters.check_sizes(frames.misfits(batch, shape), mark)
            with own._output_of(batch, counts) as output:
                is_repeated, reasons = own._write(batch, output, counts, mark, may_be_repeated)
        figures = Batch(
            batch_id=batch_id,
            rows=output.row_count,
            dead_letters=counts.dead_letters,
            dropped=counts.dropped,
            deletions=counts.deletions,
            ignored=counts.ignored,
            omitted=output.omitted,
            unmet=counts.unmet,
            bytes=counts.bytes,
            offsets=mark.ranges.count,
            lag=self._lag(mark),
            elapsed_s=self.clock() - start_s,
            is_repeated=is_repeated,
        )
        return Result(mark, figures, reasons)

    def _lag(self, mark: Mark) -> int | None:
        """Return the lag after a written batch; None if it is unknown."""
        try:
            return self.lag(mark)
        except (Failure, Refusal, ValueError, Py4JError):
            return None

    @contextmanager
    def _output_of(self, batch: DataFrame, counts: Counts) -> Iterator["Output"]:
        """Make the rows, or changes by key, during a block.

        A transform's rows are persisted and counted, because it may turn a record into no rows or
        several. Without a transform, each good record is a row.
        """
        transform = self.destinations.transform
        if self.shape.changes.keys:
            rows = all_changes(batch, self.shape, transform)
        else:
            rows = self.destinations.rows_of(batch, self.shape)
        if transform is None:
            yield Output(frame=rows, row_count=counts.good, omitted=0)
            return
        rows = rows.persist()
        try:
            row_count, record_count = count_rows(rows, self.shape)
            yield Output(frame=rows, row_count=row_count, omitted=counts.good - record_count)
        finally:
            rows.unpersist()

    def _write(
        self, batch: DataFrame, output: "Output", counts: Counts, mark: Mark, may_be_repeated: bool
    ) -> tuple[bool, Mapping[str, int]]:
        """Write rows, then dead letters; return whether either already existed, and the reasons."""
        table, letters = self.destinations.table, self.destinations.dead_letters
        is_repeated = False
        reasons: Mapping[str, int] = {}
        self.faults.reach(Place.BEFORE_TABLE)
        self.check_lease()
        if counts.good or counts.deletions:
            if may_be_repeated and table.has_batch(mark, by_rows=self.by_rows):
                is_repeated = True
            else:
                self._write_rows(output.frame, mark)
        self.faults.reach(Place.AFTER_TABLE)
        self.check_lease()
        if counts.dead_letters and letters is not None:
            misfits = frames.misfits(batch, self.shape)
            reasons = by_reason(misfits, counts.dead_letters)
            if may_be_repeated and letters.has_batch(mark, by_rows=self.by_rows):
                is_repeated = True
                letters.append_rest(misfits, mark)
            else:
                letters.append(misfits, mark)
        self.faults.reach(Place.AFTER_DEAD_LETTERS)
        return is_repeated, reasons

    def _write_rows(self, rows: DataFrame, mark: Mark) -> None:
        """Append the rows, or apply the last change of each key."""
        if not self.shape.changes.keys:
            self.destinations.table.append(rows, mark)
            return
        # A merge reads its changes twice.
        changes = last_changes(rows, self.shape).persist()
        try:
            if self.destinations.transform is not None:
                check_no_null(changes, self.shape.changes)
            apply_changes(changes, self.shape, self.destinations, mark)
        finally:
            changes.unpersist()


@attrs.frozen(kw_only=True)
class Output:
    """The rows and changes that a batch writes to the table."""

    frame: DataFrame
    row_count: int
    omitted: int
    """The number of good records that have no row."""


@attrs.frozen
class Result:
    """The outcome of one batch."""

    mark: Mark
    figures: Batch
    reasons: Mapping[str, int]
    """The dead letters by reason."""


def judge(
    counts: Counts, ranges: Ranges, shape: Shape, tolerance: Tolerance, *, has_letters: bool
) -> None:
    """Raise Permanent for records that the configuration does not accept, before any write.

    ``has_letters`` is false if there is no destination for dead letters.
    """
    for words in rejections(shape.expectations, counts.unmet):
        raise Permanent(
            f"{words} in offsets {ranges.dump()}: correct them at their source, or change the "
            "expectation's action"
        )
    if counts.dead_letters and not has_letters:
        raise Permanent(
            f"{counts.dead_letters} records of offsets {ranges.dump()} do not fit, and the "
            "pipeline has no dead_letters: give it a table or a topic for them"
        )
    if tolerance.is_exceeded(counts.dead_letters, counts.records):
        raise Permanent(
            f"{counts.dead_letters} of {counts.records} records do not fit, more than "
            f"max_bad_share {tolerance.max_bad_share:g}, in offsets {ranges.dump()}: correct the "
            "schema, or raise max_bad_share"
        )


def rejections(
    expectations: Mapping[str, tuple[str, Action]], unmet: Mapping[str, int]
) -> Iterator[str]:
    """Yield a description of each expectation with ``fail`` that some rows do not meet.

    ``unmet`` has the number of these rows by the expectation's name.
    """
    for name, (sql, action) in expectations.items():
        if action is Action.FAIL and unmet.get(name, 0):
            yield f"{unmet[name]} rows do not meet the expectation {name} ({sql})"


def count(batch: DataFrame, shape: Shape) -> Counts:
    """Count a classified batch; this is the job that reads the topic and parses."""

    row = batch.agg(*shape.sums).collect()[0]
    return Counts(
        good=row["good"],
        misfits=row["misfits"],
        unexpected=row["unexpected"],
        dropped=row["dropped"],
        deletions=row["deletions"],
        ignored=row["ignored"],
        bytes=row["bytes"],
        unmet={name: row[f"unmet {name}"] for name in shape.expectations},
    )


def count_rows(output: DataFrame, shape: Shape) -> tuple[int, int]:
    """Return the number of rows that a transform made, and the number of records they come from."""
    rows = output.where(~F.col(DELETES)) if DELETES in output.columns else output
    spot = [F.col(f"`{name}`") for name in shape.origin[:3]]
    row = rows.agg(F.count(F.lit(1)), F.count_distinct(*spot)).collect()[0]
    return row[0], row[1]


def by_reason(misfits: DataFrame, total: int | None = None) -> Mapping[str, int]:
    """Count dead letters by their reason; `total` is their number, if it is known."""
    counts = misfits.groupBy("reason").count()
    rows = counts.orderBy(F.desc("count"), "reason").limit(MAX_REASONS + 1).collect()
    if len(rows) <= MAX_REASONS:
        return {row[0]: row[1] for row in rows}
    common = {row[0]: row[1] for row in rows[:MAX_REASONS]}
    rest = (misfits.count() if total is None else total) - sum(common.values())
    return merged_reasons(common, {OTHER_REASONS: rest})
