"""The five requests to the coordinator of share partitions, as Apache Kafka 4.3.1 answers them."""

from collections.abc import Callable
from typing import Any

import pytest

from kwire.errors import ClusterAuthorizationFailed
from kwire.share.keys import SharePartition
from kwire.share.persister import InitialState, ReadState, StateBatch, Summary
from kwire.share.state import messages
from kwire.share.state.model import StateWrite
from tests.support.handlers.broker import Broker, broker
from tests.support.share.coordinator import TOPIC, ShareNode, share_node

FIRST = SharePartition("g", TOPIC, 0)
SECOND = SharePartition("g", TOPIC, 1)


def make() -> tuple[Broker, ShareNode]:
    node = share_node()
    node.elect()
    subject = broker()
    subject.replace(share_states=lambda: node.coordinator)
    return subject, node


async def test_state_is_initialized_written_read_and_deleted() -> None:
    subject, _ = make()
    states = {FIRST: InitialState(3, 10), SECOND: InitialState(3, -1)}
    response = await subject.call(messages.initialize_request("g", states))
    assert messages.failures("g", response) == {FIRST: None, SECOND: None}

    batches = [StateBatch(10, 12, 0, 1), StateBatch(13, 13, 2, 4)]
    write = StateWrite(3, 0, 10, 1, batches)
    response = await subject.call(messages.write_request("g", {FIRST: write}))
    assert messages.failures("g", response) == {FIRST: None}

    response = await subject.call(messages.read_request("g", {FIRST: 0, SECOND: 0}))
    assert messages.read_results("g", response) == {
        FIRST: ReadState(0, 3, 10, batches),
        SECOND: ReadState(0, 3, -1, []),
    }
    response = await subject.call(messages.delete_request("g", [SECOND]))
    assert messages.failures("g", response) == {SECOND: None}
    response = await subject.call(messages.summary_request("g", [FIRST, SECOND]))
    assert messages.summary_results("g", response) == {
        FIRST: Summary(0, 3, 10, 0, 1),
        SECOND: Summary(0, 0, -1, 0, -1),
    }


async def test_version_0_knows_no_count_of_completed_deliveries() -> None:
    subject, node = make()
    await node.initialize(of=FIRST)
    write = StateWrite(1, 0, -1, 5)
    await subject.call(messages.write_request("g", {FIRST: write}), version=0)
    response = await subject.call(messages.summary_request("g", [FIRST]))
    assert messages.summary_results("g", response)[FIRST] == Summary(0, 1, 0, 0, -1)


async def test_share_partitions_fail_one_by_one() -> None:
    subject, node = make()
    await node.initialize(of=FIRST)
    response = await subject.call(messages.read_request("g", {FIRST: 0, SECOND: 0}))
    (first, second) = response.results[0].partitions
    assert first.error_code == 0
    assert (second.error_code, second.start_offset) == (42, 0)
    text = "Read operation on uninitialized share partition not allowed."
    assert second.error_message == text


@pytest.mark.parametrize(("partition", "code"), [(-1, 42), (100, 3)])
async def test_partition_that_does_not_exist_is_rejected(partition: int, code: int) -> None:
    subject, _ = make()
    of = SharePartition("g", TOPIC, partition)
    response = await subject.call(messages.initialize_request("g", {of: InitialState(0, 0)}))
    assert response.results[0].partitions[0].error_code == code


REQUESTS: dict[str, Callable[[str, Any], Any]] = {
    "initialize": lambda group, of: messages.initialize_request(
        group, dict.fromkeys(of, InitialState(0, 0))
    ),
    "read": lambda group, of: messages.read_request(group, dict.fromkeys(of, 0)),
    "write": lambda group, of: messages.write_request(
        group, dict.fromkeys(of, StateWrite(0, 0, 0, 0))
    ),
    "delete": messages.delete_request,
    "summary": messages.summary_request,
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
async def test_request_without_a_group_or_topic_gets_an_empty_response(
    request_of: Callable[[str, Any], Any],
) -> None:
    subject, _ = make()
    assert (await subject.call(request_of("", [FIRST]))).results == []
    assert (await subject.call(request_of("g", []))).results == []


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
async def test_only_brokers_may_use_states(request_of: Callable[[str, Any], Any]) -> None:
    class NothingAllowed:
        def allows(self, *_: object) -> bool:
            return False

    subject, node = make()
    subject.replace(authorizer=NothingAllowed())
    response = await subject.call(request_of("g", [FIRST]))
    (result,) = response.results[0].partitions
    assert result.error_code == ClusterAuthorizationFailed.code
    assert node.log.data == {}
