"""The registry's newest schema as that of the rows, if the file says `value.schema: latest`.

A schema that is registered before a record is produced is known when the record is read. So each
batch asks for the newest schema after its offsets are fixed and before anything of it is written,
and no field that a new schema adds is lost.

A batch that was begun is finished with the schema that it began with, or a repeated batch would
have other rows. The identity beside the checkpoint stores that schema before the batch is written.
"""

from collections.abc import Callable
from typing import Protocol

import attrs
from pyspark.sql import SparkSession

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.rules import schema_problems
from kwire_pipeline.config.values import LATEST, WITH_REGISTRY
from kwire_pipeline.engine.definition import definition_of
from kwire_pipeline.engine.identity import FILE, Identity, Intent
from kwire_pipeline.engine.offline import checkpoint_name, has_part
from kwire_pipeline.engine.preparation import prepare_tables
from kwire_pipeline.engine.shape_and_tables import shape_of
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.registry import Client, UnknownSchema
from kwire_pipeline.tables.destinations import Destinations


class Adapted(Exception):
    """The end of a query between two batches, because the next one has another limit or schema."""


class Opened(Protocol):
    """The parts of an opened pipeline that a new schema concerns."""

    @property
    def folder(self) -> Folder: ...

    @property
    def destinations(self) -> Destinations: ...


@attrs.define
class Follower:
    """The registry's newest schema for each batch of a run; without `latest` nothing changes."""

    pipeline: Pipeline
    begun: int | None
    """The batch of which parts may be written, so that it keeps its schema."""
    check_lease: Callable[[], None]
    warn: Callable[[str], None]
    newest: Pipeline | None = None
    """The pipeline with the schema to change to, if the registry has another one."""

    def check(self, batch_id: int, schema: str) -> None:
        """Raise Adapted before a batch is begun if the registry has another schema for it."""
        if not is_following(self.pipeline) or batch_id == self.begun:
            return
        newest = newest_of(self.pipeline)
        if newest.value.schema != schema:
            self.newest = newest
            raise Adapted
        self.begun = batch_id

    def change(
        self, spark: SparkSession, opened: Opened, current: Identity
    ) -> tuple[Shape, Identity]:
        """Change the table as far as the file allows; return the next batch's shape and identity.

        A failure leaves the schema to change to, so that a retry changes it.
        """
        pipeline = self.newest or self.pipeline
        schema = pipeline.value.schema or ""
        self.check_lease()
        shape = shape_of(pipeline, schema)
        prepare_tables(spark, pipeline, shape, opened.destinations)
        current = attrs.evolve(current, schema=schema, definition=definition_of(pipeline))
        opened.folder.write(FILE, current.dump())
        self.newest = None
        self.warn("the registry has another schema, which the next rows have")
        return shape, current


def is_following(pipeline: Pipeline) -> bool:
    """Return whether the rows have the registry's newest schema."""
    return pipeline.value.schema == LATEST


def at_start(
    pipeline: Pipeline,
    stored: Identity | None,
    folder: Folder,
    destinations: Destinations,
    intent: Intent = Intent.CONTINUE,
) -> Pipeline:
    """Return the pipeline with the schema of its next batch in place of ``latest``."""
    if not is_following(pipeline):
        return pipeline
    if stored is not None and intent is not Intent.FROM_START:
        checkpoint = folder.at(checkpoint_name(stored.pipeline_id))
        try:
            is_begun = has_part(stored, checkpoint, destinations.tables)
        except Refusal:
            if intent is Intent.CONTINUE:
                raise
            # An adoption does not need the entry: the tables have the offsets of their last batch.
            is_begun = True
        if is_begun:
            return with_schema(pipeline, stored.schema)
    return newest_of(pipeline)


def newest_of(pipeline: Pipeline) -> Pipeline:
    """Return a following pipeline with the newest schema; raise Refusal if there is none."""
    subject = pipeline.value.subject or f"{pipeline.source.topics[0]}-value"
    try:
        version = Client.of(pipeline.registry).newest(subject, WITH_REGISTRY[pipeline.value.format])
    except UnknownSchema as error:
        raise Refusal(f"value.schema: {error}") from None
    return with_schema(pipeline, version.schema)


def with_schema(pipeline: Pipeline, text: str) -> Pipeline:
    """Return the pipeline with a schema; raise Refusal if its other keys do not fit the schema."""
    chosen = attrs.evolve(pipeline, value=attrs.evolve(pipeline.value, schema=text))
    for key, words in schema_problems(chosen):
        raise Refusal(f"the registry's newest schema does not fit the file: {key}: {words}")
    return chosen


def stored_schema(pipeline: Pipeline, stored: Identity) -> str | None:
    """Return the schema of the file or, if it has none of its own, that of the last batch."""
    own = None if is_following(pipeline) else pipeline.value.schema
    return own or stored.schema or None
