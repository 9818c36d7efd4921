"""Rows with the registry's newest schema: which files may have it, and when a run changes to it."""

import json
from collections.abc import Iterator
from typing import cast
from unittest.mock import MagicMock

import attrs
import pytest

from kwire.testing import SchemaRegistry
from kwire_pipeline.config.document import ConfigError, read_document
from kwire_pipeline.config.load import build
from kwire_pipeline.config.model import Pipeline, Registry, Source, Table, ValueFormat
from kwire_pipeline.config.values import Evolution, Format
from kwire_pipeline.engine.following import Adapted, Follower, at_start, newest_of
from kwire_pipeline.engine.identity import Identity, Intent
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.tables.destinations import Destinations
from tests.support.avro_bytes import OLDER, ORDER
from tests.support.pipeline.files import Files

FILE = """\
name: orders
source: {{bootstrap: "127.0.0.1:9092", topics: [{topics}]}}
registry: {{url: "http://127.0.0.1:8081"}}
value: {{{value}}}
table: {{warehouse: lake, name: shop.orders, evolution: {evolution}, partition_by: [region]}}
checkpoint: lake/checkpoint
"""


@pytest.mark.parametrize(
    ("value", "topics", "evolution", "error"),
    [
        ("format: avro-registry, schema: latest", "a", "additive", ""),
        ("format: json-registry, schema: latest, subject: s", "a, b", "widen", ""),
        ("format: json-registry, schema: latest", "a, b", "widen", "value.subject: latest follows"),
        (
            "format: avro-registry, schema: latest",
            "a",
            "freeze",
            "table.evolution: latest needs",
        ),
        ("format: json, schema: latest", "a", "additive", "value.schema: latest needs a registry"),
    ],
)
def test_files_that_follow_a_registry(value: str, topics: str, evolution: str, error: str) -> None:
    text = FILE.format(value=value, topics=topics, evolution=evolution)
    document = read_document("orders.yaml", text, {})
    if not error:
        assert build(document, [], {}).value.schema == "latest"
        return
    with pytest.raises(ConfigError) as raised:
        build(document, [], {})
    assert error in str(raised.value)


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


@pytest.fixture
def pipeline(server: SchemaRegistry) -> Pipeline:
    return Pipeline(
        name="orders",
        source=Source(bootstrap="127.0.0.1:9092", topics=("orders",)),
        value=ValueFormat(format=Format.AVRO_REGISTRY, schema="latest"),
        registry=Registry(url=server.url),
        table=Table(name="shop.orders", evolution=Evolution.ADDITIVE),
        omit=("id",),
        checkpoint="checkpoint",
    )


def test_subject_that_gives_no_schema_is_refused(
    pipeline: Pipeline, server: SchemaRegistry
) -> None:
    with pytest.raises(
        Refusal, match=r"value\.schema: the registry .* has no subject orders-value"
    ):
        newest_of(pipeline)
    server.register("orders-value", "{}", "JSON")
    with pytest.raises(Refusal, match=r"value\.schema: subject orders-value is JSON, not Avro"):
        newest_of(pipeline)
    fields = [{"name": "name", "type": "string"}]
    plain = {"type": "record", "name": "Order", "fields": fields}
    server.register("orders-value", json.dumps(plain))
    with pytest.raises(Refusal, match="does not fit the file: omit: the value's schema has no fie"):
        newest_of(pipeline)


def test_batch_that_was_begun_keeps_its_schema(pipeline: Pipeline, server: SchemaRegistry) -> None:
    server.register("orders-value", OLDER)
    follower = Follower(pipeline, 3, lambda: None, lambda text: None)
    follower.check(3, "the schema that batch 3 began with")
    assert server.requests == []
    follower.check(4, OLDER)
    server.register("orders-value", ORDER)
    follower.check(4, OLDER)
    assert follower.newest is None
    with pytest.raises(Adapted):
        follower.check(5, OLDER)
    assert follower.newest is not None
    assert follower.newest.value.schema == ORDER
    server.failures = 99
    with pytest.raises(Failure, match="answers 5"):
        follower.check(5, ORDER)
    server.failures = 0
    follower.check(5, ORDER)


def test_schema_of_the_file_is_not_asked_for(pipeline: Pipeline, server: SchemaRegistry) -> None:
    value = attrs.evolve(pipeline.value, schema=ORDER)
    own = attrs.evolve(pipeline, value=value)
    Follower(own, None, lambda: None, lambda text: None).check(0, ORDER)
    assert server.requests == []


class Checkpoint(Files):
    """The folder of a checkpoint, and those in it."""

    def at(self, name: str) -> "Checkpoint":
        below = Checkpoint()
        start = f"{name}/"
        below.texts = {
            path.removeprefix(start): text
            for path, text in self.texts.items()
            if path.startswith(start)
        }
        return below


STORED = Identity(
    name="orders",
    pipeline_id="1234567890",
    cluster_id="cluster",
    topics={"orders": "id"},
    table="shop.orders",
    table_id="table",
    dead_letters=None,
    schema=OLDER,
    start={"orders": {0: 0}},
)


@pytest.mark.parametrize(
    ("intent", "expected"),
    [(Intent.CONTINUE, None), (Intent.ADOPT, OLDER), (Intent.FROM_START, ORDER)],
)
def test_damaged_entry_of_the_checkpoint_keeps_no_adoption_from_finishing_its_batch(
    pipeline: Pipeline, server: SchemaRegistry, intent: Intent, expected: str | None
) -> None:
    """The refusal of the entry advises to run with --adopt, or --from-start."""
    server.register("orders-value", ORDER)
    folder = Checkpoint()
    folder.texts = {"spark-12345678/offsets/0": "v1\n{}", "pipeline.json": STORED.dump()}
    destinations = Destinations(table=MagicMock(), dead_letters=None)
    whole = attrs.evolve(pipeline, omit=())

    def schema() -> str | None:
        return at_start(whole, STORED, cast(Folder, folder), destinations, intent).value.schema

    if expected is None:
        with pytest.raises(Refusal, match=r"cannot be read .*, or run with --adopt"):
            schema()
    else:
        assert schema() == expected
