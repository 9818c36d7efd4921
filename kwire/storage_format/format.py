"""The files that ``kwire format`` writes into an empty log directory.

Pure: files are returned as bytes by name. Rules: every directory gets a ``meta.properties`` with
its own id. The metadata directory also gets the bootstrap records and, with dynamic voters, the
checkpoint 0-0 that lists the first voters. A feature is written only if it works.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from kwire.codec.messages.metadata_records import FeatureLevelRecord, MetadataRecord
from kwire.log.formats.checkpoints import MetaProperties
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.levels import ELR, METADATA_VERSION, NEWEST
from kwire.raftmeta.storage.names import METADATA_DIRECTORY, checkpoint_name
from kwire.raftmeta.storage.records import SnapshotReader, snapshot_chunks

BOOTSTRAP: Final = "bootstrap.checkpoint"
KRAFT_VERSION: Final = "kraft.version"
GROUP_VERSION: Final = "group.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"
TRANSACTION_VERSION: Final = "transaction.version"
DEFAULT_FEATURES: Final[Mapping[str, int]] = {
    METADATA_VERSION: NEWEST,
    ELR: 1,
    GROUP_VERSION: 1,
    SHARE_VERSION: 1,
    STREAMS_VERSION: 1,
    TRANSACTION_VERSION: 2,
}
"""All other features stay at 0, and level 0 is not written."""

_START: Final = SnapshotId(0, 0)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Format:
    """The parameters of formatting a node's directories."""

    cluster_id: str
    node_id: int
    voters: VoterSet | None = None
    """The initial dynamic voters (kraft.version 1); None if the voters are configured."""
    features: Mapping[str, int] = DEFAULT_FEATURES
    extra: tuple[MetadataRecord, ...] = ()
    """Further bootstrap records, such as SCRAM users."""


def meta_properties(parameters: Format, directory_id: bytes) -> bytes:
    """Return the ``meta.properties``, which identifies a directory's owner."""
    return MetaProperties(parameters.cluster_id, parameters.node_id, directory_id).to_text()


def metadata_files(parameters: Format, now_ms: int) -> dict[str, bytes]:
    """Return the other files of the metadata directory, by path."""
    files = {BOOTSTRAP: bootstrap_checkpoint(parameters, now_ms)}
    if parameters.voters is not None:
        chunks = snapshot_chunks(
            _START,
            [],
            voters=parameters.voters,
            kraft_version=1,
            last_timestamp_ms=0,
            now_ms=now_ms,
        )
        files[f"{METADATA_DIRECTORY}/{checkpoint_name(_START)}"] = b"".join(chunks)
    return files


def bootstrap_checkpoint(parameters: Format, now_ms: int) -> bytes:
    """Return the records with which the first controller begins, in the form of a snapshot."""
    chunks = snapshot_chunks(
        _START,
        [[*feature_records(parameters.features), *parameters.extra]],
        voters=VoterSet(),
        kraft_version=0,
        last_timestamp_ms=0,
        now_ms=now_ms,
    )
    return b"".join(chunks)


def feature_records(features: Mapping[str, int]) -> list[MetadataRecord]:
    """Return feature levels in Kafka's order: metadata.version first, then by name."""
    names = sorted(features, key=lambda name: (name != METADATA_VERSION, name))
    return [
        FeatureLevelRecord(name=name, feature_level=features[name])
        for name in names
        if features[name] > 0 and name != KRAFT_VERSION
    ]


def read_bootstrap(data: bytes) -> tuple[MetadataRecord, ...]:
    """Return the records in a ``bootstrap.checkpoint``."""
    return tuple(SnapshotReader(_START, data).records())
