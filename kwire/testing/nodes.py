"""The nodes of a test broker in this trio loop: :func:`open_broker` and :func:`open_cluster`.

Rules: the nodes are ready when every one of them can answer every request and knows all others.
However the context ends, the nodes are ended and their temporary data are removed.
"""

import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from kwire.cluster.layout import HOST, NODES_AT_MOST, Member, Plan, folder_of
from kwire.cluster.ports import free_ports
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.configs.broker import BrokerConfig
from kwire.errors import UnknownTopicOrPartition, error_class, kafka_name
from kwire.net.listener import Address
from kwire.node.environment import this_computer
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.storage_format.directories import format_node
from kwire.testing.arguments import check_number, check_whole
from kwire.testing.clock import MockTime
from kwire.testing.errors import BrokerError, WrongArgument
from kwire.testing.faults import Faults
from kwire.testing.folders import temporary_folder
from kwire.testing.forks import kept_from_forks
from kwire.testing.log_lines import LogLines
from kwire.testing.node import LocalNode
from kwire.testing.releases import Release, parse_release
from kwire.testing.request_log import RequestLog
from kwire.testing.resets import Configs, reset_configs, reset_quotas
from kwire.testing.secure import client_settings, open_folder
from kwire.testing.settings import kafka_settings, node_config, setting_texts
from kwire.testing.snapshots import Snapshots
from kwire.types import random_uuid, uuid_bytes, uuid_text

if TYPE_CHECKING:
    from kwire.secure.folder import SecureFolder

READY_S: Final = 120.0
"""The time limit of a cluster's start, which takes about half a second.

A process that gets a twentieth of a core, as on a machine with many others, needs a minute.
"""
LINES_IN_ERROR: Final = 20
"""The last log lines that an error names: nobody can ask a broker for them that did not start."""
SETTLING_S: Final = 0.2
"""The time limit for tasks whose deadlines have passed, in case clients keep the nodes busy."""
ADVANCE_MAX_S: Final = 10 * 366 * 86400
_ATTEMPTS: Final = 3
"""The attempts to start a cluster, in case another program takes one of its ports."""
_TOPIC_TIMEOUT_MS: Final = 30_000


@attrs.define(eq=False, repr=False)
class LocalCluster:
    """The nodes of one test broker. A broker is a cluster of one node; its id is 1."""

    nodes: Mapping[int, LocalNode]
    """The nodes by id, whether or not they are running."""
    log: LogLines
    faults: Faults
    """The faults that the test arranges for its clients' requests."""
    requests: RequestLog
    """The requests of clients."""
    snapshots: Snapshots
    """The saved states to which the test can return."""
    _nursery: trio.Nursery
    _time: MockTime | None
    """The clock of the nodes and of this loop; None for the system's."""
    secure: "SecureFolder | None" = None
    """The files of a protected broker."""
    initial_configs: Configs = attrs.field(factory=dict)
    """The settings in the metadata of the new cluster."""

    @property
    def bootstrap_servers(self) -> str:
        """The clients' addresses, as in ``bootstrap.servers``."""
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    def client_settings(self, library: str = "confluent-kafka") -> dict[str, str]:
        """Return a client's settings; for a protected broker, they log in as the admin.

        ``library`` is confluent-kafka or kafka-python; raises BrokerError for another one.
        """
        return client_settings(self.bootstrap_servers, self.secure, library)

    @property
    def addresses(self) -> list[Address]:
        return [node.address for node in self.nodes.values()]

    @property
    def address(self) -> Address:
        """The address of the first node."""
        return self.addresses[0]

    @property
    def log_lines(self) -> list[str]:
        """The newest 10,000 lines that the nodes logged."""
        return list(self.log.lines)

    # Nodes ----------------------------------------------------------------------------------
    async def start(self, node: int | None = None) -> None:
        """Start one stopped node, or all of them, and wait until all running nodes are ready."""
        stopped = [each for each in self._select(node) if each.server is None]
        errors: list[BrokerError] = []
        with trio.move_on_after(READY_S) as limit:
            async with trio.open_nursery() as starting:
                for each in stopped:
                    starting.start_soon(self._start_node, each, starting, errors)
            if not errors:
                await self.wait_everywhere(self._knows_running)
        if errors:
            raise errors[0]
        if self.secure is not None:
            self.secure.write_client_files(self.bootstrap_servers)
        if limit.cancelled_caught:
            last = "\n".join(self.log_lines[-LINES_IN_ERROR:])
            raise BrokerError(f"the nodes are not ready after {READY_S:g} s; they logged:\n{last}")

    async def _start_node(
        self, node: LocalNode, starting: trio.Nursery, errors: list[BrokerError]
    ) -> None:
        """Start a node; if that fails, cancel the starts of the others."""
        try:
            await node.start(self._nursery)
        except BrokerError as error:
            errors.append(error)
            starting.cancel_scope.cancel()

    def _knows_running(self, image: MetadataImage) -> bool:
        unfenced = {broker.id for broker in image.live_brokers()}
        return all(node.server is None or node.id in unfenced for node in self.nodes.values())

    async def stop(self, node: int | None = None) -> None:
        """Shut one node down cleanly, or all of them; their data and ports are kept."""
        nodes = self._select(node)
        for each in nodes:
            each.stop()
        for each in nodes:
            await each.wait_ended()

    async def kill(self, node: int | None = None) -> None:
        """End one node as ``kill -9`` does, or all of them; their data and ports are kept."""
        nodes = self._select(node)
        for each in nodes:
            each.kill()
        for each in nodes:
            await each.wait_ended()

    async def restart(self, node: int | None = None) -> None:
        """Stop one node or all of them, and restart them with the same data and ports."""
        await self.stop(node)
        await self.start(node)

    async def pause(self, node: int | None = None) -> None:
        """Have one node, or all, accept requests of clients without answering; see :meth:`resume`.

        Nodes still answer each other, so a paused leader remains leader.
        """
        for each in self._select(node):
            each.pause.is_on = True

    async def resume(self, node: int | None = None) -> None:
        """Answer the clients' requests that have waited since :meth:`pause`, and later ones."""
        for each in self._select(node):
            each.pause.end()

    async def fill_disk(self, node: int | None = None) -> None:
        """Leave no space in the log directories of one node, or of all; see :meth:`free_disk`.

        The node rejects records with KAFKA_STORAGE_ERROR, and reads go on. A restart does not
        change that.
        """
        for each in self._select(node):
            each.disk_space.fill()

    async def free_disk(self, node: int | None = None) -> None:
        """Leave space for records again, after :meth:`fill_disk`."""
        for each in self._select(node):
            each.disk_space.free()

    def _select(self, node: int | None) -> list[LocalNode]:
        if node is None:
            return list(self.nodes.values())
        if node not in self.nodes:
            raise BrokerError(
                f"there is no node {node!r}; the ids are {', '.join(map(str, self.nodes))}"
            )
        return [self.nodes[node]]

    @property
    def running(self) -> list[LocalNode]:
        """The running nodes; raises BrokerError if there are none."""
        running = [node for node in self.nodes.values() if node.server is not None]
        if not running:
            raise BrokerError("the broker is stopped; call start() first")
        return running

    async def wait_everywhere(self, condition: Callable[[MetadataImage], bool]) -> None:
        """Wait until the metadata in force on every running node meets a condition."""
        for node in self.running:
            await node.running.core.publisher.wait_for(condition)

    # Time -----------------------------------------------------------------------------------
    async def advance(self, seconds: float) -> int:
        """Move the nodes' time forward at once, let them notice, and return the wall-clock time.

        Sessions, transactions, retention and everything else that is due in this time expire.
        Sessions of brokers expire too, so the nodes first find each other again.
        """
        if self._time is None:
            raise BrokerError("the clock is the system's: open the broker with clock=MockTime()")
        check_number("seconds", seconds)
        if not 0 <= seconds < ADVANCE_MAX_S:
            raise WrongArgument(
                f"cannot advance by {seconds} s: a clock moves from 0 s to 10 years"
            )
        self._time.move(seconds)
        with trio.move_on_after(SETTLING_S):
            await wait_all_tasks_blocked()
        await self.wait_everywhere(self._knows_running)
        return self._time.now_ms()

    # Topics ---------------------------------------------------------------------------------
    async def create_topic(
        self, name: str, partitions: int = 1, *, replication_factor: int = -1, **settings: object
    ) -> None:
        """Create a topic and wait until every node serves it; raise BrokerError.

        ``settings`` are the topic's, with underscores: ``cleanup_policy="compact"``.
        """
        await self.add_topic(name, partitions, replication_factor, settings)

    async def add_topic(
        self, name: str, partitions: int, replication_factor: int, settings: Mapping[str, object]
    ) -> None:
        """Create a topic as :meth:`create_topic` does, with the settings in one mapping."""
        check_whole("partitions", partitions)
        check_whole("replication_factor", replication_factor)
        shape = CreateTopicsRequest.CreatableTopic
        topic = shape(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[
                shape.CreatableTopicConfig(name=key, value=value)
                for key, value in setting_texts(settings).items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_TOPIC_TIMEOUT_MS)
        (result,) = (await self.running[0].call(request, 7)).topics
        raise_for(result.error_code, result.error_message, f"create the topic {name}")
        await self.wait_everywhere(lambda image: image.topic(name) is not None)

    async def delete_topics(self, *names: str) -> None:
        """Delete topics; topics that do not exist are skipped."""
        states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
        request = DeleteTopicsRequest(topics=states, timeout_ms=_TOPIC_TIMEOUT_MS)
        for result in (await self.running[0].call(request, 6)).responses:
            if result.error_code != UnknownTopicOrPartition.code:
                what = f"delete the topic {result.name}"
                raise_for(result.error_code, result.error_message, what)
        await self.wait_everywhere(lambda image: all(image.topic(name) is None for name in names))

    async def reset(self) -> None:
        """Delete all topics, groups and transactions, and undo changes of settings and quotas.

        Groups and transactions are deleted with the internal topics that store them. Faults and the
        record of requests are cleared too. Clients stay connected.
        """
        image = self.running[0].image
        await self.delete_topics(*image.topic_ids)
        self._clear_records_of_test()
        configs = reset_configs(image, self.initial_configs)
        if configs is not None:
            for result in (await self.running[0].call(configs, 1)).responses:
                raise_for(result.error_code, result.error_message, "reset the settings")
        quotas = reset_quotas(image)
        if quotas is not None:
            for entry in (await self.running[0].call(quotas, 1)).entries:
                raise_for(entry.error_code, entry.error_message, "reset the quotas")

    async def save_snapshot(self, name: str) -> None:
        """Save the topics, records, groups and settings under a name, replacing an earlier copy.

        All nodes restart, so clients have to reconnect.
        """
        self._require_all_running()
        await self.stop()
        try:
            self.snapshots.save(name, self._directories())
        finally:
            await self.start()

    async def restore_snapshot(self, name: str) -> None:
        """Restore what :meth:`save_snapshot` saved; clear the faults and the record of requests.

        All nodes restart, including stopped ones. The clock keeps its time. Use new clients: old
        clients have seen records that no longer exist.
        """
        self.snapshots.check(name)
        await self.kill()
        self.snapshots.restore(name, self._directories())
        self._clear_records_of_test()
        await self.start()

    def _directories(self) -> list[Path]:
        """Return the directories of all nodes' data, always in the same order."""
        return [path for node in self.nodes.values() for path in node.directories]

    def _require_all_running(self) -> None:
        stopped = [str(node.id) for node in self.nodes.values() if node.server is None]
        if stopped:
            raise BrokerError(f"node {', '.join(stopped)} is stopped; call start() first")

    def _clear_records_of_test(self) -> None:
        self.faults.clear()
        self.requests.clear()


def raise_for(code: int, message: str | None, what: str) -> None:
    """Raise BrokerError for an error code, unless it is 0."""
    if code:
        raise BrokerError(f"cannot {what}: {message or error_name(code)}")


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    return kafka_name(error_class(code))


@asynccontextmanager
async def open_broker(
    *,
    port: int = 0,
    data: Path | str | None = None,
    clock: MockTime | None = None,
    secure: bool = False,
    max_versions: str | None = None,
    **settings: object,
) -> AsyncIterator[LocalCluster]:
    """Run a broker in this trio loop during the context.

    ``settings`` are Kafka's, with underscores: ``num_partitions=4``. ``data`` is the directory of
    the data, which is kept; by default, the data are in memory and removed at the end. With
    ``clock``, which must also be trio's clock, the test controls the broker's time. A ``secure``
    broker encrypts connections, requires authentication and enforces ACLs: see
    :meth:`LocalCluster.client_settings`. With ``max_versions``, such as "3.7", clients see the APIs
    and versions of that release. Raises BrokerError.
    """
    release = None if max_versions is None else parse_release(max_versions)
    nodes = open_nodes(
        1, settings, port=port, data=data, clock=clock, secure=secure, release=release
    )
    async with nodes as cluster:
        yield cluster
        cluster.faults.check()


@asynccontextmanager
async def open_cluster(
    count: int = 3,
    *,
    clock: MockTime | None = None,
    secure: bool = False,
    max_versions: str | None = None,
    **settings: object,
) -> AsyncIterator[LocalCluster]:
    """Run a cluster of ``count`` nodes in this trio loop; see :func:`open_broker`."""
    release = None if max_versions is None else parse_release(max_versions)
    nodes = open_nodes(count, settings, clock=clock, secure=secure, release=release)
    async with nodes as cluster:
        yield cluster
        cluster.faults.check()


@asynccontextmanager
async def open_nodes(
    count: int,
    arguments: Mapping[str, object],
    *,
    port: int = 0,
    data: Path | str | None = None,
    clock: MockTime | None = None,
    secure: bool = False,
    release: Release | None = None,
) -> AsyncIterator[LocalCluster]:
    """Run nodes as :func:`open_broker` does; ``data`` is only for a single node.

    ``port`` is the first node's; the others get the following ports.
    """
    check_whole("count", count)
    check_whole("port", port)
    if not 1 <= count <= NODES_AT_MOST:
        raise WrongArgument(f"a cluster has from 1 to {NODES_AT_MOST} nodes, not {count}")
    settings, log, faults, requests = kafka_settings(arguments), LogLines(), Faults(), RequestLog()
    error: Exception | None = None
    with log.attach(), temporary_folder() as folder:
        directory = None if data is None else Path(data)
        files = open_folder(directory or folder / "data") if secure else None
        async with trio.open_nursery() as nursery:

            def new_nodes(attempt: int) -> LocalCluster:
                place = directory or folder / str(attempt)
                plan = _plan(count, port)
                nodes = {}
                for member in plan.members:
                    data_of = place if count == 1 else folder_of(place, member.id)
                    config_on = partial(_config, plan, member, data_of, settings, files)
                    if count > 1:
                        _format(plan, member, config_on(member.port))
                    nodes[member.id] = LocalNode(
                        id=member.id,
                        address=Address(HOST, member.port),
                        config_on=config_on,
                        environment=partial(this_computer, clock=clock),
                        log=log,
                        faults=faults,
                        requests=requests,
                        secure=files,
                        release=release,
                    )
                snapshots = Snapshots(folder / "snapshots")
                return LocalCluster(nodes, log, faults, requests, snapshots, nursery, clock, files)

            try:
                cluster = await _start(new_nodes)
                try:
                    with kept_from_forks(cluster.nodes.values()):
                        yield cluster
                finally:
                    await (cluster.kill() if data is None else cluster.stop())
            except Exception as caught:  # noqa: BLE001  Raised below: the nursery would wrap it.
                error = caught
            nursery.cancel_scope.cancel()
    if error is not None:
        raise error


def _config(
    plan: Plan,
    member: Member,
    data: Path,
    settings: Mapping[str, str],
    secure: "SecureFolder | None",
    port: int,
) -> BrokerConfig:
    return node_config(plan, member, port, data, settings, secure)


def _format(plan: Plan, member: Member, config: BrokerConfig) -> None:
    """Format the data directory of one node of a quorum of several nodes."""
    own_id = uuid_bytes(plan.directory_ids[member.id])
    lines = format_node(
        config,
        plan.cluster_id,
        ignore_formatted=False,
        how=plan.initial_controllers if config.is_controller else None,
        random_bytes=lambda count: own_id[:count],
    )
    for _ in lines:
        pass


def _plan(count: int, port: int) -> Plan:
    """Return new nodes; only several controllers need their ports to be decided before they run."""
    controller_ports = free_ports(count) if count > 1 else (0,)
    members = tuple(
        Member(i + 1, port + i if port else 0, number) for i, number in enumerate(controller_ports)
    )
    ids = {member.id: uuid_text(random_uuid(os.urandom)) for member in members}
    return Plan(uuid_text(random_uuid(os.urandom)), port, members, ids)


async def _start(new_nodes: Callable[[int], LocalCluster]) -> LocalCluster:
    """Start nodes; retry if another program has meanwhile taken one of the free ports."""
    attempt = 0
    while True:
        cluster = new_nodes(attempt)
        try:
            await cluster.start()
        except BrokerError as error:
            await cluster.kill()
            attempt += 1
            if attempt == _ATTEMPTS or len(cluster.nodes) == 1 or not _is_port_taken(error):
                raise
        else:
            cluster.initial_configs = cluster.running[0].image.configs
            return cluster


def _is_port_taken(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno == errno.EADDRINUSE
