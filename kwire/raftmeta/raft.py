"""KRaft as a stepper: ``step(event, now, now_ms)`` returns what to do, ``deadline`` when to
step without an event.

Pure: no clock, no disk, no network, no randomness of its own.  The rules live in the modules
of the roles; here an event finds its rule, and after each one everything that is due is done.
The effects' contract is that of :mod:`kwire.raftmeta.events`.
"""

from collections.abc import Hashable
from math import inf
from typing import assert_never

import attrs

from kwire import errors
from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest
from kwire.codec.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.codec.messages.fetch import FetchRequest, FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.codec.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta import (
    describe,
    election,
    leadership,
    messages,
    progress,
    reconfig,
    replication,
    snapshot,
)
from kwire.raftmeta.events import (
    Answered,
    Append,
    Effect,
    Event,
    LeaderKnown,
    RaftRequest,
    RaftResponse,
    Received,
    Reply,
    Resign,
    Shutdown,
    SnapshotLoaded,
    SnapshotTaken,
    Started,
    UpgradeKraftVersion,
)
from kwire.raftmeta.log import LogState
from kwire.raftmeta.quorum_state import ElectionState
from kwire.raftmeta.roles import Leader, Resigned
from kwire.raftmeta.state import Call, RaftConfig, RaftState, Random
from kwire.raftmeta.voters import VoterHistory


@attrs.frozen
class Recovered:
    """What a node finds on its disk."""

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
        self._told = LeaderKnown(None, -1)

    def step(self, event: Event | None, now: float, now_ms: int) -> tuple[Effect, ...]:
        """Take one event (None: the deadline has passed)."""
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
                self._on_request(token, request)
            case Answered(call_id, response):
                call = state.calls.finish(call_id)
                if call is not None:
                    self._on_answer(call, response)
            case Append():
                progress.on_append(state, event)
            case SnapshotTaken():
                snapshot.on_taken(state, event)
            case SnapshotLoaded():
                snapshot.on_loaded(state, event)
            case UpgradeKraftVersion():
                reconfig.on_upgrade(state, event)
            case Started():
                leadership.on_started(state)
            case Resign(epoch):
                leadership.resign(state, epoch)
            case Shutdown():
                leadership.shut_down(state)
            case _:
                assert_never(event)

    def _on_request(self, token: Hashable, request: RaftRequest) -> None:
        state = self.state
        match request:
            case FetchRequest():
                replication.on_fetch(state, token, request)
            case VoteRequest():
                state.emit(Reply(token, election.on_vote(state, request)))
            case BeginQuorumEpochRequest():
                state.emit(Reply(token, leadership.on_begin(state, request)))
            case EndQuorumEpochRequest():
                state.emit(Reply(token, leadership.on_end(state, request)))
            case FetchSnapshotRequest():
                snapshot.on_request(state, token, request)
            case DescribeQuorumRequest():
                state.emit(Reply(token, describe.describe(state, request)))
            case AddRaftVoterRequest():
                reconfig.on_add(state, token, request)
            case RemoveRaftVoterRequest():
                reconfig.on_remove(state, token, request)
            case UpdateRaftVoterRequest():
                reconfig.on_update(state, token, request)
            case _:
                assert_never(request)

    def _on_answer(self, call: Call, response: RaftResponse | None) -> None:
        state = self.state
        if isinstance(call.request, ApiVersionsRequest):
            known = response if isinstance(response, ApiVersionsResponse) else None
            reconfig.on_api_versions(state, call, known)
            return
        match response:
            case None:
                state.back_off(call.node.id)
            case FetchResponse():
                replication.on_fetch_answer(state, call, response)
            case FetchSnapshotResponse():
                snapshot.on_answer(state, call, response)
            case VoteResponse():
                self._on_vote_answer(call, response)
            case BeginQuorumEpochResponse():
                self._learn_from(call, response)
            case EndQuorumEpochResponse():
                leadership.on_end_answer(state, call.node.id)
                self._learn_from(call, response)
            case UpdateRaftVoterResponse():
                leadership.on_update_answer(state, response)
            case _:
                state.back_off(call.node.id)

    def _on_vote_answer(self, call: Call, response: VoteResponse) -> None:
        asked = messages.partition_of(call.request)
        assert asked is not None
        self._learn_from(call, response)
        expected = self.state.epoch
        if asked.replica_epoch == expected:
            election.on_vote_answer(self.state, call.node.id, response, pre=asked.pre_vote)

    def _learn_from(
        self,
        call: Call,
        response: VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse,
    ) -> None:
        """Every answer carries the sender's epoch and leader."""
        state = self.state
        if response.error_code != errors.NONE or not response.topics:
            state.back_off(call.node.id)
            return
        state.calls.succeeded(call.node.id)
        part = response.topics[0].partitions[0]
        leader_id = None if part.leader_id < 0 else part.leader_id
        election.learn(state, part.leader_epoch, leader_id, messages.leader_in(response))

    # What is due ----------------------------------------------------------------------------
    def _expire_calls(self) -> None:
        state = self.state
        for call in [c for c in state.calls.open.values() if c.deadline <= state.now]:
            state.calls.finish(call.id)
            self._on_answer(call, None)

    def _poll(self) -> None:
        """Do what is due; a change of role brings up new business at once."""
        state = self.state
        role = None
        while role is not state.role:
            role = state.role
            election.poll(state)
            progress.update_high_watermark(state)
            progress.poll(state)
            reconfig.poll(state)
            replication.poll_waiting(state)
            replication.poll_fetch(state)
            leadership.poll_update_voter(state)

    def _announce(self) -> None:
        state, role = self.state, self.state.role
        active = isinstance(role, Leader) and progress.is_epoch_committed(state, role)
        known = LeaderKnown(state.leader_id, state.epoch, active)
        if isinstance(role, Resigned):
            known = LeaderKnown(None, state.epoch)
        if known != self._told:
            self._told = known
            state.emit(known)

    def _next_deadline(self) -> float:
        state, role = self.state, self.state.role
        if isinstance(role, Leader):
            own = progress.deadline(state, role)
        else:
            own = role.deadline
        own = min(own, leadership.update_voter_deadline(role))
        return min(own, state.calls.deadline(), replication.fetch_deadline(state))
