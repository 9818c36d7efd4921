"""A live broker, by raw bytes: recorded answers of Apache Kafka, and requests that are damaged."""

import gzip
import json
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import pytest

from kwire.codec.apis import BY_KEY, BY_NAME, ListenerType
from kwire.codec.frame import read_response
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.handlers import served_on
from kwire.testing.process import BrokerProcess
from kwire.testing.wire import Closed, WireClient
from tests.support.codec.message_json import to_json

pytestmark = pytest.mark.slow

VECTORS = Path(os.environ.get("KWIRE_GOLDEN", Path(__file__).parents[1] / "vectors"))
CONVERSATIONS = 31
VARIES = {"clusterId", "topicId", "port", "host", "errorMessage", "finalizedFeaturesEpoch"}
"""Fields that differ from run to run, or that are free text."""


def lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(VECTORS / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start a broker like the recorded one: node 1 with topics c0 to c3."""
    directory = tmp_path_factory.mktemp("live") / "data"
    with BrokerProcess(directory, auto_create_topics_enable=False) as process:
        with process.client() as client:
            topics = [
                CreateTopicsRequest.CreatableTopic(
                    name=f"c{number}", num_partitions=1, replication_factor=1
                )
                for number in range(4)
            ]
            created = client.call(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
            assert [topic.error_code for topic in created.topics] == [0] * 4
            coordinate(client)
        yield process
        assert process.is_alive, process.log_lines[-20:]
        bugs = [
            line for line in process.log_lines if "Traceback" in line or "request failed" in line
        ]
        assert not bugs, "\n".join(process.log_lines)


def coordinate(client: WireClient) -> None:
    """Wait until the group's coordinator is loaded, as it was in the recorded broker."""
    client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    heartbeat = HeartbeatRequest(group_id="g", generation_id=0, member_id="unknown")
    for _ in range(10_000):
        if client.call(heartbeat, 4).error_code not in {14, 15, 16}:
            return
    raise AssertionError("the coordinator does not load")


def check_alive(process: BrokerProcess) -> None:
    """Check that a new client is served."""
    with process.client() as client:
        assert client.call(ApiVersionsRequest(), 0).error_code == 0


def comparable(value: Any) -> Any:
    """Return structure and codes, without the fields that differ from run to run."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key not in VARIES}
    if isinstance(value, list):
        return sorted((comparable(item) for item in value), key=json.dumps)
    return value


def check_same(name: str, ours: Any, theirs: Any) -> None:
    if name == "ApiVersionsResponse" and theirs["errorCode"] == 0:
        kafkas = {api["apiKey"]: api for api in theirs["apiKeys"]}
        for api in ours["apiKeys"]:
            assert api == kafkas[api["apiKey"]], "advertised as Kafka does"
        assert ours["errorCode"] == 0
        features = {f["name"]: f for f in theirs.get("supportedFeatures", [])}
        assert {f["name"] for f in ours.get("supportedFeatures", [])} <= features.keys()
        return
    if name == "MetadataResponse":  # the recorded broker had been used before
        had = {"__consumer_offsets", "__transaction_state"}
        for answer in (ours, theirs):
            answer["topics"] = [topic for topic in answer["topics"] if topic["name"] not in had]
    assert comparable(ours) == comparable(theirs)


def test_recorded_conversations_with_kafka_get_the_same_answers(live: BrokerProcess) -> None:
    recorded = lines("server.jsonl.gz")
    if "KWIRE_GOLDEN" not in os.environ:
        assert len(recorded) == CONVERSATIONS
    for conversation in recorded:
        replay(live, conversation)
    print(f"server.jsonl.gz: {len(recorded)} conversations replayed")


def replay(live: BrokerProcess, conversation: dict[str, Any]) -> None:
    note = conversation["id"]
    with live.client() as client:
        for sent in conversation["sent"]:
            client.send_bytes(bytes.fromhex(sent))
        for expected, raw in zip(
            conversation.get("received_json", []), conversation["received"], strict=True
        ):
            frame = client.read_frame()
            name, version = expected["name"], expected["version"]
            api = BY_NAME[name.removesuffix("Response")]
            correlation_id, response = read_response(api.key, version, frame)
            assert correlation_id == unpack_from(">i", bytes.fromhex(raw), 4)[0], note
            check_same(name, to_json(response, version), expected["json"])
        if conversation["connection_after"] == "closed":
            assert client.is_closed(), note
        else:
            assert client.call(ApiVersionsRequest(), 0).error_code == 0, note


REQUESTS_THAT_WAIT = {"Fetch", "JoinGroup", "SyncGroup"}
WAIT_S = 0.2
"""Longest wait for an answer that may rightly take as long as the request says."""


def test_every_served_version_takes_every_recorded_request(live: BrokerProcess) -> None:
    """Arbitrary but well-formed values: answered, closed or waiting, never a bug."""
    apis = served_on(ListenerType.BROKER)
    sent: set[tuple[int, int]] = set()
    for line in lines("frames.jsonl.gz"):
        api = apis.get(line["api_key"])
        if line["kind"] == "request" and api is not None and api.is_stable(line["version"]):
            check_request(live, line)
            sent.add((api.key, line["version"]))
    assert sent == {
        (key, version) for key, api in apis.items() for version in range(api.first, api.stable + 1)
    }
    check_alive(live)


def check_request(live: BrokerProcess, line: dict[str, Any]) -> None:
    key, version = line["api_key"], line["version"]
    with live.client() as client:
        client.send_bytes(bytes.fromhex(line["hex"]))
        if BY_KEY[key].name in REQUESTS_THAT_WAIT:
            client.sock.settimeout(WAIT_S)
        try:
            correlation_id, response = read_response(key, version, client.read_frame())
        except (Closed, TimeoutError):
            return
        assert correlation_id == line["header"]["correlationId"]
        assert isinstance(response, BY_KEY[key].response)


def test_damaged_requests_do_not_disturb_other_clients(live: BrokerProcess) -> None:
    """The frames have changed bytes, huge lengths, or a cut end."""
    chance = random.Random(4711)
    frames = [bytes.fromhex(x["hex"]) for x in lines("frames.jsonl.gz") if x["kind"] == "request"]
    with live.client() as good:
        for frame in chance.sample(frames, 200):
            body = bytearray(frame[4:])
            for _ in range(chance.randint(1, 4)):
                position = chance.randrange(8, len(body))
                body[position] = chance.choice((0, 0x7F, 0x80, 0xFF))
            body = body[: chance.randint(8, len(body))]
            with live.client() as bad:
                bad.send_bytes(pack(">i", len(body)) + body)
            assert good.call(ApiVersionsRequest(), 0).error_code == 0
    check_alive(live)


@pytest.mark.parametrize("size", [90 << 20, (100 << 20) - 1])
def test_announced_frame_sizes_are_not_allocated(live: BrokerProcess, size: int) -> None:
    before = resident_bytes(live)
    clients = []
    for _ in range(20):
        client = live.client()
        client.send_bytes(pack(">i", size) + bytes(100))
        clients.append(client)
    check_alive(live)
    assert resident_bytes(live) - before < 20 << 20
    for client in clients:
        client.close()


def resident_bytes(live: BrokerProcess) -> int:
    assert live._process is not None
    status = Path(f"/proc/{live._process.pid}/statm")
    if not status.exists():
        pytest.skip("needs /proc")
    return int(status.read_text().split()[1]) * 4096


def test_slow_readers_do_not_delay_other_clients(live: BrokerProcess) -> None:
    """Clients that send requests and never read do not delay the others."""
    recorded = {line["id"]: line for line in lines("server.jsonl.gz")}
    request = bytes.fromhex(recorded["apiversions-v0"]["sent"][0])
    slow = []
    for _ in range(100):
        client = socket.create_connection(live.address)
        client.sendall(request * 20)
        slow.append(client)
    check_alive(live)
    for client in slow:
        client.close()
    check_alive(live)
