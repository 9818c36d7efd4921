"""Settings of compaction that are changed while a broker runs."""

from pathlib import Path

import pytest
import trio

from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.resource_types import BROKER, TOPIC
from kwire.log.partition_log import PartitionLog
from kwire.node.server import Server
from kwire.testing.wire import TrioWireClient
from tests.support.log.batches import TIME_MS
from tests.support.log.key_logs import put, table
from tests.support.server.nodes import create, parts_of, running

pytestmark = pytest.mark.slow


async def alter(server: Server, resource_type: int, name: str, **settings: str) -> None:
    """Change settings, and wait until the broker applies them."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in settings.items()
    ]
    change = resource(resource_type=resource_type, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[change], validate_only=False)
    async with await TrioWireClient.connect(*server.address) as client:
        (answer,) = (await client.call(request, 1)).responses
    assert answer.error_code == 0, answer.error_message
    await server.core.publisher.wait_applied(server.core.quorum.next_offset - 1)


async def compacted_log(server: Server) -> PartitionLog:
    """Create a compacted topic, and return its log with closed segments."""
    assert await create(server, "t") == 0
    await alter(server, TOPIC, "t", cleanup_policy="compact", segment_ms="1")
    log = parts_of(server).replicas.partitions.get("t", 0).log
    for number in range(20):
        put(log, b"key%d" % (number % 3), b"value %d" % number)
        log.roll(TIME_MS)
    return log


async def wait_clean(log: PartitionLog) -> None:
    log.high_watermark = log.end_offset
    before = table(log)
    log.clean_state.on_change()
    with trio.fail_after(300):
        while log.clean_state.clean_end is None:  # noqa: ASYNC110 - the process gives no event
            await trio.sleep(0.05)
    assert table(log) == before


async def test_passes_use_settings_that_changed_while_the_broker_runs(tmp_path: Path) -> None:
    async with running(tmp_path, log_cleaner_threads="1") as server:
        await alter(server, BROKER, "", log_cleaner_backoff_ms="0")
        log = await compacted_log(server)
        await wait_clean(log)
        cleaner = server.core.logs.cleaner
        assert cleaner is not None
        await alter(
            server,
            BROKER,
            "1",
            log_cleaner_threads="2",
            log_cleaner_io_max_bytes_per_second="1000000",
            log_cleaner_dedupe_buffer_size="8388608",
            log_cleaner_io_buffer_size="131072",
            log_cleaner_io_buffer_load_factor="0.5",
        )
        settings = cleaner.settings
        with trio.fail_after(300):  # The answer does not wait for the restart of the workers.
            while len(cleaner.workers) != 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert settings.bytes_per_second == 1_000_000
        assert settings.worker_map_bytes == 4 << 20
        assert settings.worker_buffer_bytes == 32 << 10
        assert settings.load_factor == 0.5


async def test_lags_of_the_broker_reach_logs_that_are_open(tmp_path: Path) -> None:
    async with running(tmp_path, log_cleaner_min_compaction_lag_ms="86400000") as server:
        log = await compacted_log(server)
        assert log.config.min_compaction_lag_ms == 86_400_000
        await alter(
            server,
            BROKER,
            "",
            log_cleaner_min_compaction_lag_ms="5",
            log_cleaner_max_compaction_lag_ms="3600000",
            log_cleaner_delete_retention_ms="7",
            log_cleaner_min_cleanable_ratio="0.25",
        )
        config = log.config
        assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (5, 3_600_000)
        assert (config.delete_retention_ms, config.min_cleanable_dirty_ratio) == (7, 0.25)
