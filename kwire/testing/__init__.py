"""Brokers for the tests of Kafka applications, in the test's own process.

``with Broker() as broker`` runs one, ``with Cluster(3) as cluster`` several, in a thread; ``async
with open_broker() as broker`` and ``open_cluster`` in a trio loop. :class:`BrokerProcess` is a
broker in its own process, :class:`SchemaRegistry` a schema registry. All of them raise
:class:`BrokerError`.

Rule: the modules are imported on first use, because pytest imports this package at startup for the
plugin (:mod:`kwire.testing.pytest_plugin`), even for tests that do not need a broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kwire.testing.broker import Broker, Cluster
    from kwire.testing.clock import MockTime
    from kwire.testing.errors import BrokerError
    from kwire.testing.nodes import LocalCluster, open_broker, open_cluster
    from kwire.testing.process import BrokerProcess
    from kwire.testing.registry.server import SchemaRegistry

__all__ = [
    "Broker",
    "BrokerError",
    "BrokerProcess",
    "Cluster",
    "LocalCluster",
    "MockTime",
    "SchemaRegistry",
    "open_broker",
    "open_cluster",
]

_MODULES = {
    "Broker": "broker",
    "BrokerError": "errors",
    "BrokerProcess": "process",
    "Cluster": "broker",
    "LocalCluster": "nodes",
    "MockTime": "clock",
    "SchemaRegistry": "registry.server",
    "open_broker": "nodes",
    "open_cluster": "nodes",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
