"""Random admin requests to three nodes, each broker and controller.

They go to brokers and controllers, active or not, bare and in Envelopes. Each is answered, no node
logs a traceback, and in the end all nodes have the same metadata, also after all were killed and
started again. ``KWIRE_SEED`` sets the seed, ``KWIRE_REQUESTS`` the number of requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import attrs

from compat_tests.cluster.admin_requests import NODES, SHARED, Source
from compat_tests.cluster.envelopes import HOST, PRINCIPAL
from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.cluster.topics import creation, wait_known
from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.describe_client_quotas import DescribeClientQuotasRequest
from kwire.codec.messages.describe_cluster import DescribeClusterRequest
from kwire.codec.messages.describe_configs import DescribeConfigsRequest
from kwire.codec.messages.envelope import EnvelopeRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.testing.wire import WireClient, key_of
from tests.support.codec.message_json import to_json

REQUESTS = int(os.environ.get("KWIRE_REQUESTS", "250"))
SEED = int(os.environ.get("KWIRE_SEED", "1"))
NOT_CONTROLLER = 41
BY_BROKERS_ONLY = {48}
"""APIs that controllers do not serve: brokers answer DescribeClientQuotas themselves."""
ALTER_CONFIGS = 33
"""AlterConfigs; Kafka's brokers do not answer it if no resource is left to forward."""
TOPIC, CLUSTER = 2, 4
LAST = "last"


@attrs.define(eq=False)
class Client:
    """A client that sends each request to a random node, which must answer it."""

    cluster: Cluster
    source: Source
    shared: dict[int, int]
    """The weights of the requests that clients send, by API key."""
    connections: dict[int, WireClient] = attrs.field(factory=dict)

    def call(self, port: int, request: Any, version: int) -> Any:
        if port not in self.connections:
            self.connections[port] = WireClient("127.0.0.1", port, timeout_s=90)
        return self.connections[port].call(request, version)

    def step(self) -> None:
        draw = self.source.random
        node = draw.choice(self.cluster.brokers)
        to_controllers = {key: n for key, n in self.shared.items() if key not in BY_BROKERS_ONLY}
        way = draw.random()
        if way < 0.5:
            self.call(node.port, *self.source.request(self.shared))
        elif way < 0.6:
            self.call(node.controller_port, *self.source.request(to_controllers))
        elif way < 0.8:
            self.call(node.controller_port, *self.source.request(NODES))
        else:
            self.send_in_envelope(node, *self.source.request(to_controllers))

    def send_in_envelope(self, node: Node, request: Any, version: int) -> None:
        """Send a request in an Envelope; accept its answer, or NOT_CONTROLLER."""
        key = key_of(request)
        frame = request_frame(key, version, 7, "inside", request)[4:]
        envelope = EnvelopeRequest(
            request_data=frame, request_principal=PRINCIPAL, client_host_address=HOST
        )
        answer = self.call(node.controller_port, envelope, 0)
        assert answer.error_code in (0, NOT_CONTROLLER)
        if answer.error_code == 0:
            correlation_id, _ = read_response(key, version, answer.response_data)
            assert correlation_id == 7

    def look(self) -> None:
        """Give the source the current topics' ids, in the order of their names."""
        node = self.cluster.brokers[0]
        topics = self.call(node.port, MetadataRequest(topics=None), 12).topics
        self.source.ids = [t.topic_id for t in sorted(topics, key=lambda topic: str(topic.name))]


def visible_metadata(node: Node) -> list[Any]:
    """Return the metadata that a node's clients can see."""
    with node.client() as client:
        topics = client.call(MetadataRequest(topics=None), 12).topics
        resource = DescribeConfigsRequest.DescribeConfigsResource
        listed = [(TOPIC, str(topic.name)) for topic in topics] + [(CLUSTER, "")]
        resources = [
            resource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in sorted(listed)
        ]
        configs = client.call(DescribeConfigsRequest(resources=resources), 4)
        quotas = client.call(DescribeClientQuotasRequest(components=[], strict=False), 1)
        everybody = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=True
        )
        brokers = client.call(everybody, 2)
        return [
            sorted(map(repr, topics)),
            to_json(configs, 4),
            sorted(map(repr, quotas.entries or ())),
            sorted(map(repr, brokers.brokers)),
        ]


def wait_same_metadata(cluster: Cluster) -> list[Any]:
    """Wait until all nodes have the same metadata, and return it."""

    def shared_metadata() -> list[Any] | None:
        first, *others = [visible_metadata(node) for node in cluster.brokers]
        return first if all(other == first for other in others) else None

    metadata = eventually(shared_metadata, "all nodes have the same metadata")
    assert metadata is not None
    return metadata


def test_nodes_agree_after_random_requests(make: Callable[..., Cluster], broker_kind: str) -> None:
    """Random admin requests are answered, and all nodes agree, before and after a restart."""
    cluster = make(3)
    cluster.start()
    source = Source(Random(SEED), epochs=[0, 5, 7], cluster_id=kafka.CLUSTER_ID)
    served = {key: n for key, n in SHARED.items() if broker_kind == "kwire" or key != ALTER_CONFIGS}
    load = Client(cluster, source, served)
    for number in range(REQUESTS):
        load.step()
        if number % 5 == 0:
            load.look()
    with cluster.brokers[0].client() as client:  # Nodes that have this have all that was before it.
        (result,) = client.call(creation(LAST, partitions=1), 7).topics
    assert result.error_code == 0, result.error_message
    wait_known(cluster, LAST)
    before = wait_same_metadata(cluster)
    assert len(before[0]) > 1, "no topic was created"
    for node in cluster.brokers:
        node.kill()
    for node in cluster.brokers:
        node.launch()
    cluster.wait_complete()
    after = wait_same_metadata(cluster)
    assert after[1:3] == before[1:3], "settings and quotas"
    for node in cluster.brokers:
        assert "Traceback" not in node.read_log(), node.read_log()[-4000:]
