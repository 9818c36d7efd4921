"""Marks, their order, and statements of SQL, for tables of every format."""

from typing import cast
from unittest.mock import MagicMock

import attrs
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from kwire_pipeline.config.values import Partition
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.folder_columns import FolderColumn, without_derived
from kwire_pipeline.tables.iceberg import IcebergTable, former_ids, is_whole
from kwire_pipeline.tables.merge import merge_statement
from kwire_pipeline.tables.table import (
    LETTERS,
    Letters,
    Mark,
    discarded_ids,
    mark_of,
    other_writers,
    own_marks,
    summary_of,
    valid_marks,
)
from kwire_pipeline.tables.versioned import Versioned

RANGES = Ranges.between({}, {"t": {0: 5}})


def test_mark_is_kept_as_texts() -> None:
    earlier = Mark("11", 3, RANGES)
    mark = attrs.evolve(earlier, topic_ids={"t": "id"}, letter_count=0, pipeline="orders")
    for each in (earlier, mark):
        assert mark_of(summary_of(each)) == each
    for summary in ({}, {"operation": "append"}, {**summary_of(mark), "kwire.offsets": "x"}):
        assert mark_of(summary) is None


def test_marks_of_a_pipeline_are_not_those_of_another_one() -> None:
    """An earlier id of this pipeline counts, because no owner has it now."""
    marks = [Mark(pipeline_id, 0, RANGES) for pipeline_id in ("11", "former", "22")]
    properties = {"kwire.pipeline.orders": "11", "kwire.pipeline.returns": "22"}
    own = own_marks([*marks, None], properties, "orders")
    assert [mark.pipeline_id for mark in own] == ["11", "former"]


def test_marks_of_another_pipeline_are_not_own_after_that_one_was_adopted() -> None:
    """An adoption gives a pipeline another id, so no owner has the id of its earlier marks."""
    named = [Mark(name, 0, RANGES, pipeline=name) for name in ("orders", "returns")]
    properties = {"kwire.pipeline.orders": "11", "kwire.pipeline.returns": "adopted"}
    assert own_marks(named, properties, "orders") == named[:1]
    assert own_marks(named, properties, "returns") == named[1:]


class Shared(Versioned):
    """A table of many pipelines, each with one batch of its own topic."""

    name = "shop.dead"

    def __init__(self, pipeline_count: int) -> None:
        self.numbers = range(pipeline_count)
        self.look_count = 0

    def _is_there(self) -> bool:
        return True

    def read(self) -> DataFrame:
        raise AssertionError("marks are enough")

    def columns(self) -> StructType:
        raise AssertionError("marks are enough")

    def _properties(self) -> dict[str, str]:
        return {f"kwire.pipeline.p{number}": f"id-{number}" for number in self.numbers}

    def _set_property(self, key: str, text: str) -> None:
        raise AssertionError("nothing is written")

    def _marks(self) -> list[Mark]:
        self.look_count += 1
        ranges = [Ranges.between({}, {f"t{number}": {0: 5}}) for number in self.numbers]
        return [
            Mark(f"id-{number}", 0, each) for number, each in zip(self.numbers, ranges, strict=True)
        ]


def test_history_of_a_shared_table_is_read_once_for_all_of_its_pipelines() -> None:
    """Each table of a run of many asks this when it is opened, of their table of dead letters."""
    table = cast(Letters, Shared(40))
    assert other_writers([table], "p0", ["t0"]) == {}
    assert cast(Shared, table).look_count == 1
    assert other_writers([table], "p0", ["t0", "t7", "t8"]) == {"t7": "p7", "t8": "p8"}
    assert other_writers([table], "new", ["t7"]) == {}
    assert other_writers([cast(Letters, Shared(1))], "p0", ["t0"]) == {}


def test_marks_from_before_a_new_start_do_not_count() -> None:
    marks = {pipeline_id: Mark(pipeline_id, 0, RANGES) for pipeline_id in ("1", "2", "3")}
    text = discarded_ids(None, set(marks), [marks["1"], marks["2"]])
    properties = {"kwire.discarded.orders": text, "kwire.discarded.returns": ""}
    assert valid_marks(marks.values(), properties) == [marks["3"]]
    assert own_marks(marks.values(), properties, "orders") == [marks["3"]]
    assert discarded_ids(text, {"2", "3"}, [marks["3"]]) == "2,3"


def test_merge_deletes_updates_and_inserts_by_all_keys() -> None:
    assert merge_statement("shop.orders", "changes", ["id", "region", "n"], ["id", "region"]) == (
        "MERGE INTO shop.orders own USING `changes` change "
        "ON own.`id` <=> change.`id` AND own.`region` <=> change.`region` "
        "WHEN MATCHED AND change.`__deletes` THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET own.`id` = change.`id`, own.`region` = change.`region`, "
        "own.`n` = change.`n` "
        "WHEN NOT MATCHED AND NOT change.`__deletes` THEN INSERT (`id`, `region`, `n`) "
        "VALUES (change.`id`, change.`region`, change.`n`)"
    )


@pytest.mark.parametrize("name", ["text", "Text"])
def test_merge_keeps_the_values_that_a_change_leaves_out(name: str) -> None:
    """The table may spell the column in another case than the file."""
    statement = merge_statement("shop.orders", "changes", ["id", "text"], ["id"], {name})
    assert (
        "UPDATE SET own.`id` = change.`id`, "
        "own.`text` = CASE WHEN change.`__keeps_text` THEN own.`text` ELSE change.`text` END "
    ) in statement
    assert statement.endswith("INSERT (`id`, `text`) VALUES (change.`id`, change.`text`)")


def test_merge_by_sequence_leaves_rows_that_are_newer() -> None:
    statement = merge_statement("shop.orders", "changes", ["id", "n"], ["id"], order=["n"])
    older = "((own.`n` IS NULL AND change.`n` IS NOT NULL OR coalesce(own.`n` < change.`n`, false))"
    assert f"WHEN MATCHED AND change.`__deletes` AND ({older[1:]}" in statement
    assert f"WHEN MATCHED AND ({older[1:]}" in statement


@pytest.mark.parametrize("location", ["/lake/a", "file:/lake/a", "s3://lake/a", "hdfs:/a"])
def test_relative_location_is_not_whole(location: str) -> None:
    """Iceberg would take all files of a table with a relative location for orphans."""
    assert is_whole(location)
    assert not is_whole("lake/a")


def test_folders_by_time_have_a_column_of_their_own() -> None:
    by_month = FolderColumn("at_month", "STRING", "DATE_FORMAT(`at`, 'yyyy-MM')")
    assert FolderColumn.of(Partition.parse("months(at)")) == by_month
    by_day = FolderColumn("at_day", "DATE", "CAST(`at` AS DATE)")
    assert FolderColumn.of(Partition.parse("days(at)")) == by_day
    assert FolderColumn.of(Partition.parse("country")) == FolderColumn("country")
    with pytest.raises(Refusal, match="Delta and Parquet do not support"):
        FolderColumn.of(Partition.parse("bucket(4, country)"))


def test_column_of_a_folder_is_known_in_any_case() -> None:
    """Delta rejects rows with a null in a column that it derives itself."""
    fields = [StructField(name, StringType()) for name in ("at", "At_Month", "country")]
    partitions = [FolderColumn.of(Partition.parse(text)) for text in ("months(at)", "country")]
    assert without_derived(StructType(fields), partitions).names == ["at", "country"]


def test_name_of_digits_is_quoted_wherever_spark_parses_it() -> None:
    """A topic 2026 becomes the table raw.2026, and `.2026` would be a number."""
    spark = MagicMock()
    table = IcebergTable(spark, "kwire.raw.2026", LETTERS)
    table.exists()
    table._table()
    loads = spark.sparkContext._jvm.mock_calls
    assert spark.catalog.tableExists.call_args.args == ("`kwire`.`raw`.`2026`",)
    assert [call.args[1] for call in loads if "loadIcebergTable" in call[0] and call.args] == [
        "`kwire`.`raw`.`2026`"
    ]
    assert table._procedure("expire_snapshots", "retain_last => 1") == (
        "CALL `kwire`.system.expire_snapshots(table => '`raw`.`2026`', retain_last => 1)"
    )


def test_table_that_was_found_is_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run asks a dozen times, and a catalog of another machine answers each time."""
    answers = [True, False]
    monkeypatch.setattr(IcebergTable, "_is_there", lambda _: answers.pop())
    table = IcebergTable(cast("SparkSession", None), "kwire.shop.orders", LETTERS)
    assert [table.exists() for _ in range(4)] == [False, True, True, True]


def test_snapshots_of_former_ids_may_expire() -> None:
    """An adoption gives a pipeline another id; until its first batch the former one counts."""
    assert former_ids({"1", "2", "3"}, {"2", "3"}) == {"1"}
    assert former_ids({"1", "2"}, {"2", "3"}) == set()
    assert former_ids({"1"}, set()) == {"1"}
