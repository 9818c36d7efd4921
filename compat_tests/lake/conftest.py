"""The lake of a session's tests, and a pipeline on it."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from compat_tests.harness.broker import Broker
from compat_tests.lake.install import reason_to_skip
from compat_tests.lake.scene import LakeScene, use
from compat_tests.lake.servers import Lake, StoreKind, running_lake


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """py4j leaves sockets to the garbage collector."""
    for item in items:
        if item.path.parent.name == "lake":
            for warning in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))


@pytest.fixture(scope="session")
def lake(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Lake]:
    """An object store and a catalog, which the session of Spark knows."""
    kind = StoreKind(request.config.getoption("--store"))
    if kind is StoreKind.VERSITYGW and (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    with running_lake(tmp_path_factory.mktemp("lake"), kind) as running:
        use(spark, running)
        yield running


@pytest.fixture
def scene(
    spark: SparkSession, broker: Broker, topic: str, lake: Lake, request: pytest.FixtureRequest
) -> LakeScene:
    """A pipeline over a new topic, into a table of the format that the test names."""
    chosen = LakeScene.on(lake, spark, broker, topic, request.param)
    chosen.create_topic()
    return chosen
