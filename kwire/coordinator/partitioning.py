"""Maps a key, such as a group id or transactional id, to a partition of an internal topic.

Clients never compute this. The rule is Kafka's, so that a log can move between Kafka and kwire.
Every request to a coordinator needs the partition, and hashing an id of 25 characters takes 6 us,
so the hashes of short keys are cached.
"""

from functools import lru_cache
from typing import Final

_KEPT_LENGTH: Final = 255
_KEPT_KEYS: Final = 4096


def partition_for(key: str, partitions: int) -> int:
    """Return the key's partition: the absolute value of Java's string hash, as a remainder.

    The smallest 32-bit integer, which has no absolute value in Java, counts as 0.
    """
    value = _kept_hash(key) if len(key) <= _KEPT_LENGTH else java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


def java_hash(key: str) -> int:
    """Return Java's hash of a string, a signed 32-bit integer."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_kept_hash = lru_cache(maxsize=_KEPT_KEYS)(java_hash)
