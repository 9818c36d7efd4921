"""A generator of realistic events: a shop's orders over several days, some of them damaged.

The same seed gives the same events. There are more orders in the evening than at night; a few
arrive late, as if from a phone that was offline. The kinds of damage are those that occur in
practice: truncated JSON, a field of the wrong type, a missing identity, bytes that are not text, a
repeated field, two orders in one record.
"""

import argparse
import datetime
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import attrs

SCHEMA: Final = (
    "order_id STRING NOT NULL, customer BIGINT, item STRING, quantity INT, price DOUBLE, "
    "country STRING, ordered_at TIMESTAMP"
)
ITEMS: Final = (("kettle", 34.9), ("lamp", 19.5), ("chair", 89.0), ("desk", 249.0), ("rug", 64.0))
COUNTRIES: Final = ("DE", "FR", "IT", "NL", "PL", "SE")
CHANNELS: Final = (b"web", b"app", b"store")
BY_HOUR: Final = (
    *(2, 1, 1, 1, 1, 2, 4, 8, 12, 14, 15, 17),
    *(20, 18, 15, 14, 15, 18, 24, 30, 34, 28, 16, 6),
)
"""The share of a day's orders in each hour of the day, in UTC."""
HOUR_MS: Final = 3_600_000
LATEST_MS: Final = 12 * HOUR_MS
"""The longest time from an order to its event."""


@attrs.frozen
class Event:
    """One event, as it is produced."""

    key: bytes
    """The customer."""
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int
    """The time of arrival; a late order was placed earlier."""


class Future(Protocol):
    """The acknowledgement of one event."""

    def get(self, timeout: float) -> object:
        """Wait for the acknowledgement; raise KafkaError if the event was not written."""


class Producer(Protocol):
    """A Kafka producer with the interface of kafka-python's."""

    def send(
        self,
        topic: str,
        /,
        *,
        key: bytes,
        value: bytes,
        headers: list[tuple[str, bytes]],
        timestamp_ms: int,
    ) -> Future: ...

    def close(self) -> None: ...


def orders(
    count: int, *, seed: int, damaged: float, late: float, start_ms: int, hours: int
) -> Iterator[Event]:
    """Yield ``count`` events from ``start_ms`` onwards, in order of arrival.

    ``damaged`` and ``late`` are shares from 0 to 1.
    """
    chance = random.Random(seed)
    for number, arrival_ms in enumerate(arrivals(chance, count, start_ms, hours)):
        is_late = chance.random() < late
        ordered_ms = arrival_ms - (chance.randrange(HOUR_MS, LATEST_MS) if is_late else 0)
        order = order_of(chance, number, ordered_ms)
        value = json.dumps(order).encode()
        if chance.random() < damaged:
            value = damage(chance, order, value)
        headers = (
            ("channel", chance.choice(CHANNELS)),
            ("trace", f"{chance.getrandbits(64):016x}".encode()),
        )
        yield Event(str(order["customer"]).encode(), value, headers, arrival_ms)


def arrivals(chance: random.Random, count: int, start_ms: int, hours: int) -> list[int]:
    """Return the times of ``count`` orders within some hours, more of them in busy hours."""
    first_hour = start_ms // HOUR_MS
    weights = [BY_HOUR[(first_hour + hour) % 24] for hour in range(hours)]
    chosen = chance.choices(range(hours), weights=weights, k=count)
    return sorted(start_ms + hour * HOUR_MS + chance.randrange(HOUR_MS) for hour in chosen)


def order_of(chance: random.Random, number: int, at_ms: int) -> dict[str, object]:
    item, price = chance.choices(ITEMS, weights=(30, 25, 20, 10, 15))[0]
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return {
        "order_id": f"o-{number:08d}",
        "customer": int(chance.paretovariate(1.2) * 10),
        "item": item,
        "quantity": 1 + int(chance.expovariate(1.5)),
        "price": round(price * chance.uniform(0.8, 1.0), 2),
        "country": chance.choice(COUNTRIES),
        "ordered_at": at.isoformat(timespec="milliseconds"),
    }


def damage(chance: random.Random, order: dict[str, object], value: bytes) -> bytes:
    """Return the value with one of six kinds of damage."""
    kind = chance.randrange(6)
    if kind == 0:
        return value[: len(value) // 2]
    if kind == 1:
        return json.dumps({**order, "quantity": "a few"}).encode()
    if kind == 2:
        return json.dumps({k: v for k, v in order.items() if k != "order_id"}).encode()
    if kind == 3:
        return b"\xff\xfe" + value[2:]
    if kind == 4:  # A repeated field; readers use the last value.
        return value[:-1] + b', "quantity": 1}'
    return value + json.dumps({**order, "order_id": f"{order['order_id']}-2"}).encode()


def main(arguments: Sequence[str] | None = None) -> None:
    """Produce events to a topic and wait for all acknowledgements."""
    top = argparse.ArgumentParser(description="Orders of a shop, as JSON.")
    top.add_argument("--bootstrap-servers", default="127.0.0.1:9092", metavar="HOST:PORT,...")
    top.add_argument("--topic", default="orders", help="default: %(default)s")
    top.add_argument("--count", type=int, default=10_000, help="default: %(default)s")
    for name, default, meaning in (
        ("--damaged", 0.01, "share of damaged ones"),
        ("--late", 0.02, "share of orders that arrive hours after they were made"),
    ):
        top.add_argument(
            name, type=float, default=default, metavar="SHARE",
            help=f"{meaning}, 0 to 1 (default: %(default)s)",
        )  # fmt: skip
    top.add_argument(
        "--hours", type=int, default=48, help="the time up to now that they span (%(default)s)"
    )
    top.add_argument(
        "--seed", type=int, default=1, help="same seed, same events (default: %(default)s)"
    )
    options = top.parse_args(arguments)
    for name, share in (("--damaged", options.damaged), ("--late", options.late)):
        if not 0 <= share <= 1:
            top.error(f"{name}: a share from 0 to 1")
    if options.count < 0 or options.hours < 1:
        top.error("--count, --hours: expected a number above 0")

    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    try:
        count = send(KafkaProducer, options)
    except KafkaError as error:
        top.exit(1, f"{top.prog}: {error}\n")
    print(f"{count} events in {options.topic}")


def send(producers: Callable[..., Producer], options: argparse.Namespace) -> int:
    """Send the events and return their number; raise KafkaError unless all are acknowledged."""
    now = datetime.datetime.now(datetime.UTC)
    producer = producers(bootstrap_servers=options.bootstrap_servers, acks="all", linger_ms=20)
    generated = orders(
        options.count,
        seed=options.seed,
        damaged=options.damaged,
        late=options.late,
        start_ms=int(now.timestamp() * 1000) - options.hours * HOUR_MS,
        hours=options.hours,
    )
    futures = [
        producer.send(
            options.topic,
            key=event.key,
            value=event.value,
            headers=list(event.headers),
            timestamp_ms=event.timestamp_ms,
        )
        for event in generated
    ]
    for future in futures:
        future.get(timeout=60)
    producer.close()
    return len(futures)


if __name__ == "__main__":
    main()
