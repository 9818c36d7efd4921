"""Mistakes that a raft implementation can make, each with a name; the simulation must catch them.

A mutation replaces functions while its context is active. A mutation that no run detects shows a
gap in the simulation, not that the code is correct.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import SimpleNamespace
from typing import Final

import attrs

from kwire import errors
from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotResponse
from kwire.codec.messages.vote import VoteRequest, VoteResponse
from kwire.raftmeta.raft import (
    cleaning,
    election,
    messages,
    progress,
    reconfig,
    replication,
    transitions,
    voting,
)
from kwire.raftmeta.raft.events import (
    CleanLog,
    LogSlice,
    SnapshotLoaded,
    SnapshotRefused,
    SnapshotSlice,
    SnapshotTaken,
    TruncateLog,
)
from kwire.raftmeta.raft.log_state import LogState, SnapshotId, Valid
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Recovered
from kwire.raftmeta.raft.roles import Leader, Role
from kwire.raftmeta.raft.state import RaftState
from kwire.raftmeta.raft.voters import ReplicaKey, VoterHistory, VoterSet
from kwire.raftmeta.storage import disk_storage, storage_turn
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.raftmeta.storage.storage import MetadataStorage
from simulation.disk import SimFile
from simulation.raft import node as raft_node
from simulation.raft.storage import SimStorage


@attrs.frozen
class Mutation:
    """One mistake: its description, and the attributes that it replaces."""

    name: str
    mistake: str
    patches: tuple[tuple[object, str, object], ...]
    """The attributes to replace: each with its owner, its name and the replacement."""
    invariants: tuple[int, ...] = ()
    """Numbers of the invariants that the mistake breaks."""
    stage: str = ""
    """The staged replication fault that reveals the mistake; a run to detect it has no other. Or
    "sharing": a run with share members, in a small cluster."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which the mistake is made."""
        saved = [(owner, name, owner.__dict__[name]) for owner, name, _ in self.patches]
        for owner, name, replacement in self.patches:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, original in saved:
                setattr(owner, name, original)


def _trust_page_cache(storage: DiskStorage) -> None:
    """Use what a killed process left, without syncing it first."""


def _vote_unsynced(
    storage: SimStorage, state: ElectionState, voters: VoterSet, kraft_version: int
) -> None:
    storage.cache.save_election(state, voters, kraft_version)  # The platter never gets it.


def _commit_old_epoch(state: RaftState) -> bool:
    role = state.role
    if not isinstance(role, Leader) or not state.voters:
        return False
    ends = sorted(progress.voter_progress(state, role).values(), reverse=True)
    return state.advance_high_watermark(max(ends[state.voters.majority - 1], 0))


def _vote_again(state: RaftState, candidate: ReplicaKey) -> bool:
    return state.leader_id is None


def _forget_vote(state: RaftState, request: VoteRequest) -> VoteResponse:
    """Grant a vote without comparing the logs."""
    response = _on_vote(state, request)
    partition = messages.partition_of(request)
    if partition is not None and response.topics and partition.replica_epoch == state.epoch:
        part = response.topics[0].partitions[0]
        candidate = ReplicaKey(partition.replica_id, partition.replica_directory_id)
        free = state.leader_id is None and state.election.voted in (None, candidate)
        if part.error_code == errors.NONE and not part.vote_granted and free:
            part.vote_granted = True
            if not partition.pre_vote:
                state.save(state.election._replace(voted=candidate))
    return response


_on_vote = voting.on_vote
_on_taken = cleaning.on_taken


def _trust_any_offset(self: LogState, offset: int, epoch: int) -> Valid:
    return Valid()


def _no_truncation(state: RaftState, epoch: int, end_offset: int) -> None:
    """Keep the log although it diverges from the leader's."""


def _to_own_mark(state: RaftState, epoch: int, end_offset: int) -> None:
    to = max(state.high_watermark or 0, state.log.start_offset)
    if to < state.log.end_offset:
        state.log.truncate_to(to)
        state.history.truncate(to)
        state.emit(TruncateLog(to))


def _follow_candidate(state: RaftState, request: VoteRequest) -> VoteResponse:
    response = _on_vote(state, request)
    partition = messages.partition_of(request)
    if partition is None or partition.pre_vote:
        return response
    if not response.topics or state.leader_id is not None:
        return response
    if response.topics[0].partitions[0].vote_granted:
        state.save(state.election._replace(leader_id=partition.replica_id))
    return response


def _clean_one_more(state: RaftState, event: SnapshotTaken) -> None:
    _on_taken(state, event)
    if 0 < state.log.start_offset < (state.high_watermark or 0) - 1:
        state.log.start_offset += 1


def _count_unsynced(node: raft_node.SimNode) -> None:
    """Send outcomes before the writes of the turn are synced."""
    if node._is_busy or not node._pending or node.is_paused:
        return
    pending, node._pending = node._pending, []
    node._finish(storage_turn.write(node.storage, pending).outcomes)


def _minority(self: VoterSet) -> int:
    return max(1, len(self.voters) // 2)


def _any_directory(self: VoterSet, key: ReplicaKey) -> bool:
    return self.get(key.id) is not None


def _is_anybody(state: RaftState, voter_id: int, directory_id: bytes) -> bool:
    return voter_id in (-1, state.config.node_id)


def _unchecked_change(state: RaftState, cluster_id: str | None) -> Leader:
    if not isinstance(state.role, Leader):
        raise errors.NotLeaderOrFollower
    return state.role


def _jump(state: RaftState, leader: Leader, voters: VoterSet) -> None:
    """Replace half of the voters in one step."""
    keep = [v for v in voters if v.id == state.config.node_id]
    _write(state, leader, VoterSet.of(keep or voters))


_write = reconfig._write


def _clean_everything(state: RaftState, event: SnapshotTaken) -> None:
    """Delete the whole log after a snapshot, including records that it does not contain."""
    state.log.add_snapshot(event.id)
    state.log.trim_to(state.log.end_offset)
    state.emit(CleanLog(state.log.end_offset))


def _never_resign(state: RaftState) -> float:
    return inf


def _no_pre_vote(state: RaftState) -> None:
    if state.voters.is_only(state.key):
        election.become_leader(state, frozenset((state.config.node_id,)))
    else:
        election.become_candidate(state)


def _any_transition(source: type[Role], target: type[Role]) -> None:
    """Allow every change of role, so that the drills must find the mistake."""


def _always_would_vote(state: RaftState) -> bool:
    return True


def _count_ids(state: RaftState, role: Leader) -> list[int]:
    """Count replicas that fetched recently by node id, ignoring their directory ids."""
    since = role.check_at - progress._check_timeout(state)
    recent = {r.key.id for r in role.replicas.values() if r.fetched_at > since}
    return [*recent, state.config.node_id]


def _own_counts(state: RaftState, role: Leader) -> dict[int, int]:
    return {**_voter_progress(state, role), state.config.node_id: state.log.end_offset}


_voter_progress = progress.voter_progress


def _no_way_back(self: VoterHistory, end_offset: int) -> None:
    """Keep the voter sets beyond a truncated log's new end."""


def _install_unsynced(
    storage: DiskStorage, snapshot: SnapshotId
) -> SnapshotLoaded | SnapshotRefused:
    """Rename the snapshot into place without syncing its bytes."""
    sync = SimFile.sync
    SimFile.sync = _nothing  # type: ignore[method-assign]
    try:
        return _install(storage, snapshot)
    finally:
        SimFile.sync = sync  # type: ignore[method-assign]


def _nothing(self: SimFile) -> None:
    """Sync nothing."""


_install = DiskStorage.install_snapshot


def _always_sound(*_: object) -> bool:
    return True


def _no_damage(*_: object) -> None:
    """Find no damage in anything."""


def _fetch_unchecked(storage: MetadataStorage, response: FetchResponse, slices: object) -> None:
    """Serve batches from the disk unchecked."""
    for topic in response.responses:
        for part in topic.partitions:
            if isinstance(part.records, LogSlice):
                piece = part.records
                part.records = storage.read(piece.start_offset, piece.end_offset, piece.max_bytes)


def _snapshot_unchecked(storage: MetadataStorage, response: FetchSnapshotResponse) -> bool:
    """Serve snapshots from the disk unchecked."""
    for topic in response.topics:
        for part in topic.partitions:
            if isinstance(part.unaligned_records, SnapshotSlice):
                piece = part.unaligned_records
                part.size = storage.snapshot_size(piece.id)
                part.unaligned_records = storage.read_snapshot(
                    piece.id, piece.position, piece.max_bytes
                )
    return True


def _load_unchecked(storage: SimStorage, configured: VoterSet) -> Recovered:
    return storage.cache.load(configured)


MUTATIONS: Final = (
    Mutation(
        "vote-without-fsync",
        "quorum-state is not synced before the vote is sent",
        ((SimStorage, "save_election", _vote_unsynced),),
        (42,),
    ),
    Mutation(
        "send-before-fsync",
        "answers and fetches leave before what they promise is on disk",
        ((raft_node.SimNode, "_take_turn", _count_unsynced),),
        (42, 43),
    ),
    Mutation(
        "trust-page-cache",
        "records that a killed process had not synced are acknowledged before they are synced",
        ((DiskStorage, "_keep_what_was_found", _trust_page_cache),),
        (42, 43),
    ),
    Mutation(
        "commit-old-epoch",
        "records of earlier epochs are committed by counting replicas (Raft, figure 8)",
        ((progress, "update_high_watermark", _commit_old_epoch),),
        (43,),
    ),
    Mutation(
        "vote-twice",
        "the node does not remember its vote of this epoch",
        ((voting, "_may_vote", _vote_again),),
        (42,),
    ),
    Mutation(
        "vote-for-shorter-log",
        "a candidate's log is not compared with the voter's own",
        ((voting, "on_vote", _forget_vote),),
        (43,),
    ),
    Mutation(
        "no-divergence-check",
        "the leader takes any fetch offset for a prefix of its log",
        ((LogState, "validate", _trust_any_offset),),
        (43,),
    ),
    Mutation(
        "no-truncation",
        "the follower does not cut what the leader does not have",
        ((replication, "_truncate", _no_truncation),),
        (43, 44),
    ),
    Mutation(
        "truncate-to-own-mark",
        "the follower cuts whatever it does not know to be committed (KIP-101)",
        ((replication, "_truncate", _to_own_mark),),
        (43,),
    ),
    Mutation(
        "believe-in-candidate",
        "the voter takes the candidate of its vote for the leader",
        ((voting, "on_vote", _follow_candidate),),
        (42,),
    ),
    Mutation(
        "start-without-snapshot",
        "the log begins a little after the end of the snapshot that replaces its beginning",
        ((cleaning, "on_taken", _clean_one_more),),
        (43,),
    ),
    Mutation(
        "majority-too-small",
        "half of an even number of voters counts as a majority",
        ((VoterSet, "majority", property(_minority)),),
        (43, 46),
    ),
    Mutation(
        "voters-jump",
        "the voter set changes by more than one voter at a time",
        ((reconfig, "_write", _jump), (reconfig, "check_change", _unchecked_change)),
        (46,),
    ),
    Mutation(
        "ignore-directory-id",
        "a voter that lost its disk votes as if it had not",
        ((VoterSet, "has", _any_directory), (voting, "is_me", _is_anybody)),
        (45,),
    ),
    Mutation(
        "clean-uncommitted",
        "the log is cleaned beyond the snapshot that replaces it",
        ((cleaning, "on_taken", _clean_everything),),
        (43,),
    ),
    Mutation(
        "never-resign",
        "a leader that no majority fetches from goes on leading",
        ((progress, "_check_deadline", _never_resign),),
        (44,),
    ),
    Mutation(
        "skip-pre-vote",
        "a node that lost its leader raises the epoch at once",
        (
            (election, "become_prospective", _no_pre_vote),
            (transitions, "check", _any_transition),
        ),
        (44,),
    ),
    Mutation(
        "pre-vote-always",
        "pre-votes are granted while the leader answers",
        ((voting, "_would_vote", _always_would_vote),),
        (44,),
    ),
    Mutation(
        "count-strangers",
        "a leader counts the fetches of a voter's id on an empty disk, and does not resign",
        ((progress, "_recent_voters", _count_ids),),
        (44, 45),
    ),
    Mutation(
        "removed-leader-counts-itself",
        "a leader that is no longer a voter counts its own disk for a majority",
        ((progress, "voter_progress", _own_counts),),
        (43, 46),
    ),
    Mutation(
        "voters-survive-truncation",
        "a voter set that was cut off the log goes on counting",
        ((VoterHistory, "truncate", _no_way_back),),
        (46,),
    ),
    Mutation(
        "install-before-sync",
        "a fetched snapshot takes the log's place before it is synced",
        ((DiskStorage, "install_snapshot", _install_unsynced),),
        (43, 45),
    ),
    Mutation(
        "append-damaged",
        "a follower appends what it fetched without looking at the CRC",
        ((replication, "crc_ok", _always_sound),),
        (43,),
    ),
    Mutation(
        "serve-rotten-batches",
        "a leader does not look at the CRC of the batches that it serves",
        ((storage_turn, "_fill_fetch", _fetch_unchecked),),
        (44,),
    ),
    Mutation(
        "serve-rotten-snapshots",
        "a leader does not look at a snapshot when its first piece is fetched",
        ((storage_turn, "_fill_snapshot", _snapshot_unchecked),),
        (44,),
    ),
    Mutation(
        "deliver-rotten-batches",
        "a node delivers committed batches without looking at their CRC",
        ((raft_node, "damage", SimpleNamespace(check_log=_no_damage)),),
        (43,),
    ),
    Mutation(
        "start-on-a-rotten-disk",
        "a node starts without looking at the batches and snapshots on its disk",
        (
            (SimStorage, "load", _load_unchecked),
            (disk_storage, "first_damaged", _no_damage),
            (disk_storage, "is_whole", _always_sound),
        ),
        (44,),
    ),
)
