"""The end offsets of partitions that this broker and others lead."""

from typing import Any

import attrs

from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from kwire.errors import NetworkException, NotLeaderOrFollower
from kwire.node.end_offsets import EndOffsets
from kwire.replica.partition import FetchIsolation
from kwire.types import TopicPartition

LOCAL, OTHER, DOWN = 1, 2, 3
LEADERS = {("t", 0): LOCAL, ("t", 1): OTHER, ("t", 2): OTHER, ("t", 3): DOWN, ("t", 4): -1}


@attrs.define
class Brokers:
    """Other brokers: one answers, one cannot be reached."""

    node: int = LOCAL
    requests: list[ListOffsetsRequest] = attrs.field(factory=list)

    def leader_of(self, partition: TopicPartition) -> int | None:
        return LEADERS.get(partition)

    async def call(self, pool: Any, broker: int, request: ListOffsetsRequest) -> Any:
        if broker == DOWN:
            raise NetworkException("down")
        self.requests.append(request)
        answer = ListOffsetsResponse.ListOffsetsTopicResponse
        partition = answer.ListOffsetsPartitionResponse
        return ListOffsetsResponse(
            topics=[
                answer(
                    name="t",
                    partitions=[
                        partition(partition_index=1, offset=21),
                        partition(partition_index=2, error_code=NotLeaderOrFollower.code),
                    ],
                )
            ]
        )


class Replicas:
    """The replicas of this broker, with one partition that it leads."""

    @property
    def partitions(self) -> "Replicas":
        return self

    def get_led(self, topic: str, index: int) -> tuple[str, int]:
        return topic, index

    async def locate(self, led: object, timestamp: int, isolation: FetchIsolation) -> Any:
        assert (led, timestamp, isolation) == (("t", 0), -1, FetchIsolation.HIGH_WATERMARK)

        @attrs.frozen
        class Position:
            offset: int = 11

        return Position()


async def test_leaders_are_asked_for_end_offsets() -> None:
    brokers: Any = Brokers()
    replicas: Any = Replicas()
    pool: Any = None
    partitions = [TopicPartition("t", index) for index in range(6)]
    ends = await EndOffsets(replicas, brokers, pool).ask(partitions)
    assert (ends[partitions[0]], ends[partitions[1]]) == (11, 21)
    errors = [type(ends[each]) for each in partitions[2:]]
    assert errors == [
        NotLeaderOrFollower,
        NetworkException,
        NotLeaderOrFollower,
        NotLeaderOrFollower,
    ]
    (request,) = brokers.requests
    assert [p.partition_index for p in request.topics[0].partitions] == [1, 2]
