"""Placement of replicas."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.codec.messages.create_partitions import CreatePartitionsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.metadata_records import BrokerRegistrationChangeRecord
from kwire.codec.messages.unregister_broker import UnregisterBrokerRequest
from kwire.errors import InvalidReplicationFactor
from kwire.raftmeta.controller.brokers import decide_unregister_broker
from kwire.raftmeta.controller.placement import place_replicas, spread
from kwire.raftmeta.controller.topics import decide_create_partitions, decide_create_topics
from kwire.raftmeta.metadata.image import BrokerImage
from tests.support.raftmeta.clusters import Cluster
from tests.support.raftmeta.work import calls_in


def broker(number: int, rack: str | None = None, **more: Any) -> BrokerImage:
    fields = {"fenced": False, **more}
    return BrokerImage(id=number, epoch=0, incarnation_id=b"", rack=rack, **fields)


def test_replicas_are_assigned_in_stripes() -> None:
    brokers = [broker(number) for number in (0, 1, 2, 3)]
    placed = place_replicas(brokers, start=1, first=0, count=5, replicas=3)
    assert placed == [[1, 2, 3], [2, 3, 0], [3, 0, 1], [0, 1, 2], [1, 2, 3]]
    more = place_replicas(brokers, start=1, first=2, count=1, replicas=3)
    assert more == placed[2:3], "partitions that are added later continue the stripes"


@given(st.integers(1, 6), st.integers(0, 9), st.integers(1, 20), st.data())
def test_leaders_are_spread_evenly(
    count: int, start: int, partitions: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, count))
    brokers = [broker(number) for number in range(count)]
    placed = place_replicas(brokers, start=start, first=0, count=partitions, replicas=replicas)
    assert all(len(set(assignment)) == replicas for assignment in placed)
    leaders = Counter(assignment[0] for assignment in placed)
    assert max(leaders.values()) - min(leaders[b.id] for b in brokers) <= 1


def test_racks_alternate() -> None:
    brokers = [broker(n, "ab"[n % 2 if n < 4 else 0]) for n in range(4)]
    assert spread(brokers) == [0, 1, 2, 3]
    brokers = [broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "b")]
    for placed in place_replicas(brokers, start=0, first=0, count=4, replicas=2):
        racks = {brokers[replica - 1].rack for replica in placed}
        assert racks == {"a", "b"}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7), st.integers(0, 9), st.data())
def test_replicas_use_as_many_racks_as_possible(
    racks: list[str], start: int, data: st.DataObject
) -> None:
    """Even where racks differ in size, no rack has two replicas while another has none."""
    brokers = [broker(number, rack) for number, rack in enumerate(racks)]
    replicas = data.draw(st.integers(1, len(brokers)))
    for placed in place_replicas(brokers, start=start, first=0, count=8, replicas=replicas):
        rack_counts = Counter(racks[replica] for replica in placed)
        assert len(set(placed)) == replicas
        assert len(rack_counts) == min(replicas, len(set(racks)))


def test_fenced_brokers_get_replicas_only_if_needed_and_never_lead() -> None:
    brokers = [broker(1), broker(2, fenced=True), broker(3)]
    assert place_replicas(brokers, start=0, first=0, count=2, replicas=2) == [[1, 3], [3, 1]]
    assert place_replicas(brokers, start=0, first=0, count=2, replicas=3) == [[1, 3, 2], [3, 1, 2]]


@pytest.mark.parametrize(
    "brokers",
    [
        [],
        [broker(1)],
        [broker(1, fenced=True), broker(2, fenced=True)],
        [broker(1), broker(2, log_dirs=(b"d",), cordoned_log_dirs=(b"d",))],  # no room there
    ],
)
def test_replication_factor_above_the_usable_brokers_is_refused(brokers: list[BrokerImage]) -> None:
    with pytest.raises(InvalidReplicationFactor):
        place_replicas(brokers, start=0, first=0, count=1, replicas=2)


ALL_FENCED = "All brokers are currently fenced, or have all their log directories cordoned."
ACTIVE_ONLY = "All brokers are currently fenced or in controlled shutdown."
TOO_FEW = (
    "The target replication factor of 2 cannot be reached because only 1 broker(s) are registered "
    "or some brokers have all their log directories cordoned."
)


@pytest.mark.parametrize(
    ("brokers", "reason", "is_named"),
    [
        ({1: "fenced"}, ALL_FENCED, True),  # even though there are too few
        ({1: ""}, TOO_FEW, True),
        ({1: "leaving", 2: "fenced"}, ACTIVE_ONLY, False),
    ],
)
def test_refusal_of_new_partitions_has_kafkas_message(
    brokers: dict[int, str], reason: str, is_named: bool
) -> None:
    """CreatePartitions gives the reason of the placement alone, as in Kafka."""
    cluster = Cluster((1, 2))
    cluster.topic("grown", [1, 2])
    for number in (1, 2):
        if number not in brokers:
            cluster.do(decide_unregister_broker, UnregisterBrokerRequest(broker_id=number))
        elif brokers[number] == "fenced":
            cluster.fence(number)
        elif brokers[number] == "leaving":
            epoch = cluster.state.image.brokers[number].epoch
            cluster.write(
                BrokerRegistrationChangeRecord(
                    broker_id=number, broker_epoch=epoch, in_controlled_shutdown=1
                )
            )
    prefix = "Unable to replicate the partition 2 time(s): "
    topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=2)
    (created,) = cluster.do(decide_create_topics, CreateTopicsRequest(topics=[topic])).topics
    assert created.error_message == prefix + reason
    growth = CreatePartitionsRequest.CreatePartitionsTopic(name="grown", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[growth], timeout_ms=1000, validate_only=False)
    (grown,) = cluster.do(decide_create_partitions, request).results
    assert grown.error_message == (reason if is_named else prefix + reason)


def test_one_partition_topics_do_not_all_lead_on_one_broker() -> None:
    cluster = Cluster()
    topic = CreateTopicsRequest.CreatableTopic
    leaders: Counter[int] = Counter()
    for number in range(30):
        creatable = topic(name=f"t{number}", num_partitions=1, replication_factor=3)
        cluster.do(decide_create_topics, CreateTopicsRequest(topics=[creatable]))
        assert cluster.kinds() == ["Topic", "Partition"]
        leaders[cluster.partition(f"t{number}").leader] += 1
    assert leaders == {1: 10, 2: 10, 3: 10}


def test_large_topics_cost_little_a_partition() -> None:
    """Calls, not time: a creation of 9,000 partitions is decided in one step."""
    cluster = Cluster((1, 2, 3))

    def work(count: int) -> int:
        topic = CreateTopicsRequest.CreatableTopic(
            name=f"t{count}", num_partitions=count, replication_factor=3
        )
        request = CreateTopicsRequest(topics=[topic])
        return calls_in(lambda: decide_create_topics(cluster.state, request))

    assert work(9_000) - work(1_000) <= 8_000 * 10
