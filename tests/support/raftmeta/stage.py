"""Brings a node into its state at the beginning of a scenario.

What the recording shows by itself (a log's end, the epoch, the high watermark) is read off the
node's first frames; the rest is in :mod:`tests.support.raftmeta.scenes`.
"""

from base64 import b64decode
from math import inf

import attrs

from kwire.codec.messages.control_records import VotersRecord
from kwire.raftmeta.raft import progress
from kwire.raftmeta.raft.control_records import control_records, note_voters
from kwire.raftmeta.raft.events import Started
from kwire.raftmeta.raft.log_state import EpochStart, LogState, SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.raft import Raft, Recovered
from kwire.raftmeta.raft.roles import Follower, Leader
from kwire.raftmeta.raft.state import CHECK_QUORUM_FACTOR, RaftConfig
from kwire.raftmeta.raft.voters import (
    Node,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterHistory,
    VoterSet,
)
from kwire.records.header import headers, parse
from kwire.types import uuid_bytes
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.script import Fixed
from tests.support.raftmeta.conversations import (
    Frame,
    Recording,
    batches,
    cluster_of,
    name_of,
    recording,
)
from tests.support.raftmeta.deviations import idle_log
from tests.support.raftmeta.replay import Replay
from tests.support.raftmeta.scenes import EPOCHS, Scene


def open_scene(scene: Scene) -> Replay:
    """Return the node in its state at the beginning, ready to play."""
    recorded = recording(scene.number)
    name = name_of(scene.node)
    frames = [f for f in recorded.of(name) if f.is_raft and f.source != f.target]
    library = batches(cluster_of(scene.number))
    config = RaftConfig(
        node_id=scene.node,
        directory_id=_directories(recorded, newest=scene.fresh and not scene.alone)[scene.node],
        cluster_id=_cluster_id(frames),
        endpoints=() if scene.is_broker else (_endpoint(scene.port or 20820 + scene.node),),
        listener="CONTROLLER",
        bootstrap=tuple(Node(-1 - n, "127.0.0.1", 20820 + n) for n in (1, 2, 3)),
        can_vote=not scene.is_broker,
        **scene.changes,  # type: ignore[arg-type]
    )
    disk = MemoryStorage()
    configured = _voters(recorded, scene) if not scene.dynamic else VoterSet()
    history = _history(recorded, scene)
    if scene.alone:
        disk.store_snapshot(SnapshotId(0, 0), [standalone()])
    if scene.fresh:

        def start() -> Raft:
            return Raft(config, disk.load(configured), Fixed(0.5))

        return Replay(recorded, scene.node, start(), disk, start, dict(scene.late), running=False)
    if history.latest:  # The recording's old addresses are not other nodes.
        config = attrs.evolve(config, bootstrap=())
    epoch, leader = _epoch(frames, scene) if scene.election is None else (0, None)
    end = scene.end if scene.end is not None else _end(frames, name)
    starts = [e for e in EPOCHS[cluster_of(scene.number)] if e.start_offset < end]
    starts = [EpochStart(e.epoch, max(e.start_offset, scene.start)) for e in starts]
    disk.start_offset = disk.end_offset = scene.start
    for begin, following in zip(starts, [*starts[1:], EpochStart(0, end)], strict=True):
        data = idle_log(library, begin.epoch, begin.start_offset, following.start_offset)
        disk.append(data, begin.start_offset)
    log = LogState(scene.start, end, list(starts), [scene.snapshot] if scene.snapshot else [])
    if scene.snapshot:
        disk.store_snapshot(scene.snapshot, [_snapshot(recorded)])
    election = scene.election or ElectionState(epoch, leader)
    raft = Raft(config, Recovered(election, log, history), Fixed(0.5))

    def restart() -> Raft:
        state = raft.state
        kept_log = disk.load(configured).log
        return Raft(config, Recovered(state.election, kept_log, state.history), Fixed(0.5))

    replay = Replay(recorded, scene.node, raft, disk, restart, dict(scene.late))
    if scene.snapshot:
        replay.reach.committed.add(scene.snapshot.end_offset)
    committed = scene.committed
    if committed is None:
        committed = _high_watermark(frames, name, end)
    if scene.restarted:
        replay.running = False
        return replay
    raft.state.high_watermark = committed
    replay.reach.committed.add(-1 if committed is None else committed)
    if election.leader_id == scene.node:
        check_at = config.fetch_timeout_s * CHECK_QUORUM_FACTOR
        role = Leader(starts[-1].start_offset, frozenset((scene.node,)), check_at, is_active=True)
        raft.state.change_role(role)
        for voter in raft.state.voters:
            progress.replica_of(raft.state, role, voter.key).begin_at = config.fetch_timeout_s
        if scene.primed:
            replay.prime()
    else:
        replay.feed(Started())
        role_now = raft.state.role
        if isinstance(role_now, Follower):  # it has done so long ago
            role_now.update_voter_at = inf
            role_now.refuse_pre_votes_until = 2.0
    return replay


def _endpoint(port: int) -> VoterEndpoint:
    return VoterEndpoint("CONTROLLER", "127.0.0.1", port)


def play(scene: Scene) -> Replay:
    """Replay the whole scene."""
    replay = open_scene(scene)
    replay.play()
    return replay


def _directories(recorded: Recording, *, newest: bool = False) -> dict[int, bytes]:
    """Return each node's directory id, from requests that name it; a wiped node has a new one."""
    ids: dict[int, bytes] = {}
    for frame in recorded.frames:
        if frame.is_request and frame.is_raft and frame.api in ("Fetch", "Vote"):
            part = frame.part
            node = part["replicaId"] if frame.api == "Vote" else _sender(frame)
            directory = uuid_bytes(part["replicaDirectoryId"])
            if newest:
                ids[node] = directory
            ids.setdefault(node, directory)
    for data in batches(cluster_of(recorded.name.split("-")[0])).values():
        for _, message in control_records(data, 0, parse(data)) if parse(data).is_control else ():
            for voter in message.voters if isinstance(message, VotersRecord) else ():
                ids.setdefault(voter.voter_id, voter.voter_directory_id)
    for node in (1, 2, 3):
        ids.setdefault(node, bytes(15) + bytes([node]))
    return ids


def _sender(frame: Frame) -> int:
    node: int = frame.body["replicaState"]["replicaId"]
    return node


def _snapshot(recorded: Recording) -> bytes:
    """The snapshot that was fetched, from its pieces."""
    pieces: dict[int, bytes] = {}
    for frame in recorded.frames:
        if frame.api == "FetchSnapshot" and not frame.is_request:
            part = frame.part
            pieces[part["position"]] = b64decode(part["unalignedRecords"])
    return b"".join(data for _, data in sorted(pieces.items()))


def standalone() -> bytes:
    """Return the bootstrap snapshot of controller 1: a snapshot of its log shows its voters."""
    data = _snapshot(recording("05"))
    return data[: parse(data).size]


def _cluster_id(frames: list[Frame]) -> str:
    return next((f.body["clusterId"] for f in frames if f.body.get("clusterId")), "")


def _voters(recorded: Recording, scene: Scene) -> VoterSet:
    ids = _directories(recorded)
    return VoterSet.of(
        Voter(
            ReplicaKey(n, ids[n]) if scene.dynamic else ReplicaKey(n),
            (_endpoint(20820 + n),),
        )
        for n in scene.voters
    )


def _history(recorded: Recording, scene: Scene) -> VoterHistory:
    """Return the voters by offset: configured, or from the control records of the log so far."""
    if not scene.dynamic:
        return VoterHistory([(-1, _voters(recorded, scene))])
    if scene.fresh:
        return VoterHistory()
    history = VoterHistory([(2, _voters(recorded, scene))], [(1, 1)])
    for (_, offset), data in sorted(batches(cluster_of(scene.number)).items()):
        if scene.end is not None and offset < scene.end and parse(data).is_control:
            note_voters(history, data, 0, parse(data))
    return history


def _epoch(frames: list[Frame], scene: Scene) -> tuple[int, int | None]:
    """Epoch and leader, from the first answer that has them."""
    for frame in frames:
        if frame.api == "Fetch" and not frame.is_request:
            current = frame.part["currentLeader"]
            return current["leaderEpoch"], None if current["leaderId"] < 0 else current["leaderId"]
    raise AssertionError(f"{scene}: no frame names the leader")


def _end(frames: list[Frame], name: str) -> int:
    """The log's end, from the first Fetch: a follower's own, or one that is caught up."""
    for frame in frames:
        if frame.api == "Fetch" and not frame.is_request and frame.records:
            _, header = next(iter(headers(frame.records)))
            return header.base_offset
        if frame.api == "Fetch" and frame.is_request:
            offset: int = frame.part["fetchOffset"]
            return offset
    raise AssertionError(f"{name}: no Fetch")


def _high_watermark(frames: list[Frame], name: str, end: int) -> int | None:
    for frame in frames:
        if frame.api != "Fetch":
            continue
        if frame.is_request and frame.source == name:
            from_request: int = frame.part["highWatermark"]
            return min(from_request, end) if from_request >= 0 else None
        from_answer: int = frame.part["highWatermark"]
        if not frame.is_request and frame.source == name and from_answer >= 0:
            return min(from_answer, end)
    return None
