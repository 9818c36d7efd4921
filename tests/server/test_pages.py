"""Pages of ``--metrics-port`` on a whole node, and the address that they are served on."""

import platform
from pathlib import Path

import pytest
import trio

from kwire import __version__
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.node.run import show
from kwire.node.server import Server
from kwire.records.build import New, batch
from kwire.testing.wire import TrioWireClient
from tests.support.server.nodes import config, create, new_node


async def ask(port: int, path: str) -> tuple[str, str]:
    """Return the status and the body of a page."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        answer = b"".join([part async for part in stream]).decode()
    head, _, body = answer.partition("\r\n\r\n")
    return head.split()[1], body


async def commit(server: Server, group: str, topic: str, records: int, offset: int) -> None:
    """Produce records to the first partition of a topic, and commit an offset for it."""
    async with await TrioWireClient.connect(*server.address) as client:
        data = batch([New(None, b"x")] * records, timestamp_ms=1)
        produced = ProduceRequest.TopicProduceData
        part = produced.PartitionProduceData(index=0, records=data)
        topic_data = produced(name=topic, partition_data=[part])
        response = await client.call(
            ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic_data]), 9
        )
        assert response.responses[0].partition_responses[0].error_code == 0
        find_coordinator = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        for _ in range(500):
            if not (await client.call(find_coordinator, 4)).coordinators[0].error_code:
                break
            await trio.sleep(0.01)
        spot = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = spot.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[spot(name=topic, partitions=[partition])],
        )
        for _ in range(500):
            committed = await client.call(request, 8)
            if not committed.topics[0].partitions[0].error_code:
                break
            await trio.sleep(0.01)
        assert committed.topics[0].partitions[0].error_code == 0


@pytest.mark.slow
async def test_metrics_pages_are_on_the_host_of_the_client_listener(tmp_path: Path) -> None:
    once = {"offsets_topic_num_partitions": "1", "offsets_topic_replication_factor": "1"}
    server = new_node(config(tmp_path / "data", **once))
    async with trio.open_nursery() as nursery:
        port = await show(nursery, server, None, 0)
        assert await ask(port, "/livez") == ("200", "ok\n")
        assert await ask(port, "/readyz") == ("503", "starting\n")
        await nursery.start(server.run)
        assert await ask(port, "/readyz") == ("200", "ok\n")
        assert (await ask(port, "/"))[0] == "404"
        with pytest.raises(OSError, match="connect"):  # on no other address of this machine
            await trio.open_tcp_stream("127.0.0.2", port)
        assert await create(server, "t", 1) == 0
        await commit(server, "g", "t", records=5, offset=3)
        status, text = await ask(port, "/metrics")
        assert status == "200"
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        assert float(values['kafka_consumergroup_lag{group="g",topic="t",partition="0"}']) == 2
        offset = 'kafka_consumergroup_current_offset{group="g",topic="t",partition="0"}'
        assert float(values[offset]) == 3
        python = platform.python_version()
        assert f'kwire_build_info{{version="{__version__}",python="{python}"}}' in values
        directory = f'{{directory="{tmp_path / "data"}"}}'
        assert float(values[f"kwire_log_directory_free_bytes{directory}"]) > 0
        for name in (
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_cpu_seconds_total",
        ):
            assert float(values[name]) > 0, name
        now = server.core.clock.now_ms() / 1000
        assert now - 3600 < float(values["process_start_time_seconds"]) < now
        assert float(values["kwire_loop_delay_seconds"]) >= 0
        server.stop()
        assert await ask(port, "/readyz") == ("503", "stopping\n")
        nursery.cancel_scope.cancel()
