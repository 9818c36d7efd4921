"""The adoption of a half-written batch, whose dead letters are written first.

A run writes the rows of a batch, then its dead letters, and then begins the next batch. So when a
checkpoint is lost, only the newest batch in the tables can lack dead letters. Its mark has its
offsets and the number of its dead letters. If some are missing, the records at those offsets are
read and classified again. The rows are never rewritten: their mark proves that all of them are
there, and the same holds for changes by key.

Rules of this file: nothing is written if the pipeline's file now classifies the batch differently
from the run that began it, judging by the number of dead letters.
"""

from collections.abc import Callable, Mapping, Sequence

import attrs
from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine import losses, source
from kwire_pipeline.engine.batch import count
from kwire_pipeline.engine.cluster import Cluster, Topic
from kwire_pipeline.engine.identity import FROM_START
from kwire_pipeline.engine.offsets import Range, Ranges, offsets_of
from kwire_pipeline.engine.schemas import classifying, schemas_of
from kwire_pipeline.engine.shape_and_tables import origin_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import LETTERS, Letters, Mark

SPOT = LETTERS.spot


@attrs.frozen(kw_only=True)
class Adoption:
    """The parts of a run that it needs to adopt a table."""

    spark: SparkSession
    pipeline: Pipeline
    folder: Folder
    shape: Shape
    destinations: Destinations
    cluster: Cluster
    topics: Mapping[str, Topic]
    former_topics: Mapping[str, str]
    """The known topic ids of the lost or previous checkpoint."""
    given_up: Ranges
    """The offsets that the adoption may skip."""
    check_lease: Callable[[], None]
    """Raises Failure if another run writes; reading the batch can take minutes."""


def finish_newest(adoption: Adoption) -> None:
    """Write the dead letters that the newest batch in the tables lacks."""
    name = adoption.pipeline.name
    table, letters = adoption.destinations.table, adoption.destinations.dead_letters
    of_rows = table.marks(name)[-1:]
    if letters is None:
        if any(mark.letter_count for mark in of_rows):
            raise Refusal(
                f"the newest batch of {adoption.pipeline.table.name} has dead letters, and this "
                "file has no place for them: name their table or topic in dead_letters"
            )
        return
    newest = newest_of(of_rows, letters.marks(name)[-1:], table.owners().get(name))
    for mark in newest:
        if mark.letter_count != 0 and not letters.has_all_letters(mark):
            _finish(adoption, mark, letters, has_rows=mark in of_rows)


def newest_of(of_rows: Sequence[Mark], of_letters: Sequence[Mark], owner: str | None) -> list[Mark]:
    """Return the newer of two marks, or both if their order is unknown; each may be absent.

    ``owner`` is the pipeline's id according to the table. If both marks are of one batch, the rows'
    mark has all of its offsets.
    """
    marks = [*of_rows, *of_letters]
    if len(marks) < 2:
        return marks
    if len({mark.pipeline_id for mark in marks}) == 1:
        return [max(marks, key=lambda mark: mark.batch_id)]
    return [mark for mark in marks if mark.pipeline_id == owner] or marks


def _finish(adoption: Adoption, mark: Mark, letters: Letters, *, has_rows: bool) -> None:
    """Write the missing dead letters of a batch."""
    parts, is_whole = _readable(adoption, mark)
    losses.check_letters(mark.ranges, parts, adoption.given_up)
    if not parts:
        return
    raw = _records(adoption, parts)
    schemas = schemas_of(adoption.pipeline, adoption.folder, mark.pipeline_id)
    with classifying(raw, adoption.shape, schemas, mark.batch_id, may_be_repeated=True) as (
        batch,
        shape,
    ):
        table = adoption.destinations.table
        origin = origin_of(adoption.pipeline)
        rows = table.read().where(origin.condition(mark.ranges))
        expected = without(frames.misfits(batch, shape), origin.spots(rows))
        counts = count(batch, shape)
        if has_rows:
            is_other = is_whole and mark.letter_count not in (None, expected.count())
        else:
            # Rows are written first, so a batch without rows has only letters.
            is_other = counts.good + counts.deletions > 0
        if is_other:
            raise Refusal(
                f"the newest batch of {adoption.pipeline.table.name} lacks dead letters, and this "
                "file classifies its records differently than the run that began it: adopt with "
                f"the former file first, or run with {FROM_START}"
            )
        rest = without(expected, letters.read().select(*SPOT)).persist()
        if rest.count():
            letters.check_sizes(rest, mark)
            adoption.check_lease()
            if letters.has_batch(mark, by_rows=False):
                letters.append_rest(rest, mark)
            else:
                letters.append(rest, mark)
        rest.unpersist()


def _readable(adoption: Adoption, mark: Mark) -> tuple[list[Range], bool]:
    """Return the ranges of a batch that the topics still have, and whether they are complete."""
    parts = []
    topics = [
        topic
        for name, topic in adoption.topics.items()
        if mark.topic_ids.get(name, adoption.former_topics.get(name)) in (None, topic.topic_id)
    ]
    beginnings = adoption.cluster.beginnings(topics)
    for part in mark.ranges.ranges:
        first = beginnings.get(part.topic, {}).get(part.partition)
        if first is not None and first < part.end:
            parts.append(attrs.evolve(part, start=max(first, part.start)))
    names = {part.topic for part in parts}
    is_compacted = bool(adoption.cluster.topics_with_compaction(names))
    return parts, tuple(parts) == mark.ranges.ranges and not is_compacted


def _records(adoption: Adoption, parts: Sequence[Range]) -> DataFrame:
    """Return the records in some ranges, unparsed."""
    start = offsets_of((part.topic, part.partition, part.start) for part in parts)
    end = offsets_of((part.topic, part.partition, part.end) for part in parts)
    return source.records(adoption.spark, adoption.pipeline, start, end)


def without(letters: DataFrame, spots: DataFrame) -> DataFrame:
    """Return the dead letters whose topic, partition and offset are not among ``spots``."""
    return letters.join(spots.distinct(), list(SPOT), "left_anti")
