"""The writers' schemas of a run: batches contain schema ids, the registry has the schemas.

A batch is classified with the known schemas. If some of its misfits have unknown ids, their schemas
are requested from the registry, and the misfits are classified again; the topic is not read twice.

The registry's answers may change between a run that ends during a batch and the run that finishes
it, but a record must not move from one table to the other. So before a batch with new ids is
written, the answers are stored in a file beside the checkpoint. The batch is finished with these
answers, and later runs begin with the schemas in the file. A schema never changes under its id.
"""

import json
from collections.abc import Mapping
from typing import Final, Protocol

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import Format
from kwire_pipeline.engine.lease import Files
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import avro, frames
from kwire_pipeline.records.avro import AvroFields
from kwire_pipeline.records.frames import CLASS, MISFIT, OWN, Shape
from kwire_pipeline.registry import Client, UnknownSchema

FILE: Final = "schemas.json"
NO_BATCH: Final = -1
"""The batch id for records that come from the dead letters."""
MAX_LOOKUPS: Final = 200
"""The most ids per batch that are looked up in the registry; damaged records may have any id."""


class Registry(Protocol):
    """The part of the registry that a run needs."""

    @property
    def url(self) -> str: ...

    def schema(self, schema_id: int) -> str:
        """Return a schema; raise UnknownSchema, with the reason, if there is none."""


@attrs.frozen(kw_only=True)
class Outcome:
    """The registry's answers that were used to classify a batch."""

    url: str
    pipeline_id: str
    batch_id: int
    schemas: Mapping[int, str]
    problems: Mapping[int, str]
    """The ids without a schema, each with the reason as text."""

    def dump(self) -> str:
        return json.dumps(attrs.asdict(self), indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Outcome":
        try:
            plain = json.loads(text)
            for name in ("schemas", "problems"):
                plain[name] = {int(number): words for number, words in plain[name].items()}
            return cls(**plain)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise Refusal(
                f"{FILE} beside the checkpoint is damaged: restore it, or remove it to ask the "
                "registry again"
            ) from None


class Schemas:
    """The known schemas, stored in a file."""

    def __init__(self, files: Files, registry: Registry, pipeline_id: str) -> None:
        self._files = files
        self._registry = registry
        self._pipeline_id = pipeline_id
        text = files.read(FILE)
        self._last = None if text is None else Outcome.parse(text)
        is_same = self._last is not None and self._last.url == registry.url
        self._schemas = dict(self._last.schemas) if self._last is not None and is_same else {}
        self._shapes: tuple[Shape, Mapping[int, str], Shape] | None = None
        """The shape without schemas, the schemas, and the shape with them."""

    def shape(self, shape: Shape) -> Shape:
        """Return a shape with the known schemas; the same object until they change."""
        if self._shapes is None or self._shapes[:2] != (shape, self._schemas):
            extended = with_schemas(shape, self._schemas, {})
            self._shapes = (shape, dict(self._schemas), extended)
        return self._shapes[2]

    def classify(
        self, raw: DataFrame, shape: Shape, batch_id: int, *, may_be_repeated: bool
    ) -> tuple[DataFrame, Shape]:
        """Return the batch, classified and persisted, and its shape with schemas.

        Raises Failure if the registry does not answer.
        """
        last = self._last
        if may_be_repeated and last is not None and last.pipeline_id == self._pipeline_id:
            if last.batch_id == batch_id:
                chosen = with_schemas(shape, last.schemas, last.problems)
                return frames.classify(raw, chosen).persist(), chosen
            self._schemas = {**last.schemas, **self._schemas}  # The URL may have changed.
        first = self.shape(shape)
        batch = frames.classify(raw, first).persist()
        try:
            ids = unknown_ids(batch, first, self._schemas)
            if not ids:
                return batch, first
            chosen = with_schemas(shape, self._schemas, self._ask(ids, batch_id))
            again = frames.classify_misfits(batch, chosen).persist()
            again.count()  # This reads `batch`, which is then no longer needed.
        except BaseException:
            batch.unpersist()
            raise
        batch.unpersist()
        return again, chosen

    def _ask(self, ids: list[int], batch_id: int) -> dict[int, str]:
        """Request schemas and store the answers; return why some ids have no schema."""
        problems: dict[int, str] = {}
        for schema_id in ids:
            try:
                self._schemas[schema_id] = self._registry.schema(schema_id)
            except UnknownSchema as error:
                problems[schema_id] = str(error)
        self._last = Outcome(
            url=self._registry.url,
            pipeline_id=self._pipeline_id,
            batch_id=batch_id,
            schemas=dict(self._schemas),
            problems=problems,
        )
        self._files.write(FILE, self._last.dump())
        return problems


def schemas_of(pipeline: Pipeline, files: Files, pipeline_id: str) -> Schemas | None:
    """Return the schemas of a pipeline; None if it does not need a registry."""
    if Format.AVRO_REGISTRY not in (pipeline.key.format, pipeline.value.format):
        return None
    return Schemas(files, Client.of(pipeline.registry), pipeline_id)


def with_schemas(shape: Shape, schemas: Mapping[int, str], problems: Mapping[int, str]) -> Shape:
    """Return a shape whose registry-encoded values and keys have schemas."""
    parts: dict[str, AvroFields] = {}
    for name, part in (("avro", shape.avro), ("key_avro", shape.key_avro)):
        if part is not None and part.writers is not None:
            parts[name] = attrs.evolve(part, writers=dict(schemas), problems=dict(problems))
    return attrs.evolve(
        shape,
        avro=parts.get("avro", shape.avro),
        key_avro=parts.get("key_avro", shape.key_avro),
    )


def unknown_ids(batch: DataFrame, shape: Shape, schemas: Mapping[int, str]) -> list[int]:
    """Return the unknown schema ids of misfits: the most common ones, up to a limit."""
    parts = (("value", shape.avro), ("key", shape.key_avro))
    ids = [
        avro.id_of(F.col(f"{OWN}{name}"))
        for name, part in parts
        if part is not None and part.writers is not None
    ]
    if not ids:
        return []
    commonest = (
        batch.where(F.col(CLASS) == MISFIT)
        .select(F.explode(F.array_compact(F.array(*ids))).alias("id"))
        .where(~F.col("id").isin(list(schemas)))
        .groupBy("id")
        .count()
        .orderBy(F.desc("count"), "id")
        .limit(MAX_LOOKUPS)
    )
    return [row["id"] for row in commonest.collect()]
