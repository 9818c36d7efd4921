"""The outbox: every order reaches the topic, once."""

from shop.outbox import Relay, Shop

from shop_tests.scene import Scene


def test_an_event_is_written_once_although_the_response_is_lost(scene: Scene) -> None:
    shop = Shop()
    shop.place("book", 10)
    scene.broker.faults.drop("Produce", after=True, topic="orders")
    with Relay(shop, scene.settings) as relay:
        relay.run_once()
    assert scene.keys("orders") == ["book"]


def test_an_event_survives_a_crash_in_an_outage(scene: Scene) -> None:
    shop = Shop()
    shop.place("book", 10)
    outage = scene.broker.faults.drop("Produce", topic="orders", times=None)
    with Relay(shop, scene.settings) as relay:
        relay.run_once(timeout=0.2)  # The process ends before Kafka has acknowledged anything.
    scene.broker.faults.remove(outage.id)
    with Relay(shop, scene.settings) as relay:
        relay.run_once()
    assert scene.keys("orders") == ["book"]
