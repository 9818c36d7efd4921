"""A node of a simulated cluster: the services of a running one, put together as in `node/core.py`.

Quorum, publisher, controller, channel, snapshotter and broker lifecycle are the real ones; the disk
(:class:`simulation.raft.storage.SimStorage`), the network and the clock are simulated, and the
broker holds no data.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

import trio

from kwire import attrs, errors
from kwire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.codec.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kwire.codec.messages.metadata_records import FeatureLevelRecord, MetadataRecord
from kwire.configs.broker import BrokerConfig
from kwire.configs.load import broker_config
from kwire.net.connection_pool import ConnectionPool, OutOfReach, RaftPeers
from kwire.net.controller_channel import ControllerChannel
from kwire.node import build
from kwire.node.controller_requests import InProcessController, register_controller
from kwire.raftmeta.broker.lifecycle import BrokerLifecycle
from kwire.raftmeta.broker.registration import controller_registration
from kwire.raftmeta.commits import Commit
from kwire.raftmeta.controller.brokers import (
    decide_heartbeat,
    decide_register_broker,
    decide_register_controller,
)
from kwire.raftmeta.controller.features import SUPPORTED
from kwire.raftmeta.controller.periodic_tasks import PeriodicTasks
from kwire.raftmeta.controller.service import Controller, Decide
from kwire.raftmeta.controller.state import ControllerState
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.metadata.snapshot_cadence import SnapshotCadence
from kwire.raftmeta.metadata.snapshotter import Snapshotter
from kwire.raftmeta.raft.events import Effect
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.voters import Endpoint
from kwire.raftmeta.service import RaftService
from kwire.raftmeta.storage.levels import METADATA_VERSION, NEWEST
from kwire.records.build import Payload
from kwire.storage_format.directories import Identity
from simulation.cluster.checks import Books, Watch
from simulation.cluster.network import Wire, WirePool
from simulation.raft.quorums import TestClock
from simulation.raft.storage import SimStorage

if TYPE_CHECKING:
    from kwire.raftmeta.raft.events import Event, RaftRequest

CLUSTER_ID: Final = "simulated-cluster-0001"
SNAPSHOT_BYTES: Final = 6000
ASK_SECONDS: Final = 5.0
"""The time-out of a client's forwarded request."""

Q = TypeVar("Q")
R = TypeVar("R")


@attrs.frozen
class Forwarded(Generic[Q, R]):
    """A client's request forwarded to the active controller; it replaces an Envelope."""

    decide: "Decide[Q, R]"
    request: Q


@attrs.frozen
class ForwardedAnswer(Generic[R]):
    """The answer to a forwarded request; the error code is of the forwarding, not of the reply."""

    error_code: int
    reply: R | None = None


@attrs.define(eq=False)
class _Waiting:
    """A request of another node that waits for an answer; None if the process ends first."""

    event: trio.Event = attrs.field(factory=trio.Event)
    answer: object = None


@attrs.define(eq=False)
class WatchedRaft:
    """A raft machine whose steps the books see."""

    raft: Raft
    books: Books
    node_id: int

    @property
    def deadline(self) -> float:
        return self.raft.deadline

    def step(self, event: "Event | None", now: float, now_ms: int) -> tuple[Effect, ...]:
        state = self.raft.state
        leads = isinstance(state.role, Leader)
        effects = self.raft.step(event, now, now_ms)
        self.books.on_step(self.node_id, state, effects, leads=leads)
        return effects


class WatchedQuorum(RaftService):
    """A quorum that reports to the books what it commits, and who appends in which epoch."""

    books: Books
    node_id: int

    def watch(self, books: Books, node_id: int) -> None:
        """Begin to report."""
        self.books, self.node_id = books, node_id
        self._driver._machine = WatchedRaft(self._raft, books, node_id)

    def append_nowait(
        self,
        records: Sequence[MetadataRecord],
        epoch: int,
        level: int = NEWEST,
        packed: Payload | None = None,
    ) -> Commit:
        commit = super().append_nowait(records, epoch, level, packed)
        self.books.on_append(self.node_id, epoch)
        return commit


class Process:
    """One process of a node, from start to end."""

    def __init__(
        self, config: BrokerConfig, storage: SimStorage, wire: Wire, books: Books, life: int
    ) -> None:
        self.config, self.wire = config, wire
        self.nursery: trio.Nursery | None = None
        self.is_serving = False
        self.clock = clock = TestClock()
        random = Random(f"{books.seed}-{config.node_id}-{life}")
        directory = bytes([0xD0]) + config.node_id.to_bytes(15)
        incarnation = life.to_bytes(8) + config.node_id.to_bytes(8)
        host = host_of(config.node_id)
        endpoints = (Endpoint("CONTROLLER", host, 9093),) if config.is_controller else ()
        identity = Identity(CLUSTER_ID, {})
        raft = build.raft_config(config, identity, directory, endpoints)
        raft = attrs.evolve(raft, fetch_max_bytes=4000, snapshot_max_bytes=500)
        self.quorum = WatchedQuorum(
            raft,
            storage,
            clock=clock,
            random=random,
            configured=build.configured_voters(config),
            peers=RaftPeers(self._links(raft.request_timeout_s)),
        )
        self.quorum.watch(books, config.node_id)
        self.publisher = MetadataPublisher()
        self.channel = ControllerChannel(
            self.quorum,
            registrations=self._links(config.broker_session_timeout_ms / 1000),
            own_requests=self._links(config.broker_heartbeat_interval_ms / 1000),
            isr_proposals=self._links(config.broker_heartbeat_interval_ms / 1000),
            client_requests=self._links(ASK_SECONDS),
        )
        state = ControllerState(
            config=config,
            random=random,
            cluster_id=CLUSTER_ID,
            supported_features=dict(SUPPORTED),
        )
        self.controller = Controller(
            self.quorum,
            self.publisher,
            state,
            clock,
            bootstrap=[FeatureLevelRecord(name=METADATA_VERSION, feature_level=NEWEST)],
            own_broker=config.node_id,
        )
        cadence = SnapshotCadence(max_bytes=SNAPSHOT_BYTES, max_seconds=0)
        self.snapshotter = Snapshotter(self.quorum, self.publisher, cadence, clock)
        self.quorum.add_listener(Watch(books, config.node_id, life, self.publisher))
        self.local = InProcessController(self.controller, self.channel.ask)
        self.registration = controller_registration(config, incarnation, (), SUPPORTED)
        self.lifecycle = BrokerLifecycle(
            config=config,
            cluster_id=CLUSTER_ID,
            incarnation_id=incarnation,
            endpoints=[e for e in config.endpoints if e.name != "CONTROLLER"],
            features=SUPPORTED,
            log_dirs=[directory],
            publisher=self.publisher,
            ask=self.local.ask,
            clock=clock,
            local=self.local,
            is_gone=self.channel.is_gone,
        )

    def _links(self, timeout_s: float) -> ConnectionPool:
        return cast("ConnectionPool", WirePool(self.wire, self.config.node_id, timeout_s))

    async def run(self) -> None:
        """Run the node's services until cancelled."""
        host = host_of(self.config.node_id)
        try:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                await nursery.start(self.quorum.run)
                await nursery.start(PeriodicTasks(self.controller, self.clock).run)
                self.wire.servers[host] = (self.config.node_id, self.serve)
                if self.config.is_controller:
                    nursery.start_soon(register_controller, self.local.ask, self.registration)
                await self.quorum.wait_caught_up()
                await nursery.start(self.publisher.run)
                await nursery.start(self.snapshotter.run)
                await self.lifecycle.start()
                await self.publisher.wait_for(self._is_unfenced)
                self.is_serving = True
                await nursery.start(self.lifecycle.run)
        finally:
            self.nursery, self.is_serving = None, False
            if self.wire.servers.get(host, (0, None))[1] == self.serve:
                del self.wire.servers[host]

    def _is_unfenced(self, image: MetadataImage) -> bool:
        own = image.brokers.get(self.config.node_id)
        return own is not None and own.epoch == self.lifecycle.epoch and not own.fenced

    async def stop(self) -> None:
        """Shut down in a controlled way, as the server does before it ends."""
        self.is_serving = False
        with trio.move_on_after(10):
            if await self.lifecycle.stop():
                self.quorum.shut_down()
                await self.quorum.wait_successor()

    # Requests of other nodes ----------------------------------------------------------------
    async def serve(self, request: object) -> object:
        """Answer a request; OutOfReach if this process ends meanwhile."""
        if self.nursery is None:
            raise OutOfReach(self.config.node_id)
        waiting = _Waiting()
        self.nursery.start_soon(self._answer, request, waiting)
        await waiting.event.wait()
        if waiting.answer is None:
            raise OutOfReach(self.config.node_id)
        return waiting.answer

    async def _answer(self, request: object, waiting: _Waiting) -> None:
        try:
            waiting.answer = await self._answer_of(request)
        finally:
            waiting.event.set()

    async def _answer_of(self, request: object) -> object:
        match request:
            case Forwarded():
                return await self._answer_forwarded(request)
            case BrokerHeartbeatRequest():
                return await self._decide(decide_heartbeat, request, _refuse_heartbeat)
            case BrokerRegistrationRequest():
                return await self._decide(decide_register_broker, request, _refuse_broker)
            case ControllerRegistrationRequest():
                return await self._decide(decide_register_controller, request, _refuse_controller)
            case ApiVersionsRequest():
                return ApiVersionsResponse(api_keys=[])
            case _:
                return await self.quorum.handle(cast("RaftRequest", request))

    async def _answer_forwarded(self, forwarded: Forwarded[Q, R]) -> ForwardedAnswer[R]:
        try:
            reply = await self.controller.call(forwarded.decide, forwarded.request)
        except errors.NotController as error:
            return ForwardedAnswer(error.code)
        return ForwardedAnswer(errors.NONE, reply)

    async def _decide(self, decide: "Decide[Q, R]", request: Q, refuse: Callable[[int], R]) -> R:
        """Decide a request that a node has sent for itself; ``refuse`` makes a response of an error
        code."""
        try:
            return await self.controller.call(decide, request)
        except errors.KafkaError as error:
            return refuse(error.code)

    # Requests of clients --------------------------------------------------------------------
    async def ask_for_client(self, decide: "Decide[Q, R]", request: Q) -> R:
        """Decide a client's request here if this controller is active; else forward it."""
        if self.controller.is_active:
            try:
                return await self.controller.call(decide, request)
            except errors.NotController:
                pass
        answer: ForwardedAnswer[R] = await self.channel.insist(Forwarded(decide, request))
        assert answer.reply is not None, "the channel repeats what no controller has decided"
        return answer.reply


def _refuse_heartbeat(code: int) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code=code, is_fenced=True, should_shut_down=False)


def _refuse_broker(code: int) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(error_code=code, broker_epoch=-1)


def _refuse_controller(code: int) -> ControllerRegistrationResponse:
    return ControllerRegistrationResponse(error_code=code)


def host_of(node_id: int) -> str:
    return f"node-{node_id}"


def config_of(node_id: int, voters: list[int]) -> BrokerConfig:
    """Return a node's properties; voters are controllers as well as brokers."""
    is_voter = node_id in voters
    host = host_of(node_id)
    listeners = f"PLAINTEXT://{host}:9092"
    return broker_config(
        {
            "process.roles": "broker,controller" if is_voter else "broker",
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(f"{n}@{host_of(n)}:9093" for n in voters),
            "listeners": listeners + (f",CONTROLLER://{host}:9093" if is_voter else ""),
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": "data",
        }
    )
