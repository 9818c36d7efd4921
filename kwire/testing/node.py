"""One node of a test broker: the product's own node, started, stopped and killed in this process.

Rules: ``make_node`` builds the node, as for ``kwire serve``. A restart uses the same port and data.
A killed node closes its sockets and writes nothing more, as after ``kill -9``.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from kwire.codec.apis import ListenerType
from kwire.codec.frame import read_response, request_frame
from kwire.codec.schema import Request
from kwire.configs.broker import BrokerConfig
from kwire.configs.declare import ConfigError
from kwire.errors import KafkaError
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import Principal
from kwire.metrics import Metrics
from kwire.net.limits import Limits
from kwire.net.listener import Address
from kwire.node.environment import Environment, Listeners
from kwire.node.run import leaves
from kwire.node.server import Server, make_node
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.secure.location import ADMIN
from kwire.storage_format.directories import CannotOpenError
from kwire.testing.disk_space import DiskSpace
from kwire.testing.errors import BrokerError
from kwire.testing.faults import Faults
from kwire.testing.forks import Ports
from kwire.testing.interception import InterceptingListeners, Interception, Pause
from kwire.testing.log_lines import LogLines
from kwire.testing.releases import Release
from kwire.testing.request_log import RequestLog
from kwire.testing.settings import CLIENTS
from kwire.testing.wire import key_of

if TYPE_CHECKING:
    from kwire.secure.folder import SecureFolder

Resp = TypeVar("Resp")
_SUPER_USER: Final = Principal("User", ADMIN)
"""The user of requests without a connection, who is not subject to a protected node's ACLs."""


@attrs.define(eq=False, repr=False)
class LocalNode:
    """One node and the directory of its data, which remain when the node stops."""

    id: int
    address: Address
    """The clients' address; after the first start the port is fixed, even if it was 0."""
    config_on: Callable[[int], BrokerConfig]
    """Returns the configuration with this port for clients."""
    environment: Callable[[], Environment]
    log: LogLines
    faults: Faults
    requests: RequestLog
    cluster_id: str | None = None
    """The id of a new cluster; None for a random one."""
    secure: "SecureFolder | None" = None
    """The files of a protected node; None for a node that is open to everybody."""
    release: Release | None = None
    """The older release of Kafka that clients see; None for the newest."""
    pause: Pause = attrs.field(factory=Pause)
    disk_space: DiskSpace = attrs.field(factory=DiskSpace)
    server: Server | None = None
    """The running node; None while it is stopped."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def running(self) -> Server:
        """The running node; raises BrokerError while it is stopped."""
        if self.server is None:
            raise BrokerError(f"node {self.id} is stopped; call start() first")
        return self.server

    @property
    def image(self) -> MetadataImage:
        """The metadata in force on the running node."""
        return self.running.services.current.image

    @property
    def directories(self) -> list[Path]:
        """The directories of the node's data, even while it is stopped."""
        config = self.config_on(self.address.port)
        names = dict.fromkeys((*config.data_directories, config.metadata_directory))
        return [Path(name) for name in names]

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the node and return once it can answer every request; raise BrokerError."""
        if self.server is not None:
            raise BrokerError(f"node {self.id} is already running")
        config = self.config_on(self.address.port)
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        with self.log.writing():
            try:
                server = make_node(config, self._intercept(config), self.cluster_id)
                await nursery.start(self._run, server)
            except (CannotOpenError, ConfigError, OSError) as error:
                raise BrokerError(f"the broker cannot start: {error}") from error
            except BaseExceptionGroup as group:
                first = next(leaves(group))
                if isinstance(first, CannotOpenError | KafkaError | OSError):
                    raise BrokerError(f"the broker cannot start: {first}") from first
                raise
        self.address = Address(self.address.host, server.address.port)
        if self.secure is not None:
            from kwire.secure.upkeep import Upkeep

            with self.log.writing():
                await Upkeep(self.secure, (), writes_client_files=False).prepare(server)

    def _intercept(self, config: BrokerConfig) -> Environment:
        """Return the environment with disks that can be full, and listeners that apply the faults.

        The listener between brokers has no faults, unless it is also the clients' only listener.
        """
        environment = self.environment()
        for_clients = _client_listeners(config)
        interception = Interception(
            self.id,
            self.faults,
            self.requests,
            topic_name=self._topic_name,
            now_ms=environment.clock.now_ms,
            pause=self.pause,
            release=self.release,
        )

        def open_listeners(limits: Limits, metrics: Metrics) -> Listeners:
            listeners = environment.open_listeners(limits, metrics)
            return InterceptingListeners(interception, for_clients, listeners)

        return attrs.evolve(
            environment, disks=self.disk_space.disks(), open_listeners=open_listeners
        )

    def listener_ports(self) -> Ports:
        """Return the ports of the node's open listeners; none while it is stopped."""
        if self.server is None:
            return Ports(frozenset(), frozenset())
        config, net = self.server.config, self.server.core.net
        ports: dict[str, int] = {}
        for endpoint in (*config.broker_endpoints, *config.controller_endpoints):
            with suppress(OSError):  # It is closed, because the node is shutting down.
                ports[endpoint.name] = net.address(endpoint.name).port
        for_clients = _client_listeners(config)
        return Ports(
            frozenset(port for name, port in ports.items() if name in for_clients),
            frozenset(port for name, port in ports.items() if name not in for_clients),
        )

    def _topic_name(self, topic_id: bytes) -> str | None:
        return self.image.topic_name(topic_id)

    async def _run(
        self, server: Server, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self.server = server
        try:
            with self._scope:
                await server.run(task_status)
        finally:
            self.server = None
            self._ended.set()

    def stop(self) -> None:
        """Begin a clean shutdown if the node is running; see :meth:`wait_ended`."""
        if self.server is not None:
            self.server.stop()

    def kill(self) -> None:
        """End the node without a shutdown if it is running; see :meth:`wait_ended`."""
        if self.server is not None:
            self._scope.cancel()

    async def wait_ended(self) -> None:
        """Wait until the node has released its port and its data, if it is running."""
        if self.server is not None:
            await self._ended.wait()

    async def call(self, request: Request[Resp], version: int) -> Resp:
        """Answer a request inside the node, without a connection."""
        requests = Dispatcher(self.running.services, ListenerType.BROKER).for_connection(
            CLIENTS, self.address.host, principal=_SUPER_USER
        )
        key = key_of(request)
        frame = request_frame(key, version, 1, "kwire.testing", request)
        parts = await requests.answer(memoryview(frame)[4:])
        assert parts is not None
        data = b"".join(map(bytes, parts))  # Only a Fetch is answered with regions of files.
        response: Resp = read_response(key, version, data[4:])[1]
        return response


def _client_listeners(config: BrokerConfig) -> set[str]:
    """Return the names of the listeners to which clients connect."""
    names = {endpoint.name for endpoint in config.broker_endpoints}
    return names - {config.inter_broker_listener} or names
