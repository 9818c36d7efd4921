"""A process that has too many files open: its writes to the quorum's log wait, and none is lost."""

import errno
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire.errors import KafkaStorageError
from kwire.log.config import LogConfig
from kwire.node.run import leaves
from kwire.raftmeta.quorum import RaftService
from kwire.raftmeta.raft.events import AppendLog, Effect, SaveElection, TruncateLog
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.raft.quorum_state import ElectionState
from kwire.raftmeta.raft.voters import ReplicaKey, VoterSet
from kwire.raftmeta.storage import scarcity
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.raftmeta.storage.storage_turn import Turn
from simulation.disk import SimDisk
from simulation.raft.quorums import TestClock, Watcher, config_of, voters_of
from tests.support.raftmeta.one_node import part, vote
from tests.support.raftmeta.storage import data, topic

SCARCE = OSError(errno.EMFILE, "too many open files")
VOTED = ElectionState(5, None, ReplicaKey(2, bytes(16)))
FAILED_CALLS = 3


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scarcity, "FIRST_WAIT_S", 0)


@asynccontextmanager
async def node(
    disk: SimDisk, voters: VoterSet, watcher: Watcher | None = None
) -> AsyncIterator[RaftService]:
    """Run node 1 on a disk that lacks descriptors at the calls that a test names."""
    quorum = RaftService(
        config_of(1),
        DiskStorage(disk, now_ms=1),
        clock=TestClock(),
        random=Random(1),
        configured=voters,
    )
    (watcher or Watcher()).watch(quorum)
    async with trio.open_nursery() as nursery:
        await nursery.start(quorum.run)
        yield quorum
        nursery.cancel_scope.cancel()


def close_files(quorum: RaftService) -> None:
    """Close the log's files, as the use of other files does."""
    for segment in quorum._storage._log.segments:  # type: ignore[attr-defined]
        segment.file.close()


@pytest.mark.parametrize("path", ["quorum-state", "__cluster_metadata-0"])
async def test_vote_waits_for_a_descriptor_and_is_durable_before_the_response(path: str) -> None:
    """Invariants 42 and 90. The node neither ends nor loses the vote that it was about to grant."""
    disk = SimDisk()
    voters = voters_of(1, 2, 3)
    async with node(disk, voters) as quorum:
        close_files(quorum)
        disk.fail_at("open", SCARCE, path=path, times=FAILED_CALLS)
        with trio.fail_after(60):
            response = await quorum.handle(vote(2, 5))
        assert part(response).vote_granted
        recovered = DiskStorage(disk.power_loss(Random(1)), now_ms=2).load(voters)
        voted = recovered.election.voted
        assert voted is not None
        assert (recovered.election.epoch, voted.id) == (5, 2)


async def test_records_are_committed_when_there_are_descriptors_again() -> None:
    disk, watcher = SimDisk(), Watcher()
    async with node(disk, voters_of(1), watcher) as quorum:
        await quorum.delivery.wait_delivered(1)
        close_files(quorum)
        disk.fail_at("open", SCARCE, times=FAILED_CALLS)
        with trio.fail_after(60):
            await quorum.append_nowait([topic(1)], quorum.leader().epoch).wait()
            close_files(quorum)
            disk.fail_at("open", SCARCE, times=FAILED_CALLS)
            await quorum.append_nowait([topic(2)], quorum.leader().epoch).wait()
        records = [batch.records for batch in watcher.batches[1:]]
        assert records == [(topic(1),), (topic(2),)]


async def test_snapshot_is_written_when_there_are_descriptors_again() -> None:
    disk = SimDisk()
    async with node(disk, voters_of(1)) as quorum:
        await quorum.delivery.wait_delivered(1)
        disk.fail_at("open", SCARCE, path=".checkpoint", times=FAILED_CALLS)
        with trio.fail_after(60):
            await quorum.snapshots.write(1, 1, [[topic(1)]], last_timestamp_ms=1)
        assert [s.end_offset for s in quorum.state.log.snapshots] == [1]


async def test_previous_snapshot_is_looked_at_when_there_are_descriptors_again() -> None:
    """Whether it may be kept decides about the log before it, so the node reads its header."""
    disk = SimDisk()
    async with node(disk, voters_of(1)) as quorum:
        await quorum.delivery.wait_delivered(1)
        await quorum.append_nowait([topic(1)], quorum.leader().epoch).wait()
        await quorum.snapshots.write(1, 1, [[topic(1)]], last_timestamp_ms=-1)
        store = quorum._storage.store_snapshot

        def store_and_fail(snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
            store(snapshot, chunks)
            disk.fail_at("open", SCARCE, path=".checkpoint", times=FAILED_CALLS)

        quorum._storage.store_snapshot = store_and_fail  # type: ignore[method-assign]
        with trio.fail_after(60):
            await quorum.snapshots.write(2, 1, [[topic(1)]], last_timestamp_ms=-1)
        assert [s.end_offset for s in quorum.state.log.snapshots] == [1, 2]


@attrs.define(eq=False)
class Turns(trio.abc.Instrument):
    """Counts the turns of the loop, and records the turns and times of attempts at a call."""

    count: int = 0
    attempts: list[tuple[int, float]] = attrs.field(factory=list)

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1

    def fail_first(self, call: Callable[..., Any], times: int) -> Callable[..., Any]:
        """Return the call with a shortage of descriptors the first so many times."""

        def attempt(*arguments: Any) -> Any:
            if len(self.attempts) > times:
                return call(*arguments)
            self.attempts.append((self.count, trio.current_time()))
            if len(self.attempts) <= times:
                raise SCARCE
            return call(*arguments)

        return attempt


@pytest.mark.parametrize("name", ["start_sync", "read"])
async def test_loop_runs_between_attempts_though_files_could_be_closed(
    name: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Invariant 90. A sync that pins more files than there are descriptors may close some of them.

    Connections could close theirs, if the loop ran their tasks.
    """
    monkeypatch.setattr(scarcity, "FIRST_WAIT_S", 0.1)
    turns, watcher = Turns(), Watcher()
    async with node(SimDisk(), voters_of(1), watcher) as quorum:
        await quorum.delivery.wait_delivered(1)
        monkeypatch.setattr(DiskStorage, "shed", lambda _: True)
        call = turns.fail_first(getattr(quorum._storage, name), 7)
        monkeypatch.setattr(DiskStorage, name, staticmethod(call))
        trio.lowlevel.add_instrument(turns)
        await quorum.append_nowait([topic(1)], quorum.leader().epoch).wait()
        trio.lowlevel.remove_instrument(turns)
    at = [turn for turn, _ in turns.attempts]
    assert len(at) == len(set(at)) == 8
    times = [time for _, time in turns.attempts]
    waits = [round(later - earlier, 3) for earlier, later in itertools.pairwise(times)]
    assert waits == [0, 0.2, 0.4, 0.8, 1, 1, 1], (
        "the first retry is immediate, the others wait ever longer"
    )
    assert watcher.batches[-1].records == (topic(1),)


async def test_other_errors_end_the_node() -> None:
    disk = SimDisk()

    async def ask() -> None:
        async with node(disk, voters_of(1, 2, 3)) as quorum:
            disk.fail_at("open", OSError(errno.EIO, "unreadable"), path="quorum-state")
            await quorum.handle(vote(2, 5))

    with pytest.raises(ExceptionGroup) as raised:
        await ask()
    _, rest = raised.value.split((OSError, KafkaStorageError))
    assert rest is None


async def test_error_that_ends_the_node_is_raised_before_those_of_its_end() -> None:
    """The first error is the one that tells the operator, or the developer, what went wrong."""
    disk = SimDisk()

    async def ask() -> None:
        async with node(disk, voters_of(1, 2, 3)) as quorum:
            disk.fail_at("open", AssertionError("a bug"), path="quorum-state")
            disk.fail_at("*", OSError(errno.EIO, "unreadable"), path=".index")
            await quorum.handle(vote(2, 5))

    with pytest.raises(BaseExceptionGroup) as raised:
        await ask()
    assert [type(error) for error in leaves(raised.value)] == [AssertionError, KafkaStorageError]


def test_vote_is_written_by_the_next_sync_if_one_could_not_begin() -> None:
    """Invariant 42: the next sync writes it."""
    disk = SimDisk()
    storage = DiskStorage(disk, now_ms=1)
    storage.append(data(0, 1, 1), 0)
    storage.save_election(VOTED, voters_of(1, 2, 3), 0)
    storage._log.segments.active.file.close()
    disk.fail_at("open", SCARCE, times=20)
    with pytest.raises(KafkaStorageError):
        storage.start_sync()
    disk.mend()
    sync = storage.start_sync()
    assert sync is not None
    sync()
    storage.end_sync()
    recovered = DiskStorage(disk.power_loss(Random(1)), now_ms=2).load(voters_of(1, 2, 3))
    assert (recovered.election, recovered.log.end_offset) == (VOTED, 1)


@pytest.mark.parametrize("after", range(4))
def test_turn_is_continued_with_the_write_that_failed(after: int) -> None:
    """With a segment for each batch: batches that were written are not written again."""
    disk = SimDisk()
    config = LogConfig(segment_bytes=200)
    storage = DiskStorage(disk, now_ms=1, config=config)
    batches = [data(n, 1, 1) for n in range(6)]
    turn: list[Effect] = [
        AppendLog(b"".join(batches[:2]), 0),
        SaveElection(VOTED, voters_of(1), 0),
        AppendLog(b"".join(batches[2:]), 2),
    ]
    work = Turn(turn)
    disk.fail_at("open", SCARCE, path=".log", after=after, times=20)
    with pytest.raises(KafkaStorageError):
        work.write(storage)
    disk.mend()
    assert work.can_go_on
    written = work.write(storage)
    assert written is not None
    assert written.needs_sync
    whole = b"".join(bytes(storage.read(n, n + 1, 1)) for n in range(6))
    assert whole == b"".join(batches)


def test_failed_truncation_cannot_be_repeated() -> None:
    work = Turn([TruncateLog(1)])
    assert not work.can_go_on
