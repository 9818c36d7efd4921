"""A Parquet table shows what is committed, once, to readers that know only files."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kwire_pipeline.config.values import Partition
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.parquet import ParquetTable
from kwire_pipeline.tables.table import LETTERS, Mark, Origin

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


def test_partitions_of_a_table_do_not_change(table: ParquetTable, spark: SparkSession) -> None:
    """Readers would leave out the rows that are outside of the newer folders."""
    table.check_partitions()
    partition_by = (Partition.parse("topic"),)
    other = ParquetTable(spark, table.name, LETTERS, partition_by=partition_by)
    with pytest.raises(Refusal, match=r"has the partitions \[\], and this file has \[topic\]"):
        other.check_partitions()
