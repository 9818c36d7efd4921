"""A node is an object: several live in one process, one after the other or side by side."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from kwire.codec.messages.describe_cluster import DescribeClusterRequest
from kwire.codec.messages.elect_leaders import ElectLeadersRequest
from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import TOPIC
from kwire.log.config import LogConfig
from kwire.log.disk import RealDisk
from kwire.log.manager import LogManager
from kwire.net.server import NetServer
from kwire.node.server import Server, format_node
from kwire.raftmeta.controller.partitions import UNCLEAN
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import MetadataDelta
from kwire.storage_format.directories import CannotOpenError
from kwire.testing.wire import TrioWireClient
from kwire.types import NO_LEADER, uuid_text
from tests.support.log.batches import old_format_segment
from tests.support.server.nodes import config, create, new_node, parts_of, running, topics

pytestmark = pytest.mark.slow


async def test_two_nodes_in_one_process_share_no_topics(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        assert await create(first, "of-one") == 0
        assert await topics(first) == {"of-one"}
        assert await topics(second) == set()


async def test_restarted_node_has_its_data(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        cluster = node.core.identity.cluster_id
        assert await create(node, "kept", 3) == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    async with running(tmp_path) as node:
        assert await topics(node) == {"kept"}
        assert node.core.identity.cluster_id == cluster


async def test_directory_is_locked_by_one_node(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        with pytest.raises(CannotOpenError, match="is locked by another broker"):
            new_node(config(tmp_path))
        assert await create(node, "still-served") == 0
    async with running(tmp_path) as node:
        assert await topics(node) == {"still-served"}


async def test_metadata_log_may_have_a_directory_of_its_own(tmp_path: Path) -> None:
    """No partition is placed in that directory."""
    data, metadata = tmp_path / "data", tmp_path / "metadata"
    async with running(data, metadata_log_dir=str(metadata)) as node:
        assert await create(node, "t", 8) == 0
        assert [str(data)] == [directory.name for directory in node.core.logs.directories]
        (broker,) = node.core.publisher.image.brokers.values()
        assert broker.log_dirs == (node.core.identity.directories[str(data)],)
        with pytest.raises(CannotOpenError, match="is locked by another broker"):
            new_node(config(tmp_path / "other", metadata_log_dir=str(metadata)))
    assert len(list(data.glob("t-*"))) == 8
    assert list(metadata.glob("t-*")) == []
    assert (metadata / "__cluster_metadata-0").exists()
    async with running(data, metadata_log_dir=str(metadata)) as node:
        assert await topics(node) == {"t"}


async def test_broker_leads_again_after_its_only_log_directory_was_replaced(tmp_path: Path) -> None:
    """The new disk has a new directory id; the metadata have the lost one for its replicas.

    Their records count as lost only once an operator elects leaders.
    """
    data, metadata = tmp_path / "data", str(tmp_path / "metadata")

    def has_leaders(image: MetadataImage) -> bool:
        states = [image.partition("t", index) for index in range(2)]
        return all(state is not None and state.leader != NO_LEADER for state in states)

    async with running(data, metadata_log_dir=metadata) as node:
        assert await create(node, "t", 2) == 0
    shutil.rmtree(data)
    async with running(data, metadata_log_dir=metadata) as node:
        directory_id = node.core.identity.directories[str(data)]

        def are_on_the_new_disk(image: MetadataImage) -> bool:
            states = [image.partition("t", index) for index in range(2)]
            return all(state and state.directories == (directory_id,) for state in states)

        assert not has_leaders(node.core.publisher.image)
        async with await TrioWireClient.connect(*node.address) as client:
            await client.call(ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=None), 2)
        with trio.fail_after(20):
            await node.core.publisher.wait_for(has_leaders)
            await node.core.publisher.wait_for(are_on_the_new_disk)


async def test_controller_moves_leaders_off_a_failed_directory(tmp_path: Path) -> None:
    """Invariant 89: also in a node without heartbeats, since its controller is its own."""
    data, other = tmp_path / "data", tmp_path / "other"
    async with running(data, log_dirs=f"{data},{other}") as node:
        core = node.core
        first, second = core.logs.directories
        broker = core.publisher.image.brokers[1]
        assert set(broker.log_dirs) == {first.directory_id, second.directory_id}
        assert isinstance(second.disk, RealDisk)
        second.disk.judge(OSError(errno.EIO, "broken"))
        assert second.note_failure()
        with trio.fail_after(20):
            await core.publisher.wait_for(
                lambda image: image.brokers[1].log_dirs == (first.directory_id,)
            )
        assert not core.publisher.image.brokers[1].fenced
        assert await create(node, "t", 4) == 0


async def test_damaged_partition_leaves_the_others_available(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        for topic in ("good", "bad"):
            assert await create(node, topic) == 0
    (tmp_path / ".kafka_cleanshutdown").unlink()
    segment = tmp_path / "bad-0" / "00000000000000000000.log"
    segment.write_bytes(old_format_segment())
    async with running(tmp_path) as node:
        assert await topics(node) == {"good", "bad"}
        assert node.core.logs.get("good", 0) is not None
        assert node.core.logs.get("bad", 0) is None
        assert await create(node, "new") == 0
    assert segment.read_bytes() == old_format_segment()


async def test_node_whose_address_is_in_use_releases_its_directory(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as first:
        taken = f"PLAINTEXT://127.0.0.1:{first.address[1]},CONTROLLER://127.0.0.1:0"
        with pytest.raises(CannotOpenError, match="cannot listen"):
            new_node(config(tmp_path / "b", listeners=taken))
    async with running(tmp_path / "b") as node:
        assert await topics(node) == set()


@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        ("fe80::1", "; name the interface of a link-local address, as in [fe80::1%eth0]"),
        ("fe80::1%eth7", ""),
        ("::1", ""),
        ("127.0.0.1", ""),
    ],
)
async def test_link_local_address_without_interface_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, remedy: str
) -> None:
    def bind(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(NetServer, "bind", bind)
    address = f"[{host}]" if ":" in host else host
    listeners = f"PLAINTEXT://{address}:0,CONTROLLER://127.0.0.1:0"
    with pytest.raises(CannotOpenError) as caught:
        new_node(config(tmp_path, listeners=listeners))
    assert str(caught.value).endswith(f"Invalid argument{remedy}")


@pytest.mark.parametrize("others", [True, False])
async def test_node_started_without_the_config_of_its_quorum_warns_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, others: bool
) -> None:
    directory_ids = [uuid_text(bytes([number]) * 16) for number in (1, 2)]
    voters = ",".join(f"{n}@127.0.0.1:{n}:{uuid}" for n, uuid in enumerate(directory_ids, 1))
    alone = config(tmp_path)
    list(format_node(alone, uuid_text(bytes([3]) * 16), False, how=voters if others else "none"))
    server = new_node(alone)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        with trio.fail_after(4):
            while not caplog.messages:  # noqa: ASYNC110
                await trio.sleep(0.01)
        server.stop()
    (line,) = [text for text in caplog.messages if "waiting" in text]
    named = "voters=1@127.0.0.1:1,2@127.0.0.1:2:" if others else "voters=none:"
    assert named in line
    assert str(tmp_path) in line
    assert "--config FILE" in line


async def test_node_that_waits_for_its_quorum_refuses_clients(tmp_path: Path) -> None:
    """A client that connected would wait for it, although other brokers could answer."""
    waiting = config(tmp_path)
    list(format_node(waiting, uuid_text(bytes([3]) * 16), False, how="none"))
    server = new_node(waiting)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        (controllers,) = server.core.controller_listeners
        with trio.fail_after(20):
            await _connect_eventually(controllers.host, controllers.port)
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream(*server.address)
        server.stop()


async def test_only_controller_answers_other_nodes_while_its_logs_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers whose connections it refused would take it for ended, and lead on."""
    may_open, opened = trio.Event(), LogManager.open

    async def open_late(logs: LogManager, configs: Callable[[str], LogConfig]) -> None:
        await may_open.wait()
        await opened(logs, configs)

    monkeypatch.setattr(LogManager, "open", open_late)
    server = new_node(config(tmp_path))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        (controllers,) = server.core.controller_listeners
        with trio.fail_after(20):
            await _connect_eventually(controllers.host, controllers.port)
            client = await TrioWireClient.connect(controllers.host, controllers.port)
            async with client:
                answer = await client.call(
                    DescribeClusterRequest(
                        endpoint_type=2, include_cluster_authorized_operations=False
                    ),
                    1,
                )
        assert answer.controller_id == 1
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream(*server.address)
        may_open.set()
        with trio.fail_after(20):
            await server.ready.wait()
        server.stop()


async def _connect_eventually(host: str, port: int) -> None:
    """Wait until a connection is accepted."""
    while True:
        try:
            await (await trio.open_tcp_stream(host, port)).aclose()
            return
        except OSError:
            await trio.sleep(0.01)


async def test_second_node_at_an_address_ends_with_the_reason(tmp_path: Path) -> None:
    """Both bound the address before either listened."""
    first = new_node(config(tmp_path / "a"))
    taken = f"PLAINTEXT://127.0.0.1:{first.address.port},CONTROLLER://127.0.0.1:0"
    nodes = [first, new_node(config(tmp_path / "b", listeners=taken))]
    async with trio.open_nursery() as nursery:
        await nursery.start(nodes[0].run)
        with pytest.raises(ExceptionGroup) as caught:
            await nodes[1].run()
        assert caught.group_contains(CannotOpenError, match="cannot listen on")
        nodes[0].stop()


async def test_node_starts_from_its_metadata_snapshot(tmp_path: Path) -> None:
    small = {"metadata_log_max_record_bytes_between_snapshots": "3000"}
    names = {f"topic-{number}" for number in range(60)}
    async with running(tmp_path, **small) as node:
        for name in sorted(names):
            assert await create(node, name) == 0
    metadata = tmp_path / "__cluster_metadata-0"
    snapshots = sorted(metadata.glob("*.checkpoint"))
    # A stop makes one more snapshot, and may not wait until what that replaces is removed.
    assert 2 <= len(snapshots) <= 3
    assert snapshots[-2].name > "00000000000000000100"
    async with running(tmp_path, **small) as node:
        assert await topics(node) == names
    assert not (metadata / "00000000000000000000.log").exists()


async def test_partitions_follow_no_setting_that_overtakes_their_roles(tmp_path: Path) -> None:
    """Invariants 22 and 29: a leader that is about to be replaced may commit nothing by it."""
    async with running(tmp_path) as server, trio.open_nursery() as nursery:
        assert await create(server, "t") == 0
        publisher, partitions = server.core.publisher, parts_of(server).replicas.partitions
        reached, released = trio.Event(), trio.Event()

        async def wait_released(delta: MetadataDelta) -> None:
            reached.set()
            await released.wait()

        publisher.add_applier(wait_released)
        nursery.start_soon(create, server, "u")
        await reached.wait()
        nursery.start_soon(set_minimum, server, "t", 2)
        with trio.fail_after(300):
            while not publisher.image.config(TOPIC, "t"):  # noqa: ASYNC110 - nothing notifies
                await trio.sleep(0.01)
        assert partitions.configs("t").min_insync_replicas == 1
        released.set()
        await publisher.wait_applied(publisher.image.applied.offset)
        assert partitions.configs("t").min_insync_replicas == 2


async def set_minimum(server: Server, topic: str, minimum: int) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    setting = resource.AlterableConfig(
        name="min.insync.replicas", config_operation=0, value=str(minimum)
    )
    change = resource(resource_type=TOPIC, resource_name=topic, configs=[setting])
    request = IncrementalAlterConfigsRequest(resources=[change], validate_only=False)
    async with await TrioWireClient.connect(*server.address) as client:
        (answer,) = (await client.call(request, 1)).responses
    assert answer.error_code == 0, answer.error_message
