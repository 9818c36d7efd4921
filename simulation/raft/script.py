"""A script interpreter for raft: commands in, all observable events out.

The network is manual: messages wait until the script delivers or drops them. Time advances only by
a command, and disks work instantly. A node's random numbers are always 0.5 plus its number / 100,
so the timers of lower numbers expire first.
"""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, cast

import attrs

from kwire.codec.messages.add_raft_voter import AddRaftVoterRequest
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.raftmeta.raft.events import (
    Answered,
    Append,
    Appended,
    Committed,
    Effect,
    Event,
    LeaderKnown,
    Received,
    Refused,
    Reply,
    Send,
    Shutdown,
    SnapshotLoaded,
    SnapshotRefused,
    SnapshotTaken,
    Started,
    TruncateLog,
)
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.records import snapshot_chunks
from kwire.raftmeta.storage.storage_turn import Outcome, write
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.node import brief
from simulation.raft.quorums import config_of, directory_of, voters_of

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import RaftRequest, RaftResponse

IN_FLIGHT_MAX = 10_000


@attrs.frozen
class Fixed:
    """A source of randomness that always returns the same value."""

    value: float

    def random(self) -> float:
        return self.value


@attrs.define(eq=False)
class Message:
    """A message in flight, until the script delivers or drops it."""

    source: int
    target: int
    event: Event
    text: str


@attrs.define(eq=False)
class Script:
    """The nodes of one script, and the messages in flight between them."""

    now: float = 0.0
    nodes: dict[int, Raft] = attrs.field(factory=dict)
    disks: dict[int, MemoryStorage] = attrs.field(factory=dict)
    configured: VoterSet = attrs.field(factory=VoterSet)
    flying: list[Message] = attrs.field(factory=list)
    cut: set[tuple[int, int]] = attrs.field(factory=set)
    out: list[str] = attrs.field(factory=list)

    def run(self, line: str) -> str:
        """Run one command; return the events that it caused, one per line, or ``ok``."""
        self.out = []
        name, *words = line.split()
        command: Callable[..., None] = getattr(self, f"do_{name}")
        command(*words)
        return "\n".join(self.out) or "ok"

    # Commands -------------------------------------------------------------------------------
    def do_voters(self, kind: str, *ids: str) -> None:
        """Set the voters: ``static 1 2 3`` configures them, ``dynamic`` writes checkpoint 0-0."""
        numbers = [int(n) for n in ids]
        if kind == "static":
            self.configured = voters_of(*numbers)
            return
        voters = VoterSet.of(config_of(n).as_voter for n in numbers)
        for number in numbers:
            start = SnapshotId(0, 0)
            chunks = snapshot_chunks(
                start, [], voters=voters, kraft_version=1, last_timestamp_ms=0, now_ms=0
            )
            self._disk(number).store_snapshot(start, chunks)

    def do_start(self, *ids: str) -> None:
        for number in map(int, ids):
            self._start(config_of(number))

    def do_join(self, number: str, directory: str = "") -> None:
        """Start a node with auto-join; with a new ``directory`` its disk is empty."""
        config = config_of(int(number), auto_join=True)
        if directory:
            self.disks[int(number)] = MemoryStorage()
            config = attrs.evolve(config, directory_id=directory_of(int(directory)))
        self._start(config)

    def _start(self, config: RaftConfig) -> None:
        number = config.node_id
        bootstrap = tuple(v for n in self.nodes if (v := config_of(n).as_voter))
        config = attrs.evolve(config, bootstrap=tuple(VoterSet.of(bootstrap).nodes()))
        recovered = self._disk(number).load(self.configured)
        self.nodes[number] = Raft(config, recovered, Fixed(0.5 + number / 100))
        self._feed(number, Started())

    def do_kill(self, number: str) -> None:
        """Kill a node; its disk and the messages that it has sent remain."""
        del self.nodes[int(number)]

    def do_stop(self, number: str) -> None:
        self._feed(int(number), Shutdown())

    def do_wait(self, seconds: str) -> None:
        """Let time pass: timers expire by time, and messages wait."""
        until = self.now + float(seconds)
        while True:
            number, raft = min(
                self.nodes.items(), key=lambda item: item[1].deadline, default=(0, None)
            )
            if raft is None or raft.deadline > until:
                break
            self.now = max(self.now, raft.deadline)
            self._feed(number, None)
        self.now = until

    def do_deliver(self, *_: str) -> None:
        """Deliver messages until none is in flight."""
        for _n in range(IN_FLIGHT_MAX):
            if not self.flying:
                return
            self._arrive(self.flying.pop(0))
        raise AssertionError("messages without end")

    def do_drop(self) -> None:
        """Lose all messages in flight."""
        self.flying.clear()

    def do_cut(self, source: str, target: str) -> None:
        self.cut.add((int(source), int(target)))

    def do_heal(self) -> None:
        self.cut.clear()

    def do_append(self, number: str, count: str) -> None:
        raft = self.nodes[int(number)]
        values = tuple(b"%d" % n for n in range(int(count)))
        self._feed(int(number), Append("append", raft.state.epoch, values))

    def do_snapshot(self, number: str, end_offset: str) -> None:
        raft, end = self.nodes[int(number)], int(end_offset)
        named = SnapshotId(end, raft.state.log.epoch_at(end - 1))
        voters, version = raft.state.history.at(end)
        chunks = snapshot_chunks(
            named, [], voters=voters, kraft_version=version, last_timestamp_ms=0, now_ms=0
        )
        self.disks[int(number)].store_snapshot(named, chunks)
        self._feed(int(number), SnapshotTaken(named))

    def do_add(self, leader: str, number: str) -> None:
        voter = config_of(int(number))
        listener = AddRaftVoterRequest.Listener
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=1000,
            voter_id=voter.node_id,
            voter_directory_id=voter.directory_id,
            listeners=[listener(name=e.name, host=e.host, port=e.port) for e in voter.endpoints],
        )
        self._feed(int(leader), Received("tool", request))

    def do_remove(self, leader: str, number: str) -> None:
        request = RemoveRaftVoterRequest(
            cluster_id=None, voter_id=int(number), voter_directory_id=directory_of(int(number))
        )
        self._feed(int(leader), Received("tool", request))

    def do_state(self) -> None:
        for number, raft in sorted(self.nodes.items()):
            state = raft.state
            epochs = " ".join(f"{e.epoch}@{e.start_offset}" for e in state.log.epochs)
            self.out.append(
                f"n{number} {type(state.role).__name__} epoch={state.epoch} "
                f"leader={state.leader_id} log={state.log.start_offset}..{state.log.end_offset} "
                f"[{epochs}] hw={state.high_watermark} voters={list(state.voters.ids)}"
            )

    # Parts of commands ----------------------------------------------------------------------
    def _disk(self, number: int) -> MemoryStorage:
        return self.disks.setdefault(number, MemoryStorage())

    def _arrive(self, message: Message) -> None:
        if (message.source, message.target) in self.cut or message.target not in self.nodes:
            return
        self.out.append(f"{message.source}->{message.target} {message.text}")
        self._feed(message.target, message.event)

    def _feed(self, number: int, event: Event | None) -> None:
        raft = self.nodes[number]
        before = type(raft.state.role).__name__, raft.state.epoch
        effects = raft.step(event, self.now, int(self.now * 1000))
        after = type(raft.state.role).__name__, raft.state.epoch
        if before != after:
            self.out.append(f"  n{number} {before[0]} {before[1]} => {after[0]} {after[1]}")
        for effect in effects:
            self._tell(number, effect)
        for outcome in write(self.disks[number], effects).outcomes:
            self._perform(number, outcome)

    def _tell(self, number: int, effect: Effect) -> None:
        match effect:
            case TruncateLog(end_offset):
                self.out.append(f"  n{number} truncates to {end_offset}")
            case Committed(end_offset):
                self.out.append(f"  n{number} commits up to {end_offset}")
            case Appended(_, base_offset, last_offset):
                self.out.append(f"  n{number} appends {base_offset}..{last_offset}")
            case Refused(_, error):
                self.out.append(f"  n{number} refuses: {error}")
            case LeaderKnown(leader_id, epoch, True):
                self.out.append(f"  n{number} is active as {leader_id} in epoch {epoch}")
            case _:
                pass

    def _perform(self, number: int, outcome: Outcome) -> None:
        match outcome:
            case Send(call_id, node, ApiVersionsRequest()):
                feature = ApiVersionsResponse.SupportedFeatureKey
                answer = ApiVersionsResponse(
                    api_keys=[],
                    supported_features=[
                        feature(name="kraft.version", min_version=0, max_version=1)
                    ],
                )
                event: Event = Answered(call_id, answer)
                self.flying.append(Message(node.id, number, event, "ApiVersionsResponse"))
            case Send(call_id, node, request):
                target = int(node.host.removeprefix("node-"))
                assert not isinstance(request, ApiVersionsRequest)
                event = Received((number, call_id), request)
                self.flying.append(Message(number, target, event, _describe(request)))
            case Reply(token, response):
                self._answer(number, token, response)
            case SnapshotRefused():
                self.out.append(f"  n{number} refuses snapshot {tuple(outcome.id)}")
                self._feed(number, outcome)
            case SnapshotLoaded():
                self.out.append(f"  n{number} loads snapshot {tuple(outcome.id)}")
                self._feed(number, outcome)
            case _:
                pass

    def _answer(self, number: int, token: Hashable, response: "RaftResponse") -> None:
        if not isinstance(token, tuple):
            code = response.error_code
            self.out.append(f"  {token} hears {type(response).__name__} error={code}")
            return
        caller, call_id = token
        event = Answered(call_id, response)
        self.flying.append(Message(number, caller, event, _describe(response)))


def _describe(message: object) -> str:
    """Return a message's type and its important fields."""
    name = type(message).__name__
    text = brief(Received("", cast("RaftRequest", message))) if "Request" in name else ""
    text = text.removeprefix("<- ").replace(" from tool", "") or name
    part = _part(message)
    for field in ("vote_granted", "leader_id", "leader_epoch", "error_code", "high_watermark"):
        if not text.startswith(("Vote ", "Fetch ", "Begin", "End")) and hasattr(part, field):
            text += f" {field}={getattr(part, field)}"
    records = getattr(part, "records", b"")
    if records:
        text += f" records={len(records)}B"
    diverging = getattr(part, "diverging_epoch", None)
    if diverging is not None and diverging.epoch >= 0:
        text += f" diverging={diverging.epoch}@{diverging.end_offset}"
    snapshot = getattr(part, "snapshot_id", None)
    if snapshot is not None and snapshot.end_offset >= 0:
        text += f" snapshot={snapshot.end_offset}-{snapshot.epoch}"
    return text


def _part(message: object) -> object:
    """Return a message's data for its only partition, or None if it has no partition."""
    topics = getattr(message, "topics", None) or getattr(message, "responses", None)
    return topics[0].partitions[0] if topics else None


def play(text: str) -> str:
    """Run the commands of a transcript; return the transcript with their current output."""
    script = Script()
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        head = lines[: lines.index("----")] if "----" in lines else lines
        comments = [line for line in head if line.startswith("#")]
        commands = [line for line in head if line and not line.startswith("#")]
        output = [script.run(command) for command in commands]
        blocks.append("\n".join([*comments, *commands, "----", *output]) if commands else block)
    return "\n\n".join(blocks) + "\n"
