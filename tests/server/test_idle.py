"""A node without requests sleeps: its wake-ups are counted, on a clock that jumps."""

from pathlib import Path

import trio
from trio.abc import Instrument
from trio.testing import MockClock

from kwire.configs.load import broker_config
from kwire.configs.standalone import ALONE
from tests.support.server.nodes import new_node

MINUTES = 10
WAKE_UPS_A_MINUTE = 2
"""An idle node wakes four times in ten minutes: it writes checkpoints, and polls nothing."""


class Wakes(Instrument):
    """Notes the times at which the loop had work."""

    def __init__(self) -> None:
        self.moments: set[float] = set()

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.moments.add(trio.current_time())


def test_idle_node_sleeps(tmp_path: Path) -> None:
    clock = MockClock(rate=1.0)

    async def count() -> int:
        address = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"
        config = {**ALONE, "listeners": address, "log.dirs": str(tmp_path / "data")}
        server = new_node(broker_config(config))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            clock.rate, clock.autojump_threshold = 0.0, 0.0
            await trio.sleep(60)
            wakes = Wakes()
            trio.lowlevel.add_instrument(wakes)
            await trio.sleep(60 * MINUTES)
            trio.lowlevel.remove_instrument(wakes)
            clock.rate, clock.autojump_threshold = 1.0, float("inf")
            server.stop()
        return len(wakes.moments)

    assert trio.run(count, clock=clock) <= MINUTES * WAKE_UPS_A_MINUTE
