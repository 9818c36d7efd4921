"""A controller and the brokers it rules, without network: the simulation's bodies.

Decisions are committed one after the other, in a log. Now and then the controller fails over in
the middle of a request: before its records are committed, which then never were, or after, and
then the request is repeated without its sender having heard. The next controller starts from
the log or from a snapshot, and must know the same.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeVar

import attrs

from kwire.configs.broker import BrokerConfig
from kwire.errors import KafkaError
from kwire.raftmeta.controller import ControllerState, Decision
from kwire.raftmeta.controller_brokers import begin_sessions
from kwire.raftmeta.controller_features import SUPPORTED
from kwire.raftmeta.controller_index import Place
from kwire.raftmeta.controller_leaders import decide_sweep, resume_sweeps
from kwire.raftmeta.image import Applied, MetadataImage, PartitionImage
from kwire.raftmeta.image_records import image_records
from kwire.testing.controller_checks import ControllerChecks, demand

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
    """A broker as its process is, not as the controller believes it to be."""

    id: int
    directories: list[bytes]
    running: bool = False
    silent: bool = False
    stopping: bool = False
    epoch: int = -1
    clean_epoch: int = -1
    """Noted by its last life when that stopped in order."""
    lives: int = 0
    offline: set[bytes] = attrs.field(factory=set)

    @property
    def incarnation(self) -> bytes:
        return self.id.to_bytes(8) + self.lives.to_bytes(8)

    def told(self) -> list[bytes]:
        """The directories that work."""
        return [one for one in self.directories if one not in self.offline]


@attrs.define(eq=False)
class World:
    """The active controller, its log, its brokers, and the time."""

    random: Random
    brokers: dict[int, SimBroker]
    state: ControllerState
    checks: ControllerChecks
    log: list[tuple[Applied, tuple[Any, ...]]] = attrs.field(factory=list)
    lines: deque[tuple[float, int, tuple[object, ...]]] = attrs.field(
        factory=lambda: deque[tuple[float, int, tuple[object, ...]]](maxlen=300)
    )
    now: float = 100.0
    is_calm: bool = False
    heard: dict[int, float] = attrs.field(factory=dict)
    """When each broker was answered last, or a controller began to listen."""
    slices: int = 1_000
    """Partitions that one decision looks at."""
    failovers: int = 0
    repeated: int = 0

    @classmethod
    def of(cls, random: Random, brokers: int) -> "World":
        racks = {
            number: SimBroker(number, [_directory(number, n) for n in range(random.choice((1, 2)))])
            for number in range(1, 1 + brokers)
        }
        slices = random.choice((1, 2, 1_000))
        world = cls(random, racks, _controller(random), ControllerChecks(OWN_ID), slices=slices)
        world.state.sweeps.size = slices
        return world

    def ask(
        self,
        decide: Callable[[ControllerState, Q, float], Decision[R]],
        request: Q,
        *,
        once: bool = False,
        vouched: frozenset[int] = frozenset(),
    ) -> R | None:
        """A request's reply, None if it was refused. ``once``: asked again, nothing is written."""
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

    def _decide(
        self, decide: Callable[[ControllerState, Q, float], Decision[R]], request: Q
    ) -> Decision[R] | None:
        before = self.state.image
        try:
            return decide(self.state, request, self.now)
        except KafkaError as error:
            self.note(f"{decide.__name__} refused", type(error).__name__, error.text or "")
            return None
        finally:
            demand(self.state.image is before, decide.__name__, "changed the image by itself")

    def write(
        self, records: Sequence[Any], why: str, *, vouched: frozenset[int] = frozenset()
    ) -> None:
        """Commit one batch."""
        if not records:
            return
        self.note(why, *records)
        applied = Applied(self.state.next_offset + len(records) - 1, self.failovers, 0)
        self.log.append((applied, tuple(records)))
        self.state.apply(records, applied)
        self.checks.on_written(records, self.state, vouched)

    def sweep(self, *, whole: bool = False) -> None:
        """The controller goes on with large changes: a slice of them, or all that are left."""
        while self.state.sweeps:
            decision = self._decide(decide_sweep, None)
            assert decision is not None
            self.write(decision.records, "sweep")
            if not whole:
                return

    def fail_over(self) -> None:
        """Another controller begins, from the log or from a snapshot and what came after it."""
        self.failovers += 1
        start = self.random.randrange(len(self.log)) if self.random.random() < 0.5 else 0
        image = MetadataImage()
        for applied, records in self.log[:start]:
            image, _ = image.apply(records, applied)
        if start:
            image, _ = MetadataImage().apply(image_records(image), image.applied)
        for applied, records in self.log[start:]:
            image, _ = image.apply(records, applied)
        demand(image == self.checks.image, "the next controller knows something else")
        self.state = _controller(self.random)
        self.state.sweeps.size = self.slices
        self.state.reset(image, self.log[-1][0].offset + 1 if self.log else 0)
        begin_sessions(self.state, self.now)
        resume_sweeps(self.state)
        self.heard = dict.fromkeys(self.brokers, self.now)
        self.note("failover, snapshot at", start)

    def partitions_where(self, wanted: Callable[[PartitionImage], bool]) -> list[Place]:
        """Partitions that ``wanted`` says yes to, in the order of topic names."""
        image = self.state.image
        return [
            (topic_id, number)
            for _, topic_id in sorted(image.topic_ids.items())
            for number, partition in sorted(image.topics[topic_id].partitions.items())
            if wanted(partition)
        ]

    def is_alive(self, broker: int) -> bool:
        """Whether a broker serves, in fact and as the controller knows it."""
        body, known = self.brokers[broker], self.state.image.brokers.get(broker)
        heard = body.running and not body.silent
        return heard and known is not None and known.epoch == body.epoch and known.is_active

    def note(self, *what: object) -> None:
        """For who has to find out what went wrong; put into words only then."""
        self.lines.append((self.now, self.state.next_offset, what))

    def story(self) -> str:
        """What happened last."""
        return "\n".join(
            f"{now:9.2f} @{offset:<6} " + " ".join(map(_said, what))
            for now, offset, what in self.lines
        )


def _controller(random: Random) -> ControllerState:
    return ControllerState(
        config=BrokerConfig.from_properties(SETTINGS),
        random=random,
        cluster_id=CLUSTER,
        supported_features=dict(SUPPORTED),
    )


def _directory(broker: int, number: int) -> bytes:
    return bytes([0xD0 + number]) + broker.to_bytes(15)


def _said(what: object) -> str:
    """A record's name and what it says that is not the default; anything else as it is."""
    kind = type(what)
    if not kind.__name__.endswith("Record"):
        return str(what)
    plain = {name: getattr(what, name) for name in kind.__slots__ if name not in _LEFT_OUT}  # type: ignore[attr-defined]
    said = (
        f"{name}={value.hex()[:6] if isinstance(value, bytes) else value}"
        for name, value in plain.items()
        if value not in (None, [], "", -2)
    )
    return f"\n{'':20}{kind.__name__.removesuffix('Record')}({' '.join(said)})"
