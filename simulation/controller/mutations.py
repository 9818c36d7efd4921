"""Mistakes that a controller can make, each with a name; the simulation must catch them."""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from typing import Final

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.codec.messages.broker_registration import BrokerRegistrationRequest
from kwire.raftmeta.commits import Commit
from kwire.raftmeta.controller import brokers as controller_brokers
from kwire.raftmeta.controller import configs as controller_configs
from kwire.raftmeta.controller import leader_updates, partitions
from kwire.raftmeta.controller.broker_sessions import BrokerSessions
from kwire.raftmeta.controller.leader_update_queue import LeaderUpdateQueue
from kwire.raftmeta.controller.partition_change_builder import (
    Elected,
    Election,
    PartitionChangeBuilder,
)
from kwire.raftmeta.controller.partition_index import PartitionIndex
from kwire.raftmeta.controller.partitions import IsrData
from kwire.raftmeta.controller.state import ControllerDecision, ControllerState, Effect, Outcome
from kwire.raftmeta.metadata import image_records
from kwire.raftmeta.metadata.image import BrokerImage, PartitionImage
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.types import NO_LEADER, TopicIdPartition
from simulation.controller import steps, world
from simulation.raft.mutations import Mutation

_whole_partition = image_records.partition_record
_check_isr = partitions._check_isr
_elect = PartitionChangeBuilder._elect
_retarget = partitions._retarget
_elect_for_operator = partitions._elect


def _elect_any(change: PartitionChangeBuilder) -> Elected:
    change.election = Election.UNCLEAN
    return _elect(change)


def _elect_first(change: PartitionChangeBuilder) -> Elected:
    alive = [replica for replica in change.replicas if change.acceptable(replica)]
    return Elected(alive[0]) if alive else _elect(change)


def _elect_over_leader(
    state: ControllerState, name: str, number: int, kind: int, records: list[r.MetadataRecord]
) -> Outcome:
    topic = state.image.topic(name)
    leader = NO_LEADER if topic is None else topic.partitions[number].leader
    if topic is None or kind == partitions.PREFERRED or leader == NO_LEADER:
        return _elect_for_operator(state, name, number, kind, records)
    change = state.change(
        topic.id, number, acceptable=lambda broker: broker != leader and state.is_active(broker)
    )
    change.election = Election.UNCLEAN
    record = change.build()
    if record is not None:
        records.append(record)
    return Outcome()


def _gone_if_offline(state: ControllerState, broker: int, directory: bytes) -> bool:
    return not state.has_online(broker, directory)


def _never_returns(change: PartitionChangeBuilder, broker: BrokerImage, directory: bytes) -> bool:
    return False


def _any_directory_joins(
    state: ControllerState, partition: PartitionImage, joining: Iterable[int]
) -> None:
    pass


def _every_directory(state: ControllerState, broker: int, directory: bytes) -> bool:
    return True


def _keep_eligible(
    state: ControllerState,
    existing: BrokerImage | None,
    request: BrokerRegistrationRequest,
    effects: list[Effect],
) -> Steps[tuple[list[r.MetadataRecord], bool]]:
    return leader_updates.slice_without(state, request.broker_id, effects)


def _keep_leading(
    state: ControllerState,
    existing: BrokerImage | None,
    request: BrokerRegistrationRequest,
    effects: list[Effect],
) -> Steps[tuple[list[r.MetadataRecord], bool]]:
    return [], False
    yield


def _adding_is_enough(change: PartitionChangeBuilder) -> None:
    if (change.adding or change.removing) and set(change.adding) & set(change.isr):
        removing = set(change.removing)
        change.isr = [member for member in change.isr if member not in removing] or change.isr
        change.replicas = [replica for replica in change.replicas if replica not in removing]
        change.adding, change.removing = [], []


def _drop_added(change: PartitionChangeBuilder, target: list[int]) -> None:
    partition = change.partition
    replicas = [replica for replica in partition.replicas if replica not in partition.adding]
    change.adding = sorted(set(target) - set(replicas))
    change.removing = sorted(set(replicas) - set(target))
    change.replicas = target + change.removing


def _accept_stale_epochs(
    state: ControllerState, broker: int, partition: PartitionImage | None, data: IsrData
) -> None:
    with suppress(errors.InvalidUpdateVersion, errors.FencedLeaderEpoch):
        _check_isr(state, broker, partition, data)


def _add_last_members(change: PartitionChangeBuilder) -> None:
    change.elr = list(dict.fromkeys((*change.elr, *change.partition.isr)))


def _keep_elr(
    state: ControllerState, settings: Iterable[r.ConfigRecord]
) -> Steps[list[r.MetadataRecord]]:
    yield
    return []


def _forget_elr(topic_id: bytes, number: int, partition: PartitionImage) -> r.PartitionRecord:
    record = _whole_partition(topic_id, number, partition)
    record.eligible_leader_replicas = None
    return record


def _blocks_of_this_controller() -> Callable[
    [ControllerState, AllocateProducerIdsRequest], ControllerDecision[None]
]:
    starts: dict[int, int] = {}

    def allocate(
        state: ControllerState, request: AllocateProducerIdsRequest
    ) -> ControllerDecision[None]:
        start = starts[id(state)] = starts.get(id(state), -1000) + 1000
        record = r.ProducerIdsRecord(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=start + 1000,
        )
        return ControllerDecision((record,), None)

    return allocate


def _never_stale(sessions: BrokerSessions, now: float) -> list[int]:
    return []


def _unfence_only(state: ControllerState, broker: BrokerImage) -> list[r.MetadataRecord]:
    return [
        r.BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=-1)
    ]


def _fenced_joins(
    state: ControllerState, broker: int, partition: PartitionImage | None, data: IsrData
) -> None:
    try:
        _check_isr(state, broker, partition, data)
    except errors.IneligibleReplica:
        for member in data.new_isr_with_epochs:
            registered = state.image.brokers.get(member.broker_id)
            if registered is None or member.broker_epoch not in (-1, registered.epoch):
                raise


def _earlier_incarnation_joins(
    state: ControllerState, broker: int, partition: PartitionImage | None, data: IsrData
) -> None:
    data = copy(data)
    data.new_isr_with_epochs = [
        IsrData.BrokerState(broker_id=member.broker_id, broker_epoch=-1)
        for member in data.new_isr_with_epochs
    ]
    _check_isr(state, broker, partition, data)


def _complete_without_error(commit: Commit, error: Exception | None = None) -> None:
    commit._event.set()


def _may_stop_at_once(
    state: ControllerState, broker: BrokerImage, request: BrokerHeartbeatRequest
) -> bool:
    return broker.fenced or not state.index.led_by(broker.id)


def _resume_no_leader_updates(state: ControllerState) -> None:
    pass


def _first_slice_only(
    queue: LeaderUpdateQueue, places: Iterable[TopicIdPartition]
) -> tuple[list[TopicIdPartition], deque[TopicIdPartition]]:
    return list(places)[: queue.size], deque()


def _members_stay(
    index: PartitionIndex, place: TopicIdPartition, old: PartitionImage, new: PartitionImage
) -> None:
    if old.leader == new.leader:
        return
    index._led[old.leader].pop(place)
    index._led.setdefault(new.leader, {})[place] = None


MUTATIONS: Final = (
    Mutation(
        "unclean-by-default",
        "any live replica may lead, whatever the topic's settings say",
        ((PartitionChangeBuilder, "_elect", _elect_any),),
    ),
    Mutation(
        "leader-from-replicas",
        "the first live replica leads, in sync or not",
        ((PartitionChangeBuilder, "_elect", _elect_first),),
    ),
    Mutation(
        "unclean-election-over-a-leader",
        "an operator's unclean election replaces a leader that serves",
        ((partitions, "_elect", _elect_over_leader),),
    ),
    Mutation(
        "offline-directory-leads",
        "a broker leads from a directory that is offline",
        ((ControllerState, "has_online", _every_directory),),
    ),
    Mutation(
        "failed-directory-begins-anew",
        "an unclean election gives up the log in a directory that has only failed",
        ((ControllerState, "is_missing", _gone_if_offline),),
    ),
    Mutation(
        "missing-directory-forgotten",
        "a replica without a leader loses its place in a directory that is missing",
        ((partitions, "_may_return", _never_returns),),
        invariants=(1,),
    ),
    Mutation(
        "missing-directory-joins-isr",
        "a leader may add a replica to the ISR whose directory is missing",
        ((partitions, "_check_directories", _any_directory_joins),),
    ),
    Mutation(
        "unclean-shutdown-eligible",
        "a broker that lost unflushed records stays eligible",
        ((controller_brokers, "_out_of_isr", _keep_eligible),),
    ),
    Mutation(
        "registered-and-leading",
        "a new incarnation goes on leading before it serves",
        ((controller_brokers, "_out_of_isr", _keep_leading),),
    ),
    Mutation(
        "reassigned-too-early",
        "one new replica in sync completes a reassignment",
        ((PartitionChangeBuilder, "_complete_reassignment", _adding_is_enough),),
    ),
    Mutation(
        "reassigned-twice",
        "a second reassignment drops at once the replicas that the first was adding",
        ((partitions, "_retarget", _drop_added),),
    ),
    Mutation(
        "stale-claims",
        "ISR changes with stale leader or partition epochs are accepted",
        ((partitions, "_check_isr", _accept_stale_epochs),),
    ),
    Mutation(
        "eligible-and-in-sync",
        "a replica that was in sync is eligible, also while it is in sync",
        ((PartitionChangeBuilder, "_populate_elr", _add_last_members),),
    ),
    Mutation(
        "elr-outlives-minimum",
        "eligible replicas stay eligible when min.insync.replicas changes",
        ((controller_configs, "clear_elr", _keep_elr),),
    ),
    Mutation(
        "snapshot-without-elr",
        "snapshots leave out the eligible replicas",
        ((image_records, "partition_record", _forget_elr),),
    ),
    Mutation(
        "producer-ids-again",
        "each controller begins with producer ids of its own",
        ((steps, "decide_allocate_producer_ids", _blocks_of_this_controller()),),
        invariants=(47,),
    ),
    Mutation(
        "never-fenced",
        "brokers without heartbeats are never fenced",
        ((BrokerSessions, "stale", _never_stale),),
    ),
    Mutation(
        "leaderless-after-unfencing",
        "a broker that is unfenced leaves its partitions without leader",
        ((controller_brokers, "unfencing", _unfence_only),),
    ),
    Mutation(
        "fenced-joins-isr",
        "a leader may add a broker to the ISR that is fenced, or about to stop",
        ((partitions, "_check_isr", _fenced_joins),),
        invariants=(35,),
    ),
    Mutation(
        "stale-broker-epoch",
        "a leader may add a broker to the ISR by the epoch of an earlier incarnation",
        ((partitions, "_check_isr", _earlier_incarnation_joins),),
        invariants=(35,),
    ),
    Mutation(
        "answer-after-losing-leadership",
        "a decision that was lost with the leadership is answered as if it were committed",
        ((Commit, "complete", _complete_without_error),),
        invariants=(48,),
    ),
    Mutation(
        "shutdown-before-others-know",
        "a broker stops before the others know the new leaders of its partitions",
        ((controller_brokers, "_may_stop", _may_stop_at_once),),
        invariants=(108,),
    ),
    Mutation(
        "leader-updates-end-with-leadership",
        "a new controller does not continue the large change of the last one",
        ((world, "resume_leader_updates", _resume_no_leader_updates),),
        invariants=(44,),
    ),
    Mutation(
        "first-slice-only",
        "of the partitions of a broker that leaves, only the first slice gets new leaders",
        ((LeaderUpdateQueue, "split", _first_slice_only),),
        invariants=(44,),
    ),
    Mutation(
        "index-without-members",
        "the index of partitions by broker follows leaders, but not ISR members",
        ((PartitionIndex, "_move", _members_stay),),
    ),
)
