"""Mistakes that a controller can make, each with a name; the simulation must catch them."""

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any, Final

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.commits import Commit
from kwire.raftmeta.controller import brokers as controller_brokers
from kwire.raftmeta.controller import configs as controller_configs
from kwire.raftmeta.controller import leaders as controller_leaders
from kwire.raftmeta.controller import partitions
from kwire.raftmeta.controller.broker_sessions import BrokerSessions
from kwire.raftmeta.controller.partition_change import Elected, Election, PartitionChange
from kwire.raftmeta.controller.partition_index import PartitionIndex
from kwire.raftmeta.controller.state import ControllerState, Decision, Outcome
from kwire.raftmeta.controller.sweeps import Sweeps
from kwire.raftmeta.metadata import image_records
from kwire.raftmeta.metadata.image import NO_LEADER, PartitionImage
from kwire.simulation import controller_steps, controller_world
from kwire.simulation.raft_mutations import Mutation

_whole_partition = image_records.partition_record
_check_isr = partitions._check_isr
_elect = PartitionChange._elect
_retarget = partitions._retarget
_elect_for_operator = partitions._elect


def _anyone(change: PartitionChange) -> Elected:
    change.election = Election.UNCLEAN
    return _elect(change)


def _first_alive(change: PartitionChange) -> Elected:
    alive = [one for one in change.replicas if change.acceptable(one)]
    return Elected(alive[0]) if alive else _elect(change)


def _elect_over_leader(
    state: ControllerState, name: str, number: int, kind: int, records: list[Any]
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


def _every_directory(state: ControllerState, broker: int, directory: bytes) -> bool:
    return True


def _nothing_lost(state: ControllerState, existing: Any, request: Any) -> tuple[list[Any], bool]:
    return controller_leaders.slice_without(state, request.broker_id)


def _stay_in_office(state: ControllerState, existing: Any, request: Any) -> tuple[list[Any], bool]:
    return [], False


def _adding_is_enough(change: PartitionChange) -> None:
    if (change.adding or change.removing) and set(change.adding) & set(change.isr):
        gone = change.removing
        change.isr = [one for one in change.isr if one not in gone] or change.isr
        change.replicas = [one for one in change.replicas if one not in gone]
        change.adding, change.removing = [], []


def _drop_what_was_added(change: Any, wanted: list[int]) -> None:
    held = [one for one in change.partition.replicas if one not in change.partition.adding]
    change.adding = sorted(set(wanted) - set(held))
    change.removing = sorted(set(held) - set(wanted))
    change.replicas = wanted + change.removing


def _old_claims_count(state: Any, broker: int, partition: Any, data: Any) -> None:
    with suppress(errors.InvalidUpdateVersion, errors.FencedLeaderEpoch):
        _check_isr(state, broker, partition, data)


def _no_last_members(image: PartitionChange) -> None:
    image.elr = list(dict.fromkeys((*image.elr, *image.partition.isr)))


def _remember(state: ControllerState, settings: Any) -> list[Any]:
    return []


def _forget_elr(topic_id: bytes, number: int, partition: PartitionImage) -> r.PartitionRecord:
    record = _whole_partition(topic_id, number, partition)
    record.eligible_leader_replicas = None
    return record


def _blocks_of_this_controller() -> Callable[..., Any]:
    given: dict[int, int] = {}

    def allocate(state: ControllerState, request: Any, now: float) -> Decision[Any]:
        start = given[id(state)] = given.get(id(state), -1000) + 1000
        record = r.ProducerIdsRecord(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=start + 1000,
        )
        return Decision((record,), None)

    return allocate


def _never_stale(sessions: BrokerSessions, now: float) -> list[int]:
    return []


def _unfence_only(state: ControllerState, broker: Any) -> list[Any]:
    return [
        r.BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=-1)
    ]


def _fenced_joins(state: Any, broker: int, partition: Any, data: Any) -> None:
    try:
        _check_isr(state, broker, partition, data)
    except errors.IneligibleReplica:
        for member in data.new_isr_with_epochs:
            registered = state.image.brokers.get(member.broker_id)
            if registered is None or member.broker_epoch not in (-1, registered.epoch):
                raise


def _former_life_joins(state: Any, broker: int, partition: Any, data: Any) -> None:
    data = copy(data)
    member = type(data).BrokerState
    data.new_isr_with_epochs = [
        member(broker_id=one.broker_id, broker_epoch=-1) for one in data.new_isr_with_epochs
    ]
    _check_isr(state, broker, partition, data)


def _complete_without_error(commit: Commit, error: Exception | None = None) -> None:
    commit._event.set()


def _stops_at_once(state: ControllerState, broker: Any, request: Any) -> bool:
    return broker.fenced or not state.index.led_by(broker.id)


def _forget_sweeps(state: ControllerState) -> None:
    pass


def _first_slice_only(sweeps: Sweeps, broker: int, places: Any) -> list[Any]:
    return list(places)[: sweeps.size]


def _members_stay(index: PartitionIndex, place: Any, old: Any, new: Any) -> None:
    if old.leader == new.leader:
        return
    index._led[old.leader].pop(place)
    index._led.setdefault(new.leader, {})[place] = None


MUTATIONS: Final = (
    Mutation(
        "unclean-by-default",
        "anybody alive may lead, whatever the topic says",
        ((PartitionChange, "_elect", _anyone),),
    ),
    Mutation(
        "leader-from-replicas",
        "the first replica alive leads, in sync or not",
        ((PartitionChange, "_elect", _first_alive),),
    ),
    Mutation(
        "unclean-election-over-a-leader",
        "an operator's unclean election replaces a leader that serves",
        ((partitions, "_elect", _elect_over_leader),),
    ),
    Mutation(
        "offline-directory-leads",
        "a broker leads from a directory that it has not",
        ((ControllerState, "has_online", _every_directory),),
    ),
    Mutation(
        "unclean-shutdown-eligible",
        "who lost what it had not flushed stays eligible",
        ((controller_brokers, "_out_of_isr", _nothing_lost),),
    ),
    Mutation(
        "registered-and-leading",
        "a new incarnation goes on leading before it serves",
        ((controller_brokers, "_out_of_isr", _stay_in_office),),
    ),
    Mutation(
        "reassigned-too-early",
        "one new replica in sync completes a reassignment",
        ((PartitionChange, "_complete_reassignment", _adding_is_enough),),
    ),
    Mutation(
        "reassigned-twice",
        "another aim drops at once what the last one was adding",
        ((partitions, "_retarget", _drop_what_was_added),),
    ),
    Mutation(
        "stale-claims",
        "who is in sync is believed of leaders and partitions of the past",
        ((partitions, "_check_isr", _old_claims_count),),
    ),
    Mutation(
        "eligible-and-in-sync",
        "whoever was in sync is eligible, also while in sync",
        ((PartitionChange, "_populate_elr", _no_last_members),),
    ),
    Mutation(
        "elr-outlives-minimum",
        "who is eligible is remembered beyond a new minimum in sync",
        ((controller_configs, "clear_elr", _remember),),
    ),
    Mutation(
        "snapshot-without-elr",
        "snapshots leave out who is eligible",
        ((image_records, "partition_record", _forget_elr),),
    ),
    Mutation(
        "producer-ids-again",
        "each controller begins with producer ids of its own",
        ((controller_steps, "decide_allocate_producer_ids", _blocks_of_this_controller()),),
        invariants=(47,),
    ),
    Mutation(
        "never-fenced",
        "silent brokers are served for ever",
        ((BrokerSessions, "stale", _never_stale),),
    ),
    Mutation(
        "nobody-wakes",
        "a broker that serves again leaves its partitions without leader",
        ((controller_brokers, "unfencing", _unfence_only),),
    ),
    Mutation(
        "fenced-joins-isr",
        "a leader may take in a broker that is fenced, or about to stop",
        ((partitions, "_check_isr", _fenced_joins),),
        invariants=(35,),
    ),
    Mutation(
        "stale-broker-epoch",
        "a leader may take in a former life of a broker, which had more than this one",
        ((partitions, "_check_isr", _former_life_joins),),
        invariants=(35,),
    ),
    Mutation(
        "answer-after-losing-leadership",
        "what was decided and lost with the leadership is answered as if it were committed",
        ((Commit, "complete", _complete_without_error),),
        invariants=(48,),
    ),
    Mutation(
        "shutdown-before-others-know",
        "a broker stops before the others know who leads instead of it",
        ((controller_brokers, "_may_stop", _stops_at_once),),
        invariants=(108,),
    ),
    Mutation(
        "sweep-ends-with-leadership",
        "a new controller does not go on with the large change of the last one",
        ((controller_world, "resume_sweeps", _forget_sweeps),),
        invariants=(44,),
    ),
    Mutation(
        "first-slice-only",
        "of the partitions of a broker that goes, those beyond the first slice are forgotten",
        ((Sweeps, "begin", _first_slice_only),),
        invariants=(44,),
    ),
    Mutation(
        "index-without-members",
        "the index of partitions by broker follows leaders, and not who is in sync",
        ((PartitionIndex, "_move", _members_stay),),
    ),
)
