"""Nodes whose log directories fail while they run, or come and go between runs."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kwire import errors
from kwire.codec.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kwire.codec.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.errors import KafkaStorageError
from kwire.log.directories.directory import LogDirectory
from kwire.log.directories.log_move import LogMove
from kwire.log.formats.names import META_PROPERTIES
from kwire.node import core
from kwire.node.broker import BrokerHalf
from kwire.node.run import leaves
from kwire.node.server import Server
from kwire.raftmeta.controller.partitions import UNCLEAN
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.storage.levels import DIRECTORIES, METADATA_VERSION
from kwire.storage_format.directories import CannotOpenError, Identity, format_node, identify
from kwire.testing.wire import TrioWireClient
from kwire.types import NO_LEADER, uuid_text
from tests.support.handlers.broker import one_batch
from tests.support.server.nodes import config, create, new_node, parts_of, running

pytestmark = pytest.mark.slow
CLUSTER_ID = "aaaaaaaaaaaaaaaaaaaaaA"
PARTITIONS = 8


def fail(directory: LogDirectory) -> None:
    directory.disk.failed = OSError(5, "Input/output error", directory.name)
    directory.note_failure()


async def test_node_ends_with_its_last_log_directory(tmp_path: Path) -> None:
    """Invariant 89: with one directory left it lives, without any it could not store a record."""
    paths = [str(tmp_path / name) for name in ("a", "b")]
    metadata = str(tmp_path / "metadata")
    has_outlived_the_first = trio.Event()

    async def run() -> None:
        async with running(tmp_path, log_dirs=",".join(paths), metadata_log_dir=metadata) as server:
            first, last = server.core.logs.directories
            fail(first)
            await trio.sleep(0.5)
            has_outlived_the_first.set()
            fail(last)
            await trio.sleep(60)

    with pytest.raises(BaseExceptionGroup) as failure:
        await run()
    assert has_outlived_the_first.is_set()
    (error,) = leaves(failure.value)
    assert isinstance(error, KafkaStorageError)
    assert all(path in str(error) for path in paths)


async def test_records_of_an_unreadable_directory_are_back_once_it_is_readable(
    tmp_path: Path,
) -> None:
    """Invariant 89: until then a start creates no empty log in the other directory.

    The metadata do not name the directory of a replica at this metadata.version.
    """
    paths = [tmp_path / name for name in ("a", "b")]
    settings = {
        "log_dirs": ",".join(map(str, paths)),
        "metadata_log_dir": str(tmp_path / "metadata"),
    }
    features = {METADATA_VERSION: DIRECTORIES - 1}
    list(format_node(config(tmp_path, **settings), CLUSTER_ID, False, features=features))
    loop = paths[0] / "loop"

    async with running(tmp_path, **settings) as server:
        await create(server, "t", partitions=PARTITIONS)
        for index in range(PARTITIONS):
            assert await write(server, index) == errors.NONE
    loop.symlink_to(loop)  # The directory cannot be listed.
    async with running(tmp_path, **settings) as server:
        codes = [await write(server, index) for index in range(PARTITIONS)]
        assert sorted(codes) == [errors.NONE] * 4 + [errors.KafkaStorageError.code] * 4
    loop.unlink()
    async with running(tmp_path, **settings) as server:
        partitions = [parts_of(server).replicas.partitions.get("t", n) for n in range(PARTITIONS)]
        assert [p.log.end_offset for p in partitions] == [1 if code else 2 for code in codes]


def make_unreadable(directory: Path) -> None:
    """Let every read of ``meta.properties`` fail."""
    path = directory / META_PROPERTIES
    path.rename(directory / "kept")
    path.symlink_to(path)


def damage(directory: Path) -> None:
    """Let ``meta.properties`` end after its first bytes."""
    path = directory / META_PROPERTIES
    path.rename(directory / "kept")
    path.write_bytes((directory / "kept").read_bytes()[:20])


def empty(directory: Path) -> None:
    path = directory / META_PROPERTIES
    path.rename(directory / "kept")
    path.touch()


def make_readable(directory: Path) -> None:
    (directory / META_PROPERTIES).unlink()
    (directory / "kept").rename(directory / META_PROPERTIES)


async def test_node_starts_without_a_directory_that_fails_during_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its identity could be read before the directories were locked."""
    paths = [tmp_path / name for name in ("a", "b")]
    metadata = tmp_path / "metadata"
    settings = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": str(metadata)}
    async with running(tmp_path, **settings):
        pass

    def identify_later(*arguments: Any) -> Identity:
        make_unreadable(paths[0])
        return identify(*arguments)

    monkeypatch.setattr(core, "identify", identify_later)
    async with running(tmp_path, **settings) as server:
        assert [each.online for each in server.core.logs.directories] == [False, True]


@pytest.mark.parametrize(
    ("break_identity", "reason"),
    [
        (make_unreadable, "Too many levels of symbolic links"),
        (damage, "meta.properties "),
        (empty, "meta.properties is empty; restore a copy, or move the directory away"),
    ],
)
async def test_node_starts_without_a_directory_whose_identity_cannot_be_read(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    break_identity: Callable[[Path], None],
    reason: str,
) -> None:
    """Its partitions have no leader until the next start that can read the directory."""
    paths = [tmp_path / name for name in ("a", "b")]
    metadata = tmp_path / "metadata"
    settings = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": str(metadata)}
    async with running(tmp_path, **settings) as server:
        await create(server, "t", partitions=PARTITIONS)
        codes = [await write(server, index) for index in range(PARTITIONS)]
        assert codes == [errors.NONE] * PARTITIONS
        lost, remaining = server.core.logs.directories
        away = [partition.partition for partition in lost.logs]
        assert 0 < len(away) < PARTITIONS
    break_identity(paths[0])
    caplog.clear()
    async with running(tmp_path, **settings) as server:
        (line,) = [line for line in caplog.messages if line.startswith("directory offline")]
        assert line.startswith(f"directory offline name={paths[0]} error=")
        assert reason in line
        assert server.core.logs.statistics()["offline_directories"] == 1
        assert server.core.publisher.image.brokers[1].log_dirs == (remaining.directory_id,)
        topic = server.core.publisher.image.topic("t")
        assert topic is not None
        assert [n for n, each in topic.partitions.items() if each.leader == NO_LEADER] == away
        codes = [await write(server, index) for index in range(PARTITIONS)]
        assert [n for n, code in enumerate(codes) if code != errors.NONE] == away
        async with await TrioWireClient.connect(*server.address) as client:
            response = await client.call(DescribeLogDirsRequest(topics=None), 4)
        codes_by_path = {each.log_dir: each.error_code for each in response.results}
        assert codes_by_path == {
            str(paths[0]): KafkaStorageError.code,
            str(paths[1]): errors.NONE,
        }
    make_readable(paths[0])
    async with running(tmp_path, **settings) as server:
        ends = [
            parts_of(server).replicas.partitions.get("t", n).log.end_offset
            for n in range(PARTITIONS)
        ]
        assert ends == [1 if n in away else 2 for n in range(PARTITIONS)]


@pytest.mark.parametrize("names", [("metadata",), ("a", "b")])
async def test_node_needs_the_metadata_log_and_one_more_directory(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    settings = {
        "log_dirs": ",".join(map(str, paths)),
        "metadata_log_dir": str(tmp_path / "metadata"),
    }
    async with running(tmp_path, **settings) as server:
        await create(server, "t")
    for name in names:
        make_unreadable(tmp_path / name)
    with pytest.raises(CannotOpenError, match=rf"cannot use the data directory .*/{names[0]}: "):
        new_node(config(tmp_path, **settings))


async def test_new_cluster_is_not_formatted_beside_an_unreadable_directory(tmp_path: Path) -> None:
    """The directory may hold the data of the cluster whose other disk was not mounted."""
    paths = [tmp_path / name for name in ("a", "b")]
    paths[1].mkdir()
    (paths[1] / META_PROPERTIES).symlink_to(paths[1] / META_PROPERTIES)
    with pytest.raises(CannotOpenError, match=r"cannot use the data directory .*/b: "):
        new_node(config(tmp_path, log_dirs=",".join(map(str, paths))))
    assert not (paths[0] / META_PROPERTIES).exists()


def unmount(path: str) -> None:
    """Move a directory away, as if its disk were not mounted."""
    Path(path).rename(f"{path}-not-mounted")


def mount(path: str) -> None:
    """Bring a directory back in place of the one that a node created meanwhile."""
    shutil.rmtree(path)
    Path(f"{path}-not-mounted").rename(path)


async def test_partitions_of_a_directory_that_is_missing_have_no_leader_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Empty logs in its place would look as if all records were lost. Kafka's lead.

    First ``log.dirs`` lacks the directory, then its disk is not mounted.
    """
    paths = [str(tmp_path / name) for name in ("a", "b")]
    metadata = str(tmp_path / "metadata")
    alone = {"log_dirs": paths[0], "metadata_log_dir": metadata}
    both = {"log_dirs": ",".join(paths), "metadata_log_dir": metadata}
    async with running(tmp_path, **alone) as server:
        await create(server, "t", partitions=4)
        assert [await write(server, index) for index in range(4)] == [errors.NONE] * 4
    async with running(tmp_path, **both) as server:
        await create(server, "u", partitions=PARTITIONS)
        for topic, count in (("t", 4), ("u", PARTITIONS)):
            codes = [await write(server, index, topic) for index in range(count)]
            assert codes == [errors.NONE] * count
        logs = parts_of(server).replicas.partitions
        added = server.core.logs.directories[1]
        assert all(logs.get("t", n).log.disk is not added.disk for n in range(4))
        away = [n for n in range(PARTITIONS) if logs.get("u", n).log.disk is added.disk]
        assert 0 < len(away) < PARTITIONS
        missing = uuid_text(added.directory_id)
    reports = Reports()
    for settings in (alone, both):
        caplog.clear()
        if settings is both:
            unmount(paths[1])
        async with reports.record(), running(tmp_path, **settings) as server:
            await reports.wait_answered()
            codes = [await write(server, index, "u") for index in range(PARTITIONS)]
            assert [n for n in range(PARTITIONS) if codes[n] != errors.NONE] == away
            assert [await write(server, index) for index in range(4)] == [errors.NONE] * 4
        (line,) = [line for line in caplog.messages if line.startswith("log directory missing")]
        assert line.startswith(f"log directory missing id={missing}; without it, ")
        assert all(f"u-{n}" in line for n in away)
    mount(paths[1])
    async with running(tmp_path, **both) as server:
        logs = parts_of(server).replicas.partitions
        assert [logs.get("t", n).log.end_offset for n in range(4)] == [4] * 4
        ends = [1 if n in away else 3 for n in range(PARTITIONS)]
        assert [logs.get("u", n).log.end_offset for n in range(PARTITIONS)] == ends
        codes = [await write(server, index, "u") for index in range(PARTITIONS)]
        assert codes == [errors.NONE] * PARTITIONS


async def test_partitions_of_a_lost_directory_begin_anew_if_an_operator_elects_leaders(
    tmp_path: Path,
) -> None:
    """If the directory is back later, its logs are set aside: the new ones have newer records."""
    paths = [tmp_path / name for name in ("a", "b")]
    metadata = str(tmp_path / "metadata")
    alone = {"log_dirs": str(paths[0]), "metadata_log_dir": metadata}
    both = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": metadata}
    async with running(tmp_path, **both) as server:
        await create(server, "t", partitions=PARTITIONS)
        for index in range(PARTITIONS):
            assert await write(server, index) == errors.NONE
        away = [partition.partition for partition in server.core.logs.directories[1].logs]
        assert 0 < len(away) < PARTITIONS
    reports = Reports()
    async with reports.record(), running(tmp_path, **alone) as server:
        await reports.wait_answered()
        async with await TrioWireClient.connect(*server.address) as client:
            request = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=None)
            response = await client.call(request, 2)
        (topic,) = response.replica_election_results
        elected = [each.partition_id for each in topic.partition_result if not each.error_code]
        assert elected == sorted(away)
        assert [await write(server, index) for index in range(PARTITIONS)] == [errors.NONE] * 8
    async with running(tmp_path, **both) as server:
        logs = parts_of(server).replicas.partitions
        ends = [1 if n in away else 2 for n in range(PARTITIONS)]
        assert [logs.get("t", n).log.end_offset for n in range(PARTITIONS)] == ends
        assert [await write(server, index) for index in range(PARTITIONS)] == [errors.NONE] * 8
    assert len(list(paths[1].glob("t-*-stray/*.log"))) == len(away), "nothing is removed"


async def test_logs_that_an_operator_moved_while_the_node_was_down_lead_in_their_new_directory(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    metadata = str(tmp_path / "metadata")
    both = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": metadata}
    async with running(tmp_path, **both) as server:
        await create(server, "t", partitions=PARTITIONS)
        for index in range(PARTITIONS):
            assert await write(server, index) == errors.NONE
    moved = list(paths[1].glob("t-*"))
    assert 0 < len(moved) < PARTITIONS
    for folder in moved:
        folder.rename(paths[0] / folder.name)
    async with running(tmp_path, log_dirs=str(paths[0]), metadata_log_dir=metadata) as server:

        def have_leaders(image: MetadataImage) -> bool:
            states = [image.partition("t", index) for index in range(PARTITIONS)]
            return all(state is not None and state.leader != NO_LEADER for state in states)

        with trio.fail_after(20):
            await server.core.publisher.wait_for(have_leaders)
        assert [await write(server, index) for index in range(PARTITIONS)] == [errors.NONE] * 8
        logs = parts_of(server).replicas.partitions
        assert [logs.get("t", n).log.end_offset for n in range(PARTITIONS)] == [2] * PARTITIONS


@attrs.define(eq=False)
class Reports:
    """The broker epochs in reports of directories; a context counts those sent meanwhile."""

    epochs: list[int] = attrs.field(factory=list)
    _answered: trio.Event = attrs.field(factory=trio.Event)

    @asynccontextmanager
    async def record(self) -> AsyncIterator[None]:
        original = BrokerHalf._assign_directories

        async def assign(
            half: BrokerHalf, request: AssignReplicasToDirsRequest
        ) -> AssignReplicasToDirsResponse:
            self.epochs.append(request.broker_epoch)
            response = await original(half, request)
            self._answered.set()
            return response

        self._answered = trio.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BrokerHalf, "_assign_directories", assign)
            yield

    async def wait_answered(self) -> None:
        """Wait until the controller has accepted a report, and what it decided is in force."""
        with trio.fail_after(60):
            await self._answered.wait()
            await trio.testing.wait_all_tasks_blocked(0.1)


async def test_directories_are_reported_by_a_registered_broker(tmp_path: Path) -> None:
    """A controller rejects the report of a broker that has no epoch yet, and answers it late."""
    paths = [str(tmp_path / name) for name in ("a", "b")]
    metadata = str(tmp_path / "metadata")
    async with running(tmp_path, log_dirs=",".join(paths), metadata_log_dir=metadata) as server:
        await create(server, "t", partitions=PARTITIONS)
    reports = Reports()
    async with (
        reports.record(),
        running(tmp_path, log_dirs=paths[0], metadata_log_dir=metadata) as server,
    ):
        await reports.wait_answered()
        assert set(reports.epochs) == {server.core.publisher.image.brokers[1].epoch}


async def test_controller_learns_that_the_source_of_a_move_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the metadata name the target; the replica counts as online there."""
    paths = [tmp_path / name for name in ("a", "b")]
    settings = {
        "log_dirs": ",".join(map(str, paths)),
        "metadata_log_dir": str(tmp_path / "metadata"),
    }

    async def never(move: LogMove) -> bool:
        await trio.sleep_forever()
        return False

    monkeypatch.setattr(LogMove, "switch", never)
    async with running(tmp_path, **settings) as server:
        await create(server, "t")
        assert await write(server, 0) == errors.NONE
        log = parts_of(server).replicas.partitions.get("t", 0).log
        first, second = server.core.logs.directories
        source, target = (first, second) if log.disk is first.disk else (second, first)
        server.core.logs.moves.request(log, target)

        async def wait_replica(directory_id: bytes, leader: int) -> None:
            def is_there(image: MetadataImage) -> bool:
                topic = image.topic("t")
                assert topic is not None
                partition = topic.partitions[0]
                return (partition.directory(1), partition.leader) == (directory_id, leader)

            await server.core.publisher.wait_for(is_there)

        with trio.fail_after(60):
            await wait_replica(target.directory_id, 1)
            fail(source)
            await wait_replica(source.directory_id, NO_LEADER)


async def write(server: Server, index: int, topic_name: str = "t") -> int:
    """Append a record to a partition of a topic; return the error code."""
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=index, records=one_batch())
    topic = data(name=topic_name, partition_data=[partition])
    async with await TrioWireClient.connect(*server.address) as client:
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
        response = await client.call(request, 9)
    code: int = response.responses[0].partition_responses[0].error_code
    return code
