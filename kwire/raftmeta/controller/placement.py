"""Places the replicas of new partitions, and checks assignments chosen by clients.

Replica j of partition i is placed on broker (start + i + j) mod n of the serving brokers, ordered
so that racks alternate. If racks differ in size, a broker is skipped in favour of the next one in a
rack that holds fewer of the partition's replicas. Fenced or stopping brokers are used only when
there are not enough others, and never first. The caller advances ``start`` from topic to topic;
with a fixed start, the same broker would lead every one-partition topic.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from kwire.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from kwire.raftmeta.metadata.image import BrokerImage

ALL_FENCED: Final = "All brokers are currently fenced, or have all their log directories cordoned."


def spread(brokers: Iterable[BrokerImage]) -> list[int]:
    """Return broker ids ordered so that racks alternate."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack, []).append(broker.id)
    ordered = sorted(racks.values(), key=lambda ids: (-len(ids), ids))
    longest = max(map(len, ordered), default=0)
    return [ids[turn] for turn in range(longest) for ids in ordered if turn < len(ids)]


def place_replicas(
    brokers: Iterable[BrokerImage], *, start: int, first: int, count: int, replicas: int
) -> list[list[int]]:
    """Place partitions ``first`` to ``first + count - 1``; equal lists may be the same object.

    If all brokers that are not fenced are stopping, no partition gets an active broker.
    """
    usable = [broker for broker in brokers if _has_room(broker)]
    if all(broker.fenced for broker in usable):
        raise InvalidReplicationFactor(ALL_FENCED)
    if replicas > len(usable):
        raise InvalidReplicationFactor(
            f"The target replication factor of {replicas} cannot be reached because only "
            f"{len(usable)} broker(s) are registered or some brokers have all their log "
            "directories cordoned."
        )
    active_ids = spread(broker for broker in usable if broker.is_active)
    inactive_ids = spread(broker for broker in usable if not broker.is_active)
    racks = {broker.id: broker.rack for broker in usable}
    # Stripes repeat after as many partitions as there are brokers.
    stripes: dict[tuple[int, int], list[int]] = {}
    replica_lists = []
    for turn in range(start + first, start + first + count):
        stripe = turn % max(len(active_ids), 1), turn % max(len(inactive_ids), 1)
        if stripe not in stripes:
            replica_ids = stripes[stripe] = []
            _add_replicas(
                replica_ids, _rotate(active_ids, turn), racks, min(replicas, len(active_ids))
            )
            _add_replicas(replica_ids, _rotate(inactive_ids, turn), racks, replicas)
        replica_lists.append(stripes[stripe])
    return replica_lists


def check_assignment(
    images: Mapping[int, BrokerImage], brokers: Iterable[int], replicas: int | None = None
) -> None:
    """Validate an assignment of replicas that a client chose."""
    replica_ids = sorted(brokers)
    prefix = "The manual partition assignment includes"
    if not replica_ids:
        raise InvalidReplicaAssignment(f"{prefix} an empty replica list.")
    for index, broker in enumerate(replica_ids):
        if broker not in images:
            raise InvalidReplicaAssignment(
                f"{prefix} broker {broker}, but no such broker is registered."
            )
        if index and broker == replica_ids[index - 1]:
            raise InvalidReplicaAssignment(f"{prefix} the broker {broker} more than once.")
    if replicas is not None and len(replica_ids) != replicas:
        raise InvalidReplicaAssignment(
            f"{prefix} a partition with {len(replica_ids)} replica(s), but this is not consistent "
            f"with previous partitions, which have {replicas} replica(s)."
        )


def _rotate(brokers: list[int], turn: int) -> list[int]:
    at = turn % len(brokers) if brokers else 0
    return brokers[at:] + brokers[:at]


def _add_replicas(
    replica_ids: list[int], brokers: list[int], racks: Mapping[int, str | None], size: int
) -> None:
    """Add the next brokers to ``replica_ids``, from the racks with the fewest replicas so far."""
    counts = Counter(racks[broker] for broker in replica_ids)
    while len(replica_ids) < size:
        broker = min(brokers, key=lambda candidate: counts[racks[candidate]])
        brokers.remove(broker)
        replica_ids.append(broker)
        counts[racks[broker]] += 1


def _has_room(broker: BrokerImage) -> bool:
    """Return whether the broker has a directory open to new partitions (KIP-1066)."""
    cordoned = broker.cordoned_log_dirs
    return not (cordoned and broker.log_dirs and set(broker.log_dirs) <= set(cordoned))
