"""SQL of the file that could have another result at a rerun is refused before any write."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.config.values import Action, Column, Format
from kwire_pipeline.engine.expectations import check_columns, check_expectations
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.engine.shape_and_tables import RAW_DDL
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape

DDL = "id BIGINT, now STRING, at TIMESTAMP, day DATE, tags ARRAY<STRING>"


def shape_with(sql: str, action: Action = Action.DEAD_LETTER) -> Shape:
    schema = parse_ddl(DDL, "value.schema")
    return Shape(format=Format.JSON, schema=schema, expectations={"late": (sql, action)})


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    plain = Shape(format=Format.JSON, schema=parse_ddl(DDL, "value.schema"))
    return frames.classify(spark.createDataFrame([], RAW_DDL), plain)


@pytest.mark.parametrize(
    "sql",
    [
        "at < kafka_timestamp + INTERVAL 1 DAY",
        "at > TIMESTAMP '2026-01-01' AND day > DATE '2026-01-01'",
        "now = 'now' AND day > now",
        "exists(tags, tag -> tag RLIKE 'rand()')",
        "at > 'epoch' AND day > to_date(' Epoch ')",
        "hex(aes_encrypt(now, '0000111122223333', 'ECB')) = now",
    ],
)
def test_expectation_over_columns_is_accepted(frame: DataFrame, sql: str) -> None:
    check_expectations(frame, shape_with(sql))


CHANGING = [
    "at < current_timestamp()",
    "at < now()",
    "day <= current_date",
    "unix_seconds(at) < unix_timestamp()",
    "at < localtimestamp()",
    "at < TIMESTAMP 'now'",
    "day < DATE 'tomorrow'",
    "at < 'now'",
    "day < CAST('today' AS DATE)",
    "now = current_user()",
    "rand() < 0.5",
    "uuid() > now",
    "exists(tags, tag -> tag = string(current_date()))",
    "id IN (SELECT id FROM range(5))",
    "row_number() OVER (PARTITION BY id ORDER BY at) = 1",
    "day < to_date('now')",
    "at < to_timestamp('today')",
    "at < cast(' Now' as timestamp)",
    "at < cast(concat('no', 'w') as timestamp)",
    'at < TIMESTAMP "now"',
    "hex(aes_encrypt(now, '0000111122223333')) = now",
    "id < spark_partition_id()",
    "now = input_file_name()",
]


@pytest.mark.parametrize(
    ("sql", "action"),
    [
        *((sql, Action.DEAD_LETTER) for sql in CHANGING),
        ("rand() < 0.5", Action.DROP),
        ("rand() < 0.5", Action.FAIL),
    ],
)
def test_expectation_that_depends_on_more_than_the_record_is_refused(
    frame: DataFrame, sql: str, action: Action
) -> None:
    with pytest.raises(Refusal, match=r"^expectations\.late\.check: .* depends on more than the"):
        check_expectations(frame, shape_with(sql, action))
    check_expectations(frame, shape_with(sql, Action.WARN))


RECORDS = r".* leaves out records or makes several rows of one"
TIME_WINDOWS = [
    "window(at, '1 hour')",
    "window(at, '1 hour', '30 minutes')",
    "session_window(at, '5 minutes')",
]


@pytest.mark.parametrize("sql", TIME_WINDOWS)
@pytest.mark.parametrize("action", [Action.DEAD_LETTER, Action.WARN])
def test_expectation_that_loses_or_repeats_records_is_refused(
    frame: DataFrame, sql: str, action: Action
) -> None:
    """Spark leaves out records without a time, and repeats those in several windows."""
    with pytest.raises(Refusal, match=rf"^expectations\.late\.check: {RECORDS}"):
        check_expectations(frame, shape_with(f"{sql}.start < at", action))


@pytest.mark.parametrize("sql", ["id >", "absent > 1", "tags", "count(*) > 0"])
def test_expectation_that_spark_does_not_read_is_refused_in_one_sentence(
    frame: DataFrame, sql: str
) -> None:
    with pytest.raises(
        Refusal, match=r"^expectations\.late\.check: Spark does not accept"
    ) as refusal:
        check_expectations(frame, shape_with(sql))
    assert "\n" not in str(refusal.value)


def shape_of_column(sql: str) -> Shape:
    schema = parse_ddl(DDL, "value.schema")
    return Shape(format=Format.JSON, schema=schema, columns={"new": Column.parse(sql)})


def check_column(spark: SparkSession, sql: str) -> None:
    shape = shape_of_column(sql)
    check_columns(frames.inputs(spark.createDataFrame([], RAW_DDL), shape), shape)


ENCRYPTED = "aes_encrypt(now, '0000111122223333', {})"


@pytest.mark.parametrize(
    "sql",
    [
        "sha2(now, 256)",
        "id * 2",
        "transform(tags, t -> upper(t))",
        "date_trunc('HOUR', at)",
        "to_date(now)",
        "coalesce(now, 'now')",
        ENCRYPTED.format("'ecb'"),
        ENCRYPTED.format("'GCM', 'DEFAULT', unhex(repeat('00', 12))"),
        ENCRYPTED.format("'CBC', 'PKCS', unhex(left(sha2(now, 256), 32))"),
    ],
)
def test_column_over_the_record_is_accepted(spark: SparkSession, sql: str) -> None:
    check_column(spark, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "current_timestamp() - at",
        "uuid()",
        "at > TIMESTAMP 'now'",
        "(SELECT max(id) FROM range(5))",
        "lag(id) OVER (ORDER BY id)",
        "uniform(1, 10)",
        "randstr(5)",
        "shuffle(tags)",
        "reflect('java.util.UUID', 'randomUUID')",
        "monotonically_increasing_id()",
        "concat(now, to_date('today'))",
        "base64(aes_encrypt(now, '0000111122223333'))",
        ENCRYPTED.format("'GCM'"),
        ENCRYPTED.format("'CBC', 'PKCS', ''"),
        ENCRYPTED.format("'CBC', 'PKCS', X''"),
        ENCRYPTED.format("'GCM', 'DEFAULT', unhex('')"),
        "aes_encrypt('a', '0000111122223333')",
    ],
)
def test_column_that_differs_in_a_rerun_is_refused(spark: SparkSession, sql: str) -> None:
    with pytest.raises(Refusal, match=r"^columns\.new: .* depends on more than the record"):
        check_column(spark, sql)


@pytest.mark.parametrize("sql", [*TIME_WINDOWS, "window(at, '1 hour').start", "explode(tags)"])
def test_column_that_loses_or_repeats_records_is_refused(spark: SparkSession, sql: str) -> None:
    with pytest.raises(Refusal, match=rf"^columns\.new: {RECORDS}"):
        check_column(spark, sql)


@pytest.mark.parametrize("sql", ["id >", "absent + 1", "count(*)"])
def test_column_that_spark_does_not_read_is_refused_in_one_sentence(
    spark: SparkSession, sql: str
) -> None:
    with pytest.raises(Refusal, match=r"^columns\.new: Spark does not accept") as refusal:
        check_column(spark, sql)
    assert "\n" not in str(refusal.value)
