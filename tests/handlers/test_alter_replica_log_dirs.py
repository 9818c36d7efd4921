"""AlterReplicaLogDirs: which moves begin, the errors of the others, and what DescribeLogDirs shows.

The errors are those of Apache Kafka 4.3.1; compat_tests/java/test_log_dir_moves.py asks a real one.
"""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kwire import errors
from kwire.codec.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from kwire.codec.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.log.directories.move_rules import MoveRules
from simulation.disk import SimDisk
from tests.support.handlers.broker import Broker, broker, create_topic, write
from tests.support.log.moving import Limit
from tests.support.log.threads import at_once

OTHER_NODE = 2
Dir = AlterReplicaLogDirsRequest.AlterReplicaLogDir
Topic = Dir.AlterReplicaLogDirTopic


@asynccontextmanager
async def two_directories(limit: Limit) -> AsyncIterator[Broker]:
    """Run a broker with the log directories /data/0 and /data/1."""
    subject = broker(disks=[SimDisk(), SimDisk()])
    rules = MoveRules(throttle=limit, on_moved=subject.replicas.on_log_moved)
    subject.logs.moves.rules = rules
    subject.logs.threads.stand_in = at_once
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.logs.run)
        yield subject
        nursery.cancel_scope.cancel()


async def move(subject: Broker, path: str, topic: str = "t", partition: int = 0) -> int:
    """Request a move; return the error code."""
    request = AlterReplicaLogDirsRequest(
        dirs=[Dir(path=path, topics=[Topic(name=topic, partitions=[partition])])]
    )
    answer = await subject.call(request, 2)
    ((result,),) = [each.partitions for each in answer.results]
    assert [each.topic_name for each in answer.results] == [topic]
    assert result.partition_index == partition
    return int(result.error_code)


async def describe(subject: Broker) -> list[tuple[str, bool, int, int]]:
    """Return directory, whether it is a future replica, size and lag, for each replica."""
    answer = await subject.call(DescribeLogDirsRequest(topics=None))
    return [
        (each.log_dir, replica.is_future_key, replica.partition_size, replica.offset_lag)
        for each in answer.results
        for topic in each.topics
        for replica in topic.partitions
    ]


async def test_replica_moves_and_goes_on(autojump_clock) -> None:
    limit = Limit(is_over=True)
    async with two_directories(limit) as subject:
        partition = await create_topic(subject)
        write(subject, partition, b"first")
        size = partition.log.segments.size
        assert await move(subject, "/data/1") == 0
        await trio.sleep(1)
        assert await describe(subject) == [("/data/0", False, size, 0), ("/data/1", True, 0, 1)]
        limit.is_over = False
        await trio.sleep(100)
        assert await describe(subject) == [("/data/1", False, size, 0)]
        assert partition.log.disk is subject.logs.directories[1].disk
        write(subject, partition, b"second")
        assert partition.high_watermark == partition.log.end_offset == 2
        assert await move(subject, "/data/1") == 0, "it is there already"


@pytest.mark.parametrize(
    ("path", "topic", "partition", "error"),
    [
        ("/data/2", "t", 0, errors.LogDirNotFound),
        ("/data/1/", "t", 0, errors.LogDirNotFound),
        ("/data/1", "none", 0, errors.UnknownTopicOrPartition),
        ("/data/1", "t", 9, errors.UnknownTopicOrPartition),
        ("/data/1", "elsewhere", 0, errors.ReplicaNotAvailable),
        ("/data/2", "elsewhere", 0, errors.LogDirNotFound),
        ("/data/2", "x" * 214, 0, errors.InvalidTopicException),
        ("/data/2", "x" * 213, 0, errors.LogDirNotFound),
    ],
)
async def test_request_that_cannot_be_met_has_kafkas_error(
    autojump_clock, path: str, topic: str, partition: int, error: type[errors.KafkaError]
) -> None:
    async with two_directories(Limit()) as subject:
        await create_topic(subject)
        await subject.create("elsewhere", replicas=(OTHER_NODE,), leader=OTHER_NODE)
        assert await move(subject, path, topic, partition) == error.code


async def test_no_move_begins_while_a_directory_is_offline(autojump_clock) -> None:
    async with two_directories(Limit()) as subject:
        await create_topic(subject)
        failing = subject.logs.directories[1]
        failing.disk.fail(OSError(errno.EIO, "broken"))
        failing.note_failure()
        assert await move(subject, "/data/1") == errors.KafkaStorageError.code
        assert await move(subject, "/data/0") == 0


async def test_requested_directory_gets_the_log_of_a_later_replica(autojump_clock) -> None:
    async with two_directories(Limit()) as subject:
        for name, number in (("a", 1), ("b", 1), ("c", 0), ("d", 1)):
            code = await move(subject, f"/data/{number}", name)
            assert code == errors.UnknownTopicOrPartition.code
            partition = await create_topic(subject, name)
            assert partition.log.disk is subject.logs.directories[number].disk
