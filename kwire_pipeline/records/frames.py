"""A batch as one frame: every record parsed once and put into one class.

`classify` adds the row's columns and the class; `rows` and `misfits` extract their parts. No record
is lost: each is in exactly one class, and the classes' counts add up to the batch.

Rules of this file: the frame's own columns have names that begin with ``__``, which no table column
may. The raw key, value and headers are carried only for misfits. Columns are built once per shape
and cached, because building them takes thousands of calls to the JVM, which cost a small batch more
time than its records.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from kwire_pipeline.config import values
from kwire_pipeline.config.values import Action, Envelope, Format, Root, Tombstones
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import changes, json_text, rescue, unavailable
from kwire_pipeline.records.avro import AvroFields
from kwire_pipeline.records.changes import Changes
from kwire_pipeline.records.fields import (
    DebeziumAvroFields,
    DebeziumFields,
    Fields,
    Frame,
    FramedJsonFields,
    JsonFields,
)
from kwire_pipeline.records.steps import Step, add, choose, keep, take
from kwire_pipeline.records.timestamps import Units

OWN: Final = "__"
PARSED: Final = f"{OWN}parsed"
PARSED_KEY: Final = f"{OWN}parsed_key"
CLASS: Final = f"{OWN}class"
UNMET: Final = f"{OWN}unmet"
BYTES: Final = f"{OWN}bytes"
CARRIED: Final = ("key", "value", "headers")
ORIGIN: Final = ("topic", "partition", "offset", "timestamp")
RAW: Final = (*CARRIED, *ORIGIN)
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
"""A tombstone that is configured to be ignored."""
KEYLESS: Final = 6
"""A column of the table's key is null."""
UNORDERED: Final = 7
"""A column of the table's sequence is null."""
LETTERS: Final = (MISFIT, UNEXPECTED, KEYLESS, UNORDERED)
"""The classes that become dead letters."""
DELETES: Final = f"{OWN}deletes"
"""The column that is true if a change deletes its row."""


@attrs.frozen(kw_only=True)
class Shape:
    """The rules by which records become rows: everything that `classify` needs to know."""

    format: Format
    schema: StructType | None = None
    """The fields of JSON or Avro values; those of the row if it is in an envelope."""
    units: Units = attrs.field(factory=dict)
    avro: AvroFields | None = None
    """The decoding of Avro values."""
    frame: Frame | None = None
    """The schema ids before JSON values, if they have any."""
    key_format: Format = Format.RAW
    key_schema: StructType | None = None
    """The fields of JSON keys."""
    key_units: Units = attrs.field(factory=dict)
    key_avro: AvroFields | None = None
    key_frame: Frame | None = None
    columns: Mapping[str, values.Column] = attrs.field(factory=dict)
    omit: tuple[str, ...] = ()
    expectations: Mapping[str, tuple[str, Action]] = attrs.field(factory=dict)
    """The SQL and the action, by name."""
    rescue_column: str | None = None
    """The column for undeclared fields of JSON values."""
    origin_prefix: str = "kafka_"
    changes: Changes = attrs.field(factory=Changes)

    @property
    def fields(self) -> Fields | None:
        """The fields of values; None if a value is a single column."""
        if self.schema is not None and self.changes.envelope is Envelope.DEBEZIUM:
            places = self.columns.values()
            source = tuple(dict.fromkeys(c.path[0] for c in places if c.root is Root.SOURCE))
            if self.avro is not None:
                return DebeziumAvroFields(self.avro, self.schema, source)
            return DebeziumFields(self.schema, self.units, source=source)
        if self.avro is not None or self.schema is None:
            return self.avro
        return _json_fields(
            self.schema, self.units, self.frame, has_rest=self.rescue_column is not None
        )

    @property
    def key_fields(self) -> Fields | None:
        """The fields of keys; None if a key is a single column."""
        if self.key_avro is not None or self.key_schema is None:
            return self.key_avro
        return _json_fields(self.key_schema, self.key_units, self.key_frame)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the table's columns, in order."""
        omitted = {name.lower() for name in self.omit}
        fields = ["value"] if self.schema is None else self.schema.names
        fields = [name for name in fields if name.lower() not in omitted]
        more = [name for name in self.columns if name not in fields]
        if self.rescue_column is not None:
            more.append(self.rescue_column)
        return (*fields, *more, *self.origin)

    @property
    def origin(self) -> tuple[str, ...]:
        """The names of the columns with a row's topic, partition, offset and timestamp."""
        return tuple(f"{self.origin_prefix}{name}" for name in ORIGIN)

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the columns by which the changes of a key are ordered."""
        topic, partition, offset, _ = self.origin
        return (*self.changes.sequence, partition, offset, topic)

    @property
    def expressions(self) -> Mapping[str, str]:
        """The SQL of the columns that are expressions, by name."""
        every = self.columns.items()
        return {name: c.path[0] for name, c in every if c.root is Root.EXPRESSION}

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the columns that say whether an expression has read a placeholder."""
        rules = self.changes
        fixed = {name.lower() for name in (*rules.keys, *rules.sequence)}
        if not rules.keys or rules.unavailable is None:
            return ()
        names = (name for name in self.expressions if name.lower() not in fixed)
        return tuple(f"{unavailable.READS}{name}" for name in names)

    @cached_property
    def classification(self) -> tuple[Step, ...]:
        """The steps of `classify`."""
        return _classification(self)

    @cached_property
    def row_steps(self) -> tuple[Step, ...]:
        """The steps of `rows`."""
        return keep(F.col(CLASS) == GOOD), choose([F.col(f"`{name}`") for name in self.names])

    @cached_property
    def letter_steps(self) -> tuple[Step, ...]:
        """The steps of `misfits`."""
        return _letter_steps(self)

    @cached_property
    def sums(self) -> tuple[Column, ...]:
        """The aggregates over a classified batch: records per class, and bytes."""
        return _sums(self)

    def check(self) -> None:
        """Raise Refusal if two columns have the same name, or a name that the frames use."""
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


def _json_fields(
    schema: StructType, units: Units, frame: Frame | None, *, has_rest: bool = False
) -> JsonFields:
    if frame is None:
        return JsonFields(schema, units, has_rest)
    return FramedJsonFields(kind=schema, units=units, has_rest=has_rest, frame=frame)


def classify(raw: DataFrame, shape: Shape) -> DataFrame:
    """Return the frame with the row, the class and the dead-letter data of each record."""
    return take(raw, shape.classification)


def inputs(raw: DataFrame, shape: Shape) -> DataFrame:
    """Return the frame whose columns the expressions of `table.columns` may use."""
    return take(raw, (*_envelope_steps(shape), _parts_step(shape)))


def _classification(shape: Shape) -> tuple[Step, ...]:
    # For rows, these data are in the table's columns.
    is_letter = F.col(CLASS).isin(*LETTERS)
    only_of_letters = {f"{OWN}{name}": F.when(is_letter, F.col(f"{OWN}{name}")) for name in CARRIED}
    if not shape.expectations:
        only_of_letters[UNMET] = F.lit(None).cast("array<string>")
    return (
        *_envelope_steps(shape),
        _parts_step(shape),
        *_expression_steps(shape),
        *_change_steps(shape),
        *_expectation_steps(shape),
        add(only_of_letters),
    )


def _parts_step(shape: Shape) -> Step:
    """Keep the columns that come from parts of the records, and the pipeline's own."""
    carried = [F.col(name).alias(f"{OWN}{name}") for name in CARRIED]
    size = F.coalesce(F.length("value"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0))
    return choose(
        [
            *[column.alias(name) for name, column in _columns(shape).items()],
            *carried,
            F.col("timestampType").alias(f"{OWN}{TIMESTAMP_TYPE}"),
            size.cast("bigint").alias(BYTES),
            _with_deletions(_fits(shape), shape).alias(CLASS),
        ]
    )


def _expression_steps(shape: Shape) -> list[Step]:
    """Replace the columns of parts by those of the table, if some of these are expressions."""
    sql = shape.expressions
    if not sql:
        return []
    columns = [F.expr(sql[n]).alias(n) if n in sql else F.col(f"`{n}`") for n in shape.names]
    own = [*(f"{OWN}{name}" for name in (*CARRIED, TIMESTAMP_TYPE)), BYTES, CLASS]
    return [choose([*columns, *map(F.col, own), *_reads(shape)])]


def _reads(shape: Shape) -> list[Column]:
    """Return, for each column that is an expression, whether it reads an unchanged value."""
    sql, kinds, text = shape.expressions, _value_kinds(shape), shape.changes.unavailable or ""
    names = ((flag, flag.removeprefix(unavailable.READS)) for flag in shape.reads)
    return [unavailable.is_read(sql[name], kinds, text).alias(flag) for flag, name in names]


def _value_kinds(shape: Shape) -> dict[str, DataType]:
    """Return the types of the columns that are fields of the value, by name."""
    fields = [] if shape.schema is None else shape.schema.fields
    kinds = {field.name.lower(): field.dataType for field in fields}
    own = dict(kinds)
    for name, place in shape.columns.items():
        if place.root is not Root.EXPRESSION:
            kinds.pop(name.lower(), None)
        if place.root is Root.VALUE and len(place.path) == 1 and place.path[0].lower() in own:
            kinds[name.lower()] = own[place.path[0].lower()]
    return kinds


def _change_steps(shape: Shape) -> list[Step]:
    """Reclassify changes without a key or sequence, as far as no transform makes the columns."""
    own = {name.lower(): F.col(f"`{name}`") for name in shape.names}
    is_change, column = F.col(CLASS).isin(GOOD, DELETION), F.col(CLASS)
    pairs = ((shape.changes.sequence, UNORDERED), (shape.changes.keys, KEYLESS))
    for name, number in ((name.lower(), number) for names, number in pairs for name in names):
        if name in own:
            column = F.when(is_change & own[name].isNull(), F.lit(number)).otherwise(column)
    return [add({CLASS: column})] if shape.changes.keys else []


def _raw(shape: Shape) -> list[Column]:
    """Return the parts of the records in a classified frame; only dead letters have all parts."""
    carried = [F.col(f"{OWN}{name}").alias(name) for name in CARRIED]
    return [*carried, *origin(shape)]


def origin(shape: Shape) -> list[Column]:
    """Return the topic, partition, offset and timestamp of a classified frame's rows."""
    names = zip(shape.origin, ORIGIN, strict=True)
    return [F.col(f"`{column}`").alias(name) for column, name in names]


def classify_misfits(batch: DataFrame, shape: Shape) -> DataFrame:
    """Return a classified frame with its misfits reclassified, using other schemas."""
    is_misfit = F.col(CLASS) == MISFIT
    raw = batch.where(is_misfit).select(
        *_raw(shape), F.col(f"{OWN}{TIMESTAMP_TYPE}").alias("timestampType")
    )
    return batch.where(~is_misfit).unionByName(classify(raw, shape))


def _envelope_steps(shape: Shape) -> list[Step]:
    """Add the envelopes of value and key."""
    parts = ((PARSED, "value", shape.fields), (PARSED_KEY, "key", shape.key_fields))
    return [
        add({name: column})
        for name, part, fields in parts
        if fields is not None
        for column in (fields.parse(F.col(part)), fields.open(F.col(name)))
    ]


def _columns(shape: Shape) -> dict[str, Column]:
    """Return the columns over the raw record and its parsed value, by name.

    These are the table's columns or, if some of them are expressions, all columns that expressions
    can use.
    """
    columns: dict[str, Column] = {}
    raw = dict(zip(shape.origin, ORIGIN, strict=True))
    names = list(shape.names)
    if shape.expressions:
        fields = ["value"] if shape.schema is None else shape.schema.names
        names = list(dict.fromkeys([*fields, *(n for n in names if n not in shape.expressions)]))
    for name in names:
        if name in raw:
            columns[name] = F.col(raw[name])
        elif name == shape.rescue_column and shape.schema is not None:
            rest = F.col(PARSED).getField(json_text.REST)
            columns[name] = rescue.json_rest(rest, shape.schema)
        elif name in shape.columns and name not in shape.expressions:
            columns[name] = _place(shape.columns[name], shape)
        elif shape.fields is not None:
            columns[name] = shape.fields.field(F.col(PARSED), name)
        elif name == "value":
            columns[name] = _plain("value", shape.format)
    return columns


def _place(place: values.Column, shape: Shape) -> Column:
    """Return the column for one place in a record."""
    match place.root:
        case Root.VALUE:
            return _at(place, shape.fields, F.col(PARSED))
        case Root.KEY:
            if shape.key_fields is None and not place.path:
                return _plain("key", shape.key_format)
            return _at(place, shape.key_fields, F.col(PARSED_KEY))
        case Root.SOURCE:
            return changes.source_field(F.col(PARSED), place.path[0])
        case Root.HEADERS:
            return _header(place)
        case Root.TIMESTAMP_TYPE:
            return F.col("timestampType")
    return F.col(place.root.value)


def _header(place: values.Column) -> Column:
    """Return the text of a header; if several have its name, the last one is used."""
    name = place.path[0]
    matching = F.filter(F.col("headers"), lambda header: header["key"] == F.lit(name))
    return F.try_element_at(matching, F.lit(-1))["value"].cast("string")


def _at(place: values.Column, fields: Fields | None, envelope: Column) -> Column:
    """Return the field at a place in a parsed key or value, or the whole."""
    if fields is not None and not place.path:
        return fields.whole(envelope)
    kind: DataType | None = None if fields is None else fields.kind
    names = {name.lower(): name for name in kind.names} if isinstance(kind, StructType) else {}
    own = names.get(place.path[0].lower())
    if fields is None or own is None:
        raise Refusal(f"the {place.root.value} has no field {'.'.join(place.path)}")
    column = fields.field(envelope, own)
    for name in place.path[1:]:
        column = column.getField(name)
    return column


def _plain(name: str, format: Format) -> Column:
    """Return a key or value that is not parsed; text that is not UTF-8 is a misfit (`_fits`)."""
    return F.col(name) if format is Format.RAW else F.col(name).cast("string")


def _fits(shape: Shape) -> Column:
    """Return the class of each record, based only on its value, key and headers."""
    condition = _value_fits(shape) & _key_fits(shape) & _headers_fit(shape)
    return F.when(condition, F.lit(GOOD)).otherwise(F.lit(MISFIT))


def _with_deletions(column: Column, shape: Shape) -> Column:
    """Return the class, taking into account deletions and ignored tombstones."""
    rules, value, fields = shape.changes, F.col("value"), shape.fields
    fits = _key_fits(shape) & _headers_fit(shape)
    deletion = F.when(~fits, F.lit(MISFIT)).otherwise(F.lit(DELETION))
    if isinstance(fields, DebeziumFields | DebeziumAvroFields):
        is_deletion = fields.is_deletion(value, F.col(PARSED))
        column = F.when(is_deletion, deletion).otherwise(column)
    if rules.tombstones is Tombstones.IGNORE:
        column = F.when(value.isNull(), F.lit(IGNORED)).otherwise(column)
    if rules.tombstones is Tombstones.DELETE:
        column = F.when(value.isNull(), deletion).otherwise(column)
    return column


def _value_fits(shape: Shape) -> Column:
    """Return the condition that a record's value has its format and fits its schema."""
    value = F.col("value")
    if shape.fields is not None:
        return shape.fields.fits(value, F.col(PARSED))
    return _is_text(value) if shape.format is Format.STRING else F.lit(True)


def _key_fits(shape: Shape) -> Column:
    """Return the condition that a record's key has its format and fits its schema."""
    key, fields = F.col("key"), shape.key_fields
    if fields is not None:
        fits = fields.fits(key, F.col(PARSED_KEY))
        return F.when(key.isNull(), F.lit(fields.may_be_null)).otherwise(fits)
    return F.lit(True) if shape.key_format is Format.RAW else _is_text(key)


def _headers_fit(shape: Shape) -> Column:
    """Return the condition that the headers used in columns are text."""
    condition = F.lit(True)
    for place in _header_places(shape):
        condition &= _is_text(_header(place))
    return condition


def _header_places(shape: Shape) -> list[values.Column]:
    return [place for place in shape.columns.values() if place.root is Root.HEADERS]


def _is_text(data: Column) -> Column:
    return F.coalesce(F.is_valid_utf8(data.cast("string")), F.lit(True))


def _expectation_steps(shape: Shape) -> list[Step]:
    """Add the names of the expectations that a valid row does not meet, and their effect."""
    if not shape.expectations:
        return []
    unmet = [
        F.when(~F.coalesce(F.expr(sql).cast("boolean"), F.lit(False)), F.lit(name))
        for name, (sql, _) in shape.expectations.items()
    ]
    listed = F.when(F.col(CLASS) == GOOD, F.array_compact(F.array(*unmet)))
    column = F.col(CLASS)
    for action, number in ((Action.DROP, DROPPED), (Action.DEAD_LETTER, UNEXPECTED)):
        names = [name for name, (_, chosen) in shape.expectations.items() if chosen is action]
        if names:
            among = F.arrays_overlap(F.col(UNMET), F.array(*map(F.lit, names)))
            column = F.when(among, F.lit(number)).otherwise(column)
    return [add({UNMET: listed}), add({CLASS: column})]


def _sums(shape: Shape) -> tuple[Column, ...]:
    def of(*numbers: int) -> Column:
        return F.count_if(F.col(CLASS).isin(*numbers))

    unmet = [
        F.count_if(F.array_contains(F.col(UNMET), name)).alias(f"unmet {name}")
        for name in shape.expectations
    ]
    return (
        of(GOOD).alias("good"),
        of(MISFIT, KEYLESS, UNORDERED).alias("misfits"),
        of(UNEXPECTED).alias("unexpected"),
        of(DROPPED).alias("dropped"),
        of(DELETION).alias("deletions"),
        of(IGNORED).alias("ignored"),
        F.coalesce(F.sum(BYTES), F.lit(0)).alias("bytes"),
        *unmet,
    )


def rows(frame: DataFrame, shape: Shape) -> DataFrame:
    """Return the rows for the table."""
    return take(frame, shape.row_steps)


def changes_of(frame: DataFrame, shape: Shape) -> DataFrame:
    """Return the changes by key: rows to write, and deletions, of which only the key matters."""
    columns = [F.col(f"`{name}`") for name in shape.names]
    deletes = (F.col(CLASS) == DELETION).alias(DELETES)
    reads = [F.col(f"`{name}`") for name in shape.reads]
    return frame.where(F.col(CLASS).isin(GOOD, DELETION)).select(*columns, *reads, deletes)


LETTER: Final = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, "
    "partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT, reason STRING"
)
"""The columns of dead letters: the unchanged record, and the reason."""


def misfits(frame: DataFrame, shape: Shape) -> DataFrame:
    """Return the dead letters, each with its reason as text."""
    return take(frame, shape.letter_steps)


def _letter_steps(shape: Shape) -> tuple[Step, ...]:
    raw = [
        *_raw(shape),
        F.col(f"{OWN}{TIMESTAMP_TYPE}").alias(TIMESTAMP_TYPE),
        F.col(UNMET),
        F.col(CLASS),
    ]
    unmet = F.concat(F.lit("expectation not met: "), F.concat_ws(", ", F.col(UNMET)))
    keys, sequence = ", ".join(shape.changes.keys), ", ".join(shape.changes.sequence)
    reason = (
        F.when(F.size(F.col(UNMET)) > 0, unmet)
        .when(F.col(CLASS) == KEYLESS, F.lit(f"the table's key ({keys}) is null"))
        .when(F.col(CLASS) == UNORDERED, F.lit(f"the table's sequence ({sequence}) is null"))
        .otherwise(F.concat_ws("; ", *_words(shape)))
    )
    names = [F.col(name) for name in (*RAW, TIMESTAMP_TYPE)]
    return (
        keep(F.col(CLASS).isin(*LETTERS)),
        choose(raw),
        *_envelope_steps(shape),
        choose([*names, reason.alias("reason")]),
    )


def _words(shape: Shape) -> list[Column]:
    """Return why each part of a misfit does not fit; null for parts that do."""
    headers = [
        F.when(~_is_text(_header(place)), F.lit(f"{place}: not UTF-8"))
        for place in _header_places(shape)
    ]
    return [_value_words(shape), _key_words(shape), *headers]


def _value_words(shape: Shape) -> Column:
    """Return why the value of a misfit does not fit; null if it does."""
    words = F.lit("not UTF-8")
    if shape.fields is not None:
        words = shape.fields.reason(F.col("value"), F.col(PARSED))
    problem = F.when(~_value_fits(shape), words)
    if shape.changes.tombstones is Tombstones.DEAD_LETTER:
        return problem
    return F.when(F.col("value").isNotNull(), problem)


def _key_words(shape: Shape) -> Column:
    """Return why the key of a misfit does not fit; null if it does."""
    key, words = F.col("key"), F.lit("not UTF-8")
    if shape.key_fields is not None:
        why = shape.key_fields.reason(key, F.col(PARSED_KEY))
        words = F.when(key.isNull(), F.lit("null")).otherwise(why)
    return F.when(~_key_fits(shape), F.concat(F.lit("key: "), words))
