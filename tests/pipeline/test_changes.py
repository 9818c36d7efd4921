"""Records as changes by key: which row is written or deleted, and which record does not fit."""

import base64
import datetime
import hashlib
import json
from typing import Any

import attrs
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from kwire_pipeline.config.values import Column, Envelope, Format, Tombstones
from kwire_pipeline.engine.by_key.key_proof import KeyProof, Sides, compare_keys
from kwire_pipeline.engine.by_key.letters import check_readable, without_followed
from kwire_pipeline.engine.by_key.sequence import apply_changes, check_remembered, without_older
from kwire_pipeline.engine.by_key.upsert import all_changes, check_keys, check_no_null, last_changes
from kwire_pipeline.engine.proof import compare
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.engine.shape_and_tables import RAW_DDL
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records import frames
from kwire_pipeline.records.changes import Changes
from kwire_pipeline.records.frames import Shape, classify, misfits
from kwire_pipeline.records.unavailable import is_unavailable
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import older_deletions
from tests.support.pipeline.frames import plan


@pytest.fixture(scope="module")
def by_key(spark: SparkSession) -> Shape:
    """Rows by the record's key; a tombstone deletes."""
    return Shape(
        format=Format.JSON,
        schema=parse_ddl("n INT NOT NULL", "value.schema"),
        key_format=Format.STRING,
        columns={"id": Column.parse("key")},
        changes=Changes(keys=("id",), tombstones=Tombstones.DELETE),
    )


@pytest.fixture(scope="module")
def debezium(spark: SparkSession) -> Shape:
    """Rows of envelopes, by a field of the row."""
    return Shape(
        format=Format.JSON,
        schema=parse_ddl("id BIGINT NOT NULL, name STRING NOT NULL, n INT", "value.schema"),
        changes=Changes(keys=("id",), envelope=Envelope.DEBEZIUM, tombstones=Tombstones.IGNORE),
    )


def topic(
    spark: SparkSession, records: list[tuple[str | bytes | None, object]], partition: int = 0
) -> DataFrame:
    """Return records of one partition; a value that is no text or bytes becomes JSON."""

    def encode(value: object) -> bytearray | None:
        if value is None:
            return None
        if isinstance(value, bytes):
            return bytearray(value)
        return bytearray((value if isinstance(value, str) else json.dumps(value)).encode())

    data = [
        (encode(key), encode(value), "t", partition, offset, None, 0, None)
        for offset, (key, value) in enumerate(records)
    ]
    return spark.createDataFrame(data, RAW_DDL)


def reasons(batch: DataFrame, shape: Shape) -> dict[int, str]:
    return {row.offset: row.reason for row in misfits(batch, shape).collect()}


def last(batch: DataFrame, shape: Shape) -> dict[object, Row]:
    rows = last_changes(all_changes(batch, shape, None), shape).collect()
    return {row.id: row for row in rows}


def test_last_change_of_a_key_counts(spark: SparkSession, by_key: Shape) -> None:
    first = topic(
        spark,
        [
            ("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("b", None), ("c", None),
            ("c", {"n": 4}), ("d", {"n": 5}), ("a", "{"),
        ],
    )  # fmt: skip
    batch = classify(first.unionAll(topic(spark, [("d", {"n": 6})], partition=1)), by_key)
    changes = last(batch, by_key)
    assert {k: (row.n, row[frames.DELETES]) for k, row in changes.items()} == {
        "a": (3, False), "b": (None, True), "c": (4, False), "d": (6, False),
    }  # fmt: skip
    assert (changes["a"].kafka_offset, changes["d"].kafka_partition) == (2, 1)
    assert reasons(batch, by_key) == {7: "not JSON"}


def test_record_without_its_key_is_a_dead_letter(spark: SparkSession, by_key: Shape) -> None:
    records: list[tuple[str | bytes | None, object]] = [
        (None, {"n": 1}), (None, None), (b"\xff", None), (b"\xff", {"n": 1}),
    ]  # fmt: skip
    batch = classify(topic(spark, records), by_key)
    assert last(batch, by_key) == {}
    keyless = "the table's key (id) is null"
    assert [reasons(batch, by_key)[n] for n in (0, 1)] == [keyless, keyless]
    assert len(reasons(batch, by_key)) == 4


@pytest.mark.parametrize("tombstones", Tombstones)
def test_tombstone_deletes_or_is_ignored_or_does_not_fit(
    spark: SparkSession, by_key: Shape, tombstones: Tombstones
) -> None:
    shape = attrs.evolve(by_key, changes=attrs.evolve(by_key.changes, tombstones=tombstones))
    batch = classify(topic(spark, [("a", None)]), shape)
    classes = [row[frames.CLASS] for row in batch.collect()]
    assert (
        classes
        == {
            Tombstones.DELETE: [frames.DELETION],
            Tombstones.IGNORE: [frames.IGNORED],
            Tombstones.DEAD_LETTER: [frames.MISFIT],
        }[tombstones]
    )
    assert len(last(batch, shape)) == (tombstones is Tombstones.DELETE)


def change(op: str, before: object, after: object) -> dict[str, object]:
    return {"before": before, "after": after, "op": op, "ts_ms": 1, "source": {"lsn": 9}}


def test_debezium_operations_write_and_delete_rows(spark: SparkSession, debezium: Shape) -> None:
    """The image before a deletion may have the key alone; a schema may lie beside the payload."""
    ann, bob = {"id": 1, "name": "ann", "n": 5}, {"id": 2, "name": "bob"}
    batch = classify(
        topic(
            spark,
            [
                ("k", change("r", None, ann)),
                ("k", change("c", None, bob)),
                ("k", {"schema": {}, "payload": change("u", ann, {**ann, "n": 6})}),
                ("k", change("d", {"id": 2}, None)),
                ("k", None),
                ("k", {"payload": change("c", None, {"id": 3, "name": "c"})}),
                ("k", {"payload": change("d", {"id": 3, "name": "c"}, None)}),
            ],
        ),
        debezium,
    )
    changes = {k: (r.name, r.n, r[frames.DELETES]) for k, r in last(batch, debezium).items()}
    assert changes[1] == ("ann", 6, False)
    assert (changes[2][2], changes[3][2]) == (True, True)
    assert reasons(batch, debezium) == {}


DEBEZIUM_MISFITS = [
    (change("t", None, None), "op is not c, u, r or d"),
    ({"id": 1, "name": "ann"}, "op is not c, u, r or d"),
    (change("u", None, None), "after is missing"),
    (change("d", None, None), "the table's key (id) is null"),
    (change("d", {"name": "ann"}, None), "the table's key (id) is null"),
    (change("c", None, {"id": 1}), "name is missing"),
    ({"payload": change("c", None, {"id": 1})}, "name is missing"),
    (change("c", None, {"id": 1, "name": "ann", "n": "many"}), "n is not int"),
    ("[]", "not a JSON object"),
    ("{", "not JSON"),
]


def test_envelope_that_is_no_change_is_a_dead_letter(spark: SparkSession, debezium: Shape) -> None:
    """One batch has them all, because each needs two queries of Spark."""
    batch = classify(topic(spark, [("k", value) for value, _ in DEBEZIUM_MISFITS]), debezium)
    assert reasons(batch, debezium) == dict(enumerate(reason for _, reason in DEBEZIUM_MISFITS))
    assert last(batch, debezium) == {}


def test_an_envelope_is_parsed_once(
    spark: SparkSession, debezium: Shape, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("raw") / "raw")
    topic(spark, [("k", change("c", None, {"id": 1, "name": "a"}))]).write.parquet(folder)
    batch = classify(spark.read.schema(RAW_DDL).parquet(folder), debezium).persist()
    for frame in (
        last_changes(all_changes(batch, debezium, None), debezium),
        batch.groupBy(frames.CLASS).count(),
    ):
        assert plan(frame).count("from_json(") == 1
        assert plan(frame).count("FileScan") == 1
    batch.unpersist()


@pytest.mark.parametrize("is_expression_of_number", [False, True])
def test_expression_over_an_unchanged_value_keeps_the_value_of_the_row(
    spark: SparkSession, debezium: Shape, is_expression_of_number: bool
) -> None:
    """The hash of the placeholder would replace that of the text, and nobody would notice."""
    sql = "length(name)" if is_expression_of_number else "sha2(lower(`name`), 256)"
    shape = attrs.evolve(
        debezium,
        columns={"mask": Column.parse(sql), "m": Column.parse("n + 1")},
        omit=("name",),
        changes=attrs.evolve(debezium.changes, unavailable=TOAST),
    )
    records = [
        ("k", change("c", None, {"id": 1, "name": "ann", "n": 1})),
        ("k", change("u", None, {"id": 1, "name": TOAST, "n": 2})),
        ("k", change("u", None, {"id": 2, "name": TOAST, "n": 3})),
        ("k", change("d", {"id": 3}, None)),
    ]
    changes = last(classify(topic(spark, list(records)), shape), shape)
    mask = 3 if is_expression_of_number else hashlib.sha256(b"ann").hexdigest()
    names = ("mask", "__keeps_mask", "m", "__keeps_m")
    assert {key: tuple(row[name] for name in names) for key, row in changes.items()} == {
        1: (mask, False, 3, False), 2: (None, True, 4, False), 3: (None, False, None, False),
    }  # fmt: skip
    assert not [name for name in changes[1].asDict() if name.startswith("__reads_")]


def test_a_transform_sees_rows_and_deletions_pass_it_by(spark: SparkSession, by_key: Shape) -> None:
    def transform(frame: DataFrame) -> DataFrame:
        return frame.where("n > 1").withColumn("double", F.col("n") * 2)

    batch = classify(topic(spark, [("a", {"n": 1}), ("b", {"n": 2}), ("c", None)]), by_key)
    changes = all_changes(batch, by_key, transform)
    assert sorted((row.id, row.double, row[frames.DELETES]) for row in changes.collect()) == [
        ("b", 4, False),
        ("c", None, True),
    ]
    check_keys(changes, by_key)
    with pytest.raises(Refusal, match="the transform's rows lack the column id"):
        check_keys(changes.drop("id"), by_key)
    by_double = attrs.evolve(by_key, changes=attrs.evolve(by_key.changes, keys=("double",)))
    with pytest.raises(Refusal, match="double is made by the transform"):
        check_keys(changes, by_double)
    before = changes.schema
    check_keys(changes.drop("double"), by_key, before)
    with pytest.raises(Refusal, match="transform changes the type of id, and deletions do not"):
        check_keys(changes.withColumn("id", F.lit(1)), by_key, before)


@pytest.fixture(scope="module")
def by_log(spark: SparkSession) -> Shape:
    """Rows of envelopes, ordered by the position in the database's log."""
    return Shape(
        format=Format.JSON,
        schema=parse_ddl("id BIGINT NOT NULL, name STRING", "value.schema"),
        columns={"lsn": Column.parse("source.lsn")},
        changes=Changes(keys=("id",), envelope=Envelope.DEBEZIUM, sequence=("lsn",)),
    )


def in_log(op: str, row: object, lsn: object) -> dict[str, object]:
    images = (row, None) if op == "d" else (None, row)
    return change(op, *images) | {"source": {"lsn": lsn, "ts_ms": 1}}


def test_change_with_the_highest_sequence_is_the_last(spark: SparkSession, by_log: Shape) -> None:
    """Equal ones count by their offsets; numbers are not compared as texts."""
    first = topic(
        spark,
        [
            ("k", in_log("c", {"id": 1, "name": "new"}, 10)),
            ("k", in_log("u", {"id": 1, "name": "late"}, 9)),
            ("k", {"payload": in_log("d", {"id": 2}, 7)}),
            ("k", in_log("u", {"id": 2, "name": "late"}, 6)),
            ("k", in_log("u", {"id": 3, "name": "first"}, 5)),
            ("k", in_log("u", {"id": 3, "name": "second"}, 5)),
        ],
    )
    late = topic(spark, [("k", in_log("u", {"id": 1, "name": "older"}, 2))], partition=1)
    changes = last(classify(first.unionAll(late), by_log), by_log)
    assert {key: (row.name, row.lsn) for key, row in changes.items()} == {
        1: ("new", 10), 2: (None, 7), 3: ("second", 5),
    }  # fmt: skip
    assert changes[2][frames.DELETES]


def test_change_without_a_sequence_is_a_dead_letter(spark: SparkSession, by_log: Shape) -> None:
    row = {"id": 1, "name": "a"}
    records: list[tuple[str | bytes | None, object]] = [
        ("k", in_log("c", row, None)),
        ("k", in_log("d", row, "x")),
        ("k", {"op": "c", "after": row}),
        ("k", in_log("c", {"name": "a"}, 1)),
    ]
    batch = classify(topic(spark, records), by_log)
    assert last(batch, by_log) == {}
    unordered = "the table's sequence (lsn) is null"
    assert reasons(batch, by_log) == {**dict.fromkeys((0, 1, 2), unordered), 3: "id is missing"}


def test_change_that_is_older_than_a_deletion_is_left_out(
    spark: SparkSession, by_log: Shape
) -> None:
    records = [("k", in_log("u", {"id": n, "name": "a"}, 10)) for n in (1, 2, 3, 4)]
    changes = last_changes(
        all_changes(classify(topic(spark, [*records]), by_log), by_log, None), by_log
    )
    names = "id BIGINT, lsn BIGINT, kafka_partition INT, kafka_offset BIGINT, kafka_topic STRING"
    deleted = [(1, 11, 0, 0, "t"), (2, 9, 0, 9, "t"), (3, 10, 0, 9, "t"), (9, 99, 0, 0, "t")]
    rest = without_older(changes, spark.createDataFrame(deleted, names), by_log)
    assert sorted(row.id for row in rest.collect()) == [2, 4]


@attrs.define
class Deletions:
    """A table that takes changes, and a table of deletions."""

    forgotten: datetime.datetime | None = None
    merged: list[DataFrame] = attrs.field(factory=list)

    def merge(self, changes: DataFrame, *_: object) -> None:
        self.merged.append(changes)

    def read(self) -> DataFrame:
        return self.merged[0]

    def forgotten_before(self) -> datetime.datetime | None:
        return self.forgotten


def changes_of_long_ago(spark: SparkSession, shape: Shape) -> DataFrame:
    """Return a deletion, and a change that no deletion precedes; both are 20 days old."""
    records = [("k", in_log("d", {"id": 1}, 7)), ("k", in_log("u", {"id": 2, "name": "a"}, 8))]
    days_ago = F.current_timestamp() - F.expr("INTERVAL 20 DAYS")
    batch = classify(topic(spark, [*records]).withColumn("timestamp", days_ago), shape)
    return last_changes(all_changes(batch, shape, None), shape)


def test_deletion_is_forgotten_some_time_after_it_was_written(
    spark: SparkSession, by_log: Shape
) -> None:
    """Older changes of its key may be in partitions that are read later, however old it is."""
    table: Any = Deletions()
    destinations = Destinations(table=table, dead_letters=None, deletions=table)
    apply_changes(changes_of_long_ago(spark, by_log), by_log, destinations, None)
    now = datetime.datetime.now(datetime.UTC)
    for days, count in ((-7, 0), (1, 1)):
        older = older_deletions(now + datetime.timedelta(days=days))
        assert table.merged[0].where(older).count() == count


def test_change_is_refused_if_a_deletion_after_it_may_be_forgotten(
    spark: SparkSession, by_log: Shape
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    changes = changes_of_long_ago(spark, by_log)
    for days in (None, 21):
        time = None if days is None else now - datetime.timedelta(days=days)
        table: Any = Deletions(time)
        check_remembered(
            changes, by_log, Destinations(table=table, dead_letters=None, deletions=table)
        )
    table = Deletions(now - datetime.timedelta(days=19))
    destinations = Destinations(table=table, dead_letters=None, deletions=table)
    with pytest.raises(Refusal, match="changes at offsets 1 to 1 of partition 0 of "):
        check_remembered(changes, by_log, destinations)


def test_letter_is_left_out_if_a_later_change_of_its_key_is_known(
    spark: SparkSession, by_key: Shape
) -> None:
    """A change in another partition may be later, and counts as one."""
    records = [(key, {"n": 1}) for key in "abcde"]
    changes = last_changes(
        all_changes(classify(topic(spark, [*records]), by_key), by_key, None), by_key
    )
    names = "id STRING, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"
    others: list[tuple[object, ...]] = [
        ("a", "t", 0, 9),
        ("b", "t", 0, 0),
        ("b", "t", 0, 1),
        ("c", "t", 1, 0),
    ]
    others += [("d", "other", 0, 0), ("e", None, None, None), ("f", "t", 0, 9)]
    rest = without_followed(changes, spark.createDataFrame(others, names), by_key)
    assert sorted(row.id for row in rest.collect()) == ["b", "e"]


@pytest.mark.parametrize(
    ("beginning", "policy", "is_refused"),
    [(5, "delete", False), (6, "delete", True), (0, "compact,delete", True)],
)
def test_letters_are_not_replayed_if_a_deletion_after_them_may_be_gone(
    beginning: int, policy: str, is_refused: bool
) -> None:
    start, beginnings = {"t": {0: 5}}, {"t": {0: beginning, 1: 99}}
    if is_refused:
        with pytest.raises(Refusal, match="topic t may no longer have a deletion"):
            check_readable(start, beginnings, {"t": policy})
    else:
        check_readable(start, beginnings, {"t": policy})


def test_sequence_that_has_no_order_is_refused(spark: SparkSession, by_log: Shape) -> None:
    rows = spark.createDataFrame([], "id BIGINT, lsn ARRAY<BIGINT>")
    with pytest.raises(Refusal, match="lsn is array<bigint>, which has no order"):
        check_keys(rows, by_log)


@pytest.mark.parametrize(
    ("key", "sequence", "words"),
    [
        ("id", "LSN", "table.sequence_by: the column LSN is called lsn"),
        ("Id", "lsn", "table.keys: the column Id is called id"),
    ],
)
def test_column_of_a_sequence_in_another_case_is_refused(
    spark: SparkSession, by_log: Shape, key: str, sequence: str, words: str
) -> None:
    """The table of deletions is made of columns by their exact names."""
    changes = attrs.evolve(by_log.changes, keys=(key,), sequence=(sequence,))
    shape = attrs.evolve(by_log, changes=changes)
    rows = spark.createDataFrame([], "id BIGINT, name STRING, lsn BIGINT")
    check_keys(rows, by_log)
    with pytest.raises(Refusal, match=words):
        check_keys(rows, shape)


def test_sequence_by_a_column_of_the_origin_has_deletions_beside_a_transform(
    spark: SparkSession, by_key: Shape
) -> None:
    changes = attrs.evolve(by_key.changes, sequence=("kafka_timestamp",))
    shape = attrs.evolve(by_key, changes=changes)
    batch = classify(topic(spark, [("a", {"n": 1}), ("b", None)]), shape)
    rows = all_changes(batch, shape, lambda frame: frame)
    assert rows.columns.count("kafka_timestamp") == 1


def test_number_of_a_source_is_ordered_as_one(spark: SparkSession, debezium: Shape) -> None:
    """The 10th row of a transaction is newer than the 9th, unlike the texts "10" and "9"."""
    names = ("row", "ord", "event_serial_no", "xmin", "server_id", "pos", "lsn", "ts_ns")
    columns = {f"its_{name}": Column.parse(f"source.{name}") for name in names}
    schema = classify(topic(spark, []), attrs.evolve(debezium, columns=columns)).schema
    assert {schema[name].dataType.simpleString() for name in columns} == {"bigint"}


def test_transform_that_makes_a_key_null_is_refused(spark: SparkSession, by_key: Shape) -> None:
    """All such rows would be one row, and the others would be lost."""
    batch = classify(topic(spark, [("a", {"n": 1}), ("b", {"n": 2}), ("c", {"n": 3})]), by_key)
    unchanged = last_changes(all_changes(batch, by_key, None), by_key)
    check_no_null(unchanged, by_key.changes)

    def transform(frame: DataFrame) -> DataFrame:
        return frame.withColumn("id", F.when(F.col("n") < 2, F.col("id")))

    changes = last_changes(all_changes(batch, by_key, transform), by_key)
    with pytest.raises(Refusal, match="makes rows whose id is null"):
        check_no_null(changes, by_key.changes)


def prove(
    spark: SparkSession,
    changes: list[tuple[str, int, int, bool]],
    rows: list[tuple[str, int, int]],
    *,
    start: int = 0,
    compacted: list[str] | None = None,
) -> KeyProof:
    """Compare changes (key, partition, offset, deletes) with rows (key, partition, offset)."""
    keys = "id STRING, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"
    empty = spark.createDataFrame([], "topic STRING, partition INT, offset BIGINT")
    sides = Sides(
        changes=spark.createDataFrame(
            [(k, "t", p, o, d) for k, p, o, d in changes], f"{keys}, {frames.DELETES} BOOLEAN"
        ),
        rows=spark.createDataFrame([(k, "t", p, o) for k, p, o in rows], keys),
        keys=("id",),
        origin=("kafka_topic", "kafka_partition", "kafka_offset"),
        start={"t": {0: start, 1: start}},
        end={"t": {0: 100, 1: 100}},
        compacted=compacted or [],
    )
    return compare_keys(sides, 9, compare(empty.withColumn("dropped", F.lit(False)), empty))


def test_each_key_has_its_last_change(spark: SparkSession) -> None:
    changes = [("a", 0, 1, False), ("a", 0, 5, False), ("b", 0, 2, False), ("b", 0, 3, True)]
    proof = prove(spark, changes, [("a", 0, 5)])
    assert (proof.current, proof.deleted) == (1, 1)
    assert proof.is_clean
    assert "1 rows have the last change of their key, 1 keys are deleted" in proof.words()[0]


def test_key_without_its_last_change_is_no_proof(spark: SparkSession) -> None:
    """The name of a key says what its rows are."""
    changes = [
        ("missing", 0, 1, False), ("missing", 0, 2, False),
        ("stale", 0, 3, False), ("stale", 0, 4, False),
        ("repeated", 0, 5, False), ("repeated", 0, 6, False),
        ("not deleted", 0, 7, False), ("not deleted", 0, 8, True),
    ]  # fmt: skip
    rows = [
        ("stale", 0, 3), ("repeated", 0, 6), ("repeated", 0, 6), ("not deleted", 0, 7),
        ("unknown", 0, 9),
    ]  # fmt: skip
    proof = prove(spark, changes, rows)
    counts = {"missing": 1, "stale": 2, "repeated": 1, "unknown": 1}
    assert {kind: getattr(proof, kind) for kind in counts} == counts
    none: dict[str, Any] = dict.fromkeys(counts, 0)
    assert attrs.evolve(proof, **none).is_clean
    for kind in counts:
        assert not attrs.evolve(proof, **{**none, kind: 1}).is_clean
        example = f"  {kind}, for example: partition 0 of t"
        assert any(line.startswith(example) for line in proof.words())


def test_key_in_two_partitions_may_have_either_last_change(spark: SparkSession) -> None:
    changes = [("deleted", 1, 4, True)]
    for number, key in enumerate(("first", "second", "neither")):
        start = 10 * number
        changes += [(key, 0, start + 1, False), (key, 0, start + 5, False)]
        changes.append((key, 1, start + 3, False))
    proof = prove(spark, changes, [("first", 0, 5), ("second", 1, 13), ("neither", 0, 21)])
    assert (proof.current, proof.deleted, proof.stale) == (2, 1, 1)
    assert (proof.missing, proof.repeated, proof.unknown) == (0, 0, 0)


def test_rows_of_records_that_are_gone_are_counted_apart(spark: SparkSession) -> None:
    proof = prove(spark, [], [("a", 0, 1), ("b", 0, 20)], start=10, compacted=["t"])
    assert (proof.older, proof.compacted) == (1, 1)
    assert proof.is_clean
    assert "1 rows are older than the topics' records" in proof.words()[0]


TOAST = "__debezium_unavailable_value"


def test_unchanged_value_is_that_of_an_earlier_change_or_of_the_table(
    spark: SparkSession, debezium: Shape
) -> None:
    """Postgres does not send an unchanged large value, and Debezium puts a text in its place."""
    schema = "id BIGINT NOT NULL, name STRING, n INT, tags ARRAY<STRING>, data BINARY"
    shape = attrs.evolve(
        debezium,
        schema=parse_ddl(schema, "value.schema"),
        changes=attrs.evolve(debezium.changes, unavailable=TOAST),
    )
    encoded = base64.b64encode(TOAST.encode()).decode()
    left_out = {"name": TOAST, "tags": [TOAST], "data": encoded}
    rows = [
        {"id": 1, "name": "long", "n": 1, "tags": ["a"], "data": "YQ=="},
        {"id": 1, "n": 2, **left_out},
        {"id": 2, "n": 3, **left_out},
        {"id": 3, "name": "x", "n": 4},
        {"id": 3, "name": None, "n": 5},
        {"id": 3, "n": 6, **left_out, "name": TOAST},
    ]
    batch = classify(topic(spark, [(None, change("u", None, row)) for row in rows]), shape)
    changes = last(batch, shape)
    keeps = [f"__keeps_{name}" for name in ("name", "tags", "data")]
    assert [tuple(changes[key][name] for name in keeps) for key in (1, 2, 3)] == [
        (False, False, False), (True, True, True), (False, False, False),
    ]  # fmt: skip
    assert (changes[1].name, changes[1].n, changes[1].tags) == ("long", 2, ["a"])
    assert bytes(changes[1].data) == b"a"
    assert (changes[2].name, changes[2].tags, changes[2].data) == (None, None, None)
    assert (changes[3].name, changes[3].n) == (None, 6)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("ARRAY<STRING>", "array('b5f3b5f0')"),
        ("MAP<STRING, STRING>", f"map('{TOAST}', '{TOAST}')"),
        ("ARRAY<BINARY>", f"array(CAST('{TOAST}' AS BINARY))"),
        ("ARRAY<INT>", f"transform(split('{TOAST}', ''), each -> ascii(each))"),
        ("ARRAY<BIGINT>", f"transform(split('{TOAST}', ''), each -> CAST(ascii(each) AS BIGINT))"),
    ],
)
def test_placeholder_has_the_type_of_its_column(spark: SparkSession, kind: str, value: str) -> None:
    frame = spark.sql(f"SELECT CAST({value} AS {kind}) AS v, CAST(null AS {kind}) AS w")
    field = frame.schema["v"].dataType
    conditions = [is_unavailable(F.col(name), field, TOAST) for name in ("v", "w")]
    assert all(condition is not None for condition in conditions)
    row = frame.select(*[c for c in conditions if c is not None]).collect()[0]
    assert (bool(row[0]), bool(row[1])) == ("b5f3" not in value, False)
    assert is_unavailable(F.lit(1), IntegerType(), TOAST) is None


def test_row_has_the_change_that_is_last_by_its_sequence(spark: SparkSession) -> None:
    """The name of a key says what its row is, which may be newer than all changes in the topics."""
    names = "id STRING, kafka_partition INT, kafka_offset BIGINT, lsn BIGINT"
    changes = [("deleted", 0, 2, 8, True), ("deleted", 0, 5, 7, False)]
    for number, key in enumerate(("current", "stale", "missing", "older", "unknown"), 1):
        start = 10 * number
        changes += [(key, 0, start + 1, 9, False), (key, 1, start + 7, 5, False)]
    rows = [("current", 0, 11, 9), ("stale", 1, 27, 5), ("older", 0, 0, 10), ("unknown", 0, 3, 10)]
    by_topic = F.lit("t").alias("kafka_topic")
    empty = spark.createDataFrame([], "topic STRING, partition INT, offset BIGINT")
    sides = Sides(
        changes=spark.createDataFrame(changes, f"{names}, {frames.DELETES} BOOLEAN").select(
            "*", by_topic
        ),
        rows=spark.createDataFrame(rows, names).select("*", by_topic),
        keys=("id",),
        origin=("kafka_topic", "kafka_partition", "kafka_offset"),
        sequence=("lsn",),
        start={"t": {0: 1, 1: 1}},
        end={"t": {0: 100, 1: 100}},
        compacted=[],
    )
    proof = compare_keys(sides, 9, compare(empty.withColumn("dropped", F.lit(False)), empty))
    for kind in ("current", "deleted", "stale", "missing", "older", "unknown"):
        assert getattr(proof, kind) == 1, kind
    assert not proof.repeated
