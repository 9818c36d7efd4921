"""Data that a simulated disk loses with the power, and keeps when only the process dies."""

import errno
from random import Random

import pytest

from kwire.log.partition_log import create
from kwire.log.recovery import StoredOffsets, open_log
from kwire.types import TopicPartition
from simulation.disk import SimDisk
from simulation.inodes import PAGE
from tests.support.log.batches import TIME_MS, append

SEEDS = range(60)


def after_power_loss(disk: SimDisk) -> list[dict[str, bytes]]:
    """Return the files after a power loss, for each seed."""
    lost = [disk.power_loss(Random(seed)) for seed in SEEDS]
    return [{name: bytes(inode.data) for name, inode in disk.files.items()} for disk in lost]


def test_unsynced_overwrite_may_be_lost_or_partial() -> None:
    disk = SimDisk()
    disk.write("epochs", b"a" * PAGE * 2)
    disk.sync("epochs")
    disk.sync_directory()
    disk.write("epochs", b"b" * PAGE * 3)
    survivors = {files["epochs"][::PAGE] for files in after_power_loss(disk)}
    assert {b"aa", b"bbb", b"ab", b"ba"} <= survivors
    disk.write("epochs", b"c")
    disk.sync("epochs")
    assert {files["epochs"] for files in after_power_loss(disk)} == {b"c"}


def test_sync_of_a_directory_keeps_its_own_names() -> None:
    disk = SimDisk()
    for name in ("t-0", "t-1"):
        disk.make_directory(name)
        disk.write(f"{name}/log", b"1")
        disk.sync(f"{name}/log")
    disk.sync_directory("t-0")
    survivors = {tuple(sorted(files)) for files in after_power_loss(disk)}
    assert () in survivors, "the directories themselves were not synced"
    disk.sync_directory()
    survivors = {tuple(sorted(files)) for files in after_power_loss(disk)}
    assert survivors == {("t-0/log",), ("t-0/log", "t-1/log")}


def test_rename_and_removal_are_undone_unless_synced() -> None:
    disk = SimDisk()
    disk.write("a", b"a")
    disk.write("b", b"b")
    disk.sync("a")
    disk.sync("b")
    disk.sync_directory()
    disk.rename("a", "c")
    disk.remove("b")
    survivors = {tuple(sorted(files)) for files in after_power_loss(disk)}
    assert survivors == {("a", "b"), ("b", "c"), ("c",)}
    disk.sync_directory()
    assert {tuple(files) for files in after_power_loss(disk)} == {("c",)}


def test_file_synced_through_its_descriptor_is_synced_under_its_new_name() -> None:
    disk = SimDisk()
    disk.make_directory("t-0")
    file = disk.open("t-0/log", create=True)
    file.write([b"1"], 0)
    disk.rename("t-0", "t-0.x-delete")
    file.sync()
    disk.sync_directory("t-0.x-delete")
    disk.sync_directory()
    assert after_power_loss(disk) == [{"t-0.x-delete/log": b"1"}] * len(SEEDS)


def test_replaced_file_is_the_old_or_the_new_one() -> None:
    disk = SimDisk()
    disk.replace("meta", b"old", sync=True)
    disk.fail_at("sync_directory", OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        disk.replace("meta", b"newer", sync=True)
    assert {files["meta"] for files in after_power_loss(disk)} == {b"old", b"newer"}


def test_power_loss_leaves_the_disk_of_the_running_process_alone() -> None:
    disk = SimDisk()
    disk.write("a", b"1" * PAGE)
    disk.power_loss(Random(1)).write("a", b"2")
    assert disk.read("a") == b"1" * PAGE


def test_full_disk_is_full_for_the_next_process_too() -> None:
    disk = SimDisk(capacity=10)
    disk.write("a", b"12345678")
    after = disk.after_kill()
    with pytest.raises(OSError, match="space"):
        after.write("b", b"123")
    after = disk.after_kill()
    after.remove("a")
    after.write("b", b"123")


def test_space_of_removed_file_is_taken_while_it_is_open() -> None:
    disk = SimDisk(capacity=10)
    disk.write("a", b"12345678")
    file = disk.open("a")
    file.pin()
    disk.remove("a")
    assert disk.space().usable == 2
    file.close()
    assert disk.space().usable == 2
    file.unpin()
    assert disk.space().usable == 10


def test_flipped_bit_stays_flipped() -> None:
    disk = SimDisk()
    disk.write("a", b"\1\2\3")
    disk.sync("a")
    disk.sync_directory()
    disk.rot("a", 1)
    assert disk.read("a") == b"\1\3\3"
    assert disk.power_loss(Random(1)).read("a") == b"\1\3\3"


@pytest.mark.parametrize("seed", SEEDS)
def test_first_flush_syncs_the_directory_of_the_partition(seed: int) -> None:
    """Invariant 78: a flushed record survives although its directory is new."""
    disk = SimDisk()
    disk.make_directory("t-0")
    at = TopicPartition("t", 0)
    log = create(disk, "t-0", at, now_ms=TIME_MS)
    append(log, [b"v"])
    log.flush_state.flush()
    after = disk.power_loss(Random(seed))
    offsets = StoredOffsets(recovery_point=1)
    assert open_log(after, "t-0", at, now_ms=TIME_MS, offsets=offsets).end_offset == 1
