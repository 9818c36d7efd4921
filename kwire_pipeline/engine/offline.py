"""The state of a pipeline between runs, for commands that only inspect or repair it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import attrs
from pyspark.sql import SparkSession

from kwire_pipeline.config.model import DeadLetters, Pipeline
from kwire_pipeline.engine import identity, offsets
from kwire_pipeline.engine.definition import definition_of
from kwire_pipeline.engine.identity import Identity
from kwire_pipeline.engine.lease import Lease, hold
from kwire_pipeline.engine.offsets import Offsets, Ranges
from kwire_pipeline.engine.shape_and_tables import destinations_of, transform_hash
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Permanent, Refusal
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Letters, Mark, other_writers


@attrs.frozen(kw_only=True)
class Place:
    """The position of a checkpoint in its topics."""

    identity: Identity
    position: Offsets
    """The offsets after the last batch that Spark's checkpoint records as done."""
    batch_id: int | None
    """The id of that batch; None before the first one."""
    is_half_done: bool
    """True if a later batch was begun."""

    @property
    def is_at_rest(self) -> bool:
        """True if a run has nothing to finish before it reads new records."""
        return not self.is_half_done and not self.identity.pending_deletion


@attrs.frozen(kw_only=True)
class State(Place):
    """The position of a checkpoint, and the tables."""

    destinations: Destinations


def state_of(spark: SparkSession, pipeline: Pipeline) -> State:
    """Read the state; raise Refusal if the pipeline has not run yet."""
    place = place_of(spark, pipeline)
    if place is None:
        raise Refusal(
            f"pipeline {pipeline.name} has no checkpoint in {pipeline.checkpoint}: run it first, "
            "or correct checkpoint"
        )
    return State(
        identity=place.identity,
        destinations=destinations_of(spark, pipeline),
        position=place.position,
        batch_id=place.batch_id,
        is_half_done=place.is_half_done,
    )


@contextmanager
def holding(
    spark: SparkSession, pipeline: Pipeline, warn: Callable[[str], None]
) -> Iterator[tuple[Lease, State]]:
    """Hold the lease of a pipeline during a block, in which no run changes its state.

    Raise Refusal if the pipeline has not run yet, while a run writes, if a batch is half done, or
    if a new start has rows to delete.
    """
    state_of(spark, pipeline)  # Without a checkpoint there is no folder for the lease.
    with hold(Folder(spark, pipeline.checkpoint), warn=warn) as lease:
        state = state_of(spark, pipeline)
        if state.is_half_done:
            raise Refusal(
                f"pipeline {pipeline.name} has a batch that is half done: let a run finish it first"
            )
        if state.identity.pending_deletion:
            raise Refusal(
                f"pipeline {pipeline.name} has rows that a run with --from-start did not get to "
                "delete: let a run delete them first"
            )
        yield lease, state


def check_offsets(pipeline: Pipeline, state: State, command: str) -> None:
    """Raise Refusal if an offset in the tables may be that of more than one record."""
    if state.identity.has_replaced_topic:
        raise Refusal(
            f"a topic was deleted and recreated, so an offset does not name one record: {command} "
            "is not possible"
        )
    writers = other_writers(state.destinations.tables, pipeline.name, state.identity.topics)
    for topic, other in writers.items():
        raise Refusal(
            f"pipeline {other} also writes topic {topic} to the tables of {pipeline.name}, and "
            f"their rows and dead letters cannot be told apart: {command} is not possible"
        )


def place_of(spark: SparkSession, pipeline: Pipeline) -> Place | None:
    """Return a checkpoint's position, from its files alone; None if the pipeline never ran."""
    folder = Folder(spark, pipeline.checkpoint)
    text = folder.read(identity.FILE)
    if text is None:
        return None
    stored = Identity.parse(text)
    checkpoint = folder.at(checkpoint_name(stored.pipeline_id))
    done = last_entry(checkpoint, "commits")
    return Place(
        identity=stored,
        position=stored.start if done is None else read_entry(checkpoint, done),
        batch_id=done,
        is_half_done=half_done(checkpoint) is not None,
    )


def checkpoint_name(pipeline_id: str) -> str:
    """Return the name of the folder in which Spark stores the offsets of a pipeline id."""
    return f"spark-{pipeline_id[:8]}"


def last_entry(checkpoint: Folder, log: str) -> int | None:
    """Return the last batch in a log of a checkpoint, ``offsets`` or ``commits``."""
    return max((int(name) for name in checkpoint.names(log) if name.isdigit()), default=None)


def half_done(checkpoint: Folder) -> int | None:
    """Return the batch that a run began but did not finish; None if there is none."""
    begun, done = last_entry(checkpoint, "offsets"), last_entry(checkpoint, "commits")
    return begun if begun is not None and (done is None or begun > done) else None


def has_part(stored: Identity, checkpoint: Folder, tables: Iterable[Letters]) -> bool:
    """Return whether a table has the batch that a run began but did not finish."""
    batch_id = half_done(checkpoint)
    if batch_id is None:
        return False
    start = read_entry(checkpoint, batch_id - 1) if batch_id else stored.start
    ranges = Ranges.between(start, read_entry(checkpoint, batch_id))
    mark = Mark(stored.pipeline_id, batch_id, ranges)
    by_rows = not stored.has_replaced_topic
    return any(table.exists() and table.has_batch(mark, by_rows=by_rows) for table in tables)


def check_definition(
    spark: SparkSession, pipeline: Pipeline, stored: Identity, folder: Folder
) -> None:
    """Raise Refusal if a partly written batch would be classified differently by this file.

    A batch of which nothing is written is ignored: its run may have been refused because of the
    file.
    """
    hashes = {stored.transform_hash, transform_hash(pipeline.transform)}
    is_same_transform = "" in hashes or len(hashes) == 1
    if is_same_transform and stored.definition in ("", definition_of(pipeline)):
        return
    letters = DeadLetters(table=stored.dead_letters, topic=stored.letter_topic)
    former = destinations_of(spark, attrs.evolve(pipeline, dead_letters=letters))
    if has_part(stored, folder.at(checkpoint_name(stored.pipeline_id)), former.tables):
        raise Permanent(
            f"a batch of pipeline {pipeline.name} is half done, and this file classifies its "
            "records differently (schema, columns, omit, expectations, transform or dead_letters): "
            "run once with the former file, then with this one"
        )


def read_entry(checkpoint: Folder, batch_id: int) -> Offsets:
    """Return the end offsets of a batch; raise Refusal if the log has no such entry."""
    text = checkpoint.read(f"offsets/{batch_id}")
    if text is None:
        raise Refusal(f"the checkpoint {checkpoint.url} lacks batch {batch_id}: restore it")
    try:
        return offsets.of_log_entry(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise Refusal(
            f"offsets/{batch_id} in the checkpoint {checkpoint.url} cannot be read ({error}): "
            f"restore the checkpoint, or run with {identity.ADOPT}"
        ) from None
