"""The order in which Java's hash tables list their keys.

Kafka's assignor visits members in this order and hands partitions to them in turn. kwire uses the
same order, so that both make the same assignment.

A table has a power of two of buckets. Keys are listed by bucket, and within a bucket in the order
in which they were added, or in the reverse order if they were added with `computeIfAbsent`.
"""

from collections.abc import Callable, Collection, Generator, Iterable
from typing import Final, TypeVar

K = TypeVar("K")

DEFAULT_BUCKETS: Final = 16
_LOAD: Final = 0.75
_MASK: Final = 0xFFFFFFFF
_KEYS_A_STEP: Final = 64


def buckets_for(count: int) -> int:
    """Return the number of buckets of a table that Kafka creates for ``count`` keys."""
    return 1 << (int((count + 1) / _LOAD + 1) - 1).bit_length()


def buckets_of(count: int) -> int:
    """Return the number of buckets of a table of default size that has had ``count`` keys."""
    buckets = DEFAULT_BUCKETS
    while count > buckets * _LOAD:
        buckets *= 2
    return buckets


def buckets_of_copy(keys: Collection[object]) -> int:
    """Return the number of buckets of a set that is created as a copy of ``keys``."""
    return max(DEFAULT_BUCKETS, 1 << int(len(keys) / _LOAD).bit_length())


def listing(
    keys: Iterable[K],
    hash_of: Callable[[K], int],
    buckets: int = DEFAULT_BUCKETS,
    *,
    is_computed: bool = False,
) -> Generator[None, None, list[K]]:
    """Return the keys in the order of a Java table to which they were added in the given order.

    ``buckets`` is the table's size when it is created. ``is_computed``: the keys were added with
    `computeIfAbsent`, which also lets the table grow one key later. Yields after every few keys.
    """
    added = list(keys)
    if len(added) < 2:
        return added
    while len(added) - is_computed > buckets * _LOAD:
        buckets *= 2
    if is_computed:
        added.reverse()
    order: list[tuple[int, int]] = []
    for index, key in enumerate(added):
        value = hash_of(key) & _MASK
        order.append(((value ^ value >> 16) & (buckets - 1), index))
        if index % _KEYS_A_STEP == 0:
            yield
    order.sort()
    return [added[index] for _, index in order]


def hash_of_uuid(uuid: bytes) -> int:
    high, low = uuid[:8], uuid[8:]
    value = int.from_bytes(high) ^ int.from_bytes(low)
    return (value >> 32 ^ value) & _MASK


def hash_of_partition(partition: tuple[bytes, int]) -> int:
    """Return the hash of a topic id with a partition."""
    topic_id, number = partition
    return (31 * hash_of_uuid(topic_id) + number) & _MASK
