"""Topics for the assignors of consumer groups, in a dictionary."""

from collections.abc import Iterable

import attrs

from kwire.group.consumer.topics import topic_hash


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\x01")


@attrs.define(eq=False)
class FakeTopics:
    """The partition counts of topics by name."""

    counts: dict[str, int] = attrs.field(factory=dict)
    racks: dict[str, list[list[str]]] = attrs.field(factory=dict)
    """The racks of a topic's partitions, where it has any."""
    rack: str | None = None
    """The rack of the only broker, if it is in one."""
    ids: dict[str, bytes] = attrs.field(factory=dict)
    """The ids of topics that have another id than :func:`topic_id`."""
    version: object = attrs.field(factory=object)
    offset: int = 0

    @property
    def names_offset(self) -> int:
        return self.offset

    def put(self, name: str, partitions: int) -> None:
        """Create a topic, or change its partition count."""
        self.counts[name] = partitions
        self._change()

    def delete(self, name: str) -> None:
        del self.counts[name]
        self._change()

    def _change(self) -> None:
        self.version = object()
        self.offset += 1

    def id_of(self, name: str) -> bytes | None:
        return self._id(name) if name in self.counts else None

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name in self.counts if self._id(name) == topic_id), None)

    def partition_count(self, topic_id: bytes) -> int:
        return self.counts.get(self.name_of(topic_id) or "", 0)

    def hash_of(self, name: str) -> int | None:
        if name not in self.counts:
            return None
        racks = [[] if self.rack is None else [self.rack]] * self.counts[name]
        return topic_hash(self._id(name), name, self.racks.get(name, racks))

    def _id(self, name: str) -> bytes:
        return self.ids.get(name, topic_id(name))

    def names(self) -> Iterable[str]:
        return self.counts
