"""The releases of the simulated nodes, and the check that a node can read all its metadata.

A release is defined by the range of levels that it supports for each feature. Nodes of an old
release are restarted with the new release while the cluster runs; feature levels are raised
meanwhile and afterwards.
"""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final

import attrs

from kwire.codec.messages.metadata_records import FeatureLevelRecord, MetadataRecord
from kwire.raftmeta.controller.feature_updates import KRAFT_VERSION
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.storage.levels import (
    DIRECTORIES,
    ELIGIBLE_REPLICAS,
    ELR,
    METADATA_VERSION,
    NEWEST,
    at_level,
)
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader
from kwire.storage_format.format import GROUP_VERSION, SHARE_VERSION, TRANSACTION_VERSION
from simulation.replication.metadata_checks import Books

Features = Mapping[str, tuple[int, int]]
"""The lowest and the highest supported level of each feature."""
RAISED: Final = (METADATA_VERSION, ELR, TRANSACTION_VERSION, KRAFT_VERSION)
"""The features whose levels a run raises."""
_OLDEST: Final = 14
_LEVELS: Final = (*(_OLDEST,) * 5, DIRECTORIES, 19, 22, ELIGIBLE_REPLICAS, 25, 29)
"""The initial levels of metadata.version in old clusters."""


@attrs.frozen
class Release:
    """The initial levels of a cluster, and the features of the release that it runs."""

    levels: Mapping[str, int]
    features: Features

    @classmethod
    def newest(cls, random: Random) -> "Release":
        """Return the newest release with all features at their newest level, maybe without ELR."""
        elr = int(random.random() < 0.7)
        levels = {METADATA_VERSION: NEWEST, TRANSACTION_VERSION: 2, ELR: elr, GROUP_VERSION: 1}
        return cls(levels, SUPPORTED)

    @classmethod
    def old(cls, random: Random) -> "Release":
        """Return an older release, which may support higher levels than its initial ones."""
        metadata = random.choice(_LEVELS)
        levels = {
            METADATA_VERSION: metadata,
            TRANSACTION_VERSION: random.randrange(3),
            ELR: int(metadata >= ELIGIBLE_REPLICAS and random.random() < 0.3),
        }
        features = dict(SUPPORTED)
        for name, level in levels.items():
            lowest, highest = SUPPORTED[name]
            features[name] = lowest, random.choice((level, level, highest))
        return cls({**levels, GROUP_VERSION: 1}, features)

    def with_share_groups(self) -> "Release":
        """Return the release with share groups (KIP-932), which only the newest one has."""
        return attrs.evolve(self, levels={**self.levels, SHARE_VERSION: 1})

    @property
    def has_share_groups(self) -> bool:
        return self.levels.get(SHARE_VERSION, 0) > 0

    @property
    def is_newest(self) -> bool:
        return self.features == SUPPORTED and self.levels[METADATA_VERSION] == NEWEST

    @property
    def has_directories(self) -> bool:
        """True if the metadata has the log directories of replicas (KIP-858)."""
        return self.levels[METADATA_VERSION] >= DIRECTORIES


@attrs.define(eq=False)
class ReleaseWatch:
    """The quorum listener that checks that a process can read the metadata it receives."""

    books: Books
    node_id: int
    features: Features

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        for batch in batches:
            self._check(batch.records)

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self._check(reader.records())

    def _check(self, records: Iterable[MetadataRecord]) -> None:
        newest = self.features[METADATA_VERSION][1]
        for record in records:
            if isinstance(record, FeatureLevelRecord):
                lowest, highest = self.features.get(record.name, (0, 0))
                if not lowest <= record.feature_level <= highest:
                    self.books.fail(f"n{self.node_id} supports up to {highest}, gets {record}")
            (readable,) = at_level((record,), newest)
            if readable != record:
                self.books.fail(f"n{self.node_id}, of level {newest}, cannot read {record}")
