"""Mistakes that replicas can make, each with a name; the simulation must catch them."""

from typing import Final

from kwire.log.epochs import LeaderEpochs
from kwire.raftmeta.broker.session_lease import SessionLease
from kwire.raftmeta.controller import brokers as controller_brokers
from kwire.raftmeta.controller.partition_change_builder import (
    Elected,
    Election,
    PartitionChangeBuilder,
)
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.metadata.image import BrokerImage
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.replica.fetcher import truncation
from kwire.replica.leader import HighWatermarkChange, PartitionLeader
from kwire.replica.partition import Partition
from kwire.replica.ports import PartitionState
from kwire.replica.replicas import ReplicaService
from kwire.replica.roles import Roles
from simulation.raft.mutations import Mutation

_elect = PartitionChangeBuilder._elect
_update_role = Roles.update
_follow = Roles._follow
_may_join = PartitionLeader.may_join


async def _acknowledge_at_once(
    replicas: ReplicaService,
    partition: Partition,
    end_offset: int,
    timeout_s: float,
    epoch: int | None = None,
) -> None:
    """Acknowledge records that only this replica has stored."""


def _advance_to_the_log_end(leader: PartitionLeader, now: float) -> HighWatermarkChange | None:
    before = leader.log.high_watermark
    if leader.log_end <= before:
        return None
    leader.log.high_watermark = leader.log_end
    return HighWatermarkChange(before, leader.log_end)


def _only_the_proposed_isr(leader: PartitionLeader) -> frozenset[int]:
    return leader.isr if leader.pending_isr is None else leader.pending_isr


def _joins_at_its_first_fetch(leader: PartitionLeader, node: int) -> bool:
    return node in leader.followers and node not in leader.maximal_isr


def _truncate_nothing(
    epochs: LeaderEpochs, log_end: int, leader_epoch: int, leader_end: int
) -> int:
    return log_end


def _lead_on(roles: Roles, partition: Partition, state: PartitionState) -> None:
    if partition.leader is None or state.leader == roles.node:
        _update_role(roles, partition, state)


def _elect_any(change: PartitionChangeBuilder) -> Elected:
    change.election = Election.UNCLEAN
    alive = [replica for replica in change.replicas if change.acceptable(replica)]
    if change.partition.leader in alive:
        return _elect(change)
    return Elected(alive[-1]) if alive else _elect(change)


def _any_epoch(
    state: ControllerState, existing: BrokerImage | None, request: object, effects: object
) -> Steps[object]:
    return [], False
    yield


def _truncate_to_the_high_watermark(
    roles: Roles, partition: Partition, leader: int, leader_epoch: int
) -> None:
    _follow(roles, partition, leader, leader_epoch)
    partition.log.truncate_to(partition.log.high_watermark)


def _no_minimum(leader: PartitionLeader) -> int:
    return 1


def _renew_for_ever(lease: SessionLease, sent_at: float, now: float) -> None:
    lease.keep(now)


async def _deleted_here(
    replicas: ReplicaService, partition: Partition, start: int, timeout_s: float
) -> int:
    return partition.log.log_start


def _low_watermark_of_running_replicas(leader: PartitionLeader, log_start: int) -> int:
    starts = [
        follower.log_start
        for node, follower in leader.followers.items()
        if leader.is_eligible(node, follower.broker_epoch)
    ]
    return min([log_start, *starts])


def _joins_with_deleted_records(leader: PartitionLeader, node: int) -> bool:
    log_start = leader.followers[node].log_start
    leader.followers[node].log_start = 1 << 62
    may_join = _may_join(leader, node)
    leader.followers[node].log_start = log_start
    return may_join


MUTATIONS: Final = (
    Mutation(
        "acknowledge-before-the-high-watermark",
        "acks=all is answered before the in-sync replicas have the records",
        ((ReplicaService, "wait_committed", _acknowledge_at_once),),
        invariants=(1, 21),
    ),
    Mutation(
        "high-watermark-at-the-log-end",
        "the high watermark follows the leader's log, not the in-sync replicas",
        ((PartitionLeader, "advance", _advance_to_the_log_end),),
        invariants=(21, 22),
    ),
    Mutation(
        "proposed-isr-counts-at-once",
        "a leader waits for the ISR that it proposed before the controller has answered",
        ((PartitionLeader, "maximal_isr", property(_only_the_proposed_isr)),),
        invariants=(30,),
    ),
    Mutation(
        "isr-grows-too-early",
        "a follower joins the ISR before it has what is committed",
        ((PartitionLeader, "may_join", _joins_at_its_first_fetch),),
        invariants=(22, 35),
    ),
    Mutation(
        "diverged-log-stays",
        "a follower keeps records that its leader does not have",
        ((truncation, "target", _truncate_nothing),),
        invariants=(23, 25),
    ),
    Mutation(
        "truncate-to-own-high-watermark",
        "a follower truncates to its own high watermark when it begins to follow",
        ((Roles, "_follow", _truncate_to_the_high_watermark),),
        invariants=(25,),
    ),
    Mutation(
        "deposed-leader-leads-on",
        "a leader goes on in its epoch though the metadata names another",
        ((Roles, "update", _lead_on),),
        invariants=(24,),
    ),
    Mutation(
        "elect-outside-the-isr",
        "a replica that is not in sync becomes the leader where that is not allowed",
        ((PartitionChangeBuilder, "_elect", _elect_any),),
        invariants=(21, 33),
    ),
    Mutation(
        "returning-broker-stays-in-sync",
        "a broker that was started again counts as in sync without copying",
        ((controller_brokers, "_out_of_isr", _any_epoch),),
        invariants=(31, 32),
    ),
    Mutation(
        "minimum-of-replicas-does-not-count",
        "the high watermark moves while fewer replicas are in sync than required",
        ((PartitionLeader, "effective_min_isr", property(_no_minimum)),),
        invariants=(29,),
    ),
    Mutation(
        "leases-never-end",
        "a leader serves on after its session, whatever the controller has decided since",
        ((SessionLease, "renew", _renew_for_ever),),
        invariants=(34,),
    ),
    Mutation(
        "deletion-by-the-leader-alone",
        "DeleteRecords is answered before the followers have deleted",
        ((ReplicaService, "wait_deleted", _deleted_here),),
        invariants=(39,),
    ),
    Mutation(
        "deletion-without-eligible-replicas",
        "DeleteRecords is answered while an eligible leader replica that is down has the records",
        ((PartitionLeader, "low_watermark", _low_watermark_of_running_replicas),),
        invariants=(39,),
    ),
    Mutation(
        "followers-join-with-deleted-records",
        "a follower joins the ISR before it has deleted what the leader has",
        ((PartitionLeader, "may_join", _joins_with_deleted_records),),
        invariants=(39,),
    ),
)
