"""The pytest plugin: fixtures with brokers, which need no conftest.

``kafka`` is the session's broker, ``kafka_fresh`` a test's own broker, ``kafka_cluster`` the
session's cluster of three nodes, ``kafka_secure`` a broker with encryption and authentication.
``kafka_topic`` and ``kafka_topic_factory`` create topics with unique names and delete them,
``kafka_registry`` is a test's own schema registry. The report of a failed test shows what its
brokers logged, and which requests they received, during the test.

Rule: pytest imports this module at startup, so it imports nothing else of kwire before a fixture is
used. With pytest-xdist, each worker has its own brokers.

pytest rewrites the assert statements of every module in the distribution of a plugin. A broker's
modules then take 1.7 s to load, 3.6 s the first time, instead of 0.6 s. So a finder that precedes
pytest's finds kwire's modules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import pytest

if TYPE_CHECKING:
    from kwire.testing.broker import Broker, Cluster
    from kwire.testing.registry.server import SchemaRegistry

    B = TypeVar("B", Broker, Cluster)

_PACKAGES: Final = ("kwire", "kwire_pipeline")


class UnchangedModules(MetaPathFinder):
    """A finder of this distribution's modules that leaves their source unchanged."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _PACKAGES:
            return None
        return PathFinder.find_spec(fullname, path, target)


sys.meta_path.insert(0, UnchangedModules())
_SHARED: Final = ("kafka", "kafka_cluster", "kafka_secure")
"""The fixtures with brokers that serve all tests of the session."""
LINES_MAX: Final = 200
"""The most lines of a log, and of requests, in the report of a failed test."""


class Brokers:
    """The brokers of fixtures, with their counts of log lines and requests before the test."""

    def __init__(self) -> None:
        self._counts: dict[Broker | Cluster, tuple[int, int]] = {}

    @contextmanager
    def watching(self, broker: B) -> Iterator[B]:
        with broker:
            self._counts[broker] = (0, 0)
            try:
                yield broker
            finally:
                del self._counts[broker]

    def begin_test(self) -> None:
        for broker in self._counts:
            self._counts[broker] = (broker.log_line_count, broker.requests.total)

    def end_test(self, *, has_failed: bool) -> None:
        """Resume paused brokers, free full disks and remove faults.

        A shared broker that stays paused, or whose disk stays full, would make later tests wait for
        no visible reason. Raises BrokerError if a fault has not happened.
        """
        for broker in self._counts:
            broker.end_outages()
            if has_failed:
                broker.faults.clear()
            else:
                broker.faults.check()

    def log_sections(self) -> Iterator[tuple[str, str]]:
        """Yield titles and texts: each broker's log and requests since the test began."""
        for broker, (line_count, request_count) in self._counts.items():
            count = min(broker.log_line_count - line_count, LINES_MAX)
            if count > 0:
                title = f"log of the broker at {broker.bootstrap_servers}"
                yield title, "\n".join(broker.log_lines[-count:])
            requests = broker.requests.lines(broker.requests.total - request_count)
            if requests:
                title = f"requests of clients to the broker at {broker.bootstrap_servers}"
                yield title, "\n".join(requests[-LINES_MAX:])


# Any: arguments of `Broker` by name, each with its own type.
Settings: TypeAlias = Mapping[str, Any]
_BROKERS: Final = pytest.StashKey[Brokers]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_BROKERS] = Brokers()
    config.addinivalue_line(
        "markers",
        "kafka_settings(**settings): settings of the broker of kafka_fresh, as num_partitions=4",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    _check_marker(item)
    item.config.stash[_BROKERS].begin_test()


def _check_marker(item: pytest.Item) -> None:
    """Fail a test whose own marker has no effect: the session's brokers are set up once."""
    fixtures = getattr(item, "fixturenames", ())
    shared = [name for name in _SHARED if name in fixtures]
    has_marker = any(marker.name == "kafka_settings" for marker in item.own_markers)
    if has_marker and shared and "kafka_fresh" not in fixtures:
        pytest.fail(
            f"the marker kafka_settings sets up the broker of kafka_fresh; {shared[0]} is shared "
            "by all tests, and has the settings that the fixture kafka_settings returns",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    has_failed = True
    try:
        yield
        has_failed = False
    finally:
        item.config.stash[_BROKERS].end_test(has_failed=has_failed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += item.config.stash[_BROKERS].log_sections()
    return report


@pytest.fixture(scope="session")
def kafka_settings() -> Settings:
    """The settings of the session's brokers: none. Override this fixture to have others."""
    return {}


@pytest.fixture(scope="session")
def kafka(kafka_settings: Settings, pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A broker that serves all tests of the session; use topics with unique names."""
    from kwire.testing.broker import Broker

    with pytestconfig.stash[_BROKERS].watching(Broker(**kafka_settings)) as broker:
        yield broker


@pytest.fixture
def kafka_fresh(kafka_settings: Settings, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A new broker for this test alone, with the settings of its ``kafka_settings`` marker."""
    from kwire.testing.broker import Broker

    settings = dict(kafka_settings)
    for marker in reversed(list(request.node.iter_markers("kafka_settings"))):
        settings.update(marker.kwargs)
    with request.config.stash[_BROKERS].watching(Broker(**settings)) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_cluster(kafka_settings: Settings, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster of three nodes for all tests of the session; restart the nodes that you stop."""
    from kwire.testing.broker import Cluster

    with pytestconfig.stash[_BROKERS].watching(Cluster(3, **kafka_settings)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_secure(kafka_settings: Settings, pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A protected broker for all tests of the session; clients need its ``client_settings()``."""
    from kwire.testing.broker import Broker

    broker = Broker(secure=True, **kafka_settings)
    with pytestconfig.stash[_BROKERS].watching(broker) as running:
        yield running


@pytest.fixture
def kafka_topic_factory(kafka: Broker) -> Iterator[Callable[..., str]]:
    """A function that creates a topic and returns its name; the topics are deleted at the end.

    It takes the arguments of ``Broker.topic``: the number of partitions, and settings.
    """
    with ExitStack() as topics:
        yield lambda *arguments, **settings: topics.enter_context(
            kafka.topic(*arguments, **settings)
        )


@pytest.fixture
def kafka_topic(kafka_topic_factory: Callable[..., str]) -> str:
    """The unique name of a new topic with one partition, on the broker of ``kafka``."""
    return kafka_topic_factory()


@pytest.fixture
def kafka_registry() -> Iterator[SchemaRegistry]:
    """A new schema registry for this test alone; its ``url`` is for the serializers of clients."""
    from kwire.testing.registry.server import SchemaRegistry

    with SchemaRegistry() as registry:
        yield registry
