"""Test suites in Java, Go, Node and Python start the image and arrange faults over HTTP.

Each starts it with its language's testcontainers module and observes what it observes at a process
of kwire and at Apache Kafka behind a proxy (``compat_tests/faults/test_languages.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compat_tests.containers.libraries import OBSERVED, SUITES, run_suite
from compat_tests.containers.podman import IMAGE

pytestmark = [pytest.mark.long, pytest.mark.single]


@pytest.mark.parametrize("language", SUITES)
def test_suite_observes_the_faults_of_a_container(language: str, docker: Mapping[str, str]) -> None:
    """Faults that suites in four languages arrange over HTTP at a container of the image"""
    assert run_suite(language, {**docker, "FAULTS_IMAGE": IMAGE}) == OBSERVED
