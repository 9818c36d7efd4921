"""Mistakes with share groups (KIP-932); the simulation must catch them."""

from typing import Final

import attrs

from kwire.errors import InvalidRecordState
from kwire.group.decision_builder import DecisionBuilder
from kwire.group.share import heartbeat
from kwire.group.share.settings import ShareSettings
from kwire.share import in_flight
from kwire.share.in_flight import REJECT, RELEASE, Acknowledgement, InFlight
from kwire.share.led_share import LedShare
from kwire.share.persister import ReadState
from kwire.share.runs import Change, RecordState, Run, Runs
from kwire.share.sessions import SessionKey, ShareSession, ShareSessions
from kwire.share.share_partitions import ShareService
from kwire.share.state.model import ShareState
from simulation.raft.mutations import Mutation
from simulation.replication.sharing.groups import SHARING

_resume = InFlight.resume
_next_snapshot = ShareState.next_snapshot
_acquire = Run.acquire
_outcome = in_flight._outcome


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


def _outcome_without_limit(run: Run, kind: int, max_deliveries: int) -> tuple[RecordState, int]:
    return _outcome(run, kind, run.delivery_count + 1)


def _outcome_without_releases(run: Run, kind: int, max_deliveries: int) -> tuple[RecordState, int]:
    return _outcome(run, REJECT if kind == RELEASE else kind, max_deliveries)


async def _store_later(led: LedShare, change: Change) -> None:
    """Complete a change at once, and store it without waiting for that."""
    led.store_batches(change.batches())
    led.in_flight.complete(change, is_stored=True)


def _check_no_member(records: InFlight, member: str, acknowledgement: Acknowledgement) -> None:
    first = max(acknowledgement.first_offset, records.start)
    for run in records._runs.overlapping(first, acknowledgement.last_offset):
        if run.state is not RecordState.ACQUIRED or run.change is not None:
            raise InvalidRecordState


def _end_early(
    builder: DecisionBuilder, group_id: str, member_id: str, settings: ShareSettings
) -> None:
    """Give a member a quarter of its session timeout."""
    builder.start_timer(("share-session", group_id, member_id), settings.session_timeout_ms // 4)


def _drop_held(runs: Runs) -> bool:
    """Remove runs at the start that are complete or held by members."""
    count = 0
    for run in runs:
        if run.change is not None or not (run.is_complete or run.member):
            break
        count += 1
    del runs._runs[:count]
    return count > 0


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
    Mutation(
        "records-are-delivered-without-a-limit",
        "a record that no member accepts is delivered again and again",
        ((in_flight, "_outcome", _outcome_without_limit),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "released-records-are-archived",
        "a record that a member gives back is not delivered again",
        ((in_flight, "_outcome", _outcome_without_releases),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "acknowledgements-are-answered-before-they-are-stored",
        "a leader does not wait until the share coordinator has stored an acknowledgement",
        ((LedShare, "store", _store_later),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "members-acknowledge-what-others-hold",
        "a leader does not look at which member has acquired the records",
        ((InFlight, "_check_acknowledgement", _check_no_member),),
        (75,),
        stage=SHARING,
    ),
    Mutation(
        "share-sessions-end-early",
        "a member of a share group is removed after a quarter of its session timeout",
        ((heartbeat, "start_session", _end_early),),
        (70,),
        stage=SHARING,
    ),
    Mutation(
        "group-starts-behind-records-that-are-held",
        "the start offset of a group passes records that its members have not acknowledged",
        ((Runs, "drop_complete", _drop_held),),
        (75,),
        stage=SHARING,
    ),
)
