"""Turns committed records into published images, one whole metadata transaction at a time.

Between BeginTransactionRecord and EndTransactionRecord nothing is published: records are held back,
and an AbortTransactionRecord drops them. A leader that finds an unfinished transaction of its
predecessor aborts it. Loading a snapshot replaces everything.

A load is a generator that the caller runs in slices, because applying a snapshot of 100,000
partitions takes a second. The last step replaces the image, so no reader sees a partial one.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

import attrs

from kwire.codec.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    EndTransactionRecord,
    MetadataRecord,
)
from kwire.drive import run_steps
from kwire.raftmeta.metadata.image import Applied, MetadataImage
from kwire.raftmeta.metadata.image_change import ImageChange, MetadataDelta

STEP_RECORDS: Final = 32
"""Records between two checks of the clock: about 0.2 ms of work."""

T = TypeVar("T")
K = TypeVar("K")
Steps: TypeAlias = Generator[None, None, T]
Published: TypeAlias = tuple[MetadataImage, MetadataDelta]


@attrs.define(eq=False, repr=False)
class ImageLoader:
    """The newest published image, and the records held back until a transaction ends."""

    image: MetadataImage = attrs.field(factory=MetadataImage)
    _ready: list[MetadataRecord] = attrs.field(factory=list)
    _transaction: list[MetadataRecord] | None = None

    @property
    def in_transaction(self) -> bool:
        """True if a metadata transaction has begun and not ended."""
        return self._transaction is not None

    def load(self, records: Iterable[MetadataRecord], applied: Applied) -> Published | None:
        """Apply committed records; return None while a transaction is open."""
        return run_steps(self.loading(records, applied))

    def loading(
        self, records: Iterable[MetadataRecord], applied: Applied
    ) -> Steps[Published | None]:
        """Apply committed records step by step; the image changes with the last step."""
        for count, record in enumerate(records, 1):
            if count % STEP_RECORDS == 0:
                yield
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
        published = yield from applying(self.image, ready, applied)
        self.image = published[0]
        return published

    def load_snapshot(self, records: Iterable[MetadataRecord], applied: Applied) -> Published:
        """Replace the image with a snapshot's records."""
        return run_steps(self.loading_snapshot(records, applied))

    def loading_snapshot(
        self, records: Iterable[MetadataRecord], applied: Applied
    ) -> Steps[Published]:
        """Replace the image with a snapshot's records, step by step."""
        self._ready, self._transaction = [], None
        before = self.image
        image, fresh = yield from applying(MetadataImage(), records, applied)
        delta = yield from _comparing(before, fresh)
        self.image = image
        return image, delta


def applying(
    image: MetadataImage, records: Iterable[MetadataRecord], applied: Applied
) -> Steps[Published]:
    """Return the image after ``records`` and the difference, step by step."""
    change = ImageChange(image)
    for count, record in enumerate(records, 1):
        if isinstance(record, ClearElrRecord):
            yield from change.clearing_elr(record)
        else:
            change.replay(record)
        if count % STEP_RECORDS == 0:
            yield
    for count, _ in enumerate(change.close(), 1):
        if count % STEP_RECORDS == 0:
            yield
    return change.finish(applied)


def _comparing(before: MetadataImage, fresh: MetadataDelta) -> Steps[MetadataDelta]:
    """Compare a snapshot's image with the image that it replaces."""
    after = fresh.after
    deleted = {t.id: t for t in before.topics.values() if t.id not in after.topics}
    partitions: dict[bytes, set[int]] = {}
    count = 0
    for topic in after.topics.values():
        old = before.topics.get(topic.id)
        partitions_before = old.partitions if old is not None else {}
        for number, partition in topic.partitions.items():
            if partitions_before.get(number) != partition:
                partitions.setdefault(topic.id, set()).add(number)
            count += 1
            if count % STEP_RECORDS == 0:
                yield
    changed_acls: set[bytes] = set()
    for count, acl_id in enumerate((*before.acls, *after.acls), 1):
        if before.acls.get(acl_id) != after.acls.get(acl_id):
            changed_acls.add(acl_id)
        if count % STEP_RECORDS == 0:
            yield
    return MetadataDelta(
        before=before,
        after=after,
        partitions=partitions,
        created_topics=frozenset(t for t in after.topics if t not in before.topics),
        deleted_topics=deleted,
        configs=_changed_keys(before.configs, after.configs),
        brokers=_changed_keys(before.brokers, after.brokers),
        controllers=_changed_keys(before.controllers, after.controllers),
        features=_changed_keys(before.features, after.features),
        quotas=_changed_keys(before.quotas, after.quotas),
        acls=frozenset(changed_acls),
    )


def _changed_keys(before: Mapping[K, object], after: Mapping[K, object]) -> frozenset[K]:
    keys = set(before) | set(after)
    return frozenset(key for key in keys if before.get(key) != after.get(key))
