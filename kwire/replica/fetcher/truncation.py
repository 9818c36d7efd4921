"""The offset to which a follower truncates when its leader's log diverges (KIP-101, 279, 595).

Pure decisions on the follower's leader epochs. A follower never truncates to its own high
watermark: the leader may have records there that this follower lacks, or others in their place.
"""

from kwire.log.epochs import LeaderEpochs


def target(epochs: LeaderEpochs, log_end: int, leader_epoch: int, leader_end: int) -> int:
    """Return the offset to truncate to after a leader's answer that the logs diverge.

    The leader has records up to ``leader_end`` of its largest epoch ``leader_epoch`` that is not
    above the follower's last one. If the follower lacks that epoch, it truncates to the end of its
    own largest epoch below it, and its next fetch, from there, asks again with that epoch.
    """
    if leader_epoch < 0 or leader_end < 0:
        return log_end
    epoch, end_offset = epochs.end_of(leader_epoch, log_end)
    if epoch < 0:
        return min(leader_end, log_end)
    if epoch != leader_epoch:
        return min(end_offset, log_end)
    return min(end_offset, leader_end, log_end)
