"""Chooses batches of another replica to replace damaged batches.

Pure decisions on fetched bytes. Two replicas have the same batch at an offset if the batches have
the same leader epoch, because only one leader appends in an epoch. Followers store the leader's
bytes unchanged, so the batches that are missing fill a damaged range exactly.

Compaction breaks the second rule: each replica compacts by itself, and a batch from which it has
removed records must not replace the original. Otherwise a tombstone could vanish here while an
older value of its key is still in the log. So a compacted log accepts only the very same batch: its
checksum equals the one in the damaged batch or, if that checksum is damaged, all bytes covered by
it are equal. If there is no such batch, the other replica's batches replace all closed segments
together (:mod:`kwire.log.directories.prefix_copy`).
"""

from typing import NamedTuple

from kwire.errors import CorruptMessage
from kwire.log.epochs import LeaderEpochs
from kwire.log.fetched_batches import NO_EPOCH
from kwire.records.header import (
    ATTRIBUTES_POS,
    CRC_POS,
    BatchHeader,
    Buffer,
    crc_ok,
    headers,
)


class Unsuitable(Exception):
    """The fetched bytes are not those of the damaged range."""


class Gap(NamedTuple):
    """The part of a damaged range that is still missing; ends are exclusive."""

    first_offset: int
    end_offset: int
    size: int
    """The number of bytes."""


def suitable_batches(
    records: Buffer, gap: Gap, epochs: LeaderEpochs, stored: Buffer | None = None
) -> tuple[int, int]:
    """Return the size and the end offset of the fetched batches that belong in a gap.

    ``epochs`` are those of the damaged log, ``stored`` are the gap's damaged bytes if the log is
    compacted. Batches after the gap, and an incomplete last batch, are left out. Raises
    :class:`Unsuitable`.
    """
    size, end_offset = 0, gap.first_offset
    try:
        for position, header in headers(records):
            if header.base_offset >= gap.end_offset:
                break
            if not header.can_follow(end_offset) or header.next_offset > gap.end_offset:
                raise Unsuitable(f"offsets {header.base_offset} to {header.last_offset}")
            _check(records, position, header, epochs)
            if stored is not None and not _is_same(records, position, header, stored):
                raise Unsuitable(f"another batch at offset {header.base_offset}")
            size, end_offset = position + header.size, header.next_offset
    except CorruptMessage as error:
        raise Unsuitable(str(error)) from error
    if not size or size > gap.size:
        raise Unsuitable(f"{size} bytes for a gap of {gap.size} bytes at {gap.first_offset}")
    return size, end_offset


def prefix_batches(
    records: Buffer, first_offset: int, end_offset: int, epochs: LeaderEpochs
) -> tuple[list[tuple[int, BatchHeader]], bool]:
    """Return the fetched batches below ``end_offset``, and whether a later batch follows them.

    The batches continue the log from ``first_offset``; the other replica may have removed batches
    between them. Raises :class:`Unsuitable`.
    """
    batches = list[tuple[int, BatchHeader]]()
    try:
        for position, header in headers(records):
            if header.base_offset >= end_offset:
                return batches, True
            if not header.can_follow(first_offset) or header.next_offset > end_offset:
                raise Unsuitable(f"offsets {header.base_offset} to {header.last_offset}")
            _check(records, position, header, epochs)
            batches.append((position, header))
            first_offset = header.next_offset
    except CorruptMessage as error:
        raise Unsuitable(str(error)) from error
    if not batches:
        raise Unsuitable(f"no batch from {first_offset} onwards")
    return batches, False


def _check(records: Buffer, position: int, header: BatchHeader, epochs: LeaderEpochs) -> None:
    """Raise Unsuitable for a damaged batch, or one that is not of this log."""
    epoch = epochs.at(header.base_offset)
    if header.leader_epoch != (NO_EPOCH if epoch is None else epoch):
        raise Unsuitable(f"epoch {header.leader_epoch} at {header.base_offset}, not {epoch}")
    if not crc_ok(records, position, header):
        raise Unsuitable(f"wrong checksum at {header.base_offset}")


def _is_same(records: Buffer, position: int, header: BatchHeader, stored: Buffer) -> bool:
    """Return whether a batch is the one that was stored at its position in the gap."""
    fetched, old = memoryview(records), memoryview(stored)
    crc = slice(position + CRC_POS, position + ATTRIBUTES_POS)
    body = slice(position + ATTRIBUTES_POS, position + header.size)
    return fetched[crc] == old[crc] or fetched[body] == old[body]
