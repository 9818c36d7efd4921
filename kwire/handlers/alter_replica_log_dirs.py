"""AlterReplicaLogDirs (API key 34): moves replicas of this broker to other log directories.

The response confirms that a move has begun; DescribeLogDirs shows its progress. A partition without
a replica here gets REPLICA_NOT_AVAILABLE, and its log will be created in the requested directory.
If a request names a partition in several directories, the last directory applies.
"""

from typing import Final

from kwire.codec.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from kwire.drive import Slices
from kwire.errors import (
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    LogDirNotFound,
    NotLeaderOrFollower,
    ReplicaNotAvailable,
)
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.log.directories.directory import LogDirectory
from kwire.log.formats import names
from kwire.types import TopicPartition

TopicAnswer = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
Answer = TopicAnswer.AlterReplicaLogDirPartitionResult
UNIQUE: Final = "0" * 32
"""A unique part as long as that of any future replica's directory name."""


def refuse(request: AlterReplicaLogDirsRequest, error: KafkaError) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            TopicAnswer(
                topic_name=topic.name,
                partitions=[
                    Answer(partition_index=index, error_code=error.code)
                    for index in topic.partitions
                ],
            )
            for each in request.dirs
            for topic in each.topics
        ]
    )


@handles(AlterReplicaLogDirsRequest, refuse=refuse)
async def alter_replica_log_dirs(
    context: Context, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    requested = {
        TopicPartition(topic.name, index): each.path
        for each in request.dirs
        for topic in each.topics
        for index in topic.partitions
    }
    topics: dict[str, TopicAnswer] = {}
    slices = Slices(context.clock.now)
    for partition, path in requested.items():
        await slices.pause()
        error_code = 0
        try:
            _move(context, partition, path)
        except KafkaError as error:
            error_code = error.code
        topic = topics.setdefault(partition.topic, TopicAnswer(topic_name=partition.topic))
        topic.partitions.append(Answer(partition_index=partition.partition, error_code=error_code))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _move(context: Context, partition: TopicPartition, path: str) -> None:
    """Begin to move a replica to the directory at ``path``; raises KafkaError."""
    if len(names.future_directory(*partition, UNIQUE)) > names.NAME_MAX:
        raise InvalidTopicException("the topic's name is too long for a move")
    directory = _directory(context, path)
    moves, hosted = context.logs.moves, context.replicas.partitions
    log = context.logs.get(*partition)
    if log is None:
        moves.prefer(partition, directory)
    try:
        log = hosted.get(*partition).log
    except NotLeaderOrFollower as error:
        raise ReplicaNotAvailable from error
    moves.request(log, directory)


def _directory(context: Context, path: str) -> LogDirectory:
    for directory in context.logs.directories:
        if directory.name == path:
            if not directory.online:
                raise KafkaStorageError(f"log directory {path} is offline")
            return directory
    raise LogDirNotFound(f"log directory {path} is not in log.dirs")
