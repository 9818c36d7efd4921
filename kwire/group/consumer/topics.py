"""The topics that consumer groups subscribe to: ids, partition counts and racks, and their hash.

The hash is computed as in Kafka: group records contain it, so a group that moves between Kafka and
kwire is not rebalanced. It covers all properties of topics that an assignment may depend on.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import xxhash

_HEAD: Final = struct.Struct("<bQQ")
_INT: Final = struct.Struct("<i")
_LONG: Final = struct.Struct("<Q")
_SIGN: Final = 1 << 63
_MAGIC: Final = 0


class Topics(Protocol):
    """The topics in the newest metadata."""

    @property
    def version(self) -> object:
        """An object that is replaced whenever a topic or a partition changes."""

    @property
    def offset(self) -> int:
        """The metadata offset of this state."""

    @property
    def names_offset(self) -> int:
        """The metadata offset of the first state with the current topic names."""

    def id_of(self, name: str) -> bytes | None: ...

    def name_of(self, topic_id: bytes) -> str | None: ...

    def partition_count(self, topic_id: bytes) -> int: ...

    def hash_of(self, name: str) -> int | None:
        """Return the hash of a topic, None if it does not exist."""

    def names(self) -> Iterable[str]: ...


def topic_hash(topic_id: bytes, name: str, racks: Sequence[Sequence[str]]) -> int:
    """Return the hash of one topic; ``racks`` lists the racks of each partition's replicas."""
    high, low = struct.unpack(">QQ", topic_id)
    parts = [_HEAD.pack(_MAGIC, high, low), _text(name), _INT.pack(len(racks))]
    for partition, names in enumerate(racks):
        parts.append(_INT.pack(partition))
        parts += [_INT.pack(len(rack)) + _text(rack) for rack in sorted(names)]
    return _to_signed(xxhash.xxh3_64_intdigest(b"".join(parts)))


def group_hash(topics: Topics, names: Iterable[str]) -> int:
    """Return the hash of the existing topics among ``names``."""
    hashes = [value for name in sorted(names) if (value := topics.hash_of(name)) is not None]
    if not hashes:
        return 0
    return _to_signed(xxhash.xxh3_64_intdigest(b"".join(_LONG.pack(h % (1 << 64)) for h in hashes)))


def _text(text: str) -> bytes:
    """Return the UTF-16 code units of a text, followed by their count."""
    units = text.encode("utf-16-le")
    return units + _INT.pack(len(units) // 2)


def _to_signed(value: int) -> int:
    """Return a 64-bit hash as a signed integer, as records hold it."""
    return value - (1 << 64) if value & _SIGN else value
