"""A broker of 10,000 partitions that reports to the controller where their logs are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from kwire.codec.apis import BY_NAME
from kwire.codec.frame import read_header, read_response, request_frame, response_parts
from kwire.codec.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kwire.node.directory_assignments import DirectoryAssignments
from simulation.replication.links import join_parts
from tests.support.codec.requests import read_request
from tests.support.raftmeta.clusters import cluster_of, directory
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 10_000
NODE: Final = 2
SIZE_BYTES: Final = 4
ASSIGN: Final = BY_NAME["AssignReplicasToDirs"]
Directory = AssignReplicasToDirsResponse.DirectoryData


@attrs.define
class Assigning:
    """The assignments of a broker, the controller on another node, and the meter."""

    meter: TurnMeter
    assigned: set[int] = attrs.field(factory=set)
    rejects: bool = False

    async def assign(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        """Encode the request and decode the response in turns of the broker."""
        key, version = ASSIGN.key, ASSIGN.stable
        frame = request_frame(key, version, 0, "", request)[SIZE_BYTES:]
        await trio.lowlevel.checkpoint()
        with self.meter.aside():
            head, position = read_header(frame)
            answer = self._answer(read_request(head, frame, position))
            parts = join_parts(response_parts(key, version, 0, answer))
        response: AssignReplicasToDirsResponse = read_response(key, version, parts[SIZE_BYTES:])[1]
        return response

    def _answer(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        shape = Directory.TopicData
        code = 6 if self.rejects else 0
        directories = []
        for each in request.directories:
            topics = []
            for topic in each.topics:
                indexes = [partition.partition_index for partition in topic.partitions]
                if not self.rejects:
                    self.assigned.update(indexes)
                answers = [
                    shape.PartitionData(partition_index=index, error_code=code) for index in indexes
                ]
                topics.append(shape(topic_id=topic.topic_id, partitions=answers))
            directories.append(Directory(id=each.id, topics=topics))
        return AssignReplicasToDirsResponse(directories=directories)


@asynccontextmanager
async def assignments(meter: TurnMeter) -> AsyncIterator[Assigning]:
    yield Assigning(meter)


ASSIGNING: Final = Scene("directory assignments of a broker", assignments)
row = ASSIGNING.operation


@row(
    "logs whose directories the controller does not know",
    "partitions",
    ALL,
    "node.directory_assignments.run",
    "node.directory_assignments._repeat_later",
)
async def report(assigning: Assigning, size: int) -> None:
    """The controller first rejects all of them."""
    image = cluster_of(size, replicas=(NODE, 1)).state.image
    sent = DirectoryAssignments(
        NODE, lambda: image, lambda _: directory(9), lambda: NODE * 100, assigning.assign
    )
    (topic_id,) = image.topics
    async with trio.open_nursery() as nursery:
        await nursery.start(sent.run)
        for number in range(size):
            sent.report((topic_id, number), directory(9))
        assigning.rejects = True
        with assigning.meter.measuring():
            await trio.sleep(0.1)
            assigning.rejects = False
            await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert len(assigning.assigned) == size
