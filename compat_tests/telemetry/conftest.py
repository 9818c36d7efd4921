"""A broker that asks clients for their metrics; Apache Kafka needs a plugin for that."""

from __future__ import annotations

import base64
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.jvm import Jvm, compile_sources
from compat_tests.harness.ports import new_ports
from kwire.telemetry.payload import page_name, unpack

TOOL = "org.apache.kafka.tools.ClientMetricsCommand"
_SERIES = re.compile(r'(kwire_client_\w+)\{client_id="([^"]*)"')


@attrs.define
class Receiver:
    """A broker with a receiver of metrics."""

    broker: Broker
    metrics_port: int = 0
    file: Path = Path()

    def names(self, client_id: str) -> set[str]:
        """Return the names of the metrics that a client has pushed, as kwire shows them."""
        if self.broker.kind == "kafka":
            return set(self._names_in_file(client_id))
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            series = _SERIES.findall(answer.read().decode())
        return {name for name, client in series if client == client_id}

    def _names_in_file(self, client_id: str) -> Iterator[str]:
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            client, payload = line.split(" ")
            if client == client_id:
                data = unpack(base64.b64decode(payload), 0, 1 << 20)
                for resource in data.resource_metrics:
                    for scope in resource.scope_metrics:
                        yield from (page_name(metric.name) for metric in scope.metrics)


@pytest.fixture(scope="package")
def receiver(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    directory = tmp_path_factory.mktemp("receiver")
    if broker_kind == "kafka":
        file = directory / "pushes"
        settings = {"metric.reporters": "Telemetry", "telemetry.file": str(file)}
        classpath = (str(compile_sources()),)
        own = make_broker(broker_kind, directory / "broker", settings, classpath=classpath)
        receiver = Receiver(own, file=file)
    else:
        (port,) = new_ports(1)
        settings = {"kwire.client.metrics.max.series": "10000"}
        arguments = ("--metrics-port", str(port))
        own = make_broker(broker_kind, directory / "broker", settings, arguments=arguments)
        receiver = Receiver(own, metrics_port=port)
    yield receiver
    own.close()


@attrs.define
class Tool:
    """kafka-client-metrics.sh, by the class that it starts."""

    jvm: Jvm
    address: str

    def run(self, *arguments: str) -> str:
        return self.jvm.tool(TOOL, "--bootstrap-server", self.address, *arguments).ok()

    def subscribe(self, name: str, metrics: str, client_id: str) -> None:
        """Have a client push metrics twice a second."""
        match = f"client_id={client_id}"
        options = ("--metrics", metrics, "--interval", "500", "--match", match)
        self.run("--alter", "--name", name, *options)


@pytest.fixture
def tool(jvm: Jvm, receiver: Receiver) -> Tool:
    return Tool(jvm, receiver.broker.address)
