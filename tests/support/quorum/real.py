"""The real world: the raft service over loopback sockets and files with fsync, on the clock.

Each node has a thread with a loop of its own, so that it can be paused as by SIGSTOP, and talks
through proxies that can be cut.  A killed node's last writes are not undone: that is the business
of the simulated disk.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import trio

from kwire.clock import SystemClock
from kwire.codec.apis import ListenerType
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Dispatcher
from kwire.log.disk import RealDisk
from kwire.net.connection_pool import ConnectionPool, Network, RaftPeers
from kwire.net.server import NetServer
from kwire.raftmeta.commits import Commit
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.events import Effect, Event
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.raft import Raft
from kwire.raftmeta.raft.state import RaftConfig
from kwire.raftmeta.raft.voters import VoterSet
from kwire.raftmeta.storage.storage_turn import Outcome
from simulation.raft.files import Files
from simulation.raft.quorums import Watcher
from tests.support.handlers.services import services_of
from tests.support.quorum.cluster import Cluster, Shape, Ticket, record
from tests.support.quorum.proxies import HOST, Proxies
from tests.support.quorum.watch import Watch, names_in

LIMIT_S: Final = 60.0
POLL_S: Final = 0.005
TIMES: Final = {
    "election_timeout_s": 0.3,
    "election_backoff_max_s": 0.3,
    "fetch_timeout_s": 0.8,
    "request_timeout_s": 0.6,
    "retry_backoff_max_s": 0.1,
    "fetch_wait_s": 0.2,
}


@attrs.define
class _Machine:
    """The raft node, with an observer of its steps."""

    raft: Raft
    on_step: Callable[[Event | None, Sequence[Effect]], None]

    @property
    def deadline(self) -> float:
        return self.raft.deadline

    def step(self, event: Event | None, now: float, now_ms: int) -> tuple[Effect, ...]:
        effects = self.raft.step(event, now, now_ms)
        self.on_step(event, effects)
        return effects


@attrs.define(eq=False)
class _Routes(ConnectionPool):
    """The connections of a node, routed by the cluster."""

    port_of: Callable[[str], int] = lambda host: 0

    async def call(self, host: str, port: int, request: Any) -> Any:
        return await ConnectionPool.call(self, HOST, self.port_of(host), request)


@attrs.define(eq=False)
class RealNode:
    """One node: what is left of it when it is down, and its thread while it runs."""

    config: RaftConfig
    configured: VoterSet
    storage: Any
    """:class:`Files`."""
    watch: Watch
    route: Callable[[int, str], int]
    port: int = 0
    """The port that it listens on, or that nothing listens on while it is down."""
    incarnation: int = 0
    raft: Raft | None = None
    is_paused: bool = False
    failure: BaseException | None = None
    listener: Watcher = attrs.field(factory=Watcher)
    quorum: RaftService | None = None
    _token: trio.lowlevel.TrioToken | None = None
    _nursery: trio.Nursery | None = None
    _thread: threading.Thread | None = None
    _gate: threading.Event = attrs.field(factory=threading.Event)
    _refusing_socket: socket.socket = attrs.field(factory=socket.socket)
    """Bound, never listening: connections to it are refused."""

    def __attrs_post_init__(self) -> None:
        self._refusing_socket.bind((HOST, 0))
        self._down()

    def _down(self) -> None:
        self.raft = None
        self.port = int(self._refusing_socket.getsockname()[1])

    @property
    def id(self) -> int:
        return self.config.node_id

    # Life and death -------------------------------------------------------------------------
    def start(self) -> None:
        """Returns when it runs; raises what keeps it from running."""
        started = threading.Event()
        self.failure = None
        self._thread = threading.Thread(target=self._main, args=(started,), daemon=True)
        self._thread.start()
        started.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _main(self, started: threading.Event) -> None:
        try:
            trio.run(self._run, started)
        except BaseException as error:  # noqa: BLE001 - raised again by the scenario
            self.failure = error
        finally:
            self._down()
            started.set()

    async def _run(self, started: threading.Event) -> None:
        self._token = trio.lowlevel.current_trio_token()
        clock, random = SystemClock(), Random(self.id)
        network = Network(clock, random)
        routes = _Routes(
            network,
            f"raft-client-{self.id}",
            timeout_s=self.config.request_timeout_s,
            backoff_max_s=self.config.retry_backoff_max_s,
            port_of=partial(self.route, self.id),
        )
        quorum = RaftService(
            self.config,
            self.storage,
            clock=clock,
            random=random,
            configured=self.configured,
            peers=RaftPeers(routes),
        )
        net, requests = NetServer(), self._requests(quorum)
        self.port = net.bind("CONTROLLER", HOST, 0).port
        self._watch_steps(quorum)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(network.run)
            await nursery.start(net.run)
            net.accept("CONTROLLER", requests.for_connection)
            await nursery.start(quorum.run)
            started.set()

    def _watch_steps(self, quorum: RaftService) -> None:
        """Let every step and everything visible pass the checks."""
        self.incarnation += 1
        self.quorum, self.raft, self.listener = quorum, quorum._raft, Watcher()
        self.listener.watch(quorum)
        quorum._driver._machine = _Machine(quorum._raft, self._on_step)
        finish = quorum._finish

        def watch_and_finish(outcome: Outcome) -> None:
            if self.raft is not None:
                self.watch.on_outcome(self, outcome)
            finish(outcome)

        quorum._finish = watch_and_finish  # type: ignore[method-assign]

    def _on_step(self, event: Event | None, effects: Sequence[Effect]) -> None:
        if self.raft is not None:  # else it is dead already, as far as the scenario knows
            self.watch.on_step(self, event, effects)

    def _requests(self, quorum: RaftService) -> Dispatcher:
        services = services_of(
            quorum=quorum,
            image=MetadataImage(),
            cluster_id=self.config.cluster_id,
            supported_features={"kraft.version": (0, 1)},
        )
        return Dispatcher(services, ListenerType.CONTROLLER)

    def end(self, *, in_order: bool) -> None:
        """Stop, or die: nothing more is written."""
        assert self._token is not None
        if in_order:
            trio.from_thread.run_sync(self.running.shut_down, trio_token=self._token)
            self.do(self.running.wait_successor)
        else:
            self.storage.is_dead = True
        self._gate.set()
        self._token.run_sync_soon(self._cancel)
        assert self._thread is not None
        self._thread.join()
        self.is_paused = False
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self._refusing_socket.close()

    def _cancel(self) -> None:
        assert self._nursery is not None
        self._down()
        self._nursery.cancel_scope.cancel()

    def pause(self) -> None:
        assert self._token is not None
        self.is_paused = True
        self._gate.clear()
        self._token.run_sync_soon(self._gate.wait)

    def resume(self) -> None:
        self.is_paused = False
        self._gate.set()

    # Asking it ------------------------------------------------------------------------------
    @property
    def running(self) -> RaftService:
        assert self.quorum is not None
        return self.quorum

    def do(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run an async function in the node's loop."""
        return trio.from_thread.run(function, *args, trio_token=self._token)

    def begin(self, function: Callable[[], Any]) -> Ticket:
        """Begin something in the node's loop that takes a while."""
        ticket = Ticket()

        async def settle() -> None:
            try:
                ticket.outcome = await function()
            except KafkaError as error:
                ticket.error = error

        async def begin() -> None:
            assert self._nursery is not None
            self._nursery.start_soon(settle)

        self.do(begin)
        return ticket


class RealCluster(Cluster):
    """A quorum of real parts."""

    def __init__(self, shape: Shape, directory: Path) -> None:
        super().__init__(attrs.evolve(shape, settings={**TIMES, **shape.settings}))
        self.directory = directory
        ids = [*shape.voters, *shape.others]
        self.proxies = Proxies(ids, lambda node_id: int(self.nodes[node_id].port))
        self._disks = 0
        for node_id in ids:
            self._make(node_id)
        for node_id in ids:
            self.start(node_id)

    def _make(self, node_id: int) -> None:
        shape = self.shape
        storage = self.empty_disk(node_id)
        if shape.is_dynamic and node_id in shape.voters:
            storage.format(SnapshotId(0, 0), shape.first_checkpoint())
        configured = VoterSet() if shape.is_dynamic else shape.voter_set
        self.nodes[node_id] = RealNode(
            shape.config(node_id), configured, storage, self.watch, self._route
        )

    def empty_disk(self, node_id: int) -> Any:
        self._disks += 1
        path = self.directory / f"disk-{self._disks}"
        path.mkdir()
        return Files(RealDisk(str(path)))

    def _route(self, source: int, host: str) -> int:
        """Return the port of the proxy, or of a node that is down, where nothing listens."""
        target = int(host.removeprefix("node-"))
        node = self.nodes[target]
        is_cut = {(source, target), (target, source)} & self.proxies.cut
        if node.raft is None and not is_cut:
            return int(node.port)
        return self.proxies.ports[source, target]

    def until(self, condition: Callable[..., Any], what: str) -> None:
        limit = time.monotonic() + LIMIT_S
        while not condition():
            for node in self.nodes.values():
                if node.failure is not None:
                    raise node.failure
            if time.monotonic() > limit:
                raise AssertionError(f"not within {LIMIT_S} s: {what}\n{self.describe()}")
            time.sleep(POLL_S)

    # Nodes ----------------------------------------------------------------------------------
    def start(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.storage.disk = RealDisk(node.storage.disk.root)
        node.start()

    def stop(self, node_id: int) -> None:
        self.nodes[node_id].end(in_order=True)

    def kill(self, node_id: int) -> None:
        self.nodes[node_id].end(in_order=False)

    def pause(self, node_id: int) -> None:
        self.nodes[node_id].pause()

    def resume(self, node_id: int) -> None:
        self.nodes[node_id].resume()

    def cut(self, source: int, target: int) -> None:
        self.proxies.cut.add((source, target))

    def heal(self) -> None:
        self.proxies.cut.clear()

    def damage(self, source: int, target: int, marker: str) -> None:
        self.proxies.damage = (source, target, marker.encode())

    def is_damaged(self) -> bool:
        return self.proxies.damage is None

    # What is asked of them ------------------------------------------------------------------
    def append(self, node_id: int, name: str) -> Ticket:
        node = self.nodes[node_id]

        async def append() -> bool:
            quorum: RaftService = node.running
            commit = quorum.append_nowait([record(name)], quorum._raft.state.epoch)
            await commit.wait()
            return True

        return node.begin(append)  # type: ignore[no-any-return]

    def upgrade(self, node_id: int) -> Ticket:
        node = self.nodes[node_id]

        async def upgrade() -> bool:
            commit: Commit = await node.running.upgrade_kraft_version(1)
            await commit.wait()
            return True

        return node.begin(upgrade)  # type: ignore[no-any-return]

    def ask(self, node_id: int, request: Any) -> Ticket:
        node = self.nodes[node_id]
        return node.begin(partial(node.running.handle, request))  # type: ignore[no-any-return]

    def snapshot(self, node_id: int) -> None:
        node = self.nodes[node_id]

        async def take() -> None:
            quorum: RaftService = node.running
            state = self.state(node_id)
            await quorum.delivery.wait_delivered(end := state.high_watermark or 0)
            contents = [[record(name) for name in self.committed_names(node_id)]]
            await quorum.snapshots.write(end, state.log.epoch_at(end - 1), contents, 0)

        node.do(take)

    # The end --------------------------------------------------------------------------------
    def check_more(self) -> None:
        """Check that the listeners got what the log holds."""
        for node_id, node in self.nodes.items():
            self.until(
                lambda n=node, i=node_id: (
                    records_listened_to(n.listener) == self.committed_names(i)
                ),
                f"the listeners of node {node_id} to hear everything",
            )

    def close(self) -> None:
        self.heal()
        try:
            for node in self.nodes.values():
                if node.raft is not None:
                    node.resume()
                    node.end(in_order=False)
        finally:
            self.proxies.close()
            for node in self.nodes.values():
                node.close()


def records_listened_to(watcher: Watcher) -> list[str]:
    """Return the records that a listener got: its latest snapshot and what came after it."""
    names: list[str] = []
    start = 0
    if watcher.snapshots:
        names = names_in(watcher.snapshots[-1].records())
        start = watcher.snapshots[-1].id.end_offset
    batches = (batch for batch in watcher.batches if batch.base_offset >= start)
    return names + [name for batch in batches for name in names_in(batch.records)]
