"""The scrub of a broker's logs, and the repair of damage; loaded only if the scrub is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from kwire.log.scrubber import LogScrubber, make_scrubber
from kwire.node.replication import LeaderConnection
from kwire.replica.damage_repair import DamageRepair
from kwire.replica.throttles import RateLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from kwire.log.config import ScrubSettings
    from kwire.log.directories.segment_checker import SegmentChecker
    from kwire.node.core import Core
    from kwire.replica.hosted_partitions import HostedPartitions


@attrs.define(eq=False, repr=False)
class Scrubbing:
    """The scrub and the repair of one broker."""

    scrubber: LogScrubber
    repair: DamageRepair

    async def run(self) -> None:
        """Scrub and repair logs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.scrubber.run)
            nursery.start_soon(self.repair.run)


def make_scrubbing(
    core: Core,
    partitions: HostedPartitions,
    settings: ScrubSettings,
    make_checker: Callable[[], SegmentChecker],
) -> Scrubbing:
    """Return the scrub of a node's logs, which repairs damaged batches from other brokers."""
    config = core.config
    pool = core.broker_pool(config.replica_socket_timeout_ms / 1000)

    def connect(node: int) -> LeaderConnection:
        listener = config.inter_broker_listener
        return LeaderConnection(node, listener, lambda: core.publisher.image, pool)

    scrubber = make_scrubber(core.logs.services.values(), make_checker, settings)
    limit = RateLimit(settings.bytes_per_second)
    repair = DamageRepair(config.node_id, partitions, scrubber, connect, core.clock, limit)
    scrubber.subscribe(repair.on_damaged)
    return Scrubbing(scrubber, repair)
