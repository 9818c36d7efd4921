"""An answer is known to be large by its arrays, at every depth."""

from typing import Any

from kwire.codec.element_count import has_more_elements
from kwire.codec.messages.end_txn import EndTxnResponse
from tests.support.codec.message_json import UNKNOWN_TAGS, from_json
from tests.support.codec.vectors import classes, lines


def test_elements_at_every_depth_are_counted_and_null_arrays_have_none():
    for line in lines("messages")[::3]:
        message = from_json(classes()[line["name"]], line["json"], line["version"])
        count = element_count(line["json"])
        assert not has_more_elements(message, count), line["id"]
        if count:
            assert has_more_elements(message, count - 1), line["id"]


def test_message_without_arrays_is_never_large():
    assert not has_more_elements(EndTxnResponse(), 0)


def element_count(value: Any) -> int:
    """Return the number of elements in the arrays of a message's JSON form."""
    if isinstance(value, dict):
        return sum(element_count(item) for key, item in value.items() if key != UNKNOWN_TAGS)
    if isinstance(value, list):
        return len(value) + sum(map(element_count, value))
    return 0
