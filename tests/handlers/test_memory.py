"""The memory of what a node has thousands of, by the allocations of kwire's code.

Unlike the size of a process, the sum of the allocations is nearly the same in every run. The bounds
are those of CPython 3.11, a tenth above what was counted.
"""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final

import attrs
import trio.testing

from kwire.testing.wire import TrioWireClient
from tests.support.handlers.broker import broker, create_topic
from tests.support.handlers.bytecodes import COUNTED, NOT_SERVING, frame_of, serve
from tests.support.handlers.fetch import at
from tests.support.handlers.fetch import request as fetch_request

COUNT: Final = 100
SUBSCRIBER_BYTES: Final = 5200
PARTITION_BYTES: Final = 6100
FILTERS: Final = (
    *(tracemalloc.Filter(True, f"{name}*") for name in COUNTED),
    *(tracemalloc.Filter(False, f"{name}*") for name in NOT_SERVING),
)
"""The code of kwire and what is generated for it, without the client's and the simulated
disk's."""


@attrs.define
class Allocated:
    """The bytes that were allocated and not freed again."""

    size: int = 0
    lines: str = ""


@contextmanager
def allocating() -> Iterator[Allocated]:
    """Measure what the block allocates and keeps, for each of :data:`COUNT` items."""
    allocated = Allocated()
    tracemalloc.start()
    try:
        yield allocated
        gc.collect()
        lines = tracemalloc.take_snapshot().filter_traces(FILTERS).statistics("lineno")
    finally:
        tracemalloc.stop()
    allocated.size = sum(line.size for line in lines) // COUNT
    allocated.lines = "\n".join(f"{line.size // COUNT:6} {line.traceback}" for line in lines[:30])


async def test_subscriber_that_waits_takes_little_memory() -> None:
    subject = broker()
    await create_topic(subject)
    waits = subject.replicas.fetch_waits
    request = frame_of(fetch_request(at("t", 0), session_epoch=-1, max_wait_ms=60_000), 17)
    async with serve(subject.services) as node, trio.open_nursery() as nursery:
        await nursery.start(waits.run)
        address = node.stream.socket.getpeername()
        async with AsyncExitStack() as stack:

            async def subscribe(count: int) -> None:
                expected = len(waits) + count
                for _ in range(count):
                    client = await stack.enter_async_context(await TrioWireClient.connect(*address))
                    await client.send_bytes(request)
                while len(waits) < expected:
                    await trio.testing.wait_all_tasks_blocked()

            await subscribe(3)
            with allocating() as allocated:
                await subscribe(COUNT)
        nursery.cancel_scope.cancel()
    assert allocated.size <= SUBSCRIBER_BYTES, allocated.lines


async def test_partition_takes_little_memory() -> None:
    subject = broker()
    await create_topic(subject, name="first")
    with allocating() as allocated:
        await create_topic(subject, partitions=COUNT)
    assert allocated.size <= PARTITION_BYTES, allocated.lines
