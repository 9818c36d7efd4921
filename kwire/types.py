"""The types shared by the whole broker; their only behaviour is reading and writing names."""

import base64
from collections.abc import Callable
from typing import Final, NamedTuple

ZERO_UUID: Final = bytes(16)
RESERVED_UUIDS: Final = 100
"""Uuids below this number are reserved (KIP-858)."""

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
"""The topics of coordinators: Metadata marks them as internal, and clients cannot write to them."""
BLANKS: Final = "".join(map(chr, range(0x21)))
"""The characters that Java's String.trim removes."""
NO_LEADER: Final = -1
"""The broker id that means "the partition has no leader"."""


def in_address(host: str) -> str:
    """Format a host for an address with a port: IPv6 addresses go in brackets (RFC 3986)."""
    return f"[{host}]" if ":" in host else host


class DirectoryId:
    """The reserved values for the directory id of a replica (KIP-858)."""

    MIGRATING: Final = bytes(16)
    UNASSIGNED: Final = bytes(15) + b"\x01"
    LOST: Final = bytes(15) + b"\x02"


def is_directory(directory_id: bytes | None) -> bool:
    """Return whether an id names a log directory and is not one of :class:`DirectoryId`."""
    return directory_id is not None and int.from_bytes(directory_id) >= RESERVED_UUIDS


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


TopicIdPartition = tuple[bytes, int]
"""One partition of one topic: the topic's id and the partition's index."""


def random_uuid(random_bytes: Callable[[int], bytes]) -> bytes:
    """Return a new uuid that is not reserved and whose text cannot be mistaken for an option."""
    while True:
        uuid = random_bytes(16)
        if int.from_bytes(uuid, "big") >= RESERVED_UUIDS and uuid_text(uuid)[0] != "-":
            return uuid


def uuid_text(uuid: bytes) -> str:
    """Return Kafka's text form of a uuid: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid)[:22].decode()


def uuid_hex(uuid: bytes) -> str:
    """Return a uuid as Java prints it: 36 characters, five groups of hexadecimal digits."""
    digits = uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def uuid_bytes(text: str) -> bytes:
    """Return the sixteen bytes of a uuid in text form; raises ValueError if it is invalid."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError as error:
        raise ValueError(f"not a uuid: {text!r}") from error
    if len(raw) != 16:
        raise ValueError(f"not a uuid: {text!r}")
    return raw
