"""Maps a key, such as a group id or transactional id, to a partition of an internal topic.

Clients never compute this. The rule is Kafka's, so that a log can move between Kafka and kwire.
Every request to a coordinator needs the partition, so the hashes of short keys are cached.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Final

_KEPT_LENGTH: Final = 255
_KEPT_KEYS: Final = 4096
_PIECE: Final = 256
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in reversed(range(_PIECE + 1)))
"""The factor of each character in a hash; the last one is that of the last character."""
_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def partition_for(key: str, partitions: int) -> int:
    """Return the key's partition: the absolute value of Java's string hash, as a remainder.

    The smallest 32-bit integer, which has no absolute value in Java, counts as 0.
    """
    value = _kept_hash(key) if len(key) <= _KEPT_LENGTH else java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


def java_hash(key: str) -> int:
    """Return Java's hash of a string, a signed 32-bit integer."""
    units: Sequence[int]
    if key.isascii():
        units = key.encode()
    else:
        units = memoryview(key.encode(_UTF_16, "surrogatepass")).cast("H")
    value = 0
    for start in range(0, len(units), _PIECE):
        piece = units[start : start + _PIECE]
        size = len(piece)
        # A sum of products runs in C: 2 us for an id of 36 characters; a loop takes 6 us.
        value = value * _POWERS[-1 - size] + sum(map(mul, piece, _POWERS[-size:]))
        value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_kept_hash = lru_cache(maxsize=_KEPT_KEYS)(java_hash)
