"""The requests of one kind that a persister sends to share coordinators on other nodes.

At most one request per broker and group is in flight; the next one carries everything requested in
the meantime. So the leader of many share partitions sends few requests. A request contains each
share partition once; a second write of the same share partition goes into the next request, after
the first.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

import attrs
import trio

from kwire.drive import run_together
from kwire.errors import KafkaError, NetworkException, UnknownServerError
from kwire.share.keys import SharePartition
from kwire.share.state.messages import Results

logger = logging.getLogger(__name__)

Req = TypeVar("Req")
R = TypeVar("R")

Nursery = Callable[[], trio.Nursery]
"""Returns the nursery of the tasks that send requests."""

PARTITIONS_MAX: Final = 500
"""The most share partitions in one request."""


@attrs.define(eq=False, repr=False)
class _Item(Generic[Req, R]):
    """The part of a request about one share partition, and its result once it has one."""

    of: SharePartition
    request: Req
    is_over: trio.Event = attrs.field(factory=trio.Event)
    result: R | KafkaError = attrs.field(factory=UnknownServerError)


@attrs.define(eq=False, repr=False)
class StateRequests(Generic[Req, R]):
    """The requests of one kind, and the items that wait for the next requests."""

    send: Callable[[int, str, Mapping[SharePartition, Req]], Awaitable[Results[R]]]
    """Sends one request about a group to a broker; raises KafkaError if there is no answer."""
    nursery: Nursery
    _queues: dict[tuple[int, str], list[_Item[Req, R]]] = attrs.field(factory=dict, init=False)
    """Waiting items by broker and group; an entry exists while a task sends them."""

    async def ask(
        self, broker: int, group_id: str, requests: Mapping[SharePartition, Req]
    ) -> Results[R]:
        """Return the result or error of each share partition."""
        items = [_Item[Req, R](of, request) for of, request in requests.items()]
        queue = self._queues.get((broker, group_id))
        if queue is None:
            queue = self._queues[broker, group_id] = []
            self.nursery().start_soon(self._drain, broker, group_id)
        queue.extend(items)
        await run_together([item.is_over.wait for item in items])
        return {item.of: item.result for item in items}

    async def _drain(self, broker: int, group_id: str) -> None:
        """Send requests about one group to one broker until nothing is waiting."""
        queue = self._queues[broker, group_id]
        try:
            while queue:
                batch, queue[:] = _next_batch(queue)
                await self._send(broker, group_id, batch)
        finally:
            del self._queues[broker, group_id]
            _end(queue, {}, NetworkException())  # Requests are left only if the node is stopping.

    async def _send(
        self, broker: int, group_id: str, batch: dict[SharePartition, _Item[Req, R]]
    ) -> None:
        results: Results[R] = {}
        error: KafkaError = NetworkException()
        try:
            requests = {of: item.request for of, item in batch.items()}
            results = await self.send(broker, group_id, requests)
            error = UnknownServerError("the answer lacks the share partition")
        except KafkaError as failure:
            error = failure
        except Exception:  # A fault must not end the node.
            logger.exception("share state request failed broker=%d", broker)
            error = UnknownServerError()
        finally:
            _end(batch.values(), results, error)


def _end(items: Iterable[_Item[Req, R]], results: Results[R], error: KafkaError) -> None:
    for item in items:
        item.result = results.get(item.of, error)
        item.is_over.set()


def _next_batch(
    queue: list[_Item[Req, R]],
) -> tuple[dict[SharePartition, _Item[Req, R]], list[_Item[Req, R]]]:
    """Return the next request's items by share partition, and the rest."""
    batch: dict[SharePartition, _Item[Req, R]] = {}
    remaining: list[_Item[Req, R]] = []
    for item in queue:
        if item.of in batch or len(batch) == PARTITIONS_MAX:
            remaining.append(item)
        else:
            batch[item.of] = item
    return batch, remaining
