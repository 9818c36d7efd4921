"""The configuration of one pipeline: the sections and keys of its file.

Rules of this file: a field is a key of the same name, declared once with its type, default and
meaning. Defaults are chosen so that nothing is lost: committed records only, a failure when records
are missing in the topic, dead letters for records that do not fit. All sections are frozen.
"""

import datetime
from collections.abc import Mapping
from typing import TypeAlias

import attrs

from kwire_pipeline.config.declare import (
    boolean,
    choice,
    duration,
    integer,
    mapping,
    named_sections,
    one_of,
    optional_duration,
    optional_integer,
    optional_text,
    parsed_mapping,
    parsed_texts,
    section,
    share,
    special,
    text,
    texts,
)
from kwire_pipeline.config.values import (
    AVAILABLE_NOW,
    Action,
    CatalogType,
    Column,
    Envelope,
    Evolution,
    Format,
    Isolation,
    Mechanism,
    Mode,
    Partition,
    Progress,
    Protocol,
    Sort,
    Start,
    TableFormat,
    TimestampUnit,
    Tombstones,
    Trigger,
)


@attrs.frozen(kw_only=True)
class Security:
    """The security of the connections to the brokers."""

    protocol: Protocol = choice("The brokers' security protocol.", default=Protocol.PLAINTEXT)
    mechanism: Mechanism = choice("The SASL mechanism.", default=Mechanism.PLAIN)
    username: str | None = optional_text("The SASL user.")
    password: str | None = optional_text("The SASL password.", secret=True)
    ca_file: str | None = optional_text(
        "The PEM file of the authorities that sign the brokers' certificates."
    )
    cert_file: str | None = optional_text("The PEM file of the client's certificate and key.")
    key_password: str | None = optional_text("The password of the client's key.", secret=True)


@attrs.frozen(kw_only=True)
class Source:
    """The topics, and how to reach them."""

    bootstrap: str = text(
        "The first brokers to connect to, as host:port,host:port.", is_public=True
    )
    topics: tuple[str, ...] = texts("The topics; this or `pattern` is needed.", is_public=True)
    pattern: str | None = optional_text(
        "A Java regular expression for the topics' names.", is_public=True
    )
    start: Start = special(
        "The offsets at which a pipeline without a checkpoint begins.",
        "earliest | latest | time | offsets",
        Start.parse,
        default="earliest",
    )
    isolation: Isolation = choice(
        "Whether records of open and aborted transactions are read.",
        default=Isolation.READ_COMMITTED,
    )
    fail_on_data_loss: bool = boolean(
        "Whether a run fails when records were removed from the topic before they were read.",
        default=True,
    )
    security: Security = section(Security, "The security of the connections to the brokers.")
    options: Mapping[str, str] = mapping(
        "More options of Spark's Kafka source, `kafka.` ones for the client."
    )


@attrs.frozen(kw_only=True)
class KeyFormat:
    """The format of the records' keys."""

    format: Format = choice("The format of keys.", default=Format.RAW)
    schema: str | None = optional_text(
        "The schema: Spark's DDL for json, Avro's JSON for avro and avro-registry (that of the "
        "columns; records may have others), a JSON Schema for json-registry; `@FILE` reads it from "
        "a file.",
        may_be_file=True,
    )
    timestamps: Mapping[str, TimestampUnit] = parsed_mapping(
        "The unit of numbers in TIMESTAMP fields, by the field's path.",
        "seconds | millis | micros | iso",
        one_of(TimestampUnit),
    )
    subject: str | None = optional_text(
        "The registry's subject, for init and check (default: TOPIC-key)."
    )


@attrs.frozen(kw_only=True)
class ValueFormat:
    """The format of the records' values."""

    format: Format = choice("The format of values.", default=Format.JSON)
    schema: str | None = optional_text(
        "The schema: Spark's DDL for json, Avro's JSON for avro and avro-registry (that of the "
        "rows; records may have others), a JSON Schema for json-registry; `@FILE` reads it from a "
        "file; `init` infers one from the newest records, or takes the registry's newest, and pins "
        "it here; `latest` follows the registry.",
        may_be_file=True,
    )
    timestamps: Mapping[str, TimestampUnit] = parsed_mapping(
        "The unit of numbers in TIMESTAMP fields, by the field's path.",
        "seconds | millis | micros | iso",
        one_of(TimestampUnit),
    )
    subject: str | None = optional_text(
        "The registry's subject, for init, check and `schema: latest` (default: TOPIC-value)."
    )


RecordFormat: TypeAlias = KeyFormat | ValueFormat
Problem: TypeAlias = tuple[str, str]
"""A problem of a configuration: the path of a key, and what is wrong with its value."""


@attrs.frozen(kw_only=True)
class Registry:
    """The schema registry."""

    url: str | None = optional_text("The registry's URL.", is_public=True)
    username: str | None = optional_text("The user for HTTP basic authentication.")
    password: str | None = optional_text("The password.", secret=True)
    timeout: datetime.timedelta = duration(
        "The longest wait for an answer, with all tries.", default="10 seconds"
    )


@attrs.frozen(kw_only=True)
class Expectation:
    """A condition that each row must meet."""

    check: str = text("A SQL expression over the table's columns that is true for good rows.")
    action: Action = choice(
        "The effect on a row for which it is false or null.", default=Action.DEAD_LETTER
    )


@attrs.frozen(kw_only=True)
class Catalog:
    """The Iceberg catalog."""

    name: str = text("The catalog's name in Spark.", default="kwire")
    type: CatalogType = choice("The type of the catalog.", default=CatalogType.HADOOP)
    uri: str | None = optional_text("The catalog's address, for rest, hive and jdbc.")
    options: Mapping[str, str] = mapping("More properties of the catalog.")


@attrs.frozen(kw_only=True)
class Table:
    """The table, and how records change it."""

    format: TableFormat = choice("The table's format.", default=TableFormat.ICEBERG)
    name: str = text(
        "The table's name, `namespace.table`; with `{topic}` in it each topic has its own table.",
        is_public=True,
    )
    names: Mapping[str, str] = parsed_mapping(
        "The names of the tables of some topics, by topic, in place of `name` with `{topic}`.",
        "text",
        str,
    )
    warehouse: str | None = optional_text(
        "The folder of all tables; it may be a URL that Spark can write to.", is_public=True
    )
    catalog: Catalog = section(Catalog, "The Iceberg catalog.")
    partition_by: tuple[Partition, ...] = parsed_texts(
        "The partition spec: columns, or years, months, days, hours, bucket and truncate of one.",
        "partition",
        Partition.parse,
    )
    sort_by: tuple[Sort, ...] = parsed_texts(
        "The order of rows within files: columns, `desc` after one reverses it.",
        "column",
        Sort.parse,
    )
    properties: Mapping[str, str] = mapping("Properties of a table that the pipeline creates.")
    mode: Mode = choice("Whether rows are appended, or change rows by key.", default=Mode.APPEND)
    keys: tuple[str, ...] = texts("The columns that identify a row, for upsert.")
    sequence_by: tuple[str, ...] = texts(
        "The columns that order the changes of a key, for upsert: a change with lower values is "
        "older, whenever it arrives."
    )
    deletions: str | None = optional_text(
        "The name of the table that remembers deleted keys, so that an older change that arrives "
        "later does not write their rows again; for `sequence_by`.",
        is_public=True,
    )
    envelope: Envelope = choice("The envelope of change records.", default=Envelope.NONE)
    tombstones: Tombstones = choice(
        "The meaning of a record whose value is null.", default=Tombstones.DEAD_LETTER
    )
    unavailable_value: str = text(
        "The text that stands for an unchanged value in change records, Debezium's "
        "unavailable.value.placeholder: the row keeps its value.",
        default="__debezium_unavailable_value",
    )
    evolution: Evolution = choice(
        "The changes of the schema that a run may make to the table; rescue is additive, and "
        "undeclared fields of JSON values go to a column.",
        default=Evolution.FREEZE,
    )
    rescue_column: str = text(
        "The column for undeclared fields, as JSON text, if evolution is rescue.",
        default="rescued",
    )
    origin_prefix: str = text(
        "The prefix of the columns topic, partition, offset and timestamp that each row has.",
        default="kafka_",
    )


@attrs.frozen(kw_only=True)
class DeadLetters:
    """The destination of records that do not fit."""

    table: str | None = optional_text(
        "The name of their table, in the format and catalog of the table; this or `topic`.",
        is_public=True,
    )
    topic: str | None = optional_text(
        "The topic that gets them, with the reason as a header.", is_public=True
    )


@attrs.frozen(kw_only=True)
class Limits:
    """The size of batches and tasks."""

    max_offsets_per_trigger: int = integer(
        "The most offsets that one batch reads.", default=1_000_000, low=1
    )
    max_bytes_per_trigger: int | None = optional_integer(
        "The bytes of keys and values that one batch should not exceed, estimated from the size of "
        "records in earlier batches.",
        low=1,
    )
    max_records_per_partition: int = integer(
        "The most offsets that one task reads, so that a topic with one partition uses all cores.",
        default=100_000,
        low=1,
    )
    min_partitions: int | None = optional_integer("The minimum number of tasks per batch.", low=1)
    parallel_tables: int = integer(
        "How many tables a run writes at the same time, if each topic has its own table.",
        default=4,
        low=1,
        high=64,
    )


@attrs.frozen(kw_only=True)
class Spark:
    """The Spark session."""

    master: str | None = optional_text("The master (default: Spark's own, or local[*]).")
    packages: tuple[str, ...] = texts("Maven coordinates added to those of the pipeline.")
    jars: tuple[str, ...] = texts("Jar files or folders of them, used in place of Maven.")
    conf: Mapping[str, str] = mapping("More of Spark's configuration.")


@attrs.frozen(kw_only=True)
class Metrics:
    """The figures for Prometheus."""

    port: int | None = optional_integer("The port that answers /metrics.", low=0, high=65535)
    host: str = text("The address on which it listens.", default="127.0.0.1", is_public=True)


@attrs.frozen(kw_only=True)
class OnFailure:
    """The hook that is called on failures."""

    command: str | None = optional_text(
        "A command with arguments, without a shell, that gets the failure as JSON on its standard "
        "input."
    )
    url: str | None = optional_text(
        "A URL to which the failure is posted as JSON; it is hidden like a password.", secret=True
    )
    timeout: datetime.timedelta = duration(
        "The longest time for the command, and for each answer that the URL's server owes.",
        default="10 seconds",
    )


@attrs.frozen(kw_only=True)
class Maintenance:
    """The maintenance of the tables."""

    every: datetime.timedelta | None = optional_duration(
        "How often a run at an interval does this work between two batches (default: never)."
    )
    target_file_bytes: int = integer(
        "The size of files after compaction.", default=128 << 20, low=1 << 20
    )
    expire_after: datetime.timedelta = duration(
        "The age after which snapshots are removed.", default="7 days"
    )
    keep_snapshots: int = integer("The minimum number of snapshots to keep.", default=10, low=1)
    orphans_after: datetime.timedelta = duration(
        "The age after which files that no snapshot references are removed.", default="3 days"
    )
    forget_deletions_after: datetime.timedelta = duration(
        "The time after which a deletion is removed from `table.deletions`, from when it was "
        "written there.",
        default="7 days",
    )


@attrs.frozen(kw_only=True)
class Pipeline:
    """One pipeline: topics into one table."""

    name: str = text("The pipeline's name; the table stores it.", is_public=True)
    source: Source = section(Source, "The topics, and how to reach them.")
    key: KeyFormat = section(KeyFormat, "The format of the records' keys.")
    value: ValueFormat = section(ValueFormat, "The format of the records' values.")
    registry: Registry = section(
        Registry, "The schema registry, for avro-registry and json-registry."
    )
    columns: Mapping[str, Column] = parsed_mapping(
        "Columns beside the value's own fields, or in place of one, by name: value.a.b, key, "
        "key.a, source.NAME (of a Debezium envelope), headers.NAME, topic, partition, offset, "
        "timestamp or timestamp_type; or a SQL expression over fields and such columns.",
        "places or SQL",
        Column.parse,
    )
    omit: tuple[str, ...] = texts("Fields of the value that the table does not have.")
    transform: str | None = optional_text(
        "A Python function, `module:function`, from the frame of good rows to another."
    )
    expectations: Mapping[str, Expectation] = named_sections(
        Expectation, "Conditions that each row has to meet, by name."
    )
    max_bad_share: float = share(
        "The share of dead letters in a batch above which the run fails before it writes.",
        default=1.0,
    )
    min_bad_records: int = integer(
        "The number of dead letters in a batch below which a `max_bad_share` above 0 does not make "
        "the run fail, so that one bad record does not stop a quiet topic.",
        default=10,
        low=1,
    )
    table: Table = section(Table, "The table, and how records change it.")
    dead_letters: DeadLetters = section(
        DeadLetters, "The destination of records that do not fit; without one the run fails."
    )
    checkpoint: str = text("The folder that stores the offsets; it may be a URL.", is_public=True)
    trigger: Trigger = special(
        "When batches run: available-now writes what is there and ends; or at an interval.",
        "available-now | duration",
        Trigger.parse,
        default=AVAILABLE_NOW,
    )
    patience: datetime.timedelta = duration(
        "How long a run at an interval tries again while brokers, the store or the catalog are "
        "away.",
        default="1 hour",
    )
    limits: Limits = section(Limits, "The size of batches and tasks.")
    commit_group: str | None = optional_text(
        "A consumer group to which offsets are committed after each batch, for tools that show "
        "lag.",
        is_public=True,
    )
    progress: Progress = choice("The report of each batch.", default=Progress.AUTO)
    metrics: Metrics = section(Metrics, "The figures for Prometheus.")
    on_failure: OnFailure = section(
        OnFailure, "What learns of a run that fails for good, or that waits for others."
    )
    maintenance: Maintenance = section(Maintenance, "The work of `kwire-pipeline maintain`.")
    spark: Spark = section(Spark, "The Spark session.")
