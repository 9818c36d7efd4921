"""Changes of the cluster as log lines of the active controller.

Rules: pure; many changes of a kind at once are one line that counts them.
"""

from collections.abc import Iterator
from typing import Final

from kwire.raftmeta.metadata.image import BrokerImage, PartitionImage
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.types import NO_LEADER

NAMED_AT_MOST: Final = 10


def change_lines(delta: MetadataDelta) -> Iterator[str]:
    """Yield lines on features, brokers and topics."""
    for name in sorted(delta.features):
        yield f"feature name={name} level={delta.after.features.get(name, 0)}"
    yield from _brokers(delta)
    created = [delta.after.topics[topic_id] for topic_id in delta.created_topics]
    yield from _some("topics created", [(t.name, len(t.partitions)) for t in created])
    deleted = delta.deleted_topics.values()
    yield from _some("topics deleted", [(t.name, len(t.partitions)) for t in deleted])


def unclean_elections(delta: MetadataDelta) -> list[str]:
    """Return a line for each leader that was elected though it may lack committed records."""
    lines = []
    for topic_id, numbers in delta.partitions.items():
        before, after = delta.before.topics.get(topic_id), delta.after.topics[topic_id]
        if before is None:
            continue
        for number in sorted(numbers):
            old, new = before.partitions.get(number), after.partitions[number]
            if (
                old is None
                or new.leader in (NO_LEADER, old.leader)
                or new.leader in (*old.isr, *old.elr)
                or _has_completed_reassignment(old, new)
            ):
                continue
            lines.append(
                f"unclean leader elected partition={after.name}-{number} leader={new.leader} "
                f"former_isr={','.join(map(str, old.isr))}: records that it lacks are lost"
            )
    return lines


def _has_completed_reassignment(old: PartitionImage, new: PartitionImage) -> bool:
    """Whether a new replica leads because it joined the ISR, which completed its reassignment.

    Both are one record, so no metadata has the replica in the ISR before it leads.
    """
    return new.leader in old.adding and not new.is_reassigning


def _brokers(delta: MetadataDelta) -> Iterator[str]:
    for broker_id in sorted(delta.brokers):
        before = _state(delta.before.brokers.get(broker_id))
        after = _state(delta.after.brokers.get(broker_id))
        if before != after:
            yield f"broker id={broker_id} is {after}, was {before}"


def _state(broker: BrokerImage | None) -> str:
    if broker is None:
        return "unregistered"
    if broker.fenced:
        return "fenced"
    return "leaving" if broker.in_controlled_shutdown else "serving"


def _some(what: str, topics: list[tuple[str, int]]) -> Iterator[str]:
    if len(topics) > NAMED_AT_MOST:
        yield f"{what} count={len(topics)} partitions={sum(count for _, count in topics)}"
        return
    for name, partitions in sorted(topics):
        yield f"{what} name={name} partitions={partitions}"
