"""A partition that becomes leader while its directory is slow, or after it has lost records."""

from kwire.log.config import LogConfig
from kwire.log.partition_log import create
from kwire.replica.leader import PartitionLeader
from kwire.replica.partition import Partition
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from tests.support.handlers.broker import NOW_MS
from tests.support.log.batches import append, encode


def lead(partition: Partition, epoch: int) -> PartitionLeader:
    """Make this broker the leader in an epoch, and return the leader's state."""
    leader = PartitionLeader.take_over(
        node=1,
        leader_epoch=epoch,
        partition_epoch=1,
        replicas=(1,),
        isr=(1,),
        log=partition.log,
        log_end=partition.log.end_offset,
        min_isr=1,
        now=0.0,
    )
    partition.lead(leader, 0.0)
    return leader


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
    leader = lead(partition, 3)
    assert (log.writer.written_offset, log.end_offset) == (1, 2)
    assert partition.high_watermark == 1
    assert leader.epoch_start == 2


def test_epoch_keeps_its_start_when_records_are_copied_that_a_former_leader_has_lost() -> None:
    """Invariants 23 and 26: at a start, the metadata still name the broker as the leader.

    It led epoch 5 from offset 5 onwards. A loss of power has cut its log to offset 3, inside epoch
    4, where it therefore notes the beginning of epoch 5 again. The next leader has all records.
    """
    disk = SimDisk()
    disk.make_directory("t-0")
    log = create(disk, "t-0", TopicPartition("t", 0), now_ms=NOW_MS, config=LogConfig())
    for epoch in (3, 4, 4):
        append(log, [b"kept"], epoch=epoch)
    partition = Partition("t", 0, bytes(16), log)
    lead(partition, 5)
    partition.follow(2, 6)
    lost = [
        encode([b"lost"], base_offset=offset, leader_epoch=epoch)
        for offset, epoch in ((3, 4), (4, 4), (5, 5), (6, 6))
    ]
    log.append_follower(b"".join(lost), NOW_MS, 6)
    assert log.epochs.entries() == [(3, 0), (4, 1), (5, 5), (6, 6)]
