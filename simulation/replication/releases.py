"""The releases of the simulated nodes, and the check that no node gets what its release lacks.

A release is the range of levels of each feature that it supports. Nodes of an old release are
restarted with the new one while the cluster runs; levels are raised meanwhile and afterwards.
"""

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final

from kwire import attrs
from kwire.codec.messages.metadata_records import FeatureLevelRecord, MetadataRecord
from kwire.raftmeta.controller.feature_updates import KRAFT_VERSION
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.storage.levels import (
    DIRECTORIES,
    ELIGIBLE_REPLICAS,
    ELR,
    METADATA_VERSION,
    NEWEST,
    at_level,
)
from kwire.raftmeta.storage.records import CommittedBatch, SnapshotReader
from kwire.storage_format.format import TRANSACTION_VERSION
from simulation.replication.metadata_checks import Books

Features = Mapping[str, tuple[int, int]]
"""The lowest and the highest supported level of each feature."""
RAISED: Final = (METADATA_VERSION, ELR, TRANSACTION_VERSION, KRAFT_VERSION)
"""The features whose levels a run raises."""
_OLDEST: Final = 14
_LEVELS: Final = (*(_OLDEST,) * 5, DIRECTORIES, 19, 22, ELIGIBLE_REPLICAS, 25, 29)
"""The levels of metadata.version that old clusters begin with."""


@attrs.frozen
class Release:
    """The levels that a cluster begins with, and the features of the release it runs."""

    levels: Mapping[str, int]
    features: Features

    @classmethod
    def newest(cls, random: Random) -> "Release":
        """Return the newest release with all levels at their newest, but perhaps without ELR."""
        elr = int(random.random() < 0.7)
        levels = {METADATA_VERSION: NEWEST, TRANSACTION_VERSION: 2, ELR: elr}
        return cls(levels, SUPPORTED)

    @classmethod
    def old(cls, random: Random) -> "Release":
        """Return an older release, which may support more than the levels that it begins with."""
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
        return cls(levels, features)

    @property
    def has_directories(self) -> bool:
        """Whether the metadata name the log directory of a replica (KIP-858)."""
        return self.levels[METADATA_VERSION] >= DIRECTORIES


@attrs.define(eq=False)
class ReleaseWatch:
    """The listener that checks that a process can read the metadata that it gets."""

    books: Books
    node_id: int
    features: Features

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        for batch in batches:
            self._check(batch.records)

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self._check(reader.records())

    def on_leadership(self, leader: LeaderAndEpoch) -> None:
        """Do nothing: a leadership is no metadata."""

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
