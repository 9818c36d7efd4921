"""The conformance of persisters: the one that the server uses and the one for tests."""

import pytest
import trio

from kwire.errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest
from kwire.share.persister import InitialState, Persister, ReadState, StateBatch, Summary
from kwire.share.state.persister import CoordinatorPersister
from tests.support.share.coordinator import FakeCluster, share_node
from tests.support.share.persister import MemoryPersister

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
TOPIC = bytes(range(16))


@pytest.fixture(params=["in memory", "coordinator here", "coordinator elsewhere"])
def persister(request: pytest.FixtureRequest, nursery: trio.Nursery) -> Persister:
    if request.param == "in memory":
        return MemoryPersister()
    coordinator = share_node(updates_per_snapshot=1)
    coordinator.elect()
    nodes = {1: coordinator} if request.param == "coordinator here" else {2: coordinator}
    return CoordinatorPersister(FakeCluster(nodes, next(iter(nodes))), lambda: nursery)


async def initialize(persister: Persister, start_offset: int = 0, state_epoch: int = 1) -> None:
    initial = {0: InitialState(state_epoch, start_offset)}
    assert await persister.initialize("g", TOPIC, initial) == {0: 0}


async def write(
    persister: Persister,
    *batches: StateBatch,
    state_epoch: int = 1,
    leader_epoch: int = 0,
    start_offset: int = -1,
) -> int:
    return await persister.write(
        "g", TOPIC, 0, state_epoch, leader_epoch, start_offset, 3, list(batches)
    )


async def test_state_is_read_as_it_was_written(persister: Persister) -> None:
    await initialize(persister, 10, 4)
    batches = [StateBatch(10, 14, AVAILABLE, 1), StateBatch(15, 15, ACKNOWLEDGED, 2)]
    assert await write(persister, *batches, state_epoch=4) == 0
    assert await persister.read("g", TOPIC, 0, 0) == ReadState(0, 4, 10, batches)
    assert await persister.summaries("g", TOPIC, [0]) == {0: Summary(0, 4, 10, 0, 3)}


async def test_write_merges_batches_and_advances_the_start(persister: Persister) -> None:
    await initialize(persister)
    await write(persister, StateBatch(0, 9, AVAILABLE, 1))
    await write(persister, StateBatch(4, 6, ACKNOWLEDGED, 1), start_offset=2)
    assert await persister.read("g", TOPIC, 0, 0) == ReadState(
        0,
        1,
        2,
        [
            StateBatch(2, 3, AVAILABLE, 1),
            StateBatch(4, 6, ACKNOWLEDGED, 1),
            StateBatch(7, 9, AVAILABLE, 1),
        ],
    )


async def test_write_without_a_start_keeps_the_stored_start(persister: Persister) -> None:
    await initialize(persister, 7)
    await write(persister, StateBatch(5, 8, ACKNOWLEDGED, 1))
    state = await persister.read("g", TOPIC, 0, 0)
    assert (state.start_offset, list(state.batches)) == (7, [StateBatch(7, 8, ACKNOWLEDGED, 1)])


async def test_write_that_arrives_late_does_not_move_the_start_back(persister: Persister) -> None:
    await initialize(persister)
    await write(persister, StateBatch(7, 9, ACKNOWLEDGED, 1), start_offset=5)
    await write(persister, StateBatch(3, 5, ACKNOWLEDGED, 1), start_offset=3)
    state = await persister.read("g", TOPIC, 0, 0)
    assert state.start_offset == 5
    assert list(state.batches) == [
        StateBatch(5, 5, ACKNOWLEDGED, 1),
        StateBatch(7, 9, ACKNOWLEDGED, 1),
    ]


async def test_repeated_initialization_changes_nothing(persister: Persister) -> None:
    await initialize(persister, -1)
    await write(persister, StateBatch(6, 6, ACKNOWLEDGED, 1), start_offset=5)
    state = await persister.read("g", TOPIC, 0, 0)
    await initialize(persister, -1)
    assert await persister.read("g", TOPIC, 0, 0) == state
    assert (await persister.summaries("g", TOPIC, [0]))[0].delivery_complete_count == 3


async def test_read_by_a_leader_fences_earlier_leaders(persister: Persister) -> None:
    await initialize(persister)
    assert (await persister.read("g", TOPIC, 0, 5)).error_code == 0
    assert await write(persister, leader_epoch=4) == FencedLeaderEpoch.code
    assert (await persister.read("g", TOPIC, 0, 4)).error_code == FencedLeaderEpoch.code
    assert await write(persister, leader_epoch=5) == 0
    assert (await persister.read("g", TOPIC, 0, -1)).error_code == 0


async def test_initialization_fences_earlier_state_epochs(persister: Persister) -> None:
    await initialize(persister, state_epoch=1)
    await write(persister, StateBatch(0, 3, ACKNOWLEDGED, 1))
    await initialize(persister, 20, state_epoch=2)
    assert await write(persister, state_epoch=1) == FencedStateEpoch.code
    late = {0: InitialState(1, 0)}
    assert await persister.initialize("g", TOPIC, late) == {0: FencedStateEpoch.code}
    assert await persister.read("g", TOPIC, 0, 0) == ReadState(0, 2, 20, [])


async def test_initialization_keeps_earlier_leaders_fenced(persister: Persister) -> None:
    await initialize(persister, state_epoch=1)
    await persister.read("g", TOPIC, 0, 5)
    await initialize(persister, state_epoch=2)
    assert (await persister.read("g", TOPIC, 0, 4)).error_code == FencedLeaderEpoch.code
    assert await write(persister, state_epoch=2, leader_epoch=4) == FencedLeaderEpoch.code


async def test_state_must_be_initialized_before_it_is_used(persister: Persister) -> None:
    assert await write(persister) == InvalidRequest.code
    assert (await persister.read("g", TOPIC, 0, 0)).error_code == InvalidRequest.code
    assert await persister.summaries("g", TOPIC, [0]) == {0: Summary(0, 0, -1, 0, -1)}


async def test_summary_of_an_initial_state_counts_completed_deliveries_from_its_start(
    persister: Persister,
) -> None:
    initial = {0: InitialState(1, -1), 1: InitialState(2, 5)}
    assert await persister.initialize("g", TOPIC, initial) == {0: 0, 1: 0}
    assert await persister.summaries("g", TOPIC, [0, 1]) == {
        0: Summary(0, 1, -1, 0, -1),
        1: Summary(0, 2, 5, 0, 0),
    }


async def test_deleted_state_is_gone_and_deletion_can_be_repeated(persister: Persister) -> None:
    await initialize(persister, state_epoch=3)
    assert await persister.delete("g", TOPIC, [0, 1]) == {0: 0, 1: 0}
    assert await persister.delete("g", TOPIC, [0]) == {0: 0}
    assert (await persister.read("g", TOPIC, 0, 0)).error_code == InvalidRequest.code
    await initialize(persister, state_epoch=1)


async def test_groups_topics_and_partitions_have_states_of_their_own(persister: Persister) -> None:
    other_topic = bytes(16)
    for number, (group_id, topic_id, partition) in enumerate(
        [("g", TOPIC, 0), ("h", TOPIC, 0), ("g", other_topic, 0), ("g", TOPIC, 1)]
    ):
        initial = {partition: InitialState(1, number)}
        assert await persister.initialize(group_id, topic_id, initial) == {partition: 0}
    summaries = await persister.summaries("g", TOPIC, [0, 1])
    assert [summaries[p].start_offset for p in (0, 1)] == [0, 3]
    assert (await persister.read("h", TOPIC, 0, 0)).start_offset == 1
    assert (await persister.read("g", other_topic, 0, 0)).start_offset == 2
