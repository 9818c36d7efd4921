"""The events of the worked example: the same for a seed, and of every kind that is promised."""

import argparse
import json
from collections import Counter
from datetime import datetime

import pytest

from examples.orders import events
from examples.orders.events import HOUR_MS, Event, orders

START_MS = 1_793_491_200_000  # 2026-11-01, midnight UTC
HOURS = 48


def generate(count: int = 4000, *, seed: int = 3, damaged: float = 0.0, late: float = 0.0):
    return list(
        orders(count, seed=seed, damaged=damaged, late=late, start_ms=START_MS, hours=HOURS)
    )


def ordered_ms(event: Event) -> int:
    return round(datetime.fromisoformat(json.loads(event.value)["ordered_at"]).timestamp() * 1000)


def test_same_seed_same_events() -> None:
    first = generate(500, damaged=0.1, late=0.1)
    assert first == generate(500, damaged=0.1, late=0.1)
    assert first != generate(500, seed=4, damaged=0.1, late=0.1)


def test_events_arrive_in_order_with_key_and_headers_within_the_hours() -> None:
    generated = generate()
    arrival = [event.timestamp_ms for event in generated]
    assert arrival == sorted(arrival)
    assert arrival[0] >= START_MS
    assert arrival[-1] < START_MS + HOURS * HOUR_MS
    assert len({event.value for event in generated}) == len(generated)
    for event in generated:
        assert event.key == str(json.loads(event.value)["customer"]).encode()
        assert [name for name, _ in event.headers] == ["channel", "trace"]


def test_evenings_are_busier_than_nights() -> None:
    by_hour = Counter(ordered_ms(event) // HOUR_MS % 24 for event in generate())
    assert by_hour[20] > 5 * by_hour[3]


def test_late_orders_were_made_hours_before_they_arrive() -> None:
    delays = [event.timestamp_ms - ordered_ms(event) for event in generate(late=0.2)]
    late = [delay for delay in delays if delay > 0]
    assert 0.1 < len(late) / len(delays) < 0.3
    assert min(late) >= HOUR_MS


def kind_of(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "not text"
    try:
        order, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return "truncated"
    if end < len(text):
        return "two orders"
    if text.count('"quantity"') == 2:
        return "a field twice"
    if "order_id" not in order:
        return "no identity"
    return "good" if isinstance(order["quantity"], int) else "wrong type"


def test_every_kind_of_damage() -> None:
    kinds = Counter(kind_of(event.value) for event in generate(damaged=0.3))
    assert set(kinds) == {
        *("good", "not text", "truncated", "two orders", "a field twice", "no identity"),
        "wrong type",
    }
    assert 0.2 < 1 - kinds["good"] / 4000 < 0.4


@pytest.mark.parametrize(
    "wrong", [["--damaged", "2"], ["--late", "-1"], ["--hours", "0"], ["--count", "-5"]]
)
def test_wrong_arguments(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        events.main(wrong)
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


class Record:
    def get(self, timeout: float) -> None: ...


class Recorder:
    """A producer that keeps what it is sent."""

    def __init__(self, **_options: object) -> None:
        self.sent: list[dict[str, object]] = []

    def send(self, topic: str, /, **fields: object) -> Record:
        self.sent.append({"topic": topic, **fields})
        return Record()

    def close(self) -> None: ...


def test_events_are_produced_with_headers_and_times_of_arrival() -> None:
    recorder = Recorder()
    options = argparse.Namespace(
        bootstrap_servers="", topic="t", count=20, damaged=0.0, late=0.0, hours=2, seed=1
    )
    assert events.send(lambda **_: recorder, options) == 20
    assert {fields["topic"] for fields in recorder.sent} == {"t"}
    assert all(fields["headers"] and fields["timestamp_ms"] for fields in recorder.sent)
