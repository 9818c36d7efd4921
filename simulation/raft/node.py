"""One raft node of the simulation: the state machine, its disk, and turns that take time.

If events arrive while a turn is being synced, their effects wait for the next turn, as in
:mod:`kwire.drive`. A crash in between loses unsynced data and unsent outcomes.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import inf
from random import Random
from typing import TYPE_CHECKING

import attrs

from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.fetch import FetchResponse
from kwire.codec.messages.fetch_snapshot import FetchSnapshotResponse
from kwire.errors import CorruptMessage, KafkaStorageError
from kwire.raftmeta.raft import messages
from kwire.raftmeta.raft.events import (
    Answered,
    Append,
    Committed,
    Effect,
    Event,
    LeaderKnown,
    Received,
    Reply,
    Send,
    Shutdown,
    SnapshotLoaded,
    SnapshotRefused,
    Started,
)
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage import damage
from kwire.raftmeta.storage.storage_turn import Outcome, write
from kwire.records.header import Buffer, headers, parse
from simulation.disk import Killed
from simulation.raft.files import Files
from simulation.raft.network import SimNetwork
from simulation.raft.storage import SimStorage
from simulation.scheduler import Scheduler, Trace, TraceLine, Violation

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import RaftResponse

CRC_POSITION = 17
"""The position of a batch's checksum, which is followed by the bytes that it protects."""
DISK_ERRORS = (OSError, KafkaStorageError)
DELIVERY_BYTES = 4000
WALL_MS = 1_700_000_000_000


@attrs.frozen
class Caller:
    """The sender of a request that waits for a response: one call by one node incarnation."""

    node: int
    call_id: int
    incarnation: int


@attrs.define(eq=False)
class SimNode:
    """A simulated node that runs, is paused, or is down."""

    config: RaftConfig
    configured: VoterSet
    scheduler: Scheduler
    network: SimNetwork
    random: Random
    trace: Trace
    nodes: "dict[int, SimNode]"
    on_step: Callable[["SimNode", Event | None, Sequence[Effect]], None]
    on_outcome: Callable[["SimNode", Outcome], None]
    on_delivery: Callable[["SimNode", Buffer], None]
    storage: SimStorage | Files
    raft: Raft | None = None
    incarnation: int = 0
    clock_rate: float = 1.0
    sync_max: float = 0.005
    is_paused: bool = False
    is_refused: bool = False
    """True if the last start found damage on the disk."""
    delivered: int = 0
    _pending: list[Effect] = attrs.field(factory=list)
    _is_busy: bool = False
    _wake_at: float = inf
    _backlog: list[Event] = attrs.field(factory=list)
    """Events that arrived while the node was paused."""

    @property
    def id(self) -> int:
        return self.config.node_id

    @property
    def local_now(self) -> float:
        return self.scheduler.now * self.clock_rate

    # Start and end --------------------------------------------------------------------------
    def start(self) -> None:
        """Start the process, which ends at once if its disk does not work."""
        self.incarnation += 1
        self.delivered, self.is_refused = 0, False
        try:
            recovered = self.storage.load(self.configured)
        except CorruptMessage:
            self.is_refused = True
            self.note_down("finds damage")
            self.crash(power=False)
            return
        except (Killed, *DISK_ERRORS):
            self.die()
            return
        self.raft = Raft(self.config, recovered, self.random)
        self.feed(Started())

    def die(self, *, power: bool = False) -> None:
        """End the process in the middle of a write to its disk."""
        self.note_down("dies at its disk")
        self.crash(power=power)

    def crash(self, *, power: bool = True) -> None:
        self.raft = None
        self.incarnation += 1
        self._wake_at = inf
        self._pending, self._backlog = [], []
        self._is_busy = self.is_paused = False
        self.storage.crash(self.random, power=power)

    def pause(self) -> None:
        self.is_paused = self.raft is not None

    def resume(self) -> None:
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            self.feed(event)
        self._take_turn()
        self._set_alarm()

    # Events ---------------------------------------------------------------------------------
    def feed(self, event: Event | None) -> Sequence[Effect]:
        """Pass an event to the state machine, or None when its deadline has come."""
        if self.raft is None:
            return ()
        if self.is_paused:
            if event is not None:
                self._backlog.append(event)
            return ()
        now = self.local_now
        if event is None:  # Rounding the alarm's time must not leave the deadline in the future.
            now = max(now, min(self.raft.deadline, now + 1e-6))
        effects = self.raft.step(event, now, WALL_MS + int(now * 1000))
        self._pending += effects
        self._note(event)
        self.on_step(self, event, effects)
        self._take_turn()
        self._set_alarm()
        return effects

    def _note(self, event: Event | None) -> None:
        assert self.raft is not None
        state = self.raft.state
        self.trace.add(
            TraceLine(
                self.scheduler.now,
                self.id,
                type(state.role).__name__,
                state.epoch,
                state.log.end_offset,
                -1 if state.high_watermark is None else state.high_watermark,
                "timer" if event is None else brief(event),
            )
        )

    def note_down(self, event: str) -> None:
        """Add an event from outside the state machine to the trace."""
        self.trace.add(TraceLine(self.scheduler.now, self.id, "down", 0, 0, 0, event))

    def _set_alarm(self) -> None:
        if self.raft is None or self.is_paused:
            return
        wake = self.raft.deadline / self.clock_rate
        if wake == inf or (self._wake_at <= wake and self._wake_at > self.scheduler.now):
            return
        self._wake_at = wake
        incarnation = self.incarnation
        self.scheduler.at(wake, lambda: self._alarm(incarnation, wake))

    def _alarm(self, incarnation: int, at: float) -> None:
        if self.raft is None or self.incarnation != incarnation or at != self._wake_at:
            return
        self._wake_at = inf
        if self.raft.deadline <= self.local_now + 1e-9:
            self.feed(None)
        else:
            self._set_alarm()

    # Turns ----------------------------------------------------------------------------------
    def _take_turn(self) -> None:
        if self._is_busy or not self._pending or self.is_paused:
            return
        turn, self._pending = self._pending, []
        try:
            written = write(self.storage, turn)
        except Killed:
            self.die()
            return
        except DISK_ERRORS:  # It is unknown what a failed fsync has written.
            self.die(power=self.random.random() < 0.5)
            return
        incarnation = self.incarnation
        if not written.needs_sync:
            self._finish(written.outcomes)
            return
        self._is_busy = True
        delay = self.random.random() * self.sync_max
        self.scheduler.after(delay, lambda: self._end_sync(incarnation, written.outcomes))

    def _end_sync(self, incarnation: int, outcomes: list[Outcome]) -> None:
        if self.incarnation != incarnation:
            return
        try:
            self.storage.sync()
        except Killed:
            self.die()
            return
        except DISK_ERRORS:  # It is unknown what a failed fsync has written.
            self.die(power=self.random.random() < 0.5)
            return
        self._is_busy = False
        self._finish(outcomes)
        self._take_turn()

    def _finish(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Committed) and not self._deliver(outcome.end_offset):
                return
            self.on_outcome(self, outcome)
            match outcome:
                case Send():
                    self._send(outcome)
                case Reply(token, response):
                    if isinstance(token, Caller) and token.node in self.nodes:
                        self._answer(token, response)
                case SnapshotLoaded() | SnapshotRefused():
                    self.feed(outcome)
                case Committed() | LeaderKnown():
                    pass

    def _deliver(self, end_offset: int) -> bool:
        """Read committed batches, as the service does for its listeners; False if damaged."""
        start = max(self.delivered, self.storage.cache.start_offset)
        while start < end_offset:
            try:
                data = self.storage.read(start, end_offset, DELIVERY_BYTES)
                damage.check_log(data, start)
            except DISK_ERRORS:
                self.die(power=self.random.random() < 0.5)
                return False
            self.on_delivery(self, data)
            delivered, start = start, max(header.next_offset for _, header in headers(data))
            if start <= delivered:  # A damaged header, delivered unchecked, would repeat for ever.
                raise Violation(f"node {self.id} delivered batches that end at {start}")
        self.delivered = max(self.delivered, end_offset)
        return True

    def _send(self, send: Send) -> None:
        hosts = {node.config.endpoints[0].host: node for node in self.nodes.values()}
        target = hosts.get(send.node.host)
        if target is not None and target.id == self.id:
            return
        caller = Caller(self.id, send.call_id, self.incarnation)
        if isinstance(send.request, ApiVersionsRequest):
            event: Event = Answered(send.call_id, _features())
            self.network.send(self.id, self.id, lambda: void(self.feed(event)))
            return
        event = Received(caller, send.request)

        def on_refused() -> None:
            if self.incarnation == caller.incarnation:
                self.feed(Answered(send.call_id, None, refused=True))

        if target is None:  # The node has moved.
            self.network.send(self.id, self.id, on_refused)
            return
        there = target

        def deliver() -> None:
            if there.raft is None:
                self.network.send(there.id, self.id, on_refused)
            else:
                there.feed(event)

        self.network.send(self.id, there.id, deliver, on_refused)

    def _answer(self, caller: Caller, response: "RaftResponse") -> None:
        there = self.nodes[caller.node]
        if self.random.random() < self.network.corruption:
            response = corrupt_records(response, self.random)

        def deliver() -> None:
            if there.incarnation == caller.incarnation:
                there.feed(Answered(caller.call_id, response))

        self.network.send(self.id, there.id, deliver)


def corrupt_records(response: "RaftResponse", random: Random) -> "RaftResponse":
    """Return the response with one bit flipped in the checksummed part of its records."""
    if not isinstance(response, FetchResponse | FetchSnapshotResponse):
        return response
    part = messages.answer_of(response)
    name = "records" if isinstance(response, FetchResponse) else "unaligned_records"
    data = bytearray(getattr(part, name, b"") or b"")
    if len(data) <= CRC_POSITION:
        return response
    end = parse(data).size if name == "records" else len(data)
    position = random.randrange(CRC_POSITION, end)
    data[position] ^= 1 << random.randrange(8)
    response = deepcopy(response)
    setattr(messages.answer_of(response), name, bytes(data))
    return response


def _features() -> ApiVersionsResponse:
    """Return the features that every simulated node supports."""
    feature = ApiVersionsResponse.SupportedFeatureKey
    return ApiVersionsResponse(
        api_keys=[],
        supported_features=[feature(name="kraft.version", min_version=0, max_version=1)],
    )


def void(_: object) -> None:
    """Drop a result."""


def brief(event: Event) -> str:
    """Return a short description of an event."""
    match event:
        case Received(token, request):
            name = type(request).__name__.removesuffix("Request")
            return f"<- {name} from {getattr(token, 'node', 'tool')}{_details(request)}"
        case Answered(call_id, response):
            if response is None:
                what = "refusal of" if event.refused else "nothing to"
                return f"<= {what} call {call_id}"
            return f"<= {type(response).__name__}{_details(response)}"
        case Append(_, epoch, values):
            return f"append {len(values)} in epoch {epoch}"
        case Started() | Shutdown():
            return type(event).__name__
        case _:
            return repr(event)


def _details(message: object) -> str:
    topics = getattr(message, "topics", None) or getattr(message, "responses", None)
    if not topics or not getattr(topics[0], "partitions", None):
        return ""
    part = topics[0].partitions[0]
    shown = (
        "pre_vote",
        "replica_epoch",
        "last_offset_epoch",
        "last_offset",
        "vote_granted",
        "fetch_offset",
        "last_fetched_epoch",
        "current_leader_epoch",
        "error_code",
        "leader_id",
        "leader_epoch",
    )
    return "".join(f" {k}={getattr(part, k)}" for k in shown if hasattr(part, k))
