"""The durable election state of a raft node (epoch, vote and leader), and its file.

Rules: it is on disk before any message that depends on it is sent; a node that cannot read it does
not start, because it may have voted.
"""

import json
from typing import NamedTuple

from kwire.raftmeta.raft.voters import ReplicaKey, VoterSet
from kwire.types import ZERO_UUID, uuid_bytes, uuid_text

NO_NODE = -1
QUORUM_STATE = "quorum-state"
VERSIONS = (0, 1)
REMEDY = (
    "restore a copy; if this node is a broker or the only voter, deleting the file is safe; any "
    "other voter may have voted, so remove it from the voters, format its metadata directory anew "
    "and let it join again"
)


class DamagedQuorumState(ValueError):
    """The file's content cannot have been written by this node."""


class ElectionState(NamedTuple):
    """One epoch of the quorum, as known to this node."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


def encode(state: ElectionState, voters: VoterSet, kraft_version: int) -> bytes:
    """Return the file's single line; version 0 also lists the configured voters."""
    leader = NO_NODE if state.leader_id is None else state.leader_id
    voted = ReplicaKey(NO_NODE) if state.voted is None else state.voted
    fields: dict[str, object]
    if kraft_version == 0:
        fields = {
            "clusterId": "",
            "leaderId": leader,
            "leaderEpoch": state.epoch,
            "votedId": voted.id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": node_id} for node_id in voters.ids],
            "data_version": 0,
        }
    else:
        fields = {
            "leaderId": leader,
            "leaderEpoch": state.epoch,
            "votedId": voted.id,
            "votedDirectoryId": uuid_text(voted.directory_id),
            "data_version": 1,
        }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(data: bytes) -> ElectionState:
    """Return the state in the file, in either version; raise DamagedQuorumState."""
    if not data.strip():
        raise DamagedQuorumState(f"{QUORUM_STATE} is empty; {REMEDY}")
    try:
        fields = json.loads(data)
        voted_id = int(fields["votedId"])
        leader_id = int(fields["leaderId"])
        epoch = int(fields["leaderEpoch"])
        version = int(fields["data_version"])
        directory = fields.get("votedDirectoryId")
        directory_id = ZERO_UUID if directory is None else uuid_bytes(directory)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedQuorumState(f"{QUORUM_STATE} is damaged: {data[:80]!r}; {REMEDY}") from error
    if version not in VERSIONS:
        raise DamagedQuorumState(
            f"{QUORUM_STATE} has version {version}, not one of {VERSIONS}; start the release that "
            "wrote it"
        )
    return ElectionState(
        epoch=epoch,
        leader_id=None if leader_id < 0 else leader_id,
        voted=None if voted_id < 0 else ReplicaKey(voted_id, directory_id),
    )
