"""Faults that a test arranges, the record of requests, and faults that did not happen."""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_header, read_response
from kwire.codec.messages.fetch import FetchRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.errors import (
    BY_CODE,
    CorruptMessage,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    RebalanceInProgress,
)
from kwire.handlers import served_on
from kwire.net.framing import Disconnect
from kwire.records.crc import crc32c
from kwire.testing import Broker, BrokerError, Cluster
from kwire.testing.alterations import alter
from kwire.testing.faults import Action, Fault, Faults, Subjects
from kwire.testing.fetch_sessions import FetchedPartitions
from kwire.testing.request_bodies import read_request, refuse, subjects_of
from kwire.testing.wire import Closed, WireClient
from tests.support.testing.clients import (
    commit,
    end_offset,
    fetch,
    produce,
    produce_to_partitions,
)

FRAMES = Path(__file__).parents[1] / "vectors" / "frames.jsonl.gz"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    with broker.topic(2) as name:
        yield name
    broker.faults.check()


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    broker.requests.clear()
    with WireClient(*broker.address, client_id="shop") as client:
        yield client


def test_a_request_fails_as_often_as_the_test_wants(
    broker: Broker, client: WireClient, topic: str
) -> None:
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=2)
    assert [produce(client, topic) for _ in range(3)] == [NotLeaderOrFollower.code] * 2 + [0]
    assert end_offset(client, topic) == 1


def test_the_nth_request_fails(broker: Broker, client: WireClient, topic: str) -> None:
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", partition=0, nth=2)
    assert [produce(client, topic) for _ in range(3)] == [0, NotLeaderOrFollower.code, 0]


@pytest.mark.parametrize(
    "condition",
    [{"topic": "another"}, {"partition": 1}, {"client_id": "another"}, {"node": 2}],
    ids=str,
)
def test_other_requests_do_not_fail(
    broker: Broker, client: WireClient, topic: str, condition: dict[str, object]
) -> None:
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", **condition)  # type: ignore[arg-type]
    broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER")
    assert produce(client, topic) == 0
    broker.faults.clear()


def test_a_fetch_fails_in_its_partitions(broker: Broker, client: WireClient, topic: str) -> None:
    """Named by id, as the newest clients name topics."""
    broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=1)
    metadata = client.call(MetadataRequest(topics=None), 12)
    (topic_id,) = [each.topic_id for each in metadata.topics if each.name == topic]
    shape = FetchRequest.FetchTopic
    partition = shape.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=[shape(topic_id=topic_id, partitions=[partition])],
    )
    response = client.call(request, 13)
    assert response.error_code == 0
    assert response.responses[0].topic_id == topic_id
    assert response.responses[0].partitions[0].error_code == NotLeaderOrFollower.code


@pytest.mark.parametrize("version", [9, 13])
def test_one_partition_fails_in_an_answer_about_many(
    broker: Broker, client: WireClient, topic: str, version: int
) -> None:
    """The other partitions get their records, as when a broker has lost one leadership."""
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=1, times=2)
    codes = produce_to_partitions(client, topic, [1, 0], version)
    assert codes == {0: 0, 1: NotLeaderOrFollower.code}
    assert produce_to_partitions(client, topic, [1], version) == {1: NotLeaderOrFollower.code}
    assert [end_offset(client, topic, index) for index in (0, 1)] == [1, 0]


def test_one_topic_fails_in_metadata_about_many(
    broker: Broker, client: WireClient, topic: str
) -> None:
    broker.faults.fail("Metadata", "LEADER_NOT_AVAILABLE", topic=topic, times=2)
    with broker.topic() as other:
        for names in ([topic, other], [topic]):
            topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
            response = client.call(MetadataRequest(topics=topics), 12)
            assert [each.node_id for each in response.brokers] == [1]
            codes = {each.name: each.error_code for each in response.topics}
            assert codes == {name: LeaderNotAvailable.code * (name == topic) for name in names}


def test_a_partition_fails_in_a_fetch_session_that_does_not_name_it(
    broker: Broker, client: WireClient, topic: str
) -> None:
    session, codes = fetch(client, topic, [0, 1])
    assert codes == {0: 0, 1: 0}
    broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, partition=1)
    produce(client, topic)
    assert fetch(client, topic, [], session, 1)[1] == {0: 0, 1: NotLeaderOrFollower.code}
    assert fetch(client, topic, [1], session, 2)[0] == session, "the broker has seen the request"


def test_a_connection_is_cut_within_a_response(
    broker: Broker, client: WireClient, topic: str
) -> None:
    broker.faults.cut("Produce", topic=topic)
    with pytest.raises(Closed, match=r"[1-9]\d* of \d+ bytes"):
        produce(client, topic)
    with WireClient(*broker.address) as other:
        assert end_offset(other, topic) == 1


def test_a_throttled_client_learns_its_time_and_has_to_wait(
    broker: Broker, client: WireClient, topic: str
) -> None:
    broker.faults.throttle("Metadata", 0.2)
    begin = time.monotonic()
    assert client.call(MetadataRequest(topics=[]), 12).throttle_time_ms == 200
    client.call(MetadataRequest(topics=[]), 12)
    assert time.monotonic() - begin >= 0.2


def test_a_request_is_carried_out_twice(broker: Broker, client: WireClient, topic: str) -> None:
    broker.faults.duplicate("Produce", topic=topic)
    assert produce(client, topic) == 0
    assert end_offset(client, topic) == 2


def test_records_are_damaged_on_their_way_to_the_broker(
    broker: Broker, client: WireClient, topic: str
) -> None:
    broker.faults.corrupt("Produce", topic=topic, partition=0)
    codes = produce_to_partitions(client, topic, [0, 1], 9)
    assert codes == {0: CorruptMessage.code, 1: 0}


def test_records_are_damaged_on_their_way_to_the_consumer(
    broker: Broker, client: WireClient, topic: str
) -> None:
    """A Fetch without records does not count."""
    fault = broker.faults.corrupt("Fetch", topic=topic)
    fetch(client, topic, [0])
    assert fault.hit_count == 0
    produce(client, topic)
    records: list[bytes] = []
    for _ in range(2):
        fetch(client, topic, [0], records=records)
    damaged, whole = records
    assert [crc32c(each[21:]) == int.from_bytes(each[17:21]) for each in records] == [False, True]
    assert sum(a != b for a, b in zip(damaged, whole, strict=True)) == 1
    with pytest.raises(BrokerError, match="Metadata has no records"):
        broker.faults.corrupt("Metadata")


def test_a_fault_can_be_removed(broker: Broker, client: WireClient, topic: str) -> None:
    fault = broker.faults.drop("Produce", topic=topic)
    broker.faults.remove(fault.id)
    assert produce(client, topic) == 0
    with pytest.raises(BrokerError, match="there is no fault"):
        broker.faults.remove(fault.id)


def test_a_request_of_a_group_fails(broker: Broker, client: WireClient, topic: str) -> None:
    commit(client, "g", topic, 0)
    broker.faults.fail("Heartbeat", "REBALANCE_IN_PROGRESS", group="g", times=None)
    codes = [
        client.call(HeartbeatRequest(group_id=group, generation_id=0, member_id="m"), 4).error_code
        for group in ("g", "other", "g")
    ]
    assert [code == RebalanceInProgress.code for code in codes] == [True, False, True]


def test_a_request_is_delayed(broker: Broker, client: WireClient, topic: str) -> None:
    broker.faults.delay("Produce", 0.1, topic=topic)
    begin = time.monotonic()
    assert produce(client, topic) == 0
    assert time.monotonic() - begin >= 0.1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_connection_drops_before_or_after_the_request_has_had_its_effect(
    broker: Broker, client: WireClient, topic: str, after: bool, acks: int
) -> None:
    broker.faults.drop("Produce", after=after, topic=topic)
    with pytest.raises(Closed):
        produce(client, topic, acks=acks)
    with WireClient(*broker.address) as other:
        assert end_offset(other, topic) == int(after)


def test_requests_are_recorded(broker: Broker, client: WireClient, topic: str) -> None:
    produce(client, topic)
    produce(client, topic)
    with WireClient(*broker.address, client_id="other") as other:
        produce(other, topic)
    assert broker.requests.count("Produce") == 3
    assert broker.requests.count("Produce", client_id="shop") == 2
    assert broker.requests.count("Fetch") == 0
    last = broker.requests.of("Produce")[-1]
    assert (last.api, last.version, last.client_id, last.node) == ("Produce", 9, "other", 1)
    assert abs(last.time_ms / 1000 - time.time()) < 60
    broker.requests.clear()
    assert broker.requests.count() == 0


def test_a_fault_that_does_not_happen_is_an_error_at_the_end() -> None:
    pattern = r"did not happen: fail Produce topic=orders \(happened 0 of 2 times\)"
    with pytest.raises(BrokerError, match=pattern), Broker() as broker:
        broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", times=2)


def test_a_fault_that_does_not_happen_does_not_hide_the_tests_own_error() -> None:
    def fail(broker: Broker) -> None:
        broker.faults.drop("Produce")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Broker() as broker:
        fail(broker)


def test_a_wrong_name_is_a_clear_error(broker: Broker) -> None:
    apis = "is not one of Kafka's APIs"
    with pytest.raises(BrokerError, match=rf"^Produse {apis}; did you mean Produce\?$"):
        broker.faults.drop("Produse")
    with pytest.raises(BrokerError, match=f"^xyz {apis}, such as Produce or Fetch$"):
        broker.faults.drop("xyz")
    errors = r"is not one of Kafka's errors; did you mean NOT_COORDINATOR\?"
    with pytest.raises(BrokerError, match=f"^NOT_CORDINATOR {errors}$"):
        broker.faults.fail("Produce", "NOT_CORDINATOR")


@pytest.mark.parametrize("count", [0, -1])
def test_fault_that_can_never_happen_is_rejected(broker: Broker, count: int) -> None:
    with pytest.raises(BrokerError, match=f"times={count}: a fault happens once or more"):
        broker.faults.drop("Produce", times=count)
    with pytest.raises(BrokerError, match=f"nth={count}: requests are counted from 1"):
        broker.faults.drop("Produce", nth=count)
    assert not broker.faults.faults


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (lambda f: f.delay("Produce", "1"), "seconds must be a number, not '1'"),
        (lambda f: f.throttle("Produce", None), "seconds must be a number, not None"),
        (lambda f: f.drop("Produce", times="2"), "times must be a whole number, not '2'"),
        (lambda f: f.drop("Produce", nth=1.5), "nth must be a whole number, not 1.5"),
        (lambda f: f.drop("Produce", partition="0"), "partition must be a whole number, not '0'"),
        (lambda f: f.drop("Produce", topic=3), "topic must be a string, not 3"),
        (lambda f: f.drop(3), "api must be a string, not 3"),
        (lambda f: f.fail("Produce", 6), "error must be a string, not 6"),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_argument(
    broker: Broker, arrange: Callable[[Faults], object], message: str
) -> None:
    with pytest.raises(BrokerError, match=f"^{message}$"):
        arrange(broker.faults)
    assert not broker.faults.faults


def test_a_fault_counts_only_what_matches_all_its_conditions() -> None:
    faults = Faults()
    fault = faults.fail("Produce", "REQUEST_TIMED_OUT", topic="a", partition=1, group=None)  # type: ignore[arg-type]
    assert not fault.concerns(Subjects(frozenset({("a", 0), ("b", 1)})))
    assert fault.concerns(Subjects(frozenset({("a", 0), ("a", 1)})))


def test_every_api_can_fail_in_every_version() -> None:
    """The response can be encoded, and read by a client."""
    served = served_on(ListenerType.BROKER)
    versions = set()
    for line in gzip.decompress(FRAMES.read_bytes()).splitlines():
        recorded = json.loads(line)
        api = served.get(recorded["api_key"])
        if recorded["kind"] != "request" or api is None or not api.is_stable(recorded["version"]):
            continue
        frame = memoryview(bytes.fromhex(recorded["hex"]))[4:]
        try:
            parts = refuse(frame, BY_CODE[7]())
        except Disconnect:  # Produce without acknowledgement, and filters that nobody answers.
            parts = None
        if parts is not None:
            correlation_id, _ = read_response(
                api.key, recorded["version"], b"".join(map(bytes, parts))[4:]
            )
            assert correlation_id == read_header(frame)[0].correlation_id
        versions.add((api.name, recorded["version"]))
    assert {name for name, _ in versions} == {a.name for a in served.values()}
    assert len(versions) > 200


@pytest.mark.parametrize("action", get_args(Action))
def test_every_api_can_go_wrong_in_one_of_its_partitions(action: Action) -> None:
    """The rest of the request can be carried out, and the response be read by a client."""
    served = served_on(ListenerType.BROKER)
    requests, responses = [], {}
    for line in gzip.decompress(FRAMES.read_bytes()).splitlines():
        recorded = json.loads(line)
        key, version = recorded["api_key"], recorded["version"]
        if key in served and served[key].is_stable(version):
            frame = memoryview(bytes.fromhex(recorded["hex"]))[4:]
            if recorded["kind"] == "request":
                requests.append(frame)
            else:
                responses[key, version] = frame
    altered = set()
    for frame in requests:
        head, body = read_header(frame)
        api, fetched = served[head.api_key], FetchedPartitions()
        try:
            request = read_request(frame, head, body)
            if api.name == "Fetch":
                fetched.follow(request)
            for topic, index in subjects_of(request, bytes.hex).partitions:
                fault = Fault(
                    action=action,
                    api=api.name,
                    error=NotLeaderOrFollower if action == "fail" else None,
                    topic=topic,
                    partition=index,
                )
                if action == "corrupt" and api.name not in ("Produce", "Fetch"):
                    continue
                alteration = alter(fault, frame, fetched, bytes.hex)
                for each in alteration.frames:
                    rest, position = read_header(each)
                    read_request(each, rest, position)
                answer = responses.get((api.key, head.api_version)) if alteration.frames else None
                if answer is None and alteration.frames:
                    continue
                data, closes = alteration.end(answer)
                if data is not None and not closes:
                    read_response(api.key, head.api_version, data[4:])
                    altered.add(api.name)
        except Disconnect:  # The node would not answer it either.
            continue
    assert len(altered) > {"corrupt": 0, "drop": -1, "cut": -1}.get(action, 20)


@pytest.mark.slow
def test_faults_of_a_cluster_leave_its_nodes_alone() -> None:
    """Followers fetch on a listener of their own."""
    with Cluster(3) as cluster:
        cluster.create_topic("orders")
        cluster.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=None)
        leader = cluster.wait_leader("orders")
        with WireClient(*cluster.addresses[leader - 1]) as client:
            assert produce(client, "orders") == 0
        assert cluster.requests.count("Fetch") == 0
        cluster.faults.clear()
