"""The consumer of ``orders`` that charges each order, with retries and a topic of dead letters.

Rules: an order counts as done only when it was charged or is a dead letter, so that a crash loses
none. Offsets of finished orders are committed before the partition goes to another process.
"""

import json
from collections.abc import Callable
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Message, Producer

from shop.bugs import has_bug

ATTEMPTS = 3
Order = dict[str, Any]


class Unavailable(Exception):
    """The bank does not answer; trying again may help."""


class Billing:
    """One process of the consumer group ``billing``."""

    def __init__(
        self, settings: dict[str, Any], charge: Callable[[Order], None], *, commit_every: int = 1
    ) -> None:
        self.charge = charge
        self.commit_every = commit_every
        self.uncommitted = 0
        self.dead_letters = Producer({**settings, "enable.idempotence": True})
        self.consumer = Consumer(
            {
                **settings,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
            }
        )
        self.consumer.subscribe(["orders"], on_revoke=self._on_revoke)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def run_once(self, timeout: float = 0.1) -> None:
        """Handle the next order, if there is one."""
        message = self.consumer.poll(timeout)
        if message is None:
            return
        if message.error():
            raise KafkaException(message.error())
        if has_bug("commit-before-processing"):
            self._finish(message)
            self._handle(message)
        else:
            self._handle(message)
            self._finish(message)

    def _handle(self, message: Message) -> None:
        """Charge the order of a record, or move the record to the dead letters."""
        try:
            order = json.loads(message.value())
            self._charge(order)
        except (ValueError, Unavailable) as error:
            if has_bug("poison-loop"):
                raise
            headers = [("reason", str(error).encode())]
            self.dead_letters.produce(
                "orders.dead", message.value(), message.key(), headers=headers
            )
            if self.dead_letters.flush(30):
                raise TimeoutError("the dead letter was not acknowledged") from error

    def _charge(self, order: Order) -> None:
        for attempt in range(ATTEMPTS):
            try:
                return self.charge(order)
            except Unavailable:
                if attempt == ATTEMPTS - 1:
                    raise

    def _finish(self, message: Message) -> None:
        self.consumer.store_offsets(message)
        self.uncommitted += 1
        if self.uncommitted >= self.commit_every:
            self._commit()

    def _commit(self) -> None:
        if self.uncommitted:
            self.consumer.commit(asynchronous=False)
            self.uncommitted = 0

    def _on_revoke(self, consumer: Consumer, partitions: object) -> None:
        if not has_bug("rebalance-double-processing"):
            self._commit()
