"""A partition that becomes leader while its directory is slow."""

from kwire.log.config import LogConfig
from kwire.log.partition_log import create
from kwire.replica.leader import PartitionLeader
from kwire.replica.partition import Partition
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.handlers.broker import NOW_MS
from tests.support.log.batches import append


def test_high_watermark_of_a_new_leader_stays_at_the_written_offset() -> None:
    """Invariant 13: the log end of a new leader may be above its written offset."""
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=NOW_MS, config=LogConfig())
    log.writer.on_queued = lambda: None
    append(log, [b"written"])
    disk.slow = True
    append(log, [b"waits"])
    partition = Partition("t", 0, bytes(16), log)
    leader = PartitionLeader.take_over(
        node=1,
        leader_epoch=3,
        partition_epoch=1,
        replicas=(1,),
        isr=(1,),
        log=log,
        log_end=log.end_offset,
        min_isr=1,
        now=0.0,
    )
    partition.lead(leader, 0.0)
    assert (log.writer.written_offset, log.end_offset) == (1, 2)
    assert partition.high_watermark == 1
    assert leader.epoch_start == 2
