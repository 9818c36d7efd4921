"""The states of share partitions on a running node: first use, restarts, deletion of topics."""

from pathlib import Path

import trio.testing

from kwire.codec.messages.delete_topics import DeleteTopicsRequest
from kwire.node.server import Server
from kwire.share.persister import InitialState, Persister, ReadState, StateBatch
from kwire.testing.wire import TrioWireClient
from kwire.types import SHARE_GROUP_STATE
from tests.support.server.nodes import create, running, topics

SETTINGS = {
    "share_coordinator_state_topic_num_partitions": "2",
    "share_coordinator_state_topic_replication_factor": "1",
    "share_coordinator_state_topic_min_isr": "1",
}
STATE = ReadState(0, 1, 4, [StateBatch(4, 5, 2, 1)])


def persister_of(server: Server) -> Persister:
    assert server.broker is not None
    return server.broker.share_states.persister()


def topic_id(server: Server) -> bytes:
    return server.services.current.image.topic_ids["t"]


async def test_first_state_creates_the_topic_and_outlives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS) as server:
        await create(server, "t")
        persister = persister_of(server)
        initial = {0: InitialState(1, 4)}
        assert await persister.initialize("g", topic_id(server), initial) == {0: 0}
        assert SHARE_GROUP_STATE in await topics(server)
        batches = [StateBatch(4, 5, 2, 1)]
        assert await persister.write("g", topic_id(server), 0, 1, 0, -1, 2, batches) == 0
    async with running(tmp_path, **SETTINGS) as server:
        assert await persister_of(server).read("g", topic_id(server), 0, 0) == STATE


async def test_states_of_a_deleted_topic_are_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS) as server:
        await create(server, "t")
        await persister_of(server).initialize("g", topic_id(server), {0: InitialState(1, 4)})
        assert server.broker is not None
        machines = server.broker.share_states.coordinator().service.machines()
        assert sum(len(machine.states) for machine in machines) == 1
        await delete(server)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not any(machine.states for machine in machines)


async def delete(server: Server) -> None:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name="t")], timeout_ms=10_000
    )
    async with await TrioWireClient.connect(*server.address) as client:
        await client.call(request, 6)
