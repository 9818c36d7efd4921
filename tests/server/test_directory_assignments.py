"""A broker with several log directories reports to the controller where its replicas lie."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.assign_replicas_to_dirs import AssignReplicasToDirsResponse
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.node.directory_assignments import REQUEST_PARTITIONS, DirectoryAssignments
from kwire.raftmeta.controller.brokers import decide_heartbeat
from kwire.raftmeta.controller.partitions import decide_assign_directories
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.storage.levels import DIRECTORIES, ELR
from kwire.storage_format.format import feature_records
from kwire.types import NO_LEADER, DirectoryId, uuid_text
from tests.support.raftmeta.clusters import Cluster, directory, registration

Clock = trio.testing.MockClock
OTHER_DIR = b"e" * 16


@attrs.define(eq=False)
class Controllers:
    """An active controller that refuses the first requests, or a partition in the first ones."""

    cluster: Cluster
    refusal_count: int = 0
    rejected: int = -1
    """The partition that it rejects."""
    rejection_count: int = 0
    brokers_image: MetadataImage | None = None
    """The metadata that the broker knows, if they are not the newest."""
    delay_s: float = 0.0
    """The delay of each request."""
    times: list[float] = attrs.field(factory=list)
    """The time of each request."""
    requests: list[Any] = attrs.field(factory=list)

    async def assign(self, request: Any) -> Any:
        self.requests.append(request)
        self.times.append(trio.current_time())
        await trio.sleep(self.delay_s)
        if self.refusal_count:
            self.refusal_count -= 1
            raise errors.NotController
        if self.rejection_count and self.rejected in _partitions(request):
            self.rejection_count -= 1
            return self._reject(request)
        return self.cluster.do(decide_assign_directories, request)

    def _reject(self, request: Any) -> Any:
        """Assign all partitions but one."""
        topic = request.directories[0].topics[0]
        others = [p for p in topic.partitions if p.partition_index != self.rejected]
        topic.partitions[:] = others
        answer = self.cluster.do(decide_assign_directories, request)
        answers = answer.directories[0].topics[0]
        code = errors.NotLeaderOrFollower.code
        rejection = AssignReplicasToDirsResponse.DirectoryData.TopicData.PartitionData(
            partition_index=self.rejected, error_code=code
        )
        answers.partitions.append(rejection)
        return answer


def _partitions(request: Any) -> list[int]:
    return [
        partition.partition_index
        for each in request.directories
        for topic in each.topics
        for partition in topic.partitions
    ]


@attrs.define(eq=False)
class Replica:
    """A partition as far as the assignments use it."""

    topic_id: bytes
    partition: int
    directory: bytes
    end_offset: int = 7

    @property
    def log(self) -> "Replica":
        return self


def two_directories(partition_count: int = 1) -> tuple[Cluster, bytes]:
    """Return a cluster whose broker 2 leads a topic, in directories that are not known yet."""
    cluster = Cluster((1, 3))
    record = registration(2)
    record.log_dirs = [directory(2), OTHER_DIR]
    cluster.write(record)
    topic_id = cluster.topic("t", *[[2, 1]] * partition_count)
    changes = []
    for number in range(partition_count):
        change = cluster.state.change(topic_id, number)
        change.directories = {2: DirectoryId.UNASSIGNED, 1: directory(1)}
        changes.append(change.build())
    cluster.write(*changes)
    return cluster, topic_id


@asynccontextmanager
async def reporting(controllers: Controllers) -> AsyncIterator[DirectoryAssignments]:
    """Run the assignments of broker 2."""
    replica_directory: Any = lambda replica: replica.directory  # noqa: E731
    assignments = DirectoryAssignments(
        2,
        lambda: controllers.brokers_image or controllers.cluster.state.image,
        replica_directory,
        lambda: 200,
        controllers.assign,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(assignments.run)
        yield assignments
        nursery.cancel_scope.cancel()


async def report(
    controllers: Controllers, replicas: list[Replica], unreachable: list[Replica] | None = None
) -> None:
    """Give the replicas their roles, report those without a log, and let a minute pass."""
    async with reporting(controllers) as assignments:
        for replica in replicas:
            as_partition: Any = replica
            assignments.on_role_changed(as_partition)
        for replica in unreachable or ():
            assignments.on_log_unreachable(replica.topic_id, replica.partition)
        await trio.sleep(60)


async def test_leaders_of_a_failed_directory_move(autojump_clock: Clock) -> None:
    cluster, topic_id = two_directories(2)
    controllers = Controllers(cluster)
    await report(controllers, [Replica(topic_id, 0, OTHER_DIR), Replica(topic_id, 1, directory(2))])
    assert [cluster.partition("t", n).directory(2) for n in (0, 1)] == [OTHER_DIR, directory(2)]
    heartbeat = BrokerHeartbeatRequest(
        broker_id=2,
        broker_epoch=200,
        current_metadata_offset=1 << 40,
        want_fence=False,
        want_shut_down=False,
        offline_log_dirs=[OTHER_DIR],
    )
    cluster.do(decide_heartbeat, heartbeat)
    assert [cluster.partition("t", n).leader for n in (0, 1)] == [1, 2]


async def test_leader_moves_from_a_replica_whose_log_cannot_be_reached(
    autojump_clock: Clock,
) -> None:
    """The controller does not know which directory the replica is in; its log is found later."""
    cluster, topic_id = two_directories()
    controllers, replica = Controllers(cluster), Replica(topic_id, 0, OTHER_DIR)
    await report(controllers, [], unreachable=[replica])
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr) == (1, (1,))
    assert partition.directory(2) == DirectoryId.LOST
    await report(controllers, [], unreachable=[replica])
    assert len(controllers.requests) == 1
    await report(controllers, [replica])
    assert cluster.partition("t").directory(2) == OTHER_DIR


@pytest.mark.parametrize("elr", [False, True])
async def test_empty_log_in_place_of_a_lost_one_leads_only_if_an_operator_elects_it(
    autojump_clock: Clock, elr: bool
) -> None:
    """Otherwise the other replicas would lose what it was the last one to acknowledge."""
    cluster, topic_id = two_directories()
    if elr:
        cluster.write(*feature_records({ELR: 1}))
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[2]))
    controllers, replica = Controllers(cluster), Replica(topic_id, 0, OTHER_DIR, end_offset=0)
    await report(controllers, [], unreachable=[replica])
    assert cluster.partition("t").directory(2) == DirectoryId.LOST
    await report(controllers, [replica])
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), ())
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=1, isr=[1]))
    await report(controllers, [replica])
    assert cluster.partition("t").directory(2) == OTHER_DIR


async def test_empty_log_that_is_moved_before_its_report_still_replaces_a_lost_one(
    autojump_clock: Clock,
) -> None:
    """The report of its new directory replaces the one that no controller has answered."""
    cluster, topic_id = two_directories()
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[2]))
    controllers, replica = Controllers(cluster), Replica(topic_id, 0, OTHER_DIR, end_offset=0)
    await report(controllers, [], unreachable=[replica])
    controllers.refusal_count = 1
    async with reporting(controllers) as assignments:
        as_partition: Any = replica
        assignments.on_role_changed(as_partition)
        assignments.report((topic_id, 0), directory(2))
        await trio.sleep(60)
    assert cluster.partition("t").leader == -1


async def test_directory_of_an_empty_log_is_assigned_beside_a_leader(autojump_clock: Clock) -> None:
    cluster, topic_id = two_directories()
    controllers, replica = Controllers(cluster), Replica(topic_id, 0, OTHER_DIR, end_offset=0)
    await report(controllers, [], unreachable=[replica])
    await report(controllers, [replica])
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr) == (1, (1,))
    assert partition.directory(2) == OTHER_DIR


def without_first_directory(replicas: list[int]) -> tuple[Cluster, bytes]:
    """Return a cluster whose broker 2, the last in sync, restarts without its first directory."""
    cluster = Cluster((1, 3))
    before, after = registration(2), registration(2)
    before.log_dirs, after.log_dirs = [directory(2)], [OTHER_DIR]
    cluster.write(before)
    topic_id = cluster.topic("t", replicas)
    cluster.write(r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[2], leader=-1))
    cluster.write(after)
    return cluster, topic_id


@pytest.mark.parametrize("replicas", [[2], [2, 1]])
async def test_log_that_was_moved_while_the_broker_was_down_leads(
    autojump_clock: Clock, replicas: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """An operator moved its files to another disk, and removed the first one from ``log.dirs``."""
    cluster, topic_id = without_first_directory(replicas)
    await report(Controllers(cluster), [Replica(topic_id, 0, OTHER_DIR)])
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.directory(2)) == (2, (2,), OTHER_DIR)
    assert not partition.recovering
    assert not caplog.messages


async def test_partitions_that_wait_for_a_missing_directory_are_logged_once(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, topic_id = without_first_directory([2, 1])
    controllers, replica = Controllers(cluster), Replica(topic_id, 0, OTHER_DIR, end_offset=0)
    for _ in range(2):
        caplog.clear()
        async with reporting(controllers) as assignments:
            as_partition: Any = replica
            assignments.on_role_changed(as_partition)
            await trio.sleep(1)
            assignments.on_role_changed(as_partition)
            await trio.sleep(1)
        assert cluster.partition("t").leader == NO_LEADER
        assert cluster.partition("t").directory(2) == directory(2)
        (line,) = caplog.messages
        assert f"id={uuid_text(directory(2))}; without it, partitions have no leader: t-0;" in line
        assert "--election-type unclean" in line


async def test_known_directory_of_an_unreachable_log_is_kept(autojump_clock: Clock) -> None:
    """The controller learns from the heartbeats that this directory has failed."""
    cluster, topic_id = two_directories()
    controllers, replica = Controllers(cluster), Replica(topic_id, 0, OTHER_DIR)
    await report(controllers, [replica])
    await report(controllers, [], unreachable=[replica])
    assert cluster.partition("t").directory(2) == OTHER_DIR


async def test_what_the_metadata_have_is_not_sent(autojump_clock: Clock) -> None:
    cluster, topic_id = two_directories()
    controllers = Controllers(cluster)
    for _ in range(2):
        await report(controllers, [Replica(topic_id, 0, OTHER_DIR)])
    await report(controllers, [Replica(bytes(16), 0, OTHER_DIR)])
    assert len(controllers.requests) == 1


async def test_nothing_is_sent_below_the_level_that_has_directories(
    autojump_clock: Clock,
) -> None:
    """Each request would write records that change nothing."""
    cluster, topic_id = two_directories()
    cluster.write(*feature_records({"metadata.version": DIRECTORIES - 1}))
    controllers = Controllers(cluster)
    replica = Replica(topic_id, 0, OTHER_DIR)
    await report(controllers, [replica], unreachable=[replica])
    assert controllers.requests == []


async def test_refused_request_is_sent_again(autojump_clock: Clock) -> None:
    cluster, topic_id = two_directories()
    controllers = Controllers(cluster, refusal_count=5)
    await report(controllers, [Replica(topic_id, 0, OTHER_DIR)])
    assert len(controllers.requests) == 6
    assert cluster.partition("t").directory(2) == OTHER_DIR


async def test_rejected_partition_is_sent_again_with_growing_delays(autojump_clock: Clock) -> None:
    cluster, topic_id = two_directories(2)
    controllers = Controllers(cluster, rejected=1, rejection_count=6)
    await report(controllers, [Replica(topic_id, n, OTHER_DIR) for n in (0, 1)])
    assert [cluster.partition("t", n).directory(2) for n in (0, 1)] == [OTHER_DIR, OTHER_DIR]
    assert len(controllers.requests) == 7, "then nothing is left to send"
    delays = [later - earlier for earlier, later in pairwise(controllers.times)]
    assert delays == sorted(delays)
    assert delays[-1] > 2 * delays[0] > 0


async def test_rejected_partition_does_not_delay_others(autojump_clock: Clock) -> None:
    cluster, topic_id = two_directories(2)
    controllers = Controllers(cluster, rejected=1, rejection_count=1 << 30)
    async with reporting(controllers) as assignments:
        assignments.report((topic_id, 1), OTHER_DIR)
        await trio.sleep(60)
        assignments.report((topic_id, 0), OTHER_DIR)
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.partition("t", 0).directory(2) == OTHER_DIR


async def test_rejected_partition_that_is_deleted_is_not_sent_again(autojump_clock: Clock) -> None:
    cluster, topic_id = two_directories()
    controllers = Controllers(cluster, rejected=0, rejection_count=1 << 30)
    async with reporting(controllers) as assignments:
        assignments.report((topic_id, 0), OTHER_DIR)
        await trio.testing.wait_all_tasks_blocked()
        cluster.write(r.RemoveTopicRecord(topic_id=topic_id))
        await trio.sleep(60)
    assert len(controllers.requests) == 1


async def test_newer_directory_replaces_a_rejected_one(autojump_clock: Clock) -> None:
    """A move was given up: its log stays where it was."""
    cluster, topic_id = two_directories()
    controllers = Controllers(cluster, rejected=0, rejection_count=1)
    async with reporting(controllers) as assignments:
        assignments.report((topic_id, 0), OTHER_DIR)
        await trio.testing.wait_all_tasks_blocked()
        assignments.report((topic_id, 0), directory(2))
        await trio.sleep(60)
    assert cluster.partition("t").directory(2) == directory(2)


async def test_move_given_up_while_its_request_is_under_way_is_corrected(
    autojump_clock: Clock,
) -> None:
    cluster, topic_id = two_directories()
    controllers = Controllers(cluster)
    async with reporting(controllers) as assignments:
        assignments.report((topic_id, 0), directory(2))
        await trio.sleep(1)
        controllers.brokers_image, controllers.delay_s = cluster.state.image, 5
        assignments.report((topic_id, 0), OTHER_DIR)
        await trio.sleep(1)
        assignments.report((topic_id, 0), directory(2))
        await trio.sleep(60)
    assert cluster.partition("t").directory(2) == directory(2)


async def test_many_assignments_are_sent_in_few_requests(autojump_clock: Clock) -> None:
    count = REQUEST_PARTITIONS + 1
    cluster, topic_id = two_directories(count)
    controllers = Controllers(cluster)
    await report(controllers, [Replica(topic_id, number, OTHER_DIR) for number in range(count)])
    assert len(controllers.requests) == 2
    assert all(cluster.partition("t", n).directory(2) == OTHER_DIR for n in range(count))
