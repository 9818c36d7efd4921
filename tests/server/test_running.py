"""One node until a signal: its errors for a full disk, missing locks and an id in use."""

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from kwire.errors import DuplicateBrokerRegistration, KafkaError, UnsupportedVersion
from kwire.log.disk import RealDisk
from kwire.node.run import StopSignals, leaves, run_until_signal
from kwire.raftmeta.broker.lifecycle import BrokerLifecycle
from kwire.raftmeta.storage.disk_storage import DiskStorage
from kwire.storage_format.directories import CannotOpenError
from tests.support.log.batches import append
from tests.support.server.nodes import config, create, parts_of, running

pytestmark = pytest.mark.slow


def run(directory: Path) -> None:
    """Start a node, wait until it is ready, and stop it."""
    with StopSignals() as signals:
        run_until_signal(
            config(directory),
            signals,
            cluster_id=None,
            metrics_port=None,
            ready=lambda host, port: signal.raise_signal(signal.SIGTERM),
        )


def test_start_without_space_is_one_line_and_a_later_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)

    def replace(disk: RealDisk, path: str, data: object, *, sync: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(RealDisk, "replace", replace)
        with pytest.raises(CannotOpenError, match="No space left on device") as caught:
            run(tmp_path)
        assert "; make room, or name another directory in log.dirs" in str(caught.value)
        assert "\n" not in str(caught.value)
    run(tmp_path)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOLCK, "the file system has no file locks"),
        (errno.EOPNOTSUPP, "the file system has no file locks"),
        (errno.EAGAIN, "locked by another broker"),
        (errno.EACCES, "locked by another broker"),
    ],
)
def test_missing_file_locks_are_not_reported_as_another_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    """Invariant 92: without a lock the node does not start either."""

    def lock(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("kwire.log.directory_lock._lock", lock)
    with pytest.raises(CannotOpenError) as caught:
        run(tmp_path)
    assert reason in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_full_disk_at_any_write_of_the_first_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The next start, with space, succeeds on the directory."""
    replace, calls = RealDisk.replace, 0

    def failing(disk: RealDisk, path: str, data: Any, *, sync: bool) -> None:
        nonlocal calls
        calls += 1
        if calls >= nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(disk, path, data, sync=sync)

    with monkeypatch.context() as full:
        full.setattr(RealDisk, "replace", failing)
        with pytest.raises(CannotOpenError, match="No space left on device") as caught:
            run(tmp_path)
        assert "\n" not in str(caught.value)
    run(tmp_path)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_unwritable_data_directory_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def make_directory(disk: RealDisk, path: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(RealDisk, "make_directory", make_directory)
    with pytest.raises(CannotOpenError) as caught:
        run(tmp_path / "data")
    assert f"cannot use the data directory {tmp_path}/data: " in str(caught.value)
    assert "; make" in str(caught.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_stop_without_descriptors_ends_with_one_line_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The metadata log cannot be closed; the operator must raise a limit, not report a fault."""
    close = DiskStorage.close

    def close_without_descriptors(storage: DiskStorage) -> None:
        close(storage)
        raise OSError(number, os.strerror(number), "synced-end-offset.tmp")

    monkeypatch.setattr(DiskStorage, "close", close_without_descriptors)
    with pytest.raises(CannotOpenError, match="limit of open files") as caught:
        run(tmp_path)
    assert "\n" not in str(caught.value)


def test_unexpected_errors_keep_their_tracebacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(disk: RealDisk, path: str, data: object, *, sync: bool) -> None:
        raise ZeroDivisionError

    run(tmp_path)
    monkeypatch.setattr(RealDisk, "replace", replace)
    with pytest.raises(BaseExceptionGroup):
        run(tmp_path)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            DuplicateBrokerRegistration("Another broker has registered with the id 1 meanwhile."),
            "cannot continue: Another broker has",
        ),
        (UnsupportedVersion("Unable to register"), "cannot continue: Unable to register"),
    ],
)
def test_broker_that_no_controller_accepts_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: KafkaError, line: str
) -> None:
    """The broker that ends prints one line, without a traceback."""

    async def speak(lifecycle: BrokerLifecycle) -> None:
        raise error

    monkeypatch.setattr(BrokerLifecycle, "_exchange", speak)
    with pytest.raises(CannotOpenError, match=line) as caught:
        run(tmp_path)
    assert "\n" not in str(caught.value)


def test_partition_in_two_log_directories_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Apache Kafka does not start either: it cannot know which copy has all records.

    The metadata name the directory with the older copy.
    """
    first, other = tmp_path / "first", tmp_path / "other"
    both = f"{first},{other}"

    async def write() -> None:
        async with running(tmp_path, log_dirs=both) as server:
            await create(server, "t", partitions=2)
            append(parts_of(server).replicas.partitions.get("t", 0).log, [b"value"])

    trio.run(write)
    source, target = (first, other) if (first / "t-0").exists() else (other, first)
    shutil.copytree(source / "t-0", tmp_path / "older")
    trio.run(write)
    shutil.move(source / "t-0", target / "t-0")
    shutil.move(tmp_path / "older", source / "t-0")

    async def start() -> None:
        async with running(tmp_path, log_dirs=both):
            pass

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(start)
    (error,) = leaves(caught.value)
    assert isinstance(error, CannotOpenError)
    assert "partition t-0 is in several log directories: " in str(error)
    assert str(first) in str(error)
    assert str(other) in str(error)
    shutil.rmtree(target / "t-0")
    trio.run(start)
