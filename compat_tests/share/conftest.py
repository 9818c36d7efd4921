"""A topic and a share group of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import pytest

from compat_tests.harness.broker import Broker
from compat_tests.share.members import ShareMember, configure_group, create_topic, produce


@attrs.define
class Shared:
    """A topic with one partition, and a share group that begins at its start."""

    address: str
    topic: str
    topic_id: bytes
    group: str
    members: list[ShareMember] = attrs.field(factory=list)

    def configure(self, **settings: str) -> None:
        configure_group(self.address, self.group, **settings)

    def join(self) -> ShareMember:
        member = ShareMember.join(self.address, self.group, self.topic, self.topic_id)
        self.members.append(member)
        return member

    def produce(self, *values: bytes) -> int:
        return produce(self.address, self.topic, *values)


@pytest.fixture
def shares(broker: Broker, unique: Callable[[str], str]) -> Iterator[Shared]:
    topic, group = unique("share-topic"), unique("share-group")
    it = Shared(broker.address, topic, create_topic(broker.address, topic), group)
    it.configure(share_auto_offset_reset="earliest")
    yield it
    for member in it.members:
        member.close()
