"""A broker that leads 3,000 partitions, whose only follower leaves the ISRs and returns."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kwire.codec.apis import BY_NAME
from kwire.codec.frame import read_header, read_response, request_frame, response_parts
from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.log.partition_log import create
from kwire.replica.completion import Completion
from kwire.replica.fetch_waits import FetchWaits
from kwire.replica.isr_changes import IsrChanges
from kwire.replica.leader import PartitionLeader
from kwire.replica.partition import Partition
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from simulation.replication.links import join_parts
from tests.support.codec.requests import read_request
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 3_000
OWN: Final = 1
OTHER: Final = 2
LAG_MAX_S: Final = 30.0
TOPIC: Final = b"t" * 16
ALTER_PARTITION: Final = BY_NAME["AlterPartition"]
SIZE_BYTES: Final = 4
Topic = AlterPartitionResponse.TopicData


@attrs.frozen
class Leading:
    """The led partitions, what proposes their ISRs, and the meter of their process."""

    changes: IsrChanges
    partitions: list[Partition]
    meter: TurnMeter

    def isrs(self) -> set[frozenset[int]]:
        return {leader.isr for partition in self.partitions if (leader := partition.leader)}


@attrs.frozen
class Controller:
    """A controller on another node, which accepts each proposal."""

    meter: TurnMeter

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Encode the request and decode the response in turns of the broker."""
        key, version = ALTER_PARTITION.key, ALTER_PARTITION.stable
        frame = request_frame(key, version, 0, "", request)[SIZE_BYTES:]
        await trio.lowlevel.checkpoint()
        with self.meter.aside():
            head, position = read_header(frame)
            answer = accept(read_request(head, frame, position))
            parts = join_parts(response_parts(key, version, 0, answer))
        response: AlterPartitionResponse = read_response(key, version, parts[SIZE_BYTES:])[1]
        return response


def accept(request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Return the answer to a request all of whose ISRs are committed."""
    return AlterPartitionResponse(
        topics=[
            Topic(
                topic_id=topic.topic_id,
                partitions=[
                    Topic.PartitionData(
                        partition_index=data.partition_index,
                        leader_id=OWN,
                        leader_epoch=data.leader_epoch,
                        isr=[member.broker_id for member in data.new_isr_with_epochs],
                        partition_epoch=data.partition_epoch + 1,
                    )
                    for data in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def led_partition(disk: SimDisk, number: int) -> Partition:
    """Return a partition with one record, which the follower does not have yet."""
    disk.make_directory(f"t-{number}")
    log = create(disk, f"t-{number}", TopicPartition("t", number), now_ms=1)
    settings: dict[str, Any] = {"min_isr": 1, "lag_max": LAG_MAX_S}
    leader = PartitionLeader.take_over(
        node=OWN,
        leader_epoch=7,
        partition_epoch=5,
        replicas={OWN, OTHER},
        isr={OWN, OTHER},
        log=log,
        log_end=1,
        now=trio.current_time(),
        **settings,
    )
    partition = Partition("t", number, TOPIC, log)
    partition.lead(leader, trio.current_time())
    return partition


@asynccontextmanager
async def led_partitions(meter: TurnMeter) -> AsyncIterator[Leading]:
    disk = SimDisk()
    changes = IsrChanges(
        OWN,
        lambda: 70,
        Controller(meter).alter_partition,
        Completion(trio.current_time, FetchWaits(trio.current_time)),
        trio.current_time,
        LAG_MAX_S,
    )
    partitions = [led_partition(disk, number) for number in range(ALL)]
    async with trio.open_nursery() as nursery:
        await nursery.start(changes.run)
        yield Leading(changes, partitions, meter)
        nursery.cancel_scope.cancel()


LED: Final = Scene("ISRs of led partitions", led_partitions)
row = LED.operation


@row(
    "a follower that leaves the ISRs",
    "partitions",
    ALL,
    "replica.isr_changes._propose_without_laggards",
    "replica.isr_changes._send_all",
)
async def leave(leading: Leading, size: int) -> None:
    for partition in leading.partitions:
        leading.changes.on_role_changed(partition)
    await trio.lowlevel.checkpoint()
    with leading.meter.measuring():
        await trio.sleep(2 * LAG_MAX_S)
    assert leading.isrs() == {frozenset({OWN})}


@row("a follower that returns to the ISRs", "partitions", ALL, "replica.isr_changes._send_all")
async def join(leading: Leading, size: int) -> None:
    """The fetches of the follower are not measured: they have rows of their own."""
    await leave(leading, size)
    for partition in leading.partitions:
        assert partition.leader is not None
        partition.leader.on_fetched(OTHER, offset=1, log_start=0, now=trio.current_time())
        leading.changes.on_fetched(partition, OTHER)
    with leading.meter.measuring():
        await trio.sleep(5)
    assert leading.isrs() == {frozenset({OWN, OTHER})}
