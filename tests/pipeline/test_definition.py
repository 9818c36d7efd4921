"""A half-done batch is finished only under the definition of rows that began it."""

import attrs
import pytest

from kwire_pipeline.config.model import DeadLetters, Expectation, Pipeline, Source, Table
from kwire_pipeline.config.model import ValueFormat as Value
from kwire_pipeline.config.values import (
    Action,
    Column,
    Evolution,
    Mode,
    TimestampUnit,
    Tombstones,
)
from kwire_pipeline.engine.definition import definition_of

PIPELINE = Pipeline(
    name="orders",
    source=Source(bootstrap="127.0.0.1:9092", topics=("orders",)),
    value=Value(schema="id STRING"),
    table=Table(name="shop.orders"),
    columns={"a": Column.parse("key"), "b": Column.parse("offset")},
    expectations={"some": Expectation(check="id > 1")},
    checkpoint="lake/checkpoint",
)
OTHERS = {
    "schema": attrs.evolve(PIPELINE, value=Value(schema="id INT")),
    "timestamps": attrs.evolve(
        PIPELINE, value=Value(schema="id STRING", timestamps={"id": TimestampUnit.MILLIS})
    ),
    "columns": attrs.evolve(
        PIPELINE, columns={"a": Column.parse("key"), "b": Column.parse("partition")}
    ),
    "omit": attrs.evolve(PIPELINE, omit=("id",)),
    "check": attrs.evolve(PIPELINE, expectations={"some": Expectation(check="id > 2")}),
    "action": attrs.evolve(
        PIPELINE, expectations={"some": Expectation(check="id > 1", action=Action.DROP)}
    ),
    "transform": attrs.evolve(PIPELINE, transform="orders:clean"),
    "mode": attrs.evolve(PIPELINE, table=Table(name="shop.orders", mode=Mode.UPSERT, keys=("id",))),
    "tombstones": attrs.evolve(
        PIPELINE, table=Table(name="shop.orders", tombstones=Tombstones.IGNORE)
    ),
    "rescue": attrs.evolve(
        PIPELINE, table=attrs.evolve(PIPELINE.table, evolution=Evolution.RESCUE)
    ),
    "letter topic": attrs.evolve(PIPELINE, dead_letters=DeadLetters(topic="dead")),
    "dead letters": attrs.evolve(PIPELINE, dead_letters=DeadLetters(table="shop.dead")),
}


@pytest.mark.parametrize("case", OTHERS)
def test_keys_that_decide_over_a_record_change_the_definition(case: str) -> None:
    assert definition_of(OTHERS[case]) != definition_of(PIPELINE)


def test_other_keys_and_the_order_of_columns_do_not() -> None:
    columns = dict(reversed(list(PIPELINE.columns.items())))
    other = attrs.evolve(PIPELINE, columns=columns, max_bad_share=0.5, transform=None)
    assert definition_of(other) == definition_of(PIPELINE)
