"""The invariants of a raft simulation at every moment (the properties of Raft's figure 3).

* Election safety: one leader per epoch; one vote per epoch and voter, even across a crash.
* Leader completeness: a leader's log has everything that is committed.
* State machine safety: all nodes that consider an offset committed have the same bytes at it, and
  deliver these bytes when they read their disks.
* A leader commits only through records of its own epoch (5.4.2).
* A majority of the voters has synced every record that the leader considers committed.
* Epochs and high watermarks never decrease, and a new leader's first high watermark is not below
  those of earlier leaders. A node that has sent an epoch still knows it after a restart.
* No node truncates committed records, or follows a leader that did not win the epoch.
* Consecutive voter sets differ by at most one voter; the current voter set is in the log.
* A vote is granted by the same disk (directory id) that was asked for it.
* A leader does not load a snapshot; a log that does not start at 0 starts where a snapshot ends.

They include the invariants of Apache Kafka's own raft simulation.
"""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from operator import itemgetter
from zlib import crc32

import attrs

from kwire.codec.messages.metadata_records import FeatureLevelRecord
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.events import (
    Answered,
    Committed,
    Effect,
    Event,
    LeaderKnown,
    Received,
    Reply,
    Send,
    SnapshotLoaded,
    TruncateLog,
)
from kwire.raftmeta.raft.log_state import Valid
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.raft.voters import ReplicaKey, VoterSet
from kwire.raftmeta.storage.records import SnapshotReader
from kwire.raftmeta.storage.storage_turn import Outcome
from kwire.records.header import Buffer, headers
from kwire.types import ZERO_UUID
from simulation.raft.node import SimNode
from simulation.scheduler import Violation

Place = tuple[int, int]


@attrs.define(eq=False)
class Checks:
    """The state of the whole cluster, which no node can see, and the checks of it."""

    nodes: dict[int, SimNode]
    leaders: dict[int, int] = attrs.field(factory=dict)
    marks: dict[int, int] = attrs.field(factory=dict)
    """The last high watermark of the leader, by epoch."""
    votes: dict[tuple[ReplicaKey, int], ReplicaKey] = attrs.field(factory=dict)
    sent_epochs: dict[ReplicaKey, int] = attrs.field(factory=dict)
    """The highest epoch that each replica has sent."""
    chain: dict[int, int] = attrs.field(factory=lambda: {0: 0})
    """A running digest of all committed batches, by the end offset of the last one."""
    committed_end: int = 0
    commits: list[tuple[int, int]] = attrs.field(factory=list)
    """The committed end offsets, each with the epoch that committed it first, as (epoch, end)."""
    progress: dict[Place, tuple[int, int]] = attrs.field(factory=dict)
    """By node and incarnation: its last epoch, and the end offset compared so far."""
    lost: dict[ReplicaKey, int] = attrs.field(factory=dict)
    """By lost disk, the end offset of its synced log when it was lost."""
    _decided: dict[tuple[int, int], VoterSet] = attrs.field(factory=dict)
    """The voters with which a leader committed an end offset, by node and end offset."""
    _grants: dict[Hashable, tuple[ReplicaKey, int]] = attrs.field(factory=dict)

    # After every step -----------------------------------------------------------------------
    def on_step(self, node: SimNode, event: Event | None, effects: Sequence[Effect]) -> None:
        assert node.raft is not None
        state = node.raft.state
        place = (node.id, node.incarnation)
        epoch, compared = self.progress.get(place, (-1, 0))
        if epoch < 0 and state.epoch < self.sent_epochs.get(node.config.key, 0):
            raise Violation(f"n{node.id} forgot an epoch that it had sent")
        if state.epoch < epoch:
            raise Violation(f"n{node.id}: the epoch fell from {epoch} to {state.epoch}")
        self.progress[place] = (state.epoch, compared)
        if isinstance(state.role, Leader):
            if not state.voters.is_only(node.config.key):  # A power loss may erase a single voter.
                self._note_won(node.id, state.epoch)
            if not isinstance(event, Answered):
                self._check_own_epoch(node, state.role, effects)
        self._check_belief(node.id, state)
        self._check_start(node.id, state)
        self.check_voters(node.id, state)
        for effect in effects:
            if isinstance(effect, TruncateLog):
                self._check_truncation(node, effect.end_offset)
            elif isinstance(effect, Committed):
                self._decided[node.id, effect.end_offset] = state.voters
        if isinstance(event, Received) and isinstance(event.request, VoteRequest):
            self._note_grant(node, event, effects)

    def _note_won(self, node_id: int, epoch: int) -> None:
        leader_id = self.leaders.setdefault(epoch, node_id)
        if leader_id != node_id:
            raise Violation(f"n{leader_id} and n{node_id} both lead epoch {epoch}")

    def _check_belief(self, node_id: int, state: RaftState) -> None:
        """Check that the node's known leader has won the epoch."""
        winner = self.leaders.get(state.epoch)
        if state.leader_id not in (None, winner, node_id):
            claim = f"takes n{state.leader_id} for the leader of epoch {state.epoch}"
            raise Violation(f"n{node_id} {claim}, which n{winner} won")

    @staticmethod
    def check_voters(node_id: int, state: RaftState) -> None:
        """Check that the log changes voters one at a time (Raft thesis 4.1, KIP-853)."""
        if state.history.latest_offset >= max(state.log.end_offset, 1):
            raise Violation(f"n{node_id}: its voters lie beyond the end of its log")
        sets = [voters for _, voters in state.history.sets[-2:]]
        changed = set(sets[0].ids) ^ set(sets[-1].ids) if sets else set()
        if len(changed) > 1:
            raise Violation(f"n{node_id}: the voters {sorted(changed)} changed at once")

    @staticmethod
    def _check_start(node_id: int, state: RaftState) -> None:
        """Check that a log which does not start at 0 has the snapshot that ends at its start."""
        start = state.log.start_offset
        ends = [s for s in state.log.snapshots if s.end_offset > 0]
        if start and (not ends or ends[0].end_offset != start):
            raise Violation(f"n{node_id}: the log begins at {start}, snapshots are {ends}")
        if ends and not isinstance(state.log.validate(*ends[0]), Valid):
            raise Violation(f"n{node_id}: {ends[0]} is not in its own log")

    def _check_truncation(self, node: SimNode, end_offset: int) -> None:
        for base, following, data in batches_from(node, end_offset):
            digest = self.chain.get(following)
            if digest is not None and digest == crc32(data, self.chain.get(base, -1)):
                raise Violation(f"n{node.id} cuts {base} to {following}, which is committed")

    def _check_own_epoch(self, node: SimNode, role: Leader, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Committed) and effect.end_offset <= role.epoch_start:
                end = effect.end_offset
                raise Violation(f"n{node.id}: {end} committed before a record of its epoch")

    def _note_grant(self, node: SimNode, event: Received, effects: Sequence[Effect]) -> None:
        request = event.request
        assert isinstance(request, VoteRequest)
        partition = messages.partition_of(request)
        if partition is None or partition.pre_vote:
            return
        for effect in effects:
            if isinstance(effect, Reply) and isinstance(effect.response, VoteResponse):
                topics = effect.response.topics
                if topics and topics[0].partitions[0].vote_granted:
                    if partition.voter_directory_id not in (ZERO_UUID, node.config.directory_id):
                        raise Violation(f"n{node.id} grants a vote requested of another disk")
                    candidate = ReplicaKey(partition.replica_id, partition.replica_directory_id)
                    self._grants[effect.token] = (candidate, partition.replica_epoch)

    # When an outcome becomes visible --------------------------------------------------------
    def on_outcome(self, node: SimNode, outcome: Outcome) -> None:
        match outcome:
            case Reply(token, response):
                if token in self._grants:
                    candidate, epoch = self._grants.pop(token)
                    self._vote(node.config.key, epoch, candidate)
                if isinstance(response, VoteResponse) and response.topics:
                    self._on_epoch_sent(node, response.topics[0].partitions[0].leader_epoch)
            case Send(_, _, VoteRequest() as request):
                partition = messages.partition_of(request)
                if partition is not None:
                    self._on_epoch_sent(node, partition.replica_epoch)
                    if not partition.pre_vote:
                        self._vote(node.config.key, partition.replica_epoch, node.config.key)
            case Committed(end_offset):
                self._compare(node, end_offset)
                self._check_majority(node, end_offset)
                self._check_mark(node, end_offset)
            case LeaderKnown(leader_id, epoch, _):
                if leader_id == node.id:
                    self._note_won(node.id, epoch)
                    self._check_complete(node, epoch)
            case SnapshotLoaded(snapshot):
                if node.raft is not None and isinstance(node.raft.state.role, Leader):
                    raise Violation(f"n{node.id} leads and loads a snapshot")
                self._check_snapshot(node, snapshot.end_offset)

    def _on_epoch_sent(self, node: SimNode, epoch: int) -> None:
        key = node.config.key
        self.sent_epochs[key] = max(self.sent_epochs.get(key, 0), epoch)

    def _vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        first = self.votes.setdefault((voter, epoch), candidate)
        if first != candidate:
            raise Violation(f"n{voter.id} voted for n{first.id} and n{candidate.id} in {epoch}")

    def _compare(self, node: SimNode, end_offset: int) -> None:
        """Check that the records that a node considers committed equal those of other nodes."""
        place = (node.id, node.incarnation)
        epoch, compared = self.progress[place]
        if end_offset < compared:
            raise Violation(f"n{node.id}: the high watermark fell to {end_offset}")
        start = max(compared, node.storage.cache.start_offset)
        for base, following, data in batches_from(node, start):
            if following > end_offset:
                break
            if base not in self.chain:
                raise Violation(f"n{node.id}: committed a batch at {base} that no other node has")
            digest = crc32(data, self.chain[base])
            if base == self.committed_end:
                self.chain[following] = digest
                self.committed_end = following
            elif self.chain.get(following) != digest:
                raise Violation(f"n{node.id}: other records are committed at {base}")
        if end_offset > self.committed_end:
            raise Violation(f"n{node.id}: committed up to {end_offset} without having it")
        self.progress[place] = (epoch, end_offset)
        if not self.commits or self.commits[-1][1] < end_offset:
            self.commits.append((epoch, end_offset))

    def on_delivery(self, node: SimNode, data: Buffer) -> None:
        """Check that the state machine of a node gets the committed batches."""
        for pos, header in headers(data):
            digest = self.chain.get(header.next_offset)
            batch = data[pos : pos + header.size]
            before = self.chain.get(header.base_offset, -1)
            if digest is not None and digest != crc32(batch, before):
                raise Violation(f"n{node.id} delivers other records at {header.base_offset}")

    def _check_mark(self, node: SimNode, mark: int) -> None:
        """Check that a leader's first high watermark is not below that of earlier leaders."""
        assert node.raft is not None
        state, role = node.raft.state, node.raft.state.role
        if not isinstance(role, Leader) or mark <= role.epoch_start:
            return
        before = max((m for e, m in self.marks.items() if e < state.epoch), default=0)
        if state.epoch not in self.marks and mark < before:
            raise Violation(f"n{node.id}: high watermark {mark} after {before}")
        self.marks[state.epoch] = mark

    def _check_majority(self, node: SimNode, end_offset: int) -> None:
        assert node.raft is not None
        state = node.raft.state
        if not isinstance(state.role, Leader):
            return
        voters = self._decided.pop((node.id, end_offset), None)
        if voters is not None and not self._holds(voters, end_offset):
            raise Violation(f"n{node.id}: {end_offset} committed without a majority")

    def _holds(self, voters: VoterSet, end_offset: int) -> bool:
        holders = {
            other.id
            for other in self.nodes.values()
            if voters.has(other.config.key) and other.storage.durable.end_offset >= end_offset
        }
        holders |= {
            key.id for key, end in self.lost.items() if voters.has(key) and end >= end_offset
        }
        return 2 * len(holders) > len(voters)  # Independent of the product's own arithmetic.

    def _check_complete(self, node: SimNode, epoch: int) -> None:
        """Check Raft 5.4: an elected leader has everything committed in earlier epochs."""
        if node.raft is None or node.raft.state.epoch != epoch:
            return
        if not isinstance(node.raft.state.role, Leader) or node.storage.has_rotted:
            return
        disk = node.storage.cache
        end = next((end for at, end in reversed(self.commits) if at < epoch), 0)
        if disk.end_offset < end:
            raise Violation(f"n{node.id} leads without {disk.end_offset} to {end}")
        start = max(self.progress[node.id, node.incarnation][1], disk.start_offset)
        for base, following, data in batches_from(node, start):
            if following > end:
                return
            if self.chain.get(following) != crc32(data, self.chain.get(base, -1)):
                raise Violation(f"n{node.id} leads with other records at {base}")

    def _check_snapshot(self, node: SimNode, end_offset: int) -> None:
        disk = node.storage.cache
        newest = max(disk.snapshots)
        reader = SnapshotReader(newest, disk.snapshots[newest])
        records = reader.records()
        names = [record.name for record in records if isinstance(record, FeatureLevelRecord)]
        if names != [str(self.chain.get(end_offset))]:
            raise Violation(f"n{node.id}: a snapshot at {end_offset} of something else")
        place = (node.id, node.incarnation)
        epoch, compared = self.progress[place]
        self.progress[place] = (epoch, max(compared, end_offset))


def batches_from(node: SimNode, offset: int) -> list[tuple[int, int, bytes]]:
    """Return the batches of a node's log from ``offset`` onwards."""
    batches = node.storage.cache.batches
    return batches[bisect_right(batches, offset - 1, key=itemgetter(0)) :]
