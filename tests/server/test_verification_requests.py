"""The verifications that a leader requests from coordinators on other nodes."""

import attrs
import pytest
import trio
import trio.testing

from kwire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from kwire.errors import KafkaError, NetworkException, UnknownServerError
from kwire.node.verification_requests import Result, Transaction, VerificationRequests


@attrs.define(eq=False)
class Coordinators:
    """Other nodes, which answer when a test lets them."""

    sent: list[tuple[int, list[str]]] = attrs.field(factory=list)
    """The broker and the transactional ids of each request."""
    may_answer: trio.Event = attrs.field(factory=trio.Event)
    failure: Exception | None = None
    error_code: int = 0

    async def answer(
        self, broker: int, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        names = [transaction.transactional_id for transaction in request.transactions]
        self.sent.append((broker, names))
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return AddPartitionsToTxnResponse(
            error_code=self.error_code,
            results_by_transaction=[Result(transactional_id=name) for name in reversed(names)],
        )


@attrs.define(eq=False)
class Producers:
    """Producers whose transactions are verified, and their results by name."""

    nursery: trio.Nursery
    requests: VerificationRequests
    results: list[tuple[str, str | type[KafkaError] | None]] = attrs.field(factory=list)

    async def verify(self, broker: int, name: str) -> None:
        try:
            result = await self.requests.verify(broker, Transaction(transactional_id=name))
        except KafkaError as error:
            self.results.append((name, type(error)))
        else:
            self.results.append((name, result.transactional_id if result else None))

    async def start(self, broker: int, *names: str) -> None:
        for name in names:
            self.nursery.start_soon(self.verify, broker, name)
            await trio.testing.wait_all_tasks_blocked()


async def test_next_request_to_a_node_carries_what_came_meanwhile() -> None:
    """One request a node is under way; a transactional id is in it once."""
    coordinators = Coordinators()
    async with trio.open_nursery() as nursery:
        requests = VerificationRequests(coordinators.answer, lambda: nursery)
        producers = Producers(nursery, requests)
        await producers.start(2, "a", "b", "c", "b")
        await producers.start(3, "d")
        assert coordinators.sent == [(2, ["a"]), (3, ["d"])]
        coordinators.may_answer.set()
    assert coordinators.sent[2:] == [(2, ["b", "c"]), (2, ["b"])]
    assert sorted(producers.results) == [(name, name) for name in "abbcd"]


@pytest.mark.parametrize(
    ("failure", "error_code", "error"),
    [
        (NetworkException(), 0, NetworkException),
        (ZeroDivisionError(), 0, UnknownServerError),
        (None, NetworkException.code, NetworkException),
    ],
)
async def test_failed_request_fails_its_transactions_and_the_next_is_sent(
    failure: Exception | None, error_code: int, error: type[KafkaError]
) -> None:
    coordinators = Coordinators(failure=failure, error_code=error_code)
    async with trio.open_nursery() as nursery:
        requests = VerificationRequests(coordinators.answer, lambda: nursery)
        producers = Producers(nursery, requests)
        await producers.start(2, "a", "b")
        coordinators.may_answer.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(producers.results) == [("a", error), ("b", error)]
        coordinators.failure, coordinators.error_code = None, 0
        await producers.start(2, "a")
        assert producers.results[-1] == ("a", "a")
