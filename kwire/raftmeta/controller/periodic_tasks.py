"""The decisions that the active controller makes by itself as time passes or brokers change.

Rules: timers run only while there are other brokers to watch, or delegation tokens that can expire,
so that a single node stays idle; a task decides in slices and ends without an error when leadership
is lost. A controller that may have been replaced makes no decisions without records: its tasks wait
before they decide again.
"""

import math
from typing import Final, TypeVar

import attrs
import trio

from kwire import errors
from kwire.clock import Clock
from kwire.drive import give_way
from kwire.raftmeta.controller.brokers import decide_fence_stale
from kwire.raftmeta.controller.controller import Controller, Decide
from kwire.raftmeta.controller.leader_updates import decide_leader_updates, resume_leader_updates

Q = TypeVar("Q")

RETRY_S: Final = 0.1
"""The delay after a decision that this controller is not allowed to make."""


@attrs.frozen(eq=False, repr=False)
class PeriodicTasks:
    """The periodic tasks of one node's controller."""

    controller: Controller
    clock: Clock

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fence silent brokers and move leaderships back, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fence_stale)
            nursery.start_soon(self._update_leaders)
            nursery.start_soon(self._rebalance_leaders)
            nursery.start_soon(self._elect_unclean)
            nursery.start_soon(self._write_no_ops)
            nursery.start_soon(self._remove_expired_tokens)
            task_status.started()

    async def _fence_stale(self) -> None:
        controller = self.controller
        while True:
            deadline = controller.state.sessions.deadline if controller.is_active else math.inf
            if deadline == math.inf:
                await controller.wait_change()
                continue
            timeout_s = deadline - self.clock.now()
            if timeout_s > 0:
                # No session ends earlier than the first one did when it was looked for, so that
                # the sessions are not searched at each change.
                await trio.sleep(timeout_s)
                continue
            await controller.wait_ready()
            await give_way()  # Heartbeats that waited for a large decision come first.
            if controller.is_ready:
                try:
                    await controller.call(decide_fence_stale, None)
                except errors.NotController:
                    await trio.sleep(RETRY_S)

    async def _update_leaders(self) -> None:
        """Continue changes too large for one decision, including those of a previous controller."""
        controller = self.controller
        resumed_epoch: int | None = None
        while True:
            await controller.wait_ready()
            if controller.epoch not in (None, resumed_epoch):
                resumed_epoch = controller.epoch
                resume_leader_updates(controller.state)
            if not controller.state.leader_update_queue:
                await controller.wait_change()
                continue
            await self._run(decide_leader_updates, None)

    async def _rebalance_leaders(self) -> None:
        config = self.controller.state.config
        while config.auto_leader_rebalance_enable:
            await self._wait_other_brokers()
            await trio.sleep(config.leader_imbalance_check_interval_seconds)
            from kwire.raftmeta.controller.partitions import decide_rebalance_leaders

            await self._run(decide_rebalance_leaders, None)

    async def _elect_unclean(self) -> None:
        """Elect leaders for leaderless partitions whose topics may now allow unclean leaders."""
        while True:
            await self._wait_other_brokers()
            config = self.controller.state.config
            interval_ms = config.raw_integer("unclean.leader.election.interval.ms")
            await trio.sleep(interval_ms / 1000)
            from kwire.raftmeta.controller.partitions import decide_elect_unclean

            await self._run(decide_elect_unclean, None)

    async def _write_no_ops(self) -> None:
        """Append NoOpRecords at regular intervals, as Kafka does, to show that time passes."""
        controller = self.controller
        while True:
            interval_s = controller.state.config.metadata_max_idle_interval_ms / 1000
            if not controller.is_active or controller.is_alone or interval_s <= 0:
                await controller.wait_change()
                continue
            await trio.sleep(interval_s)
            if not controller.is_alone:
                controller.append_no_op()

    async def _remove_expired_tokens(self) -> None:
        """Remove expired delegation tokens at regular intervals, while there are tokens."""
        controller = self.controller
        while True:
            if not controller.is_active or not controller.state.image.tokens:
                await controller.wait_change()
                continue
            from kwire.configs.delegation_tokens import DelegationTokenConfig
            from kwire.raftmeta.controller.delegation_tokens import decide_remove_expired

            config = DelegationTokenConfig(controller.state.config.static)
            await trio.sleep(config.delegation_token_expiry_check_interval_ms / 1000)
            await self._run(decide_remove_expired, self.clock.now_ms())

    async def _wait_other_brokers(self) -> None:
        """Wait until this node is the active controller and has other brokers to watch."""
        while not self.controller.is_active or len(self.controller.state.image.brokers) < 2:
            await self.controller.wait_change()

    async def _run(self, decide: "Decide[Q, bool]", request: Q) -> None:
        """Repeat one of the controller's own decisions until it reports that nothing remains.

        If this controller may not decide, return after a delay.
        """
        try:
            while await self.controller.call(decide, request):
                pass
        except errors.NotController:
            await trio.sleep(RETRY_S)
