"""Updates of leaders and ISRs after a broker came or went, in slices.

A broker may be in sync in 40,000 partitions; one decision over all of them would take longer than
followers wait for a leader of the quorum. So a decision that fences a broker also takes it out of
the first partitions, and :func:`decide_leader_updates` is repeated for the others. Until then a
fenced broker may still be the leader in the metadata: it commits nothing that other replicas miss,
since no ISR change is granted to it, and clients are not sent to it. Only an active broker becomes
the leader or joins an ISR. The remaining work follows from the image alone, so a new active
controller resumes it.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.drive import run_steps
from kwire.raftmeta.controller.leader_update_queue import INHERITED
from kwire.raftmeta.controller.state import ControllerState, Decision
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.types import NO_LEADER, TopicIdPartition


def leader_updates(
    state: ControllerState,
    partitions: Iterable[TopicIdPartition],
    *,
    remove: int = NO_LEADER,
    add: int = NO_LEADER,
    lost: int = NO_LEADER,
) -> list[MetadataRecord]:
    """Return the changes to a few partitions, made at once."""
    return run_steps(updating_leaders(state, partitions, remove=remove, add=add, lost=lost))


def updating_leaders(
    state: ControllerState,
    partitions: Iterable[TopicIdPartition],
    *,
    remove: int = NO_LEADER,
    add: int = NO_LEADER,
    lost: int = NO_LEADER,
) -> Steps[list[MetadataRecord]]:
    """Return the changes to partitions because a broker goes (``remove``) or comes (``add``).

    ``lost`` is a broker that comes back without having stopped cleanly.
    """

    def acceptable(broker: int) -> bool:
        if broker in (remove, lost):
            return False
        return broker == add or state.is_active(broker)

    records: list[MetadataRecord] = []
    for topic_id, number in partitions:
        yield
        topic = state.image.topics.get(topic_id)
        partition = None if topic is None else topic.partitions.get(number)
        if partition is None or not _is_concerned(state, partition, remove, lost, acceptable):
            continue
        change = state.change(topic_id, number, acceptable=acceptable)
        change.isr = [broker for broker in change.isr if broker not in (remove, lost)]
        change.unclean_shutdown = lost
        if not any(map(state.sessions.has_ended_early, (*partition.isr, *partition.elr))):
            change.allow_unclean()
        if (record := change.build()) is not None:
            records.append(record)
    return records


def _is_concerned(
    state: ControllerState,
    partition: PartitionImage,
    remove: int,
    lost: int,
    acceptable: Callable[[int], bool],
) -> bool:
    """Whether a partition may change: a cheap check, since most updates may be done already."""
    if lost != NO_LEADER:
        return lost in partition.isr or lost in partition.elr
    if remove != NO_LEADER:
        return partition.leader == remove or _leaves_isr(state, partition, remove)
    return any(map(acceptable, partition.replicas))


def _leaves_isr(state: ControllerState, partition: PartitionImage, broker: int) -> bool:
    """Whether a broker that is gone leaves the ISR; without ELR, the last member stays in it."""
    return broker in partition.isr and (len(partition.isr) > 1 or state.elr_enabled)


def take_out(state: ControllerState, broker: int) -> list[MetadataRecord]:
    """Return a slice of the changes that take a broker out of its partitions; queue the others."""
    partitions = state.leader_update_queue.begin(broker, state.index.with_member(broker))
    return leader_updates(state, partitions, remove=broker)


def bring_in(state: ControllerState, broker: int) -> list[MetadataRecord]:
    """Return a slice of the changes that let a broker lead where no leader is; queue the others."""
    partitions = state.leader_update_queue.begin(NO_LEADER, state.index.led_by(NO_LEADER))
    return leader_updates(state, partitions, add=broker)


def elect_for_leaderless(state: ControllerState) -> list[MetadataRecord]:
    """Return a slice of the elections for leaderless partitions, unclean where topics allow it.

    The others are queued.
    """
    partitions = state.leader_update_queue.begin(NO_LEADER, state.index.led_by(NO_LEADER))
    return leader_updates(state, partitions)


def slice_without(
    state: ControllerState,
    broker: int,
    *,
    lost: bool = False,
    where: Callable[[PartitionImage], bool] | None = None,
) -> tuple[list[MetadataRecord], bool]:
    """Return changes that take a broker out of a slice of its partitions; whether more are left.

    For a decision that is repeated until no partition is left.
    """

    def changes(key: TopicIdPartition) -> bool:
        partition = state.image.topics[key[0]].partitions[key[1]]
        leaves = lost or partition.leader == broker or _leaves_isr(state, partition, broker)
        return leaves and (where is None or where(partition))

    remaining = filter(changes, state.index.with_member(broker))
    partitions = list(islice(remaining, state.leader_update_queue.first_size))
    if lost:
        records = leader_updates(state, partitions, lost=broker)
    else:
        records = leader_updates(state, partitions, remove=broker)
    return records, bool(records) and next(remaining, None) is not None


def decide_leader_updates(
    state: ControllerState, request: None, now: float
) -> Steps[Decision[bool]]:
    """Decide the next slice; the reply says whether another is left."""
    del request, now
    broker, partitions = state.leader_update_queue.take()
    if broker == NO_LEADER:
        records = yield from updating_leaders(state, partitions)
    elif broker == INHERITED:
        records = yield from updating_leaders(
            state, (key for key in partitions if _has_clean_leader(state, key))
        )
    elif state.is_active(broker):  # It serves again, and is still in sync in the other partitions.
        state.leader_update_queue.end(broker)
        records = []
    else:
        records = yield from updating_leaders(state, partitions, remove=broker)
    return Decision(tuple(records), bool(state.leader_update_queue))


def _has_clean_leader(state: ControllerState, key: TopicIdPartition) -> bool:
    """Whether an in-sync or eligible replica can lead; unclean elections have their own timer."""
    topic = state.image.topics.get(key[0])
    partition = None if topic is None else topic.partitions.get(key[1])
    return partition is not None and any(map(state.is_active, partition.isr or partition.elr))


def resume_leader_updates(state: ControllerState) -> None:
    """Queue the changes that the previous active controller may have left undone."""
    for broker_id, broker in sorted(state.image.brokers.items()):
        if not broker.is_active:
            state.leader_update_queue.put(broker_id, state.index.with_member(broker_id))
    state.leader_update_queue.put(INHERITED, state.index.led_by(NO_LEADER))
