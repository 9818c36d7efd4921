"""Mistakes with share groups (KIP-932); the simulation must catch them."""

from typing import Final

import attrs

from kwire.share.changes import Change
from kwire.share.in_flight import Acknowledgement, InFlight
from kwire.share.led_share import LedShare, _ignore, _Write
from kwire.share.persister import ReadState
from kwire.share.runs import RecordState, Run, Runs
from kwire.share.sessions import SessionKey, ShareSession, ShareSessions
from kwire.share.share_partitions import ShareService
from kwire.share.state.model import ShareState
from kwire.share.state.shard import ShareStateShard
from simulation.raft.mutations import Mutation
from simulation.replication.share_groups import SHARING

_resume = InFlight.resume
_next_snapshot = ShareState.next_snapshot
_check = InFlight._check_acknowledgement
_acquire = Run.acquire


async def _store_later(led: LedShare, change: Change) -> None:
    """Complete a change at once, and store it without waiting."""
    if change.moves:
        batches = change.batches()
        led.in_flight.complete(change, is_stored=True)
        led._enqueue(_Write(batches, None, _ignore))


def _end_no_locks(service: ShareService, led: LedShare) -> None:
    """Leave records to their members, whose locks have ended."""


def _resume_uncounted(state: ReadState, leader_epoch: int, start: int) -> InFlight:
    batches = [batch._replace(delivery_count=0) for batch in state.batches]
    return _resume(state._replace(batches=batches), leader_epoch, start)


def _resume_without_batches(state: ReadState, leader_epoch: int, start: int) -> InFlight:
    return _resume(state._replace(batches=()), leader_epoch, start)


def _any_leader_epoch(shard: ShareStateShard, of: object, leader_epoch: int) -> None:
    """Accept writes of every leader."""


def _snapshot_without_batches(
    state: ShareState, now_ms: int, *, is_copy: bool = False
) -> ShareState:
    return attrs.evolve(_next_snapshot(state, now_ms, is_copy=is_copy), batches=())


def _check_without_lock(in_flight: InFlight, member: str, acknowledgement: Acknowledgement) -> None:
    """Accept what a member acknowledges after its lock, unless another one has the records."""
    first, last, _ = acknowledgement
    for run in in_flight._runs.overlapping(max(first, in_flight.start), last):
        if run.state is RecordState.AVAILABLE and run.change is None and run.delivery_count:
            run.state, run.member = RecordState.ACQUIRED, member
    _check(in_flight, member, acknowledgement)


def _is_unfinished(run: Run) -> bool:
    return run.state in (RecordState.AVAILABLE, RecordState.ACQUIRED) and run.change is None


def _acquire_uncounted(run: Run, member: str, deadline: float) -> None:
    _acquire(run, member, deadline)
    run.delivery_count = max(1, run.delivery_count - 1)


def _drop_first(runs: Runs) -> bool:
    """Move the start past records that members hold."""
    count = 0
    for run in runs:
        if run.is_available:
            break
        count += 1
    del runs._runs[:count]
    return count > 0


def _prune_everything(shard: ShareStateShard) -> int:
    return shard.end_offset


def _any_epoch(sessions: ShareSessions, key: SessionKey, epoch: int) -> ShareSession:
    session = sessions._find(key)
    session.epoch = epoch + 1
    return session


def _any_member(in_flight: InFlight, member: str, acknowledgement: Acknowledgement) -> None:
    """Accept acknowledgements of records that another member holds."""
    first, last, _ = acknowledgement
    for run in in_flight._runs.overlapping(max(first, in_flight.start), last):
        if run.state is RecordState.ACQUIRED:
            run.member = member
    _check(in_flight, member, acknowledgement)


MUTATIONS: Final = (
    Mutation(
        "share-answers-before-the-state-is-stored",
        "a leader confirms acknowledgements before the share coordinator has stored them",
        ((LedShare, "store", _store_later),),
        (72, 75),
        stage=SHARING,
    ),
    Mutation(
        "locks-never-end",
        "records stay with the member that acquired them, whose lock has ended",
        ((ShareService, "_end_locks_of", _end_no_locks),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "two-members-hold-a-record",
        "a record that a member holds can be acquired by another one",
        ((Run, "is_available", property(_is_unfinished)),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "deliveries-begin-anew-with-the-leader",
        "a leader that loads a share partition counts deliveries from 0",
        ((InFlight, "resume", staticmethod(_resume_uncounted)),),
        (72, 75),
        stage=SHARING,
    ),
    Mutation(
        "next-leader-forgets-what-was-accepted",
        "a leader that loads a share partition delivers all records from the start offset on",
        ((InFlight, "resume", staticmethod(_resume_without_batches)),),
        (72, 75),
        stage=SHARING,
    ),
    Mutation(
        "deliveries-are-not-counted",
        "a record that is delivered again has the delivery count of the first time",
        ((Run, "acquire", _acquire_uncounted),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "former-leaders-store-share-states",
        "a share coordinator does not compare the leader epochs of writes",
        ((ShareStateShard, "_check_leader_epoch", _any_leader_epoch),),
        (24, 75),
        stage=SHARING,
    ),
    Mutation(
        "snapshots-without-records-in-flight",
        "a snapshot of a share partition has the start offset alone",
        ((ShareState, "next_snapshot", _snapshot_without_batches),),
        (72, 75),
        stage=SHARING,
    ),
    Mutation(
        "prune-snapshots-in-use",
        "a share coordinator deletes snapshots that are still needed",
        ((ShareStateShard, "redundant_offset", _prune_everything),),
        (72, 75),
        stage=SHARING,
    ),
    Mutation(
        "acknowledgements-after-the-lock-count",
        "a member accepts records whose lock has ended",
        ((InFlight, "_check_acknowledgement", _check_without_lock),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "acknowledgements-of-others-count",
        "a member accepts records that another one holds",
        ((InFlight, "_check_acknowledgement", _any_member),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "start-passes-records-that-are-held",
        "the start offset moves past records that members hold",
        ((Runs, "drop_complete", _drop_first),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "any-share-session-epoch-counts",
        "a leader does not compare the epochs of share sessions",
        ((ShareSessions, "_next", _any_epoch),),
        (74,),
        stage=SHARING,
    ),
)
