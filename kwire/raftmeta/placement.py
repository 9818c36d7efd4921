"""Where the replicas of a new partition go.

Partition i's replica j lies on broker (start + i + j) mod n of the serving brokers, ordered so
that racks alternate; where racks differ in size, a broker is passed over for the next one in a
rack that has fewer of the partition's replicas. Brokers that do not serve just now are used only
when there are not enough others, and never first. The caller moves ``start`` on from topic to
topic: with a fixed start every one-partition topic would lead on the same broker.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from kwire.errors import InvalidReplicationFactor
from kwire.raftmeta.image import BrokerImage


def spread(brokers: Iterable[BrokerImage]) -> list[int]:
    """Broker ids in an order in which racks alternate."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack, []).append(broker.id)
    ordered = sorted(racks.values(), key=lambda ids: (-len(ids), ids))
    longest = max(map(len, ordered), default=0)
    return [ids[turn] for turn in range(longest) for ids in ordered if turn < len(ids)]


def place(
    brokers: Iterable[BrokerImage], *, start: int, first: int, count: int, replicas: int
) -> list[list[int]]:
    """Replicas of the partitions ``first`` to ``first + count - 1``."""
    usable = [broker for broker in brokers if _has_room(broker)]
    if replicas > len(usable):
        raise InvalidReplicationFactor(
            f"The target replication factor of {replicas} cannot be reached because only "
            f"{len(usable)} broker(s) are registered or some brokers have all their log "
            "directories cordoned."
        )
    serving = spread(broker for broker in usable if not broker.fenced)
    if not serving:
        raise InvalidReplicationFactor("All brokers are currently fenced.")
    spare = spread(broker for broker in usable if broker.fenced)
    racks = {broker.id: broker.rack for broker in usable}
    placed = []
    for turn in range(start + first, start + first + count):
        chosen: list[int] = []
        _choose(chosen, _rotated(serving, turn), racks, min(replicas, len(serving)))
        _choose(chosen, _rotated(spare, turn), racks, replicas)
        placed.append(chosen)
    return placed


def _rotated(brokers: list[int], turn: int) -> list[int]:
    at = turn % len(brokers) if brokers else 0
    return brokers[at:] + brokers[:at]


def _choose(
    chosen: list[int], brokers: list[int], racks: Mapping[int, str | None], size: int
) -> None:
    """Take the next broker, of the racks that have the fewest replicas so far."""
    held = Counter(racks[broker] for broker in chosen)
    while len(chosen) < size:
        broker = min(brokers, key=lambda one: held[racks[one]])
        brokers.remove(broker)
        chosen.append(broker)
        held[racks[broker]] += 1


def _has_room(broker: BrokerImage) -> bool:
    """Whether not all of its directories are closed to new partitions (KIP-1066)."""
    cordoned = broker.cordoned_log_dirs
    return not (cordoned and broker.log_dirs and set(broker.log_dirs) <= set(cordoned))
