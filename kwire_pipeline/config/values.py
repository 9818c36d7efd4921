"""The values of keys that have their own form: columns, partitions, starts, triggers.

Rules of this file: a value is frozen and stores what the file says in a form that needs no further
parsing; ``parse`` raises ValueError with a text that shows an example. Nothing here depends on
Spark.
"""

import datetime
import enum
import re
from collections.abc import Mapping
from typing import Final

import attrs

from kwire_pipeline.config.declare import Plain, choices, read_duration

NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"


class Format(enum.Enum):
    """The format of a record's key or value."""

    RAW = "raw"
    """The bytes unchanged, in one column of type BINARY."""
    STRING = "string"
    """UTF-8 text, in one column of type STRING."""
    JSON = "json"
    AVRO = "avro"
    """One Avro datum without a header, with the schema in the file."""
    AVRO_REGISTRY = "avro-registry"
    """Avro after a magic byte and the id of a schema in a registry."""
    JSON_REGISTRY = "json-registry"
    """JSON text after a magic byte and the id of a JSON Schema in a registry."""


WITH_REGISTRY: Final = {Format.AVRO_REGISTRY: "AVRO", Format.JSON_REGISTRY: "JSON"}
"""The formats whose schemas are in a registry, with the registry's names of their types."""


LATEST: Final = "latest"
"""The registry's newest schema, in place of a schema."""


class TimestampUnit(enum.Enum):
    """The unit of a number in a TIMESTAMP field, or ISO 8601 text."""

    SECONDS = "seconds"
    MILLIS = "millis"
    MICROS = "micros"
    ISO = "iso"


class Action(enum.Enum):
    """The treatment of a record that does not meet an expectation."""

    WARN = "warn"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"
    FAIL = "fail"


class Mode(enum.Enum):
    """The kind of change that a record makes to the table."""

    APPEND = "append"
    UPSERT = "upsert"


class Envelope(enum.Enum):
    """The structure around the row in a value."""

    NONE = "none"
    DEBEZIUM = "debezium"


class Tombstones(enum.Enum):
    """The meaning of a record whose value is null."""

    DEAD_LETTER = "dead-letter"
    DELETE = "delete"
    IGNORE = "ignore"


class Evolution(enum.Enum):
    """The changes of the table's schema that a run may make."""

    FREEZE = "freeze"
    ADDITIVE = "additive"
    WIDEN = "widen"
    RESCUE = "rescue"


class TableFormat(enum.Enum):
    """The format of the table and of the dead-letter table."""

    ICEBERG = "iceberg"
    DELTA = "delta"
    PARQUET = "parquet"


class CatalogType(enum.Enum):
    """The type of an Iceberg catalog."""

    HADOOP = "hadoop"
    REST = "rest"
    HIVE = "hive"
    GLUE = "glue"
    JDBC = "jdbc"


class Protocol(enum.Enum):
    """The security protocol of the brokers' listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class Mechanism(enum.Enum):
    """The SASL mechanism."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    GSSAPI = "GSSAPI"
    AWS_MSK_IAM = "AWS_MSK_IAM"
    """The mechanism of Amazon's library, which has to be in `spark.packages`."""


WITH_USER: Final = (Mechanism.PLAIN, Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)
"""The mechanisms with a username and a password."""


class Isolation(enum.Enum):
    """The treatment of records from aborted or open transactions."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Progress(enum.Enum):
    """The format in which a run reports each batch."""

    AUTO = "auto"
    """``terminal`` if the output is a terminal, else ``json``."""
    TERMINAL = "terminal"
    JSON = "json"
    NONE = "none"


# Columns ---------------------------------------------------------------------------------------
class Root(enum.Enum):
    """The part of a record from which a column comes."""

    VALUE = "value"
    KEY = "key"
    SOURCE = "source"
    """The block ``source`` of a Debezium envelope."""
    HEADERS = "headers"
    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    TIMESTAMP_TYPE = "timestamp_type"
    EXPRESSION = "expression"
    """No part of a record: an expression over the columns that come from its parts."""


IS_EXPRESSION: Final = re.compile(r"""(?!headers\.).*[\s()'"+*/|<>=]""", re.DOTALL)
"""Matches the text of an expression: it contains a character that only expressions have."""


@attrs.frozen
class Column:
    """The place in a record from which a column of the table comes, or an expression."""

    root: Root
    path: tuple[str, ...] = ()
    """The fields below the root; as one element the name of a header, or SQL."""

    @classmethod
    def parse(cls, text: str) -> "Column":
        """Parse ``value.customer.id``, ``key``, ``headers.source``, ``offset``, ``upper(item)``."""
        if IS_EXPRESSION.match(text):
            return cls(Root.EXPRESSION, (text,))
        head, *path = text.split(".")
        try:
            root = Root(head)
            if root is Root.EXPRESSION:
                raise ValueError
        except ValueError:
            roots = choices([m.value for m in Root if m is not Root.EXPRESSION])
            raise ValueError(
                f"{text!r} is not a place in a record: expected {roots}, then fields after dots, "
                "such as value.customer.id"
            ) from None
        if root is Root.HEADERS:
            path = [".".join(path)] if path else []
        if not all(path) or (root in (Root.VALUE, Root.SOURCE, Root.HEADERS) and not path):
            raise ValueError(f"{text!r} names no field: expected {head}.NAME")
        if path and root not in (Root.VALUE, Root.KEY, Root.SOURCE, Root.HEADERS):
            raise ValueError(f"{text!r}: {head} has no fields")
        if root is Root.SOURCE and len(path) > 1:
            raise ValueError(f"{text!r}: the fields of source have no fields; expected source.NAME")
        return cls(root, tuple(path))

    def __str__(self) -> str:
        if self.root is Root.EXPRESSION:
            return self.path[0]
        return ".".join((self.root.value, *self.path))


# Partitions and the sort order -----------------------------------------------------------------
class Transform(enum.Enum):
    """The function of a column's value by which rows are partitioned."""

    IDENTITY = "identity"
    YEARS = "years"
    MONTHS = "months"
    DAYS = "days"
    HOURS = "hours"
    BUCKET = "bucket"
    TRUNCATE = "truncate"


@attrs.frozen
class Partition:
    """One part of the table's partition spec."""

    column: str
    transform: Transform = Transform.IDENTITY
    argument: int | None = None
    """The number of buckets, or the width of a truncated value."""

    @classmethod
    def parse(cls, text: str) -> "Partition":
        """Parse ``country``, ``days(ordered_at)``, ``bucket(16, customer)``."""
        if re.fullmatch(NAME, text.strip()):
            return cls(text.strip())
        match = re.fullmatch(rf"\s*(\w+)\s*\(\s*(?:([0-9]+)\s*,)?\s*({NAME})\s*\)\s*", text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a partition: expected a column, or a transform such as "
                "days(ordered_at) or bucket(16, customer)"
            )
        name, argument, column = match.groups()
        try:
            transform = Transform(name.lower())
        except ValueError:
            transforms = choices([member.value for member in Transform])
            raise ValueError(f"{text!r}: there is no {name}(); expected {transforms}") from None
        if (transform in (Transform.BUCKET, Transform.TRUNCATE)) != (argument is not None):
            example = f"{name}(column)" if argument else f"{name}(16, {column})"
            raise ValueError(f"{text!r}: expected {example}")
        if argument is not None and int(argument) == 0:
            raise ValueError(f"{text!r}: expected a number above 0")
        return cls(column, transform, None if argument is None else int(argument))

    def __str__(self) -> str:
        if self.transform is Transform.IDENTITY:
            return self.column
        arguments = self.column if self.argument is None else f"{self.argument}, {self.column}"
        return f"{self.transform.value}({arguments})"


@attrs.frozen
class Sort:
    """One part of the table's sort order."""

    column: str
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> "Sort":
        """Parse ``ordered_at`` or ``ordered_at desc``."""
        match = re.fullmatch(rf"\s*({NAME})(?:\s+(asc|desc))?\s*", text, re.IGNORECASE)
        if match is None:
            raise ValueError(
                f"{text!r} is not a sort order: expected a column, asc or desc after it"
            )
        return cls(match[1], (match[2] or "").lower() == "desc")

    def __str__(self) -> str:
        return f"{self.column} desc" if self.descending else self.column


# Starts and triggers ---------------------------------------------------------------------------
@attrs.frozen(kw_only=True)
class Start:
    """The offsets at which a pipeline without a checkpoint begins. At most one field is set."""

    at_end: bool = False
    """True for the end of each partition; if no field is set, its beginning."""
    timestamp_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] | None = None
    """By topic and partition."""

    @classmethod
    def parse(cls, value: Plain) -> "Start":
        """Parse ``earliest``, ``latest``, a time, or a mapping of topics to offsets."""
        if isinstance(value, Mapping):
            return cls(offsets={topic: _offsets(topic, plain) for topic, plain in value.items()})
        if value in ("earliest", "latest"):
            return cls(at_end=value == "latest")
        try:
            return cls(timestamp_ms=_epoch_ms(datetime.datetime.fromisoformat(str(value))))
        except ValueError:
            raise ValueError(
                f"expected earliest, latest, a time such as 2026-11-01T00:00:00Z, or offsets such "
                f"as {{orders: {{0: 100}}}}, not {value!r}"
            ) from None

    def __str__(self) -> str:
        if self.offsets is not None:
            return str({topic: dict(offsets) for topic, offsets in self.offsets.items()})
        if self.timestamp_ms is not None:
            when = datetime.datetime.fromtimestamp(self.timestamp_ms / 1000, datetime.UTC)
            return when.isoformat()
        return "latest" if self.at_end else "earliest"


def _epoch_ms(when: datetime.datetime) -> int:
    """Return milliseconds since 1970; a time without a zone is taken as UTC."""
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return int(when.timestamp() * 1000)


MAX_PARTITION: Final = (1 << 31) - 1
MAX_OFFSET: Final = (1 << 63) - 1


def _offsets(topic: str, value: Plain) -> dict[int, int]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{topic}: expected offsets by partition, such as {{0: 100, 1: 200}}")
    try:
        offsets = {int(partition): int(str(offset)) for partition, offset in value.items()}
    except ValueError:
        raise ValueError(f"{topic}: partitions and offsets are whole numbers") from None
    if any(partition < 0 or offset < 0 for partition, offset in offsets.items()):
        raise ValueError(f"{topic}: partitions and offsets begin at 0")
    if any(
        partition > MAX_PARTITION or offset > MAX_OFFSET for partition, offset in offsets.items()
    ):
        raise ValueError(f"{topic}: a partition or an offset is too large")
    return offsets


AVAILABLE_NOW: Final = "available-now"


@attrs.frozen
class Trigger:
    """The schedule of a run's batches."""

    interval: datetime.timedelta | None = None
    """None for available-now: process what is available, then end."""

    @classmethod
    def parse(cls, value: Plain) -> "Trigger":
        """Parse ``available-now`` or an interval such as ``30 seconds``."""
        if value == AVAILABLE_NOW:
            return cls()
        try:
            return cls(read_duration(value))
        except ValueError:
            raise ValueError(
                f"expected {AVAILABLE_NOW} or an interval such as 30 seconds, not {value!r}"
            ) from None

    @property
    def available_now(self) -> bool:
        """True if the run ends once what was available at its start is written."""
        return self.interval is None

    def __str__(self) -> str:
        if self.interval is None:
            return AVAILABLE_NOW
        return f"{self.interval.total_seconds():g} seconds"
