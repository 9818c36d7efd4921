"""The command line of the pipeline, and the events it is shown with."""

from pathlib import Path

import pytest

from kwire_pipeline import settings, source
from kwire_pipeline.events import events
from kwire_pipeline.session import configuration
from kwire_pipeline.settings import Partition, Settings

NEEDED = ["--topic", "t", "--schema", "id BIGINT", "--table", "/x", "--dead-letters", "/y"]
NEEDED += ["--checkpoint", "/z"]


def read(*more: str) -> Settings:
    return settings.read([*NEEDED, *more])


def test_aborted_records_are_skipped_and_missing_ones_fail_by_default() -> None:
    options = source.options(read())
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["failOnDataLoss"] == "true"
    assert options["subscribe"] == "t"


def test_options_of_spark_override_the_defaults() -> None:
    options = source.options(
        read("--source-option", "failOnDataLoss=false", "--source-option", "kafka.group.id=mine")
    )
    assert options["failOnDataLoss"] == "false"
    assert options["kafka.group.id"] == "mine"


def test_a_pattern_replaces_the_topic() -> None:
    assert "subscribe" not in source.options(read("--source-option", "subscribePattern=t.*"))


def test_schema_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "orders.ddl"
    path.write_text("id BIGINT,\n  name STRING\n")
    assert settings.read([*NEEDED, "--schema", f"@{path}"]).schema == "id BIGINT, name STRING"


def test_partition_columns() -> None:
    partitions = read("--partition-by", "country", "--partition-by", "day=to_date(at)").partition_by
    assert partitions == (
        Partition(name="country"),
        Partition(name="day", expression="to_date(at)"),
    )


def test_iceberg_gets_a_catalog() -> None:
    chosen = configuration(read("--format", "iceberg", "--warehouse", "/w"))
    assert chosen["spark.sql.catalog.kwire.warehouse"] == "/w"
    assert "iceberg-spark-runtime" in chosen["spark.jars.packages"]


@pytest.mark.parametrize(
    "more", [["--format", "iceberg"], ["--source-option", "x"], ["--schema", "@/no/such/file"]]
)
def test_bad_usage_says_what_is_wrong(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(*more)
    assert more[-1].removeprefix("@") in capsys.readouterr().err


def test_same_seed_same_events() -> None:
    first = list(events(500, seed=3, damaged=0.1, start_ms=0))
    assert first == list(events(500, seed=3, damaged=0.1, start_ms=0))
    assert first != list(events(500, seed=4, damaged=0.1, start_ms=0))
    assert len({value for _, value in first}) == 500
