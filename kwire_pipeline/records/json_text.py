"""JSON text in a record, parsed once.

Spark's parser stops after the first value, and ignores the text after it. So the text is parsed as
the first element of an array whose second element is a mark. If the mark is not read back from
there, the text was not exactly one value. If it were parsed inside an object, a text such as
``{"id":1},"x":2`` would only add a name that is not read. If a key occurs twice, the last value is
used, as in most parsers. Bytes that are not UTF-8 do not fit, because Spark would replace them.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from kwire_pipeline.config.values import TimestampUnit
from kwire_pipeline.records import exponents, required, timestamps
from kwire_pipeline.records.timestamps import Units

ELEMENTS: Final = "(elements)"
"""The array's field; a text that ends the array early could add fields only under this name."""
VALUE: Final = "value"
REST: Final = "rest"
END: Final = "(end)"
"""The field of the mark, a name that no schema has: rows are parsed together with it."""
MARK: Final = f'{{"{END}":true}}'
CORRUPT: Final = "corrupt"
NO_OBJECT: Final = "not a JSON object"


def parse(data: Column, schema: StructType, *, has_rest: bool = False) -> Column:
    """Return the parsed text, which `open_array` turns into the envelope of a JSON object.

    With ``has_rest``, the text is also included as a VARIANT with all fields.
    """
    element = StructType([*_parsed_fields(schema), StructField(END, BooleanType(), True)])
    fields = [
        StructField(ELEMENTS, ArrayType(element, True), True),
        StructField(CORRUPT, StringType(), True),
    ]
    text = data.cast("string")
    if exponents.has_decimal(schema):
        text = F.when(~exponents.is_huge(text, schema), text)
    parts = [F.lit(f'{{"{ELEMENTS}":['), text, F.lit(f",{MARK}]")]
    if has_rest:
        fields.append(StructField(REST, VariantType(), True))
        parts += [F.lit(f',"{REST}":'), text]
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return F.from_json(F.concat(*parts, F.lit("}")), StructType(fields), options)


def _parsed_fields(schema: StructType) -> list[StructField]:
    return [StructField(f.name, timestamps.parsed_type(f.dataType), True) for f in schema.fields]


def open_array(parsed: Column, *, has_rest: bool = False) -> Column:
    """Return the envelope of `parse`'s result; the functions below read its fields."""
    elements = parsed.getField(ELEMENTS)
    rest = [parsed.getField(REST).alias(REST)] if has_rest else []
    return F.struct(
        F.get(elements, F.lit(0)).alias(VALUE),
        F.get(elements, F.lit(1)).getField(END).alias(END),
        parsed.getField(CORRUPT).alias(CORRUPT),
        *rest,
    )


def is_one_text(data: Column, envelope: Column) -> Column:
    """Return the condition that the text is one JSON value of the declared types."""
    return (
        data.isNotNull()
        & F.is_valid_utf8(data.cast("string"))
        & envelope.getField(CORRUPT).isNull()
        & envelope.getField(END).isNotNull()
    )


def is_whole(data: Column, envelope: Column) -> Column:
    """Return the condition that the text is one JSON object of the declared types."""
    return is_one_text(data, envelope) & envelope.getField(VALUE).isNotNull()


def fits(data: Column, envelope: Column, schema: StructType, units: Units) -> Column:
    """Return the condition that a record's text is one object that fits the schema."""
    misfits = [
        timestamps.unread(envelope.getField(VALUE).getField(f.name), f.dataType, units, f.name)
        for f in schema.fields
    ]
    misfits += [required.lacks_field(envelope.getField(VALUE), f) for f in schema.fields]
    conditions = [condition for condition in misfits if condition is not None]
    whole = is_whole(data, envelope)
    return F.coalesce(whole & ~timestamps.any_of(conditions), F.lit(False))


def field(envelope: Column, name: str, schema: StructType, units: Units) -> Column:
    """Return one top-level field in its declared type."""
    column = envelope.getField(VALUE).getField(name)
    return timestamps.convert(column, schema[name].dataType, units, name)


def reason(
    data: Column,
    envelope: Column,
    schema: StructType,
    units: Units,
    *,
    row: Column | None = None,
    row_problem: Column | None = None,
) -> Column:
    """Return, as text, why a record does not fit; only for misfits, because it parses again.

    ``row`` is the text of the object that has the fields, if that is only part of the value;
    ``row_problem`` describes a value without such a part, else it is null.
    """
    text = data.cast("string")
    row = text if row is None else row
    row_problem = F.lit(None).cast("string") if row_problem is None else row_problem
    # `parse` does not read the mark after a value of another type; names are read after any.
    names = F.json_object_keys(F.concat(F.lit(f'{{"{VALUE}":'), text, F.lit(f',"{END}":0}}')))
    is_one_value = F.equal_null(names, F.array(F.lit(VALUE), F.lit(END)))
    first_value = F.get_json_object(text, "$")
    problems = [
        problem
        for schema_field in schema.fields
        for problem in _problems(row, envelope.getField(VALUE), schema_field, units)
    ]
    words = F.concat_ws("; ", *problems)
    return (
        F.when(data.isNull(), F.lit("the value is null"))
        .when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
        .when(~is_one_value & first_value.isNull(), F.lit("not JSON"))
        .when(~is_one_value, F.lit("text after the JSON value"))
        .when(_is_left_out(text, schema), F.lit("a number has too large an exponent"))
        .when(envelope.getField(VALUE).isNull() & _is_no_object(first_value), F.lit(NO_OBJECT))
        .when(row_problem.isNotNull(), row_problem)
        .when(words != "", words)
        .otherwise(F.lit("not of the declared shape"))
    )


def _is_left_out(text: Column, schema: StructType) -> Column:
    """Return the condition that `parse` skipped a text."""
    return exponents.is_huge(text, schema) if exponents.has_decimal(schema) else F.lit(False)


def _is_no_object(first_value: Column) -> Column:
    """Return the condition that the value is not an object."""
    return ~F.coalesce(F.ltrim(first_value).startswith("{"), F.lit(False))


def _misreading(kind: DataType, unit: TimestampUnit | None) -> str:
    """Return a text for a value of this type that cannot be converted."""
    if "timestamp" not in kind.simpleString():
        return f"not {kind.simpleString()}"
    return "no timestamp" if unit is None else f"no timestamp in {unit.value}"


def _problems(text: Column, value: Column, schema_field: StructField, units: Units) -> list[Column]:
    """Return columns with a text for each problem of one field; null where there is none."""
    name, kind = schema_field.name, schema_field.dataType
    column = value.getField(name)
    is_given = F.get_json_object(text, f"$['{name}']").isNotNull()
    bad = timestamps.unread(column, kind, units, name)
    unreadable = column.isNull() & is_given
    problems = [F.when(unreadable, F.lit(f"{name} is not {kind.simpleString()}"))]
    if bad is not None:
        problems.append(
            F.when(bad, F.lit(f"{name} is {_misreading(kind, timestamps.unit_of(units, name))}"))
        )
    if not schema_field.nullable:
        problems.append(F.when(column.isNull() & ~is_given, F.lit(f"{name} is missing")))
    lacks = required.lacks_required(column, kind)
    if lacks is not None:
        problems.append(F.when(lacks, F.lit(f"{name} lacks a required field")))
    return problems
