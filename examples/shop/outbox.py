"""The transactional outbox: an order and its event are stored together, then the event is sent.

Rules: a crash at any time loses no event, because the event stays in the outbox until Kafka has
acknowledged it. A lost response writes no event twice, because the producer is idempotent.
"""

import json
import sqlite3
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer

from shop.bugs import has_bug


class Shop:
    """The database of the shop, with the orders and the outbox."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.executescript(
            "CREATE TABLE orders (id TEXT PRIMARY KEY, price INTEGER);"
            "CREATE TABLE outbox (number INTEGER PRIMARY KEY, key TEXT, value TEXT);"
        )

    def place(self, order_id: str, price: int) -> None:
        """Store an order and its event, or neither."""
        event = json.dumps({"id": order_id, "price": price})
        with self.database:
            self.database.execute("INSERT INTO orders VALUES (?, ?)", (order_id, price))
            insert = "INSERT INTO outbox (key, value) VALUES (?, ?)"
            self.database.execute(insert, (order_id, event))


class Relay:
    """Sends the events of the outbox to the topic ``orders``."""

    def __init__(self, shop: Shop, settings: dict[str, Any]) -> None:
        self.database = shop.database
        is_idempotent = not has_bug("retry-duplicate")
        self.producer = Producer({**settings, "enable.idempotence": is_idempotent, "acks": "all"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.purge()

    def run_once(self, timeout: float = 30) -> None:
        """Send what is in the outbox, in order."""
        rows = self.database.execute("SELECT number, key, value FROM outbox ORDER BY number")
        for number, key, value in rows.fetchall():
            if has_bug("sent-before-acknowledged"):
                self.producer.produce("orders", value, key)
                self._delete(number)
            else:
                self.producer.produce("orders", value, key, on_delivery=self._on_delivery(number))
        self.producer.flush(timeout)

    def _on_delivery(self, number: int) -> Any:
        def delete(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._delete(number)

        return delete

    def _delete(self, number: int) -> None:
        with self.database:
            self.database.execute("DELETE FROM outbox WHERE number = ?", (number,))
