"""The coordinator answers as Apache Kafka 4.3.1 answered when the conversations were recorded.

They show invariants 53, 54, 55 and 58: producer_continues_after_an_error (53), new_producer_fences
(54), timeouts_abort (55), ends_with_epoch_bumps, ends_of_nothing, epochs_are_used_up and
used_up_epochs_are_replaced_at_a_start (58).

``python -m tests.transaction.test_conversations PORT`` records them anew, from a Kafka with
``transaction.abort.timed.out.transaction.cleanup.interval.ms=200`` and
``offsets.topic.num.partitions=3`` without transactional ids.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.describe_transactions import DescribeTransactionsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.errors import TransactionalIdNotFound
from kwire.node.server import Server
from kwire.testing.wire import TrioWireClient
from tests.support.server.nodes import parts_of, running
from tests.support.transaction.conversation import Conversation
from tests.support.transaction.scenarios import SCENARIOS

IDS = [*"abcdefghij", "none", "new", "list-1", "list-2", "group"]
NOT_FOUND = TransactionalIdNotFound.code
GOLDEN = Path(__file__).parent.parent / "golden" / "transaction"


Bump = Callable[[str, int], Awaitable[tuple[int, int]]]


async def converse(host: str, port: int, name: str, bump: Bump | None = None) -> str:
    async with await TrioWireClient.connect(host, port) as client:
        await prepare(client)
        conversation = Conversation(client.call, bump=bump)
        await SCENARIOS[name](conversation)
    return "\n".join([*conversation.lines, ""])


async def prepare(client: TrioWireClient) -> None:
    """Create the topics and wait until there are coordinators."""
    shape = CreateTopicsRequest.CreatableTopic
    topics = [shape(name=name, num_partitions=2, replication_factor=1) for name in ("t", "u")]
    await client.call(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    for kind in (0, 1):
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=IDS)
        await wait_for_answers(client, request, 6, lambda reply: reply.coordinators)
    await wait_for_answers(
        client,
        DescribeTransactionsRequest(transactional_ids=IDS),
        0,
        lambda reply: [x for x in reply.transaction_states if x.error_code != NOT_FOUND],
    )


async def wait_for_answers(
    client: TrioWireClient, request: Any, version: int, parts: Callable[[Any], Any]
) -> None:
    """Send a request until no part of the answer has an error."""
    while True:
        if not any(part.error_code for part in parts(await client.call(request, version))):
            return
        await trio.sleep(0.05)


def at_epoch(server: Server) -> Bump:
    """Return the function that moves a transactional id of a node to an epoch."""

    async def bump(name: str, epoch: int) -> tuple[int, int]:
        coordinator = parts_of(server).transactions()
        for shard in coordinator.service.machines():
            if name in shard.transactions:
                bumped = attrs.evolve(shard.transactions[name], producer_epoch=epoch)
                shard.transactions[name] = bumped
                return bumped.producer_id, epoch
        raise KeyError(name)

    return bump


@pytest.mark.parametrize("name", SCENARIOS)
async def test_answers_are_those_of_apache_kafka(name: str, tmp_path: Path) -> None:
    changes = {
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": "200",
        "offsets_topic_num_partitions": "3",
        "offsets_topic_replication_factor": "1",
        "transaction_state_log_replication_factor": "1",
        "transaction_state_log_min_isr": "1",
    }
    async with running(tmp_path, **changes) as server:
        answers = await converse(*server.address, name, at_epoch(server))
    assert answers == (GOLDEN / f"{name}.txt").read_text()


if __name__ == "__main__":
    for scenario in sys.argv[2:] or SCENARIOS:
        recording = trio.run(converse, "127.0.0.1", int(sys.argv[1]), scenario)
        (GOLDEN / f"{scenario}.txt").write_text(recording)
