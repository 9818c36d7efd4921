"""Checks batches that a follower has fetched, before its log appends them.

A leader sends records from its file when the socket accepts them, perhaps long after it has handled
the fetch. If it was deposed meanwhile, it may have truncated the file and copied batches of the
next leader to the same positions. Such a batch has the expected offset and a valid CRC. But
appended after batches of the fetched epoch, it would produce a log that no leader has, and that
does not look diverged.
"""

from typing import Final

from kwire.errors import CorruptMessage, FencedLeaderEpoch
from kwire.log.epochs import LeaderEpochs
from kwire.records.header import BatchHeader, Buffer, crc_ok, headers

NO_EPOCH: Final = -1


class UnexpectedOffset(ValueError):
    """A batch for a follower does not continue the follower's log."""


Refusal = UnexpectedOffset | CorruptMessage | FencedLeaderEpoch


def sound_batches(
    records: Buffer, end_offset: int, epochs: LeaderEpochs, leader_epoch: int
) -> tuple[list[tuple[int, BatchHeader]], Refusal | None]:
    """Return position and header of each batch that continues a log, and why the next does not.

    The log ends at ``end_offset`` and has ``epochs``; the records were fetched in ``leader_epoch``.
    An incomplete last batch is left out.
    """
    epoch_at_end = epochs.at(end_offset - 1)
    last_epoch = NO_EPOCH if epoch_at_end is None else epoch_at_end
    batches: list[tuple[int, BatchHeader]] = []
    try:
        for pos, header in headers(records):
            if not header.can_follow(end_offset):
                offsets = f"{header.base_offset} to {header.last_offset}"
                raise UnexpectedOffset(f"offsets {offsets} after {end_offset}")
            check_epoch(header, last_epoch, leader_epoch)
            if not crc_ok(records, pos, header):
                raise CorruptMessage(f"wrong CRC at {header.base_offset}")
            batches.append((pos, header))
            end_offset = header.next_offset
            last_epoch = max(last_epoch, header.leader_epoch)
    except (UnexpectedOffset, CorruptMessage, FencedLeaderEpoch) as refusal:
        return batches, refusal
    return batches, None


def check_epoch(header: BatchHeader, last_epoch: int, leader_epoch: int) -> None:
    """Reject a batch that was not in the leader's log in the epoch of the fetch (KAFKA-18723).

    A valid batch's epoch is at least that of the batch before it and at most ``leader_epoch``.
    Batches that were written before leader epochs existed have none.
    """
    epoch = header.leader_epoch
    if epoch > leader_epoch:
        raise FencedLeaderEpoch(
            f"epoch {epoch} at {header.base_offset} is newer than the fetch of epoch {leader_epoch}"
        )
    if NO_EPOCH < epoch < last_epoch:
        raise CorruptMessage(f"epoch {epoch} at {header.base_offset} is before {last_epoch}")
