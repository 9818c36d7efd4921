"""The preparation of tables before a run: creation, and the changes that the file allows."""

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.engine import schema
from kwire_pipeline.engine.by_key.sequence import deletions_schema
from kwire_pipeline.engine.shape_and_tables import rows_schema
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.frames import Shape
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import Table


def check_tables(pipeline: Pipeline, destinations: Destinations, *, is_new_start: bool) -> None:
    """Raise Refusal if a new start cannot delete rows, or if the table of deletions is not right.

    Without the table of deletions, late changes would write deleted rows again.
    """
    table, deletions = destinations.table, destinations.deletions
    if deletions is not None and deletions.exists():
        check_deletions(pipeline, deletions, destinations.table)
    if is_new_start:
        for each in destinations.tables:
            if each.exists():
                each.check_delete()
    elif deletions is not None and table.exists() and table.keys() and not deletions.exists():
        raise Refusal(
            f"the table {pipeline.table.deletions} no longer exists, and older changes of deleted "
            "keys would write their rows again: restore it, or run with --from-start"
        )


def check_deletions(pipeline: Pipeline, deletions: Table, table: Table) -> None:
    """Raise Refusal if the table of deletions remembers the deleted keys of another table.

    They would keep changes of the same keys out of this table. Pipelines that write the same table
    share its deletions.
    """
    own = {pipeline.name, *(table.owners() if table.exists() else ())}
    if others := sorted(deletions.owners().keys() - own):
        raise Refusal(
            f"table.deletions: pipeline {others[0]} uses {pipeline.table.deletions} as well, but "
            f"does not write {pipeline.table.name}, so keys that it deletes would be missing here: "
            "choose another name"
        )


def prepare_tables(
    spark: SparkSession, pipeline: Pipeline, shape: Shape, destinations: Destinations
) -> None:
    """Create the tables, or change their columns as far as the configuration allows."""
    rows = rows_schema(spark, shape, destinations.transform)
    table, letters, rule = destinations.table, destinations.dead_letters, shape.changes.rule
    if letters is not None:
        letters.check_ready()
    if table.exists():
        check_mode(table, rule, pipeline.table.name)
    if destinations.deletions is not None:
        # This comes before the table gets its rule, which requires the table of deletions.
        columns = deletions_schema(rows, shape)
        _fit(destinations.deletions, columns, pipeline, pipeline.table.deletions or "")
    _fit(table, rows, pipeline, pipeline.table.name)
    if table.keys() != rule:
        table.set_keys(rule)
    if letters is not None:
        expected = schema.parse_ddl(frames.LETTER, "dead letters")
        if not letters.exists():
            letters.create(expected)
        elif changes := schema.difference(letters.columns(), expected):
            raise Refusal(
                f"{pipeline.dead_letters.table} is not a table of dead letters "
                f"({'; '.join(changes.words())}): choose another name"
            )


def _fit(table: Table, rows: StructType, pipeline: Pipeline, name: str) -> None:
    """Create a table, or change its columns as far as the configuration allows."""
    if not table.exists():
        table.create(rows)
        return
    table.check_partitions()
    changes = schema.difference(table.columns(), rows)
    schema.check(changes, pipeline.table.evolution, name)
    if changes:
        table.evolve(changes)


def check_mode(table: Table, rule: Sequence[str], name: str) -> None:
    """Raise Refusal if earlier runs wrote the table in another mode, or with other keys."""
    former = table.keys()
    if former == rule or (not former and not table.owners()):
        return
    was = f"changes by the keys {', '.join(former)}" if former else "appended rows"
    now = f"changes by the keys {', '.join(rule)}" if rule else "appended rows"
    raise Refusal(
        f"{name} has {was}, and this file has {now}: correct table.mode, table.keys "
        "and table.sequence_by, or choose a new table"
    )
