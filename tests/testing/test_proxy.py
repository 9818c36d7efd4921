"""`kwire proxy`: faults in front of a cluster, around which no request goes."""

import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio
from trio.abc import Stream
from trio.testing import MockClock, memory_stream_pair

from kwire.cluster.ports import free_ports
from kwire.codec.frame import RequestHead, read_response, request_frame, response_parts
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.describe_cluster import DescribeClusterRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.metadata import MetadataRequest, MetadataResponse
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.errors import NotLeaderOrFollower
from kwire.records.build import New, batch
from kwire.testing import Broker, Cluster
from kwire.testing.faults import Faults
from kwire.testing.interception import Interception, Pause
from kwire.testing.proxy.brokers import ProxiedCluster
from kwire.testing.proxy.relay import Relay
from kwire.testing.proxy.rewriting import API_VERSIONS, decode, expects_answer, rewrite
from kwire.testing.request_log import RequestLog
from kwire.testing.wire import Closed, WireClient
from tests.support.testing.clients import (
    end_offset,
    fetch,
    find_coordinator,
    produce,
    produce_to_partitions,
)
from tests.support.testing.control import Controlled, run_controlled

pytestmark = pytest.mark.slow

PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


def proxy_words(target: str, port: int = 0) -> tuple[str, ...]:
    return ("proxy", f"--target={target}", f"--listen={port}", "--control-port=0")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.fixture(scope="module")
def proxy(broker: Broker) -> Iterator[Controlled]:
    with run_controlled(*proxy_words(broker.bootstrap_servers)) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Controlled) -> Iterator[WireClient]:
    proxy.call("clear-faults")
    proxy.call("clear-requests")
    with WireClient("127.0.0.1", proxy.port, client_id="shop") as client:
        yield client


def test_no_response_names_a_broker_of_the_target() -> None:
    (port,) = free_ports(1)  # The kernel gives none of the ports after it to anybody else.
    with (
        Cluster(3) as cluster,
        run_controlled(*proxy_words(cluster.bootstrap_servers, port)) as proxy,
    ):
        cluster.create_topic("orders")
        leader = cluster.wait_leader("orders")
        with WireClient("127.0.0.1", proxy.port) as client:
            brokers = {
                each.node_id: (each.host, each.port)
                for each in client.call(MetadataRequest(topics=None), 12).brokers
            }
            described = client.call(
                DescribeClusterRequest(include_cluster_authorized_operations=False), 1
            ).brokers
            find_coordinator(client, 0, "readers")
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=["readers"])
            (coordinator,) = client.call(request, 4).coordinators
        assert brokers == {n: ("127.0.0.1", proxy.port + 1 + n) for n in (1, 2, 3)}
        assert {each.broker_id: (each.host, each.port) for each in described} == brokers
        assert brokers[coordinator.node_id] == (coordinator.host, coordinator.port)
        other = next(node for node in brokers if node != leader)
        with WireClient(*brokers[other]) as client:
            answer = client.call(_produce(), 12)
            (partition,) = answer.responses[0].partition_responses
            assert partition.error_code == NotLeaderOrFollower.code
            hints = {each.node_id: (each.host, each.port) for each in answer.node_endpoints}
            assert hints == {leader: brokers[leader]}
        assert {r["node"] for r in proxy.call("list-requests", api="Produce")["requests"]} == {
            other
        }


def _produce(acks: int = -1, value: bytes = b"value") -> ProduceRequest:
    data = ProduceRequest.TopicProduceData
    records = batch([New(None, value)], timestamp_ms=1_700_000_000_000)
    spot = data.PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=5000, topic_data=[data(name="orders", partition_data=[spot])]
    )


def test_one_partition_fails_and_the_target_gets_the_others(
    proxy: Controlled, client: WireClient
) -> None:
    ends = [end_offset(client, "orders", index) for index in (0, 1)]
    fault = {"action": "fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"}
    proxy.call("add-fault", **fault, topic="orders", partition=1, times=2)
    for version in (9, 13):
        codes = produce_to_partitions(client, "orders", [0, 1], version)
        assert codes == {0: 0, 1: NotLeaderOrFollower.code}
    proxy.call("check-faults")
    assert [end_offset(client, "orders", index) for index in (0, 1)] == [ends[0] + 2, ends[1]]


def test_answers_keep_their_order(proxy: Controlled, client: WireClient) -> None:
    """A request that fails is answered behind the requests before it, which the target answers."""
    proxy.call("add-fault", action="fail", api="Produce", error="REQUEST_TIMED_OUT")
    proxy.call("add-fault", action="duplicate", api="ListOffsets")
    metadata = MetadataRequest(topics=[])
    sent = [
        client.send(request, version)
        for request, version in (
            (metadata, 12),
            (_produce(), 9),
            (metadata, 12),
            (_produce(acks=0), 9),
            (_produce(), 9),
        )
    ]
    del sent[3]  # It has no answer.
    assert [client.receive()[0] for _ in sent] == sent
    before = end_offset(client, "orders")
    assert end_offset(client, "orders") == before, "the first of two answers is dropped"


@pytest.mark.parametrize(
    ("fault", "is_carried_out"),
    [({"action": "drop"}, 0), ({"action": "drop", "after": True}, 1), ({"action": "cut"}, 1)],
    ids=str,
)
def test_a_connection_ends_before_or_after_the_effect(
    proxy: Controlled, client: WireClient, fault: dict[str, object], is_carried_out: int
) -> None:
    before = end_offset(client, "orders")
    proxy.call("add-fault", api="Produce", **fault)
    with pytest.raises(Closed):
        produce(client, "orders")
    with WireClient("127.0.0.1", proxy.port) as other:
        assert end_offset(other, "orders") == before + is_carried_out


def test_a_fetch_session_goes_on_behind_a_fault(proxy: Controlled, client: WireClient) -> None:
    session, codes = fetch(client, "orders", [0, 1])
    assert codes == {0: 0, 1: 0}
    fault = {"action": "fail", "api": "Fetch", "error": "NOT_LEADER_OR_FOLLOWER"}
    proxy.call("add-fault", **fault, topic="orders", partition=1)
    assert fetch(client, "orders", [], session, 1)[1][1] == NotLeaderOrFollower.code
    assert fetch(client, "orders", [], session, 2)[0] == session


def test_large_requests_pass(proxy: Controlled, client: WireClient) -> None:
    assert produce(client, "orders", bytes(900_000)) == 0
    proxy.call("add-fault", action="duplicate", api="Produce")
    before = end_offset(client, "orders")
    assert produce(client, "orders", bytes(900_000)) == 0
    assert end_offset(client, "orders") == before + 2
    assert proxy.call("list-requests", api="Produce")["count"] == 2


def test_a_target_that_comes_back_is_reached_by_the_same_port() -> None:
    with Broker() as broker, run_controlled(*proxy_words(broker.bootstrap_servers)) as proxy:
        broker.create_topic("orders")
        with WireClient("127.0.0.1", proxy.port) as client:
            (listed,) = client.call(MetadataRequest(topics=[]), 12).brokers
        broker.kill()
        with WireClient(listed.host, listed.port) as client, pytest.raises(Closed):
            produce(client, "orders")
        broker.start()
        with WireClient(listed.host, listed.port) as client:
            assert produce(client, "orders") == 0


def test_a_target_that_cannot_be_reached_is_named_once(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    errors = tmp_path / "errors"
    words = (f"--target=127.0.0.1:{port},127.0.0.1:1", "--listen=0")
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "kwire", "proxy", *words],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        proxy_port = int(process.stdout.readline().rpartition(":")[2])
        until_line(errors, f"target not reachable addresses=127.0.0.1:{port} (Connection refused)")
        for _ in range(3):
            with WireClient("127.0.0.1", proxy_port) as client, pytest.raises(Closed):
                client.call(MetadataRequest(topics=[]), 12)
        with Broker(port=port):
            until_line(errors, f"target reachable address=127.0.0.1:{port}")
            with WireClient("127.0.0.1", proxy_port) as client:
                assert client.call(MetadataRequest(topics=[]), 12).brokers
    finally:
        process.kill()
        process.communicate()
    assert errors.read_text().count("target not reachable") == 1


def until_line(path: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.05)


def test_a_log_in_passes_through_to_the_target() -> None:
    port, controller_port = free_ports(2)
    login = f'{PLAIN} required user_alice="secret" username="alice" password="secret";'
    settings = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
    }
    words = [f"--override={name}={value}" for name, value in settings.items()]
    with (
        run_controlled("serve", "--ephemeral", "--control-port=0", *words) as target,
        run_controlled(*proxy_words(f"127.0.0.1:{target.port}")) as proxy,
    ):
        proxy.call(
            "add-fault", action="fail", api="SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED"
        )
        for password, codes in (("secret", (58, 0)), ("wrong", (58,)), ("secret", (0,))):
            with WireClient("127.0.0.1", proxy.port) as client:
                assert client.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
                token = f"\0alice\0{password}".encode()
                for code in codes:  # The target never sees the token that the proxy rejects.
                    answer = client.call(SaslAuthenticateRequest(auth_bytes=token), 2)
                    assert answer.error_code == code
                if codes[-1] == 0:
                    assert client.call(MetadataRequest(topics=[]), 12).brokers[0].port != port
        proxy.call("check-faults")


def test_connections_to_the_target_can_be_encrypted(broker: Broker, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=target")
    files = ("-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key)
    subprocess.run(["openssl", *new, *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def encrypt(client: trio.SSLStream[trio.SocketStream]) -> None:
        target = await trio.open_tcp_stream(*broker.address)
        async with target, trio.open_nursery() as nursery:
            nursery.start_soon(copy, target, client)
            await copy(client, target)

    async def copy(source: Stream, target: Stream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for piece in source:
                await target.send_all(piece)
        await trio.aclose_forcefully(target)

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            start = partial(trio.serve_ssl_over_tcp, encrypt, 0, context, host="127.0.0.1")
            (listener,) = await nursery.start(start)
            port = listener.transport_listener.socket.getsockname()[1]
            await trio.to_thread.run_sync(ask, port)
            nursery.cancel_scope.cancel()

    def ask(port: int) -> None:
        words = proxy_words(f"127.0.0.1:{port}")
        metadata = MetadataRequest(topics=[])
        with (
            run_controlled(*words, "--target-tls", f"--target-ca={certificate}") as proxy,
            WireClient("127.0.0.1", proxy.port) as client,
        ):
            assert [each.node_id for each in client.call(metadata, 12).brokers] == [1]
        with (
            run_controlled(*words, "--target-tls") as proxy,
            WireClient("127.0.0.1", proxy.port) as client,
            pytest.raises(Closed),  # The certificate is not trusted.
        ):
            client.call(metadata, 12)

    trio.run(serve)


def test_versions_that_the_proxy_cannot_read_are_hidden() -> None:
    shape = ApiVersionsResponse.ApiVersion
    response = ApiVersionsResponse(
        api_keys=[
            shape(api_key=1, min_version=0, max_version=99),
            shape(api_key=9999, min_version=0, max_version=1),
        ]
    )
    head = RequestHead(API_VERSIONS, 3, 7, "shop")
    answer = b"".join(map(bytes, response_parts(API_VERSIONS, 3, 7, response)))
    data = rewrite(head, decode(head, memoryview(answer)[4:]), {})
    correlation_id, shown = read_response(API_VERSIONS, 3, data[4:])
    assert correlation_id == 7
    assert [(v.api_key, v.min_version, v.max_version) for v in shown.api_keys] == [(1, 4, 18)]


def test_an_unknown_version_of_api_versions_is_answered_in_the_first(client: WireClient) -> None:
    frame = bytearray(request_frame(API_VERSIONS, 4, 5, "shop", ApiVersionsRequest(
        client_software_name="shop", client_software_version="1")))  # fmt: skip
    frame[6:8] = (99).to_bytes(2, "big")
    client.send_bytes(bytes(frame))
    correlation_id, response = read_response(API_VERSIONS, 0, client.read_frame())
    assert (correlation_id, response.error_code) == (5, 35)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("transactional_id", [None, "", "calculator"])
def test_only_a_produce_without_acknowledgement_has_no_answer(
    version: int, transactional_id: str | None
) -> None:
    for acks in (-1, 0, 1):
        request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1)
        frame = memoryview(request_frame(0, version, 1, "shop", request))[4:]
        assert expects_answer(frame) is bool(acks)


async def test_an_empty_answer_passes_at_once(autojump_clock: MockClock) -> None:
    """A login with bare tokens ends with one; the client sends nothing before it has arrived."""
    client, client_side = memory_stream_pair()
    target, target_side = memory_stream_pair()
    interception = Interception(
        1, Faults(), RequestLog(), lambda topic_id: None, lambda: 0, Pause()
    )

    async def rewrite(head: RequestHead, answer: memoryview) -> bytes:
        raise AssertionError("nothing names a broker")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(Relay(client_side, target_side, interception, rewrite).run)
        with trio.fail_after(10):
            for answer in (bytes(4), b"\0\0\0\1x"):
                await target.send_all(answer)
                arrived = b""
                while len(arrived) < len(answer):
                    arrived += await client.receive_some()
                assert arrived == answer
        nursery.cancel_scope.cancel()


async def test_a_port_that_failed_to_open_is_tried_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, version = 3, 12
    shape = MetadataResponse.MetadataResponseBroker
    response = MetadataResponse(
        brokers=[shape(node_id=7, host="127.0.0.1", port=9, rack=None)],
        cluster_id="c",
        controller_id=7,
        topics=[],
    )
    data = b"".join(map(bytes, response_parts(key, version, 1, response)))
    head, answer = RequestHead(key, version, 1, "shop"), memoryview(data)[4:]

    async def no_port(*_: object, **__: object) -> None:
        raise OSError("too many open files")

    async with trio.open_nursery() as nursery:
        cluster = ProxiedCluster([], "127.0.0.1", None, nursery)
        await cluster.start(0)
        with monkeypatch.context() as patch:
            patch.setattr("kwire.testing.proxy.brokers.trio.open_tcp_listeners", no_port)
            with pytest.raises(OSError, match="too many open files"):
                await cluster.rewrite(head, answer)
        with trio.fail_after(10):
            shown = read_response(key, version, (await cluster.rewrite(head, answer))[4:])[1]
        assert [(each.node_id, each.port) for each in shown.brokers] == [
            (7, cluster.brokers[7].port)
        ]
        nursery.cancel_scope.cancel()
