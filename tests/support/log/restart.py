"""A partition's log opened from the files of its last run, as at a start."""

from typing import Any

from kwire.log.config import LogConfig
from kwire.log.partition_log import PartitionLog
from kwire.log.recovery import StoredOffsets, open_log
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.log.batches import TIME_MS

PARTITION = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=200, index_interval_bytes=50)


def reopen(disk: SimDisk, config: LogConfig = CONFIG, **stored: Any) -> PartitionLog:
    """Open the log of the disk with these offsets of the checkpoints."""
    actual = StoredOffsets(**stored)
    return open_log(disk, "t-0", PARTITION, now_ms=TIME_MS, config=config, offsets=actual)
