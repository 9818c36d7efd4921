"""DescribeLogDirs (API key 35): the partitions of each log directory, and its free space.

An offline directory is listed with an error and without partitions. Sizes are those of the segment
files. The lag is how far the log end offset is below the high watermark, as in Kafka: 0 on a
leader.
"""

from kwire.codec.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kwire.drive import Slices
from kwire.errors import KafkaStorageError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.log.directories.directory import LogDirectory
from kwire.log.partition_log import PartitionLog

Result = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = Result.DescribeLogDirsTopic
Partition = Topic.DescribeLogDirsPartition


@handles(DescribeLogDirsRequest)
async def describe_log_dirs(
    context: Context, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    context.check_allowed("Describe", "Cluster", CLUSTER)
    partitions: set[tuple[str, int]] | None = None
    if request.topics is not None:
        partitions = {
            (topic.topic, index) for topic in request.topics for index in topic.partitions
        }
    slices = Slices(context.clock.now)
    return DescribeLogDirsResponse(
        results=[
            await _describe(directory, partitions, slices) for directory in context.logs.directories
        ]
    )


async def _describe(
    directory: LogDirectory, partitions: set[tuple[str, int]] | None, slices: Slices
) -> Result:
    if directory.disk.failed is not None:
        return Result(log_dir=directory.name, error_code=KafkaStorageError.code)
    try:
        space = directory.disk.space()
    except OSError:
        return Result(log_dir=directory.name, error_code=KafkaStorageError.code)
    topics: dict[str, Topic] = {}
    for log in _logs(directory, partitions):
        await slices.pause()
        name, index = log.partition
        topic = topics.setdefault(name, Topic(name=name))
        topic.partitions.append(
            Partition(
                partition_index=index,
                partition_size=log.segments.size,
                offset_lag=max(log.high_watermark - log.end_offset, 0),
                is_future_key=False,
            )
        )
    return Result(
        log_dir=directory.name,
        topics=list(topics.values()),
        total_bytes=space.total,
        usable_bytes=space.usable,
    )


def _logs(directory: LogDirectory, partitions: set[tuple[str, int]] | None) -> list[PartitionLog]:
    """Return a copy of the list of logs, because the directory may change between slices."""
    logs = directory.logs.values()
    return [log for log in logs if partitions is None or log.partition in partitions]
