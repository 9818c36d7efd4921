"""Where the nodes of the recorded scenarios stand when a scenario begins.

What the recording shows by itself (a log's end, the epoch, the high watermark) is read off the
node's first frames; the rest (who votes, where epochs began) is the story so far, told here.
"""

from base64 import b64decode
from collections.abc import Mapping
from math import inf
from typing import Final

import attrs

from kwire.codec.messages.control_records import VotersRecord
from kwire.raftmeta import progress
from kwire.raftmeta.control import control_records, note_voters
from kwire.raftmeta.events import Started
from kwire.raftmeta.log import EpochEnd, LogState, SnapshotId
from kwire.raftmeta.quorum_state import ElectionState
from kwire.raftmeta.raft import Raft, Recovered
from kwire.raftmeta.roles import Follower, Leader
from kwire.raftmeta.state import RaftConfig
from kwire.raftmeta.storage import MemoryStorage
from kwire.raftmeta.voters import Endpoint, Node, ReplicaKey, Voter, VoterHistory, VoterSet
from kwire.records.header import headers, parse
from kwire.testing.raft_script import Fixed
from kwire.types import uuid_bytes
from tests.raftmeta.conversations import (
    Frame,
    Key,
    Recording,
    batches,
    cluster_of,
    name_of,
    recording,
)
from tests.raftmeta.deviations import idle_log
from tests.raftmeta.replay import Replay

EPOCHS: Final[dict[str, tuple[EpochEnd, ...]]] = {
    "first": (EpochEnd(1, 0), EpochEnd(2, 232), EpochEnd(3, 252), EpochEnd(4, 292)),
    "second": (EpochEnd(1, 0), EpochEnd(2, 125), EpochEnd(3, 134)),
    "third": (EpochEnd(1, 0), EpochEnd(3, 36)),
    "fourth": (EpochEnd(1, 0),),
}
"""Where the epochs of the clusters' logs began."""


@attrs.frozen(kw_only=True, eq=False)
class Scene:
    """One node of one scenario."""

    number: str
    node: int
    fresh: bool = False
    """It starts during the scenario, on an empty directory."""
    start: int = 0
    """Where its log begins."""
    port: int = 0
    restarted: bool = False
    """It starts during the scenario, on its directory."""
    election: ElectionState | None = None
    end: int | None = None
    committed: int | None = None
    voters: tuple[int, ...] = (1, 2, 3)
    dynamic: bool = False
    """kraft.version 1."""
    snapshot: SnapshotId | None = None
    primed: bool = True
    """Whether the Fetches that a leader holds at the beginning can be told from the recording."""
    late: Mapping[Key, float] = attrs.field(factory=dict)
    """What the node took up that many milliseconds after the proxy had passed it on."""
    changes: Mapping[str, object] = attrs.field(factory=dict)

    @property
    def is_broker(self) -> bool:
        return self.node > 10

    def __str__(self) -> str:
        return f"{self.number}-n{self.node}"


def _second(
    number: str,
    node: int,
    end: int,
    *,
    start: int = 0,
    fresh: bool = False,
    late: Mapping[Key, float] | None = None,
) -> Scene:
    """A node of the second cluster: kraft.version 1, and snapshots."""
    taken = SnapshotId(51, 1) if 0 < end < 86 else SnapshotId(85, 1)
    return Scene(
        number=number,
        node=node,
        end=end,
        start=start,
        fresh=fresh,
        dynamic=True,
        voters=(1,),
        late=late or {},
        snapshot=None if fresh else taken,
        port=20825 if node == 3 and number >= "06d" else 0,
    )


BROKERS: Final = (("06d", 97), ("06e", 114), ("06f", 124), ("06g", 134))
OPENED = ElectionState(1, 1)
SCENES: Final = (
    Scene(number="01", node=1, fresh=True, late={(2, 122): 20.0}),
    Scene(number="01", node=2, fresh=True),
    Scene(number="01", node=3, fresh=True),
    *(Scene(number="02", node=n) for n in (1, 2, 3)),
    Scene(number="03", node=1, late={(6, 584): 5.0}),
    Scene(number="03", node=3, late={(5, 570): 10.0, (67, 524): 1.0}),
    Scene(number="03b", node=1),
    Scene(number="03b", node=2, restarted=True, election=ElectionState(1, 2), end=232),
    Scene(number="03b", node=3),
    Scene(number="04", node=1, late={(71, 3234): 2.5, (68, 2821): 2.5, (70, 3312): 0.5}),
    Scene(number="04", node=2, late={(79, 947): 1.0}),
    Scene(number="04", node=3),
    Scene(number="05b", node=1, fresh=True),
    Scene(number="05b", node=2),
    Scene(number="05b", node=3),
    Scene(number="13", node=1),
    Scene(number="13", node=2, committed=292),
    Scene(number="13", node=3),
    *(Scene(number="14", node=n) for n in (1, 2, 3)),
    Scene(number="15", node=1, election=OPENED, end=36, committed=36),
    Scene(number="15", node=2, election=OPENED, end=36, committed=36),
    Scene(number="15", node=3, election=OPENED, end=36, committed=36, late={(8, 629): 2.5}),
    Scene(number="16", node=1, fresh=True, changes={"snapshot_max_bytes": 400}),
    Scene(number="16", node=2),
    Scene(
        number="16",
        node=3,
        snapshot=SnapshotId(44, 3),
        changes={"snapshot_max_bytes": 400},
        primed=False,
    ),
    *(Scene(number="17", node=n) for n in (1, 2, 3)),
    _second("05", 1, 61),
    _second("05", 2, 0, fresh=True),
    *(_second("06b", node, 67, start=start) for node, start in ((1, 0), (2, 51))),
    *(_second("06c", node, 80, start=start) for node, start in ((1, 0), (2, 51), (3, 51))),
    *(_second("05c", node, 86, start=start) for node, start in ((1, 0), (2, 51), (3, 51))),
    *(_second("06d", node, 97, start=start) for node, start in ((1, 0), (2, 51), (3, 51))),
    *(_second("06e", node, 114, start=start) for node, start in ((1, 0), (2, 51), (3, 51))),
    _second("06f", 1, 124, late={(13, 2302): 2.5}),
    *(_second("06f", node, 124, start=51) for node in (2, 3)),
    _second("06g", 1, 134),
    _second("06g", 2, 134, start=51, late={(33, 778): 95.0}),
    _second("06g", 3, 134, start=51, late={(33, 779): 2.5, (38, 2546): 3.0}),
    *(Scene(number="07", node=n) for n in (1, 2, 3)),
    *(Scene(number="11", node=n) for n in (1, 2, 3)),
    *(Scene(number="08", node=n) for n in (1, 2, 3)),
    *(Scene(number="09", node=n) for n in (1, 2, 3)),
    *(Scene(number="09b", node=n) for n in (1, 2, 3)),
    *(Scene(number="10", node=n) for n in (1, 2, 3)),
    *(Scene(number="19", node=n) for n in (1, 2, 3)),
    Scene(number="18", node=1, fresh=True, late={(2, 87): 5.0}),
    Scene(number="18", node=2, fresh=True, late={(5, 89): 50.0}),
    Scene(number="18", node=3, fresh=True, late={(2, 90): 50.0}),
    *(Scene(number="12", node=n) for n in (1, 2, 3)),
    Scene(number="07", node=11, fresh=True),
    *(
        Scene(number=number, node=n)
        for number in ("11", "08", "10", "09", "12", "03", "03b", "04", "05b", "13")
        for n in (11, 12, 13)
    ),
    *(Scene(number="09b", node=n) for n in (11, 13)),
    Scene(number="09b", node=12, restarted=True),
    _second("05c", 11, 0, fresh=True),
    *(_second(number, 11, end, start=85) for number, end in BROKERS),
)


ELSEWHERE: Final = {
    "06a": "one controller alone, to whom nobody of the quorum speaks",
}
"""Scenarios without a scene, and why."""

COUNTS: Final = {
    "01-n1": 27,
    "01-n2": 46,
    "01-n3": 27,
    "02-n1": 12,
    "02-n2": 30,
    "02-n3": 12,
    "03-n1": 46,
    "03-n3": 27,
    "03b-n1": 48,
    "03b-n2": 9,
    "03b-n3": 9,
    "04-n1": 33,
    "04-n2": 79,
    "04-n3": 28,
    "05b-n1": 9,
    "05b-n2": 46,
    "05b-n3": 9,
    "13-n1": 29,
    "13-n2": 31,
    "13-n3": 17,
    "14-n1": 26,
    "14-n2": 14,
    "14-n3": 9,
    "15-n1": 8,
    "15-n2": 14,
    "15-n3": 35,
    "16-n1": 12,
    "16-n2": 9,
    "16-n3": 25,
    "17-n1": 8,
    "17-n2": 7,
    "17-n3": 27,
    "05-n1": 11,
    "05-n2": 9,
    "06b-n1": 8,
    "06b-n2": 4,
    "06c-n1": 13,
    "06c-n2": 4,
    "06c-n3": 4,
    "05c-n1": 37,
    "05c-n2": 10,
    "05c-n3": 10,
    "06d-n1": 46,
    "06d-n2": 12,
    "06d-n3": 13,
    "06e-n1": 31,
    "06e-n2": 8,
    "06e-n3": 8,
    "06f-n1": 25,
    "06f-n2": 15,
    "06f-n3": 24,
    "06g-n1": 18,
    "06g-n2": 33,
    "06g-n3": 19,
    "07-n1": 10,
    "07-n2": 44,
    "07-n3": 10,
    "11-n1": 10,
    "11-n2": 56,
    "11-n3": 10,
    "08-n1": 22,
    "08-n2": 147,
    "08-n3": 22,
    "09-n1": 8,
    "09-n2": 49,
    "09-n3": 8,
    "09b-n1": 20,
    "09b-n2": 130,
    "09b-n3": 20,
    "10-n1": 10,
    "10-n2": 58,
    "10-n3": 10,
    "19-n1": 77,
    "19-n2": 20,
    "19-n3": 25,
    "18-n1": 77,
    "18-n2": 42,
    "18-n3": 44,
    "12-n1": 22,
    "12-n2": 144,
    "12-n3": 22,
}
"""How many messages and batches each scene compares."""


def open_scene(scene: Scene) -> Replay:
    """The node as it stands at the beginning, ready to play."""
    found = recording(scene.number)
    name = name_of(scene.node)
    frames = [f for f in found.of(name) if f.is_raft and f.source != f.target]
    library = batches(cluster_of(scene.number))
    config = RaftConfig(
        node_id=scene.node,
        directory_id=_directories(found, newest=scene.fresh)[scene.node],
        cluster_id=_cluster_id(frames),
        endpoints=() if scene.is_broker else (_endpoint(scene.port or 20820 + scene.node),),
        bootstrap=tuple(Node(-1 - n, "127.0.0.1", 20820 + n) for n in (1, 2, 3)),
        can_vote=not scene.is_broker,
        **scene.changes,  # type: ignore[arg-type]
    )
    disk = MemoryStorage()
    configured = _voters(found, scene) if not scene.dynamic else VoterSet()
    history = _history(found, scene)
    if scene.fresh:

        def start() -> Raft:
            return Raft(config, disk.load(configured), Fixed(0.5))

        return Replay(found, scene.node, start(), disk, start, dict(scene.late), running=False)
    epoch, leader = _epoch(frames, scene) if scene.election is None else (0, None)
    end = scene.end if scene.end is not None else _end(frames, name)
    starts = [e for e in EPOCHS[cluster_of(scene.number)] if e.end_offset < end]
    starts = [EpochEnd(e.epoch, max(e.end_offset, scene.start)) for e in starts]
    disk.start_offset = disk.end_offset = scene.start
    for begin, following in zip(starts, [*starts[1:], EpochEnd(0, end)], strict=True):
        data = idle_log(library, begin.epoch, begin.end_offset, following.end_offset)
        disk.append(data, begin.end_offset)
    log = LogState(scene.start, end, list(starts), [scene.snapshot] if scene.snapshot else [])
    if scene.snapshot:
        disk.store_snapshot(scene.snapshot, [_snapshot(found)])
    election = scene.election or ElectionState(epoch, leader)
    raft = Raft(config, Recovered(election, log, history), Fixed(0.5))

    def restart() -> Raft:
        kept = raft.state
        kept_log = disk.load(configured).log
        return Raft(config, Recovered(kept.election, kept_log, kept.history), Fixed(0.5))

    replay = Replay(found, scene.node, raft, disk, restart, dict(scene.late))
    committed = scene.committed if scene.committed is not None else _committed(frames, name, end)
    if scene.restarted:
        replay.running = False
        return replay
    raft.state.high_watermark = committed
    if election.leader_id == scene.node:
        role = Leader(starts[-1].end_offset, frozenset((scene.node,)), 3.0, is_active=True)
        raft.state.role = role
        for voter in raft.state.voters:
            progress.replica_of(raft.state, role, voter.key).begin_at = 2.0
        if scene.primed:
            replay.prime()
    else:
        replay.feed(Started())
        role_now = raft.state.role
        if isinstance(role_now, Follower):  # it has done so long ago
            role_now.update_voter_at = inf
            role_now.heard_until = 2.0
    return replay


def _endpoint(port: int) -> Endpoint:
    return Endpoint("CONTROLLER", "127.0.0.1", port)


def play(scene: Scene) -> Replay:
    """The whole scene."""
    replay = open_scene(scene)
    replay.play()
    return replay


def _directories(found: Recording, *, newest: bool = False) -> dict[int, bytes]:
    """Everybody's directory id, from the requests that name it; a wiped node has a new one."""
    ids: dict[int, bytes] = {}
    for frame in found.frames:
        if frame.is_request and frame.is_raft and frame.api in ("Fetch", "Vote"):
            part = frame.part
            node = part["replicaId"] if frame.api == "Vote" else _sender(frame)
            directory = uuid_bytes(part["replicaDirectoryId"])
            if newest:
                ids[node] = directory
            ids.setdefault(node, directory)
    for data in batches(cluster_of(found.name.split("-")[0])).values():
        for _, message in control_records(data, 0, parse(data)) if parse(data).is_control else ():
            for voter in message.voters if isinstance(message, VotersRecord) else ():
                ids.setdefault(voter.voter_id, voter.voter_directory_id)
    for node in (1, 2, 3):
        ids.setdefault(node, bytes(15) + bytes([node]))
    return ids


def _sender(frame: Frame) -> int:
    node: int = frame.body["replicaState"]["replicaId"]
    return node


def _snapshot(found: Recording) -> bytes:
    """The snapshot that was fetched, from its pieces."""
    pieces: dict[int, bytes] = {}
    for frame in found.frames:
        if frame.api == "FetchSnapshot" and not frame.is_request:
            part = frame.part
            pieces[part["position"]] = b64decode(part["unalignedRecords"])
    return b"".join(data for _, data in sorted(pieces.items()))


def _cluster_id(frames: list[Frame]) -> str:
    return next((f.body["clusterId"] for f in frames if f.body.get("clusterId")), "")


def _voters(found: Recording, scene: Scene) -> VoterSet:
    ids = _directories(found)
    return VoterSet.of(
        Voter(
            ReplicaKey(n, ids[n]) if scene.dynamic else ReplicaKey(n),
            (_endpoint(20820 + n),),
        )
        for n in scene.voters
    )


def _history(found: Recording, scene: Scene) -> VoterHistory:
    """Who votes since when: configured, or told by the control records of the log so far."""
    if not scene.dynamic:
        return VoterHistory([(-1, _voters(found, scene))])
    if scene.fresh:
        return VoterHistory()
    history = VoterHistory([(2, _voters(found, scene))], [(1, 1)])
    for (_, offset), data in sorted(batches(cluster_of(scene.number)).items()):
        if scene.end is not None and offset < scene.end and parse(data).is_control:
            note_voters(history, data, 0, parse(data))
    return history


def _epoch(frames: list[Frame], scene: Scene) -> tuple[int, int | None]:
    """Epoch and leader, from the first answer that has them."""
    for frame in frames:
        if frame.api == "Fetch" and not frame.is_request:
            known = frame.part["currentLeader"]
            return known["leaderEpoch"], None if known["leaderId"] < 0 else known["leaderId"]
    raise AssertionError(f"{scene}: nobody says who leads")


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


def _committed(frames: list[Frame], name: str, end: int) -> int | None:
    for frame in frames:
        if frame.api != "Fetch":
            continue
        if frame.is_request and frame.source == name:
            known: int = frame.part["highWatermark"]
            return min(known, end) if known >= 0 else None
        told: int = frame.part["highWatermark"]
        if not frame.is_request and frame.source == name and told >= 0:
            return min(told, end)
    return None
