"""The wait of a coordinator's response for the commit of the records that it depends on.

The wait ends with the lease of the broker's session. A broker that is cut off from the others can
no longer commit anything, and its clients have to find the new coordinator; meanwhile, later
requests on the same connection would wait behind this one.
"""

from typing import TYPE_CHECKING, Final

import trio

from kwire.types import TopicPartition

if TYPE_CHECKING:
    from kwire.coordinator.ports import ShardLog

_CHECK_MIN_S: Final = 0.01
"""The shortest time between two checks of a lease that is about to end."""


async def wait_while_leased(log: "ShardLog", partition: TopicPartition, end_offset: int) -> None:
    """Return when the offsets before ``end_offset`` are committed, or when the lease is over.

    The caller must check the lease afterwards. Raises KafkaError if the broker loses its role.
    """
    while not log.is_lease_over:
        with trio.move_on_after(max(log.lease_left_s, _CHECK_MIN_S)) as leased:
            await log.wait_committed(partition, end_offset)
        if not leased.cancelled_caught:
            return
