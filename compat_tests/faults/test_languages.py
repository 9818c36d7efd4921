"""Test suites in Java, Go, Node and Python arrange the same three faults over HTTP.

Each observes the same at kwire's control port as at a proxy in front of the session's broker, which
is Apache Kafka with ``--broker=kafka``. ``compat_tests/containers`` runs them at the image.
"""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.containers.libraries import OBSERVED, SUITES, run_suite
from compat_tests.faults.servers import serving


@pytest.mark.long
@pytest.mark.parametrize("kind", ["proxy", "kwire"])
@pytest.mark.parametrize("language", SUITES)
def test_suite_observes_the_faults_that_it_arranges(language: str, kind: str, broker: Any) -> None:
    """Faults that test suites in Java (JUnit), Go, Node and Python arrange over HTTP"""
    with serving(kind, broker.address) as server:
        environment = {"FAULTS_ADDRESS": server.address, "FAULTS_CONTROL": server.control}
        assert run_suite(language, environment) == OBSERVED
