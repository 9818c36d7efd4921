"""kafka-python's own tests as one test here, so that the default run includes them."""

from __future__ import annotations

from compat_tests.harness.suite import check
from compat_tests.kafka_python_suite.run import SUITE


def test_every_test_of_the_suite_passes_or_is_listed(broker_kind):
    assert check(SUITE, broker_kind) == []
