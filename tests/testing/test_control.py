"""Test brokers for every language: `kwire serve --control-port` and `kwire control`."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from kwire.cluster.ports import free_ports
from kwire.errors import KafkaStorageError, NotLeaderOrFollower
from kwire.testing.wire import Closed, WireClient
from tests.support.testing.clients import begin_transaction, end_offset, produce
from tests.support.testing.control import Controlled, run_controlled

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Controlled]:
    with run_controlled("serve", "--ephemeral", "--port=0", "--control-port=0") as server:
        yield server


@pytest.fixture
def client(server: Controlled) -> Iterator[WireClient]:
    server.call("reset")
    server.call("create-topic", name="orders", settings={"retention.ms": "3600000"})
    with WireClient("127.0.0.1", server.port, client_id="shop") as client:
        yield client


def test_a_fault_over_http_hits_the_requests_that_it_describes(
    server: Controlled, client: WireClient
) -> None:
    fault = server.call(
        "add-fault", action="fail", api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="orders"
    )
    status, answer = server.request("POST", "/v1/check-faults")
    assert (status, "did not happen: fail Produce topic=orders" in answer["error"]) == (409, True)
    again = {"action": "fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"}
    server.call("add-fault", **again)
    assert [produce(client, "orders") for _ in range(2)] == [NotLeaderOrFollower.code, 0]
    (used,) = server.call("list-faults")["faults"]
    assert (used["happened"], used["id"] > fault["id"]) == (1, True)
    server.call("check-faults")
    requests = server.call("list-requests", api="Produce", client_id="shop", limit=1)
    assert (requests["count"], len(requests["requests"])) == (2, 1)
    assert requests["requests"][0]["client_id"] == "shop"


def test_a_killed_broker_is_started_with_its_port_and_records(
    server: Controlled, client: WireClient
) -> None:
    assert produce(client, "orders") == 0
    server.call("kill")
    assert server.call("state")["nodes"][0]["is_running"] is False
    with pytest.raises(ConnectionError):
        WireClient("127.0.0.1", server.port)
    server.call("start")
    with WireClient("127.0.0.1", server.port) as again:
        assert end_offset(again, "orders") == 1


def test_a_snapshot_is_restored_over_http(server: Controlled, client: WireClient) -> None:
    assert produce(client, "orders") == 0
    server.call("save-snapshot", name="one order")
    with WireClient("127.0.0.1", server.port) as later:
        assert produce(later, "orders") == 0
    server.call("restore-snapshot", name="one order")
    with WireClient("127.0.0.1", server.port) as again:
        assert end_offset(again, "orders") == 1


def test_a_paused_broker_answers_when_it_is_resumed(server: Controlled, client: WireClient) -> None:
    server.call("pause")
    codes: list[int] = []
    sender = threading.Thread(target=lambda: codes.append(produce(client, "orders")))
    sender.start()
    sender.join(0.2)
    assert not codes
    server.call("resume")
    sender.join(10)
    assert codes == [0]


def test_a_disk_is_full_until_it_is_freed(server: Controlled, client: WireClient) -> None:
    server.call("fill-disk")
    assert server.call("state")["nodes"][0]["is_disk_full"] is True
    assert produce(client, "orders") == KafkaStorageError.code
    server.call("free-disk", node=1)
    assert produce(client, "orders") == 0
    assert server.call("state")["nodes"][0]["is_disk_full"] is False


def test_the_clock_moves_over_http(server: Controlled, client: WireClient) -> None:
    begin_transaction(client, "calculator", "orders")
    before = server.call("state")["time_ms"]
    assert server.call("advance-clock", seconds=60)["time_ms"] - before >= 60_000
    assert server.call("wait-transaction-end", transactional_id="calculator") == {
        "state": "CompleteAbort"
    }


def test_a_producer_is_fenced_over_http(server: Controlled, client: WireClient) -> None:
    end = begin_transaction(client, "calculator", "orders")
    server.call("fence-producer", transactional_id="calculator")
    with pytest.raises(AssertionError):
        end(committed=True)


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}], ids=str
)
def test_pages_of_browsers_are_refused(server: Controlled, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/v1/state"), ("GET", "/v1/openapi.json")):
        assert server.request(method, path, headers=headers)[0] == 403


@pytest.mark.parametrize(
    ("verb", "values", "status", "reason"),
    [
        ("advance-clock", {}, 400, "needs the argument seconds"),
        ("advance-clock", {"seconds": True}, 400, "seconds must be a JSON number"),
        ("advance-clock", {"minutes": 1}, 400, "no argument minutes; its arguments: seconds"),
        ("advance-clock", [], 400, "a JSON object"),
        ("add-fault", {"action": "burn", "api": "Fetch"}, 400, "the actions are fail, delay"),
        (
            "add-fault",
            {"action": "drop", "api": "Fetch", "times": 0},
            400,
            "times=0: a fault happens once or more; None (in JSON null) is always",
        ),
        ("delete-topics", {"names": [1]}, 400, "names must be a JSON array of strings, not [1]"),
        ("start", {"node": 7}, 409, "there is no node 7"),
        ("burn", {}, 404, "no verb /v1/burn"),
    ],
)
def test_a_wrong_call_is_a_clear_error(
    server: Controlled, verb: str, values: object, status: int, reason: str
) -> None:
    answer = server.request("POST", f"/v1/{verb}", values)
    assert answer[0] == status
    assert reason in answer[1]["error"]


@pytest.mark.parametrize("body", [b"{seconds: 1}", b"\xff", b"[" * 100_000], ids="abc")
def test_invalid_json_is_a_clear_error(server: Controlled, body: bytes) -> None:
    status, answer = server.request("POST", "/v1/advance-clock", body=body)
    assert status == 400
    assert answer["error"].startswith("the arguments are not valid JSON: ")


def test_every_verb_is_described(server: Controlled) -> None:
    status, document = server.request("GET", "/v1/openapi.json")
    operation = document["paths"]["/v1/wait-group"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert (status, schema["required"], operation["operationId"]) == (200, ["group"], "wait-group")
    assert schema["properties"]["members"] == {"type": "integer", "default": 1}


def test_the_command_line_calls_verbs(server: Controlled, client: WireClient) -> None:
    def control(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kwire", "control", "--port", str(server.control_port)]
        return subprocess.run([*command, *words], capture_output=True, text=True, check=False)

    added = control("add-fault", "action=drop", "api=Produce", "after=true", "times=null")
    assert (added.returncode, '"after": true' in added.stdout) == (0, True)
    with pytest.raises(Closed):
        produce(client, "orders")
    failed = control("wait-topic", "name=orders", "partitions=2", "timeout=0")
    assert failed.returncode == 1
    assert failed.stderr.startswith("kwire: waited 0 s for the topic orders with 2 partitions")
    assert "wait-group group [members] [timeout]: Wait until" in control().stdout


def test_a_node_without_a_control_port_loads_nothing_for_tests() -> None:
    program = (
        "import sys, kwire.cli, kwire.node.run, kwire.node.server; kwire.cli.parser();"
        "print([name for name in sys.modules if name.startswith('kwire.testing')])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert output == b"[]\n"


def test_a_control_port_in_use_is_a_clear_error(server: Controlled) -> None:
    words = ("serve", "--ephemeral", "--port=0", f"--control-port={server.control_port}")
    begin = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "kwire", *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{server.control_port}" in ended.stderr.splitlines()[-1]
    assert time.monotonic() - begin < 20


def test_a_leader_moves_over_http() -> None:
    """The nodes of a cluster have consecutive ports, as those of the usual `kwire cluster`."""
    first = free_ports(1)[0]
    words = ("cluster", "--ephemeral", "--nodes=2", f"--port={first}", "--control-port=0")
    with run_controlled(*words, "--override=num.partitions=5") as cluster:
        state = cluster.call("state")
        assert [node["port"] for node in state["nodes"]] == [first, first + 1]
        cluster.call("create-topic", name="orders", partitions=-1)
        cluster.call("wait-in-sync", topic="orders", partition=4)
        for node in (1, 2):
            cluster.call("move-leader", topic="orders", partition=4, node=node)
            assert cluster.call("wait-leader", topic="orders", partition=4) == {"node": node}
        cluster.call("stop", node=2)
        assert cluster.call("wait-leader", topic="orders", partition=4) == {"node": 1}


def test_a_cluster_to_control_keeps_no_data() -> None:
    command = [sys.executable, "-m", "kwire", "cluster", "--control-port=0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, "--control-port needs --ephemeral" in ended.stderr) == (1, True)
