"""The checks of a share group's deliveries find each anomaly (invariant 75)."""

from typing import Any

import attrs

from compat_tests.durability.share_history import (
    DELIVERY_LIMIT,
    LATEST_ARRIVAL,
    share_group_anomalies,
)
from simulation.share_rules import Acknowledgement, Delivery, Record

RECORD: Record = (("orders", 0), 7)
VALUE = b"seven"
DELIVERED = Delivery("a", RECORD, VALUE, 1, 1.0, 2.0)
AGAIN = Delivery("b", RECORD, VALUE, 2, 5.0, 6.0)
RELEASED = Acknowledgement("a", RECORD, "release", 1, 3.0, 4.0, "ok")
ACCEPTED = Acknowledgement("b", RECORD, "accept", 2, 7.0, 8.0, "ok")


def find_anomalies(*observations: Delivery | Acknowledgement) -> list[str]:
    """Return what kinds of anomalies there are."""
    deliveries = [each for each in observations if isinstance(each, Delivery)]
    acknowledgements = [each for each in observations if isinstance(each, Acknowledgement)]
    texts = share_group_anomalies({RECORD: VALUE}, deliveries, acknowledgements)
    return [text.split(":")[0] for text in texts]


def change(observation: Any, **changes: Any) -> Any:
    return attrs.evolve(observation, **changes)


def test_released_record_is_delivered_again_and_accepted() -> None:
    assert find_anomalies(DELIVERED, RELEASED, AGAIN, ACCEPTED) == []


def test_record_is_never_delivered() -> None:
    other = change(DELIVERED, record=(("orders", 0), 8))
    accepted = change(ACCEPTED, record=(("orders", 0), 8))
    assert find_anomalies(other, accepted) == ["never delivered"]


def test_record_is_never_accepted() -> None:
    refused = change(ACCEPTED, outcome="failed")
    assert find_anomalies(DELIVERED, RELEASED, AGAIN, refused) == ["never accepted"]
    assert find_anomalies(DELIVERED, RELEASED, AGAIN, change(ACCEPTED, outcome="unknown")) == []


def test_record_that_is_delivered_as_often_as_allowed_needs_no_accept() -> None:
    assert find_anomalies(change(DELIVERED, count=DELIVERY_LIMIT)) == []
    assert "delivery count" in find_anomalies(change(DELIVERED, count=DELIVERY_LIMIT + 1))


def test_record_has_another_value() -> None:
    assert find_anomalies(change(DELIVERED, value=b"six"), AGAIN, ACCEPTED) == ["another value"]


def test_record_arrives_late_but_not_long_after_it_was_accepted() -> None:
    late = change(DELIVERED, client="c", began=9.0, ended=10.0)
    ignored = change(ACCEPTED, client="c", count=1, began=11.0, ended=12.0)
    assert find_anomalies(DELIVERED, AGAIN, ACCEPTED, late, ignored) == []
    later = change(late, began=ACCEPTED.ended + LATEST_ARRIVAL + 1)
    texts = find_anomalies(DELIVERED, AGAIN, ACCEPTED, later)
    assert texts == ["delivered after it was accepted"]
