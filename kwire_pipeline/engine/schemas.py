"""The writers' schemas of a run: batches contain schema ids, the registry has the schemas.

A batch is classified with the known schemas. If some of its misfits have unknown ids, their schemas
are requested from the registry, and the misfits are classified again; the topic is not read twice.

The registry's answers may change between a run that ends during a batch and the run that finishes
it, but a record must not move from one table to the other. So before a batch with new ids is
written, the answers are stored in a file beside the checkpoint. The batch is finished with these
answers, and later runs begin with the schemas in the file. A schema never changes under its id.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import WITH_REGISTRY
from kwire_pipeline.engine.lease import Files
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import avro, frames
from kwire_pipeline.records.avro import AvroFields
from kwire_pipeline.records.avro_units import reading_of
from kwire_pipeline.records.fields import Frame
from kwire_pipeline.records.frames import CLASS, MISFIT, OWN, Shape
from kwire_pipeline.registry import AVRO, JSON, Client, UnknownSchema

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
    """The schemas of Avro."""
    problems: Mapping[int, str]
    """The ids without a schema, each with the reason as text."""
    json_ids: tuple[int, ...] = ()
    """The ids of JSON Schemas."""

    def dump(self) -> str:
        return json.dumps(attrs.asdict(self), indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Outcome":
        try:
            plain = json.loads(text)
            for name in ("schemas", "problems"):
                plain[name] = {int(number): words for number, words in plain[name].items()}
            plain["json_ids"] = tuple(map(int, plain.get("json_ids", ())))
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
        last = self._last if is_same else None
        self._schemas = {} if last is None else dict(last.schemas)
        self._json_ids = () if last is None else last.json_ids
        self._shapes: tuple[Shape, Mapping[int, str], tuple[int, ...], Shape] | None = None
        """The shape without schemas, the schemas, the other ids, and the shape with them."""

    def shape(self, shape: Shape) -> Shape:
        """Return a shape with the known schemas; the same object until they change."""
        if self._shapes is None or self._shapes[:3] != (shape, self._schemas, self._json_ids):
            extended = with_schemas(shape, self._schemas, {}, self._json_ids)
            self._shapes = (shape, dict(self._schemas), self._json_ids, extended)
        return self._shapes[3]

    def classify(
        self, raw: DataFrame, shape: Shape, batch_id: int, *, may_be_repeated: bool
    ) -> tuple[DataFrame, Shape]:
        """Return the batch, classified and persisted, and its shape with schemas.

        Raises Failure if the registry does not answer.
        """
        last = self._last
        if may_be_repeated and last is not None and last.pipeline_id == self._pipeline_id:
            if last.batch_id == batch_id:
                chosen = with_schemas(shape, last.schemas, last.problems, last.json_ids)
                return frames.classify(raw, chosen).persist(), chosen
            self._schemas = {**last.schemas, **self._schemas}  # The URL may have changed.
            self._json_ids = tuple(dict.fromkeys((*last.json_ids, *self._json_ids)))
        first = self.shape(shape)
        batch = frames.classify(raw, first).persist()
        try:
            ids = unknown_ids(batch, first, (*self._schemas, *self._json_ids))
            if not ids:
                return batch, first
            problems = self._ask(ids, batch_id)
            chosen = with_schemas(shape, self._schemas, problems, self._json_ids)
            again = frames.classify_misfits(batch, chosen).persist()
            again.count()  # This reads `batch`, which is then no longer needed.
        except BaseException:
            batch.unpersist()
            raise
        batch.unpersist()
        return again, chosen

    def _ask(self, ids: list[int], batch_id: int) -> dict[int, str]:
        """Request schemas and store the answers; return why some ids have no schema.

        An answer counts only once it is stored, also for a run that retries the batch.
        """
        schemas, json_ids = dict(self._schemas), self._json_ids
        problems: dict[int, str] = {}
        for schema_id in ids:
            try:
                schemas[schema_id] = self._registry.schema(schema_id)
            except UnknownSchema as error:
                if error.kind == JSON:
                    json_ids += (schema_id,)
                else:
                    problems[schema_id] = str(error)
        outcome = Outcome(
            url=self._registry.url,
            pipeline_id=self._pipeline_id,
            batch_id=batch_id,
            schemas=schemas,
            problems=problems,
            json_ids=json_ids,
        )
        self._files.write(FILE, outcome.dump())
        self._last, self._schemas, self._json_ids = outcome, dict(schemas), json_ids
        return problems


def schemas_of(pipeline: Pipeline, files: Files, pipeline_id: str) -> Schemas | None:
    """Return the schemas of a pipeline; None if it does not need a registry."""
    if not {pipeline.key.format, pipeline.value.format} & WITH_REGISTRY.keys():
        return None
    return Schemas(files, Client.of(pipeline.registry), pipeline_id)


@contextmanager
def classifying(
    raw: DataFrame,
    shape: Shape,
    schemas: Schemas | None,
    batch_id: int = NO_BATCH,
    *,
    may_be_repeated: bool = False,
) -> Iterator[tuple[DataFrame, Shape]]:
    """Classify records and persist them during a block; yield also the shape, with schemas."""
    if schemas is None:
        batch = frames.classify(raw, shape).persist()
    else:
        batch, shape = schemas.classify(raw, shape, batch_id, may_be_repeated=may_be_repeated)
    try:
        yield batch, shape
    finally:
        batch.unpersist()


def with_schemas(
    shape: Shape,
    schemas: Mapping[int, str],
    problems: Mapping[int, str],
    json_ids: Sequence[int] = (),
) -> Shape:
    """Return a shape whose registry-encoded values and keys have schemas."""
    is_json = {number: f"schema {number} is {JSON}, not Avro" for number in json_ids}
    is_avro = {number: f"schema {number} is {AVRO}, not JSON Schema" for number in schemas}
    frame = Frame(tuple(json_ids), {**problems, **is_avro})

    def avro_of(part: AvroFields | None) -> AvroFields | None:
        if part is None or part.writers is None:
            return part
        readings = {n: reading_of(writer, part.reader) for n, writer in schemas.items()}
        misread = {
            n: f"schema {n}: {'; '.join(reading.problems)}"
            for n, reading in readings.items()
            if reading.problems
        }
        return attrs.evolve(
            part,
            writers={n: writer for n, writer in schemas.items() if n not in misread},
            readers={n: reading.reader for n, reading in readings.items()},
            problems={**problems, **is_json, **misread},
        )

    return attrs.evolve(
        shape,
        avro=avro_of(shape.avro),
        key_avro=avro_of(shape.key_avro),
        frame=None if shape.frame is None else frame,
        key_frame=None if shape.key_frame is None else frame,
    )


def unknown_ids(batch: DataFrame, shape: Shape, known_ids: Sequence[int]) -> list[int]:
    """Return the unknown schema ids of misfits: the most common ones, up to a limit."""
    parts = (("value", shape.avro, shape.frame), ("key", shape.key_avro, shape.key_frame))
    ids = [
        avro.id_of(F.col(f"{OWN}{name}"))
        for name, part, frame in parts
        if frame is not None or (part is not None and part.writers is not None)
    ]
    if not ids:
        return []
    commonest = (
        batch.where(F.col(CLASS) == MISFIT)
        .select(F.explode(F.array_compact(F.array(*ids))).alias("id"))
        .where(~F.col("id").isin(list(known_ids)))
        .groupBy("id")
        .count()
        .orderBy(F.desc("count"), "id")
        .limit(MAX_LOOKUPS)
    )
    return [row["id"] for row in commonest.collect()]
