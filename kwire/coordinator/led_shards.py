"""The partitions of one internal topic that a node leads, and the requests that they accept now."""

from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from kwire.coordinator.decision import Machine
from kwire.coordinator.shard import Phase, Shard
from kwire.errors import CoordinatorLoadInProgress, NotCoordinator

if TYPE_CHECKING:
    from kwire.coordinator.ports import ShardLog

M = TypeVar("M", bound=Machine)


@attrs.define(kw_only=True, eq=False, repr=False)
class LedShards(Generic[M]):
    """The led partitions; a subclass changes them."""

    topic: str
    log: "ShardLog"
    _shards: dict[int, Shard[M]] = attrs.field(factory=dict, init=False)

    def machines(self) -> list[M]:
        """Return the machines of the loaded partitions that this node leads."""
        return [shard.machine for shard in self._shards.values() if shard.phase is Phase.ACTIVE]

    @property
    def active(self) -> list[int]:
        """The partitions that answer requests, in ascending order."""
        return [i for i, shard in sorted(self._shards.items()) if shard.phase is Phase.ACTIVE]

    @property
    def loading(self) -> list[int]:
        """The partitions that are being loaded, in ascending order."""
        return [i for i, shard in sorted(self._shards.items()) if shard.phase is Phase.LOADING]

    def statistics(self) -> dict[str, int]:
        """Return the numbers of partitions, waiting requests and deadlines."""
        shards = self._shards.values()
        return {
            "active": len(self.active),
            "loading": len(self.loading),
            "waiting": sum(len(shard.waiting) for shard in shards),
            "timers": sum(len(shard.timers) for shard in shards),
        }

    def is_led(self, index: int) -> bool:
        """Return whether this node leads a partition, as far as it knows."""
        return index in self._shards

    def ready(self, index: int) -> Shard[M]:
        """Return a partition that answers requests.

        Raises NotCoordinator or CoordinatorLoadInProgress.
        """
        shard = self._shards.get(index)
        if shard is None or self.log.is_lease_over:
            raise NotCoordinator
        if shard.phase is Phase.LOADING:
            raise CoordinatorLoadInProgress
        return shard

    def find_settled(self, index: int) -> Shard[M] | None:
        """Return a partition in which a read-only request need not wait for a commit, or None."""
        shard = self._shards.get(index)
        if shard is None or shard.phase is not Phase.ACTIVE:
            return None
        return shard if self.is_settled(shard) else None

    def is_settled(self, shard: Shard[M]) -> bool:
        """Return whether all records of a partition are committed."""
        return self._is_committed(shard, shard.written)

    def _is_committed(self, shard: Shard[M], end_offset: int) -> bool:
        if shard.phase is Phase.RESIGNED or self.log.is_lease_over:
            return False
        return self.log.high_watermark(shard.partition) >= end_offset
