"""Nodes whose log directories fail while they run."""

from pathlib import Path

import pytest
import trio

from kwire.errors import KafkaStorageError
from kwire.log.directories.directory import LogDirectory
from kwire.node.run import leaves
from tests.support.server.nodes import running

pytestmark = pytest.mark.slow


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
