"""Fixtures of every compatibility test.

``--broker kwire`` (the default) starts kwire, ``--broker kafka`` Apache Kafka 4.3.1, and
``--broker HOST:PORT`` uses a running one. The failure of a test against kwire is meaningful
because the test passes against Kafka. A test that starts the same brokers whatever ``--broker``
says is left out of a run against Kafka. One broker serves the whole session, so tests use unique
names; a test that kills or restarts a broker takes ``own_broker``. With ``--nodes 3`` the session's
broker is a cluster that replicates, and tests marked ``single`` are left out. ``--store versitygw``
chooses another object store for the tests in ``lake``.
"""

from __future__ import annotations

import faulthandler
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compat_tests.harness.broker import PLAIN_PROFILE, Broker, make_broker
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.suite import REPLICATED, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker", default="kwire", help="kwire (default), kafka, or the address of a running one"
    )
    parser.addoption(
        "--store",
        default="ministack",
        choices=["ministack", "versitygw"],
        help="the object store of the tests in lake/",
    )
    parser.addoption("--nodes", type=int, default=1, help="number of brokers that tests share")
    parser.addoption("--counts", default=None, help="write the counts per folder to this JSON file")


@pytest.fixture(scope="session")
def broker_kind(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--broker"))


@pytest.fixture(scope="session")
def node_count(request: pytest.FixtureRequest) -> int:
    """The number of brokers behind ``broker``."""
    return int(request.config.getoption("--nodes"))


@pytest.fixture(scope="session")
def broker(
    broker_kind: str, node_count: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """The session's broker or cluster, shared by all tests."""
    directory = tmp_path_factory.mktemp("broker")
    if node_count > 1:
        settings = {**PLAIN_PROFILE, **REPLICATED}
        with running(broker_kind, settings, node_count) as (address, _):
            yield Broker(kind="address", address=address, directory=directory)
        return
    shared = make_broker(broker_kind, directory)
    yield shared
    shared.close()


@pytest.fixture
def own_broker(
    broker_kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Broker]:
    """A broker of the test's own, to be killed and restarted.

    ``BROKER_SETTINGS`` of the test's module replace the defaults.
    """
    settings = getattr(request.module, "BROKER_SETTINGS", None)
    own = make_broker(broker_kind, tmp_path / "broker", settings)
    yield own
    own.close()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A maker of names that no other test and no earlier run on the same broker has used."""
    test = "".join(c if c.isalnum() else "-" for c in request.node.name)[:60]
    return lambda role: f"{test}-{role}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(unique: Callable[[str], str]) -> str:
    return unique("topic")


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    return unique("group")


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """The JVM that runs every Java tool and scenario of the session."""
    machine = Jvm.start(tmp_path_factory.mktemp("jvm"))
    yield machine
    machine.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of all tests: a JVM gets its packages once, when it starts."""
    from compat_tests.harness.spark import open_session

    session = open_session(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


HOURS = 4


@pytest.fixture
def patience() -> Iterator[None]:
    """Let one test take hours on a busy machine; the run still ends if the test hangs."""
    faulthandler.dump_traceback_later(HOURS * 3600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--counts")
    if target and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Counts(Path(target), config.getoption("--nodes")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kind, node_count = config.getoption("--broker"), config.getoption("--nodes")
    left_out = {item for item in items if is_left_out(item, kind, node_count)}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def is_left_out(item: pytest.Item, kind: str, node_count: int) -> bool:
    """Return whether a run leaves a test out.

    A test that does not ask which broker is under test, such as one of mixed clusters, would only
    repeat against Apache Kafka what the run against kwire has shown.
    """
    names = item.fixturenames if isinstance(item, pytest.Function) else ()
    if kind == "kafka" and "broker_kind" not in names:
        return True
    return node_count > 1 and item.get_closest_marker("single") is not None


class Counts:
    """The outcomes by folder, counted in the process that gets the reports of all workers.

    A run with several nodes is counted separately, as ``java_3_nodes``.
    """

    def __init__(self, target: Path, node_count: int) -> None:
        self._target = target
        self._suffix = f"_{node_count}_nodes" if node_count > 1 else ""
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failed_outside = report.when != "call" and report.failed
        if report.when == "call" or failed_outside:
            folder = Path(report.location[0]).parent.name + self._suffix
            self._counts[folder]["failed" if failed_outside else report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        counts = {folder: dict(outcomes) for folder, outcomes in sorted(self._counts.items())}
        self._target.write_text(json.dumps(counts, indent=2) + "\n")
