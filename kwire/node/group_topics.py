"""The topics of the newest metadata, as the assignors of consumer groups need them."""

from collections.abc import Iterable
from typing import Final
from weakref import ReferenceType, ref

import attrs

from kwire.group.consumer.topics import topic_hash
from kwire.raftmeta.metadata.image import MetadataImage, TopicImage

_HASHES_MAX: Final = 10_000


@attrs.define(eq=False, repr=False)
class ImageTopics:
    """The topics of one metadata image."""

    image: MetadataImage
    hashes: dict[str, tuple[ReferenceType[TopicImage], int]]
    """The hashes of topics by name, with the topic that was hashed; shared by all images.

    A deleted topic with all its partitions must not stay in memory for its hash.
    """
    names_offset: int
    """The offset of the first image with the present names of topics."""
    version: object = attrs.field(factory=object)
    """Another object after each change of a topic.

    A group keeps the version that it knows, so this must not be a part of the image: a group
    without members would keep what was deleted and changed since.
    """

    def next(self, image: MetadataImage) -> "ImageTopics":
        """Return the topics of an image that is not older."""
        is_same = image.topic_ids is self.image.topic_ids
        offset = self.names_offset if is_same else image.applied.offset
        version = self.version if image.topics is self.image.topics else object()
        return ImageTopics(image, self.hashes, offset, version)

    @property
    def offset(self) -> int:
        return self.image.applied.offset

    def id_of(self, name: str) -> bytes | None:
        topic_id: bytes | None = self.image.topic_ids.get(name)
        return topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        return self.image.topic_name(topic_id)

    def partition_count(self, topic_id: bytes) -> int:
        topic = self.image.topics.get(topic_id)
        return 0 if topic is None else len(topic.partitions)

    def hash_of(self, name: str) -> int | None:
        topic = self.image.topic(name)
        if topic is None:
            return None
        former = self.hashes.get(name)
        if former is not None and former[0]() is topic:
            return former[1]
        if len(self.hashes) >= _HASHES_MAX:
            self.hashes.clear()
        value = topic_hash(topic.id, name, self._racks(topic))
        self.hashes[name] = ref(topic), value
        return value

    def _racks(self, topic: TopicImage) -> list[list[str]]:
        """Return the racks of each partition's replicas."""
        racks = {b.id: b.rack for b in self.image.brokers.values() if b.rack is not None}
        count = len(topic.partitions)
        if not racks:
            return [[]] * count
        return [
            [racks[replica] for replica in topic.partitions[number].replicas if replica in racks]
            for number in range(count)
        ]

    def names(self) -> Iterable[str]:
        names: Iterable[str] = self.image.topic_ids
        return names
