"""Steps from one frame to another, whose columns are built once and work with any frame.

A column is only a description: its names refer to the columns of the frame that it is used with.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import Column, DataFrame

Step: TypeAlias = Callable[[DataFrame], DataFrame]


def add(columns: Mapping[str, Column]) -> Step:
    """Return a step that adds columns, replacing those of the same names."""
    return lambda frame: frame.withColumns(dict(columns))


def choose(columns: Sequence[Column]) -> Step:
    """Return a step that keeps only these columns, in this order."""
    return lambda frame: frame.select(*columns)


def keep(condition: Column) -> Step:
    """Return a step that keeps only the rows that meet a condition."""
    return lambda frame: frame.where(condition)


def take(frame: DataFrame, steps: Sequence[Step]) -> DataFrame:
    """Return the frame after all steps."""
    for step in steps:
        frame = step(frame)
    return frame
