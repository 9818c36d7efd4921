"""Starts of nodes whose data directories are named in odd ways, copied, damaged or incomplete."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kwire.configs.declare import ConfigError
from kwire.log.disk import Entry, RealDisk
from kwire.storage_format.directories import CannotOpenError
from tests.support.log.batches import append
from tests.support.server.nodes import config, create, new_node, parts_of, running, topics

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_formatted", [False, True])
async def test_metadata_directory_under_a_second_name_is_refused(
    tmp_path: Path, is_formatted: bool
) -> None:
    """The node would wait for its own lock."""
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    if is_formatted:
        async with running(data):
            pass
    with pytest.raises(ConfigError, match=rf"are the same; write metadata.log.dir={data}"):
        new_node(config(data, metadata_log_dir=str(link)))


async def test_copy_of_a_directory_is_refused_beside_it(tmp_path: Path) -> None:
    """Kafka refuses the second directory with the same directory.id too."""
    paths = [tmp_path / name for name in ("a", "b")]
    settings = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": str(tmp_path / "m")}
    async with running(tmp_path, **settings) as server:
        await create(server, "t")
    shutil.rmtree(paths[1])
    shutil.copytree(paths[0], paths[1])
    with pytest.raises(CannotOpenError, match=rf"{paths[1]} has the directory.id of {paths[0]}: "):
        new_node(config(tmp_path, **settings))


@pytest.mark.parametrize("call", ["make_directory", "lock"])
async def test_node_starts_without_a_directory_whose_disk_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    """Its partitions have no leader; those in the other directory have one."""
    paths = [tmp_path / name for name in ("a", "b")]
    settings = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": str(tmp_path / "m")}
    async with running(tmp_path, **settings) as server:
        await create(server, "t", partitions=4)
    if call == "make_directory":
        shutil.move(paths[1], tmp_path / "kept")
    fail_calls(monkeypatch, call, paths[1], errno.EIO)
    async with running(tmp_path, **settings) as server:
        (line,) = [line for line in caplog.messages if line.startswith("directory offline")]
        assert line.startswith(f"directory offline name={paths[1]} error=")
        assert server.core.logs.statistics()["offline_directories"] == 1
        topic = server.core.publisher.image.topic("t")
        assert topic is not None
        leaders = [partition.leader for partition in topic.partitions.values()]
        assert sorted(leaders) == [-1, -1, 1, 1]
    assert paths[1].exists() == (call == "lock"), "nothing is formatted in its place"


@pytest.mark.parametrize(
    ("name", "number"), [("m", errno.EIO), ("b", errno.EACCES), ("b", errno.ENOSPC)]
)
async def test_directory_that_cannot_be_used_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """The node needs its metadata log; the other errors are the operator's to correct."""
    paths = [tmp_path / name for name in ("a", "b")]
    settings = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": str(tmp_path / "m")}
    async with running(tmp_path, **settings):
        pass
    fail_calls(monkeypatch, "lock", tmp_path / name, number)
    with pytest.raises(CannotOpenError, match=rf"data directory {tmp_path / name}: .*; .*log.dirs"):
        new_node(config(tmp_path, **settings))


async def test_new_node_starts_in_the_root_of_a_new_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only root may read its folder `lost+found`."""
    (tmp_path / "data" / "lost+found").mkdir(parents=True)
    listing = RealDisk.listing

    def list_as_a_user(disk: RealDisk, path: str) -> Iterator[Entry]:
        if path == "lost+found":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return listing(disk, path)

    monkeypatch.setattr(RealDisk, "listing", list_as_a_user)
    async with running(tmp_path / "data") as server:
        await create(server, "t")


def fail_calls(monkeypatch: pytest.MonkeyPatch, call: str, root: Path, number: int) -> None:
    """Let a kind of call fail on the disk of one directory."""
    original = getattr(RealDisk, call)

    def failing(disk: RealDisk, path: str) -> object:
        if disk.root == str(root):
            raise OSError(number, os.strerror(number))
        return original(disk, path)

    monkeypatch.setattr(RealDisk, call, failing)


async def test_equal_copy_of_a_partition_is_set_aside(tmp_path: Path) -> None:
    """A directory was missing while its replica was copied anew from an idle leader."""
    paths = [tmp_path / name for name in ("a", "b")]
    settings = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": str(tmp_path / "m")}
    async with running(tmp_path, **settings) as server:
        await create(server, "t")
        append(parts_of(server).replicas.partitions.get("t", 0).log, [b"value"])
    source, target = paths if (paths[0] / "t-0").exists() else reversed(paths)
    shutil.copytree(source / "t-0", target / "t-0")
    async with running(tmp_path, **settings) as server:
        log = parts_of(server).replicas.partitions.get("t", 0).log
        assert (log.end_offset, str(log.disk)) == (1, str(source))
    assert len(list(target.glob("t-0.*-stray/*.log"))) == 1, "nothing is removed"


def remove_log(metadata: Path) -> None:
    for path in metadata.glob("*.log"):
        path.unlink()


def empty_log(metadata: Path) -> None:
    """Leave an empty segment; a snapshot may have begun another one."""
    first, *others = sorted(metadata.glob("*.log"))
    first.write_bytes(b"")
    for path in others:
        path.unlink()


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize(
    ("lose", "reason"),
    [
        (remove_log, "the files of the metadata log are missing; restore the directory"),
        (empty_log, r"the metadata log ends at offset \d+, but it had|end of a segment lost"),
    ],
)
async def test_lone_node_without_its_metadata_log_is_refused(
    tmp_path: Path, lose: Callable[[Path], None], reason: str, has_snapshot: bool
) -> None:
    """Kafka starts without a word, with the metadata of the snapshot or with none.

    The error tells how an operator can begin with the snapshot.
    """
    bytes_between = "3000" if has_snapshot else "100000000"
    settings = {"metadata_log_max_record_bytes_between_snapshots": bytes_between}
    async with running(tmp_path, **settings) as server:
        for number in range(30):
            await create(server, f"t{number}")
    metadata = tmp_path / "__cluster_metadata-0"
    snapshots = [path for path in metadata.glob("*.checkpoint") if not is_first(path)]
    assert bool(snapshots) == has_snapshot
    lose(metadata)
    for _ in range(2):  # The second start is not easier than the first.
        with pytest.raises(CannotOpenError, match=reason):
            new_node(config(tmp_path, **settings))
    if has_snapshot:
        (metadata / "quorum-state").unlink()
        (metadata / "synced-end-offset").unlink()
        async with running(tmp_path, **settings) as server:
            assert "t0" in await topics(server)


def is_first(path: Path) -> bool:
    """Return whether a snapshot is the one that the formatting of the directory writes."""
    return path.name.startswith("0" * 20)
