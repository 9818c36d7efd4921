"""One node of a recorded conversation played by kwire's raft, and the comparison of its messages.

The node gets what Apache's node got, at the same time, and has to send the same: to each request
the same answer, and of its own accord the same requests in the same order to each node. Where
chance decides (which node asks for votes first, which one a node without a leader asks) the
recording decides instead, within the bounds that the settings give chance. What differs is
put down as a :class:`Deviation`, to be excused by the table of differences or not at all.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from math import inf
from typing import Any, Final

import attrs

from kwire.codec.apis import APIS
from kwire.codec.messages.fetch import FetchRequest
from kwire.raftmeta.raft.events import (
    Answered,
    AppendLog,
    Event,
    Received,
    Reply,
    Send,
    Shutdown,
    SnapshotLoaded,
    Started,
)
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.storage.storage_turn import write
from kwire.records.header import parse
from simulation.raft.memory_storage import MemoryStorage
from tests.support.codec.message_json import to_json
from tests.support.raftmeta.conversations import (
    Entry,
    Frame,
    Happening,
    Key,
    Recording,
    Refusals,
    gaps,
    name_of,
    refusals,
)
from tests.support.raftmeta.deviations import Deviation, SentRequest, differences, ordered_voters
from tests.support.raftmeta.growth import Growth
from tests.support.raftmeta.reach import CONTROLLERS, Reach
from tests.support.raftmeta.timers import CHANCE_MS, FETCH_TIMEOUT_MS, LOAD_MS, Timers

NOT_LEADER: Final = 6
FENCED: Final = 74
BACK_OFF_MS: Final = 16
"""The shortest time after which a node that refused, or is out of reach, may be tried again."""
PORTS: Final = {20825: 3}
"""Port of controller 3 once it had moved; otherwise N is behind 20820 + N."""
REFUSED_MS: Final = 1
"""Duration of a refusal."""
STABLE: Final = {api.name: api.stable for api in APIS}


@attrs.define(eq=False)
class Replay:
    """A node of a recording."""

    recording: Recording
    node: int
    raft: Raft
    disk: MemoryStorage
    restart: Callable[[], Raft]
    late: dict[Key, float] = attrs.field(factory=dict)
    """Requests that the recorded node took up that many milliseconds later, and not in turn."""
    now: float = 0.0
    """Milliseconds since the scenario began."""
    running: bool = True
    paused: bool = False
    starting: bool = False
    stopping: bool = False
    compared: Counter[str] = attrs.field(factory=Counter)
    deviations: list[Deviation] = attrs.field(factory=list)
    own_requests: list[SentRequest] = attrs.field(factory=list)
    owed: list[Frame] = attrs.field(factory=list)
    bound: dict[Key, int] = attrs.field(factory=dict)
    early: dict[Key, Frame] = attrs.field(factory=dict)
    """Answers to requests that kwire has not sent yet."""
    replies: dict[Hashable, dict[str, Any]] = attrs.field(factory=dict)
    unanswered: dict[Hashable, Frame] = attrs.field(factory=dict)
    """Recorded responses that kwire has not given yet."""
    requests: dict[Key, Frame] = attrs.field(factory=dict)
    due: list[tuple[float, int, Frame | None]] = attrs.field(factory=list)
    """Answers that are no frames of their own: when, to which call, and what (None: failed)."""
    reach: Reach = attrs.field(init=False)
    tried: dict[str, float] = attrs.field(factory=dict)
    """Time of the last request to a node that refused, or is out of reach."""
    waited: set[Key] = attrs.field(factory=set)
    """Fetches that the recorded node sent while kwire still waited for its turn."""
    growth: Growth = attrs.field(init=False)
    _timers: Timers = attrs.field(init=False)
    _refusals: list[Refusals] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        election = self.raft.state.election
        leader = -1 if election.leader_id is None else election.leader_id
        self.reach = Reach(self.name, seeking=not self.running, leader=(election.epoch, leader))
        self._refusals = refusals(self.recording, self.name)
        self.growth = Growth(self)
        mine = self.recording.of(self.name)
        self._timers = Timers([f for f in mine if f.source == self.name and f.is_raft])

    @property
    def name(self) -> str:
        return name_of(self.node)

    @property
    def _others(self) -> frozenset[str]:
        return CONTROLLERS - {self.name}

    # Playing a scenario ---------------------------------------------------------------------
    def play(self) -> None:
        """Replay the whole scenario."""
        for _, what in sorted(self._timeline(), key=lambda item: item[0]):
            what()
        self._settle()

    def _settle(self) -> None:
        """Report messages of one side alone at the end of the recording or of the node."""
        for frame in self.owed:
            kind = "overtaken" if self._is_overtaken(frame) else "not said"
            self._deviate(kind, frame, "", frame.body, None)
        for own in self.own_requests:
            self._deviate_request(self._why_alone(own), own)
        for frame in self.unanswered.values():
            self._deviate("not answered", frame, "", frame.body, None)
        self.owed, self.own_requests, self.unanswered = [], [], {}

    def _is_overtaken(self, frame: Frame) -> bool:
        """Return whether kwire waited, and the request was repeated or had an old epoch."""
        answer = self.early.get(frame.key)
        if frame.key not in self.waited or answer is None:
            return False
        later = (f for f in self.recording.of(self.name) if f.is_request and f.t > frame.t)
        is_repeated = any(f.api == "Fetch" and f.body == frame.body for f in later)
        return bool(answer.part["errorCode"] == FENCED or is_repeated)

    def _why_alone(self, own: SentRequest) -> str:
        """Return the reason for a request of ours that the recording does not have."""
        if own.api == "Fetch" and self.is_open(own) and self.now - own.at < LOAD_MS:
            return "under way at the end"
        if own.api == "Fetch" and own.at <= 0:
            return "asked before"
        if own.target in self.reach.stopped or own.is_hanging:
            return "to a node that is out of reach"
        if own.by_chance:
            return "asked meanwhile"
        if own.api == "Vote" and 0 <= own.at - self.reach.end_quorum_at < FETCH_TIMEOUT_MS:
            return "again after EndQuorumEpoch"
        return "too much"

    def prime(self) -> None:
        """A leader holds the Fetches that were sent before the scenario began."""
        state = self.raft.state
        first: dict[int, Frame] = {}
        for frame in self.recording.of(self.name):
            if not frame.is_raft or frame.api != "Fetch":
                continue
            earlier = first.setdefault(frame.conn, frame)
            if earlier.is_request or earlier.source != self.name or not frame.is_request:
                continue
            first[frame.conn] = frame
            request = frame.message()
            partition = request.topics[0].partitions[0]
            partition.fetch_offset, partition.last_fetched_epoch = state.log.end_offset, state.epoch
            partition.current_leader_epoch = state.epoch
            partition.high_watermark = state.high_watermark or -1
            self.requests[earlier.key] = frame
            self.feed(Received(earlier.key, request))

    def _timeline(self) -> Iterator[tuple[float, Callable[[], None]]]:
        for entry in self.recording.entries:
            t = entry.t
            if isinstance(entry, Frame) and entry.target == self.name:
                t += self.late.get(entry.key, 0.0)
            yield t, partial(self._on_entry, entry, t)
        for gap in gaps(self.recording, self.name):
            steps = int((gap.request.t - gap.start) // 400) + 1
            for step in range(1, steps + 1):
                t = gap.start + (gap.request.t - gap.start) * step / (steps + 1)
                leads = gap.request.source != self.name
                share = step / (steps + 1) if leads else step / steps
                yield t, partial(self.growth.fill, gap, t, share)

    def _on_entry(self, entry: Entry, t: float) -> None:
        self.advance(t)
        if isinstance(entry, Happening):
            self._on_event(entry)
        elif not entry.is_raft:
            return
        elif not self.running:
            if self.name in (entry.source, entry.target):
                self._count("of an earlier life", entry)
        elif entry.repeated and self.name != (entry.source if entry.is_request else entry.target):
            return  # a node answers ApiVersions without its raft
        elif entry.source == entry.target == self.name:
            self._count("itself", entry)
        elif entry.source == self.name:
            (self._on_own_request if entry.is_request else self._on_own_response)(entry)
            self.reach.on_frame(entry)
        elif entry.target == self.name:
            self.reach.on_frame(entry)
            (self._on_request if entry.is_request else self._on_response)(entry)

    def _count_asked_before(self, frame: Frame) -> None:
        """An answer whose request is not there: only the first frame of its connection."""
        first = next(f for f in self.recording.frames if f.conn == frame.conn)
        self._count("asked before" if first is frame else "answer to nothing", frame)

    def _count(self, kind: str, frame: Frame) -> None:
        """Note a frame that is not compared, and why."""
        self.deviations.append(Deviation(kind, frame.api, "", None, None, self._where(frame)))

    # Time -----------------------------------------------------------------------------------
    def advance(self, t: float) -> None:
        """Let timers run until ``t``; what is scheduled to fail fails."""
        while self.running and not self.paused:
            self._timers.snap(self.raft, self.now)
            due = self.raft.deadline * 1000 + 1e-6  # past it, however that is rounded
            self.due.sort(key=lambda answer: answer[:2])
            if self.due and self.due[0][0] <= min(t, due):
                at, call_id, frame = self.due.pop(0)
                self.now = max(self.now, at)
                self.feed(Answered(call_id, frame.message() if frame else None))
            elif due <= t:
                self.now = max(self.now, due + 1e-6)  # seconds and back again lose a little
                self.feed(None)
            else:
                break
        self.now = max(self.now, t)

    # What kwire does ------------------------------------------------------------------------
    def feed(self, event: Event | None) -> None:
        """Step the node with one event, and perform its effects."""
        effects = list(self.raft.step(event, self.now / 1000, self.growth.stamp()))
        for place, effect in enumerate(effects):
            if isinstance(effect, AppendLog) and isinstance(self.raft.state.role, Leader):
                effects[place] = self._check_batch(effect)
        for outcome in write(self.disk, effects).outcomes:
            match outcome:
                case Send():
                    self._on_send(outcome)
                case Reply(token, response):
                    self._on_reply(token, response)
                case SnapshotLoaded():
                    self.feed(outcome)
                case _:
                    pass

    def _check_batch(self, effect: AppendLog) -> AppendLog:
        """A leader's batch, byte for byte, where the recording has it, which then counts."""
        data = bytes(effect.records)
        header = parse(data)
        recorded = self.growth.library.get((header.leader_epoch, header.base_offset))
        if recorded is None:
            return effect
        self.compared["batch"] += 1
        if recorded == data:
            return effect
        where = f"{self.recording.name} n{self.node} batch {header.base_offset}"
        path = "records"
        if header.is_control and ordered_voters(recorded) == ordered_voters(data):
            path = "grantingVoters"
        self.deviations.append(Deviation("field", "batch", path, recorded, data, where))
        return AppendLog(recorded, effect.base_offset)

    def _on_send(self, sent: Send) -> None:
        api = type(sent.request).__name__.removesuffix("Request")
        version = STABLE[api]
        target = name_of(PORTS.get(sent.node.port, sent.node.port - 20820))
        own = SentRequest(
            call_id=sent.call_id,
            target=target,
            api=api,
            version=version,
            body=to_json(sent.request, version),
            at=self.now,
            by_chance=api == "Fetch" and self.reach.seeking and target in self._others,
            is_hanging=target in self.reach.stopped,
        )
        if not self.reach.has(target):
            self.due.append((self.now + 1, sent.call_id, None))
            kind = "to a node that is out of reach"
            self._deviate_request(self._unless_too_soon(kind, own), own)
            return
        for frame in self.owed:
            if self._fits(frame, own) and (
                own.api != "Fetch" or not any(differences(frame.body, own.body))
            ):
                self.owed.remove(frame)
                self._bind(frame, own)
                return
        if not self._is_in_a_series(own):
            self.own_requests.append(own)

    def _unless_too_soon(self, kind: str, own: SentRequest) -> str:
        """Return ``kind``, or "too soon" if the node was asked less than the back-off ago."""
        before = self.tried.get(own.target, -inf)
        self.tried[own.target] = self.now
        return "too soon" if self.now - before < BACK_OFF_MS else kind

    def _is_in_a_series(self, own: SentRequest) -> bool:
        """One of a series that was not kept is answered as the others were."""
        for series in self._refusals:
            if (
                series.start < self.now < series.end - REFUSED_MS
                and series.request.target == own.target
                and not any(differences(series.request.body, own.body))
            ):
                self.due.append((self.now + REFUSED_MS, own.call_id, series.answer))
                self._deviate_request(self._unless_too_soon("one of a series", own), own)
                return True
        return False

    def _fits(self, frame: Frame, own: SentRequest) -> bool:
        if frame.api != own.api:
            return False
        return frame.target == own.target or own.by_chance

    def _on_reply(self, token: Hashable, response: Any) -> None:
        if isinstance(token, str):  # an idle exchange that was not recorded
            return
        frame = self.requests[token]  # type: ignore[index]
        body = to_json(response, frame.version)
        recorded = self.unanswered.pop(token, None)
        if recorded is None:
            self.replies[token] = body
        else:
            self._compare(recorded, body)

    # What the recording has -----------------------------------------------------------------
    def _on_request(self, frame: Frame) -> None:
        self.requests[frame.key] = frame
        if frame.api == "Fetch" and frame.part["currentLeaderEpoch"] == self.raft.state.epoch:
            if frame.part["lastFetchedEpoch"] == self.raft.state.epoch:
                self.growth.append(frame.part["fetchOffset"])
            self.growth.append_what_is_due()
            self.growth.fill_now()
        self.feed(Received(frame.key, frame.message()))

    def _on_own_response(self, frame: Frame) -> None:
        if frame.key not in self.requests:
            self._count_asked_before(frame)
            self.growth.append_up_to(frame)
            return
        self.growth.append_up_to(frame)
        self.advance(frame.t)
        body = self.replies.pop(frame.key, None)
        if body is None:
            self.unanswered[frame.key] = frame
        else:
            self._compare(frame, body)

    def _on_own_request(self, frame: Frame) -> None:
        self._try_again(frame.target)
        own = self._choose(frame)
        if own is None:
            self.owed.append(frame)
            if frame.api == "Fetch" and self._is_waiting():
                self.waited.add(frame.key)
        else:
            self.own_requests.remove(own)
            self._bind(frame, own)

    def _is_waiting(self) -> bool:
        """Return whether the node waits for its turn to fetch, or for another node."""
        calls, now = self.raft.state.calls, self.now / 1000
        if any(isinstance(call.request, FetchRequest) for call in calls.open.values()):
            return True
        return any(at > now for at in (*calls.fetch_at.values(), *calls.retry_at.values()))

    def _choose(self, frame: Frame) -> SentRequest | None:
        """Return our request that matches this one: an equal one, or else one that is still open.

        A request that was given up meanwhile may have been sent before: the recorded node's frames
        of different connections crossed each other.
        """
        fits = [own for own in self.own_requests if self._fits(frame, own)]
        same = [own for own in fits if not any(differences(frame.body, own.body))]
        same.sort(key=lambda own: not self.is_open(own))
        still = [own for own in fits if self.is_open(own)]
        return next(iter([*same, *still]), None)

    def _try_again(self, name: str) -> None:
        """Retry an unreachable node now if the random back-off allows it within ``CHANCE_MS``."""
        calls, node = self.raft.state.calls, int(name.removeprefix("controller-"))
        at = calls.retry_at.get(node, -inf)
        if self.now / 1000 < at < self.now / 1000 + CHANCE_MS / 1000:
            calls.retry_at[node] = self.now / 1000
            self.feed(None)

    def is_open(self, own: SentRequest) -> bool:
        return own.call_id in self.raft.state.calls.open

    def _bind(self, frame: Frame, own: SentRequest) -> None:
        """Match a recorded request with this one of ours."""
        if frame.target != own.target:
            self._deviate("at random", frame, "target", frame.target, own.target)
        self.bound[frame.key] = own.call_id
        if frame.version != own.version:
            self._deviate("field", frame, "version", frame.version, own.version)
        self._compare(frame, own.body)
        answer = self.early.pop(frame.key, None)
        if answer is not None:
            self._on_response(answer)

    def _on_response(self, frame: Frame) -> None:
        call_id = self.bound.pop(frame.key, None)
        if call_id is not None:
            self.feed(Answered(call_id, frame.message()))
            return
        owed = next((f for f in self.owed if f.key == frame.key), None)
        if frame.key in self.waited and frame.part["errorCode"] == NOT_LEADER:
            assert owed is not None
            self.owed.remove(owed)
            self._count("busy re-fetch", owed)
        elif owed is not None:
            self.early[frame.key] = frame
        else:
            self._count_asked_before(frame)
            own = (s for s in self.own_requests if s.api == frame.api and s.target == frame.source)
            first = next(own, None)
            if first is not None:
                self.own_requests.remove(first)
                self.feed(Answered(first.call_id, frame.message()))

    def _compare(self, frame: Frame, body: dict[str, Any]) -> None:
        what = "request" if frame.is_request else "response"
        self.compared[f"{frame.api} {what}"] += 1
        for path, recorded, ours in differences(frame.body, body):
            self._deviate(self._kind(frame, path, ours), frame, path, recorded, ours)

    def _kind(self, frame: Frame, path: str, ours: Any) -> str:
        """Return the kind of a field's deviation, from what the recording shows."""
        field = path.rsplit(".", maxsplit=1)[-1]
        if frame.is_request and field == "highWatermark" and ours in self.reach.committed:
            return "sent before"
        if field == "voteGranted" and frame.t < self.reach.end_quorum_at + FETCH_TIMEOUT_MS:
            return "after EndQuorumEpoch"
        if field == "records" and not frame.is_request:
            high_watermark = self.requests[frame.key].part["highWatermark"]
            return "nothing new" if frame.part["highWatermark"] == high_watermark else "field"
        return "field"

    # What happens to the node and its connections -------------------------------------------
    def _on_event(self, what: Happening) -> None:
        me, words = self.name, what.text.split()
        if self.starting and what.source == me:  # a JVM takes its time
            self.starting, self.running = False, True
            self.reach.on_start()
            self.raft = self.restart()
            self.feed(Started())
        for name in self.reach.note(what):
            self._fail(name)
        match words:
            case ["SIGKILL" | "exited", name] if name == me:
                self.running = False
                self._settle()
            case ["SIGTERM", name] if name == me and me in CONTROLLERS:
                self.stopping = True
                if isinstance(self.raft.state.role, Leader):
                    self._stop()
            case ["SIGSTOP", name] if name == me:
                self.paused = True
            case ["SIGCONT", name] if name == me:
                self.paused = False
            case ["start", name] if name.replace("node", "controller") == me:
                self.starting = True
            case ["connection", "refused:", *_] if what.source == me:
                self._fail(what.target)
            case ["close"] if me in (what.source, what.target):
                self._stop()
                for key in [k for k in self.bound if k[0] == what.conn]:
                    self.feed(Answered(self.bound.pop(key), None))
            case _:
                pass

    def _stop(self) -> None:
        """Stop the node; a follower in a JVM runs on until it closes its connections."""
        if self.stopping:
            self.stopping = False
            self.feed(Shutdown())

    def _fail(self, name: str) -> None:
        for own in [s for s in self.own_requests if s.target == name]:
            self.own_requests.remove(own)
            self.feed(Answered(own.call_id, None))

    # Deviations -----------------------------------------------------------------------------
    def _where(self, frame: Frame) -> str:
        what = "request" if frame.is_request else "response"
        return (
            f"{self.recording.name} n{self.node} {frame.t:.0f} ms {frame.source}>{frame.target} "
            f"{frame.api} {what}"
        )

    def _deviate(self, kind: str, frame: Frame, path: str, recorded: Any, ours: Any) -> None:
        api = f"{frame.api} {'request' if frame.is_request else 'response'}"
        self.deviations.append(Deviation(kind, api, path, recorded, ours, self._where(frame)))

    def _deviate_request(self, kind: str, own: SentRequest) -> None:
        where = f"{self.recording.name} n{self.node} {self.now:.0f} ms >{own.target} {own.api}"
        api = f"{own.api} request"
        self.deviations.append(Deviation(kind, api, "", None, own.body, where))
