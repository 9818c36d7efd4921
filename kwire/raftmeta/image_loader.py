"""Turns committed records into published images, whole metadata transactions at a time.

Between a BeginTransactionRecord and its end nothing is published: records wait, and an
AbortTransactionRecord drops them. A leader that finds an unfinished transaction of its
predecessor aborts it. Loading a snapshot replaces everything.
"""

from collections.abc import Iterable
from typing import Any

import attrs

from kwire.codec.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from kwire.raftmeta.image import Applied, MetadataImage
from kwire.raftmeta.image_change import MetadataDelta


@attrs.define
class ImageLoader:
    """The latest published image, and what waits for a transaction's end."""

    image: MetadataImage = attrs.field(factory=MetadataImage)
    _ready: list[Any] = attrs.field(factory=list)
    _transaction: list[Any] | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether a metadata transaction has begun and not ended."""
        return self._transaction is not None

    def load(
        self, records: Iterable[Any], applied: Applied
    ) -> tuple[MetadataImage, MetadataDelta] | None:
        """Take committed records in; None while a transaction is open."""
        for record in records:
            if isinstance(record, BeginTransactionRecord):
                self._transaction = []
            elif isinstance(record, EndTransactionRecord):
                self._ready += self._transaction or ()
                self._transaction = None
            elif isinstance(record, AbortTransactionRecord):
                self._transaction = None
            elif self._transaction is not None:
                self._transaction.append(record)
            else:
                self._ready.append(record)
        if self._transaction is not None:
            return None
        ready, self._ready = self._ready, []
        self.image, delta = self.image.apply(ready, applied)
        return self.image, delta

    def load_snapshot(
        self, records: Iterable[Any], applied: Applied
    ) -> tuple[MetadataImage, MetadataDelta]:
        """Start over from a snapshot's records."""
        self._ready, self._transaction = [], None
        before = self.image
        self.image, fresh = MetadataImage().apply(records, applied)
        return self.image, difference(before, fresh)


def difference(before: MetadataImage, fresh: MetadataDelta) -> MetadataDelta:
    """What a snapshot's image changes against the image it replaces."""
    after = fresh.after
    gone = {t.id: t for t in before.topics.values() if t.id not in after.topics}
    partitions = {}
    for topic in after.topics.values():
        old = before.topics.get(topic.id)
        held = old.partitions if old is not None else {}
        changed = {n for n, partition in topic.partitions.items() if held.get(n) != partition}
        if changed:
            partitions[topic.id] = changed
    return MetadataDelta(
        before=before,
        after=after,
        partitions=partitions,
        created_topics=frozenset(t for t in after.topics if t not in before.topics),
        deleted_topics=gone,
        configs=_changed(before.configs, after.configs),
        brokers=_changed(before.brokers, after.brokers),
        controllers=_changed(before.controllers, after.controllers),
        features=_changed(before.features, after.features),
        quotas=_changed(before.quotas, after.quotas),
    )


def _changed(before: Any, after: Any) -> frozenset[Any]:
    keys = set(before) | set(after)
    return frozenset(key for key in keys if before.get(key) != after.get(key))
