"""The stream processor: for each record of ``orders`` exactly one record in ``invoices``.

Rules: invoices and the offsets of their orders are committed in one transaction. The offsets carry
the membership under which the orders were read, so that a process which has lost its partitions
meanwhile cannot commit. After an abort, the orders are read again.
"""

import json
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from shop.bugs import has_bug


class Batch(NamedTuple):
    """Some orders, and the membership of the process when it read them."""

    orders: list[Message]
    membership: Any


class Invoices:
    """One process of the group ``invoices``; each has a ``name`` of its own."""

    def __init__(self, settings: dict[str, Any], name: str) -> None:
        self.producer = Producer({**settings, "transactional.id": f"invoices-{name}"})
        self.producer.init_transactions(30)
        self.consumer = Consumer(
            {
                **settings,
                "group.id": "invoices",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe(["orders"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def run_once(self) -> None:
        self.process(self.read())

    def read(self, timeout: float = 0.1) -> Batch:
        """Return the next orders, perhaps none."""
        orders = self.consumer.consume(100, timeout)
        return Batch(orders, self.consumer.consumer_group_metadata())

    def process(self, batch: Batch) -> None:
        """Write the invoices of a batch in one transaction; read the orders again if it fails."""
        if not batch.orders:
            return
        ends = {
            (order.topic(), order.partition()): TopicPartition(
                order.topic(), order.partition(), order.offset() + 1
            )
            for order in batch.orders
        }
        offsets = list(ends.values())
        self.producer.begin_transaction()
        try:
            for order in batch.orders:
                self.producer.produce("invoices", invoice(order), order.key())
            if has_bug("offsets-outside-transaction"):
                self.producer.commit_transaction(30)
                self.consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self.producer.send_offsets_to_transaction(offsets, batch.membership, 30)
                self.producer.commit_transaction(30)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.producer.abort_transaction(30)
            if not has_bug("abort-without-rewind"):
                self._rewind(batch)

    def _rewind(self, batch: Batch) -> None:
        """Read the orders of a batch again, in the partitions that are still this process's."""
        assigned = {(each.topic, each.partition) for each in self.consumer.assignment()}
        for order in reversed(batch.orders):
            if (order.topic(), order.partition()) in assigned:
                self.consumer.seek(TopicPartition(order.topic(), order.partition(), order.offset()))


def invoice(order: Message) -> str:
    """Return the invoice of an order, with a tax of a fifth."""
    fields = json.loads(order.value())
    return json.dumps({"order": fields["id"], "total": fields["price"] * 120 // 100})
