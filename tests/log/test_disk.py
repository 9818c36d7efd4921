"""The conformance tests of a disk, for the real and the simulated one."""

import errno
import os
import sys
from random import Random

import pytest

from kwire.log import directory_lock
from kwire.log.descriptors import Descriptors, raise_descriptor_limit
from kwire.log.directory_lock import AlreadyLocked
from kwire.log.disk import Disk, File, RealDisk
from simulation.disk import Killed, SimDisk, SimFile
from simulation.inodes import PAGE


@pytest.fixture(params=["real", "simulated"])
def disk(request, tmp_path) -> Disk:
    return (
        RealDisk(str(tmp_path), descriptors=Descriptors(3))
        if request.param == "real"
        else SimDisk(descriptors=Descriptors(3))
    )


def test_file_is_written_and_read_at_positions(disk: Disk) -> None:
    disk.make_directory("t-0")
    file = disk.open("t-0/a.log", create=True)
    file.write([b"hello ", memoryview(b"world")], 0)
    file.write([b"W"], 6)
    assert file.read(0, 100) == b"hello World"
    assert file.read(6, 3) == b"Wor"
    assert file.read(11, 5) == b""
    assert file.size() == 11
    file.truncate(5)
    file.truncate(7)
    assert disk.read("t-0/a.log") == b"hello\0\0"
    file.sync()
    assert not disk.slow
    assert disk.failed is None


def test_gathered_write_may_have_thousands_of_parts(disk: Disk) -> None:
    file = disk.open("a", create=True)
    parts = [bytes([n % 251]) * 3 for n in range(2500)]
    file.write(parts, 10)
    assert file.read(10, 1 << 20) == b"".join(parts)
    assert file.read(0, 10) == bytes(10)


def test_preallocation_does_not_change_the_size(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.write([b"x" * 100], 0)
    file.allocate(100, 1 << 20)
    assert file.size() == 100
    file.truncate(100)
    assert file.read(0, 1000) == b"x" * 100


def test_time_of_modification_can_be_set(disk: Disk) -> None:
    disk.write("a", b"1")
    disk.set_modified("a", 1_600_000_000_123)
    assert [(e.name, e.modified_ms) for e in disk.entries()] == [("a", 1_600_000_000_123)]
    with pytest.raises(FileNotFoundError):
        disk.set_modified("b", 1_600_000_000_123)


def test_files_and_directories_are_listed_renamed_and_removed(disk: Disk) -> None:
    disk.make_directory("t-0")
    disk.write("t-0/one", b"1")
    disk.write("t-0/two", b"22")
    assert sorted((e.name, e.size, e.is_directory) for e in disk.entries("t-0")) == [
        ("one", 1, False),
        ("two", 2, False),
    ]
    assert [(e.name, e.is_directory) for e in disk.entries()] == [("t-0", True)]
    disk.rename("t-0/one", "t-0/two")
    assert disk.read("t-0/two") == b"1"
    disk.rename("t-0", "t-0.x-delete")
    assert disk.read("t-0.x-delete/two") == b"1"
    disk.remove("t-0.x-delete/two")
    disk.remove("t-0.x-delete/two")
    disk.remove_tree("t-0.x-delete")
    assert disk.entries() == []
    with pytest.raises(FileNotFoundError):
        disk.entries("t-0")
    with pytest.raises(FileNotFoundError):
        disk.read("t-0/two")
    with pytest.raises(FileNotFoundError):
        disk.open("nowhere/x", create=True)


@pytest.mark.parametrize("sync", [False, True])
def test_replace_leaves_no_temporary_file(disk: Disk, sync: bool) -> None:
    disk.replace("meta", b"old", sync=sync)
    disk.replace("meta", b"x" * 100_000, sync=sync)
    disk.replace("meta", b"new", sync=sync)
    assert disk.read("meta") == b"new"
    assert [e.name for e in disk.entries()] == ["meta"]


def test_pinned_file_can_be_read_after_its_removal(disk: Disk) -> None:
    file = disk.open("a", create=True)
    file.write([b"still here"], 0)
    file.pin()
    disk.remove("a")
    file.close()
    assert file.read(0, 100) == b"still here"
    file.unpin()
    with pytest.raises(FileNotFoundError):
        file.read(0, 1)


def test_files_beyond_the_descriptor_limit_are_usable(disk: Disk) -> None:
    files = [disk.open(str(n), create=True) for n in range(10)]
    for n, file in enumerate(files):
        file.write([b"%d" % n], 0)
    assert [file.read(0, 9) for file in files] == [b"%d" % n for n in range(10)]


def test_second_lock_is_refused_until_the_first_is_released(disk: Disk) -> None:
    """Invariant 92: two processes on one directory; the second refuses."""
    lock = disk.lock(".lock")
    with pytest.raises(AlreadyLocked):
        disk.lock(".lock")
    lock.release()
    assert disk.entries() == []
    disk.lock(".lock").release()


def test_lock_is_refused_to_another_process(tmp_path) -> None:
    """Invariant 92."""
    lock = RealDisk(str(tmp_path)).lock(".lock")
    pid = os.fork()
    if not pid:
        try:
            RealDisk(str(tmp_path)).lock(".lock")
        except AlreadyLocked:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    lock.release()


def test_lock_file_that_was_removed_while_it_was_opened_does_not_count(
    tmp_path, monkeypatch
) -> None:
    """Invariant 92: a broker that starts while another one stops keeps out a third one."""
    stopping = RealDisk(str(tmp_path)).lock(".lock")
    real_lock = directory_lock._lock

    def lock_after_the_stop(fd: int) -> None:
        monkeypatch.setattr(directory_lock, "_lock", real_lock)
        stopping.release()
        real_lock(fd)

    monkeypatch.setattr(directory_lock, "_lock", lock_after_the_stop)
    lock = RealDisk(str(tmp_path)).lock(".lock")
    with pytest.raises(AlreadyLocked):
        RealDisk(str(tmp_path)).lock(".lock")
    lock.release()
    RealDisk(str(tmp_path)).lock(".lock").release()


def test_space_is_positive(disk: Disk) -> None:
    total, usable = disk.space()
    assert 0 < usable <= total


def test_number_of_open_descriptors_is_limited(tmp_path) -> None:
    disk = RealDisk(str(tmp_path), descriptors=Descriptors(4))
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    files = [disk.open(str(n), create=True) for n in range(20)]
    for file in files:
        file.write([b"x"], 0)
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == before + 4
    for file in files:
        file.close()
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == before


def is_open(file: File) -> bool:
    return file.open_inode is not None if isinstance(file, SimFile) else file.fileno() >= 0


@pytest.mark.parametrize("change", ["write", "truncate"])
def test_file_with_unsynced_data_stays_open_while_others_can_be_closed(
    disk: Disk, change: str
) -> None:
    """Invariant 89: a descriptor that is opened later may not learn that a write has failed."""
    files = [disk.open(str(number), create=True) for number in range(6)]
    written, *others = files
    if change == "write":
        written.write([b"v"], 0)
    else:
        written.truncate(1)
    for file in others:
        assert file.size() == 0
        assert is_open(file)
    assert is_open(written)
    assert sum(map(is_open, files)) == 3
    written.pin()
    written.sync()
    written.unpin()
    for file in others:
        assert file.size() == 0
    assert not is_open(written)


def test_write_during_a_sync_keeps_the_file_open(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 89: the sync of a thread need not cover it."""
    disk = RealDisk(str(tmp_path), descriptors=Descriptors(3))
    file, *others = [disk.open(str(number), create=True) for number in range(5)]
    file.write([b"a"], 0)
    with monkeypatch.context() as busy:
        busy.setattr(os, "fsync", lambda fd: file.write([b"b"], 1))
        file.sync()
    assert [other.size() for other in others] == [0] * 4
    assert is_open(file)


def test_disk_without_descriptors_closes_idle_files(tmp_path, monkeypatch) -> None:
    """Invariant 90: EMFILE is not a failure of the directory."""
    disk = RealDisk(str(tmp_path))
    files = [disk.open(str(n), create=True) for n in range(4)]
    for file in files:
        file.write([b"x"], 0)
    real_open = os.open
    failed_paths: list[str] = []

    def open_file(path, flags, mode=0o777, **more):
        if len(failed_paths) < 2:
            failed_paths.append(path)
            raise OSError(errno.EMFILE, "too many open files")
        return real_open(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", open_file)
    assert disk.read("0") == b"x"
    assert len(failed_paths) == 2
    assert disk.failed is None


def test_writes_and_syncs_are_refused_after_a_failed_sync(tmp_path, monkeypatch) -> None:
    """Invariant 89."""
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.write([b"x"], 0)

    def fail_fsync(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_fsync)
        with pytest.raises(OSError, match="input/output"):
            file.sync()
    for call in (file.sync, lambda: file.write([b"y"], 0), lambda: disk.write("b", b"")):
        with pytest.raises(OSError, match="offline"):
            call()
    assert file.read(0, 9) == b"x"  # Reads go on.


def test_cache_probe_finds_written_data(tmp_path) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.write([b"x" * 10_000], 0)
    assert file.is_cached(0, 10_000) or not disk.can_probe


def test_descriptor_limit_is_positive() -> None:
    assert raise_descriptor_limit() > 0


def test_open_file_stays_the_same_after_a_rename(disk: Disk) -> None:
    disk.make_directory("t-0")
    file = disk.open("t-0/a", create=True)
    file.write([b"old"], 0)
    file.pin()
    disk.rename("t-0", "t-0.x-delete")
    disk.make_directory("t-0")
    disk.write("t-0/a", b"another")
    assert file.read(0, 9) == b"old"
    file.write([b"er"], 3)
    assert disk.read("t-0.x-delete/a") == b"older"
    file.unpin()
    file.close()
    assert file.read(0, 9) == b"another"


def test_write_changes_an_open_file_and_replace_does_not(disk: Disk) -> None:
    disk.write("a", b"1234")
    file = disk.open("a")
    file.pin()
    disk.write("a", b"56")
    assert file.read(0, 9) == b"56"
    disk.replace("a", b"789", sync=False)
    assert file.read(0, 9) == b"56"
    assert disk.read("a") == b"789"
    file.unpin()


def test_calls_on_a_removed_directory_raise_file_not_found(disk: Disk) -> None:
    disk.make_directory("t-0")
    disk.write("t-0/a", b"1")
    disk.remove_tree("t-0")
    disk.remove_tree("t-0")
    for call in (
        lambda: disk.write("t-0/a", b"1"),
        lambda: disk.rename("t-0/a", "t-0/b"),
        lambda: disk.sync("t-0/a"),
        lambda: disk.sync_directory("t-0"),
        lambda: disk.open("t-0/a").size(),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert disk.failed is None


# -- the simulated disk only


def test_power_loss_keeps_synced_data_and_some_unsynced() -> None:
    outcomes = set()
    for seed in range(200):
        disk = SimDisk()
        file = disk.open("a", create=True)
        file.write([b"a" * PAGE * 2], 0)
        file.sync()
        disk.sync_directory()
        file.write([b"b" * PAGE * 2], PAGE)
        disk.write("unsynced", b"1")
        after = disk.power_loss(Random(seed))
        data = after.read("a")
        assert data[:PAGE] == b"a" * PAGE
        outcomes.add((data[PAGE::PAGE], "unsynced" in after.files))
    assert {(b"a", False), (b"b", True), (b"bb", True), (b"ab", True), (b"b\0", False)} <= outcomes


def test_kill_truncates_a_write_and_keeps_the_page_cache() -> None:
    disk = SimDisk()
    file = disk.open("a", create=True)
    disk.cut = 7
    file.write([b"1234"], 0)
    with pytest.raises(Killed):
        file.write([b"5678", b"9"], 4)
    assert disk.after_kill().read("a") == b"1234567"


def test_full_disk_stores_the_part_that_fits() -> None:
    disk = SimDisk(capacity=10)
    file = disk.open("a", create=True)
    file.write([b"12345678"], 0)
    with pytest.raises(OSError, match="space"):
        file.write([b"9012"], 8)
    assert disk.read("a") == b"1234567890"
    assert disk.failed is None


def test_calls_fail_as_configured() -> None:
    disk = SimDisk()
    disk.fail_at("sync", OSError(errno.EIO, "broken"), path="a", after=1)
    a, b = disk.open("a", create=True), disk.open("b", create=True)
    b.sync()
    a.sync()
    with pytest.raises(OSError, match="broken"):
        a.sync()
    with pytest.raises(OSError, match="offline"):
        b.sync()
