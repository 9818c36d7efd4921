"""Runs one node in this process until a signal ends it: SIGTERM or SIGINT stop it in order, a
second one at once.
"""

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable

import trio

from kwire.configs.broker import BrokerConfig
from kwire.server import Server

log = logging.getLogger(__name__)


def run_until_signal(
    config: BrokerConfig,
    *,
    cluster_id: str | None,
    metrics_port: int | None,
    ready: Callable[[str, int], None],
) -> None:
    """Run one node in this process until SIGTERM or SIGINT; a second one ends it at once."""
    trio.run(_until_signal, config, cluster_id, metrics_port, ready)


async def _until_signal(
    config: BrokerConfig,
    cluster_id: str | None,
    metrics_port: int | None,
    ready: Callable[[str, int], None],
) -> None:
    server = Server(config, cluster_id)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            if metrics_port is not None:
                from kwire.net.metrics import serve_metrics
                from kwire.node.gauges import add_gauges

                add_gauges(server.core, server.broker)
                await nursery.start(serve_metrics, "", metrics_port, server.services.metrics.lines)
            nursery.start_soon(_stop_on, signals, server)
            nursery.start_soon(_announce, server, ready)
            await server.run()
            nursery.cancel_scope.cancel()


async def _announce(server: Server, ready: Callable[[str, int], None]) -> None:
    await server.ready.wait()
    ready(*server.address)


async def _stop_on(signals: AsyncIterator[int], server: Server) -> None:
    stopping = False
    async for number in signals:
        log.info("signal number=%d", number)
        if stopping:
            os._exit(128 + number)
        stopping = True
        server.stop()
