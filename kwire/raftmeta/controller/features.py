"""The features a node knows, and the first records of a cluster."""

from collections.abc import Mapping
from typing import Any, Final

from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.controller.state import ELR, ControllerState
from kwire.raftmeta.metadata.image import BROKER, ONE_REPLICA
from kwire.raftmeta.storage.levels import METADATA_VERSION, NEWEST

SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {
    METADATA_VERSION: (7, NEWEST),
    "eligible.leader.replicas.version": (0, 1),
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}
"""What data directories may be at for this node to serve them."""

WORKING: Final[Mapping[str, int]] = {
    "group.version": 0,
    "share.version": 0,
    "streams.version": 0,
    "transaction.version": 0,
}
"""The highest levels that features may be raised to: beyond, they are opened and do not work."""
RAISABLE: Final[Mapping[str, tuple[int, int]]] = {
    name: (low, WORKING.get(name, high)) for name, (low, high) in SUPPORTED.items()
}
"""The levels that a new cluster may begin with."""
REGISTERED: Final[Mapping[str, tuple[int, int]]] = {**SUPPORTED, ONE_REPLICA: (0, 0)}
"""What this node's broker registers. Without ``ONE_REPLICA``, partitions are replicated to it."""


def bootstrap_records(state: ControllerState, given: list[Any]) -> list[Any]:
    """The first records of a metadata log, as one metadata transaction.

    ``given`` come from the bootstrap checkpoint. With ELR the minimum of replicas in sync is
    a setting of the cluster, for brokers must not differ in it.
    """
    records: list[Any] = [r.BeginTransactionRecord(name="Bootstrap records"), *given]
    levels = {x.name: x.feature_level for x in given if isinstance(x, r.FeatureLevelRecord)}
    if levels.get(ELR, 0) > 0:
        records.append(cluster_min_isr(state))
    return [*records, r.EndTransactionRecord()]


def elr_safety_records(state: ControllerState) -> list[Any]:
    """With ELR all brokers want as many replicas in sync: what one of them said for itself goes."""
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
