"""The features that a node knows, and the first records of a cluster's metadata log."""

from collections.abc import Mapping
from typing import Final

from kwire.codec.messages import metadata_records as r
from kwire.configs.resource_types import BROKER
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.storage.levels import ELR, METADATA_VERSION, NEWEST, TRANSACTIONS, level_of

SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {
    METADATA_VERSION: (7, NEWEST),
    ELR: (0, 1),
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}
"""The feature levels at which this node can serve existing data directories."""


def bootstrap_records(
    state: ControllerState, checkpoint: list[r.MetadataRecord]
) -> list[r.MetadataRecord]:
    """Return the first records of a metadata log, as one metadata transaction if possible.

    ``checkpoint`` holds the records of the bootstrap checkpoint. With ELR, min.insync.replicas
    becomes a cluster-wide setting, because brokers must not differ in it. Levels without metadata
    transactions get the same records in one batch.
    """
    records = list(checkpoint)
    levels = {x.name: x.feature_level for x in checkpoint if isinstance(x, r.FeatureLevelRecord)}
    if levels.get(ELR, 0) > 0:
        records.append(cluster_min_isr(state))
    if level_of(levels) < TRANSACTIONS:
        return records
    begin = r.BeginTransactionRecord(name="Bootstrap records")
    return [begin, *records, r.EndTransactionRecord()]


def elr_safety_records(state: ControllerState) -> list[r.ConfigRecord]:
    """Make min.insync.replicas the same on all brokers, as ELR requires."""
    name = "min.insync.replicas"
    brokers = sorted(
        (resource for kind, resource in state.image.configs if kind == BROKER and resource), key=int
    )
    records = [] if name in state.image.config(BROKER, "") else [cluster_min_isr(state)]
    return records + [
        r.ConfigRecord(resource_type=BROKER, resource_name=broker, name=name, value=None)
        for broker in brokers
        if name in state.image.config(BROKER, broker)
    ]


def cluster_min_isr(state: ControllerState) -> r.ConfigRecord:
    return r.ConfigRecord(
        resource_type=BROKER,
        resource_name="",
        name="min.insync.replicas",
        value=str(state.config.min_insync_replicas),
    )
