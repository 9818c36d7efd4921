"""The quorum as the rest of the broker sees it, on a quorum of one."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kwire import errors
from kwire.codec.messages.metadata_records import NoOpRecord
from kwire.raftmeta.delivery import LeaderAndEpoch
from simulation.raft.memory_storage import MemoryStorage
from simulation.raft.quorums import TestClock, Watcher, quorum_of_one
from tests.support.raftmeta.storage import topic


async def test_a_quorum_of_one_leads_at_once(autojump_clock: trio.testing.MockClock) -> None:
    started = trio.current_time()
    watcher = Watcher()
    async with quorum_of_one(watcher) as quorum:
        await wait_all_tasks_blocked()
        assert quorum.leader() == LeaderAndEpoch(1, 1, is_active=True)
        assert trio.current_time() == started
        # The only record is the one that opens the epoch: no no-op, no heartbeat to itself.
        await trio.sleep(60)
        assert [(b.base_offset, b.records) for b in watcher.batches] == [(0, ())]
        assert quorum._raft.deadline == float("inf")


async def test_commit_completes_after_its_delivery_to_listeners() -> None:
    watcher = Watcher()
    async with quorum_of_one(watcher) as quorum:
        await quorum.delivery.wait_delivered(1)
        await wait_all_tasks_blocked()
        first = quorum.append_nowait([topic(1), topic(2)], epoch=1)
        second = quorum.append_nowait([topic(3)], epoch=1)
        assert (first.base_offset, first.offset, second.offset) == (1, 2, 3)
        assert quorum.next_offset == 4
        await second.wait()
        assert [b.records for b in watcher.batches[1:]] == [(topic(1), topic(2)), (topic(3),)]
        assert quorum.delivery.end_offset == quorum.high_watermark == 4


async def test_records_of_another_epoch_are_refused() -> None:
    async with quorum_of_one() as quorum:
        await quorum.delivery.wait_delivered(1)
        with pytest.raises(errors.NotController):
            quorum.append_nowait([NoOpRecord()], epoch=0)


async def test_restart_replays_and_raises_the_epoch() -> None:
    storage = MemoryStorage()
    async with quorum_of_one(storage=storage) as quorum:
        await quorum.append_nowait([topic(1)], epoch=1).wait()
    watcher = Watcher()
    async with quorum_of_one(watcher, storage=storage) as quorum:
        await quorum.delivery.wait_delivered(3)
        await wait_all_tasks_blocked()
        assert quorum.leader() == LeaderAndEpoch(1, 2, is_active=True)
        assert [(b.base_offset, b.epoch, b.records) for b in watcher.batches] == [
            (0, 1, ()),
            (1, 1, (topic(1),)),
            (2, 2, ()),
        ]
        # Leadership is announced after everything before it.
        assert watcher.leaders[-1].is_active


async def test_snapshot_replaces_the_log_before_it() -> None:
    storage = MemoryStorage()
    now_ms = TestClock().now_ms()
    async with quorum_of_one(storage=storage) as quorum:
        await quorum.append_nowait([topic(1)], epoch=1).wait()
        await quorum.snapshots.write(2, 1, [[topic(1)]], last_timestamp_ms=now_ms)
        await quorum.append_nowait([topic(2)], epoch=1).wait()
        await quorum.snapshots.write(
            3, 1, [[topic(1), topic(2)]], last_timestamp_ms=TestClock().now_ms()
        )
        await quorum.append_nowait([topic(3)], epoch=1).wait()
    assert storage.start_offset == 2
    watcher = Watcher()
    async with quorum_of_one(watcher, storage=storage) as quorum:
        await quorum.delivery.wait_delivered(5)
        assert [s.id for s in watcher.snapshots] == [(3, 1)]
        assert list(watcher.snapshots[0].records()) == [topic(1), topic(2)]
        assert [b.records for b in watcher.batches if b.records] == [(topic(3),)]


async def test_stopping_fails_what_is_not_committed() -> None:
    async with quorum_of_one() as quorum:
        await quorum.delivery.wait_delivered(1)
        commit = quorum.append_nowait([topic(1)], epoch=1)
    with pytest.raises(errors.NotController):
        await commit.wait()
