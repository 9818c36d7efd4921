"""The cache of downloads and compiled files, which the processes of a run share."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from compat_tests.harness.broker import kafka

SECONDS = 10


def test_second_process_waits_until_the_first_has_fetched_all_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KWIRE_CACHE", str(tmp_path))
    is_filling, is_second_waiting = Event(), Event()
    fetched: list[str] = []
    lock = kafka.fcntl.flock

    def flock(file: object, how: int) -> None:
        if is_filling.is_set():
            is_second_waiting.set()
        lock(file, how)

    def fill(folder: Path, version: str) -> None:
        is_filling.set()
        is_second_waiting.wait(SECONDS)
        fetched.append(version)
        (folder / "pom.xml").write_text(kafka._pom(version))
        (folder / "ok").touch()

    monkeypatch.setattr(kafka.fcntl, "flock", flock)
    monkeypatch.setattr(kafka, "_fill", fill)
    with ThreadPoolExecutor(2) as processes:
        first = processes.submit(kafka.fetch, "4.3.1")
        assert is_filling.wait(SECONDS)
        second = processes.submit(kafka.fetch, "4.3.1")
        assert first.result(SECONDS) == second.result(SECONDS) == tmp_path / "kafka-4.3.1" / "libs"
    assert fetched == ["4.3.1"]
