"""kafka-python's own tests, on one broker and on three."""

from __future__ import annotations

import pytest

from compat_tests.harness.suite import check, widen
from compat_tests.kafka_python_suite.run import SUITE


def test_every_test_of_the_suite_passes_or_is_listed(broker_kind):
    assert check(SUITE, broker_kind) == []


@pytest.mark.long
def test_every_test_for_several_nodes_passes_on_three(broker_kind):
    assert check(widen(SUITE, 3), broker_kind) == []
