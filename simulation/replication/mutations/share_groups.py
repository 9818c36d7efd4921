"""Mistakes with share groups (KIP-932); the simulation must catch them."""

from typing import Final

import attrs

from kwire.share.in_flight import InFlight
from kwire.share.led_share import LedShare
from kwire.share.persister import ReadState
from kwire.share.runs import RecordState, Run
from kwire.share.sessions import SessionKey, ShareSession, ShareSessions
from kwire.share.share_partitions import ShareService
from kwire.share.state.model import ShareState
from simulation.raft.mutations import Mutation
from simulation.replication.sharing.groups import SHARING

_resume = InFlight.resume
_next_snapshot = ShareState.next_snapshot
_acquire = Run.acquire


def _end_no_locks(service: ShareService, led: LedShare) -> None:
    """Leave records to their members, whose locks have ended."""


def _resume_uncounted(state: ReadState, leader_epoch: int, start: int) -> InFlight:
    batches = [batch._replace(delivery_count=0) for batch in state.batches]
    return _resume(state._replace(batches=batches), leader_epoch, start)


def _resume_without_batches(state: ReadState, leader_epoch: int, start: int) -> InFlight:
    return _resume(state._replace(batches=()), leader_epoch, start)


def _snapshot_without_batches(
    state: ShareState, now_ms: int, *, is_copy: bool = False
) -> ShareState:
    return attrs.evolve(_next_snapshot(state, now_ms, is_copy=is_copy), batches=())


def _is_unfinished(run: Run) -> bool:
    return run.state in (RecordState.AVAILABLE, RecordState.ACQUIRED) and run.change is None


def _acquire_uncounted(run: Run, member: str, deadline: float) -> None:
    _acquire(run, member, deadline)
    run.delivery_count = max(1, run.delivery_count - 1)


def _any_epoch(sessions: ShareSessions, key: SessionKey, epoch: int) -> ShareSession:
    session = sessions.find(key)
    session.epoch = epoch + 1
    return session


MUTATIONS: Final = (
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
        "snapshots-without-records-in-flight",
        "a snapshot of a share partition has the start offset alone",
        ((ShareState, "next_snapshot", _snapshot_without_batches),),
        (72, 75),
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
