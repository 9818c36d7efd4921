"""The link between a node and the process that started it (`kwire serve --supervised`).

Rules: each line on standard input is answered by a line of figures on standard output; the end of
standard input stops the node cleanly, so that a node does not outlive its supervisor.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from kwire import metrics as m
from kwire.drive import Slices
from kwire.node.server import Server

logger = logging.getLogger(__name__)

STDIN: Final = 0


async def follow_supervisor(server: Server, write: Callable[[str], None]) -> None:
    """Respond to lines on standard input until its end, then stop the node."""
    async with trio.lowlevel.FdStream(os.dup(STDIN)) as requests:
        async for data in requests:
            for _ in range(data.count(b"\n")):
                numbers = await collect_figures(server)
                pairs = " ".join(f"{name}={value}" for name, value in numbers.items())
                with suppress(OSError):  # The supervisor has ended; the next read notices that.
                    write(f"kwire figures {pairs}\n")
    logger.info("the supervisor has ended node=%d", server.config.node_id)
    server.stop()


async def collect_figures(server: Server) -> dict[str, int]:
    """Return figures of the node and of the cluster, according to its newest metadata."""
    core, slices, node_id = server.core, Slices(), server.config.node_id
    image = core.publisher.image
    leader = core.quorum.leader().leader_id
    result = {
        "time_ms": int(core.clock.now() * 1000),
        "metadata": image.applied.offset,
        "brokers": sum(not broker.fenced for broker in image.brokers.values()),
        "controller": -1 if leader is None else leader,
        "partitions": 0,
        "leaderless": 0,
        "leaders": 0,
        "under_replicated": 0,
        "out_of_sync": 0,
        "records": int(core.metrics.total(m.MESSAGES_IN)),
    }
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            result["partitions"] += 1
            result["leaderless"] += partition.leader < 0
            if node_id in partition.replicas:
                is_behind = node_id not in partition.isr
                result["out_of_sync"] += is_behind or partition.is_under_replicated
            if partition.leader == node_id:
                result["leaders"] += 1
                result["under_replicated"] += partition.is_under_replicated
            await slices.pause()
    return result
