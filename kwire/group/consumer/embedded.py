"""The subscriptions and assignments that consumers embed in the classic protocol.

A consumer group reads these messages when a member uses the classic protocol, or when the group
changes its protocol. The first two bytes are the message's version; an unknown newer version is
read as the newest known version.
"""

import struct
from collections.abc import Mapping
from typing import Final

from kwire.codec.compile import decoder, encode
from kwire.codec.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from kwire.group.consumer.model import Owned, Partitions
from kwire.group.consumer.topics import Topics

_VERSION: Final = struct.Struct(">h")
_NEWEST: Final = 3


def version_of(message: bytes) -> int:
    """Return the version of a message; raises ValueError if there is none."""
    if len(message) < _VERSION.size:
        raise ValueError("message without a version")
    version: int = _VERSION.unpack_from(message)[0]
    if version < 0:
        raise ValueError(f"message version {version}")
    return min(version, _NEWEST)


def read_subscription(message: bytes) -> ConsumerProtocolSubscription:
    """Decode a subscription; raises ValueError."""
    read = decoder(ConsumerProtocolSubscription, version_of(message))
    return read(message, _VERSION.size)[0]


def read_assignment(message: bytes, topics: Topics) -> Partitions | None:
    """Return the assigned partitions of existing topics; None if the message has further data.

    If a member has never received an assignment, the message is empty. Raises ValueError.
    """
    if not message:
        return {}
    read = decoder(ConsumerProtocolAssignment, version_of(message))
    assignment = read(message, _VERSION.size)[0]
    if assignment.user_data:
        return None
    partitions: dict[bytes, frozenset[int]] = {}
    for topic in assignment.assigned_partitions:
        topic_id = topics.id_of(topic.topic)
        if topic_id is not None:
            partitions[topic_id] = frozenset(topic.partitions)
    return partitions


def write_assignment(partitions: Partitions | Owned, topics: Topics, version: int) -> bytes:
    """Encode an assignment; topics that no longer exist are left out."""
    names: Mapping[bytes, str | None] = {each: topics.name_of(each) for each in partitions}
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
            if (name := names[topic_id]) is not None
        ]
    )
    return _VERSION.pack(version) + encode(assignment, version)
