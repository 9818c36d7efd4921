"""The check that SQL of the file has the same result for a record in every rerun.

The run that finishes a half-done batch classifies it again. A record that was a dead letter and is
now a row would be in neither table, because the rows are already written; the reverse would put it
in both. So an expectation must depend on its record alone: one that reads the clock, draws a random
number or looks at other records or tables is rejected, unless it only counts. The same holds for
columns that are expressions: a repeated batch would have other rows.
"""

import re
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.config.values import Action
from kwire_pipeline.engine.storage import jvm_of
from kwire_pipeline.errors import Permanent
from kwire_pipeline.explain import sentence
from kwire_pipeline.records.frames import OWN, Shape

PATTERNS: Final = ("CURRENT_LIKE", "PLAN_EXPRESSION", "WINDOW_EXPRESSION", "GENERATOR")
"""Spark's names for expressions that read the clock or session, other tables or other records.

The last one is that of expressions that make several rows of one.
"""
CHECKED: Final = f"{OWN}checked"
WORDS: Final = r"(?:now|today|tomorrow|yesterday)"
TIME_LITERAL: Final = re.compile(rf"\b(?:date|timestamp\w*)\s*'\s*{WORDS}\b", re.IGNORECASE)
"""A literal whose value is the current time when Spark reads the expression."""
TIME_CAST: Final = re.compile(rf"\bcast\({WORDS}(?: \w+)? as (?:date|timestamp)", re.IGNORECASE)
"""The same in a Spark plan, in which each column has a number after its name."""


def check_expectations(frame: DataFrame, shape: Shape) -> None:
    """Raise Permanent for an expectation that Spark cannot read, or that is not repeatable.

    ``frame`` has the columns of rows.
    """
    for name, (sql, action) in shape.expectations.items():
        key = f"expectations.{name}.check"
        try:
            is_repeatable = _is_repeatable(frame, F.expr(sql).cast("boolean"), sql)
        except AnalysisException as error:
            raise Permanent(f"{key}: Spark does not read {sql!r}: {sentence(str(error))}") from None
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
            is_repeatable = _is_repeatable(frame, F.expr(sql), sql)
        except AnalysisException as error:
            reason = sentence(str(error))
            raise Permanent(f"columns.{name}: Spark does not read {sql!r}: {reason}") from None
        if not is_repeatable:
            raise Permanent(
                f"columns.{name}: {sql!r} depends on more than the record (the time, chance, other "
                "records or tables), or makes several rows of it, so a batch that is repeated "
                "would have other rows: use columns of the record alone"
            )


def _is_repeatable(frame: DataFrame, column: Column, sql: str) -> bool:
    """Return whether an expression always has the same value for the same row."""
    # Beside columns of the record, Spark rejects aggregates.
    plan = frame.select("*", column.alias(CHECKED))._jdf.queryExecution().analyzed()
    patterns = jvm_of(frame.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
    is_of_record = not any(plan.containsPattern(getattr(patterns, name)()) for name in PATTERNS)
    has_time = TIME_LITERAL.search(sql) or TIME_CAST.search(plan.toString())
    return is_of_record and not has_time and bool(plan.deterministic())
