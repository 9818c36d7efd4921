"""A batch as one frame: every record parsed once and put into one class.

`classify` adds the row's columns and the class; `rows` and `misfits` take their part of it. No
record is lost: each is in one class, and the classes' counts add up to the batch.

Rules of this file: names of the frame's own columns begin with ``__``, which no column of a table
may; the raw key, value and headers are carried for misfits only.
"""

from collections.abc import Mapping
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kwire_pipeline.config import values
from kwire_pipeline.config.values import Action, Envelope, Format, Root, Tombstones
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import changes, json_text, rescue
from kwire_pipeline.records.changes import Changes
from kwire_pipeline.records.timestamps import Units

OWN: Final = "__"
PARSED: Final = f"{OWN}parsed"
CLASS: Final = f"{OWN}class"
UNMET: Final = f"{OWN}unmet"
BYTES: Final = f"{OWN}bytes"
RAW: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
TIMESTAMP_TYPE: Final = "timestamp_type"

GOOD: Final = 0
MISFIT: Final = 1
"""The value does not fit the schema."""
UNEXPECTED: Final = 2
"""An expectation with ``dead-letter`` is not met."""
DROPPED: Final = 3
"""An expectation with ``drop`` is not met."""
DELETION: Final = 4
"""The record deletes the row of its key."""
IGNORED: Final = 5
"""A tombstone that means nothing."""
KEYLESS: Final = 6
"""A column of the table's key is null."""
LETTERS: Final = (MISFIT, UNEXPECTED, KEYLESS)
"""The classes that become dead letters."""
DELETES: Final = f"{OWN}deletes"
"""The column of a change that says whether it deletes its row."""

ORIGIN: Final = ("topic", "partition", "offset", "timestamp")


@attrs.frozen(kw_only=True)
class Shape:
    """The way from a record to a row, resolved: what `classify` needs to know."""

    format: Format
    schema: StructType | None = None
    """The schema of JSON values."""
    units: Units = attrs.field(factory=dict)
    key_format: Format = Format.RAW
    key_schema: StructType | None = None
    key_units: Units = attrs.field(factory=dict)
    columns: Mapping[str, values.Column] = attrs.field(factory=dict)
    omit: tuple[str, ...] = ()
    expectations: Mapping[str, tuple[str, Action]] = attrs.field(factory=dict)
    """The SQL and the action by name."""
    rescue_column: str | None = None
    """The column for undeclared fields of JSON values."""
    origin_prefix: str = "kafka_"
    changes: Changes = attrs.field(factory=Changes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the table's columns, in order."""
        if self.schema is not None:
            fields = [field.name for field in self.schema.fields if field.name not in self.omit]
        else:
            fields = [] if "value" in self.omit else ["value"]
        more = [name for name in self.columns if name not in fields]
        if self.rescue_column is not None:
            more.append(self.rescue_column)
        return (*fields, *more, *(f"{self.origin_prefix}{name}" for name in ORIGIN))

    def check(self) -> None:
        """Raise Refusal if two columns have one name, or a name that the frames use."""
        names: dict[str, str] = {}
        for name in self.names:
            if name.startswith(OWN):
                raise Refusal(f"column {name}: names that begin with {OWN} are the pipeline's own")
            if name.lower() in names:
                raise Refusal(
                    f"two columns are called {name}: rename one with `columns` and `omit`, or the "
                    "pipeline's own with table.origin_prefix"
                )
            names[name.lower()] = name


def classify(raw: DataFrame, shape: Shape) -> DataFrame:
    """Return the frame with the row, the class and what a dead letter needs of each record."""
    parsed = raw
    if shape.schema is not None:
        envelope = json_text.parse(
            F.col("value"),
            F.col("offset"),
            shape.schema,
            has_rest=shape.rescue_column is not None,
        )
        parsed = raw.withColumn(PARSED, envelope)
        parsed = _with_envelope(raw, parsed, shape, shape.schema)
    columns = _columns(shape)
    keyless = _lacks_key({name.lower(): column for name, column in columns.items()}, shape)
    carried = [F.col(name).alias(f"{OWN}{name}") for name in RAW]
    size = F.coalesce(F.length("value"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0))
    whole = parsed.select(
        *[column.alias(name) for name, column in columns.items()],
        *carried,
        F.col("timestampType").alias(f"{OWN}{TIMESTAMP_TYPE}"),
        size.cast("bigint").alias(BYTES),
        _with_changes(_fits(shape), keyless, shape).alias(CLASS),
    )
    return _only_misfits_raw(_with_expectations(whole, shape))


def _with_envelope(
    raw: DataFrame, parsed: DataFrame, shape: Shape, schema: StructType
) -> DataFrame:
    """Return the frame with the parsed value; of an envelope of changes, with its row."""
    if shape.changes.envelope is Envelope.NONE:
        return parsed
    whole = json_text.parse(F.col("value"), F.col("offset"), changes.envelope_schema(schema))
    return raw.withColumn(PARSED, whole).withColumn(PARSED, changes.open_envelope(F.col(PARSED)))


def _columns(shape: Shape) -> dict[str, Column]:
    """Return the table's columns over the raw record and its parsed value, by name."""
    columns: dict[str, Column] = {}
    for name in shape.names:
        if name in shape.columns:
            columns[name] = _place(shape.columns[name], shape)
        elif shape.schema is not None and name in shape.schema.names:
            columns[name] = json_text.field(F.col(PARSED), name, shape.schema, shape.units)
        elif name == "value":
            columns[name] = _plain("value", shape.format)
    if shape.rescue_column is not None and shape.schema is not None:
        rest = F.col(PARSED).getField(json_text.REST)
        columns[shape.rescue_column] = rescue.json_rest(rest, shape.schema)
    for name in ORIGIN:
        columns[f"{shape.origin_prefix}{name}"] = F.col(name)
    return columns


def _place(place: values.Column, shape: Shape) -> Column:
    """Return the column for one place in a record."""
    match place.root:
        case Root.VALUE:
            if shape.schema is None or place.path[0] not in shape.schema.names:
                raise Refusal(f"the value has no field {'.'.join(place.path)}")
            column = json_text.field(F.col(PARSED), place.path[0], shape.schema, shape.units)
            for name in place.path[1:]:
                column = column.getField(name)
            return column
        case Root.KEY:
            if place.path:
                raise Refusal(f"key.{'.'.join(place.path)}: keys have no fields in this version")
            return _plain("key", shape.key_format)
        case Root.HEADERS:
            name = place.path[0]
            matching = F.filter(F.col("headers"), lambda header: header["key"] == F.lit(name))
            return F.try_element_at(matching, F.lit(-1))["value"].cast("string")
        case Root.TIMESTAMP_TYPE:
            return F.col("timestampType")
    return F.col(place.root.value)


def _plain(name: str, format: Format) -> Column:
    """Return a key or value that is not parsed; text that is not UTF-8 is a misfit (`_fits`)."""
    return F.col(name) if format is Format.RAW else F.col(name).cast("string")


def _fits(shape: Shape) -> Column:
    """Return the class of each record by its value and key alone."""
    condition = F.lit(True)
    if shape.schema is not None:
        condition = json_text.fits(
            F.col("value"), F.col(PARSED), F.col("offset"), shape.schema, shape.units
        )
    elif shape.format is Format.STRING:
        condition = F.coalesce(F.is_valid_utf8(F.col("value").cast("string")), F.lit(True))
    return F.when(condition & _key_fits(shape), F.lit(GOOD)).otherwise(F.lit(MISFIT))


def _key_fits(shape: Shape) -> Column:
    """Return the condition that a record's key is of its format."""
    if shape.key_format is Format.RAW:
        return F.lit(True)
    return F.coalesce(F.is_valid_utf8(F.col("key").cast("string")), F.lit(True))


def _lacks_key(columns: Mapping[str, Column], shape: Shape) -> Column:
    """Return the condition that a column of the table's key is null.

    Those that a transform makes are not known here.
    """
    condition = F.lit(False)
    for name in shape.changes.keys:
        if name.lower() in columns:
            condition |= columns[name.lower()].isNull()
    return condition


def _with_changes(column: Column, keyless: Column, shape: Shape) -> Column:
    """Return the class with what records mean as changes: deletions, and what is ignored."""
    rules, value = shape.changes, F.col("value")
    deletion = F.when(~_key_fits(shape), F.lit(MISFIT)).when(keyless, F.lit(KEYLESS))
    deletion = deletion.otherwise(F.lit(DELETION))
    if rules.keys:
        column = F.when((column == GOOD) & keyless, F.lit(KEYLESS)).otherwise(column)
    if rules.envelope is Envelope.DEBEZIUM:
        operation = F.col(PARSED).getField(changes.OPERATION)
        is_deletion = F.equal_null(operation, F.lit(changes.DELETES)) & json_text.is_one_text(
            value, F.col(PARSED), F.col("offset")
        )
        column = F.when(is_deletion, deletion).otherwise(column)
    if rules.tombstones is Tombstones.IGNORE:
        column = F.when(value.isNull(), F.lit(IGNORED)).otherwise(column)
    if rules.tombstones is Tombstones.DELETE:
        column = F.when(value.isNull(), deletion).otherwise(column)
    return column


def _with_expectations(frame: DataFrame, shape: Shape) -> DataFrame:
    """Add the names of the expectations that a fitting row does not meet, and their effect."""
    if not shape.expectations:
        return frame.withColumn(UNMET, F.lit(None).cast("array<string>"))
    unmet = [
        F.when(~F.coalesce(F.expr(sql).cast("boolean"), F.lit(False)), F.lit(name))
        for name, (sql, _) in shape.expectations.items()
    ]
    listed = F.when(F.col(CLASS) == GOOD, F.array_compact(F.array(*unmet)))
    frame = frame.withColumn(UNMET, listed)
    column = F.col(CLASS)
    for action, number in ((Action.DROP, DROPPED), (Action.DEAD_LETTER, UNEXPECTED)):
        names = [name for name, (_, chosen) in shape.expectations.items() if chosen is action]
        if names:
            among = F.arrays_overlap(F.col(UNMET), F.array(*map(F.lit, names)))
            column = F.when(among, F.lit(number)).otherwise(column)
    return frame.withColumn(CLASS, column)


def _only_misfits_raw(frame: DataFrame) -> DataFrame:
    """Drop the raw bytes of rows, which the table has in columns."""
    is_letter = F.col(CLASS).isin(*LETTERS)
    raw = {f"{OWN}{name}": F.when(is_letter, F.col(f"{OWN}{name}")) for name in RAW[:3]}
    return frame.withColumns(raw)


def rows(frame: DataFrame, shape: Shape) -> DataFrame:
    """Return the rows for the table."""
    return frame.where(F.col(CLASS) == GOOD).select(*[F.col(f"`{n}`") for n in shape.names])


def changes_of(frame: DataFrame, shape: Shape) -> DataFrame:
    """Return the changes by key: rows to write, and deletions, of which only the key counts."""
    columns = [F.col(f"`{name}`") for name in shape.names]
    deletes = (F.col(CLASS) == DELETION).alias(DELETES)
    return frame.where(F.col(CLASS).isin(GOOD, DELETION)).select(*columns, deletes)


LETTER: Final = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, "
    "partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT, reason STRING"
)
"""The columns of dead letters: the record unchanged, and the reason."""


def misfits(frame: DataFrame, shape: Shape) -> DataFrame:
    """Return the dead letters, each with the reason in words."""
    letters = frame.where(F.col(CLASS).isin(*LETTERS)).select(
        *[F.col(f"{OWN}{name}").alias(name) for name in RAW],
        F.col(f"{OWN}{TIMESTAMP_TYPE}").alias(TIMESTAMP_TYPE),
        F.col(UNMET),
        F.col(CLASS),
    )
    if shape.schema is not None:
        envelope = json_text.parse(F.col("value"), F.col("offset"), shape.schema)
        parsed = letters.withColumn(PARSED, envelope)
        letters = _with_envelope(letters, parsed, shape, shape.schema)
        letters = letters.withColumn("reason", _words(shape, shape.schema))
    else:
        letters = letters.withColumn("reason", F.lit("not UTF-8"))
    unmet = F.concat(F.lit("expectation not met: "), F.concat_ws(", ", F.col(UNMET)))
    keys = ", ".join(shape.changes.keys)
    reason = (
        F.when(F.size(F.col(UNMET)) > 0, unmet)
        .when(F.col(CLASS) == KEYLESS, F.lit(f"the table's key ({keys}) is null"))
        .otherwise(F.col("reason"))
    )
    names = [*RAW, TIMESTAMP_TYPE]
    return letters.select(*names, reason.alias("reason"))


def _words(shape: Shape, schema: StructType) -> Column:
    """Return the reason in words of a JSON value that does not fit."""
    value, parsed, offset = F.col("value"), F.col(PARSED), F.col("offset")
    if shape.changes.envelope is Envelope.NONE:
        return json_text.reason(value, parsed, offset, schema, shape.units)
    return json_text.reason(
        value,
        parsed,
        offset,
        schema,
        shape.units,
        row=changes.row_text(value, parsed),
        row_problem=changes.envelope_problem(parsed),
    )
