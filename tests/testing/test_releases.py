"""`max_versions`: clients see the APIs and versions of an older release of Kafka."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.frame import read_response
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.errors import UnsupportedVersion
from kwire.handlers import served_on
from kwire.testing import Broker, BrokerError, Cluster
from kwire.testing.releases import RELEASES
from kwire.testing.wire import Closed, WireClient
from tests.support.testing.clients import produce
from tests.support.testing.control import run_controlled

API_VERSIONS: Final = 18
VECTORS: Final = Path(__file__).parents[1] / "vectors" / "api-versions-of-older-releases.json"
ANSWERS: Final[dict[str, dict[str, dict[str, int]]]] = json.loads(VECTORS.read_text())
"""The answers of real brokers of two releases (KRaft, new clusters)."""


def ask(client: WireClient, version: int = 3) -> ApiVersionsResponse:
    return client.call(
        ApiVersionsRequest(client_software_name="test", client_software_version="1"), version
    )


def last_versions(response: ApiVersionsResponse) -> dict[str, int]:
    return {BY_KEY[api.api_key].name: api.max_version for api in response.api_keys}


@pytest.mark.parametrize("release", list(ANSWERS))
def test_the_versions_and_features_are_those_of_the_real_release(release: str) -> None:
    with Broker(max_versions=release) as broker, WireClient(*broker.address) as client:
        response = ask(client)
    real = {int(key): last for key, last in ANSWERS[release]["last_versions"].items()}
    served = served_on(ListenerType.BROKER)
    assert {api.api_key: api.max_version for api in response.api_keys} == {
        key: last for key, last in real.items() if key in served
    }
    features = {each.name: each.max_version_level for each in response.finalized_features}
    features.pop("kraft.version", None)  # The voters of a test broker are dynamic.
    assert features == ANSWERS[release]["finalized"]


def test_each_release_has_no_older_versions_than_the_one_before() -> None:
    before: dict[str, int] = {}
    for release in RELEASES:
        with Broker(max_versions=release) as broker, WireClient(*broker.address) as client:
            versions = last_versions(ask(client))
        versions.pop("UnregisterBroker", None)  # 2.8 has it, 3.0 to 3.2 do not.
        older = {name: versions.get(name, -1) for name in before}
        assert all(older[name] >= last for name, last in before.items()), release
        before = versions
    with Broker() as broker, WireClient(*broker.address) as client:
        newest = last_versions(ask(client))
    newest.pop("UnregisterBroker")
    assert before == newest


def test_a_request_in_a_newer_version_closes_the_connection() -> None:
    with Broker(max_versions="3.6") as broker:
        broker.create_topic("orders")
        with WireClient(*broker.address) as client:
            assert produce(client, "orders") == 0
            client.call(MetadataRequest(topics=None), 12)
            with pytest.raises(Closed):
                client.call(MetadataRequest(topics=None), 13)
        with WireClient(*broker.address) as client, pytest.raises(Closed):
            client.call(
                ConsumerGroupHeartbeatRequest(group_id="group", member_id="member", member_epoch=0),
                0,
            )


def test_an_unknown_version_of_api_versions_is_answered_with_the_known_ones() -> None:
    with Broker(max_versions="3.8") as broker, WireClient(*broker.address) as client:
        client.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
        answer: ApiVersionsResponse
        _, answer = read_response(API_VERSIONS, 0, memoryview(client.read_frame()))
        assert answer.error_code == UnsupportedVersion.code
        assert [(api.api_key, api.max_version) for api in answer.api_keys] == [(API_VERSIONS, 3)]
        assert ask(client).error_code == 0


def test_a_fault_applies_to_the_answer_of_an_older_release() -> None:
    with Broker(max_versions="3.7") as broker, WireClient(*broker.address) as client:
        broker.faults.throttle("ApiVersions", 0.01)
        response = ask(client)
        assert (response.throttle_time_ms, last_versions(response)["Produce"]) == (10, 10)


def test_nodes_of_a_cluster_talk_to_each_other_in_their_own_versions() -> None:
    with Cluster(3, max_versions="2.8") as cluster:
        cluster.create_topic("orders")
        node = cluster.wait_leader("orders")
        with WireClient(*cluster.addresses[node - 1]) as client:
            assert produce(client, "orders") == 0
            assert last_versions(ask(client))["Fetch"] == 12


def test_a_release_without_a_table_is_one_clear_error() -> None:
    pattern = r"versions of Kafka 2\.7 are unknown; choose one of 2\.8, 3\.0"
    with pytest.raises(BrokerError, match=pattern):
        Broker(max_versions="2.7")


@pytest.mark.slow
def test_the_proxy_shows_an_older_release_of_its_cluster() -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        words = ("proxy", f"--target={broker.bootstrap_servers}", "--listen=0")
        with (
            run_controlled(*words, "--control-port=0", "--max-versions=3.7.1") as proxy,
            WireClient("127.0.0.1", proxy.port) as client,
        ):
            assert last_versions(ask(client))["Fetch"] == 16
            assert not [f for f in ask(client).finalized_features if "transaction" in f.name]
            with pytest.raises(Closed):
                client.call(MetadataRequest(topics=None), 13)


@pytest.mark.slow
def test_a_controlled_node_shows_an_older_release() -> None:
    words = ("serve", "--ephemeral", "--port=0", "--control-port=0", "--max-versions=3.9")
    with run_controlled(*words) as server, WireClient("127.0.0.1", server.port) as client:
        assert last_versions(ask(client))["Fetch"] == 17


@pytest.mark.slow
def test_an_ordinary_node_does_not_pretend() -> None:
    command = [sys.executable, "-m", "kwire", "serve", "--ephemeral", "--max-versions=3.7"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, "give a --control-port" in ended.stderr) == (1, True)
