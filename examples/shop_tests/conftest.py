"""A broker that each test finds empty."""

import pytest

from kwire.testing import Broker
from shop_tests.scene import Scene


@pytest.fixture
def scene(kafka: Broker) -> Scene:
    """The shop's topics on the session's broker, which is emptied in a few milliseconds."""
    kafka.reset()
    kafka.create_topic("orders", 2)
    kafka.create_topic("orders.dead")
    kafka.create_topic("invoices")
    return Scene(kafka)
