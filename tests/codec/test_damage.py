"""Damaged messages: those that Kafka refuses are refused, and cost no memory.

Where Kafka accepts a damaged message, kwire may accept or refuse it; those cases are listed.
"""

import tracemalloc
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from kwire.codec.compile import decoder
from kwire.codec.primitives import MalformedError
from tests.support.codec.message_json import to_json
from tests.support.codec.vectors import GOLDEN, HOME, by_message, check_count, classes, lines

LENIENT = {
    "string_bad_utf8",
    "string_length_negative",
    "tag_count_plus",
    "tag_size_zero",
    "varint_negative",
}
"""Cases that Kafka may accept, sometimes as another message than was meant."""

ANSWERS = {
    "accepted": 2297,
    "accepted_trailing": 451,
    "error": 8059,
}


def test_all_corrupt_vectors_are_present():
    check_count("corrupt", 10807)
    if GOLDEN == HOME:
        assert Counter(line["java"] for line in lines("corrupt")) == ANSWERS


GROUPS = [pytest.param(group, id=name) for name, group in by_message("corrupt")]


@pytest.mark.parametrize("group", GROUPS)
def test_damaged_message_is_refused_where_kafka_refuses_it(group: list[dict[str, Any]]):
    for line in group:
        wire, version = bytes.fromhex(line["hex"]), line["version"]
        decode = decoder(classes()[line["name"]], version)
        if line["java"] == "error":
            with pytest.raises(MalformedError):
                decode(wire, 0)
            continue
        try:
            message, end = decode(wire, 0)
        except MalformedError:
            assert line["case"] in LENIENT, line["id"]
            continue
        assert end == len(wire) - line.get("remaining", 0), line["id"]
        if "json" in line:
            assert to_json(message, version) == line["json"], line["id"]


def test_announced_lengths_are_not_allocated():
    """A decoder's peak memory follows the size of the bytes, not the lengths in them."""
    work = []
    for line in lines("corrupt"):
        wire = bytes.fromhex(line["hex"])
        work.append((decoder(classes()[line["name"]], line["version"]), wire, line["id"]))
    tracemalloc.start()
    try:
        for decode, wire, name in work:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(MalformedError):
                decode(wire, 0)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 20_000 + 60 * len(wire), name
    finally:
        tracemalloc.stop()


def test_errors_name_message_version_and_field():
    named: Counter[bool] = Counter()
    for line in lines("corrupt"):
        if line["java"] != "error" or line["case"] != "array_length_huge":
            continue
        with pytest.raises(MalformedError) as caught:
            decoder(classes()[line["name"]], line["version"])(bytes.fromhex(line["hex"]), 0)
        field = str(caught.value).split(": ")[1]
        expected = "".join(c for c in line["field"] if c not in "[]0123456789")
        named[expected.strip("/").replace("/", ".") == field.strip("0123456789")] += 1
        assert str(caught.value).startswith(f"{line['name']} v{line['version']}: ")
    assert named[True] > 0.9 * named.total(), named


def test_truncated_message_is_refused():
    """A message cut at any byte is malformed, also as a view of a frame."""
    for line in lines("messages")[::101]:
        wire = bytes.fromhex(line["hex"])
        decode = decoder(classes()[line["name"]], line["version"])
        for end in range(0, len(wire), max(1, len(wire) // 50)):
            with pytest.raises(MalformedError):
                decode(memoryview(wire)[:end], 0)
