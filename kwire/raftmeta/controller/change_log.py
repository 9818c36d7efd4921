"""Log lines of the active controller about changes of the cluster.

Rules: pure; many simultaneous changes of one kind become a single line with their count.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kwire.raftmeta.metadata.image import BrokerImage, PartitionImage
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.types import NO_LEADER

NAMED_AT_MOST: Final = 10


def feature_lines(delta: MetadataDelta) -> Iterator[str]:
    """Yield log lines about the levels of features."""
    for name in sorted(delta.features):
        yield f"feature name={name} level={delta.after.features.get(name, 0)}"


def change_lines(delta: MetadataDelta) -> Iterator[str]:
    """Yield log lines about brokers and topics."""
    yield from _brokers(delta)
    created = [delta.after.topics[topic_id] for topic_id in delta.created_topics]
    yield from _some("topics created", [(t.name, len(t.partitions)) for t in created])
    deleted = delta.deleted_topics.values()
    yield from _some("topics deleted", [(t.name, len(t.partitions)) for t in deleted])


class Election(NamedTuple):
    """The election of a leader that was neither in sync nor eligible."""

    partition: str
    old: PartitionImage
    new: PartitionImage

    @property
    def is_of_last_known_leader(self) -> bool:
        """True if no replica is known to have stopped cleanly, and the last leader leads (KIP-966).

        No other replica has more records; this replica lacks at most the records that its disk has
        lost. One that begins anew, because its log directory is missing, has changed the directory.
        """
        leader = self.new.leader
        has_its_log = self.new.directory(leader) == self.old.directory(leader)
        return leader in self.old.last_known_elr and has_its_log


def unclean_elections(delta: MetadataDelta) -> list[Election]:
    """Return each election of a leader that may lack committed records."""
    elections = []
    for topic_id, numbers in delta.partitions.items():
        before, after = delta.before.topics.get(topic_id), delta.after.topics[topic_id]
        if before is None:
            continue
        for number in sorted(numbers):
            old, new = before.partitions.get(number), after.partitions[number]
            if (
                old is None
                or new.leader in (NO_LEADER, old.leader)
                or not _is_alone(old, new)
                or _has_completed_reassignment(old, new)
            ):
                continue
            elections.append(Election(f"{after.name}-{number}", old, new))
    return elections


def warnings(elections: list[Election]) -> Iterator[str]:
    """Yield warnings about unclean elections; last known leaders share one line with a count."""
    count = sum(election.is_of_last_known_leader for election in elections)
    if count:
        yield (
            "no replica is known to have stopped cleanly, the last leaders lead again "
            f"partitions={count}"
        )
    for election in elections:
        if not election.is_of_last_known_leader:
            isr = ",".join(map(str, election.old.isr))
            yield (
                f"unclean leader elected partition={election.partition} "
                f"leader={election.new.leader} former_isr={isr}: records that it lacks are lost"
            )


def _is_alone(old: PartitionImage, new: PartitionImage) -> bool:
    """True if no replica that was in sync or eligible before is in the ISR now.

    An unclean election leaves the leader alone in the ISR. A delta can have several changes, so a
    leader outside the old ISR may have joined it before its election.
    """
    return not {*old.isr, *old.elr}.intersection(new.isr)


def _has_completed_reassignment(old: PartitionImage, new: PartitionImage) -> bool:
    """True if a new replica leads because it joined the ISR and so completed a reassignment.

    Both changes are in one record, so no metadata shows the replica in the ISR before it leads.
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
