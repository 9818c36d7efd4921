"""Whether a follower with damage that it cannot repair may copy its log anew.

Rules: only a follower does so, and only while at least two other in-sync brokers, and at least
``min.insync.replicas``, are active. Its leader must have the damaged offsets intact. One partition
of a broker is copied at a time: the next one waits until this broker is in sync again. Records are
removed only when the metadata show this broker in neither the ISR nor the ELR. See
docs/decisions/0040-damaged-followers-copy-anew.md.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kwire.errors import KafkaError
from kwire.log.segments.damage import DamagedRange
from kwire.records.header import Buffer, crc_ok, headers
from kwire.replica.partition import Partition
from kwire.replica.ports import LeaderUnreachable, PartitionState

OTHERS_MIN: Final = 2
"""The number of other in-sync brokers that a copy leaves at least."""


def may_plan(partition: Partition, state: PartitionState, sources: Sequence[int]) -> bool:
    """Return whether a plan may be made or kept; ``sources`` are the other in-sync brokers."""
    is_follower = (
        partition.leader is None
        and state.leader in sources
        and (partition.leader_id, partition.leader_epoch) == (state.leader, state.leader_epoch)
    )
    return is_follower and len(sources) >= max(OTHERS_MIN, partition.config.min_insync_replicas)


def may_cut(node: int, state: PartitionState) -> bool:
    """Return whether no clean election can choose the broker ``node``."""
    return node not in state.isr and node not in state.elr


async def leader_has(
    fetch: Callable[[int], Awaitable[Buffer]],
    ranges: Sequence[DamagedRange],
    log_start: int,
    end_offset: int,
) -> bool:
    """Return whether the leader has intact batches for all damaged offsets in the given bounds.

    ``fetch`` returns its batches from an offset onwards.
    """
    for damaged in ranges:
        offset = max(damaged.first_offset, log_start)
        while offset < min(damaged.end_offset, end_offset):
            before = offset
            try:
                records = await fetch(offset)
                for position, header in headers(records):
                    if not crc_ok(records, position, header):
                        return False
                    offset = header.next_offset
            except (KafkaError, LeaderUnreachable):
                return False
            if offset <= before:
                return False
    return True
