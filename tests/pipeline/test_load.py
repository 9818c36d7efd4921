"""A pipeline's file: what it means, and one line that names key and place for all that is wrong."""

import datetime
from pathlib import Path

import pytest

from kwire_pipeline.config.declare import keys
from kwire_pipeline.config.describe import describe
from kwire_pipeline.config.document import ConfigError, read_document
from kwire_pipeline.config.load import Flag, build, load
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import secrets_of
from kwire_pipeline.config.values import (
    Action,
    Column,
    Partition,
    Root,
    Start,
    TimestampUnit,
    Transform,
)
from tests.support.pipeline.orders import SMALLEST


def read(text: str, *flags: tuple[str, str], **environment: str) -> Pipeline:
    document = read_document("orders.yaml", text, environment)
    return build(document, [Flag(*flag) for flag in flags], environment)


def errors(text: str, *flags: tuple[str, str], **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(text, *flags, **environment)
    return str(raised.value).splitlines()


def edit(old: str, new: str) -> str:
    assert old in SMALLEST
    return SMALLEST.replace(old, new)


def with_lines(*lines: str) -> str:
    return SMALLEST + "\n".join(lines) + "\n"


# The file ------------------------------------------------------------------------------------
def test_smallest_file() -> None:
    pipeline = read(SMALLEST)
    assert pipeline.source.topics == ("orders",)
    assert pipeline.table.partition_by == (Partition("ordered_at", Transform.DAYS),)
    assert pipeline.dead_letters.table == "shop.orders_dead"
    assert pipeline.trigger.available_now


def test_every_section() -> None:
    pipeline = read(
        with_lines(
            "columns: {customer: key, trace: headers.trace.id, day: value.ordered_at}",
            "key: {format: string}",
            "omit: [item]",
            "expectations:",
            "  positive: {check: quantity > 0}",
            "  small: {check: quantity < 100, action: warn}",
            "max_bad_share: 0.05",
            "limits: {max_offsets_per_trigger: 2_000_000}",
            "maintenance: {expire_after: 2 days}",
            "spark: {master: 'local[2]', conf: {spark.executor.memory: 2g}}",
            "transform:",
        )
    )
    assert pipeline.columns["customer"] == Column(Root.KEY)
    assert pipeline.columns["trace"] == Column(Root.HEADERS, ("trace.id",))
    assert pipeline.expectations["positive"].action is Action.DEAD_LETTER
    assert pipeline.expectations["small"].action is Action.WARN
    assert pipeline.max_bad_share == 0.05
    assert pipeline.limits.max_offsets_per_trigger == 2_000_000
    assert pipeline.maintenance.expire_after == datetime.timedelta(days=2)
    assert pipeline.spark.conf == {"spark.executor.memory": "2g"}
    assert pipeline.transform is None


def test_scalars_mean_what_the_file_says() -> None:
    """YAML 1.1 would read a boolean, a number in base 8 and one in base 60."""
    pipeline = read(edit("name: orders", "name: NO"), ("omit", "item"))
    assert pipeline.name == "NO"
    assert read(edit("[orders]", "[010, 1.10, 10:30]")).source.topics == ("010", "1.10", "10:30")


def test_starts_of_every_kind() -> None:
    offsets = edit("topics: [orders]", "topics: [orders], start: {orders: {0: 5, 1: 7}}")
    assert read(offsets).source.start == Start(offsets={"orders": {0: 5, 1: 7}})
    time = edit("topics: [orders]", 'topics: [orders], start: "2026-11-01T00:00:00Z"')
    assert read(time).source.start == Start(timestamp_ms=1_793_491_200_000)


def test_units_of_timestamps() -> None:
    text = edit("format: json,", "format: json, timestamps: {ordered_at: millis},")
    assert read(text).value.timestamps == {"ordered_at": TimestampUnit.MILLIS}
    for kind in ("ARRAY<TIMESTAMP>", "MAP<STRING, ARRAY<TIMESTAMP>>"):
        assert read(text.replace("item STRING", f"at {kind}"), ("value.timestamps", "at=millis"))
    (line,) = errors(
        text.replace("item STRING", "at TIMESTAMP_NTZ"), ("value.timestamps", "at=millis")
    )
    assert line == "--value.timestamps: at is TIMESTAMP_NTZ, not TIMESTAMP"


def test_omitted_field_is_no_column_in_any_case() -> None:
    (line,) = errors(SMALLEST, ("omit", "Ordered_At"))
    assert "the table has no column ordered_at; it has order_id, item" in line


def test_schema_from_a_file_beside_the_pipelines(tmp_path: Path) -> None:
    (tmp_path / "orders.ddl").write_text("id BIGINT,\n  ordered_at TIMESTAMP\n")
    start, _, end = SMALLEST.partition('"order_id')
    (tmp_path / "orders.yaml").write_text(f'{start}"@orders.ddl"{end.partition(chr(34))[2]}')
    pipeline = load(str(tmp_path / "orders.yaml"), [], {})
    assert pipeline.value.schema == "id BIGINT,\n  ordered_at TIMESTAMP"
    (tmp_path / "orders.ddl").unlink()
    with pytest.raises(ConfigError, match=r"3: value.schema: orders.ddl cannot be read: No such"):
        load(str(tmp_path / "orders.yaml"), [], {})


# Flags ---------------------------------------------------------------------------------------
def test_flags_come_before_the_file() -> None:
    pipeline = read(
        SMALLEST,
        ("source.bootstrap", "kafka:9092"),
        ("trigger", "10 seconds"),
        ("source.topics", "a"),
        ("source.topics", "b"),
        ("spark.conf", "spark.ui.enabled=true"),
        ("spark.conf", "spark.x=a=b"),
        ("table.partition_by", "[item, 'bucket(4, order_id)']"),
        ("expectations.positive.check", "quantity > 0"),
        ("source.start", "{a: {0: 5}, b: {0: 6}}"),
    )
    assert pipeline.source.bootstrap == "kafka:9092"
    assert pipeline.trigger.interval == datetime.timedelta(seconds=10)
    assert pipeline.source.topics == ("a", "b")
    assert pipeline.spark.conf == {"spark.ui.enabled": "true", "spark.x": "a=b"}
    assert [str(part) for part in pipeline.table.partition_by] == ["item", "bucket(4, order_id)"]
    assert pipeline.expectations["positive"].check == "quantity > 0"
    assert pipeline.source.start == Start(offsets={"a": {0: 5}, "b": {0: 6}})


@pytest.mark.parametrize(
    ("flag", "error"),
    [
        (("source.bootsrap", "x"), "did you mean bootstrap?"),
        (("source", "x"), "there is no such key"),
        (("spark.conf", "x"), "--spark.conf: expected NAME=VALUE"),
        (("trigger", "soon"), "--trigger: expected available-now or an interval such as 30 sec"),
        (("source.start", "{a"), "--source.start: not a list or mapping in YAML"),
        (("spark.conf", "a=${NONE}"), "the environment variable NONE is not set"),
    ],
)
def test_wrong_flags(flag: tuple[str, str], error: str) -> None:
    assert error in errors(SMALLEST, flag)[0]


@pytest.mark.parametrize(
    "key", [key for key in keys(Pipeline) if key.section is None and key.sections is None],
    ids=lambda key: key.name,
)  # fmt: skip
def test_every_key_is_a_flag(key: object) -> None:
    """A value that no key takes is an error of that key, so each flag reaches its key."""
    name = getattr(key, "name", "").replace("NAME", "positive")
    (first, *_) = errors(SMALLEST, (name, "x=${NONE}"))
    assert first == f"--{name}: the environment variable NONE is not set"


# What is wrong -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("topics:", "topic:", "2: source.topic: there is no such key; did you mean topics?"),
        ("trigger:", "triger:", "7: triger: there is no such key; did you mean trigger?"),
        (
            "checkpoint: ",
            "partition_by: ",
            "6: partition_by: there is no such key; did you mean ta",
        ),
        ("checkpoint: lake/checkpoint", "", "1: checkpoint: this key is required"),
        ("bootstrap: 127.0.0.1:9092, ", "", "2: source.bootstrap: this key is required"),
        ("127.0.0.1:9092", "localhost", "2: source.bootstrap: 'localhost' is not host:port"),
        ("127.0.0.1:9092", "a:\u00b2", "2: source.bootstrap: 'a:\u00b2' is not host:port"),
        ("127.0.0.1:9092", "a:1;b", "2: source.bootstrap: 'a:1;b' is not host:port"),
        ("topics: [orders]", "topics: []", "2: source.topics: expected either topics or"),
        (
            "[orders]",
            "[orders], pattern: o.*",
            "2: source.topics: expected either topics or",
        ),
        ("[orders]", "[a], start: {b: {0: 1}}", "2: source.start: offsets are needed for each of"),
        ("[orders]", "[orders], options: {minPartitions: 5}", "its own key: limits.min_parti"),
        (
            "[orders]",
            f"[orders], start: {{orders: {{0: {1 << 63}}}}}",
            "orders: a partition or an offset is",
        ),
        ("[orders]", "[orders], start: {orders: {0: -2}}", "orders: partitions and offsets begin"),
        (
            "format: json",
            "format: jsn",
            "3: value.format: expected raw, string, json, avro, avro-registry or json-registry",
        ),
        ("quantity INT", "a VARCHAR(3)", "3: value.schema: a: expected STRING, not VARCHAR"),
        ("quantity INT", "a MAP<INT, STRING>", "a: keys in JSON are strings; expected MAP<STRING"),
        ("quantity INT", "quantity INTT", "3: value.schema: quantity: there is no type INTT"),
        ("order_id STRING, item STRING, quantity INT, ordered_at TIMESTAMP", "INT", "type is miss"),
        ("format: json", "format: avro-registry", "1: registry.url: avro-registry needs the regis"),
        ("format: json", "format: protobuf", "or json-registry, not 'protobuf'"),
        ("format: json,", "timestamps: {x: millis},", "3: value.timestamps: the schema has no fi"),
        ("format: json,", "timestamps: {item: millis},", "item is STRING, not TIMESTAMP"),
        ("format: json,", "timestamps: {item: days},", "3: value.timestamps: item: expected seco"),
        ("shop.orders,", "orders,", "4: table.name: 'orders' is not NAMESPACE.TABLE"),
        ("shop.orders,", "kwire.shop.orders,", "write it without the catalog's name: shop.orders"),
        ("warehouse: lake, ", "", "4: table.warehouse: a iceberg table needs the folder"),
        ("days(ordered_at)", "days(at)", "4: table.partition_by: the table has no column at; it"),
        ("days(ordered_at)", "days(item)", "days(item): item is STRING, not TIMESTAMP"),
        (
            "days(ordered_at)",
            "day(ordered_at)",
            "4: table.partition_by: 'day(ordered_at)': there i",
        ),
        ("shop.orders_dead", "shop.orders", "5: dead_letters.table: it is the table itself"),
        ("shop.orders_dead", "shop.orders.dead", "5: dead_letters.table: it lies in the folder of"),
        ("name: shop.orders", "name: shop.orders_dead.x", "4: table.name: it lies in the folder"),
        ("table: shop.orders_dead", "topic: orders", "5: dead_letters.topic: orders is read by"),
        ("available-now", f"{10**20} days", "7: trigger: expected available-now or an interval"),
        ("lake/checkpoint", "./lake/shop/orders/x", "6: checkpoint: it lies in the folder of shop"),
        ("available-now", "always", "7: trigger: expected available-now or an interval such as"),
        ("name: shop", "evolution: rescue, rescue_column: item, name: shop", "item appears twice"),
        (
            "name: shop",
            "evolution: rescue, rescue_column: a-b, name: shop",
            "'a-b' is not a column",
        ),
        ("name: orders", "name: [orders]", "1: name: expected text, not a list"),
        ("name: orders", "name: ' '", "1: name: expected text, not ' '"),
        ("order_id STRING", "kafka_offset STRING", "the column kafka_offset appears twice"),
        ("dead_letters: {table: shop.orders_dead}", "dead_letters: x", "5: dead_letters: expected"),
        ("name: orders", "name: orders\nname: x", "2: name: this key appears twice"),
        ("name: orders", "name: &a orders\nomit: [", "not YAML"),
        ("name: orders", "name: *a", "not YAML: found undefined alias"),
    ],
)
def test_an_error_names_place_key_and_what_is_expected(old: str, new: str, error: str) -> None:
    lines = errors(edit(old, new))
    assert any(error in line and line.startswith("orders.yaml:") for line in lines), lines


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["transform: clean"], "8: transform: 'clean' is not module:function"),
        (
            ["columns: {day: ordered_at}"],
            "8: columns: day: 'ordered_at' is not a place in a record",
        ),
        (["columns: {day: value.at}"], "8: columns.day: the value's schema has no field at"),
        (["columns: {id: key.id}"], "8: columns.id: a raw key has no fields"),
        (["key: {format: json}"], "8: key.schema: json needs a schema"),
        (["max_bad_share: 5"], "8: max_bad_share: expected a number from 0 to 1"),
        (["limits: {max_offsets_per_trigger: 0}"], "8: limits.max_offsets_per_trigger: expected"),
        (["expectations:", "  positive: {action: drop}"], "9: expectations.positive.check: this"),
        (["expectations:", "  positive: {chek: x}"], "chek: there is no such key; did you"),
        (["spark: {conf: {spark.jars.packages: x}}"], "key: spark.packages, which adds to the pip"),
        (["maintenance: {expire_after: 36501 days}"], "expire_after: expected at most 36500 days"),
        (["maintenance: {orphans_after: 23 hours}"], "8: maintenance.orphans_after: expected at"),
        (["omit: [price]"], "8: omit: the value's schema has no field price"),
    ],
)  # fmt: skip
def test_errors_of_further_keys(lines: list[str], error: str) -> None:
    assert any(error in line for line in errors(with_lines(*lines)))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            "format: iceberg",
            "mode: upsert",
            "4: table.keys: upsert needs the columns that identify",
        ),
        ("format: iceberg", "keys: [item]", "4: table.keys: keys are for mode: upsert"),
        ("format: iceberg", "tombstones: delete", "4: table.tombstones: delete needs mode: upsert"),
        ("format: iceberg", "envelope: debezium", "4: table.envelope: a debezium envelope needs"),
        ("format: iceberg", "format: parquet, mode: upsert, keys: [item]", "4: table.mode: a parq"),
        (
            "format: iceberg",
            "mode: upsert, keys: [id]",
            "4: table.keys: the table has no column id",
        ),
        (
            "format: iceberg",
            "format: delta, sort_by: [item]",
            "4: table.sort_by: delta tables have",
        ),
        (
            'iceberg, warehouse: lake, name: shop.orders, partition_by: ["days(ordered_at)"]',
            'delta, warehouse: lake, name: shop.orders, partition_by: ["bucket(4, item)"]',
            "4: table.partition_by: bucket(4, item): delta tables have no such partitions",
        ),
        (
            "format: iceberg",
            "mode: upsert, keys: [order_id], tombstones: delete",
            "4: table.tombstones: a tombstone has no value, so order_id has to come from",
        ),
        ("format: iceberg", "catalog: {type: rest}", "4: table.catalog.uri: a rest catalog needs"),
    ],
)
def test_errors_between_keys_of_the_table(old: str, new: str, error: str) -> None:
    assert any(error in line for line in errors(edit(old, new)))


@pytest.mark.parametrize(
    "warehouse", ["s3a://lake/t", "S3://lake", "gs://l", "abfss://l@a.net/t", "wasb://l", "oss://l"]
)
def test_hadoop_catalog_in_an_object_store_is_refused(warehouse: str) -> None:
    """The store would lose the first of two commits at the same time."""
    (line,) = errors(edit("warehouse: lake", f'warehouse: "{warehouse}"'))
    assert line.startswith("orders.yaml:4: table.catalog.type: a hadoop catalog loses commits")
    option = ("table.catalog.options", f"warehouse={warehouse}")
    (line,) = errors(SMALLEST, option)
    assert "a hadoop catalog loses commits in an object store" in line
    for flags in (
        [("table.format", "delta"), ("table.partition_by", "item")],
        [("table.catalog.type", "glue")],
        [
            (
                "table.catalog.options",
                "lock-impl=org.apache.iceberg.aws.dynamodb.DynamoDbLockManager",
            )
        ],
        [("table.catalog.options", "type=nessie")],
    ):
        assert read(edit("warehouse: lake", f'warehouse: "{warehouse}"'), *flags)
    assert read(edit("warehouse: lake", "warehouse: hdfs://names/lake"))


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("MINPARTITIONS", "its own key: limits.min_partitions"),
        ("startingoffsets", "its own key: source.start"),
        ("startingTimestamp", "its own key: source.start"),
        ("startingOffsetsByTimestamp", "its own key: source.start"),
        ("startingOffsetsByTimestampStrategy", "its own key: source.start"),
        ("endingTimestamp", "its own key: trigger: available-now"),
        ("endingOffsetsByTimestamp", "its own key: trigger: available-now"),
        ("Subscribe", "its own key: source.topics"),
        ("Assign", "its own key: source.topics"),
        ("failondataloss", "its own key: source.fail_on_data_loss"),
        ("includeHeaders", "has no effect: the pipeline reads headers always"),
        ("Kafka.Isolation.Level", "its own key: source.isolation"),
        ("kafka.security.protocol", "its own key: source.security.protocol"),
        ("kafka.enable.auto.commit", "has no effect: Spark commits no offsets"),
    ],
)
def test_an_option_that_the_pipeline_sets_is_refused_in_any_case(option: str, reason: str) -> None:
    (line,) = errors(SMALLEST, ("source.options", f"{option}=1"))
    assert line.startswith(f"--source.options: {option} has ")
    assert reason in line


def test_an_option_is_there_once_in_any_case() -> None:
    flags = [("source.options", f"{name}=1") for name in ("kafka.client.id", "kafka.Client.id")]
    assert "kafka.Client.id appears twice" in errors(SMALLEST, *flags)[0]


@pytest.mark.parametrize(
    "option", ["kafka.group.id", "kafka.sasl.jaas.config", "kafka.ssl.truststore.location"]
)
def test_an_option_that_the_pipeline_does_not_set_reaches_spark(option: str) -> None:
    assert read(SMALLEST, ("source.options", f"{option}=x")).source.options == {option: "x"}


def test_the_login_of_the_section_excludes_that_of_the_options() -> None:
    flags = [("security.protocol", "SASL_SSL"), ("security.username", "me")]
    flags += [("security.password", "x"), ("security.ca_file", "/ca.pem")]
    for option, key in (("sasl.jaas.config", "username"), ("ssl.truststore.location", "ca_file")):
        lines = errors(
            SMALLEST, *((f"source.{k}", v) for k, v in [*flags, ("options", f"kafka.{option}=x")])
        )
        assert f"kafka.{option} has its own key: source.security.{key}" in lines[0]


KEY = ("key.format", "json")
AVRO = ("value.format", "avro")
AVRO_KEY = ("key.format", "avro")
REGISTRY = ("value.format", "avro-registry")
URL = ("registry.url", "http://r")
ORDERED = ("table.partition_by", "days(at)")
RECORD = (
    '{"type": "record", "name": "a.Order", "fields": [{"name": "id", "type": ["null", "int", '
    '"long"]}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, '
    '{"name": "first", "type": {"type": "record", "name": "Line", "fields": [{"name": "item", '
    '"type": "string"}]}}, {"name": "lines", "type": {"type": "array", "items": "Line"}}]}'
)


@pytest.mark.parametrize(
    "flags",
    [
        [KEY, ("key.schema", "id BIGINT, at TIMESTAMP"), ("columns", "customer=key.id")],
        [AVRO, ORDERED, ("columns", "item=value.lines.item")],
        [REGISTRY, URL, ORDERED, ("value.subject", "orders")],
        [REGISTRY, ("registry.url", "https://r:8081/path"), ORDERED],
        [AVRO_KEY, ("key.schema", '"string"'), ("columns", "customer=key")],
        [AVRO_KEY, ("key.schema", RECORD), ("columns", "item=key.first.item")],
    ],
)
def test_keys_and_values_with_fields(flags: list[tuple[str, str]]) -> None:
    schema = ("value.schema", RECORD)
    has_avro_value = flags[0][0] == "value.format"
    assert read(SMALLEST, *flags, *([schema] if has_avro_value else []))


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ([KEY], "key.schema: json needs a schema, such as id BIGINT, name STRING"),
        ([KEY, ("key.schema", "id INTT")], "key.schema: id: there is no type INTT"),
        (
            [KEY, ("key.schema", "id INT"), ("columns", "a=key.no")],
            "columns.a: the key's schema has no field no",
        ),
        ([AVRO_KEY], "key.schema: avro needs a schema"),
        ([AVRO, ("value.schema", "id INT")], "value.schema: not an Avro schema in JSON, such as"),
        (
            [AVRO, ("value.schema", '"int"')],
            "value.schema: a value's Avro schema has to be a rec",
        ),
        ([AVRO, ("value.schema", '"Order"')], "value.schema: there is no Avro type Order"),
        (
            [
                AVRO,
                (
                    "value.schema",
                    '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", '
                    '"R"]}]}',
                ),
            ],
            "value.schema: a: R contains itself, which no table can have",
        ),
        (
            [AVRO, ORDERED, ("value.schema", RECORD), ("omit", "x")],
            "--omit: the value's schema has no field x",
        ),
        (
            [AVRO, ("table.partition_by", "days(id)"), ("value.schema", RECORD)],
            "table.partition_by: days(id): id is BIGINT, not TIMESTAMP",
        ),
        (
            [AVRO, ORDERED, ("value.schema", RECORD), ("table.evolution", "rescue")],
            "table.evolution: avro has no fields to rescue; json has",
        ),
        (
            [REGISTRY, ORDERED, ("value.schema", RECORD), ("registry.url", "http://u:p@r")],
            "registry.url: expected http:// or https://, a host and perhaps a path; a login is",
        ),
        (
            [REGISTRY, URL, ORDERED, ("value.schema", RECORD), ("registry.username", "u")],
            "registry.username: basic authentication needs a username and a password",
        ),
    ],
)
def test_a_wrong_schema_of_a_key_or_value_is_refused(
    flags: list[tuple[str, str]], error: str
) -> None:
    lines = errors(SMALLEST, *flags)
    assert any(error in line for line in lines), lines


PARQUET = ("table.format", "parquet")


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_bytes_are_no_partition_of_a_folder(kind: str) -> None:
    flags = [("table.format", kind), ("table.partition_by", "item")]
    (line,) = errors(edit("item STRING", "item BINARY"), *flags)
    assert line == "--table.partition_by: item is BINARY, which cannot name a folder"


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_partition_has_no_name_of_a_column(kind: str) -> None:
    schema = ("value.schema", "ordered_at TIMESTAMP, Ordered_At_Day STRING")
    (line,) = errors(SMALLEST, ("table.format", kind), schema)
    assert "days(ordered_at) makes the column ordered_at_day, which already exists" in line
    assert read(SMALLEST, schema)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ([("registry.url", "http://r")], "--registry.url: it has no effect without the format"),
        (
            [("maintenance.every", "1 day")],
            "--maintenance.every: it has no effect without a trigger",
        ),
        ([("min_bad_records", "3")], "--min_bad_records: it has no effect without a max_bad_share"),
        ([("metrics.host", "0.0.0.0")], "--metrics.host: it has no effect without metrics.port"),
        ([("registry.timeout", "1 second")], "--registry.timeout: it has no effect without"),
        ([("value.subject", "s")], "--value.subject: json has none; it is for avro-registry"),
        ([PARQUET, ("table.properties", "a=b")], "--table.properties: parquet tables have no"),
        ([PARQUET, ("table.catalog.name", "x")], "--table.catalog.name: parquet tables have no"),
        ([PARQUET, ("table.catalog.options", "a=b")], "--table.catalog.options: parquet tables"),
        ([("table.catalog.uri", "u")], "--table.catalog.uri: a hadoop catalog is the folder"),
        ([("table.rescue_column", "x")], "--table.rescue_column: it has no effect without evol"),
        ([("table.unavailable_value", "x")], "--table.unavailable_value: it has no effect without"),
        ([("source.security.ca_file", "f")], "--source.security.ca_file: PLAINTEXT has no TLS"),
        ([("source.security.cert_file", "f")], "--source.security.cert_file: PLAINTEXT has no"),
        ([("source.security.password", "p")], "--source.security.password: PLAINTEXT has no lo"),
        ([("source.security.username", "u")], "--source.security.username: PLAINTEXT has no lo"),
        (
            [("source.security.protocol", "SSL"), ("source.security.key_password", "p")],
            "--source.security.key_password: there is no key without cert_file",
        ),
        (
            [
                ("source.security.protocol", "SASL_SSL"),
                ("source.security.mechanism", "GSSAPI"),
                ("source.security.username", "u"),
            ],
            "--source.security.username: GSSAPI takes none",
        ),
        (
            [("spark.conf", "spark.sql.session.timeZone=CET")],
            "--spark.conf: spark.sql.session.timeZone is UTC in each pipeline; leave it out",
        ),
    ],
)
def test_a_key_without_effect_is_refused(flags: list[tuple[str, str]], error: str) -> None:
    (line,) = errors(SMALLEST, *flags)
    assert line.startswith(error)


def test_all_problems_are_reported_together() -> None:
    lines = errors(edit("topics:", "topic:").replace("available-now", "always"))
    assert [line.split(":")[1] for line in lines] == ["2", "7"]


def test_aliases_are_refused() -> None:
    """A file of nine lines with aliases of aliases would be gigabytes of values."""
    text = with_lines("spark: {conf: &a {x: y}}", "columns: *a")
    assert errors(text) == ["orders.yaml:8: aliases (*name) are not supported: write it out"]


def test_what_is_no_mapping_in_utf8_is_refused(tmp_path: Path) -> None:
    assert "expected keys and values" in errors("- a\n")[0]
    assert "expected keys and values" in errors("")[0]
    path = tmp_path / "orders.yaml"
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        load(str(path), [], {})
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(str(path), [], {})


# What is in force ----------------------------------------------------------------------------
def test_every_key_in_force_is_shown_and_reads_again() -> None:
    text = with_lines("expectations: {positive: {check: quantity > 0}}", "columns: {customer: key}")
    lines = describe(read(text, ("source.start", "2026-11-01T00:00:00Z"), ("trigger", "1 minutes")))
    assert "source.start: 2026-11-01T00:00:00+00:00" in lines
    assert "trigger: 60 seconds" in lines
    assert "source.isolation: read_committed (default)" in lines
    assert "table.partition_by: [days(ordered_at)]" in lines
    assert "expectations.positive.action: dead-letter (default)" in lines
    assert "columns: {customer: key}" in lines
    flags = [line.removesuffix(" (default)").partition(": ") for line in lines]
    same = read(SMALLEST, *((key, value) for key, _, value in flags))
    assert describe(same) == lines


# Secrets -------------------------------------------------------------------------------------
SASL = edit(
    "topics: [orders]",
    "topics: [orders], security: {protocol: SASL_SSL, username: me, password: '${PASS}'}",
)


def test_environment_gives_secrets_that_are_not_shown() -> None:
    pipeline = read(SASL, PASS="opensesame")
    assert pipeline.source.security.password == "opensesame"
    assert "opensesame" not in repr(pipeline)
    assert "source.security.password: ***" in describe(pipeline)


@pytest.mark.parametrize("password", ["opensesame", 'a"b: #\\', "a${PASS}"])
def test_variable_in_a_list_or_mapping_of_a_flag_is_a_secret(password: str) -> None:
    """Its text is no YAML either: a password may have any character."""
    flag = ("source.options", '{kafka.ssl.truststore.password: "${PASS}"}')
    pipeline = read(SMALLEST, flag, PASS=password)
    assert pipeline.source.options == {"kafka.ssl.truststore.password": password}
    assert secrets_of(pipeline) == {password}
    assert "source.options: {kafka.ssl.truststore.password: ***}" in describe(pipeline)
    unquoted = ("source.options", "{kafka.x: ${PASS}}")
    assert "not a list or mapping in YAML, such as" in errors(SMALLEST, unquoted, PASS=password)[0]


def test_a_variable_that_is_not_set_is_named() -> None:
    assert errors(SASL) == [
        "orders.yaml:2: source.security.password: the environment variable PASS is not set"
    ]


def test_two_dollars_are_no_variable() -> None:
    conf = read(with_lines("spark: {conf: {a: 'a$${PASS}'}}")).spark.conf
    assert conf == {"a": "a${PASS}"}


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*, 3]", "spark://a:7077,b:7077", "k8s://https://a:6443", "yarn"],
)
def test_masters_that_spark_knows(master: str) -> None:
    assert read(with_lines(f"spark: {{master: '{master}'}}")).spark.master == master


@pytest.mark.parametrize("master", ["spark//nonsense", "spark://a", "local[0]", "mesos://a:1", "x"])
def test_master_that_spark_does_not_know_is_refused_before_it_starts(master: str) -> None:
    (line,) = errors(SMALLEST, ("spark.master", master))
    assert line.startswith(
        f"--spark.master: {master!r} is not a master; expected local[*], local[N]"
    )


def test_errors_show_no_secret() -> None:
    text = edit("available-now", "'${WHEN}'").replace("[orders]", "[orders], start: '${WHEN}'")
    lines = errors(text, ("progress", "${WHEN}"), WHEN="opensesame")
    assert len(lines) == 3
    assert not any("opensesame" in line for line in lines)


def test_names_and_addresses_from_the_environment_are_shown() -> None:
    """An error about `***` at `***` would help nobody; a password of the same text stays hidden."""
    flags = [("source.topics", "${TOPIC}"), ("source.topics", "b-${TOPIC}")]
    pipeline = read(SASL, *flags, PASS="opensesame", TOPIC="orders")
    assert "source.topics: [orders, b-orders]" in describe(pipeline)
    assert secrets_of(pipeline) == {"opensesame"}
    (line,) = errors(SASL, ("source.bootstrap", "${HOST}"), PASS="opensesame", HOST="b")
    assert line == "--source.bootstrap: 'b' is not host:port"
    pipeline = read(SASL, *flags, PASS="orders", TOPIC="orders")
    assert secrets_of(pipeline) == {"orders"}


@pytest.mark.parametrize(
    ("key", "name", "value", "is_hidden"),
    [
        ("spark.conf", "spark.hadoop.fs.s3a.secret.key", "k3y", True),
        ("spark.conf", "spark.hadoop.fs.s3a.access.key", "1234", True),
        ("spark.conf", "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net", "k3y", True),
        ("spark.conf", "spark.security.credentials.kafka.enabled", "true", False),
        ("spark.conf", "spark.hadoop.fs.s3a.aws.credentials.provider", "a.B", False),
        ("spark.conf", "spark.sql.shuffle.partitions", "8", False),
        ("table.catalog.options", "token", "123", True),
        ("table.catalog.options", "credential", "me:s3cret", True),
        ("table.catalog.options", "s3.secret-access-key", "k3y", True),
        ("table.catalog.options", "s3.sse.key", "k3y", True),
        ("table.catalog.options", "header.Authorization", "Bearer k3y", True),
        ("table.catalog.options", "adls.sas-token.lake", "k3y", True),
        ("table.catalog.options", "s3.endpoint", "http://b:1", False),
        ("table.catalog.options", "token-refresh-enabled", "false", False),
        ("table.catalog.options", "token.expires", "30 minutes", False),
        ("source.options", "kafka.ssl.truststore.password", "changeit", True),
        ("source.options", "kafka.client.id", "me", False),
    ],
)
def test_option_with_the_name_of_a_secret_is_hidden(
    key: str, name: str, value: str, is_hidden: bool
) -> None:
    pipeline = read(SMALLEST, (key, f"{name}={value}"))
    assert secrets_of(pipeline) == ({value} if is_hidden else set())


@pytest.mark.parametrize(("kind", "count"), [("iceberg", 1), ("delta", 1), ("parquet", 0)])
def test_files_of_today_are_no_orphans(kind: str, count: int) -> None:
    """Neither Iceberg's nor Delta's maintenance knows the files that another writer will commit."""
    flags = [("table.format", kind), ("maintenance.orphans_after", "23 hours")]
    lines = errors(SMALLEST, *flags) if count else []
    assert len(lines) == count
    if not count:
        assert read(SMALLEST, *flags).maintenance


def test_name_of_a_catalog_is_an_identifier() -> None:
    (line,) = errors(SMALLEST, ("table.catalog.name", "my-catalog"))
    assert line.startswith("--table.catalog.name: 'my-catalog' is not a name")
    assert read(SMALLEST, ("table.catalog.name", "my_catalog2")).table.catalog.name
