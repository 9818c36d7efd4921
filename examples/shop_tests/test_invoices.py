"""The stream processor: one invoice for each order, whatever goes wrong."""

import json
from contextlib import suppress

from confluent_kafka import KafkaException
from shop.invoices import Invoices

from shop_tests.scene import Scene, run_until


def test_an_invoice_has_the_tax(scene: Scene) -> None:
    scene.send_orders("book")
    with Invoices(scene.settings, "a") as app:
        run_until(lambda: len(scene.keys("invoices")) == 1, app)
    (invoice,) = scene.read("invoices")
    assert json.loads(invoice.value()) == {"order": "book", "total": 120}


def test_an_aborted_transaction_is_tried_again(scene: Scene) -> None:
    scene.send_orders("book", "lamp")
    scene.broker.faults.fail("Produce", "INVALID_RECORD", topic="invoices")
    with Invoices(scene.settings, "a") as app:
        run_until(lambda: len(scene.keys("invoices")) == 2, app, seconds=10)
    assert scene.keys("invoices") == ["book", "lamp"]


def test_a_process_that_hung_writes_no_invoice_again(scene: Scene) -> None:
    scene.send_orders("book")
    with Invoices(scene.settings, "a") as first:
        batch = first.read(10)
        scene.broker.clock.advance(60)  # Longer than a session: the group goes on without `first`.
        with Invoices(scene.settings, "b") as second:
            run_until(lambda: scene.keys("invoices") == ["book"], second)
            with suppress(KafkaException):
                first.process(batch)
    assert scene.keys("invoices") == ["book"]
