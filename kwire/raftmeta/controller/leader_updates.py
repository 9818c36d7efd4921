"""Updates of leaders and ISRs, in slices, after a broker came or went.

A broker may be in sync in 40,000 partitions; a single decision over all of them would take longer
than followers wait for the quorum's leader. So a decision that fences a broker also removes it from
the first partitions, and :func:`decide_leader_updates` is repeated for the rest. Until then, the
metadata may still name a fenced broker as leader. That leader cannot commit anything that other
replicas lack, because the controller grants it no ISR change, and clients are not directed to it.
Only an active broker becomes leader or joins an ISR. The remaining work can be derived from the
image alone, so a new active controller resumes it.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.drive import run_steps
from kwire.raftmeta.controller.leader_update_queue import INHERITED
from kwire.raftmeta.controller.state import ControllerDecision, ControllerState, Effect
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.raftmeta.metadata.image_loader import STEP_RECORDS, Steps
from kwire.types import NO_LEADER, TopicIdPartition

_CHECKED_AT_ONCE: Final = 10_000
"""The most checked partitions that one effect puts behind the others: about 1 ms."""


def leader_updates(
    state: ControllerState,
    partitions: Iterable[TopicIdPartition],
    *,
    remove: int = NO_LEADER,
    add: int = NO_LEADER,
    lost: int = NO_LEADER,
    early: bool = False,
) -> list[MetadataRecord]:
    """Return the changes to a few partitions, without pausing."""
    return run_steps(
        updating_leaders(state, partitions, remove=remove, add=add, lost=lost, early=early)
    )


def updating_leaders(
    state: ControllerState,
    partitions: Iterable[TopicIdPartition],
    *,
    remove: int = NO_LEADER,
    add: int = NO_LEADER,
    lost: int = NO_LEADER,
    early: bool = False,
) -> Steps[list[MetadataRecord]]:
    """Return the changes to partitions because a broker leaves (``remove``) or returns (``add``).

    ``lost`` is a broker that returns without having stopped cleanly. ``early``: the broker leaves
    before its session ends.
    """

    def acceptable(broker: int) -> bool:
        if broker in (remove, lost):
            return False
        return broker == add or state.is_active(broker)

    def has_ended_early(broker: int) -> bool:
        return (early and broker == remove) or state.sessions.has_ended_early(broker, state.now)

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
        if not any(map(has_ended_early, (*partition.isr, *partition.elr))):
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
    """True if a partition may change: a cheap check, because most may already be up to date."""
    if lost != NO_LEADER:
        return lost in partition.isr or lost in partition.elr
    if remove != NO_LEADER:
        return partition.leader == remove or _leaves_isr(
            partition, remove, elr_enabled=state.elr_enabled
        )
    return any(map(acceptable, partition.replicas))


def _leaves_isr(partition: PartitionImage, broker: int, *, elr_enabled: bool) -> bool:
    """True if a departed broker leaves the ISR; without ELR, the last member stays in it."""
    return broker in partition.isr and (len(partition.isr) > 1 or elr_enabled)


def _first_slice(
    state: ControllerState,
    broker: int,
    partitions: Iterable[TopicIdPartition],
    effects: list[Effect],
) -> list[TopicIdPartition]:
    """Return the first slice of a broker's partitions; an effect queues the rest in their place."""
    queue = state.leader_update_queue
    first, rest = queue.split(partitions)
    effects.append(partial(queue.put, broker, rest))
    return first


def take_out(
    state: ControllerState, broker: int, effects: list[Effect], *, early: bool = False
) -> list[MetadataRecord]:
    """Return the first slice of changes that remove a broker from partitions; queue the rest."""
    partitions = _first_slice(state, broker, state.index.with_member(broker), effects)
    return leader_updates(state, partitions, remove=broker, early=early)


def bring_in(state: ControllerState, broker: int, effects: list[Effect]) -> list[MetadataRecord]:
    """Return the first slice of changes that give leaderless partitions a leader; queue the rest.

    ``broker`` is available again, so it may lead partitions of which it has a replica.
    """
    partitions = _first_slice(state, NO_LEADER, state.index.led_by(NO_LEADER), effects)
    return leader_updates(state, partitions, add=broker)


def elect_for_leaderless(state: ControllerState, effects: list[Effect]) -> list[MetadataRecord]:
    """Return the first slice of elections for leaderless partitions; queue the rest.

    An election may be unclean if the topic allows it.
    """
    partitions = _first_slice(state, NO_LEADER, state.index.led_by(NO_LEADER), effects)
    return leader_updates(state, partitions)


def slice_without(
    state: ControllerState,
    broker: int,
    effects: list[Effect],
    *,
    is_lost: Callable[[PartitionImage], bool] | None = None,
    where: Callable[[PartitionImage], bool] | None = None,
) -> Steps[tuple[list[MetadataRecord], bool]]:
    """Return changes that remove a broker from a slice of its partitions, and whether more remain.

    ``is_lost``: the broker may have lost records of the partition, and is no longer eligible. The
    decision that calls this is repeated until none remain. An effect puts the checked partitions
    behind the others, so that the next slice does not check them again. The last slice checks all
    of the broker's partitions once more, so it takes many steps.
    """
    checked: list[TopicIdPartition] = []
    lost: list[TopicIdPartition] = []
    others: list[TopicIdPartition] = []
    topics, elr_enabled, is_more_left = state.image.topics, state.elr_enabled, False
    for key in state.index.with_member(broker):
        if len(checked) % STEP_RECORDS == STEP_RECORDS - 1:
            yield
        partition = topics[key[0]].partitions[key[1]]
        is_in_lost = is_lost is not None and is_lost(partition)
        if (
            is_in_lost
            or partition.leader == broker
            or _leaves_isr(partition, broker, elr_enabled=elr_enabled)
        ) and (where is None or where(partition)):
            if len(lost) + len(others) == state.leader_update_queue.first_size:
                is_more_left = True
                break
            (lost if is_in_lost else others).append(key)
        checked.append(key)
        if len(checked) >= _CHECKED_AT_ONCE and (lost or others):
            is_more_left = True
            break
    records = leader_updates(state, lost, lost=broker) if lost else []
    records += leader_updates(state, others, remove=broker)
    is_more_left = is_more_left and bool(records)
    if is_more_left:
        effects.append(partial(state.index.put_behind, broker, checked))
    return records, is_more_left


def decide_leader_updates(state: ControllerState, request: None) -> Steps[ControllerDecision[bool]]:
    """Decide the next slice; the reply says whether more remain."""
    del request
    queue = state.leader_update_queue
    broker, partitions, has_others, is_last = queue.next_slice()
    effect = partial(queue.drop, broker, len(partitions))
    if broker == NO_LEADER:
        records = yield from updating_leaders(state, partitions)
    elif broker == INHERITED:
        records = yield from updating_leaders(
            state, (key for key in partitions if _has_clean_leader(state, key))
        )
    elif state.is_active(broker):  # It serves again, still in sync in its other partitions.
        effect, is_last = partial(queue.end, broker), True
        records = []
    else:
        records = yield from updating_leaders(state, partitions, remove=broker)
    return ControllerDecision(tuple(records), has_others or not is_last, effects=(effect,))


def _has_clean_leader(state: ControllerState, key: TopicIdPartition) -> bool:
    """True if an in-sync or eligible replica can lead; unclean elections have their own timer."""
    topic = state.image.topics.get(key[0])
    partition = None if topic is None else topic.partitions.get(key[1])
    return partition is not None and any(map(state.is_active, partition.isr or partition.elr))


def resume_leader_updates(state: ControllerState) -> None:
    """Queue the changes that the previous active controller may not have finished."""
    for broker_id, broker in sorted(state.image.brokers.items()):
        if not broker.is_active:
            state.leader_update_queue.put(broker_id, state.index.with_member(broker_id))
    state.leader_update_queue.put(INHERITED, state.index.led_by(NO_LEADER))
