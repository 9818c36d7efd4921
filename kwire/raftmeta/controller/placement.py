"""The placement of a new partition's replicas, and the check of assignments made by hand.

Partition i's replica j lies on broker (start + i + j) mod n of the serving brokers, ordered so
that racks alternate; where racks differ in size, a broker is passed over for the next one in a
rack that has fewer of the partition's replicas. Brokers that are fenced or about to stop are used
only when there are not enough others, and never first. The caller advances ``start`` from topic
to topic: with a fixed start every one-partition topic would lead on the same broker.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from kwire.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from kwire.raftmeta.metadata.image import BrokerImage, PartitionImage
from kwire.types import NO_LEADER

ALL_FENCED: Final = "All brokers are currently fenced."
ACTIVE_ONLY: Final = "All brokers are currently fenced or in controlled shutdown."


def spread(brokers: Iterable[BrokerImage]) -> list[int]:
    """Return broker ids in an order in which racks alternate."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack, []).append(broker.id)
    ordered = sorted(racks.values(), key=lambda ids: (-len(ids), ids))
    longest = max(map(len, ordered), default=0)
    return [ids[turn] for turn in range(longest) for ids in ordered if turn < len(ids)]


def place(
    brokers: Iterable[BrokerImage], *, start: int, first: int, count: int, replicas: int
) -> list[list[int]]:
    """Place the partitions ``first`` to ``first + count - 1``; equal lists may be one object."""
    usable = [broker for broker in brokers if _has_room(broker)]
    if replicas > len(usable):
        raise InvalidReplicationFactor(
            f"The target replication factor of {replicas} cannot be reached because only "
            f"{len(usable)} broker(s) are registered or some brokers have all their log "
            "directories cordoned."
        )
    if replicas > 1:
        usable = _replicating(usable, replicas)
    serving = spread(broker for broker in usable if broker.is_active)
    if not serving:
        leaving = any(not broker.fenced for broker in usable)
        raise InvalidReplicationFactor(ACTIVE_ONLY if leaving else ALL_FENCED)
    spare = spread(broker for broker in usable if not broker.is_active)
    racks = {broker.id: broker.rack for broker in usable}
    # Stripes repeat after as many partitions as there are brokers.
    stripes: dict[tuple[int, int], list[int]] = {}
    placed = []
    for turn in range(start + first, start + first + count):
        stripe = turn % len(serving), turn % max(len(spare), 1)
        if stripe not in stripes:
            chosen = stripes[stripe] = []
            _choose(chosen, _rotate(serving, turn), racks, min(replicas, len(serving)))
            _choose(chosen, _rotate(spare, turn), racks, replicas)
        placed.append(stripes[stripe])
    return placed


def check_assignment(
    registered: Mapping[int, BrokerImage], brokers: Iterable[int], replicas: int | None = None
) -> None:
    """Validate replicas that a client chose."""
    chosen = sorted(brokers)
    begin = "The manual partition assignment includes"
    if not chosen:
        raise InvalidReplicaAssignment(f"{begin} an empty replica list.")
    for place_, broker in enumerate(chosen):
        if broker not in registered:
            raise InvalidReplicaAssignment(
                f"{begin} broker {broker}, but no such broker is registered."
            )
        if place_ and broker == chosen[place_ - 1]:
            raise InvalidReplicaAssignment(f"{begin} the broker {broker} more than once.")
    _check_replicas(registered[broker] for broker in chosen)
    if replicas is not None and len(chosen) != replicas:
        raise InvalidReplicaAssignment(
            f"{begin} a partition with {len(chosen)} replica(s), but this is not consistent with "
            f"previous partitions, which have {replicas} replica(s)."
        )


def _check_replicas(brokers: Iterable[BrokerImage]) -> None:
    """Refuse replicas that would never be copied: acknowledged records could be lost with a broker.

    Only this check and the choice of brokers in :func:`place` prevent such partitions. A broker
    declares by a feature of its registration that it does not copy.
    """
    chosen = list(brokers)
    alone = sorted(broker.id for broker in chosen if not broker.replicates)
    if alone and len(chosen) > 1:
        raise InvalidReplicationFactor(
            f"{_not_copied(alone)} so a partition on them can have one replica only."
        )


def check_copies(
    registered: Mapping[int, BrokerImage], partition: PartitionImage, added: Iterable[int]
) -> None:
    """Refuse to add replicas that no broker could copy.

    Their own brokers copy them from the leader, which reports to the controller when they are in
    sync. If there is no leader, one of the in-sync replicas will be the leader.
    """
    if partition.leader != NO_LEADER:
        sources = [partition.leader]
    else:
        sources = [*partition.isr, *partition.elr] or list(partition.replicas)
    alone = {broker for broker in added if not registered[broker].replicates}
    if not any(broker in registered and registered[broker].replicates for broker in sources):
        alone.update(broker for broker in sources if broker in registered)
    if alone:
        raise InvalidReplicaAssignment(
            f"{_not_copied(sorted(alone))} so the partition cannot be moved."
        )


def _replicating(usable: list[BrokerImage], replicas: int) -> list[BrokerImage]:
    """Return the brokers that a partition with several replicas may lie on."""
    replicating = [broker for broker in usable if broker.replicates]
    if replicas > len(replicating):
        alone = sorted(broker.id for broker in usable if not broker.replicates)
        raise InvalidReplicationFactor(
            f"{_not_copied(alone)} so use a replication factor of 1 (for __consumer_offsets: "
            "offsets.topic.replication.factor=1)."
        )
    return replicating


def _not_copied(brokers: list[int]) -> str:
    names = ", ".join(map(str, brokers))
    return f"kwire's broker(s) {names} do not copy partitions from other brokers yet,"


def _rotate(brokers: list[int], turn: int) -> list[int]:
    at = turn % len(brokers) if brokers else 0
    return brokers[at:] + brokers[:at]


def _choose(
    chosen: list[int], brokers: list[int], racks: Mapping[int, str | None], size: int
) -> None:
    """Append the next brokers to ``chosen``, from the racks with the fewest replicas so far."""
    counts = Counter(racks[broker] for broker in chosen)
    while len(chosen) < size:
        broker = min(brokers, key=lambda candidate: counts[racks[candidate]])
        brokers.remove(broker)
        chosen.append(broker)
        counts[racks[broker]] += 1


def _has_room(broker: BrokerImage) -> bool:
    """Whether a directory of the broker is open to new partitions (KIP-1066)."""
    cordoned = broker.cordoned_log_dirs
    return not (cordoned and broker.log_dirs and set(broker.log_dirs) <= set(cordoned))
