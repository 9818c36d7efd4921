"""A replay of recorded brokers by the broker half of a kwire node.

Two machines are played. The stepper decides what is sent and when: it gets what the recorded
broker got and has to send the same, byte for byte, no later. The channel decides to which node a
request goes, and after which answers it is sent again: it runs on a clock of its own, between
peers that answer as recorded.
"""

import gzip
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import Any, Final

import attrs
import trio

from kwire import errors
from kwire.codec.apis import BY_KEY
from kwire.codec.frame import request_frame
from kwire.codec.schema import spec_of
from kwire.configs.broker import BrokerConfig
from kwire.configs.listeners import ListenerEndpoint
from kwire.net.connection_pool import OutOfReach
from kwire.net.controller_channel import ControllerChannel
from kwire.raftmeta.broker.registration import broker_registration
from kwire.raftmeta.broker.state import BrokerStage, BrokerState
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.delivery import LeaderAndEpoch
from kwire.raftmeta.raft.voters import Node
from tests.support.codec.message_json import to_json
from tests.support.raftmeta.clusters import node_config
from tests.support.raftmeta.conversations import CLUSTERS, VECTORS, Frame, Happening, recording
from tests.support.raftmeta.deviations import Deviation, differences

LIFE: Final = ("BrokerRegistration", "BrokerHeartbeat")
COMPARED_APIS: Final = (*LIFE, "ControllerRegistration", "AllocateProducerIds", "Envelope")
"""The requests that are compared here."""
INTERVAL: Final = 2.0
"""``broker.heartbeat.interval.ms`` of all recorded nodes, in seconds."""
EARLY: Final = 0.01
"""Seconds before it is due that a recorded request may be sent: the recording proxy wrote answers
down after it had passed them on.
"""
LATE: Final = 0.15
"""Seconds after it is due that a recorded request may be sent: two cores carried all nodes."""
NOT_CONTROLLER: Final = errors.NotController.code
PERIODIC: Final = (BrokerStage.RUNNING, BrokerStage.STARTING)
"""States in which equal heartbeats follow each other; the recordings leave most of them out."""

ORDER: Final = "order of features"


@cache
def request_bytes(number: str) -> dict[tuple[int, int], bytes]:
    """The bytes of every request of a scenario, by connection and correlation id."""
    (path,) = VECTORS.glob(f"{number}-*.jsonl.gz")
    with gzip.open(path, "rt") as lines:
        lines_read = [json.loads(line) for line in lines]
    return {
        (line["conn"], line["header"]["correlationId"]): bytes.fromhex(line["hex"])
        for line in lines_read
        if line.get("dir") == "request"
    }


def node_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def config_of(node: int) -> BrokerConfig:
    return node_config(node_id=str(node), controller_quorum_voters=f"{node}@localhost:9093")


def frame_of(request: Any, recorded: Frame, source: str) -> bytes:
    """A request as kwire sends it, but for the number that it counts itself."""
    key = spec_of(type(request)).api_key
    assert key is not None
    version = BY_KEY[key].stable
    return request_frame(key, version, recorded.correlation, str(node_of(source)), request)


@attrs.define
class Comparison:
    """The requests that were compared, and their deviations."""

    compared: Counter[str] = attrs.field(factory=Counter)
    deviations: list[Deviation] = attrs.field(factory=list)

    def differs(self, frame: Frame, kind: str, path: str, recorded: Any, ours: Any) -> None:
        where = f"{frame.t:.0f} ms {frame.source}"
        self.deviations.append(Deviation(kind, frame.api, path, recorded, ours, where))

    def compare(self, number: str, frame: Frame, ours: Any) -> None:
        """A request of kwire's with the recorded one."""
        self.compared[frame.api] += 1
        body = to_json(ours, frame.version)
        recorded = dict(frame.body)
        if "features" in recorded:
            by_name = sorted(recorded["features"], key=lambda feature: str(feature["name"]))
            if by_name != recorded["features"]:
                self.differs(frame, ORDER, "features", recorded["features"], body["features"])
                recorded["features"] = by_name
        for path, theirs, mine in differences(recorded, body):
            self.differs(frame, "field", path, theirs, mine)
        ours_bytes = frame_of(ours, frame, frame.source)
        recorded_bytes = request_bytes(number)[frame.key]
        size = len(ours_bytes) if "features" in recorded else None
        if (ours_bytes if size is None else sorted(ours_bytes)) != (
            recorded_bytes if size is None else sorted(recorded_bytes)
        ):
            self.differs(frame, "bytes", "", recorded_bytes.hex(), ours_bytes.hex())


def registration_of(frame: Frame, previous_epoch: int) -> Any:
    """Return the registration that kwire sends for a broker with this one's facts."""
    body = frame.message()
    registration = broker_registration(
        config_of(body.broker_id),
        cluster_id=body.cluster_id,
        incarnation_id=body.incarnation_id,
        endpoints=[ListenerEndpoint(e.name, e.host, e.port, "PLAINTEXT") for e in body.listeners],
        features=SUPPORTED,
        log_dirs=sorted(body.log_dirs),
    )
    registration.previous_broker_epoch = previous_epoch
    return registration


@attrs.define
class Life:
    """One broker of a recorded cluster, kwire's in its place."""

    name: str
    broker: BrokerState
    is_timed: bool = False
    """Whether the time of its next request is known: not at the beginning of a scenario."""
    pending: Frame | None = None
    """The request under way."""
    refused: bool = False
    """Whether a node that does not lead refused it: it sends the same request again."""


@attrs.define
class Cluster:
    """The brokers of one recorded cluster, through all its scenarios."""

    comparison: Comparison
    lives: dict[str, Life] = attrs.field(factory=dict)
    ended: dict[str, int] = attrs.field(factory=dict)
    """Epochs of brokers that stopped in order."""

    def play(self, number: str) -> None:
        for life in self.lives.values():
            life.is_timed, life.pending = False, None
        for entry in recording(number).entries:
            if isinstance(entry, Happening):
                self._on_event(entry)
            elif entry.api in LIFE:
                self._on_request(number, entry) if entry.is_request else self._on_answer(entry)

    def _on_event(self, entry: Happening) -> None:
        what, _, name = entry.text.partition(" ")
        name = name.replace("node-", "controller-")
        life = self.lives.get(name)
        if what == "SIGTERM" and life is not None:
            life.broker.begin_controlled_shutdown(entry.t / 1000)
        elif what == "start" and life is not None:
            if life.broker.state is BrokerStage.SHUTTING_DOWN:
                self.ended[name] = life.broker.epoch
            del self.lives[name]
        elif what == "SIGKILL":
            self.ended.pop(name, None)

    def _life(self, frame: Frame) -> Life:
        life = self.lives.get(frame.source)
        if life is not None:
            return life
        if frame.api == "BrokerRegistration":
            registration = registration_of(frame, self.ended.pop(frame.source, -1))
            life = Life(frame.source, BrokerState(registration=registration, interval=INTERVAL))
        else:  # it started where nothing was recorded
            body = frame.message()
            registration = broker_registration(
                config_of(body.broker_id),
                cluster_id="",
                incarnation_id=bytes(16),
                endpoints=[],
                features={},
                log_dirs=[],
            )
            broker = BrokerState(
                registration=registration, interval=INTERVAL, state=BrokerStage.RUNNING
            )
            broker.epoch, broker.registered = body.broker_epoch, True
            broker.ready_to_unfence(0.0)
            life = Life(frame.source, broker)
        self.lives[frame.source] = life
        return life

    def _on_request(self, number: str, frame: Frame) -> None:
        life = self._life(frame)
        if life.refused:  # the channel decides which node it asks now
            assert life.pending is not None
            if frame.body != life.pending.body:
                self.comparison.differs(frame, "again", "", frame.body, life.pending.body)
            self.comparison.compared[f"{frame.api} again"] += 1
            life.pending, life.refused = frame, False
            return
        broker = life.broker
        if life.pending is not None:
            broker.on_error(errors.RequestTimedOut(), life.pending.t / 1000 + INTERVAL)
        if frame.body.get("wantFence") is False and broker.request(0).want_fence:  # type: ignore[union-attr]
            broker.ready_to_unfence(frame.t / 1000)
        self._check_time(life, frame)
        offset = frame.body.get("currentMetadataOffset", -1)
        self.comparison.compare(number, frame, broker.request(offset))
        life.pending, life.is_timed = frame, True

    def _check_time(self, life: Life, frame: Frame) -> None:
        """kwire is never later than the recorded broker, nor earlier than two cores explain."""
        late = frame.t / 1000 - life.broker.due
        if not life.is_timed:
            return
        self.comparison.compared["time"] += 1
        allowed = LATE
        if life.broker.state in PERIODIC and life.broker.registered and late > LATE:
            period = INTERVAL if life.broker.state is BrokerStage.RUNNING else 0.01
            left_out = round(late / period)
            late -= left_out * period
            allowed = LATE + 0.01 * left_out
        if not -EARLY <= late <= allowed:
            self.comparison.differs(frame, "time", "", frame.t, life.broker.due * 1000)

    def _on_answer(self, frame: Frame) -> None:
        life = self.lives.get(frame.target)
        if life is None or life.pending is None or life.pending.key != frame.key:
            return
        code = frame.body["errorCode"]
        now = frame.t / 1000
        life.refused = code == NOT_CONTROLLER
        if code == NOT_CONTROLLER:
            return
        life.pending = None
        if code:
            life.broker.on_error(errors.BY_CODE[code](), now)
        else:
            life.broker.on_answer(frame.message(), now)


@cache
def play_cluster(cluster: str) -> Comparison:
    """Return the comparison of all requests of a cluster's brokers about themselves."""
    cluster_played = Cluster(Comparison())
    for number in CLUSTERS[cluster]:
        cluster_played.play(number)
    return cluster_played.comparison


# Receivers of requests ----------------------------------------------------------------------
@attrs.define
class Exchange:
    """A request and its attempts until a controller took it."""

    number: str
    frames: list[Frame]
    """Requests and the answers to them."""

    @property
    def requests(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.is_request]

    @property
    def source(self) -> str:
        return self.frames[0].source

    @property
    def api(self) -> str:
        return self.frames[0].api

    @property
    def is_answered(self) -> bool:
        last = self.frames[-1]
        return not last.is_request and last.body["errorCode"] != NOT_CONTROLLER

    def answer(self, request: Frame) -> Frame | None:
        return next((f for f in self.frames if not f.is_request and f.key == request.key), None)


def exchanges(number: str) -> list[Exchange]:
    """Return the requests of nodes to controllers; attempts at the same one are one exchange."""
    ordered: list[Exchange] = []
    running: dict[tuple[str, str], Exchange] = {}
    for frame in recording(number).frames:
        if frame.api not in COMPARED_APIS:
            continue
        if frame.is_request:
            exchange = running.get((frame.source, frame.api))
            if exchange is None or not _again(exchange, frame):
                exchange = running[frame.source, frame.api] = Exchange(number, [])
                ordered.append(exchange)
            exchange.frames.append(frame)
        elif (frame.target, frame.api) in running:
            running[frame.target, frame.api].frames.append(frame)
    return ordered


def _again(exchange: Exchange, frame: Frame) -> bool:
    last = exchange.frames[-1]
    moved = not last.is_request and last.body["errorCode"] == NOT_CONTROLLER
    return moved and exchange.frames[0].body == frame.body


def leaders(number: str, node: str) -> Iterator[tuple[float, int]]:
    """Yield each time a node learned of a leader, with its id.

    It learns that from answers to its Fetches, or from the leader.
    """
    last = -1
    for frame in recording(number).frames:
        leader = -1
        if frame.api == "BeginQuorumEpoch" and frame.is_request:
            if node in (frame.source, frame.target):
                leader = frame.part["leaderId"]
        elif frame.is_raft and frame.api == "Fetch" and frame.target == node:
            leader = frame.part.get("currentLeader", {}).get("leaderId", -1)
        if leader not in (-1, last):
            last = leader
            yield frame.t, leader


@attrs.define
class RaftService:
    """The node's view of the quorum."""

    leader: Node | None = None

    def leader_node(self) -> Node | None:
        return self.leader

    def add_leadership_listener(self, listener: Any) -> None:
        pass


@attrs.define
class Peers:
    """The recorded controllers: answer as they did, and when."""

    exchange: Exchange
    began: float
    timeout_s: float = INTERVAL
    started: float = attrs.field(factory=trio.current_time)
    calls: list[tuple[float, int, Any]] = attrs.field(factory=list)
    dropped: list[tuple[float, int]] = attrs.field(factory=list)
    used: set[tuple[int, int]] = attrs.field(factory=set)

    @property
    def now(self) -> float:
        """The time on the recording's clock, in milliseconds."""
        return self.began + (trio.current_time() - self.started) * 1000

    async def call(self, host: str, port: int, request: Any) -> Any:
        self.calls.append((self.now, port, request))
        recorded = [f for f in self.exchange.requests if node_of(f.target) == port]
        if not recorded:
            raise OutOfReach(host)
        unused = [f for f in recorded if f.key not in self.used]
        frame = unused[0] if unused else recorded[-1]
        self.used.add(frame.key)
        answer = self.exchange.answer(frame)
        if answer is None:
            await trio.sleep(self.timeout_s)
            self.drop(host, port)
            raise OutOfReach(host)
        took = answer.t - frame.t
        if len(unused) > 1 and self.now < frame.t:  # an attempt that the recording does not have
            took = 1.0
        await trio.sleep(took / 1000)
        return answer.message()

    def drop(self, host: str, port: int) -> None:
        if not self.dropped or self.dropped[-1] != (self.now, port):
            self.dropped.append((self.now, port))


@attrs.define
class ChannelRun:
    """An exchange as kwire's channel had it."""

    peers: Peers
    answer: Any = None
    ended: float = 0.0
    timed_out: bool = False

    @property
    def controllers(self) -> list[int]:
        """Ids of the controllers that it asked, in order."""
        return in_turn(node for _, node, _ in self.peers.calls)


def in_turn(nodes: Iterable[int]) -> list[int]:
    """Nodes in order, each once as long as no other comes."""
    return [node for node, _ in groupby(nodes)]


Way = Callable[[ControllerChannel, Frame], Awaitable[Any]]


async def send_by_channel(exchange: Exchange, way: Way, timeout_s: float) -> ChannelRun:
    """Send an exchange's request by kwire's channel, on a clock that jumps over waits."""
    first = exchange.frames[0]
    peers = Peers(exchange, first.t, timeout_s)
    quorum = RaftService()
    links: Any = peers
    channel = ControllerChannel(
        quorum,  # type: ignore[arg-type]
        registrations=links,
        own_requests=links,
        isr_proposals=links,
        client_requests=links,
    )
    leader_times = list(leaders(exchange.number, exchange.source))
    earlier = [leader for t, leader in leader_times if t <= first.t] or [node_of(first.target)]
    quorum.leader = Node(earlier[-1], "h", earlier[-1])
    changes = [(t, leader) for t, leader in leader_times if t > first.t and leader != earlier[-1]]
    run = ChannelRun(peers)

    async def announce(t: float, leader: int) -> None:
        await trio.sleep(max(0.0, (t - peers.now) / 1000))
        quorum.leader = Node(leader, "h", leader)
        channel.on_leadership(LeaderAndEpoch(leader, 1))

    async with trio.open_nursery() as nursery:
        for t, leader in changes:
            nursery.start_soon(announce, t, leader)
        try:
            run.answer = await way(channel, first)
        except errors.RequestTimedOut:
            run.timed_out = True
        run.ended = peers.now
        nursery.cancel_scope.cancel()
    return run


FEATURES: Final = (
    "**Features in the order of their names.** They are a set in registrations; Kafka "
    "writes them in hash-table order."
)
FOLLOWED: Final = (
    "**A broker asks a new leader at once.** Kafka's broker asks the previous controller "
    "until that controller rejects a request, although its own raft client already "
    "follows a new leader. kwire's broker asks the new leader."
)
OFTEN: Final = (
    "**A retry after 50 ms.** When a controller that is no longer active rejects a "
    "request, Kafka's broker asks the same controller again 60 ms later or more, on a new "
    "connection. kwire's broker asks again after 50 ms, or asks another leader as soon as "
    "it learns of one."
)
DIFFERENCES: Final = (FEATURES, FOLLOWED, OFTEN)
