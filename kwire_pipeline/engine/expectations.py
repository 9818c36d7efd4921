"""Checks that SQL in the file has the same result for a record in every rerun.

The run that finishes a half-done batch classifies it again. A record that was a dead letter and is
now a row would be in neither table, because the rows are already written; the reverse would put it
in both. So an expectation must depend on its record alone: one that reads the clock, draws a random
number or looks at other records or tables is rejected, unless it only counts. The same holds for
columns that are expressions: a repeated batch would have different rows. Neither may add or remove
records.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from py4j.java_gateway import JavaObject, JavaPackage
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.config.values import Action
from kwire_pipeline.engine.storage import jvm_of
from kwire_pipeline.errors import Permanent
from kwire_pipeline.explain import sentence
from kwire_pipeline.records.frames import OWN, Shape

PATTERNS: Final = ("CURRENT_LIKE", "PLAN_EXPRESSION", "WINDOW_EXPRESSION")
"""Spark's names for expressions that read the clock or session, other tables or other records."""
CHECKED: Final = f"{OWN}checked"
KEEPING: Final = ("Project", "Window")
"""Spark's operators that return each record exactly once."""
TIME_LITERAL: Final = re.compile(
    r"""\b(?:date|timestamp\w*)\s*r?["']\s*(?:now|today|tomorrow|yesterday)\b""", re.IGNORECASE
)
"""A literal whose value is the current time when Spark reads the expression."""
EPOCH: Final = re.compile(r"'\s*epoch\s*'", re.IGNORECASE)
"""The only special time of Spark that is always the same."""


def check_expectations(frame: DataFrame, shape: Shape) -> None:
    """Raise Permanent for an expectation that Spark cannot read, or that is not repeatable.

    ``frame`` has the columns of rows.
    """
    for name, (sql, action) in shape.expectations.items():
        key = f"expectations.{name}.check"
        try:
            plan = _plan(frame, _expression(sql).cast("boolean"))
        except AnalysisException as error:
            raise Permanent(
                f"{key}: Spark does not accept {sql!r}: {sentence(str(error))}"
            ) from None
        _check_records(frame, plan, key, sql)
        is_repeatable = _is_repeatable(frame, plan, sql)
        if not is_repeatable and action is not Action.WARN:
            raise Permanent(
                f"{key}: {sql!r} depends on more than the record (the time, chance, other records "
                "or tables), so a batch that is repeated could lose records: compare columns, such "
                f"as {shape.origin_prefix}timestamp for the time, or set its action to warn"
            )


def check_columns(frame: DataFrame, shape: Shape) -> None:
    """Raise Permanent for a column whose expression Spark cannot read, or is not repeatable.

    ``frame`` has the columns that expressions can name.
    """
    for name, sql in shape.expressions.items():
        try:
            plan = _plan(frame, _expression(sql))
        except AnalysisException as error:
            reason = sentence(str(error))
            raise Permanent(f"columns.{name}: Spark does not accept {sql!r}: {reason}") from None
        _check_records(frame, plan, f"columns.{name}", sql)
        if not _is_repeatable(frame, plan, sql):
            raise Permanent(
                f"columns.{name}: {sql!r} depends on more than the record (the time, chance, other "
                "records or tables), so a batch that is repeated would have other rows: use "
                "columns of the record alone"
            )


def _expression(sql: str) -> Column:
    """Return the column to check, in which an epoch does not look like a time that passes."""
    return F.expr(EPOCH.sub("'1970-01-01'", sql))


def _plan(frame: DataFrame, column: Column) -> JavaObject:
    """Return Spark's analyzed plan of a frame with one more column."""
    # Spark rejects aggregates in a select that also has plain columns.
    return frame.select("*", column.alias(CHECKED))._jdf.queryExecution().analyzed()


def _check_records(frame: DataFrame, plan: JavaObject, key: str, sql: str) -> None:
    """Raise Permanent if an expression would add or remove records.

    For some expressions, Spark adds operators below the new column: for window(), an operator that
    drops records without a time, or repeats records that are in several windows.
    """
    before = _operators(frame._jdf.queryExecution().analyzed())
    if any(name not in KEEPING for name in _operators(plan) - before):
        raise Permanent(
            f"{key}: {sql!r} leaves out records or makes several rows of one, as window() and "
            "explode() do: use an expression with one value for each record, such as date_trunc "
            "for a time"
        )


def _operators(plan: JavaObject) -> Counter[str]:
    """Return how often a plan has each operator, by the name of its class."""
    return Counter(node.getClass().getSimpleName() for node in _tree(plan))


def _tree(node: JavaObject) -> Iterator[JavaObject]:
    """Yield a node of Spark's plan, and all nodes below it."""
    yield node
    for child in _each(node.children()):
        yield from _tree(child)


def _each(sequence: JavaObject) -> Iterator[JavaObject]:
    return (sequence.apply(index) for index in range(sequence.size()))


def _is_repeatable(frame: DataFrame, plan: JavaObject, sql: str) -> bool:
    """Return whether an expression always has the same value for the same row."""
    catalyst = jvm_of(frame.sparkSession).org.apache.spark.sql.catalyst
    patterns = catalyst.trees.TreePattern
    is_of_record = not any(plan.containsPattern(getattr(patterns, name)()) for name in PATTERNS)
    replaced = catalyst.optimizer.ReplaceExpressions.apply(plan)
    return (
        is_of_record
        and bool(plan.deterministic())
        and not TIME_LITERAL.search(sql)
        and not _has_time(catalyst.optimizer, replaced)
        and not _encrypts_by_chance(replaced)
    )


def _has_time(optimizer: JavaPackage, plan: JavaObject) -> bool:
    """Return whether Spark replaces a text, such as ' Now ', with the current time."""
    return not optimizer.SpecialDatetimeValues.apply(plan).fastEquals(plan)


def _encrypts_by_chance(plan: JavaObject) -> bool:
    """Return whether the plan encrypts a text with a random initialization vector.

    Spark considers such an expression deterministic.
    """
    nodes = (node for expression in _each(plan.expressions()) for node in _tree(expression))
    calls = (node for node in nodes if node.getClass().getSimpleName() == "StaticInvoke")
    return any(_draws(call.arguments()) for call in calls if call.functionName() == "aesEncrypt")


def _draws(arguments: JavaObject) -> bool:
    """Return whether a call of aesEncrypt draws a vector: it has neither ECB mode nor a vector."""
    mode, vector = arguments.apply(2), arguments.apply(4)
    if mode.foldable() and str(mode.eval(None)).upper() == "ECB":
        return False
    return bool(vector.foldable()) and vector.eval(None) == b""
