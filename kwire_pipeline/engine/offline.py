"""The state of a pipeline between runs, for the commands that only look, or mend."""

import attrs
from pyspark.sql import SparkSession

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine import identity, offsets
from kwire_pipeline.engine.batch import Destinations
from kwire_pipeline.engine.identity import Identity
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.engine.parts import destinations_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal


@attrs.frozen(kw_only=True)
class State:
    """The files beside the checkpoint, and the tables."""

    identity: Identity
    destinations: Destinations
    position: Offsets
    """The offsets after the last batch that Spark's checkpoint calls done."""
    batch_id: int | None
    """That batch; None before the first one."""
    is_half_done: bool
    """Whether a later batch was begun."""


def state_of(spark: SparkSession, pipeline: Pipeline) -> State:
    """Read the state; raise Refusal if the pipeline has not run yet."""
    folder = Folder(spark, pipeline.checkpoint)
    text = folder.read(identity.FILE)
    if text is None:
        raise Refusal(
            f"pipeline {pipeline.name} has no checkpoint in {pipeline.checkpoint}: run it first, "
            "or correct checkpoint"
        )
    stored = Identity.parse(text)
    checkpoint = folder.at(checkpoint_name(stored.pipeline_id))
    done = last_entry(checkpoint, "commits")
    return State(
        identity=stored,
        destinations=destinations_of(spark, pipeline),
        position=stored.start if done is None else read_entry(checkpoint, done),
        batch_id=done,
        is_half_done=half_done(checkpoint) is not None,
    )


def checkpoint_name(pipeline_id: str) -> str:
    """Return the name of the folder in which Spark keeps the offsets of a pipeline id."""
    return f"spark-{pipeline_id[:8]}"


def last_entry(checkpoint: Folder, log: str) -> int | None:
    """Return the last batch in a log of a checkpoint, ``offsets`` or ``commits``."""
    return max((int(name) for name in checkpoint.names(log) if name.isdigit()), default=None)


def half_done(checkpoint: Folder) -> int | None:
    """Return the batch that a run began and did not finish."""
    begun, done = last_entry(checkpoint, "offsets"), last_entry(checkpoint, "commits")
    return begun if begun is not None and (done is None or begun > done) else None


def read_entry(checkpoint: Folder, batch_id: int) -> Offsets:
    """Return the end offsets of a batch; raise Refusal if the log has no such entry."""
    text = checkpoint.read(f"offsets/{batch_id}")
    if text is None:
        raise Refusal(f"the checkpoint {checkpoint.url} lacks batch {batch_id}: restore it")
    return offsets.of_log_entry(text)
