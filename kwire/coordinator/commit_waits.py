"""The wait of a coordinator's answer for the commit of what it depends on.

It ends with the lease of the broker's session: a broker that is cut off from the others commits
nothing more, and its client is to look for the next coordinator. On the client's connection later
requests wait behind this one.
"""

from typing import TYPE_CHECKING, Final

import trio

from kwire.types import TopicPartition

if TYPE_CHECKING:
    from kwire.coordinator.ports import CoordinatorLog

_CHECK_MIN_S: Final = 0.01
"""The shortest time between two looks at a lease that is about to end."""


async def wait_while_leased(
    log: "CoordinatorLog", partition: TopicPartition, end_offset: int
) -> None:
    """Return when the offsets before ``end_offset`` are committed, or when the lease is over.

    The caller looks at the lease afterwards. Raises KafkaError on loss of the role.
    """
    while not log.is_lease_over:
        with trio.move_on_after(max(log.lease_left_s, _CHECK_MIN_S)) as leased:
            await log.wait_committed(partition, end_offset)
        if not leased.cancelled_caught:
            return
