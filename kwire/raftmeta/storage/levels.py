"""The format of metadata records at an older ``metadata.version``.

Rules: a record is written in the version that Apache Kafka writes at the finalized level, so that
software of that level can read it. Fields that this version lacks are dropped before any node acts
on them, including the controller that made the decision. Records of a kind that the level lacks are
not decided: metadata transactions and controller registrations. Supported are levels from 7
(3.3-IV3) onwards.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Final, TypeVar

from kwire.codec.messages import metadata_records as r
from kwire.codec.schema import spec_of

M = TypeVar("M", bound=r.MetadataRecord)

METADATA_VERSION: Final = "metadata.version"
NEWEST: Final = 30
"""4.3-IV0, the first level at which all records have their highest version."""
CORDONS, ELIGIBLE_REPLICAS, DIRECTORIES, MIGRATION = NEWEST, 23, 17, 8
"""The levels that introduced new record versions: 4.3-IV0, 4.0-IV1, 3.7-IV2, 3.4-IV0."""

TRANSACTIONS: Final = 13
"""The level that introduced metadata transactions: 3.6-IV1."""
CONTROLLERS: Final = 15
"""The level that introduced controller registrations: 3.7-IV0.

Apache Kafka cannot write a snapshot of metadata that contain one at an older level.
"""

_Absent = tuple[type, str, tuple[()] | None]
"""A record type, one of its fields, and that field's value at levels that lack it."""
_NO_DIRECTORIES: Final[tuple[_Absent, ...]] = (
    (r.RegisterBrokerRecord, "log_dirs", ()),
    (r.PartitionRecord, "directories", ()),
    (r.PartitionChangeRecord, "directories", None),
    (r.BrokerRegistrationChangeRecord, "log_dirs", ()),
)
_NO_ELIGIBLE_REPLICAS: Final[tuple[_Absent, ...]] = tuple(
    (kind, name, None)
    for kind in (r.PartitionRecord, r.PartitionChangeRecord)
    for name in ("eligible_leader_replicas", "last_known_elr")
)
_NO_CORDONS: Final[tuple[_Absent, ...]] = tuple(
    (kind, "cordoned_log_dirs", None)
    for kind in (r.RegisterBrokerRecord, r.BrokerRegistrationChangeRecord)
)
SCRAM: Final = 11
"""The level that introduced SCRAM credentials: 3.5-IV2."""
DELEGATION_TOKENS: Final = 14
"""The level that introduced delegation tokens: 3.6-IV2."""
ELR: Final = "eligible.leader.replicas.version"
NEEDS: Final[Mapping[str, int]] = {ELR: ELIGIBLE_REPLICAS}
"""The lowest metadata.version at which a feature may be above 0."""


def level_of(features: Mapping[str, int]) -> int:
    """Return a cluster's metadata.version level; the newest until one is written."""
    return features.get(METADATA_VERSION, NEWEST)


def describe_unsupported(
    levels: Mapping[str, int], supported: Mapping[str, tuple[int, int]]
) -> str:
    """Return why a broker that supports these ranges cannot join a cluster at these levels.

    Return "" if it can. A feature that either side lacks is at level 0 there.
    """
    for name in sorted({*levels, *supported}):
        level = levels.get(name, 0)
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            return (
                f"Unable to register because the broker does not support finalized version "
                f"{level} of {name}. The broker wants a version between {low} and {high}, "
                "inclusive."
            )
    return ""


def at_level(records: Iterable[M], level: int) -> tuple[M, ...]:
    """Return the records without the fields that the level lacks."""
    if level >= NEWEST:
        return tuple(records)
    absent = list(_NO_CORDONS)
    if level < ELIGIBLE_REPLICAS:
        absent += _NO_ELIGIBLE_REPLICAS
    if level < DIRECTORIES:
        absent += _NO_DIRECTORIES
    return tuple(_without(record, absent) for record in records)


def _without(record: M, absent: Iterable[_Absent]) -> M:
    fields = {name: value for kind, name, value in absent if isinstance(record, kind)}
    if not fields:
        return record
    narrow = copy(record)
    for name, value in fields.items():
        setattr(narrow, name, list(value) if value is not None else None)
    return narrow


def version_at(record: r.MetadataRecord, level: int) -> int:
    """Return the version in which a record is written at ``level``."""
    match record:
        case r.RegisterBrokerRecord():
            return 1 + (level >= MIGRATION) + (level >= DIRECTORIES) + (level >= CORDONS)
        case r.PartitionRecord() | r.PartitionChangeRecord():
            return (level >= DIRECTORIES) + (level >= ELIGIBLE_REPLICAS)
        case r.BrokerRegistrationChangeRecord():  # The lowest version that has the fields.
            if record.cordoned_log_dirs is not None:
                return 3
            return 2 if record.log_dirs else int(bool(record.in_controlled_shutdown))
        case _:
            return spec_of(type(record)).versions.last
