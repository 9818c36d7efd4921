"""Calls of the persister for all partitions of a topic, a few at a time.

A topic may have thousands of partitions; one call for all of them would block the event loop.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from kwire.drive import give_way
from kwire.share.persister import UNINITIALIZED, InitialState, Persister, Summary

CALL_PARTITIONS: Final = 200
"""The largest number of partitions in one call, about 2 ms of work."""


async def initialize(
    persister: Persister, group_id: str, topic_id: bytes, epoch: int, offsets: Mapping[int, int]
) -> dict[int, int]:
    """Initialize partitions with start offsets; return the error code of each."""
    codes: dict[int, int] = {}
    for numbers in _split(offsets):
        states = {number: InitialState(epoch, offsets[number]) for number in numbers}
        codes |= await persister.initialize(group_id, topic_id, states)
        await give_way()
    return codes


async def replace(
    persister: Persister, group_id: str, topic_id: bytes, epoch: int, offsets: Mapping[int, int]
) -> dict[int, int]:
    """Replace states by initial ones, also by those of the same epoch without a start offset.

    The latter are usually repetitions, which the persister ignores; so it deletes the states first.
    """
    unset = [number for number, offset in offsets.items() if offset == UNINITIALIZED]
    code = await delete(persister, group_id, topic_id, unset)
    if code:
        return dict.fromkeys(offsets, code)
    return await initialize(persister, group_id, topic_id, epoch, offsets)


async def delete(
    persister: Persister, group_id: str, topic_id: bytes, partitions: Collection[int]
) -> int:
    """Delete the state of partitions; return the error code of one failed deletion, or 0."""
    failure = 0
    for numbers in _split(partitions):
        codes = await persister.delete(group_id, topic_id, numbers)
        failure = failure or max(codes.values(), key=bool, default=0)
        await give_way()
    return failure


async def summaries(
    persister: Persister, group_id: str, topic_id: bytes, partitions: Collection[int]
) -> dict[int, Summary]:
    """Return the summary of each partition's state."""
    results: dict[int, Summary] = {}
    for numbers in _split(partitions):
        results |= await persister.summaries(group_id, topic_id, numbers)
        await give_way()
    return results


def _split(partitions: Collection[int]) -> Iterator[list[int]]:
    ordered = sorted(partitions)
    for first in range(0, len(ordered), CALL_PARTITIONS):
        yield ordered[first : first + CALL_PARTITIONS]
