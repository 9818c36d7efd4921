"""The offset to which a follower truncates when its leader's log diverges (KIP-101, 279, 595).

Pure decisions on the follower's leader epochs. A follower never simply truncates to its own high
watermark: there, the leader's log may have records that the follower lacks, or different records.
"""

from kwire.log.epochs import LeaderEpochs


def target(epochs: LeaderEpochs, log_end: int, leader_epoch: int, leader_end: int) -> int:
    """Return the offset to truncate to after the leader has reported that the logs diverge.

    ``leader_epoch`` is the leader's largest epoch that is not above the follower's last one, and
    ``leader_end`` is where the leader's records of that epoch end. If the follower lacks that
    epoch, it truncates to the end of its own largest epoch below it; the next fetch, from that
    offset, compares that epoch.
    """
    if leader_epoch < 0 or leader_end < 0:
        return log_end
    epoch, end_offset = epochs.end_of(leader_epoch, log_end)
    if epoch < 0:
        return min(leader_end, log_end)
    if epoch != leader_epoch:
        return min(end_offset, log_end)
    return min(end_offset, leader_end, log_end)
