"""A broker's connections to the controller and to the leaders from which it copies.

Each purpose has its own connection, because a fetch waits on the leader, and an ISR proposal must
not wait behind heartbeats.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from kwire.errors import UnsupportedVersion
from kwire.net.connection_pool import ConnectionPool, OutOfReach
from kwire.replica.ports import LeaderUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kwire.clock import Clock
    from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
    from kwire.codec.messages.fetch import FetchRequest, FetchResponse
    from kwire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
    from kwire.raftmeta.controller.active_controller import ActiveController
    from kwire.raftmeta.metadata.image import MetadataImage, NodeEndpoint


@attrs.define(eq=False, repr=False)
class LeaderConnection:
    """The connection to a broker, at its address in the newest metadata."""

    node: int
    listener: str
    image: Callable[[], MetadataImage]
    pool: ConnectionPool
    _last: NodeEndpoint | None = None

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        with _as_unreachable():
            response: FetchResponse = await self.pool.call(*self._address(), request)
        return response

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        with _as_unreachable():
            response: ListOffsetsResponse = await self.pool.call(*self._address(), request)
        return response

    def drop(self) -> None:
        if self._last is not None:
            self.pool.drop(self._last.host, self._last.port)

    def _address(self) -> tuple[str, int]:
        broker = self.image().brokers.get(self.node)
        endpoint = None if broker is None else broker.endpoint(self.listener)
        if endpoint is None:
            raise LeaderUnreachable(f"broker {self.node} has no listener {self.listener}")
        self._last = endpoint
        return endpoint.host, endpoint.port


@contextmanager
def _as_unreachable() -> Iterator[None]:
    """Convert the errors of an unanswered call to LeaderUnreachable."""
    try:
        yield
    except (OutOfReach, UnsupportedVersion) as error:
        raise LeaderUnreachable(str(error)) from error


@attrs.define(eq=False, repr=False)
class ClusterConnections:
    """The other nodes, as the replica layer uses them."""

    listener: str
    image: Callable[[], MetadataImage]
    pool: ConnectionPool
    active_controller: ActiveController
    clock: Clock
    epoch: Callable[[], int]

    def broker_epoch(self) -> int:
        return self.epoch()

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def connect(self, node: int) -> LeaderConnection:
        return LeaderConnection(node, self.listener, self.image, self.pool)

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        from kwire.raftmeta.controller.partitions import decide_alter_partition

        return await self.active_controller.call(decide_alter_partition, request)
