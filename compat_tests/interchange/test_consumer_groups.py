"""A live consumer group (KIP-848) moves between kwire and Apache Kafka with its data directory.

Its members go on with their epochs and assignments: neither coordinator rebalances a group that it
has just loaded, because both compute the same hash of the topics.
"""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.confluent_kafka.clients import create
from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect_to_coordinator
from compat_tests.interchange.node import complaints, hand_over, prepare
from kwire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator

GROUP, TOPIC = "group", "topic"
LOADING = (CoordinatorLoadInProgress.code, CoordinatorNotAvailable.code, NotCoordinator.code)
OTHER = {"kwire": "kafka", "kafka": "kwire"}


class Members:
    """The members of one group, which reconnect after each move."""

    def __init__(self, address: str) -> None:
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, list[Any]] = {}
        self.connect(address)

    def connect(self, address: str) -> None:
        self.client = connect_to_coordinator(address, GROUP)

    def beat(self, member_id: str, **fields: Any) -> Any:
        """Send a heartbeat of a member; its first one joins."""
        epoch = self.epochs.get(member_id, 0)
        if epoch == 0:
            fields = {
                "rebalance_timeout_ms": 60_000,
                "subscribed_topic_names": [TOPIC],
                **fields,
            }
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            topic_partitions=self.owned.get(member_id, []),
            **fields,
        )

        def ask() -> Any:
            answer = self.client.call(request, 1)
            return None if answer.error_code in LOADING else answer

        answer = eventually(ask, "an answer of the coordinator")
        assert answer is not None
        assert answer.error_code == 0, answer
        self.epochs[member_id] = answer.member_epoch
        if answer.assignment is not None:
            shape = ConsumerGroupHeartbeatRequest.TopicPartitions
            self.owned[member_id] = [
                shape(topic_id=each.topic_id, partitions=each.partitions)
                for each in answer.assignment.topic_partitions
            ]
        return answer

    def settle(self) -> None:
        eventually(self._is_stable, "a stable group")

    def _is_stable(self) -> bool:
        for member_id in self.epochs:
            self.beat(member_id, **({"instance_id": "i"} if member_id == "static" else {}))
        return bool(self.describe()["group_state"] == "Stable")

    def describe(self) -> dict[str, Any]:
        request = ConsumerGroupDescribeRequest(
            group_ids=[GROUP], include_authorized_operations=False
        )
        (group,) = self.client.call(request, 1).groups
        assert group.error_code == 0, group
        members = {
            member.member_id: (
                member.instance_id,
                member.member_epoch,
                member.client_id,
                member.client_host,
                sorted(member.subscribed_topic_names),
                [(t.topic_name, sorted(t.partitions)) for t in member.assignment.topic_partitions],
                [
                    (t.topic_name, sorted(t.partitions))
                    for t in member.target_assignment.topic_partitions
                ],
            )
            for member in group.members
        }
        return {
            "group_state": group.group_state,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.assignor_name,
            "members": members,
        }


@pytest.mark.parametrize(
    ("first", "end"),
    [
        ("kwire", "kill"),
        ("kafka", "stop"),
        pytest.param("kwire", "stop", marks=pytest.mark.long),
        pytest.param("kafka", "kill", marks=pytest.mark.long),
    ],
)
@pytest.mark.with_apache
def test_members_continue_on_the_other_broker_and_back(tmp_path, first, end):
    node = prepare(tmp_path / "node", dynamic=False)
    try:
        node.start()
        create(node.address, TOPIC, 6)
        members = Members(node.address)
        members.beat("early")
        if first == "kafka":
            members.client.close()
            getattr(node, end)()
            hand_over(node, "kafka")
            members.connect(node.address)
        members.beat("static", instance_id="i")
        members.settle()
        kinds = [OTHER[first], first]
        for number, kind in enumerate(kinds):
            before, owned = members.describe(), dict(members.owned)
            members.client.close()
            getattr(node, end)()
            hand_over(node, kind)
            members.connect(node.address)
            for member_id in list(members.epochs):
                answer = members.beat(
                    member_id, **({"instance_id": "i"} if member_id == "static" else {})
                )
                assert answer.assignment is None
            assert members.describe() == before
            assert members.owned == owned
            members.beat(f"late-{number}")
            members.settle()
            assert members.describe()["group_epoch"] == before["group_epoch"] + 1
        assert not [line for line in complaints(node) if "oordinator" in line or "record" in line]
    finally:
        node.close()
