"""The wait of a fetch, without the reads before and after it."""

from kwire.replica.fetch_waits import FetchWaits
from kwire.replica.partition import FetchIsolation, Partition


async def wait_readable(
    waits: FetchWaits, partition: Partition, isolation: FetchIsolation, timeout_s: float
) -> None:
    """Wait until one more byte is readable, the role changes, or time is up."""
    wait = waits.begin(1, isolation)
    waits.add(wait, (partition,))
    wait.waiter.begin(waits.now() + timeout_s)
    try:
        await wait.waiter.wait()
    finally:
        waits.end(wait)
