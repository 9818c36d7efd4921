"""The configuration of a pipeline's Spark session."""

import re
import subprocess
from pathlib import Path

import attrs
import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from kwire_pipeline.config.declare import Secret
from kwire_pipeline.config.model import (
    Catalog,
    DeadLetters,
    Pipeline,
    Security,
    Source,
    Spark,
    Table,
)
from kwire_pipeline.config.values import CatalogType, Mechanism, Protocol, TableFormat
from kwire_pipeline.engine import session, source
from kwire_pipeline.engine.session import set_parallelism
from kwire_pipeline.engine.storage import jvm_of

ORDERS = Pipeline(
    name="orders",
    source=Source(bootstrap="b:1", topics=("orders", "returns")),
    table=Table(name="shop.orders", warehouse="/lake"),
    dead_letters=DeadLetters(table="shop.dead"),
    checkpoint="/lake/checkpoint",
)


def test_users_packages_and_extensions_are_appended() -> None:
    user = Spark(
        packages=("a:b:1",), conf={"spark.sql.extensions": "x.Y", "spark.ui.enabled": "true"}
    )
    chosen = session.configuration(attrs.evolve(ORDERS, spark=user), "4.0.0")
    packages = chosen["spark.jars.packages"].split(",")
    assert packages[0] == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
    assert "iceberg-spark-runtime-4.0_2.13" in packages[1]
    assert packages[2:] == ["a:b:1"]
    assert chosen["spark.sql.extensions"] == f"{session.ICEBERG_EXTENSIONS},x.Y"
    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.sql.catalog.kwire.warehouse"] == "/lake"
    assert "spark.jars" not in chosen


class Launched(Exception):
    """The JVM would be started now."""


def test_no_secret_is_on_the_command_line_of_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, str] = {}

    def launch(conf: SparkConf, process: object) -> None:
        arguments.update(conf.getAll())
        raise Launched

    monkeypatch.setattr("kwire_pipeline.engine.launch.launch_gateway", launch)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    secret = {"spark.hadoop.fs.s3a.secret.key": Secret("opensesame"), "spark.x": "plain"}
    user = Spark(master="local[2]", conf={**secret, "spark.driver.memory": Secret("2g")})
    catalog = Catalog(options={"token": Secret("opensesame")})
    table = attrs.evolve(ORDERS.table, catalog=catalog, warehouse=Secret("s3://opensesame/lake"))
    with pytest.raises(Launched):
        session.open_session(attrs.evolve(ORDERS, table=table, spark=user))
    assert not any("opensesame" in text for text in arguments.values())
    assert arguments["spark.x"] == "plain"
    assert arguments["spark.driver.memory"] == "2g"
    assert arguments["spark.master"] == "local[2]"
    assert "spark-sql-kafka" in arguments["spark.jars.packages"]


def test_spark_hides_all_secrets_by_their_names() -> None:
    secret = {"spark.hadoop.fs.azure.sas.lake": Secret("opensesame"), "spark.x": "plain"}
    catalog = Catalog(options={"header.Authorization": Secret("opensesame"), "io-impl": "a.B"})
    table = attrs.evolve(ORDERS.table, catalog=catalog)
    for own, first in (({}, "(?i)secret|"), ({"spark.redaction.regex": "mine"}, "mine|")):
        user = Spark(conf=secret | own)
        chosen = session.configuration(attrs.evolve(ORDERS, table=table, spark=user), "4.0.0")
        pattern = chosen["spark.redaction.regex"]
        assert pattern.startswith(first)
        hidden = {key for key in chosen if re.search(pattern, key)}
        assert {key for key, text in chosen.items() if isinstance(text, Secret)} == hidden
    assert "spark.redaction.regex" not in session.configuration(ORDERS, "4.0.0")


def test_tables_of_a_relative_warehouse_have_whole_paths(spark: SparkSession) -> None:
    """Executors run in folders of their own, and orphan files are searched by whole paths."""
    key = "spark.sql.catalog.kwire.warehouse"
    for warehouse, expected in (("lake", f"file:{Path.cwd()}/lake"), ("s3://lake/a", None)):
        spark.conf.set(key, warehouse)
        table = attrs.evolve(ORDERS.table, warehouse=warehouse)
        if expected is None:  # A REST catalog's warehouse is a name.
            table = attrs.evolve(table, catalog=Catalog(type=CatalogType.REST))
        session.set_warehouse(spark, attrs.evolve(ORDERS, table=table))
        assert spark.conf.get(key) == (expected or warehouse)
    spark.conf.unset(key)


def test_parquet_needs_no_catalog() -> None:
    table = attrs.evolve(ORDERS.table, format=TableFormat.PARQUET)
    chosen = session.configuration(attrs.evolve(ORDERS, table=table), "4.0.0")
    assert not any("catalog" in key for key in chosen)
    assert "spark.sql.extensions" not in chosen


def test_times_in_files_of_parquet_are_those_that_other_readers_read() -> None:
    """Nanoseconds, Spark's default, end in 2262, and Arrow reads later times as others."""
    key = "spark.sql.parquet.outputTimestampType"
    assert session.configuration(ORDERS, "4.0.0")[key] == "TIMESTAMP_MICROS"
    user = attrs.evolve(ORDERS.spark, conf={key: "INT96"})
    assert session.configuration(attrs.evolve(ORDERS, spark=user), "4.0.0")[key] == "INT96"


def test_source_reads_committed_records_and_fails_when_some_are_gone() -> None:
    options = source.options(ORDERS, {"returns": "1", "orders": "2"}, {"orders": {0: 5}})
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["failOnDataLoss"] == "true"
    assert options["subscribe"] == "orders,returns"
    assert options["startingOffsets"] == '{"orders":{"0":5}}'
    assert options["maxOffsetsPerTrigger"] == "1000000"
    assert options["includeHeaders"] == "true"


def test_pattern_replaces_the_topics() -> None:
    by_pattern = attrs.evolve(
        ORDERS.source, topics=(), pattern="o.*", options={"kafka.group.id": "g"}
    )
    options = source.options(attrs.evolve(ORDERS, source=by_pattern), {"orders": "1"}, {})
    assert options["kafka.group.id"] == "g"
    assert "subscribe" not in options


@pytest.mark.parametrize(
    ("pattern", "name", "is_read"),
    [
        ("orders", "orders", True),
        ("orders", "orders-dead", False),
        ("orders", "all-orders", False),
        ("a|b", "ab", False),
        ("a|b", "b", True),
    ],
)
def test_spark_reads_only_topics_whose_whole_name_matches(
    pattern: str, name: str, is_read: bool
) -> None:
    """Spark reads each topic in whose name it finds the pattern anywhere."""
    by_pattern = attrs.evolve(ORDERS.source, topics=(), pattern=pattern)
    options = source.options(attrs.evolve(ORDERS, source=by_pattern), {"orders": "1"}, {})
    assert (re.search(options["subscribePattern"], name) is not None) is is_read


def test_client_logs_in_with_the_quoted_password() -> None:
    security = Security(
        protocol=Protocol.SASL_SSL,
        mechanism=Mechanism.SCRAM_SHA_512,
        username="me",
        password='a"b\\',
        ca_file="/ca.pem",
    )
    client = source.client(attrs.evolve(ORDERS.source, security=security))
    assert client["security.protocol"] == "SASL_SSL"
    assert client["sasl.jaas.config"].endswith(
        'ScramLoginModule required username="me" password="a\\"b\\\\";'
    )
    assert client["ssl.truststore.location"] == "/ca.pem"
    assert client["bootstrap.servers"] == "b:1"


def test_login_of_amazon_needs_no_options() -> None:
    security = Security(protocol=Protocol.SASL_SSL, mechanism=Mechanism.AWS_MSK_IAM)
    chosen = attrs.evolve(ORDERS.source, security=security)
    client = source.client(chosen)
    assert client["sasl.mechanism"] == "AWS_MSK_IAM"
    assert client["sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert client["sasl.client.callback.handler.class"].endswith("IAMClientCallbackHandler")
    own = {"kafka.sasl.jaas.config": "x required;"}
    assert source.client(attrs.evolve(chosen, options=own))["sasl.jaas.config"] == "x required;"


def test_executors_that_arrive_later_get_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standalone cluster has two cores for Spark until its executors have registered."""
    key = "spark.databricks.delta.snapshotPartitions"
    for cores in (2, 64):
        monkeypatch.setattr(SparkContext, "defaultParallelism", cores)
        set_parallelism(spark)
        assert spark.conf.get(key) == str(cores)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1", "set by the user"
    spark.conf.unset(key)


def test_no_session_is_left_by_a_cached_frame(spark: SparkSession) -> None:
    """Each batch is cached; Spark 4.0 never frees a session."""
    before = session_count(spark)
    for rows in range(1, 4):
        frame = spark.range(rows).persist()
        assert frame.count() == rows
        frame.unpersist()
    assert session_count(spark) == before


def session_count(spark: SparkSession) -> int:
    """Return the number of Spark sessions that live in the JVM, after a full collection."""
    process = jvm_of(spark).java.lang.ProcessHandle.current().pid()
    command = ["jcmd", str(process), "GC.class_histogram"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = re.search(r"(\d+) +\d+ +org\.apache\.spark\.sql\.classic\.SparkSession\s", text)
    assert line is not None
    return int(line[1])
