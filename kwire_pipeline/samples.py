"""Samples of a pipeline's records, and the rows and dead letters expected from them.

A sample is a JSON file: `records` in the order in which they were produced, then the `rows` and
`letters` that new tables would have after them, in the order of topic, partition and offset. Rules
of this file: no Spark. An expected row or letter is compared only in the fields that it contains;
inside a field, a missing name means null. Numbers are compared by value, and times in a TIMESTAMP
column as points in time.
"""

import base64
import datetime
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from kwire_pipeline.errors import Refusal

Json: TypeAlias = Any  # Any: JSON has no other type
"""A value of JSON; numbers with a point are Decimals."""
Field: TypeAlias = tuple[str, ...]
"""The names from a row to a value inside it; an item of an array or map is ``*``."""
START: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
"""The time of a partition's first record if it has none; each later record is a second later."""
RESULTS: Final = ("rows", "letters", "rejected")
_KEYS: Final = ("records", *RESULTS)
_RECORD: Final = (
    *("topic", "partition", "offset", "timestamp"),
    *("key", "key_base64", "value", "value_base64", "headers"),
)


@attrs.frozen(kw_only=True)
class Record:
    """A record as Spark's Kafka source returns it."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime.datetime
    headers: tuple[tuple[str, bytes | None], ...]


@attrs.frozen(kw_only=True)
class Sample:
    """A file's records, and its expected results; None for results that it does not contain."""

    path: Path
    records: Sequence[Record]
    rows: Sequence[Mapping[str, Json]] | None
    letters: Sequence[Mapping[str, Json]] | None
    rejected: Sequence[str]
    """The expectations with the action `fail` that the records should violate."""


@attrs.frozen(kw_only=True)
class Results:
    """The rows and dead letters that the records of a sample became."""

    rows: Sequence[Mapping[str, Json]]
    letters: Sequence[Mapping[str, Json]]
    rejected: Sequence[str]
    times: frozenset[Field]
    """The fields of rows that are timestamps."""


def find_samples(place: str) -> list[Path]:
    """Return a folder's JSON files in the order of their names, or the one file itself."""
    path = Path(place)
    if path.is_file():
        return [path]
    files = sorted(path.glob("*.json"))
    if not files:
        raise Refusal(f"{place} has no samples: write one, such as {path / 'first.json'}")
    return files


def read_sample(path: Path, topic: str) -> Sample:
    """Read a sample, whose records are by default of ``topic``; raise Refusal if it is invalid."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise Refusal(f"{path} is not a JSON file: {error}") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("records"), list):
        raise Refusal(f'{path}: a sample is an object with a list of "records"')
    _check_names(f"{path}", whole, _KEYS)
    for name in RESULTS:
        if not isinstance(whole.get(name, []), list):
            raise Refusal(f"{path}: {name} must be a list")
    for name in ("rows", "letters"):
        if not all(isinstance(item, dict) for item in whole.get(name, [])):
            raise Refusal(f"{path}: {name} must be a list of objects")
    return Sample(
        path=path,
        records=list(_records(path, whole["records"], topic)),
        rows=whole.get("rows"),
        letters=whole.get("letters"),
        rejected=whole.get("rejected", []),
    )


def _records(path: Path, plain: list[Json], topic: str) -> Iterator[Record]:
    ends: dict[tuple[str, int], int] = {}
    for number, item in enumerate(plain):
        place = f"{path}: records[{number}]"
        if not isinstance(item, dict):
            raise Refusal(f"{place} is not an object")
        _check_names(place, item, _RECORD)
        spot = str(item.get("topic", topic)), _integer(place, item, "partition", 0)
        offset = _integer(place, item, "offset", ends.get(spot, 0))
        if offset < ends.get(spot, 0):
            raise Refusal(f"{place}: offset {offset} comes after offset {ends[spot] - 1}")
        ends[spot] = offset + 1
        headers = item.get("headers", {})
        if not isinstance(headers, dict):
            raise Refusal(f"{place}: headers must be an object that maps names to text")
        yield Record(
            key=_bytes(place, item, "key"),
            value=_bytes(place, item, "value"),
            topic=spot[0],
            partition=spot[1],
            offset=offset,
            timestamp=_time(place, item, offset),
            headers=tuple((name, _encode(value)) for name, value in headers.items()),
        )


def _check_names(place: str, plain: Mapping[str, Json], names: Sequence[str]) -> None:
    for name in plain:
        if name not in names:
            raise Refusal(f"{place}: no {name} here, only {', '.join(names)}")


def _integer(place: str, item: Mapping[str, Json], name: str, default: int) -> int:
    value = item.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refusal(f"{place}: {name} must be a number from 0 up")
    return value


def _bytes(place: str, item: Mapping[str, Json], name: str) -> bytes | None:
    text = item.get(f"{name}_base64")
    if text is None:
        return _encode(item.get(name))
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise Refusal(f"{place}: {name}_base64 is not Base64") from None


def _encode(value: Json) -> bytes | None:
    """Return a text in UTF-8, null as None, and any other value as compact JSON."""
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return dump(value, indent=None).encode()


def _time(place: str, item: Mapping[str, Json], offset: int) -> datetime.datetime:
    text = item.get("timestamp")
    if text is None:
        return START + datetime.timedelta(seconds=offset)
    moment = parse_time(text)
    if moment is None:
        raise Refusal(f'{place}: timestamp must be a time such as "2026-05-01T12:00:00Z"')
    return moment


def parse_time(text: Json) -> datetime.datetime | None:
    """Return the time in an ISO 8601 text, by default in UTC; None for any other text."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def differences(sample: Sample, results: Results) -> Iterator[str]:
    """Yield a line for each difference between a sample's expected and actual results."""
    if set(sample.rejected) != set(results.rejected):
        expected, real = ", ".join(sample.rejected), ", ".join(results.rejected)
        yield f"rejected by {real or 'no expectation'}, expected {expected or 'none'}"
    yield from _list_differences("rows", sample.rows, results.rows, results.times)
    yield from _list_differences("letters", sample.letters, results.letters, frozenset())


def _list_differences(
    name: str,
    expected: Sequence[Mapping[str, Json]] | None,
    real: Sequence[Mapping[str, Json]],
    times: frozenset[Field],
) -> Iterator[str]:
    if expected is None:
        yield f"{name} are not named in the file; they are {dump(real, indent=None)}"
        return
    for number, (expected_item, item) in enumerate(zip(expected, real, strict=False)):
        for field, value in expected_item.items():
            place = f"{name}[{number}].{field}"
            if field not in item:
                yield f"{place}: there are only {', '.join(item)}"
            elif not is_equal(value, item[field], (field,), times):
                text = dump(item[field], indent=None)
                yield f"{place} is {text}, expected {dump(value, indent=None)}"
    for number in range(len(real), len(expected)):
        yield f"{name}[{number}] is missing: {dump(expected[number], indent=None)}"
    for number in range(len(expected), len(real)):
        yield f"{name}[{number}] is not expected: {dump(real[number], indent=None)}"


def is_equal(expected: Json, real: Json, field: Field, times: frozenset[Field]) -> bool:
    """Return whether a value is the expected one, by the rules of this file."""
    if isinstance(expected, bool) or isinstance(real, bool):
        return expected is real
    if isinstance(expected, dict) and isinstance(real, dict):
        names = {*expected, *real}
        return all(
            is_equal(expected.get(n), real.get(n), (*field, n), times)
            or is_equal(expected.get(n), real.get(n), (*field, "*"), times)
            for n in names
        )
    if isinstance(expected, list) and isinstance(real, list):
        pairs = zip(expected, real, strict=False)
        return len(expected) == len(real) and all(
            is_equal(expected_item, item, (*field, "*"), times) for expected_item, item in pairs
        )
    if field in times and expected is not None and real is not None:
        moment = parse_time(expected)
        return moment is not None and moment == parse_time(real)
    return bool(expected == real)


def dump(value: Json, indent: int | None = 2) -> str:
    """Return a value as JSON text, with each digit of its numbers."""
    numbers: list[Decimal] = []
    mark = uuid.uuid4().hex

    def keep(number: object) -> str:
        assert isinstance(number, Decimal), "all other values are JSON's"
        numbers.append(number)
        return f"{mark}{len(numbers) - 1}"

    text = json.dumps(value, indent=indent, ensure_ascii=False, default=keep)
    return re.sub(f'"{mark}([0-9]+)"', lambda match: str(numbers[int(match[1])]), text)


def fill_in(sample: Sample, results: Results) -> list[str]:
    """Add missing results to a sample's file; return their names."""
    missing = [name for name in ("rows", "letters") if getattr(sample, name) is None]
    whole = json.loads(sample.path.read_text(encoding="utf-8"), parse_float=Decimal)
    for name in missing:
        whole[name] = list(getattr(results, name))
    if missing:
        sample.path.write_text(dump(whole) + "\n", encoding="utf-8")
    return missing
