"""The verifications that this node requests from the transaction coordinators on other nodes.

At most one request per node is in flight; the next one carries everything that arrived meanwhile,
as for markers. So a coordinator decides on many transactions together, and a producer waits for at
most two of the coordinator's commits. A request contains each transactional id once; further
partitions of the id go into the next request.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import attrs
import trio

from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from kwire.errors import KafkaError, NetworkException, UnknownServerError, raise_for_code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

logger = logging.getLogger(__name__)

Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult

_TRANSACTIONS_MAX: Final = 500
"""The most transactions in one request."""


@attrs.define(eq=False, repr=False)
class _Verification:
    """One transaction to verify, and its result or error once it has one."""

    transaction: Transaction
    is_over: trio.Event = attrs.field(factory=trio.Event)
    result: Result | None = None
    error: KafkaError | None = None


@attrs.define(eq=False, repr=False)
class VerificationRequests:
    """The requests to all nodes, and the verifications that wait for the next requests."""

    send: Callable[[int, AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse]]
    """Returns a broker's answer; raises KafkaError if there is none."""
    nursery: Callable[[], trio.Nursery]
    _queues: dict[int, list[_Verification]] = attrs.field(factory=dict, init=False)
    """Waiting verifications by broker; an entry exists while a task sends them."""

    async def verify(self, broker: int, transaction: Transaction) -> Result | None:
        """Return the coordinator's result; None if its answer lacks it. Raises KafkaError."""
        verification = _Verification(transaction)
        queue = self._queues.get(broker)
        if queue is None:
            queue = self._queues[broker] = []
            self.nursery().start_soon(self._drain, broker)
        queue.append(verification)
        await verification.is_over.wait()
        if verification.error is not None:
            raise verification.error
        return verification.result

    async def _drain(self, broker: int) -> None:
        """Send requests to one broker until nothing is waiting for it."""
        queue = self._queues[broker]
        try:
            while queue:
                batch, queue[:] = _next_batch(queue)
                await self._send(broker, batch)
        finally:
            del self._queues[broker]
            _end(queue, NetworkException())  # Requests are left only if the node is stopping.

    async def _send(self, broker: int, batch: dict[str, _Verification]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[v.transaction for v in batch.values()])
        error: KafkaError | None = NetworkException()
        try:
            response = await self.send(broker, request)
            raise_for_code(response.error_code)
            for result in response.results_by_transaction:
                if result.transactional_id in batch:
                    batch[result.transactional_id].result = result
            error = None
        except KafkaError as failure:
            error = failure
        except Exception:  # A fault must not end the node.
            logger.exception("verification failed broker=%d", broker)
            error = UnknownServerError()
        finally:
            _end(batch.values(), error)


def _end(verifications: Iterable[_Verification], error: KafkaError | None) -> None:
    for verification in verifications:
        verification.error = error
        verification.is_over.set()


def _next_batch(
    queue: list[_Verification],
) -> tuple[dict[str, _Verification], list[_Verification]]:
    """Return the next request's verifications by transactional id, and the rest."""
    batch: dict[str, _Verification] = {}
    remaining: list[_Verification] = []
    for position, verification in enumerate(queue):
        if len(batch) == _TRANSACTIONS_MAX:
            return batch, remaining + queue[position:]
        transactional_id = verification.transaction.transactional_id
        if transactional_id in batch:
            remaining.append(verification)
        else:
            batch[transactional_id] = verification
    return batch, remaining
