"""Every message table is compared with Kafka's own definitions, field by field.

The facts of a release are made by scripts/message_facts.py.
"""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

from kwire.codec.layout import Shape, default_of, shape_of
from kwire.codec.schema import Versions, fields, spec_of
from tests.support.codec.vectors import HOME, RENAMED, classes


class Line(NamedTuple):
    """A field, by Kafka's definition or by ours."""

    path: str
    type: str
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    compact: bool
    default: Any


NEWEST = "4.4.0"
UNSTATED = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "uuid": bytes(16)}
RENAMES_4_4 = {
    ("TxnOffsetCommitRequest", "generation_id_or_member_epoch"): "generation_id",
    ("StreamsGroupHeartbeatResponse", "acceptable_recovery_lag_legacy"): "acceptable_recovery_lag",
    (
        "StreamsGroupHeartbeatResponse",
        "acceptable_recovery_lag",
    ): "acceptable_recovery_lag_offsets",
}


@cache
def definitions(release: str) -> dict[str, list[list[str]]]:
    """Return the lines of each message, by its name: its own, then its fields'."""
    cells_by_message: dict[str, list[list[str]]] = {}
    with gzip.open(HOME / f"definitions-{release}.tsv.gz", "rt") as file:
        for line in file:
            cells = line.rstrip("\n").split("\t")
            cells_by_message.setdefault(cells[1], []).append(cells)
    return cells_by_message


def line_of_kafka(cells: list[str], release: str) -> Line:
    _, name, path, kind, versions, nullable, tag, tagged, ignorable, compact, default = cells
    if release == NEWEST:
        path = RENAMES_4_4.get((name, path), path)
    return Line(
        path,
        kind,
        Versions.parse(versions),
        Versions.parse(nullable),
        int(tag) if tag else None,
        Versions.parse(tagged),
        ignorable == "1",
        compact == "1",
        parse_default(kind, default),
    )


def parse_default(kind: str, text: str) -> Any:
    """Parse a default as Kafka's generator does."""
    value = json.loads(text) if text else None
    if value is None:
        if kind.startswith("[]"):
            return []
        return (
            "struct" if kind == "struct" else UNSTATED.get(kind, None if kind == "records" else 0)
        )
    if value == "null":
        return None
    if kind == "bool":
        return str(value).lower() == "true"
    if kind == "float64":
        return float(value)
    return value if kind == "string" else int(str(value), 0)


def lines_of_kwire(cls: type[Any], above: str = "") -> Iterator[Line]:
    for attribute in fields(cls):
        spec = attribute.spec
        if not spec.versions:
            continue  # what widen_request fills in is not on the wire
        shape = shape_of(attribute.type)
        default = default_of(attribute, shape)
        yield Line(
            above + attribute.name,
            type_name(shape),
            spec.versions,
            spec.nullable,
            spec.tag,
            spec.tagged,
            spec.ignorable,
            spec.compact,
            "struct" if isinstance(default, type) else default,
        )
        inner = shape.element or shape
        if inner.cls is not None:
            yield from lines_of_kwire(inner.cls, f"{above}{attribute.name}.")


def type_name(shape: Shape) -> str:
    return f"[]{type_name(shape.element)}" if shape.element else shape.wire


def properties_in(line: Line, version: int) -> tuple[object, ...]:
    """Return the properties of a field that one version has."""
    tagged = version in line.tagged
    return (
        line.path,
        line.type,
        version in line.nullable,
        line.tag if tagged else None,
        line.compact,
    )


@pytest.mark.parametrize("release", ["4.3.1", "4.4.0"])
def test_every_message_has_a_table(release: str):
    fields = sum(len(lines) - 1 for lines in definitions(release).values())
    print(f"{release}: {len(definitions(release))} messages, {fields} fields")
    assert len(definitions(release)) == {"4.3.1": 272, "4.4.0": 278}[release]
    assert set(definitions(release)) <= set(classes())
    if release == NEWEST:
        assert set(definitions(release)) == set(classes())


CASES = [
    pytest.param(release, name, id=f"{release}-{name}")
    for release in ("4.3.1", "4.4.0")
    for name in definitions(release)
]


@pytest.mark.parametrize(("release", "name"), CASES)
def test_table_has_kafkas_fields(release: str, name: str):
    (_, _, api, kind, versions, flexible, unstable), *rest = definitions(release)[name]
    cls, versions_in_kafka = classes()[name], Versions.parse(versions)
    spec = spec_of(cls)
    assert spec.versions.first == versions_in_kafka.first
    assert spec.versions.last >= versions_in_kafka.last
    number = spec.api_key if kind in ("request", "response") else spec.record_type
    assert number == (int(api) if api else None)
    range_ = range(versions_in_kafka.first, versions_in_kafka.last + 1)
    assert [v for v in range_ if v in spec.flexible] == [
        v for v in range_ if v in Versions.parse(flexible)
    ]
    if unstable == "1":
        assert versions_in_kafka.last in spec.unstable
    theirs, mine = [line_of_kafka(cells, release) for cells in rest], list(lines_of_kwire(cls))
    later = {cells[2] for cells in definitions(NEWEST)[name][1:] if cells[6]}
    later -= {line.path for line in theirs}
    mine = [
        line for line in mine if line.path not in later
    ]  # A release may add tagged fields to an old version.
    for version in range_:
        assert [properties_in(line, version) for line in mine if is_in(line, mine, version)] == [
            properties_in(line, version) for line in theirs if is_in(line, theirs, version)
        ], f"version {version}"
    if release == NEWEST:  # a newer release may make a field ignorable
        check_defaults(mine, theirs, range_)


def is_in(line: Line, lines: list[Line], version: int) -> bool:
    """Whether a version has a field, and the structures around it."""
    if version not in line.versions:
        return False
    above, _, _ = line.path.rpartition(".")
    return not above or any(outer.path == above and is_in(outer, lines, version) for outer in lines)


def check_defaults(mine: list[Line], theirs: list[Line], range_: range) -> None:
    """Defaults count where a version may lack the field, and where Kafka states one."""
    by_path = {line.path: line for line in mine}
    for line in theirs:
        if not any(is_in(line, theirs, version) for version in range_):
            continue
        our_line = by_path[line.path]
        assert our_line.ignorable == line.ignorable, line.path
        everywhere = all(version in line.versions for version in range_)
        if our_line.default is None and our_line.ignorable and line.path.endswith("error_message"):
            continue  # kwire's default is null where Kafka has no text
        if line.tag is not None or not everywhere or line.default not in UNSTATED.values():
            assert our_line.default == line.default, line.path


def test_renamed_fields_are_listed_once():
    def camel(path: str) -> str:
        first, *rest = path.split("_")
        return first + "".join(word.title() for word in rest)

    assert {(name, camel(old)): camel(new) for (name, old), new in RENAMES_4_4.items()} == RENAMED
