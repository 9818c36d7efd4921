"""The check that expectations judge a record the same at each rerun.

A batch that is half done is classified again by the run that finishes it. A record that was a dead
letter and is a row now would be in neither table, since the rows are there already; one that was a
row would be in both. So an expectation depends on its record alone: one that reads the clock, draws
a number or asks other records or tables is refused, unless it only counts.
"""

import re
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.config.values import Action
from kwire_pipeline.engine.storage import jvm_of
from kwire_pipeline.errors import Refusal
from kwire_pipeline.explain import sentence
from kwire_pipeline.records.frames import OWN, Shape

PATTERNS: Final = ("CURRENT_LIKE", "PLAN_EXPRESSION", "WINDOW_EXPRESSION")
"""Spark's names for what reads the clock or the session, other tables, and other records."""
CHECKED: Final = f"{OWN}checked"
WORDS: Final = r"(?:now|today|tomorrow|yesterday)"
TIME_LITERAL: Final = re.compile(rf"\b(?:date|timestamp\w*)\s*'\s*{WORDS}\b", re.IGNORECASE)
"""A literal whose value is that of the clock when Spark reads the expression."""
TIME_CAST: Final = re.compile(rf"\bcast\({WORDS}(?: \w+)? as (?:date|timestamp)", re.IGNORECASE)
"""The same in a plan of Spark, in which each column has a number after its name."""


def check_expectations(frame: DataFrame, shape: Shape) -> None:
    """Raise Refusal for an expectation that Spark cannot read, or that does not repeat itself.

    The frame has the columns of rows.
    """
    for name, (sql, action) in shape.expectations.items():
        key = f"expectations.{name}.check"
        try:
            is_repeatable = _is_repeatable(frame, sql)
        except AnalysisException as error:
            raise Refusal(f"{key}: Spark does not read {sql!r}: {sentence(str(error))}") from None
        if not is_repeatable and action is not Action.WARN:
            raise Refusal(
                f"{key}: {sql!r} depends on more than the record (the time, chance, other records "
                "or tables), so a batch that is repeated could lose records: compare columns, such "
                f"as {shape.origin_prefix}timestamp for the time, or set its action to warn"
            )


def _is_repeatable(frame: DataFrame, sql: str) -> bool:
    """Whether an expression has the same value for the same row at any time."""
    # Beside columns of the record Spark refuses aggregates.
    plan = (
        frame.select("*", F.expr(sql).cast("boolean").alias(CHECKED))
        ._jdf.queryExecution()
        .analyzed()
    )
    patterns = jvm_of(frame.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
    is_of_record = not any(plan.containsPattern(getattr(patterns, name)()) for name in PATTERNS)
    has_time = TIME_LITERAL.search(sql) or TIME_CAST.search(plan.toString())
    return is_of_record and not has_time and bool(plan.deterministic())
