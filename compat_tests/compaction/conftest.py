"""The JVM with Apache Kafka's cleaner, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat_tests.compaction.apache import ApacheCleaner


@pytest.fixture(scope="package")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCleaner]:
    cleaner = ApacheCleaner.start(tmp_path_factory.mktemp("apache-cleaner"))
    yield cleaner
    cleaner.close()
