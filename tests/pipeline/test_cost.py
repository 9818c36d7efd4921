"""The fixed cost of a small batch: calls from Python to Spark's JVM, each with its own answer.

The calls are counted, not timed. Those that only let go of an object depend on the garbage
collector and are left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from py4j.clientserver import JavaClient
from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.config.values import Action, Column, Format
from kwire_pipeline.engine.batch import count
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.engine.session import set_parallelism
from kwire_pipeline.engine.shape_and_tables import RAW_DDL
from kwire_pipeline.engine.storage import Folder, jvm_of, texts_of
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape

LETTING_GO = "m\n"
"""The beginning of py4j's command that an object of the JVM is no longer needed."""


@attrs.define
class Calls:
    """The calls to the JVM within a block."""

    count: int = 0


@pytest.fixture
def shape() -> Shape:
    return Shape(
        format=Format.JSON,
        schema=parse_ddl("id BIGINT NOT NULL, name STRING, at TIMESTAMP", "value.schema"),
        columns={"source": Column.parse("headers.source")},
        expectations={"low": ("id < 100", Action.DEAD_LETTER)},
    )


@contextmanager
def counted_calls() -> Iterator[Calls]:
    calls = Calls()
    send = JavaClient.send_command

    def counting(client: JavaClient, command: str, *more: object) -> str:
        calls.count += not command.startswith(LETTING_GO)
        return str(send(client, command, *more))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JavaClient, "send_command", counting)
        yield calls


def process(raw: DataFrame, shape: Shape) -> None:
    """Take each step of a batch up to its writes."""
    batch = frames.classify(raw, shape)
    count(batch, shape)
    frames.rows(batch, shape)
    frames.misfits(batch, shape)


def test_second_batch_uses_the_columns_of_the_first(spark: SparkSession, shape: Shape) -> None:
    raw = spark.createDataFrame([], RAW_DDL)
    with counted_calls() as first:
        process(raw, shape)
    with counted_calls() as second:
        process(raw, shape)
    assert second.count < first.count / 8, (first, second)


def test_file_is_read_again_without_a_search_for_classes(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = Folder(spark, str(tmp_path))
    folder.write("writer.json", "text")
    with counted_calls() as own:
        assert folder.read("writer.json") == "text"
    with counted_calls() as below:
        assert folder.at("offsets").read("0") is None
    with counted_calls() as other:
        assert Folder(spark, str(tmp_path)).read("writer.json") == "text"
    assert own.count < other.count * 2 / 3, (own, other)
    assert below.count < other.count * 2 / 3, (below, other)


def test_a_batch_asks_for_the_number_of_cores_with_few_calls(spark: SparkSession) -> None:
    with counted_calls() as calls:
        set_parallelism(spark)
    assert calls.count < 20


def test_map_of_the_jvm_takes_as_many_calls_as_an_empty_one(spark: SparkSession) -> None:
    texts = jvm_of(spark).java.util.HashMap()
    with counted_calls() as empty:
        assert texts_of(spark, texts) == {}
    for number in range(100):
        texts.put(f"kwire.{number}", 'a "text"')
    with counted_calls() as full:
        assert texts_of(spark, texts) == {f"kwire.{n}": 'a "text"' for n in range(100)}
    assert full.count == empty.count < 10


def test_columns_are_built_without_calls_about_their_lines(
    spark: SparkSession, shape: Shape
) -> None:
    """pyspark would tell the JVM for each column which line of Python made it."""
    raw = spark.createDataFrame([], RAW_DDL)
    with counted_calls() as calls:
        process(raw, shape)
    assert calls.count < 2000
