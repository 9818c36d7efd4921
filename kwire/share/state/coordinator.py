"""The share coordinator for the handlers: it finds a share partition's shard and calls it.

It also prunes the log of each partition that this node leads, up to the oldest snapshot that is
needed.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio

from kwire.clock import Clock
from kwire.coordinator.decision import Decision, Moment, Opaque
from kwire.coordinator.partitioning import partition_for
from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.share.keys import SharePartition
from kwire.share.persister import InitialState, ReadState, Summary
from kwire.share.state.messages import Items, Results
from kwire.share.state.model import StateWrite
from kwire.share.state.settings import ShareStateSettings
from kwire.share.state.shard import ShareStateShard, Topics
from kwire.types import SHARE_GROUP_STATE, TopicPartition
from kwire.waits import Slow

if TYPE_CHECKING:
    from kwire.coordinator.ports import LedPartition, ShardLog

logger = logging.getLogger(__name__)

Req = TypeVar("Req")


@attrs.define(kw_only=True, eq=False, repr=False)
class ShareCoordinator:
    """The states of share partitions on this node."""

    log: "ShardLog"
    clock: Clock
    delete_before: Callable[[TopicPartition, int], Awaitable[None]]
    """Deletes the records of a led partition before an offset; raises KafkaError."""
    topics: Topics
    settings: Callable[[], ShareStateSettings]
    partitions: Callable[[], int]
    """Returns the number of partitions that `__share_group_state` has or will be created with."""
    service: CoordinatorRuntime[ShareStateShard] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.service = CoordinatorRuntime(
            topic=SHARE_GROUP_STATE,
            log=self.log,
            clock=self.clock,
            make=lambda index: ShareStateShard(settings=self.settings, topics=self.topics),
            commit_timeout_ms=lambda: self.settings().write_timeout_ms,
            in_order=True,
            compression=lambda: self.settings().compression,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load partitions, handle deadlines and prune the log, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            nursery.start_soon(self._prune_all)
            task_status.started()

    def on_role_changed(self, partition: "LedPartition") -> None:
        """Load a partition that this broker now leads, or drop it; the replica layer calls this."""
        if partition.leader is not None:
            self.service.on_elected(partition.partition, partition.leader_epoch)
        else:
            self.service.on_resigned(partition.partition)

    def on_topics_deleted(self) -> None:
        """Delete the states of topics that no longer exist."""
        self.service.schedule_for_all(ShareStateShard.remove_deleted_topics)

    def partition_of(self, of: SharePartition) -> int:
        return partition_for(of.key, self.partitions())

    # Requests: each share partition succeeds or fails alone

    async def initialize(self, states: Items[InitialState]) -> Results[None]:
        return await self._decide_each(states, ShareStateShard.initialize)

    async def read(self, leader_epochs: Items[int]) -> Results[ReadState]:
        return await self._decide_each(leader_epochs, ShareStateShard.read)

    async def write(self, writes: Items[StateWrite]) -> Results[None]:
        return await self._decide_each(writes, ShareStateShard.write)

    async def delete(self, partitions: Items[None]) -> Results[None]:
        return await self._decide_each(partitions, ShareStateShard.delete)

    async def summaries(self, partitions: Items[None]) -> Results[Summary]:
        return await self._decide_each(partitions, ShareStateShard.summary)

    async def _decide_each(
        self,
        requests: Items[Req],
        decide: Callable[[ShareStateShard, SharePartition, Req, Moment, int], Decision],
    ) -> Results[Opaque]:
        """Return the reply or error of each share partition.

        All records are written before the first wait, so one commit of the replicas may answer all.
        """
        results: dict[SharePartition, Opaque | KafkaError] = {}
        slices = Slices(self.clock.now)

        async def finish(of: SharePartition, slow: Slow[Opaque]) -> None:
            try:
                results[of] = await slow.finish()
            except KafkaError as error:
                results[of] = error

        async with trio.open_nursery() as nursery:
            for of, request in requests:
                results[of] = None
                try:
                    reply = self.service.begin(
                        self.partition_of(of),
                        lambda shard, *when, of=of, request=request: decide(
                            shard, of, request, *when
                        ),
                    )
                except KafkaError as error:
                    results[of] = error
                    continue
                if isinstance(reply, Slow):
                    nursery.start_soon(finish, of, reply)
                else:
                    results[of] = reply
                await slices.pause()
        return results

    # Pruning

    async def _prune_all(self) -> None:
        while True:
            await trio.sleep(self.settings().prune_interval_ms / 1000)
            slices = Slices()
            for index in self.service.active:
                await self._prune(index)
                await slices.pause()

    async def _prune(self, index: int) -> None:
        """Delete the records that the committed state does not need."""
        partition = TopicPartition(SHARE_GROUP_STATE, index)
        try:
            offset = await self.service.read(index, ShareStateShard.redundant_offset)
            start, _ = self.log.bounds(partition)
            if offset > start:
                await self.delete_before(partition, offset)
                logger.info("share state pruned partition=%s offset=%d", partition, offset)
        except KafkaError as error:
            logger.warning("share state not pruned partition=%s error=%r", partition, error)
