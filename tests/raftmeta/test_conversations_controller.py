"""The controller decides what Apache Kafka's active controller decided, request by request.

The metadata log of the recorded cluster is known from its first record on. Each scenario begins
with what was in it; every request to the controller is put to kwire's decider, which has to
answer with the same fields and to write the same records, byte for byte, that come next in
the log. Records of requests that are not played (topics that clients created) are applied as
they stand; those the controller wrote by itself (a silent broker fenced) are decided too.
"""

from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import pytest

from kwire.codec.json import to_json
from kwire.errors import DuplicateBrokerRegistration, KafkaError
from kwire.raftmeta.controller import ControllerState
from kwire.raftmeta.controller_brokers import (
    begin_sessions,
    decide_fence_stale,
    decide_heartbeat,
    decide_register_broker,
    decide_register_controller,
)
from kwire.raftmeta.controller_features import SUPPORTED
from kwire.raftmeta.controller_limits import decide_allocate_producer_ids
from kwire.raftmeta.controller_partitions import decide_alter_partition, decide_assign_directories
from kwire.raftmeta.image import Applied
from kwire.raftmeta.image_loader import ImageLoader
from kwire.raftmeta.records import pack, unpack
from kwire.records.header import parse
from kwire.records.iterate import records
from tests.raftmeta.clusters import node_config
from tests.raftmeta.conversations import CONTROLLER, Frame, batches, recording
from tests.raftmeta.deviations import differences

DECIDERS: Final[dict[str, Any]] = {
    "ControllerRegistration": decide_register_controller,
    "BrokerRegistration": decide_register_broker,
    "BrokerHeartbeat": decide_heartbeat,
    "AlterPartition": decide_alter_partition,
    "AssignReplicasToDirs": decide_assign_directories,
    "AllocateProducerIds": decide_allocate_producer_ids,
}
GIVEN: Final = frozenset(("TopicRecord", "PartitionRecord", "ConfigRecord", "ClearElrRecord"))
"""What only clients ask for."""
CHANGE: Final = "BrokerRegistrationChangeRecord"
AHEAD: Final = 60
"""Requests that were under way together may have been written in another order."""

ORDER: Final = (
    "**Topics in the order of their names.** When a broker comes or goes, kwire changes partitions "
    "in the order of the topics' names; Kafka's order is that of a hash table."
)
RETURN: Final = (
    "**A broker that left in order may come back at once.** Kafka refuses its registration with "
    "DUPLICATE_BROKER_REGISTRATION until the old session has run out (9 s), although it fenced "
    "the broker itself when it let it go."
)
TWICE: Final = (
    "**Fenced once.** When that session has run out Kafka writes a second fencing record for the "
    "broker; kwire does not."
)
DIFFERENCES: Final = (ORDER, RETURN, TWICE)
NO_OP: Final = "NoOpRecord"


@attrs.frozen
class Entry:
    """A record of the log."""

    offset: int
    value: bytes
    stamp: int

    @property
    def record(self) -> Any:
        return unpack(self.value)


def log_of(cluster: str, epoch: int) -> list[Entry]:
    """The cluster's log up to an epoch's end, without what says nothing."""
    found = []
    for (batch_epoch, _), data in sorted(batches(cluster).items(), key=lambda item: item[0][1]):
        header = parse(data)
        if header.is_control or batch_epoch > epoch:
            continue
        for record in records(data, 0, header):
            entry = Entry(record.offset, bytes(record.value or b""), header.max_timestamp)
            if type(entry.record).__name__ != NO_OP:
                found.append(entry)
    return found


@attrs.define
class Play:
    """One scenario before the deciders."""

    number: str
    log: list[Entry]
    state: ControllerState
    frames: list[Frame]
    began: float
    """The wall clock when the scenario began."""
    place: int = 0
    compared: Counter[str] = attrs.field(factory=Counter)
    differing: Counter[str] = attrs.field(factory=Counter)
    wrong: list[Any] = attrs.field(factory=list)

    def run(self) -> None:
        answers = {f.key: f for f in self.frames if not f.is_request}
        for frame in self.frames:
            if frame.is_request and frame.key in answers:
                self._keep_alive(frame.t)
                self._ask(frame, answers[frame.key])

    def _keep_alive(self, t: float) -> None:
        """Equal heartbeats were left out of the recording: their broker lives."""
        for broker in self.state.image.brokers.values():
            beats = [f.t for f in self.frames if f.is_request and self._beats(f, broker)]
            session = self.state.sessions.get(broker.id)
            if session is not None and beats and min(beats) <= t < max(beats):
                session.heard_at = max(session.heard_at, t / 1000)

    def _beats(self, frame: Frame, broker: Any) -> bool:
        body = frame.body
        return frame.api == "BrokerHeartbeat" and body["brokerEpoch"] == broker.epoch

    def _ask(self, frame: Frame, recorded: Frame) -> None:
        self._fence(frame.t / 1000)
        self._take_given(frame.t)
        state = self.state
        if self.place < len(self.log):
            state.next_offset = self.log[self.place].offset
        decision, body = self._decide(frame, recorded)
        if recorded.body.get("errorCode") == DuplicateBrokerRegistration.code:
            assert body["errorCode"] == 0
            self.differing[RETURN] += 1
            return
        self.compared[f"{frame.api} response"] += 1
        for path, theirs, ours in differences(recorded.body, body):
            self.wrong.append((self.number, frame.t, frame.api, path, theirs, ours))
        if decision is not None:
            self._write(list(decision.records), f"{frame.t:.0f} ms {frame.api}")

    def _take_given(self, t: float) -> None:
        """What clients had created when a request came."""
        while self.place < len(self.log):
            entry = self.log[self.place]
            if entry.stamp - self.began > t or not self._is_given(entry.record):
                return
            self._take("given")

    def _is_given(self, record: Any) -> bool:
        if type(record).__name__ in GIVEN:
            return True
        broker = self.state.image.brokers.get(getattr(record, "broker_id", -1))
        again = getattr(record, "fenced", 0) == 1 and broker is not None and broker.fenced
        self.differing[TWICE] += again and type(record).__name__ == CHANGE
        return bool(again and type(record).__name__ == CHANGE)

    def _decide(self, frame: Frame, recorded: Frame) -> tuple[Any, dict[str, Any]]:
        decide = DECIDERS[frame.api]
        try:
            decision = decide(self.state, frame.message(), frame.t / 1000)
        except KafkaError as error:  # the rest of such an answer is the handler's
            return None, {**recorded.body, "errorCode": error.code}
        return decision, to_json(decision.reply, frame.version)

    def _fence(self, now: float) -> None:
        while True:
            decision = decide_fence_stale(self.state, None, now)
            if not decision.records:
                return
            self._write(list(decision.records), "fencing")

    def _write(self, made: list[Any], where: str) -> None:
        """What was decided comes next in the log, perhaps after what others had written."""
        values = [pack(record) for record in made]
        if not values:
            return
        ahead = self.log[self.place : self.place + AHEAD]
        left = [entry.value for entry in ahead]
        if not all(value in left for value in values):
            expected = [entry.record for entry in ahead[: len(values)]]
            self.wrong.append((self.number, where, "records", expected, made))
            return
        found = [ahead[left.index(value)] for value in values]
        self.differing[ORDER] += [e.offset for e in found] != sorted(e.offset for e in found)
        for entry in found:
            self.log.remove(entry)
            self.log.insert(self.place, entry)
            self._take("records")

    def _take(self, kind: str) -> None:
        entry = self.log[self.place]
        self.state.apply([entry.record], Applied(entry.offset, 1, 0))
        self.compared[kind] += 1
        self.place += 1


def open_play(number: str, node: int, epoch: int, start: int) -> Play:
    log = log_of("first", epoch)
    loader = ImageLoader()
    place = 0
    for place, entry in enumerate(log):  # noqa: B007
        if entry.offset >= start:
            break
        loader.load([entry.record], Applied(entry.offset, epoch, 0))
    state = ControllerState(
        config=node_config(),
        random=Random(1),
        cluster_id="MkU3OEVBNTcwNTJENDM2Qg",
        supported_features=dict(SUPPORTED),
    )
    state.reset(loader.image, start)
    begin_sessions(state, 0.0)
    name = f"controller-{node}"
    found = recording(number)
    frames = [f for f in found.of(name) if f.api in CONTROLLER]
    mine = [f for f in frames if (f.target if f.is_request else f.source) == name]
    began = max(
        parse(f.records).max_timestamp - f.t
        for f in found.frames
        if f.is_raft and f.api == "Fetch" and not f.is_request and f.records
    )
    return Play(number, log, state, mine, began, place)


PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "quorum-differences.md"
COUNTS: Final = {"01": 6, "07": 11, "11": 10, "08": 28, "10": 27, "09": 15, "09b": 25, "12": 34}
"""How many answers and records each scenario compares."""

PLAYS: Final = {
    "01": (2, 1, 10),
    "07": (2, 1, 23),
    "11": (2, 1, 55),
    "08": (2, 1, 62),
    "10": (2, 1, 105),
    "09": (2, 1, 130),
    "09b": (2, 1, 143),
    "12": (2, 1, 180),
}
"""Scenario: who leads, in which epoch, where the log ended."""


@cache
def played(number: str) -> Play:
    play = open_play(number, *PLAYS[number])
    play.run()
    return play


@pytest.mark.parametrize("number", PLAYS)
def test_decides_as_recorded(number: str) -> None:
    play = played(number)
    print(number, dict(play.compared))
    assert play.wrong == []
    assert sum(play.compared.values()) == COUNTS[number]


def test_every_difference_is_met_and_told() -> None:
    met: Counter[str] = Counter()
    for number in PLAYS:
        met += played(number).differing
    assert set(met) == set(DIFFERENCES)
    page = " ".join(PAGE.read_text().split())
    assert [line for line in DIFFERENCES if line not in page] == []
