"""Changes of a log directory to writing through a thread and back: invariant 91."""

import os
from types import SimpleNamespace

from kwire.log import disk as disk_module
from kwire.log.disk import RealDisk
from kwire.log.write_speed import RUN_MAX, RUN_MIN, SLOW_WRITE_SECONDS, SOON_SECONDS, Pace

SLOW, QUICK = 2 * SLOW_WRITE_SECONDS, SLOW_WRITE_SECONDS / 50


def writes_until_quick(pace: Pace, now: float) -> int:
    count = 1
    while pace.is_slow_after(QUICK, now):
        count += 1
    return count


def test_directory_is_slow_after_one_slow_write_until_several_quick_ones() -> None:
    """Invariant 91."""
    pace = Pace()
    assert not pace.is_slow_after(QUICK, 0)
    assert pace.is_slow_after(SLOW, 1)
    assert pace.is_slow_after(QUICK, 2)
    assert writes_until_quick(pace, 3) == RUN_MIN - 1


def test_throttled_directory_stays_slow() -> None:
    """Invariant 91: for a minute every tenth write waits until the kernel has cleaned pages."""
    pace = Pace()
    slow = [pace.is_slow_after(QUICK if n % 10 else SLOW, n / 10) for n in range(600)]
    assert all(slow)


def test_directory_stays_slow_for_longer_after_each_relapse() -> None:
    """The loop makes a slow write for each of them, so they have to become rare."""
    pace = Pace()
    runs = []
    for n in range(12):
        assert pace.is_slow_after(SLOW, n)
        runs.append(writes_until_quick(pace, n))
    assert runs[:3] == [RUN_MIN, 2 * RUN_MIN, 4 * RUN_MIN]
    assert runs[-1] == RUN_MAX
    assert pace.is_slow_after(SLOW, n + SOON_SECONDS + 1)
    assert writes_until_quick(pace, n + SOON_SECONDS + 1) == RUN_MIN


def test_disk_is_slow_until_a_run_of_quick_writes(tmp_path, monkeypatch) -> None:
    """Invariant 91."""
    now = [0.0]
    monkeypatch.setattr(disk_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    real_write = os.pwritev
    took = [SLOW]

    def write(fd: int, parts: list[bytes], position: int) -> int:
        now[0] += took[0]
        return real_write(fd, parts, position)

    monkeypatch.setattr(os, "pwritev", write)
    file.write([b"x"], 0)
    assert disk.slow
    took[0] = QUICK
    for _ in range(RUN_MIN):
        assert disk.slow
        file.write([b"x"], 0)
    assert not disk.slow
