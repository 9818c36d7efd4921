"""DescribeLogDirs (API key 35): the partitions of each log directory, and its free space.

An offline directory is listed with an error and without partitions. Sizes are those of the segment
files. The lag is how far the log end offset is below the high watermark, as in Kafka: 0 on a
leader. The lag of a future replica is how far it is behind the current replica, or -1
if the current replica is gone.
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
            await _describe(context, directory, partitions, slices)
            for directory in context.logs.directories
        ]
    )


async def _describe(
    context: Context,
    directory: LogDirectory,
    partitions: set[tuple[str, int]] | None,
    slices: Slices,
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
        is_future = directory.futures.get(log.partition) is log
        topic = topics.setdefault(name, Topic(name=name))
        topic.partitions.append(
            Partition(
                partition_index=index,
                partition_size=log.segments.size,
                offset_lag=_future_lag(context, log) if is_future else _lag(log),
                is_future_key=is_future,
            )
        )
    return Result(
        log_dir=directory.name,
        topics=list(topics.values()),
        total_bytes=space.total,
        usable_bytes=space.usable,
    )


def _lag(log: PartitionLog) -> int:
    return max(log.high_watermark - log.end_offset, 0)


def _future_lag(context: Context, future: PartitionLog) -> int:
    """Return how far a future replica is behind the current replica; -1 without a current one."""
    log = context.logs.get(*future.partition)
    return -1 if log is None else log.end_offset - future.end_offset


def _logs(directory: LogDirectory, partitions: set[tuple[str, int]] | None) -> list[PartitionLog]:
    """Copy the list of logs, because the directory may change between slices."""
    return [log for log in directory.all_logs if partitions is None or log.partition in partitions]
