"""A leader of many brokers: the held Fetches that one event examines, and the reads of the log."""

from typing import Any

import pytest

from kwire.raftmeta.raft import messages, replication
from kwire.raftmeta.raft.events import Append, Effect, Received, Reply
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.voters import ReplicaKey
from kwire.raftmeta.storage.storage_turn import write
from simulation.raft.memory_storage import MemoryStorage
from tests.support.raftmeta.observers import OBSERVERS, fetch_of, with_observers
from tests.support.raftmeta.one_node import follower, part, say, vote


def replies(effects: tuple[Effect, ...]) -> list[Reply]:
    return [e for e in effects if isinstance(e, Reply)]


@pytest.fixture
def compared_fetches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The Fetches that are compared with the log."""
    compared: list[Any] = []
    answer = replication._answer

    def count_answer(state: Any, request: Any, *rest: Any, **named: Any) -> Any:
        compared.append(request)
        return answer(state, request, *rest, **named)

    monkeypatch.setattr(replication, "_answer", count_answer)
    return compared


def test_event_without_new_records_examines_no_held_fetch(compared_fetches: list[Any]) -> None:
    """A vote request, a repeated BeginQuorumEpoch, a timer: they concern no held Fetch."""
    raft = with_observers()
    compared_fetches.clear()
    say(raft, vote(2, 1), 0.31)
    say(raft, messages.begin_request(follower().state, ReplicaKey(1)), 0.32)
    raft.step(None, 0.33, 0)
    assert compared_fetches == []


def test_fetch_of_one_broker_examines_no_other(compared_fetches: list[Any]) -> None:
    raft = with_observers()
    compared_fetches.clear()
    request = fetch_of(5000, raft)
    say(raft, request, 0.31)
    assert compared_fetches == [request]


def test_append_answers_each_held_fetch_once(compared_fetches: list[Any]) -> None:
    """Each held Fetch is examined once, when there are records, and is then answered."""
    raft = with_observers()
    compared_fetches.clear()
    effects = raft.step(Append("token", raft.state.epoch, (b"value",)), 0.31, 0)
    assert len(compared_fetches) == len(replies(effects)) == OBSERVERS + 1


def test_held_fetches_end_after_max_wait(compared_fetches: list[Any]) -> None:
    """Later ones stay held, and are not examined."""
    raft = with_observers()
    for node_id in range(9000, 9010):
        raft.step(Received(node_id, fetch_of(node_id, raft)), 0.5, 0)
    compared_fetches.clear()
    assert raft.deadline == pytest.approx(0.8)
    effects = raft.step(None, raft.deadline, 0)
    assert len(compared_fetches) == len(replies(effects)) == OBSERVERS + 1
    assert raft.deadline == pytest.approx(1.0)


def test_identical_answers_share_one_read_and_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    raft = with_observers()
    disk = MemoryStorage()
    disk.start_offset = disk.end_offset = raft.state.log.end_offset
    reads: list[int] = []
    read = disk.read

    def count_read(start_offset: int, *rest: int) -> Any:
        reads.append(start_offset)
        return read(start_offset, *rest)

    monkeypatch.setattr(disk, "read", count_read)
    effects = raft.step(Append("token", raft.state.epoch, (b"value",)), 0.31, 0)
    outcomes = [e for e in write(disk, effects).outcomes if isinstance(e, Reply)]
    sent = {id(part(reply.response).records) for reply in outcomes}
    assert (len(outcomes), len(reads), len(sent)) == (OBSERVERS + 1, 1, 1)
    own = [id(reply.response) for reply in outcomes]
    assert len(set(own)) == len(own)  # each may be given a throttle time of its own


def test_replicas_that_stopped_fetching_are_removed() -> None:
    """Every new directory id of a broker is another replica; those of the past do not add up."""
    raft = with_observers()
    role = raft.state.role
    assert isinstance(role, Leader)
    for second in range(300):
        say(raft, fetch_of(2, raft), 1.0 + second)
        if second == 200:
            say(raft, fetch_of(100, raft), raft.state.now)
    say(raft, fetch_of(7777, raft), raft.state.now + 1)
    assert {key.id for key in role.replicas} == {2, 100, 7777}
