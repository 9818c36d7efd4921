"""The pages of a node with ``--metrics-port``: metrics, liveness and readiness."""

from itertools import chain

import trio

from kwire import metrics as m
from kwire.net.http_pages import Page, Pages
from kwire.node.gauges import add_gauges
from kwire.node.process import add_process
from kwire.node.server import Server


def pages(server: Server) -> Pages:
    """Create a node's pages; ``/livez`` answers as soon as the event loop runs."""
    core = server.core
    metrics, clock = core.metrics, core.clock
    add_process(metrics, clock)
    group_counts = add_gauges(core, server.broker)
    telemetry = None if server.broker is None else server.broker.services.telemetry
    delay = metrics.cell(m.LOOP_DELAY)

    async def text() -> Page:
        asked_at = clock.now()
        await trio.lowlevel.checkpoint()
        delay.value = clock.now() - asked_at
        await group_counts.update()
        others = () if telemetry is None else telemetry.lines()
        return Page(200, chain(metrics.lines_and_gaps(), others))

    async def live() -> Page:
        return Page(200, ["ok"])

    async def ready() -> Page:
        if server.is_serving:
            return Page(200, ["ok"])
        return Page(503, ["stopping" if server.ready.is_set() else "starting"])

    return {"/metrics": text, "/livez": live, "/readyz": ready}
