"""`kwire serve --control-port`: a node in this process that a test in any language controls.

Rules: it is the node of `kwire serve`, with the same configuration, in a loop whose clock can be
moved. A node that a verb has stopped is not an error: the process ends by a signal, or when the
node fails by itself.
"""

from collections.abc import Callable
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
from kwire.testing.log_lines import LogLines
from kwire.testing.node import LocalNode
from kwire.testing.nodes import LocalCluster
from kwire.testing.request_log import RequestLog

Ready = Callable[[str, int], None]
TITLE: Final = "kwire test broker"


def serve_with_control(
    config_on: Callable[[int], BrokerConfig],
    signals: StopSignals,
    *,
    cluster_id: str | None,
    control_port: int,
    ready: Ready,
    control_ready: Ready,
) -> None:
    """Run a node and its control server until a signal; raise BrokerError with the reason.

    ``config_on`` returns the configuration with a port for clients, or as it is for port 0.
    ``control_ready`` and ``ready`` are called with the addresses.
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
        )
        serve = partial(_serve, node, signals, time, control_port, ready, control_ready)
        try:
            trio.run(serve, clock=time.of_trio)
        except BaseExceptionGroup as group:
            first = next(leaves(group))
            if isinstance(first, BrokerError | CannotOpenError | KafkaError | OSError):
                raise BrokerError(f"cannot continue: {first}") from group
            raise


async def _serve(
    node: LocalNode,
    signals: StopSignals,
    time: MockTime,
    control_port: int,
    ready: Ready,
    control_ready: Ready,
) -> None:
    stop = trio.Event()
    token = trio.lowlevel.current_trio_token()
    signals.notify(lambda: token.run_sync_soon(stop.set))
    try:
        async with trio.open_nursery() as nursery:
            nodes = {node.id: node}
            cluster = LocalCluster(nodes, node.log, node.faults, node.requests, nursery, time)
            await cluster.start()
            cluster.initial_configs = cluster.running[0].image.configs
            verbs: dict[str, Verb[LocalCluster]] = verb_table((*FAULT_VERBS, *BROKER_VERBS))
            control_ready("127.0.0.1", await begin_control(nursery, control_port, verbs, cluster))
            ready(*node.address)
            await stop.wait()
            await cluster.stop()
            nursery.cancel_scope.cancel()
    finally:
        signals.notify(None)


async def begin_control(
    nursery: trio.Nursery, port: int, verbs: "dict[str, Verb[LocalCluster]]", target: LocalCluster
) -> int:
    """Start the server of the verbs; return its port, or raise BrokerError if it is taken."""
    try:
        bound: int = await nursery.start(serve_verbs, port, TITLE, verbs, target)
    except OSError as error:
        raise BrokerError(
            f"cannot listen on 127.0.0.1:{port}: {error.strerror}; choose another --control-port"
        ) from error
    return bound
