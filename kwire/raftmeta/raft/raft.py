"""KRaft as a state machine.

``step(event, now, now_ms)`` returns effects; ``deadline`` is the time of the next step without an
event. Pure: no clock, disk, network or randomness of its own. The rules are in separate modules;
this module passes each event to its rule and then does everything that is due.
:mod:`kwire.raftmeta.raft.events` has the contract of the effects.
"""

from math import inf
from typing import assert_never

import attrs

from kwire.raftmeta.raft import cleaning, election, progress, start_stop
from kwire.raftmeta.raft.events import (
    Answered,
    Append,
    Effect,
    Event,
    LeaderKnown,
    Received,
    Resign,
    Shutdown,
    SnapshotLoaded,
    SnapshotRefused,
    SnapshotTaken,
    Started,
    UpgradeKraftVersion,
)
from kwire.raftmeta.raft.leader_view import is_epoch_committed
from kwire.raftmeta.raft.log_state import LogState
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.roles import Candidate, Leader, Prospective, Resigned
from kwire.raftmeta.raft.state import RaftConfig, RaftState, Random
from kwire.raftmeta.raft.voters import VoterHistory


@attrs.frozen(eq=False, repr=False)
class Recovered:
    """The state of a node that was read from its disk."""

    election: ElectionState = attrs.field(factory=ElectionState)
    log: LogState = attrs.field(factory=LogState)
    history: VoterHistory = attrs.field(factory=VoterHistory)


class Raft:
    """One node of the quorum."""

    def __init__(self, config: RaftConfig, recovered: Recovered, random: Random) -> None:
        newest = recovered.log.latest_snapshot
        self.state = RaftState(
            config=config,
            random=random,
            log=recovered.log,
            history=recovered.history,
            election=recovered.election,
            high_watermark=newest.end_offset if newest and newest.end_offset else None,
        )
        self.deadline = inf
        self._announced = LeaderKnown(None, -1)

    def step(self, event: Event | None, now: float, now_ms: int) -> tuple[Effect, ...]:
        """Process one event, or an expired deadline (None); return the effects."""
        state = self.state
        state.now = max(state.now, now)
        state.now_ms = now_ms
        if event is not None:
            self._take(event)
        self._expire_calls()
        self._poll()
        self._announce()
        self.deadline = self._next_deadline()
        effects = tuple(state.effects)
        state.effects.clear()
        return effects

    # Events ---------------------------------------------------------------------------------
    def _take(self, event: Event) -> None:
        state = self.state
        match event:
            case Received(token, request):
                from kwire.raftmeta.raft import rpc

                rpc.on_request(state, token, request)
            case Answered(call_id, response, refused):
                call = state.calls.finish(call_id)
                if call is not None:
                    from kwire.raftmeta.raft import rpc

                    rpc.on_answer(state, call, response)
                    if refused:
                        rpc.on_refused(state, call)
            case Append():
                progress.on_append(state, event)
            case SnapshotTaken() | SnapshotLoaded() | SnapshotRefused():
                cleaning.on_snapshot(state, event)
            case UpgradeKraftVersion():
                from kwire.raftmeta.raft import reconfig

                reconfig.on_upgrade(state, event)
            case Started():
                start_stop.on_started(state)
            case Resign(epoch):
                start_stop.resign(state, epoch)
            case Shutdown():
                start_stop.shut_down(state)
            case _:
                assert_never(event)

    # Due actions ----------------------------------------------------------------------------
    def _expire_calls(self) -> None:
        state = self.state
        for call in [c for c in state.calls.open.values() if c.deadline <= state.now]:
            from kwire.raftmeta.raft import rpc

            state.calls.finish(call.id)
            rpc.on_answer(state, call, None)

    def _poll(self) -> None:
        """Do what is due; repeat after a change of role, because more may then be due."""
        state = self.state
        role = None
        while role is not state.role:
            role = state.role
            election.poll(state)
            if isinstance(state.role, Prospective | Candidate | Resigned):
                from kwire.raftmeta.raft import voting

                voting.ask(state)
            progress.update_high_watermark(state)
            if progress.has_lost_majority(state):
                start_stop.resign(state, state.epoch)
            progress.tell_voters(state)
            if not progress.is_alone(state):
                from kwire.raftmeta.raft import rpc

                rpc.poll(state)

    def _announce(self) -> None:
        state, role = self.state, self.state.role
        active = isinstance(role, Leader) and is_epoch_committed(state, role)
        announcement = LeaderKnown(state.leader_id, state.epoch, active)
        if isinstance(role, Resigned):
            announcement = LeaderKnown(None, state.epoch)
        if announcement != self._announced:
            self._announced = announcement
            state.emit(announcement)

    def _next_deadline(self) -> float:
        state, role = self.state, self.state.role
        if isinstance(role, Leader):
            own = progress.deadline(state, role)
        else:
            own = role.deadline
        own = min(own, start_stop.update_voter_deadline(state, role))
        return min(own, state.calls.deadline(), self._retry_deadline())

    def _retry_deadline(self) -> float:
        """Return the earliest time at which a node may be contacted again."""
        state = self.state
        if isinstance(state.role, Leader):
            return inf
        calls = state.calls
        times = (*calls.retry_at.values(), *calls.fetch_at.values())
        return min((at for at in times if at > state.now), default=inf)
