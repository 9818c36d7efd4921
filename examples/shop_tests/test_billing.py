"""The consumer: every order is charged once, or is a dead letter with a reason."""

import pytest
from shop.billing import ATTEMPTS, Billing, Order, Unavailable

from shop_tests.scene import Scene, run_until


def test_an_order_is_charged_after_a_crash(scene: Scene) -> None:
    scene.send_orders("book")

    def crash(order: Order) -> None:
        raise MemoryError

    with Billing(scene.settings, crash) as app, pytest.raises(MemoryError):
        run_until(lambda: False, app)
    charged: list[str] = []
    with Billing(scene.settings, lambda order: charged.append(order["id"])) as app:
        run_until(lambda: bool(charged), app, seconds=10)
    assert charged == ["book"]


def test_a_poison_record_becomes_a_dead_letter_and_the_next_order_is_charged(scene: Scene) -> None:
    scene.send("poison", "{no json")
    scene.send_orders("book")
    charged: list[str] = []
    with Billing(scene.settings, lambda order: charged.append(order["id"])) as app:
        run_until(lambda: bool(charged), app, seconds=10)
    (letter,) = scene.read("orders.dead")
    assert (letter.key(), letter.value()) == (b"poison", b"{no json")
    assert b"Expecting" in dict(letter.headers())["reason"]


def test_a_bank_that_is_away_for_a_moment_costs_no_order(scene: Scene) -> None:
    scene.send_orders("book")
    attempts: list[str] = []

    def charge(order: Order) -> None:
        attempts.append(order["id"])
        if len(attempts) < ATTEMPTS:
            raise Unavailable

    with Billing(scene.settings, charge) as app:
        run_until(lambda: len(attempts) == ATTEMPTS, app)
    scene.broker.wait_lag("billing", "orders")
    assert scene.read("orders.dead") == []


def test_a_second_process_charges_nothing_again(scene: Scene) -> None:
    charged: list[str] = []

    def new_process() -> Billing:
        return Billing(scene.settings, lambda order: charged.append(order["id"]), commit_every=100)

    scene.send("book", '{"id": "book"}', partition=0)
    scene.send("lamp", '{"id": "lamp"}', partition=1)
    with new_process() as first:
        run_until(lambda: len(charged) == 2, first)
        with new_process() as second:
            run_until(lambda: bool(second.consumer.assignment()), first, second)
            scene.send("cup", '{"id": "cup"}', partition=0)
            scene.send("pen", '{"id": "pen"}', partition=1)
            run_until(lambda: {"cup", "pen"} <= set(charged), first, second)
    assert sorted(charged) == ["book", "cup", "lamp", "pen"]
