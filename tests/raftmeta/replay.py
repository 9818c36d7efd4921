"""One node of a recorded conversation played by kwire's raft, and what it says compared.

The node hears what Apache's node heard, when it heard it, and has to say the same: to each
request the same answer, and of its own accord the same requests in the same order to each
node. Where chance decides (who asks for votes first, whom a node without a leader asks) the
recording decides instead, within the bounds that the settings give chance. What differs is
put down as a :class:`Deviation`, to be excused by the table of differences or not at all.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from math import inf
from typing import Any, Final, cast

import attrs

from kwire.codec.apis import APIS
from kwire.codec.json import to_json
from kwire.codec.messages.metadata_records import NoOpRecord
from kwire.raftmeta.events import (
    Answered,
    Append,
    AppendLog,
    Event,
    Received,
    Reply,
    Send,
    Shutdown,
    SnapshotLoaded,
    Started,
)
from kwire.raftmeta.raft import Raft
from kwire.raftmeta.records import pack
from kwire.raftmeta.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from kwire.raftmeta.storage import MemoryStorage
from kwire.raftmeta.turn import write
from kwire.records.header import headers, parse
from kwire.records.iterate import records
from tests.raftmeta.conversations import (
    Entry,
    Frame,
    Gap,
    Happening,
    Key,
    Recording,
    batches,
    cluster_of,
    gaps,
    name_of,
)
from tests.raftmeta.deviations import Deviation, Said, differences, idle_log, ordered, rounds

FETCH_TIMEOUT_MS: Final = 2000
WAIT_MS: Final = 1500
"""An election timeout of middling length."""
CHANCE_MS: Final = 1300
"""How far a random timer may be from the recorded one: the span of chance, and some load."""
PORTS: Final = {20825: 3}
"""Where controller 3 was reached once it had moved; otherwise N is behind 20820 + N."""
LINGER_MS: Final = 25
LOAD_MS: Final = 300
"""How late a node on the loaded machine may have been with what is not random."""


STABLE: Final = {api.name: api.stable for api in APIS}


@attrs.define(eq=False)
class Replay:
    """A node of a recording."""

    found: Recording
    node: int
    raft: Raft
    disk: MemoryStorage
    restart: Callable[[], Raft]
    late: dict[Key, float] = attrs.field(factory=dict)
    """Requests that the recorded node took up that many milliseconds later, and not in turn."""
    now: float = 0.0
    """Milliseconds since the scenario began."""
    wall_ms: int = 0
    running: bool = True
    paused: bool = False
    starting: bool = False
    compared: Counter[str] = attrs.field(factory=Counter)
    deviations: list[Deviation] = attrs.field(factory=list)
    said: list[Said] = attrs.field(factory=list)
    owed: list[Frame] = attrs.field(factory=list)
    bound: dict[Key, int] = attrs.field(factory=dict)
    early: dict[Key, Frame] = attrs.field(factory=dict)
    """Answers to requests that kwire has not sent yet."""
    replies: dict[Hashable, dict[str, Any]] = attrs.field(factory=dict)
    unanswered: dict[Hashable, Frame] = attrs.field(factory=dict)
    """Recorded responses that kwire has not given yet."""
    asked: dict[Key, Frame] = attrs.field(factory=dict)
    failing: list[tuple[float, int]] = attrs.field(factory=list)
    unreachable: set[str] = attrs.field(factory=set)
    _library: dict[tuple[int, int], bytes] = attrs.field(init=False)
    _answers: dict[Key, Frame] = attrs.field(init=False)
    _rounds: list[float] = attrs.field(init=False)
    _timer: tuple[int, float] = (0, 0.0)
    """The role whose timer was set last, and to what."""
    _began_ms: float = 0.0
    """The wall clock when the scenario began, as far as the stamps of batches show."""
    _stamps: list[tuple[tuple[int, int], int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._library = batches(cluster_of(self.found.name.split("-")[0]))
        mine = self.found.of(self.name)
        self._answers = {
            f.key: f for f in mine if f.source == self.name and not f.is_request and f.is_raft
        }
        self._rounds = rounds([f for f in mine if f.source == self.name and f.api == "Vote"])
        self._began_ms = max(
            (
                header.max_timestamp - frame.t
                for frame in self.found.frames
                if frame.is_raft and frame.api == "Fetch" and not frame.is_request
                for _, header in headers(frame.records)
            ),
            default=0.0,
        )
        self._stamps = sorted(
            (key, parse(data).max_timestamp)
            for key, data in self._library.items()
            if parse(data).is_control
        )
        self.wall_ms = self._stamps[0][1] if self._stamps else 0

    @property
    def name(self) -> str:
        return name_of(self.node)

    # The story ------------------------------------------------------------------------------
    def play(self) -> None:
        """The whole scenario."""
        for _, what in sorted(self._timeline(), key=lambda item: item[0]):
            what()
        self._settle()

    def _settle(self) -> None:
        """The recording or the node ends: what was said by one side alone is a deviation."""
        for frame in self.owed:
            self._deviate("not said", frame, "", frame.body, None)
        for said in self.said:
            known = "under way at the end" if self._is_open(said) else "given up"
            self._deviate_said(known, said)
        for frame in self.unanswered.values():
            self._deviate("not answered", frame, "", frame.body, None)
        self.owed, self.said, self.unanswered = [], [], {}

    def prime(self) -> None:
        """A leader holds the Fetches that were sent before the scenario began."""
        state = self.raft.state
        first: dict[int, Frame] = {}
        for frame in self.found.of(self.name):
            if not frame.is_raft or frame.api != "Fetch":
                continue
            held = first.setdefault(frame.conn, frame)
            if held.is_request or held.source != self.name or not frame.is_request:
                continue
            first[frame.conn] = frame
            request = frame.message()
            asked = request.topics[0].partitions[0]
            asked.fetch_offset, asked.last_fetched_epoch = state.log.end_offset, state.epoch
            asked.current_leader_epoch = state.epoch
            asked.high_watermark = state.high_watermark or -1
            self.asked[held.key] = frame
            self.feed(Received(held.key, request))

    def _timeline(self) -> Iterator[tuple[float, Callable[[], None]]]:
        for entry in self.found.entries:
            t = entry.t
            if isinstance(entry, Frame) and entry.target == self.name:
                t += self.late.get(entry.key, 0.0)
            yield t, partial(self._happen, entry, t)
        for gap in gaps(self.found, self.name):
            steps = int((gap.request.t - gap.start) // 400) + 1
            for step in range(1, steps + 1):
                t = gap.start + (gap.request.t - gap.start) * step / (steps + 1)
                leads = gap.request.source != self.name
                share = step / (steps + 1) if leads else step / steps
                yield t, partial(self._fill, gap, t, share)

    def _happen(self, entry: Entry, t: float) -> None:
        self.advance(t)
        if isinstance(entry, Happening):
            self._on_happening(entry)
        elif not entry.is_raft or not self.running:
            return
        elif entry.source == entry.target:
            self._count("itself", entry)
        elif entry.source == self.name:
            (self._on_own_request if entry.is_request else self._on_own_response)(entry)
        elif entry.target == self.name:
            (self._on_request if entry.is_request else self._on_response)(entry)

    def _count(self, kind: str, frame: Frame) -> None:
        """Something that is no business of the comparison, and why."""
        self.deviations.append(Deviation(kind, frame.api, "", None, None, self._where(frame)))

    # Time -----------------------------------------------------------------------------------
    def advance(self, t: float) -> None:
        """Let timers run until ``t``; what is scheduled to fail fails."""
        while self.running and not self.paused:
            self._snap(t)
            due = self.raft.deadline * 1000 + 1e-6  # past it, however that is rounded
            self.failing.sort()
            if self.failing and self.failing[0][0] <= min(t, due):
                at, call_id = self.failing.pop(0)
                self.now = max(self.now, at)
                self.feed(Answered(call_id, None))
            elif due <= t:
                self.now = max(self.now, due + 1e-6)  # seconds and back again lose a little
                self.feed(None)
            else:
                break
        self.now = max(self.now, t)

    def _snap(self, t: float) -> None:
        """Let the recording decide when a timer of chance runs out, within its bounds."""
        role = self.raft.state.role
        if isinstance(role, Leader):
            self._snap_waiting(role)
        elif isinstance(role, Resigned):
            self._snap_resigned(role)
        elif isinstance(role, Follower | Unattached | Prospective | Candidate):
            self._snap_election(role)
        self.raft.deadline = self.raft._next_deadline()

    def _snap_election(self, role: Follower | Unattached | Prospective | Candidate) -> None:
        if role.deadline == inf or self._timer == (id(role), role.deadline):
            return
        after = bisect_right(self._rounds, self.now)
        at = self._rounds[after] if after < len(self._rounds) else inf
        bound = LOAD_MS if isinstance(role, Follower) else CHANCE_MS
        due = role.deadline * 1000
        if isinstance(role, Prospective):  # it follows again, or waits, before it asks again
            at -= FETCH_TIMEOUT_MS if role.leader is not None else WAIT_MS
        if abs(at - due) <= bound:
            role.deadline = at / 1000 - 1e-4
        elif not isinstance(role, Follower | Prospective) and at > due:
            role.deadline += CHANCE_MS / 1000  # nothing of the kind was recorded
        self._timer = id(role), role.deadline

    def _snap_resigned(self, role: Resigned) -> None:
        """It leaves its epoch some time before it first names the next one."""
        wanted = self.raft.state.epoch + 1
        said = (
            f.t
            for f in self._answers.values()
            if f.t > self.now and f.part.get("currentLeader", {}).get("leaderEpoch") == wanted
        )
        at = next(said, inf) - 1
        if abs(at - role.deadline * 1000) <= CHANCE_MS:
            role.deadline = at / 1000

    def _snap_waiting(self, role: Leader) -> None:
        """A held Fetch ends when the recorded one did, if it brought nothing."""
        for held in role.waiting:
            frame = self._answers.get(cast("Key", held.token))
            if frame is None:
                continue
            is_empty = not frame.part["records"] and frame.part["errorCode"] == 0
            due = held.deadline * 1000
            if is_empty and abs(frame.t - due) < LOAD_MS:
                held.deadline = frame.t / 1000 - 1e-4
            elif not is_empty and frame.t > due - 1:
                held.deadline = frame.t / 1000 + 0.1

    # What kwire does ------------------------------------------------------------------------
    def feed(self, event: Event | None) -> None:
        """One event, and everything that follows at once."""
        self.wall_ms = self._stamp()
        effects = list(self.raft.step(event, self.now / 1000, self.wall_ms))
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

    def _stamp(self) -> int:
        """The wall clock: that of the control batch which the recording has next."""
        state = self.raft.state
        for (epoch, offset), stamp in self._stamps:
            if offset >= state.log.end_offset and epoch >= state.log.last_epoch:
                return stamp
        return self.wall_ms

    def _check_batch(self, effect: AppendLog) -> AppendLog:
        """A leader's batch, byte for byte, where the recording has it, which then counts."""
        data = bytes(effect.records)
        header = parse(data)
        recorded = self._library.get((header.leader_epoch, header.base_offset))
        if recorded is None:
            return effect
        self.compared["batch"] += 1
        if recorded == data:
            return effect
        where = f"{self.found.name} n{self.node} batch {header.base_offset}"
        path = "records"
        if header.is_control and ordered(recorded) == ordered(data):
            path = "grantingVoters"
        self.deviations.append(Deviation("field", "batch", path, recorded, data, where))
        return AppendLog(recorded, effect.base_offset)

    def _on_send(self, sent: Send) -> None:
        api = type(sent.request).__name__.removesuffix("Request")
        if api == "ApiVersions":
            self._answer_versions(sent)
            return
        version = STABLE[api]
        target = name_of(PORTS.get(sent.node.port, sent.node.port - 20820))
        role = self.raft.state.role
        leader = role.leader.id if isinstance(role, Follower) else None
        said = Said(
            call_id=sent.call_id,
            target=target,
            api=api,
            version=version,
            body=to_json(sent.request, version),
            by_chance=api == "Fetch" and sent.node.id != leader,
        )
        if target in self.unreachable:
            self.failing.append((self.now + 1, sent.call_id))
            self._deviate_said("to a node that is cut off", said)
            return
        for frame in self.owed:
            if self._fits(frame, said) and (
                said.api != "Fetch" or not any(differences(frame.body, said.body))
            ):
                self.owed.remove(frame)
                self._bind(frame, said)
                return
        self.said.append(said)

    def _answer_versions(self, sent: Send) -> None:
        from kwire.codec.messages.api_versions import ApiVersionsResponse

        feature = ApiVersionsResponse.SupportedFeatureKey(
            name="kraft.version", min_version=0, max_version=1
        )
        answer = ApiVersionsResponse(api_keys=[], supported_features=[feature])
        self.compared["ApiVersions"] += 1
        self.feed(Answered(sent.call_id, answer))

    def _fits(self, frame: Frame, said: Said) -> bool:
        if frame.api != said.api:
            return False
        return frame.target == said.target or said.by_chance

    def _on_reply(self, token: Hashable, response: Any) -> None:
        if isinstance(token, str):  # an idle exchange that was not recorded
            return
        frame = self.asked[token]  # type: ignore[index]
        body = to_json(response, frame.version)
        recorded = self.unanswered.pop(token, None)
        if recorded is None:
            self.replies[token] = body
        else:
            self._compare(recorded, body)

    # What the recording has -----------------------------------------------------------------
    def _on_request(self, frame: Frame) -> None:
        self.asked[frame.key] = frame
        if frame.api == "Fetch" and frame.part["currentLeaderEpoch"] == self.raft.state.epoch:
            if frame.part["lastFetchedEpoch"] == self.raft.state.epoch:
                self._append(frame.part["fetchOffset"])
            self._append_what_is_due()
            self._fill_now()
        self.feed(Received(frame.key, frame.message()))

    def _on_own_response(self, frame: Frame) -> None:
        if frame.key not in self.asked:
            self._count("asked before", frame)
            self._append_up_to(frame)
            return
        self._append_up_to(frame)
        self.advance(frame.t)
        body = self.replies.pop(frame.key, None)
        if body is None:
            self.unanswered[frame.key] = frame
        else:
            self._compare(frame, body)

    def _append_up_to(self, frame: Frame) -> None:
        """The leader's controller appended what this answer carries."""
        if frame.api == "Fetch" and isinstance(self.raft.state.role, Leader):
            for _, header in headers(frame.records):
                self._append(header.next_offset)

    def _append(self, end_offset: int) -> None:
        """Make the leader's log at least that long, with what is known of it."""
        state = self.raft.state
        while isinstance(state.role, Leader) and state.log.end_offset < end_offset:
            recorded = self._library.get((state.epoch, state.log.end_offset))
            values: tuple[bytes, ...] = (pack(NoOpRecord()),)
            if recorded is not None:
                header = parse(recorded)
                if header.is_control:  # ours to write, and it was not
                    return
                found = records(recorded, 0, header)
                values = tuple(bytes(r.value) for r in found if r.value is not None)
                self._stamp_of(header.max_timestamp)
            self.feed(Append("append", state.epoch, values))

    def _stamp_of(self, stamp: int) -> None:
        self._stamps.insert(0, ((1 << 30, 1 << 60), stamp))

    def _on_own_request(self, frame: Frame) -> None:
        self._try_again(frame.target)
        found = self._choose(frame)
        if found is None:
            self.owed.append(frame)
        else:
            self.said.remove(found)
            self._bind(frame, found)

    def _choose(self, frame: Frame) -> Said | None:
        """What we said that is this request: the same to the letter, or one still open.

        One that was given up meanwhile may have left before: the recorded node's frames of
        different connections crossed each other.
        """
        fits = [said for said in self.said if self._fits(frame, said)]
        same = [said for said in fits if not any(differences(frame.body, said.body))]
        same.sort(key=lambda said: not self._is_open(said))
        still = [said for said in fits if self._is_open(said)]
        return next(iter([*same, *still]), None)

    def _try_again(self, name: str) -> None:
        """When a node that could not be reached is tried again is a matter of chance, too."""
        calls, node = self.raft.state.calls, int(name.removeprefix("controller-"))
        at = calls.retry_at.get(node, -inf)
        if self.now / 1000 < at < self.now / 1000 + CHANCE_MS / 1000:
            calls.retry_at[node] = self.now / 1000
            self.feed(None)

    def _is_open(self, said: Said) -> bool:
        return said.call_id in self.raft.state.calls.open

    def _bind(self, frame: Frame, said: Said) -> None:
        """The recorded request is this one of ours."""
        if frame.target != said.target:
            self._deviate("field", frame, "target", frame.target, said.target)
        self.bound[frame.key] = said.call_id
        if frame.version != said.version:
            self._deviate("field", frame, "version", frame.version, said.version)
        self._compare(frame, said.body)
        answer = self.early.pop(frame.key, None)
        if answer is not None:
            self._on_response(answer)

    def _on_response(self, frame: Frame) -> None:
        call_id = self.bound.pop(frame.key, None)
        if call_id is not None:
            self.feed(Answered(call_id, frame.message()))
            return
        owed = next((f for f in self.owed if f.key == frame.key), None)
        if owed is not None and frame.api == "Fetch" and frame.part["errorCode"] == 6:
            self.owed.remove(owed)
            self._count("busy re-fetch", frame)
        elif owed is not None:
            self.early[frame.key] = frame
        else:
            self._count("asked before", frame)
            first = next(
                (s for s in self.said if s.api == frame.api and s.target == frame.source), None
            )
            if first is not None:
                self.said.remove(first)
                self.feed(Answered(first.call_id, frame.message()))

    def _compare(self, frame: Frame, body: dict[str, Any]) -> None:
        what = "request" if frame.is_request else "response"
        self.compared[f"{frame.api} {what}"] += 1
        for path, recorded, ours in differences(frame.body, body):
            self._deviate("field", frame, path, recorded, ours)

    # What happens to the node and its connections -------------------------------------------
    def _on_happening(self, what: Happening) -> None:
        me, words = self.name, what.text.split()
        if self.starting and what.source == me:  # a JVM takes its time
            self.starting, self.running = False, True
            self.raft = self.restart()
            self.feed(Started())
        match words:
            case ["SIGKILL", name]:
                self._gone(name)
            case ["exited", name]:
                self._gone(name)
            case ["SIGTERM", name] if name == me and me.startswith("controller"):
                self.feed(Shutdown())
            case ["SIGSTOP", name] if name == me:
                self.paused = True
            case ["SIGCONT", name] if name == me:
                self.paused = False
            case ["start", name] if name.replace("node", "controller") == me:
                self.starting = True
            case ["cut", source, "->", target] if source == me:
                self._cut(target)
            case ["cut", one, "<->", other] if me in (one, other):
                self._cut(other if one == me else one)
            case ["cut", name, "from", *_] if me.startswith("controller"):
                others = [name_of(n) for n in (1, 2, 3)]
                for other in others if name == me else [name]:
                    if other != me:
                        self._cut(other)
            case ["heal", *_]:
                self.unreachable.clear()
            case ["connect"]:
                self.unreachable.discard(what.target)
            case ["connection", "refused:", *_] if what.source == me:
                self._fail(what.target)
            case ["close"] if me in (what.source, what.target):
                for key in [k for k in self.bound if k[0] == what.conn]:
                    self.feed(Answered(self.bound.pop(key), None))
            case _:
                pass

    def _gone(self, name: str) -> None:
        if name == self.name:
            self.running = False
            self._settle()
        else:
            self._cut(name)

    def _cut(self, name: str) -> None:
        self.unreachable.add(name)
        self._fail(name)

    def _fail(self, name: str) -> None:
        for said in [s for s in self.said if s.target == name]:
            self.said.remove(said)
            self.feed(Answered(said.call_id, None))

    # Idle exchanges that were not recorded --------------------------------------------------
    def _fill(self, gap: Gap, t: float, share: float) -> None:
        self.advance(t)
        if not self.running:
            return
        if gap.request.source == self.name:
            self._fill_follower(gap, share)
        else:
            self._fill_leader(gap, t, share)

    def _fill_now(self) -> None:
        """Voters whose idle exchanges were not recorded have what the leader has."""
        for gap in gaps(self.found, self.name):
            if gap.start < self.now < gap.request.t - 50 and gap.request.target == self.name:
                self._fill_leader(gap, self.now, 0.0)

    def _fill_leader(self, gap: Gap, t: float, share: float) -> None:
        state = self.raft.state
        to = gap.offset + int((gap.request.part["fetchOffset"] - gap.offset) * share)
        while state.log.end_offset < to and not self._is_later(state.log.end_offset, t):
            before = state.log.end_offset
            self._append(before + 1)
            if state.log.end_offset == before:
                break
        self._append_what_is_due()
        request = gap.request.message()
        asked = request.topics[0].partitions[0]
        end = state.log.end_offset
        asked.fetch_offset = min(to if share else gap.request.part["fetchOffset"], end)
        asked.current_leader_epoch = state.epoch
        request.max_wait_ms = 0
        self.feed(Received(f"idle {t} {share}", request))

    def _is_later(self, offset: int, t: float) -> bool:
        """Whether the batch at an offset was written after ``t``, by its own stamp."""
        recorded = self._library.get((self.raft.state.epoch, offset))
        return recorded is not None and self._written_at(recorded) > t

    def _written_at(self, data: bytes) -> float:
        """When a batch came into the log: its records waited for others, as they do there."""
        return parse(data).max_timestamp - self._began_ms + LINGER_MS

    def _append_what_is_due(self) -> None:
        """The leader's log as long as the stamps of its batches say."""
        state = self.raft.state
        while isinstance(state.role, Leader):
            recorded = self._library.get((state.epoch, state.log.end_offset))
            if recorded is None or self._written_at(recorded) > self.now:
                return
            before = state.log.end_offset
            self._append(before + 1)
            if state.log.end_offset == before:
                return

    def _fill_follower(self, gap: Gap, share: float) -> None:
        from kwire.codec.messages.fetch import FetchResponse

        state = self.raft.state
        said = next((s for s in self.said if s.api == "Fetch" and self._is_open(s)), None)
        role = state.role
        if said is None or not isinstance(role, Follower) or said.target != gap.request.target:
            return
        part = gap.request.part
        end = state.log.end_offset
        to = end + int((part["fetchOffset"] - end) * share)
        topic = FetchResponse.FetchableTopicResponse
        answer = FetchResponse(
            responses=[
                topic(
                    topic_id=bytes(15) + b"\1",
                    partitions=[
                        topic.PartitionData(
                            partition_index=0,
                            high_watermark=min(part["highWatermark"], to),
                            current_leader=topic.PartitionData.LeaderIdAndEpoch(
                                leader_id=role.leader.id, leader_epoch=state.epoch
                            ),
                            records=self._idle_records(end, to),
                        )
                    ],
                )
            ]
        )
        self.said.remove(said)
        self.feed(Answered(said.call_id, answer))

    def _idle_records(self, start: int, end: int) -> bytes:
        return idle_log(self._library, self.raft.state.epoch, start, end)

    # Deviations -----------------------------------------------------------------------------
    def _where(self, frame: Frame) -> str:
        what = "request" if frame.is_request else "response"
        return (
            f"{self.found.name} n{self.node} {frame.t:.0f} ms {frame.source}>{frame.target} "
            f"{frame.api} {what}"
        )

    def _deviate(self, kind: str, frame: Frame, path: str, recorded: Any, ours: Any) -> None:
        api = f"{frame.api} {'request' if frame.is_request else 'response'}"
        self.deviations.append(Deviation(kind, api, path, recorded, ours, self._where(frame)))

    def _deviate_said(self, kind: str, said: Said) -> None:
        where = f"{self.found.name} n{self.node} {self.now:.0f} ms >{said.target} {said.api}"
        api = f"{said.api} request"
        self.deviations.append(Deviation(kind, api, "", None, said.body, where))
