"""kafka-python's own tests as one test of ours, so that the default run includes them."""

from __future__ import annotations

from compat_tests.harness.broker import make_broker
from compat_tests.harness.suite import check
from compat_tests.kafka_python_suite.run import SUITE


def test_everything_on_the_list_passes(broker_kind, tmp_path):
    broker = make_broker(broker_kind, tmp_path / "broker", SUITE.settings)
    try:
        assert check(SUITE, broker_kind, broker.address) == []
    finally:
        broker.close()
