"""Only the versions of the current state prove that a batch is in a Delta table."""

import datetime

from kwire_pipeline.tables.delta_history import Version, current

START = datetime.datetime.fromisoformat("2026-11-25 12:00:00")


def write(number: int) -> Version:
    return Version(number, START + datetime.timedelta(minutes=number), "WRITE", {}, None)


def restore(number: int, *, version: str | None = None, timestamp: str | None = None) -> Version:
    at = START + datetime.timedelta(minutes=number)
    return Version(number, at, "RESTORE", {"version": version, "timestamp": timestamp}, None)


def numbers(*history: Version) -> list[int]:
    return [version.number for version in current(history)]


def test_versions_that_a_restore_undid_do_not_count() -> None:
    assert numbers() == []
    assert numbers(write(0), write(1), write(2)) == [0, 1, 2]
    assert numbers(write(0), write(1), write(2), restore(3, version="0")) == [0, 3]
    assert numbers(write(0), write(1), restore(2, version="0"), write(3)) == [0, 2, 3]


def test_restore_of_a_restored_version_brings_its_state_back() -> None:
    history = [write(0), write(1), write(2), restore(3, version="1"), restore(4, version="2")]
    assert numbers(*history) == [0, 1, 2, 4]
    assert numbers(*history, restore(5, version="3")) == [0, 1, 3, 5]


def test_restore_to_a_time_counts_the_versions_until_then() -> None:
    history = [write(0), write(1), write(2)]
    assert numbers(*history, restore(3, timestamp="2026-11-25 12:01:30.0")) == [0, 1, 3]
    assert numbers(*history, restore(3, timestamp="2026-11-25 12:02:00")) == [0, 1, 2, 3]
    zoned = (START + datetime.timedelta(seconds=90)).astimezone(datetime.UTC).isoformat()
    assert numbers(*history, restore(3, timestamp=zoned)) == [0, 1, 3]


def test_history_without_its_old_versions_ends_there() -> None:
    assert numbers(write(7), write(8)) == [7, 8]
    assert numbers(write(7), write(8), restore(9, version="3"), write(10)) == [9, 10]
