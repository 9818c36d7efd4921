"""Damage that a broker has found is known to its next run."""

import os
from pathlib import Path

import pytest
import trio

from kwire.codec.messages.produce import ProduceRequest
from kwire.errors import KafkaStorageError
from kwire.log.directories.segment_checker import ProcessChecker
from kwire.log.disk import RealDisk
from kwire.log.formats.names import KNOWN_DAMAGE
from kwire.node.server import Server
from kwire.testing.wire import TrioWireClient
from tests.support.handlers.broker import one_batch
from tests.support.log.batches import TIME_MS
from tests.support.server.nodes import create, parts_of, running

pytestmark = pytest.mark.slow
SETTINGS = {"kwire_scrub_interval_ms": "1000000000"}


async def produce(server: Server) -> None:
    data = ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=one_batch())
    topic = data(name="t", partition_data=[partition])
    async with await TrioWireClient.connect(*server.address) as client:
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
        response = await client.call(request, 9)
    assert response.responses[0].partition_responses[0].error_code == 0


async def test_broker_does_not_serve_damage_that_its_last_run_has_found(tmp_path: Path) -> None:
    """Invariant 80."""
    data = tmp_path / "data"
    async with running(data, **SETTINGS) as server:
        assert await create(server, "t") == 0
        for _ in range(2):
            await produce(server)
            parts_of(server).replicas.partitions.get("t", 0).log.roll(TIME_MS)
        log = parts_of(server).replicas.partitions.get("t", 0).log
        await server.core.logs.flush(log, indexes=True)
        path = data / log.segments[0].file.path
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert server.broker is not None
        assert server.broker.scrubbing is not None
        (scrub,) = server.broker.scrubbing.scrubber.scrubs
        checker = ProcessChecker()
        await scrub.run_pass(checker)
        await checker.close()
        with trio.fail_after(60):
            while not os.path.exists(data / KNOWN_DAMAGE):  # noqa: ASYNC110, ASYNC240
                await trio.sleep(0.05)
    async with running(data, **SETTINGS) as server:
        log = parts_of(server).replicas.partitions.get("t", 0).log
        assert isinstance(log.disk, RealDisk)
        with pytest.raises(KafkaStorageError):
            log.read(0, 1, end_offset=2)
        log.read(1, 1, end_offset=2).close()
