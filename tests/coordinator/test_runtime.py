"""The coordinator service under a clock that jumps: waits, loads, deadlines, resignations."""

from collections.abc import Awaitable, Hashable, Iterator
from math import inf

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.coordinator.decision import NOTHING, Decision, Moment, Step
from kwire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from kwire.group.deletion import delete_groups
from kwire.group.shard import GroupShard
from kwire.log.segments.damage import DamagedRange
from kwire.records.build import New, batch
from kwire.records.control import ControlType, control_key, end_txn_value
from kwire.records.header import parse
from kwire.records.iterate import records
from kwire.types import TopicPartition
from tests.support.coordinator.node import (
    CLIENT,
    commit_request,
    fetch_offset,
    join_request,
    loaded_successor,
    make_node,
    wait_result,
)


async def test_commit_to_a_partition_led_elsewhere_is_refused() -> None:
    node = make_node()
    with pytest.raises(NotCoordinator):
        await wait_result(node.groups.commit(commit_request(1)))


async def test_empty_partition_serves_requests_at_once() -> None:
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(commit_request(7)))
    assert await fetch_offset(node) == 7
    assert await fetch_offset(node, "g") == 7


async def test_invalid_group_id_or_session_timeout_is_refused_by_every_node() -> None:
    node = make_node()
    with pytest.raises(InvalidGroupId):
        await node.groups.join(join_request(group=""), CLIENT)
    for session_ms in (5_999, 1_800_001):
        with pytest.raises(InvalidSessionTimeout):
            await node.groups.join(join_request(session_ms=session_ms), CLIENT)


async def test_commit_and_fetch_are_answered_after_the_high_watermark_passed_them(
    autojump_clock: object,
) -> None:
    """Invariant 72: any later coordinator has what was acknowledged."""
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    node.log.replicas_lag = True
    done = []

    async def commit() -> None:
        await wait_result(node.groups.commit(commit_request(5)))
        done.append("commit")

    async def read() -> None:
        assert await fetch_offset(node) == 5
        done.append("read")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
        node.log.catch_up()
    assert sorted(done) == ["commit", "read"]


async def test_commit_fails_if_the_high_watermark_does_not_pass_it_in_time(
    autojump_clock: object,
) -> None:
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    node.log.replicas_lag = True
    with pytest.raises(CoordinatorNotAvailable):
        await wait_result(node.groups.commit(commit_request(5)))
    assert trio.current_time() == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("failure", "client_error"),
    [
        (NotEnoughReplicas, CoordinatorNotAvailable),
        (NotLeaderOrFollower, NotCoordinator),
        (KafkaStorageError, NotCoordinator),
    ],
)
async def test_commit_that_cannot_be_written_changes_no_offset(
    failure: type[KafkaError], client_error: type[KafkaError]
) -> None:
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    await wait_result(node.groups.commit(commit_request(5)))
    node.log.failure = failure()
    with pytest.raises(client_error):
        await wait_result(node.groups.commit(commit_request(6)))
    node.log.failure = None
    assert await fetch_offset(node) == 5


async def test_resignation_fails_the_waiting_requests(autojump_clock: object) -> None:
    """Invariant 72: no answer from the old coordinator."""
    node = make_node()
    index = node.groups.partition_of("g")
    for partition in range(4):
        node.service.on_elected(partition, 3)
    failures: list[NotCoordinator] = []

    async def wait_failure(request: Awaitable[object]) -> None:
        with pytest.raises(NotCoordinator) as failure:
            await request
        failures.append(failure.value)

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        # Alone it is in generation 1 at once; the second member waits for it to join again.
        await node.groups.join(join_request(), CLIENT)
        nursery.start_soon(wait_failure, node.groups.join(join_request(), CLIENT))
        await trio.testing.wait_all_tasks_blocked()
        node.log.replicas_lag = True
        nursery.start_soon(wait_failure, wait_result(node.groups.commit(commit_request(1, "h"))))
        await trio.testing.wait_all_tasks_blocked()
        node.service.on_resigned(index, 2)
        assert index in node.service.active
        assert failures == []
        for partition in range(4):
            node.service.on_resigned(partition, 4)
        node.log.resign()
        await trio.testing.wait_all_tasks_blocked()
        assert len(failures) == 2
        nursery.cancel_scope.cancel()
    assert node.service.statistics()["waiting"] == 0


@pytest.mark.parametrize("error", [KafkaStorageError(), ValueError("no batch")])
async def test_failed_load_is_retried_with_a_growing_back_off(
    error: Exception, autojump_clock: object
) -> None:
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    await wait_result(node.groups.commit(commit_request(7)))
    successor = make_node(node.log)
    node.log.read_failures += [error] * 10
    async with trio.open_nursery() as nursery:
        await nursery.start(successor.service.run)
        successor.service.on_elected(index, 2)
        await trio.sleep(100)
        assert len(node.log.read_failures) == 3, "after 0, 1, 3, 7, 15, 31 and 63 seconds"
        with pytest.raises(CoordinatorLoadInProgress):
            await wait_result(successor.groups.commit(commit_request(1)))
        node.log.read_failures.clear()
        await trio.sleep(61)
        assert await fetch_offset(successor) == 7
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_empty", [True, False])
async def test_fault_after_a_replay_leaves_only_its_partition_loading(
    is_empty: bool,
    autojump_clock: object,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The node goes on, and the load is repeated from the start: nothing of it is left behind."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    if not is_empty:
        await wait_result(node.groups.commit(commit_request(7)))
    faults: list[Exception] = [TypeError("no such field"), KeyError("group")]
    loaded: list[GroupShard] = []
    on_loaded = GroupShard.on_loaded

    def fail_twice(shard: GroupShard) -> Iterator[Step]:
        if faults:
            yield lambda _: Decision(timers=((("join", "left behind"), 1e9),))
            raise faults.pop()
        loaded.append(shard)
        yield from on_loaded(shard)

    monkeypatch.setattr(GroupShard, "on_loaded", fail_twice)
    successor = make_node(node.log)
    async with trio.open_nursery() as nursery:
        await nursery.start(successor.service.run)
        successor.service.on_elected(index, 2)
        await trio.sleep(0.5)
        with pytest.raises(CoordinatorLoadInProgress):
            await wait_result(successor.groups.commit(commit_request(8)))
        await trio.sleep(10)
        assert successor.service.active == [index]
        assert successor.service.machines() == loaded[-1:]
        assert await fetch_offset(successor) == (-1 if is_empty else 7)
        assert successor.service.statistics()["timers"] == 1 - is_empty
        nursery.cancel_scope.cancel()
    failures = [r.getMessage() for r in caplog.records if "loading failed" in r.getMessage()]
    assert len(failures) == 2 - is_empty


async def test_new_leader_keeps_generation_members_and_assignments(autojump_clock: object) -> None:
    """Invariant 72: members notice nothing, and the former coordinator answers no request."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    successor = make_node(node.log)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        await nursery.start(successor.service.run)
        member = await node.groups.join(join_request(), CLIENT)
        sync = SyncGroupRequest(
            group_id="g",
            generation_id=member.generation_id,
            member_id=member.member_id,
            must_name_protocol=False,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member.member_id, assignment=b"everything"
                )
            ],
        )
        await node.groups.sync(sync)
        heartbeat = HeartbeatRequest(
            group_id="g", generation_id=member.generation_id, member_id=member.member_id
        )
        node.service.on_resigned(index, 2)
        successor.service.on_elected(index, 2)
        with pytest.raises(CoordinatorLoadInProgress):
            await successor.groups.sync(sync)
        with pytest.raises(NotCoordinator):
            node.groups.heartbeat(heartbeat)
        with pytest.raises(NotCoordinator):
            await node.groups.sync(sync)
        while successor.service.loading:  # noqa: ASYNC110
            await trio.sleep(0.1)
        assert (await wait_result(successor.groups.heartbeat(heartbeat))).error_code == 0
        assert (await successor.groups.sync(sync)).assignment == b"everything"
        # The load started a new session: it lasts its whole timeout and then ends.
        await trio.sleep(9.8)
        assert (await wait_result(successor.groups.heartbeat(heartbeat))).error_code == 0
        await trio.sleep(10.1)
        with pytest.raises(UnknownMemberId):
            await wait_result(successor.groups.heartbeat(heartbeat))
        nursery.cancel_scope.cancel()


async def test_new_leader_refuses_requests_until_it_has_loaded(autojump_clock: object) -> None:
    """Invariant 72: LOAD_IN_PROGRESS, then the same offsets and groups."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    for offset in range(100):
        await wait_result(node.groups.commit(commit_request(offset)))
    successor = make_node(node.log)
    node.log.read_delay = 0.1
    node.log.read_failures.append(KafkaStorageError())
    async with trio.open_nursery() as nursery:
        await nursery.start(successor.service.run)
        successor.service.on_elected(index, 2)
        with pytest.raises(CoordinatorLoadInProgress):
            await wait_result(successor.groups.commit(commit_request(1)))
        with pytest.raises(CoordinatorLoadInProgress):
            await successor.groups.list_groups([], [])
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await wait_result(successor.groups.heartbeat(heartbeat))).error_code == 0
        successor.groups.on_topics_deleted({bytes(16): "other"})
        while successor.service.loading:  # noqa: ASYNC110
            await trio.sleep(0.1)
        assert await fetch_offset(successor) == 99
        assert [g.group_id for g in await successor.groups.list_groups([], [])] == ["g"]
        with pytest.raises(UnknownMemberId):
            await wait_result(successor.groups.heartbeat(heartbeat))
        nursery.cancel_scope.cancel()


async def test_sessions_and_groups_expire_and_leave_no_timer(autojump_clock: object) -> None:
    node = make_node(group_initial_rebalance_delay_ms=3_000)
    node.service.on_elected(node.groups.partition_of("g"), 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        assert node.service._sleep.deadline == inf
        reply = await node.groups.join(join_request(), CLIENT)
        assert (reply.generation_id, reply.leader) == (1, "c-1")
        assert trio.current_time() == pytest.approx(3.0)
        # The session ends 10 s after the answer, and the group is empty.
        await trio.sleep(10.1)
        (group,) = await node.groups.list_groups([], [])
        assert group.group_state == "Empty"
        await trio.sleep(86_400 * 8)
        assert await node.groups.list_groups([], []) == []
        assert node.service.statistics()["timers"] == 0
        nursery.cancel_scope.cancel()


async def test_session_end_that_cannot_be_written_is_retried(autojump_clock: object) -> None:
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        await node.groups.join(join_request(), CLIENT)
        node.log.failure = NotEnoughReplicas()
        await trio.sleep(11)
        (group,) = await node.groups.list_groups([], [])
        assert group.group_state == "CompletingRebalance"
        node.log.failure = None
        await trio.sleep(2)
        (group,) = await node.groups.list_groups([], [])
        assert group.group_state == "Empty"
        nursery.cancel_scope.cancel()


async def test_client_that_disconnects_leaves_no_waiting_request(autojump_clock: object) -> None:
    node = make_node()
    node.service.on_elected(node.groups.partition_of("g"), 0)
    with trio.move_on_after(1):
        await node.groups.join(join_request(), CLIENT)
    assert node.service.statistics()["waiting"] == 0


async def test_damaged_records_are_skipped_by_a_load(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    await wait_result(node.groups.commit(commit_request(5)))
    partition = TopicPartition("__consumer_offsets", index)
    damaged_records = [
        New(None, None),
        New(b"\0\2", b"\0\3"),
        New(b"\0\2\0\1g", b"\0\x63garbage"),
        New(b"\0\2\0\1x", b"\0\3\0\1"),
        New(b"\x7f\1whatever", b"xx"),
        New(b"", b""),
    ]
    node.log.append(partition, batch(damaged_records, timestamp_ms=1))
    damaged_batch = bytearray(batch([New(b"\0\2\0\1g", None)], timestamp_ms=1))
    damaged_batch[61] = 0xFF
    node.log.append(partition, bytes(damaged_batch))
    await wait_result(node.groups.commit(commit_request(6)))
    async with loaded_successor(node.log, index) as successor:
        assert await fetch_offset(successor) == 6
    warnings = [record for record in caplog.records if "skipped" in record.getMessage()]
    assert len(warnings) == 6


@pytest.mark.parametrize("is_lost", [True, False])
async def test_only_batches_that_no_replica_can_restore_are_skipped_by_a_load(
    is_lost: bool, autojump_clock: object
) -> None:
    """A group whose commits lie behind them is served; others wait for the replica."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    for offset in range(3):
        await wait_result(node.groups.commit(commit_request(offset)))
    damaged = DamagedRange(0, 2, 0, 100, "checksum", is_lost=is_lost)
    node.log.read_failures += [damaged.error()] * 20
    successor = make_node(node.log)
    async with trio.open_nursery() as nursery:
        await nursery.start(successor.service.run)
        successor.service.on_elected(index, 2)
        await trio.sleep(30)
        assert bool(successor.service.loading) is not is_lost
        node.log.read_failures.clear()
        await trio.sleep(120)
        assert await fetch_offset(successor) == 2
        nursery.cancel_scope.cancel()


async def test_loaded_transactional_offsets_follow_their_markers() -> None:
    """Invariant 62: unstable while the transaction is open, then committed or dropped."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    await wait_result(node.groups.commit(commit_request(9)))
    await wait_result(node.groups.commit(commit_request(5)))
    partition = TopicPartition("__consumer_offsets", index)
    stored = node.log.data[index][0]

    def begin(producer: int) -> None:
        """Append the commit of offset 9 in a transaction of this producer."""
        (record,) = records(stored, 0, parse(stored, 0))
        commit = [New(record.key, record.value)]
        data = batch(
            commit, timestamp_ms=1, producer_id=producer, producer_epoch=0, transactional=True
        )
        node.log.append(partition, data)

    def end(producer: int, kind: ControlType) -> None:
        marker = [New(control_key(kind), end_txn_value(0))]
        data = batch(
            marker,
            timestamp_ms=1,
            producer_id=producer,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
        node.log.append(partition, data)

    async def load_offset(stable: bool = True) -> tuple[int, int]:
        """Return error code and offset from a coordinator that has loaded the log."""
        async with loaded_successor(node.log, index) as successor:
            (topic,) = await successor.groups.fetch("g", [("t", [0])], require_stable=stable)
        return topic.partitions[0].error_code, topic.partitions[0].committed_offset

    node.service.on_resigned(index)
    node.service.on_elected(index, 2)
    begin(1)
    assert await load_offset() == (UnstableOffsetCommit.code, -1)
    assert await load_offset(stable=False) == (0, 5)
    end(1, ControlType.ABORT)
    assert await load_offset() == (0, 5)
    end(1, ControlType.COMMIT)  # A later transaction of the producer has no offsets.
    assert await load_offset() == (0, 5)
    begin(2)
    assert await load_offset(stable=False) == (0, 5)
    end(2, ControlType.COMMIT)
    assert await load_offset() == (0, 9)


async def test_transaction_marker_commits_or_drops_pending_offsets() -> None:
    """Invariant 62, without a load in between."""
    node = make_node()
    index = node.groups.partition_of("g")
    node.service.on_elected(index, 1)
    await wait_result(node.groups.commit(commit_request(5)))
    machine = node.service._shards[index].machine
    (record,) = records(node.log.data[index][0], 0, parse(node.log.data[index][0], 0))
    decoded = machine.decode(record.key or b"", record.value)
    assert decoded is not None
    decoded.value.offset = 9
    for producer, committed, offset in ((1, False, 5), (2, True, 9)):
        machine.apply(decoded, producer)
        (topic,) = await node.groups.fetch("g", [("t", [0])], require_stable=True)
        assert topic.partitions[0].error_code == UnstableOffsetCommit.code
        machine.end_transaction(producer, committed=committed)
        assert await fetch_offset(node) == offset


async def test_group_named_twice_in_a_deletion_has_one_result() -> None:
    node = make_node()
    for index in range(3):
        node.service.on_elected(index, 0)
    results = await delete_groups(node.groups, ["a", "a", "b", "c", "d"])
    codes = {
        name: 69 if node.groups.partition_of(name) < 3 else NotCoordinator.code for name in "abcd"
    }
    assert {result.group_id: result.error_code for result in results} == codes
    assert len(results) == 4


def test_decision_is_empty_by_default() -> None:
    assert Decision() == NOTHING
    assert Moment(1.0, 2).wall_ms == 2


@attrs.define(kw_only=True)
class FaultyShard(GroupShard):
    """Groups whose first deadline raises an unexpected error."""

    deadlines: list[float] = attrs.field(factory=list)

    def due(self, name: Hashable, moment: Moment) -> Decision:
        self.deadlines.append(moment.now)
        if len(self.deadlines) == 1:
            raise ZeroDivisionError
        return NOTHING


async def test_unexpected_error_in_a_step_or_a_deadline_is_tried_again_later(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node()
    index = node.groups.partition_of("g")
    shard = FaultyShard(new_id=lambda: "m", settings=lambda: node.settings)
    node.service.make = lambda _: shard
    node.service.on_elected(index, 0)
    failures = [ZeroDivisionError(), ZeroDivisionError()]
    steps: list[str] = []

    def faulty_step(moment: Moment) -> Decision:
        steps.append("faulty")
        if failures:
            raise failures.pop()
        return Decision(timers=(("deadline", moment.now + 1),))

    def sound_step(moment: Moment) -> Decision:
        steps.append("sound")
        return NOTHING

    async with trio.open_nursery() as nursery:
        await nursery.start(node.service.run)
        node.service.schedule_for_all(lambda _: (faulty_step, sound_step))
        await trio.sleep(300)
        assert steps == ["faulty", "sound", "faulty", "faulty"]
        assert len(shard.deadlines) == 2
        await wait_result(node.groups.commit(commit_request(1)))
        nursery.cancel_scope.cancel()
    assert "step failed" in caplog.text
    assert "deadline deadline failed" in caplog.text
