"""A Parquet table shows what is committed, once, to readers that know only files."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kwire_pipeline.config.values import Partition
from kwire_pipeline.engine import query, source
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.query import Control
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.parquet import ParquetTable
from kwire_pipeline.tables.table import LETTERS, Mark, Origin
from tests.support.pipeline.runs import CheckpointFolder, run_without_spark

DDL = "topic STRING, partition INT, offset BIGINT"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> ParquetTable:
    origin = Origin("topic", "partition", "offset")
    chosen = ParquetTable(spark, str(tmp_path / "orders"), origin, partition_by=())
    schema = StructType.fromDDL(DDL)
    assert isinstance(schema, StructType)
    chosen.create(schema)
    chosen.add_owner("orders", "id-of-orders")
    return chosen


def test_files_of_a_commit_are_moved_before_anything_asks_for_its_batch(
    table: ParquetTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends before the first move; the next run may find that the batch has no rows."""

    class Crash(Exception):
        pass

    def move_to(folder: Folder, target: Folder) -> None:
        raise Crash

    mark = Mark("id-of-orders", 0, Ranges.between({}, {"t": {0: 1}}))
    frame = spark.createDataFrame([("t", 0, 0)], DDL)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "move_to", move_to)
        with pytest.raises(Crash):
            table.append(frame, mark)
    table.finish("returns")
    assert table.read().count() == 0
    assert table.has_letters("orders", ["t"])
    assert not table.has_letters("returns", ["t"])
    table.finish("orders")
    table.finish("orders")
    assert [tuple(row) for row in table.read().collect()] == [("t", 0, 0)]
    assert table.positions() == {"t": {0: 1}}


def test_run_that_retries_a_batch_first_moves_the_rest_of_its_files(
    table: ParquetTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of the next batch replaces the file that names those of this one."""

    class Away(Exception):
        pass

    def move_to(folder: Folder, target: Folder) -> None:
        raise Away

    def options(*_: object) -> None:
        raise Away

    marks = [
        Mark("id-of-orders", n, Ranges.between({"t": {0: n}}, {"t": {0: n + 1}})) for n in (0, 1)
    ]
    frames = [spark.createDataFrame([("t", 0, n)], DDL) for n in (0, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "move_to", move_to)
        with pytest.raises(Away):
            table.append(frames[0], marks[0])
    destinations = Destinations(table=table, dead_letters=None)
    run = run_without_spark(CheckpointFolder(), Control(), destinations=destinations)
    monkeypatch.setattr(query, "half_done", lambda _: 0)
    monkeypatch.setattr(source, "options", options)
    with pytest.raises(Away):
        run._start()
    assert table.has_batch(marks[0], by_rows=True)
    assert table.read().count() == 1
    table.append(frames[1], marks[1])
    assert table.read().count() == 2


def test_move_that_ended_between_its_copy_and_its_deletion_is_completed(
    table: ParquetTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store renames a file by copying it."""
    move = Folder.move_to

    class Crash(Exception):
        pass

    def copy_to(folder: Folder, target: Folder) -> None:
        data = Path(folder.url).read_bytes()
        move(folder, target)
        Path(folder.url).write_bytes(data)
        raise Crash

    mark = Mark("id-of-orders", 0, Ranges.between({}, {"t": {0: 1}}))
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "move_to", copy_to)
        with pytest.raises(Crash):
            table.append(spark.createDataFrame([("t", 0, 0)], DDL), mark)
    table.finish("orders")
    assert table.read().count() == 1
    assert not Path(f"{table.name}.staging", "id-of-or-0").exists()


def test_partitions_of_a_table_do_not_change(table: ParquetTable, spark: SparkSession) -> None:
    """Readers would leave out the rows that are outside of the newer folders."""
    table.check_partitions()
    partition_by = (Partition.parse("topic"),)
    other = ParquetTable(spark, table.name, LETTERS, partition_by=partition_by)
    with pytest.raises(Refusal, match=r"has the partitions \[\], and this file has \[topic\]"):
        other.check_partitions()


def test_creation_of_a_table_that_was_interrupted_is_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    meta = tmp_path / "orders" / "_kwire"
    meta.mkdir(parents=True)
    (meta / ".table.json.1.tmp").write_text('{"tab')
    origin = Origin("topic", "partition", "offset")
    table = ParquetTable(spark, str(tmp_path / "orders"), origin, partition_by=())
    schema = StructType.fromDDL(DDL)
    assert isinstance(schema, StructType)
    table.create(schema)
    assert table.exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.parquet").write_bytes(b"")
    other = ParquetTable(spark, str(tmp_path / "other"), origin, partition_by=())
    with pytest.raises(Refusal, match="has files and is not a table of a pipeline"):
        other.create(schema)
