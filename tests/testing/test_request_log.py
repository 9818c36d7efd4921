"""The requests of a test broker's clients: counts, and messages of assertions that fail."""

from typing import Any

import pytest

from kwire.testing import BrokerError
from kwire.testing.request_log import SHOWN_MAX, ReceivedRequest, RequestLog


def log_of(*requests: tuple[str, str]) -> RequestLog:
    log = RequestLog()
    for number, (api, client_id) in enumerate(requests):
        log.add(ReceivedRequest(api, 9, client_id, 1_000_000 + number, node=1))
    return log


LOG = (("ApiVersions", "shop"), ("Produce", "shop"), ("Produce", "shop"), ("Produce", "other"))


@pytest.mark.parametrize(
    ("api", "limits"),
    [
        ("Produce", {"exactly": 3}),
        ("Produce", {"at_least": 3, "at_most": 3}),
        ("Produce", {"exactly": 2, "client_id": "shop"}),
        ("Fetch", {"exactly": 0}),
        (None, {"exactly": 4}),
    ],
)
def test_count_that_fits_raises_nothing(api: str | None, limits: dict[str, Any]) -> None:
    log_of(*LOG).assert_count(api, **limits)


@pytest.mark.parametrize(
    ("api", "limits", "words"),
    [
        ("Produce", {"exactly": 2}, "expected 2 Produce requests, saw 3"),
        ("Produce", {"exactly": 0}, "expected 0 Produce requests, saw 3"),
        ("Produce", {"at_most": 2}, "expected at most 2 Produce requests, saw 3"),
        ("Fetch", {"at_least": 1}, "expected at least 1 Fetch requests, saw 0"),
        (None, {"at_least": 9, "client_id": "shop"}, "expected at least 9 requests of shop, saw 3"),
    ],
)
def test_count_that_does_not_fit_is_named(
    api: str | None, limits: dict[str, Any], words: str
) -> None:
    with pytest.raises(AssertionError, match=f"^{words}\n"):
        log_of(*LOG).assert_count(api, **limits)


def test_message_shows_what_was_seen() -> None:
    with pytest.raises(AssertionError) as error:
        log_of(*LOG).assert_count("Produce", at_least=5)
    first, *lines = str(error.value).splitlines()
    assert first == "expected at least 5 Produce requests, saw 3"
    assert [line.partition(" Produce ")[2] for line in lines[:2]] == [
        "v9 of shop at node 1, 2 times",
        "v9 of other at node 1",
    ]
    assert lines[2:] == ["  other requests: 1 ApiVersions"]


def test_message_of_an_empty_log_says_so() -> None:
    with pytest.raises(AssertionError, match="no other requests either"):
        RequestLog().assert_count("Produce", at_least=1)


def test_message_is_short_although_there_are_many_requests() -> None:
    log = log_of(*(("Fetch", f"client {number}") for number in range(100)))
    with pytest.raises(AssertionError) as error:
        log.assert_count("Fetch", 1)
    lines = str(error.value).splitlines()
    assert len(lines) == 2 + SHOWN_MAX
    assert lines[1] == "  (80 earlier lines)"
    assert "of client 99 at" in lines[-1]


def test_count_without_a_number_is_a_clear_error() -> None:
    with pytest.raises(BrokerError, match="needs exactly, at_least or at_most"):
        log_of(*LOG).assert_count("Produce")


def test_misspelt_api_is_an_error_rather_than_no_requests() -> None:
    for ask in (log_of(*LOG).count, log_of(*LOG).of):
        with pytest.raises(BrokerError, match=r"Produc is .*; did you mean Produce\?"):
            ask("Produc")
    with pytest.raises(BrokerError, match="Produc is not one of Kafka's APIs"):
        log_of(*LOG).assert_count("Produc", 0)
