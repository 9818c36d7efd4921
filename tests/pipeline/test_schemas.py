"""The writers' schemas of a run come from the registry, once, and a batch keeps its answers."""

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kwire.testing import SchemaRegistry
from kwire_pipeline.config.model import Registry
from kwire_pipeline.config.values import Format
from kwire_pipeline.engine.avro import avro_fields
from kwire_pipeline.engine.schemas import FILE, MAX_LOOKUPS, Outcome, Schemas
from kwire_pipeline.engine.session import set_session
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.records.frames import Shape, misfits, rows
from kwire_pipeline.registry import Client
from tests.support.avro_bytes import OLDER, ORDER, older_order, order, with_id
from tests.support.pipeline.frames import topic


@pytest.fixture(scope="module")
def shape(spark: SparkSession) -> Shape:
    set_session(spark)
    avro = avro_fields(ORDER, "value.schema", is_plain=False)
    assert isinstance(avro.kind, StructType)
    return Shape(format=Format.AVRO_REGISTRY, schema=avro.kind, avro=avro)


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()
    registry.register("orders-value", OLDER, schema_id=1)
    registry.register("orders-value", ORDER, schema_id=2)
    with registry as running:
        yield running


@attrs.frozen
class Run:
    """One run of a pipeline, as far as schemas are concerned."""

    spark: SparkSession
    shape: Shape
    schemas: Schemas

    def classify(
        self, values: list[bytes], *, batch_id: int = 0, may_be_repeated: bool = False
    ) -> tuple[list[int], list[str]]:
        """Return the ids of the rows, and the reasons of the others."""
        raw: DataFrame = topic(self.spark, list(values))
        batch, chosen = self.schemas.classify(
            raw, self.shape, batch_id, may_be_repeated=may_be_repeated
        )
        table = [row.id for row in rows(batch, chosen).orderBy("kafka_offset").collect()]
        letters = [row.reason for row in misfits(batch, chosen).orderBy("offset").collect()]
        batch.unpersist()
        return table, letters


def begin(spark: SparkSession, shape: Shape, server: SchemaRegistry, folder: Path) -> Run:
    client = Client.of(Registry(url=server.url))
    files = Folder(spark, str(folder))
    return Run(spark, shape, Schemas(files, client, "pipeline-1"))


VALUES = [with_id(1, older_order(1)), with_id(2, order(2, "b")), b"{}", with_id(9, order(3))]
LETTERS = ["no zero byte and schema id at the beginning", "the registry has no schema 9"]


def test_schemas_are_asked_for_once(
    spark: SparkSession, shape: Shape, server: SchemaRegistry, tmp_path: Path
) -> None:
    run = begin(spark, shape, server, tmp_path)
    assert run.classify(VALUES) == ([1, 2], LETTERS)
    assert sorted(server.requests) == [f"/schemas/ids/{number}" for number in (1, 2, 9)]
    server.requests.clear()
    assert run.classify(VALUES[:2], batch_id=1) == ([1, 2], [])
    later = begin(spark, shape, server, tmp_path)
    assert later.classify(VALUES[:2], batch_id=2) == ([1, 2], [])
    assert server.requests == []


def test_half_done_batch_keeps_the_answers_that_it_began_with(
    spark: SparkSession, shape: Shape, server: SchemaRegistry, tmp_path: Path
) -> None:
    """Else a record whose schema is registered in between would be in neither table."""
    begin(spark, shape, server, tmp_path).classify(VALUES)
    server.register("orders-value", ORDER, schema_id=9)
    run = begin(spark, shape, server, tmp_path)
    assert run.classify(VALUES, may_be_repeated=True) == ([1, 2], LETTERS)
    assert run.classify(VALUES, batch_id=1) == ([1, 2, 3], LETTERS[:1])


def test_a_damaged_file_is_refused_in_a_sentence(
    spark: SparkSession, shape: Shape, server: SchemaRegistry, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(Refusal, match=r"^schemas.json beside the checkpoint is damaged: restore"):
        begin(spark, shape, server, tmp_path)


def test_a_registry_that_is_down_leaves_the_batch_unwritten(
    spark: SparkSession, shape: Shape, tmp_path: Path
) -> None:
    stopped = SchemaRegistry()
    with stopped:
        pass
    run = begin(spark, shape, stopped, tmp_path)
    with pytest.raises(Failure, match=f"the registry {stopped.url} cannot be reached"):
        run.classify(VALUES)
    assert not (tmp_path / FILE).exists()
    assert run.classify([b"no id"]) == ([], LETTERS[:1])


def test_answers_that_could_not_be_stored_are_stored_by_the_retry(
    spark: SparkSession, shape: Shape, server: SchemaRegistry, tmp_path: Path
) -> None:
    """Else a run that finishes the batch would not know them, and the registry may have others."""
    run = begin(spark, shape, server, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "write", store_is_away)
        with pytest.raises(Failure, match="the store is away"):
            run.classify(VALUES[:2])
    assert run.classify(VALUES[:2], may_be_repeated=True) == ([1, 2], [])
    assert Outcome.parse((tmp_path / FILE).read_text()).schemas.keys() == {1, 2}


def store_is_away(folder: Folder, name: str, text: str) -> None:
    raise Failure("the store is away")


def test_damaged_records_of_many_ids_are_not_all_looked_up(
    spark: SparkSession, shape: Shape, server: SchemaRegistry, tmp_path: Path
) -> None:
    values = [with_id(1, older_order(1))] * 2
    values += [with_id(1000 + number, b"x") for number in range(MAX_LOOKUPS)]
    table, letters = begin(spark, shape, server, tmp_path).classify(values)
    assert table == [1, 1]
    assert len(server.requests) == MAX_LOOKUPS
    assert letters[-2:] == [
        f"the registry has no schema {998 + MAX_LOOKUPS}",
        f"schema {999 + MAX_LOOKUPS} was not asked for: too many unknown ids in a batch",
    ]
