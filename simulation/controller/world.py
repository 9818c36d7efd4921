"""A simulated controller, its log and its brokers, without network.

Decisions are committed to a log one at a time, or several are pending together. Sometimes the
controller fails over during a request. If this happens before its records are committed, they are
lost; otherwise the sender got no answer and repeats the request. Of several pending decisions, a
prefix is committed and the rest is lost together. The next controller starts from the log or from
a snapshot, and must reach the same image. The previous controller may continue for a while because
it does not know of the failover, but it must not answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

import attrs

from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.configs.load import broker_config
from kwire.errors import KafkaError, NotController
from kwire.raftmeta.commits import Commit
from kwire.raftmeta.controller.brokers import begin_sessions
from kwire.raftmeta.controller.controller import Decide
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.leader_updates import decide_leader_updates, resume_leader_updates
from kwire.raftmeta.controller.state import ControllerDecision, ControllerState, whole
from kwire.raftmeta.metadata.image import Applied, BrokerImage, MetadataImage, PartitionImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_records import image_records
from kwire.types import TopicIdPartition, is_directory
from simulation.controller.checks import ControllerChecks, Written, demand

Q = TypeVar("Q")
R = TypeVar("R")

CLUSTER: Final = "sim"
OWN_ID: Final = 1

_LEFT_OUT: Final = ("unknown_tags", "features", "end_points", "directories")

SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": str(OWN_ID),
    "controller.quorum.voters": f"{OWN_ID}@localhost:9093",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "data",
}


@attrs.define
class SimBroker:
    """The actual state of a broker's process; the controller's image may lag behind it."""

    id: int
    directories: list[bytes]
    running: bool = False
    silent: bool = False
    stopping: bool = False
    epoch: int = -1
    clean_epoch: int = -1
    """The epoch of the previous process if it was shut down cleanly, else -1."""
    last_epoch: int = -1
    """The epoch of the previous process."""
    lives: int = 0
    offline: set[bytes] = attrs.field(factory=set)
    """The directories that have failed since the start."""
    missing: dict[int, bytes] = attrs.field(factory=dict)
    """The directories that may come back, each with its position among ``directories``."""

    @property
    def incarnation(self) -> bytes:
        return self.id.to_bytes(8) + self.lives.to_bytes(8)

    def online_directories(self) -> list[bytes]:
        """Return the directories that work."""
        return [directory for directory in self.directories if directory not in self.offline]

    def lacks(self, directory: bytes | None) -> bool:
        """Return whether a directory is missing: a failed one is not."""
        return is_directory(directory) and directory not in self.directories


@attrs.frozen(eq=False)
class Batch:
    """Records that were written, and the controller's state after them."""

    records: tuple[MetadataRecord, ...]
    applied: Applied
    written: Written
    commit: Commit
    vouched: frozenset[int]


def _is_answered(commit: Commit | None) -> bool:
    """Return whether :meth:`Commit.wait` succeeds, so that the waiting request is answered."""
    return commit is None or (commit._event.is_set() and commit._error is None)


@attrs.define(eq=False)
class World:
    """The active controller, its log, its brokers, and the time."""

    random: Random
    brokers: dict[int, SimBroker]
    state: ControllerState
    checks: ControllerChecks
    log: list[tuple[Applied, tuple[MetadataRecord, ...]]] = attrs.field(factory=list)
    lines: deque[tuple[float, int, tuple[object, ...]]] = attrs.field(
        factory=lambda: deque[tuple[float, int, tuple[object, ...]]](maxlen=300)
    )
    now: float = 100.0
    is_calm: bool = False
    answer_times: dict[int, float] = attrs.field(factory=dict)
    """The time of each broker's last answered request, or of the last failover."""
    slices: int = 1_000
    """The number of partitions that one decision handles."""
    under_way: "list[Batch] | None" = None
    """Batches that are written but not committed; None if batches are committed immediately."""
    pending_answers: list[tuple[Commit | None, Callable[[], object]]] = attrs.field(factory=list)
    """The commits that requests wait for, and the calls that repeat those requests."""
    old: ControllerState | None = None
    """The previous controller, as long as it does not know that it was replaced."""
    reported_offsets: dict[int, int] = attrs.field(factory=dict)
    """The last metadata offset that each broker reported."""
    failovers: int = 0
    repeated: int = 0

    @classmethod
    def of(cls, random: Random, brokers: int) -> "World":
        racks = {
            number: SimBroker(number, [_directory(number, n) for n in range(random.choice((1, 2)))])
            for number in range(1, 1 + brokers)
        }
        slices = random.choice((1, 2, 1_000))

        def has_directory(broker: BrokerImage, directory: bytes) -> bool:
            process = racks[broker.id]
            is_same = process.running and process.epoch == broker.epoch
            return is_same and directory in process.directories

        checks = ControllerChecks(OWN_ID, has_directory)
        world = cls(random, racks, _controller(random), checks, slices=slices)
        world.state.leader_update_queue.size = slices
        return world

    def ask(
        self,
        decide: "Decide[Q, R]",
        request: Q,
        *,
        once: bool = False,
        vouched: frozenset[int] = frozenset(),
    ) -> R | None:
        """Return a request's reply, or None if the request was rejected or is pending.

        ``once``: the request must not write anything when it is repeated after a failover.
        """
        if self.under_way is not None:
            self._set_out(decide, request, once=once, vouched=vouched)
            return None
        if self.old is not None:
            self._ask_old(decide, request)
        fate = 0.5 if self.is_calm else self.random.random()
        decision = self._decide(decide, request)
        while decision is not None and decision.again:
            self.write(decision.records, f"{decide.__name__} slice", vouched=vouched)
            if not self.is_calm and self.random.random() < 0.05:
                self.fail_over()
            decision = self._decide(decide, request)
        if fate < 0.01:
            self.note("lost before it was committed", decide.__name__)
            self.fail_over()
            decision = self._decide(decide, request)
        if decision is None:
            return None
        self.write(decision.records, decide.__name__, vouched=vouched)
        if fate > 0.98:
            self.fail_over()
            again = self._decide(decide, request)
            self.repeated += 1
            if once:
                written = () if again is None else again.records
                demand(not written, decide.__name__, "repeated, writes again", written)
            if again is not None:
                self.write(again.records, f"{decide.__name__} again", vouched=vouched)
                return again.reply
        return decision.reply

    def _set_out(
        self,
        decide: "Decide[Q, R]",
        request: Q,
        *,
        once: bool,
        vouched: frozenset[int],
    ) -> None:
        """Decide without waiting for the commit.

        The answer waits for the last batch that the decision has seen.
        """
        assert self.under_way is not None
        decision = self._decide(decide, request)
        if decision is None:
            return
        self.write(decision.records, decide.__name__, vouched=vouched)

        def repeat() -> object:
            return self.ask(decide, request, once=once, vouched=vouched)

        last_commit = self.under_way[-1].commit if self.under_way else None
        self.pending_answers.append((last_commit, repeat))

    def _ask_old(self, decide: "Decide[Q, R]", request: Q) -> None:
        """Send the request to the replaced controller first; it must not answer with a write."""
        state, present = self.old, self.state
        assert state is not None
        if self.random.random() < 0.2:
            self.old = None
            return
        self.state = state
        try:
            decision = self._decide(decide, request)
        finally:
            self.state = present
        if decision is None or not decision.records:
            return
        last = state.next_offset + len(decision.records) - 1
        commit = Commit(state.next_offset, last, self.failovers - 1)
        state.apply(decision.records, Applied(last, self.failovers - 1, 0))
        commit.complete(NotController())
        demand(not _is_answered(commit), "answered by a controller that is none", decide.__name__)

    def _decide(self, decide: "Decide[Q, R]", request: Q) -> ControllerDecision[R] | None:
        before = self.state.image
        try:
            self.state.now = self.now
            decision = whole(decide(self.state, request))
            decision.take_effect()
            return decision
        except KafkaError as error:
            self.note(f"{decide.__name__} refused", type(error).__name__, error.text or "")
            return None
        finally:
            demand(self.state.image is before, decide.__name__, "changed the image by itself")

    def write(
        self, records: Sequence[MetadataRecord], why: str, *, vouched: frozenset[int] = frozenset()
    ) -> None:
        """Write one batch, and commit it immediately unless several are pending."""
        if not records:
            return
        state = self.state
        self.note(why, *records)
        applied = Applied(state.next_offset + len(records) - 1, self.failovers, 0)
        commit = Commit(state.next_offset, applied.offset, self.failovers)
        state.apply(records, applied)
        index = state.index if self.under_way is None else None
        written = Written(state.image, state.leader_update_queue.pending(), index)
        batch = Batch(tuple(records), applied, written, commit, vouched)
        if self.under_way is not None:
            self.under_way.append(batch)
        else:
            self._commit(batch)

    def _commit(self, batch: "Batch") -> None:
        self.log.append((batch.applied, batch.records))
        self.checks.on_written(batch.records, batch.written, batch.vouched)
        batch.commit.complete()

    def several(self, requests: Sequence[Callable[[], None]]) -> None:
        """Send requests whose decisions are pending together; the last ones may be lost.

        Records are lost only when the leadership is lost. A request whose records are lost must not
        be answered; it is repeated.
        """
        self.under_way, self.pending_answers = [], []
        for request in requests:
            request()
        batches, self.under_way = self.under_way, None
        answers, self.pending_answers = self.pending_answers, []
        committed_count = len(batches)
        if self.random.random() < 0.5:
            committed_count = self.random.randrange(len(batches) + 1)
        for batch in batches[:committed_count]:
            self._commit(batch)
        lost_commits = [batch.commit for batch in batches[committed_count:]]
        for lost_commit in lost_commits:
            lost_commit.complete(NotController())
        if lost_commits:
            self.note("lost batches under way", len(lost_commits))
            self.fail_over()
        for commit, repeat in answers:
            if not _is_answered(commit):
                repeat()
            elif commit is not None:
                is_committed = bool(self.log) and commit.offset <= self.log[-1][0].offset
                is_lost = commit in lost_commits
                demand(is_committed and not is_lost, "answered, though it was lost", commit)

    def update_leaders(self, *, whole: bool = False) -> None:
        """Continue the leader updates by one slice, or with ``whole`` until they are done."""
        while self.state.leader_update_queue:
            decision = self._decide(decide_leader_updates, None)
            assert decision is not None
            self.write(decision.records, "leader update")
            if not whole:
                return

    def fail_over(self) -> None:
        """Start another controller, from the log or from a snapshot and the records after it."""
        self.failovers += 1
        start = self.random.randrange(len(self.log)) if self.random.random() < 0.5 else 0
        image = MetadataImage()
        for applied, records in self.log[:start]:
            image, _ = apply(image, records, applied)
        if start:
            image, _ = apply(MetadataImage(), image_records(image), image.applied)
        for applied, records in self.log[start:]:
            image, _ = apply(image, records, applied)
        demand(image == self.checks.image, "the next controller knows something else")
        self.old = self.state if self.random.random() < 0.3 else None
        self.state = _controller(self.random)
        self.state.leader_update_queue.size = self.slices
        self.state.reset(image, self.log[-1][0].offset + 1 if self.log else 0)
        self.state.now = self.now
        begin_sessions(self.state)
        resume_leader_updates(self.state)
        self.answer_times = dict.fromkeys(self.brokers, self.now)
        self.note("failover, snapshot at", start)

    def partitions_where(
        self, condition: Callable[[PartitionImage], bool]
    ) -> list[TopicIdPartition]:
        """Return the partitions for which ``condition`` is true, sorted by topic name."""
        image = self.state.image
        return [
            (topic_id, number)
            for _, topic_id in sorted(image.topic_ids.items())
            for number, partition in sorted(image.topics[topic_id].partitions.items())
            if condition(partition)
        ]

    def partition(self, place: TopicIdPartition) -> PartitionImage:
        """Return a partition as the controller's image has it."""
        topic_id, number = place
        return self.state.image.topics[topic_id].partitions[number]

    def is_alive(self, broker: int) -> bool:
        """Return whether a broker runs, and its current incarnation is active in the image."""
        process, image = self.brokers[broker], self.state.image.brokers.get(broker)
        if not process.running or process.silent or image is None:
            return False
        return image.epoch == process.epoch and image.is_active

    def note(self, *what: object) -> None:
        """Add an event to the story of the run, which is formatted only after a failure."""
        self.lines.append((self.now, self.state.next_offset, what))

    def story(self) -> str:
        """Return the last events as text."""
        return "\n".join(
            f"{now:9.2f} @{offset:<6} " + " ".join(map(_describe, what))
            for now, offset, what in self.lines
        )


def _controller(random: Random) -> ControllerState:
    return ControllerState(
        config=broker_config(SETTINGS),
        random=random,
        cluster_id=CLUSTER,
        supported_features=dict(SUPPORTED),
    )


def _directory(broker: int, number: int) -> bytes:
    return bytes([0xD0 + number]) + broker.to_bytes(15)


def new_directory(broker: int, random: Random) -> bytes:
    """Return a directory id for a disk that replaces one of a broker's disks."""
    return b"\xdf" + random.randbytes(11) + broker.to_bytes(4)


def _describe(what: object) -> str:
    """Return a record's name with its non-default fields; any other object as a string."""
    kind = type(what)
    if not kind.__name__.endswith("Record"):
        return str(what)
    plain = {name: getattr(what, name) for name in kind.__slots__ if name not in _LEFT_OUT}  # type: ignore[attr-defined]
    fields = (
        f"{name}={value.hex()[:6] if isinstance(value, bytes) else value}"
        for name, value in plain.items()
        if value not in (None, [], "", -2)
    )
    return f"\n{'':20}{kind.__name__.removesuffix('Record')}({' '.join(fields)})"
