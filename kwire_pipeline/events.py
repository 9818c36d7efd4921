"""A generator of realistic events: orders of a shop, some of them damaged.

The same seed gives the same events. The damage is of kinds that pipelines meet: truncated JSON, a
field of the wrong type, a missing identity, bytes that are not text.
"""

import argparse
import datetime
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

SCHEMA: Final = (
    "order_id STRING NOT NULL, customer BIGINT, item STRING, quantity INT, price DOUBLE, "
    "country STRING, ordered_at TIMESTAMP"
)
ITEMS: Final = (("kettle", 34.9), ("lamp", 19.5), ("chair", 89.0), ("desk", 249.0), ("rug", 64.0))
COUNTRIES: Final = ("DE", "FR", "IT", "NL", "PL", "SE")


class Future(Protocol):
    """The acknowledgement of one event."""

    def get(self, timeout: float) -> object:
        """Wait for it; raise KafkaError if the event was not written."""


class Producer(Protocol):
    """A Kafka producer, as kafka-python's."""

    def send(self, topic: str, /, *, key: bytes, value: bytes) -> Future: ...

    def close(self) -> None: ...


def events(
    count: int, *, seed: int, damaged: float, start_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield ``count`` pairs of key (the customer) and value; ``damaged`` is a share from 0 to 1."""
    chance = random.Random(seed)
    at_ms = start_ms
    for number in range(count):
        at_ms += int(chance.expovariate(1 / 250))
        order = order_of(chance, number, at_ms)
        value = json.dumps(order).encode()
        if chance.random() < damaged:
            value = damage(chance, order, value)
        yield str(order["customer"]).encode(), value


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
    kind = chance.randrange(4)
    if kind == 0:
        return value[: len(value) // 2]
    if kind == 1:
        return json.dumps({**order, "quantity": "a few"}).encode()
    if kind == 2:
        return json.dumps({k: v for k, v in order.items() if k != "order_id"}).encode()
    return b"\xff\xfe" + value[2:]


def main(arguments: Sequence[str] | None = None) -> None:
    """Produce events to a topic and wait for all acknowledgements."""
    top = argparse.ArgumentParser(prog="kwire-events", description="Orders of a shop, as JSON.")
    top.add_argument("--bootstrap-servers", default="127.0.0.1:9092", metavar="HOST:PORT,...")
    top.add_argument("--topic", default="orders", help="default: %(default)s")
    top.add_argument("--count", type=int, default=10_000, help="default: %(default)s")
    top.add_argument(
        "--damaged",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="share of damaged ones, 0 to 1 (default: %(default)s)",
    )
    top.add_argument(
        "--seed", type=int, default=1, help="same seed, same events (default: %(default)s)"
    )
    options = top.parse_args(arguments)
    if not 0 <= options.damaged <= 1:
        top.error("--damaged: a share from 0 to 1")

    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    try:
        sent = send(KafkaProducer, options)
    except KafkaError as error:
        top.exit(1, f"kwire-events: {error}\n")
    print(f"{sent} events in {options.topic}")


def send(producers: Callable[..., Producer], options: argparse.Namespace) -> int:
    """Send the events and return their number; raise KafkaError unless all are acknowledged."""
    now = datetime.datetime.now(datetime.UTC)
    producer = producers(bootstrap_servers=options.bootstrap_servers, acks="all", linger_ms=20)
    start_ms = int(now.timestamp() * 1000) - options.count * 250
    generated = events(options.count, seed=options.seed, damaged=options.damaged, start_ms=start_ms)
    sent = [producer.send(options.topic, key=key, value=value) for key, value in generated]
    for future in sent:
        future.get(timeout=60)
    producer.close()
    return len(sent)


if __name__ == "__main__":
    main()
