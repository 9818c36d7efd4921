"""`--control-port` of `kwire serve` and `kwire cluster`: nodes for tests in any language.

Rules: the nodes run in this process, in a loop whose clock can be moved. The node of `kwire serve`
has its usual configuration; the nodes of `kwire cluster` are a test cluster with data in memory. A
verb may stop a node: the process ends only on a signal, or when a node fails.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import trio

from kwire.configs.broker import BrokerConfig
from kwire.errors import KafkaError
from kwire.net.listener import Address
from kwire.node.environment import this_computer
from kwire.node.run import StopSignals, leaves
from kwire.storage_format.directories import CannotOpenError
from kwire.testing.clock import MockTime
from kwire.testing.control.broker_verbs import BROKER_VERBS
from kwire.testing.control.fault_verbs import FAULT_VERBS
from kwire.testing.control.http_server import serve_verbs
from kwire.testing.control.table import Verb, verb_table
from kwire.testing.errors import BrokerError
from kwire.testing.faults import Faults
from kwire.testing.folders import temporary_folder
from kwire.testing.log_lines import LogLines
from kwire.testing.node import LocalNode
from kwire.testing.nodes import LocalCluster, open_nodes
from kwire.testing.releases import Release
from kwire.testing.request_log import RequestLog
from kwire.testing.snapshots import Snapshots

Ready = Callable[[Sequence[Address]], None]
"""Called with the addresses of a server that is ready."""
TITLE: Final = "kwire test broker"


def serve_with_control(
    config_on: Callable[[int], BrokerConfig],
    signals: StopSignals,
    *,
    cluster_id: str | None,
    release: Release | None,
    control: Address,
    ready: Ready,
    control_ready: Ready,
) -> None:
    """Run a node and its control server until a signal; raise BrokerError with the reason.

    ``config_on`` returns the configuration with the given client port; 0 leaves it unchanged.
    """
    if signals.received is None:
        time = MockTime()
        node = LocalNode(
            id=config_on(0).node_id,
            address=Address(config_on(0).broker_endpoints[0].host, 0),
            config_on=config_on,
            environment=partial(this_computer, clock=time),
            log=LogLines(),
            faults=Faults(),
            requests=RequestLog(),
            cluster_id=cluster_id,
            release=release,
        )
        _run(partial(_open_node, node, time), time, signals, control, ready, control_ready)


def cluster_with_control(
    count: int,
    port: int,
    settings: Mapping[str, object],
    signals: StopSignals,
    *,
    release: Release | None,
    control: Address,
    ready: Ready,
    control_ready: Ready,
) -> None:
    """Run a test cluster and its control server until a signal; raise BrokerError.

    Clients reach the nodes at ``port`` and the following ports; 0 means any free ports.
    """
    if signals.received is None:
        time = MockTime()
        opened = partial(open_nodes, count, settings, port=port, clock=time, release=release)
        _run(opened, time, signals, control, ready, control_ready)


def _run(
    open_cluster: Callable[[], AbstractAsyncContextManager[LocalCluster]],
    time: MockTime,
    signals: StopSignals,
    control: Address,
    ready: Ready,
    control_ready: Ready,
) -> None:
    serve = partial(_serve, open_cluster, signals, control, ready, control_ready)
    try:
        trio.run(serve, clock=time.of_trio)
    except BaseExceptionGroup as group:
        first = next(leaves(group))
        if isinstance(first, BrokerError | CannotOpenError | KafkaError | OSError):
            raise BrokerError(f"cannot continue: {first}") from group
        raise


@asynccontextmanager
async def _open_node(node: LocalNode, time: MockTime) -> AsyncIterator[LocalCluster]:
    """Run one node with its own configuration during the context."""
    with temporary_folder() as folder:
        async with trio.open_nursery() as nursery:
            cluster = LocalCluster(
                {node.id: node},
                node.log,
                node.faults,
                node.requests,
                Snapshots(folder / "snapshots"),
                nursery,
                time,
            )
            await cluster.start()
            cluster.initial_configs = cluster.running[0].image.configs
            yield cluster
            await cluster.stop()
            nursery.cancel_scope.cancel()


async def _serve(
    open_cluster: Callable[[], AbstractAsyncContextManager[LocalCluster]],
    signals: StopSignals,
    control: Address,
    ready: Ready,
    control_ready: Ready,
) -> None:
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        verbs: dict[str, Verb[LocalCluster]] = verb_table((*FAULT_VERBS, *BROKER_VERBS))
        bound = await begin_control(nursery, control, verbs, cluster)
        control_ready([Address(control.host, bound)])
        ready(cluster.addresses)
        await signals.wait()
        nursery.cancel_scope.cancel()


async def begin_control(
    nursery: trio.Nursery,
    address: Address,
    verbs: "dict[str, Verb[LocalCluster]]",
    target: LocalCluster,
) -> int:
    """Start the server of the verbs; return its port, or raise BrokerError if it is taken."""
    try:
        bound: int = await nursery.start(
            serve_verbs, address.port, TITLE, verbs, target, address.host
        )
    except OSError as error:
        raise BrokerError(
            f"cannot listen on {address.host}:{address.port}: {error.strerror}; "
            "choose another control port"
        ) from error
    return bound
