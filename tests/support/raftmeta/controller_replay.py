"""A replay of recorded controllers by kwire's: it gets the same frames at the same times.

Requests are the recorded frames, and pass kwire's own dispatcher, handlers and controller; only
the quorum is the recording. What the controller appends has to come next in the recorded log,
byte for byte; it is committed at once if the recorded one's was. Random choices are those of the
recording, if kwire could have drawn the same.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from math import inf
from random import Random
from typing import Any, Final

import attrs
import trio
import trio.testing

from kwire import errors
from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_header, read_response
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kwire.codec.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.handlers.dispatch import Dispatcher
from kwire.raftmeta.controller.brokers import decide_fence_stale, decide_register_broker
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.state import ControllerState, whole
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.raft.describe import describe
from kwire.raftmeta.storage.records import pack
from kwire.storage_format.format import feature_records
from tests.support.codec.message_json import to_json
from tests.support.codec.requests import read_request
from tests.support.handlers.services import services_of
from tests.support.raftmeta import scenes, stage
from tests.support.raftmeta.clusters import node_config
from tests.support.raftmeta.controller_log import (
    applied_entry,
    began,
    committed_end,
    frames_of,
    log_of,
    published_before,
)
from tests.support.raftmeta.controller_quorum import PROMPT, RecordedQuorum, ReplayClock
from tests.support.raftmeta.conversations import RAFT, Frame, Happening, cluster_of, recording
from tests.support.raftmeta.deviations import differences
from tests.support.raftmeta.no_others import only_controller

CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
LEVELS: Final = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""Feature levels that the recorded clusters were formatted with."""
NOT_PLAYED: Final = RAFT | {"ApiVersions"}
UNSEEN: Final = ("06a",)
"""Scenarios whose log was not recorded: whatever is appended is taken."""
DUPLICATE: Final = errors.DuplicateBrokerRegistration.code
NOT_CONTROLLER: Final = errors.NotController.code
FENCED: Final = (-2000.0, 1000.0)
"""The last heartbeat before the recording was sent at most 2 s before it begins."""
RENOUNCED: Final = 500.0
"""Milliseconds until Kafka's controller, as it writes, notices that it is no longer active."""

RETURN: Final = (
    "**A broker that shut down cleanly may come back at once.** Kafka rejects its "
    "registration with DUPLICATE_BROKER_REGISTRATION until the old session has expired (9 "
    "s), although it fenced the broker itself at the end of the controlled shutdown."
)
TWICE: Final = (
    "**Fenced once.** When that session has expired, Kafka writes a second fencing record "
    "for the broker; kwire does not."
)
ORDER: Final = (
    "**A defined order of topics.** When a broker comes or goes, kwire changes partitions "
    "in the order in which the broker got them; Kafka changes them in hash-table order."
)
RESIGNED: Final = (
    "**A removed leader stops at once.** In Kafka a leader that was removed from the "
    "voters answers heartbeats until it next tries to write (up to 0.5 s). kwire's leader "
    "answers NOT_CONTROLLER as soon as it has sent EndQuorumEpoch, and the broker asks "
    "the next controller."
)
DIFFERENCES: Final = (ORDER, RETURN, TWICE, RESIGNED)


@attrs.frozen(kw_only=True, eq=False)
class Scene:
    """One controller of one scenario."""

    number: str
    node: int
    epoch: int | None = None
    """The epoch in which it is the active controller, if ever."""
    begins: float = -inf
    """Time at which it becomes the active controller, in ms."""
    ends: float = inf
    late: dict[tuple[int, int], float] = attrs.field(factory=dict)
    """Milliseconds by frame between the proxy's passing it on and the node's handling it."""

    def __str__(self) -> str:
        return f"{self.number}-n{self.node}"


class RecordedRandom(Random):
    """Random choices as the recording has them."""

    drawn: bytes = b""

    def randbytes(self, n: int) -> bytes:
        return self.drawn or super().randbytes(n)


@attrs.define(eq=False)
class Play:
    """One scene before the controller."""

    scene: Scene
    quorum: RecordedQuorum
    controller: Controller
    dispatcher: Dispatcher
    clock: ReplayClock
    frames: list[Frame]
    requests: list[Frame] = attrs.field(factory=list)
    answers: dict[tuple[int, int], tuple[float, bytes]] = attrs.field(factory=dict)
    compared: Counter[str] = attrs.field(factory=Counter)
    differing: Counter[str] = attrs.field(factory=Counter)
    wrong: list[Any] = attrs.field(factory=list)

    @property
    def state(self) -> ControllerState:
        return self.controller.state

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for t, step in sorted(self._timeline(nursery), key=lambda item: item[0]):
                self._keep_alive(t)
                await self._fence(t, nursery)
                self._skip_second_fencing(t)
                self.clock.t = t
                step()
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        self._compare()

    def _timeline(self, nursery: trio.Nursery) -> Iterator[tuple[float, Any]]:
        scene = self.scene
        if scene.epoch is not None:
            active = LeaderAndEpoch(scene.node, scene.epoch, is_active=True)
            yield max(scene.begins, 0.0), partial(self.quorum.lead, active)
            if scene.ends < inf:
                yield scene.ends, partial(self.quorum.lead, LeaderAndEpoch(None, scene.epoch))
        for frame in self.frames:
            if frame.is_request:
                t = frame.t + scene.late.get(frame.key, 0.0)
                yield t, partial(self._on_frame, frame, nursery)

    # Requests -------------------------------------------------------------------------------

    def _on_frame(self, frame: Frame, nursery: trio.Nursery) -> None:
        self.requests.append(frame)
        recorded = self._response_of(frame)
        if recorded is not None and recorded.body.get("errorCode") == DUPLICATE:
            self.state.now = self.clock.now()
            decision = whole(decide_register_broker(self.state, frame.message()))
            decision.take_effect()
            assert decision.reply.error_code == 0
            self.differing[RETURN] += 1
            return
        data = frames_of(self.scene.number)[frame.key, True]
        self._draw(data)
        nursery.start_soon(self._ask, frame, data)

    def describe_quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        """Return the answer of kwire's raft in this leader's place, after the same frames."""
        mine = self.scene.number, self.scene.node
        replay = stage.open_scene(next(s for s in scenes.SCENES if (s.number, s.node) == mine))
        for t, step in sorted(replay._timeline(), key=lambda item: item[0]):
            if t >= self.clock.t:
                break
            step()
        replay.advance(self.clock.t)
        return describe(replay.raft.state, request)

    async def _ask(self, frame: Frame, data: bytes) -> None:
        requests = self.dispatcher.for_connection("CONTROLLER", "127.0.0.1")
        parts = await requests.answer(memoryview(data))
        if parts is not None:
            self.answers[frame.key] = self.clock.t, b"".join(parts)[4:]

    def _draw(self, data: bytes) -> None:
        """Let the recording choose the id and the place of a topic, if chance could have."""
        head, pos = read_header(data)
        request = read_request(head, data, pos)
        if isinstance(request, EnvelopeRequest):
            self._draw(bytes(request.request_data))
        if not self.controller.is_active or not isinstance(request, CreateTopicsRequest):
            return
        (topic,) = request.topics
        state, chance = self.state, self.state.random
        assert isinstance(chance, RecordedRandom)
        ahead = self.quorum.log[self.quorum.place :]
        topic_record = next(
            e.record for e in ahead if e.kind == "TopicRecord" and e.record.name == topic.name
        )
        chance.drawn = topic_record.topic_id
        recorded = {entry.value for entry in ahead}
        for start in range(len(state.image.brokers)):
            state.placement = start
            decision = whole(decide_create_topics(state, request))
            if {pack(record) for record in decision.records} <= recorded:
                state.placement = start
                return

    # What the controller does by itself -----------------------------------------------------

    def _keep_alive(self, t: float) -> None:
        """Keep the sessions of brokers whose equal heartbeats the recording left out."""
        for broker in self.state.image.brokers.values():
            beats = [f.t for f in self.frames if f.is_request and _is_heartbeat_of(f, broker.epoch)]
            session = self.state.sessions.get(broker.id)
            if session is not None and beats and min(beats) < t < max(beats):
                session.heartbeat_at = max(session.heartbeat_at, t / 1000)

    async def _fence(self, t: float, nursery: trio.Nursery) -> None:
        before = -inf
        while self.controller.is_active and before < self.state.sessions.deadline <= t / 1000:
            before = self.state.sessions.deadline
            self.clock.t = max(self.clock.t, before * 1000)
            self.quorum.within = FENCED
            nursery.start_soon(self._try_to_fence)
            await trio.testing.wait_all_tasks_blocked()
            self.quorum.within = PROMPT
            self.compared["fencing"] += 1

    def _skip_second_fencing(self, t: float) -> None:
        """Kafka fences a broker that stopped in order once more when its session has run out."""
        quorum = self.quorum
        while quorum.place < len(quorum.log):
            entry = quorum.log[quorum.place]
            broker = self.state.image.brokers.get(getattr(entry.record, "broker_id", -1))
            again = getattr(entry.record, "fenced", 0) == 1 and broker is not None and broker.fenced
            is_change = entry.kind == "BrokerRegistrationChangeRecord"
            if not (again and is_change) or entry.stamp - self.clock.began > t:
                return
            quorum.skip()
            self.state.apply([entry.record], applied_entry(entry))
            self.differing[TWICE] += 1

    async def _try_to_fence(self) -> None:
        with suppress(errors.NotController):
            await self.controller.call(decide_fence_stale, None)

    # The comparison -------------------------------------------------------------------------

    def _response_of(self, frame: Frame) -> Frame | None:
        return next((f for f in self.frames if not f.is_request and f.key == frame.key), None)

    def _compare(self) -> None:
        end = self.frames[-1].t + self.clock.began
        for entry in self.quorum.log[self.quorum.place :]:
            if self.scene.epoch is not None and entry.stamp < end:
                self.wrong.append((str(self.scene), entry.offset, "not written", entry.record))
        for frame in self.frames:
            if frame.is_request:
                self._compare_answer(frame, self._response_of(frame))
        self.wrong += [(str(self.scene), *difference) for difference in self.quorum.wrong]
        self.compared += self.quorum.compared
        self.differing[ORDER] += self.quorum.reordered

    def _compare_answer(self, frame: Frame, recorded: Frame | None) -> None:
        where = str(self.scene), frame.t, frame.api
        t, data = self.answers.get(frame.key, (inf, b""))
        if recorded is None:
            if t < self._closed_at(frame.conn):
                self.wrong.append((*where, "answered", t))
            self.compared[f"{frame.api} unanswered"] += 1
            return
        if recorded.body.get("errorCode") == DUPLICATE:
            return
        if t > recorded.t:
            self.wrong.append((*where, "not answered in time", t))
            return
        theirs = frames_of(self.scene.number)[frame.key, False]
        request = frames_of(self.scene.number)[frame.key, True]
        answer = _answer(request, data)
        after = frame.t - self.scene.ends
        codes = recorded.body.get("errorCode"), answer.get("errorCode")
        if 0 < after < RENOUNCED and codes == (errors.NONE, NOT_CONTROLLER):
            self.differing[RESIGNED] += 1
            return
        self.compared[f"{frame.api} response"] += 1
        for path, value, ours in differences(_answer(request, theirs), answer):
            self.wrong.append((*where, path, value, ours))

    def _closed_at(self, conn: int) -> float:
        for entry in recording(self.scene.number).entries:
            if isinstance(entry, Happening) and entry.conn == conn and entry.text == "close":
                return entry.t
        return inf


def _is_heartbeat_of(frame: Frame, epoch: int) -> bool:
    return frame.api == "BrokerHeartbeat" and frame.body["brokerEpoch"] == epoch


def _answer(request: bytes, data: bytes) -> dict[str, Any]:
    """An answer's fields, and those of the answer inside an Envelope."""
    head, pos = read_header(request)
    correlation, response = read_response(head.api_key, head.api_version, data)
    body = to_json(response, head.api_version)
    if isinstance(response, EnvelopeResponse) and response.response_data is not None:
        inner = bytes(read_request(head, request, pos).request_data)
        body["responseData"] = _answer(inner, bytes(response.response_data))
    if isinstance(response, DescribeQuorumResponse):
        _without_times(body)
    return {**body, "correlationId": correlation}


def _without_times(body: dict[str, Any]) -> None:
    """Remove the times, sort the observers, and keep whether a replica has fetched."""
    parts = [part for topic in body["topics"] for part in topic["partitions"]]
    for part in parts:
        part["observers"].sort(key=lambda observer: observer["replicaId"])
    for replica in (r for part in parts for r in (*part["currentVoters"], *part["observers"])):
        for name in ("lastFetchTimestamp", "lastCaughtUpTimestamp"):
            replica[name] = replica[name] > 0


def open_scene(scene: Scene) -> Play:
    """Return the controller in its state when the scenario begins."""
    recorded = recording(scene.number)
    name = f"controller-{scene.node}"
    own = [f for f in recorded.of(name) if f.api not in NOT_PLAYED]
    frames = [f for f in own if (f.target if f.is_request else f.source) == name]
    cluster = cluster_of(scene.number)
    unseen = scene.number in UNSEEN
    began_at = 0.0 if unseen else began(scene.number)
    log = [] if unseen else log_of(cluster, scene.epoch or 0)
    place = next((n for n, e in enumerate(log) if e.stamp >= began_at), len(log))
    publisher = MetadataPublisher() if unseen else published_before(cluster, log, place)
    lost = committed_end(cluster, scene.epoch) if scene.epoch is not None and not unseen else inf
    clock = ReplayClock(began=began_at)
    quorum = RecordedQuorum(log, publisher, clock, lost, place, unseen=unseen)
    state = ControllerState(
        config=node_config(),
        random=RecordedRandom(1),
        cluster_id=CLUSTER_ID,
        supported_features=dict(SUPPORTED),
    )
    controller = Controller(
        quorum,  # type: ignore[arg-type]
        publisher,
        state,
        clock,
        bootstrap=feature_records(LEVELS),
    )
    services = services_of(
        config=state.config,
        active_controller=only_controller(controller),
        quorum=quorum,
        image=publisher.image,
        cluster_id=CLUSTER_ID,
        supported_features=SUPPORTED,
    )
    player = Play(
        scene, quorum, controller, Dispatcher(services, ListenerType.CONTROLLER), clock, frames
    )
    quorum.describe = player.describe_quorum
    return player


def play(scene: Scene) -> Play:
    """Replay the whole scene."""
    player = open_scene(scene)
    trio.run(player.run)
    return player
