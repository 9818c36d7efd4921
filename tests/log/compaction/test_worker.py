"""The cleaner's process: its conversation with the node, its end, its rate."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import attrs
import pytest
import trio

from kwire.log.compaction.job import CleanedGroup, CleaningJob, CleaningSummary
from kwire.log.compaction.messages import (
    HEADER,
    Answer,
    Request,
    pack,
    unpack_answer,
    unpack_request,
)
from kwire.log.compaction.worker import CHECK_S, Closed, Pace, Worker
from kwire.log.config import LogConfig
from kwire.log.directories.worker_process import CREDIT_S, IoLimit
from kwire.log.disk import RealDisk
from kwire.log.formats import names
from tests.support.log.compaction import MadeLog, path, producer

ROOT = Path(__file__).resolve().parents[3]


class Conversation:
    """The node's end of a worker."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.requests, self.answers = process.stdin, process.stdout

    def send(self, *requests: Request) -> None:
        self.requests.write(b"".join(map(pack, requests)))
        self.requests.flush()

    def read(self) -> Answer:
        (size,) = HEADER.unpack(self.answers.read(HEADER.size))
        return unpack_answer(self.answers.read(size))

    def wait_end(self) -> int:
        """Close the pipe and wait for the end of the process."""
        self.requests.close()
        return self.process.wait(30)


@pytest.fixture
def worker() -> Iterator[Conversation]:
    with subprocess.Popen(
        [sys.executable, "-m", "kwire.log.compaction.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        try:
            yield Conversation(process)
        finally:
            process.kill()


def made_log(root: Path) -> MadeLog:
    """Return a log of three segments, which are three groups."""
    log = MadeLog(disk=RealDisk(str(root)), config=LogConfig(segment_bytes=1))
    for n in range(3):
        log.put((b"a", b"%d" % n), **producer(n))
        log.roll()
    return log


@pytest.mark.slow
def test_worker_cleans_group_by_group_and_then_another_log(worker, tmp_path) -> None:
    for root in (tmp_path / "one", tmp_path / "two"):
        root.mkdir()
        log = made_log(root)
        worker.send(("clean", str(root), log.job()))
        for base_offset in range(3):
            kind, group = worker.read()
            assert kind == "group"
            assert isinstance(group, CleanedGroup)
            assert group.base_offset == base_offset
            # The next group is not begun before the node asks for it.
            assert not os.path.exists(root / (path(base_offset + 1, ".log") + names.CLEANED))
            log.swap(group)
            worker.send(("next", {1: (0, 1)}) if base_offset == 0 else ("next",))
        kind, summary = worker.read()
        assert kind == "done"
        assert isinstance(summary, CleaningSummary)
        assert summary.clean_end == 3
        assert log.pairs() == [(2, b"a", b"2")]
        # The second group had the producer that was active by then.
        assert [b.header.record_count for b in log.batches()] == [0, 1]
    assert worker.wait_end() == 0


def test_small_passes_count_together_for_the_rate(tmp_path: Path) -> None:
    """Each of them reads and writes too little to be reported on its own."""
    answers = BytesIO()
    more = iter([("more",)] * 1000)

    class Answered(Worker):
        def _read(self) -> Request:
            is_report = b"used" in answers.getvalue()[-60:]
            return next(more) if is_report else ("next",)

    log = made_log(tmp_path)
    worker = Answered(0, answers, lambda: 0.0)
    job = attrs.evolve(log.job(), bytes_per_second=100_000.0)
    worker._clean(str(tmp_path), job)
    assert b"used" not in answers.getvalue()
    for _ in range(100):
        worker._clean(str(tmp_path), job)
    assert answers.getvalue().count(b"used") > 4


@pytest.mark.slow
def test_worker_reports_damage_and_errors_and_goes_on(worker, tmp_path) -> None:
    log = made_log(tmp_path)
    log.disk.write(path(0, ".log"), b"\0" * log.sources[0].size)
    worker.send(("clean", str(tmp_path), log.job()))
    kind, text = worker.read()
    assert kind == "failed"
    assert "position=0" in str(text)
    log.disk.remove(path(0, ".log"))
    worker.send(("clean", str(tmp_path), log.job()))
    kind, number, _, filename = worker.read()
    assert (kind, number) == ("os", 2)
    assert str(filename).endswith(".log")
    assert worker.wait_end() == 0


@pytest.mark.slow
def test_worker_ends_with_its_pipe_in_the_middle_of_a_group(worker, tmp_path) -> None:
    """At a byte a second it would otherwise take minutes."""
    log = made_log(tmp_path)
    worker.send(("clean", str(tmp_path), attrs.evolve(log.job(), bytes_per_second=1.0)))
    assert worker.wait_end() == 0
    assert {e.name for e in log.disk.entries("t-0")} == {
        f"{base:020d}{suffix}" for base in range(3) for suffix in (".log", ".index", ".timeindex")
    }


@pytest.mark.slow
def test_interrupt_from_the_terminal_leaves_the_worker_to_its_node(worker, tmp_path) -> None:
    log = made_log(tmp_path)
    worker.send(("clean", str(tmp_path), log.job()))
    assert worker.read()[0] == "group"
    worker.process.send_signal(signal.SIGINT)
    worker.send(("next",))
    assert worker.read()[0] == "group"
    assert worker.wait_end() == 0


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="priorities of Linux")
def test_worker_leaves_the_cpu_to_others(worker, tmp_path) -> None:
    log = made_log(tmp_path)
    worker.send(("clean", str(tmp_path), log.job()))
    worker.read()
    assert os.getpriority(os.PRIO_PROCESS, worker.process.pid) == 19
    assert os.sched_getscheduler(worker.process.pid) == os.SCHED_BATCH


@pytest.mark.slow
def test_worker_imports_no_event_loop() -> None:
    code = "import sys, kwire.log.compaction.worker; print('trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.strip() == b"False"


def test_request_out_of_turn_is_an_error(tmp_path) -> None:
    (tmp_path / "requests").write_bytes(pack(("next",)))
    with (
        open(tmp_path / "requests", "rb", buffering=0) as requests,
        pytest.raises(ValueError, match="unexpected request"),
    ):
        Worker(requests.fileno(), BytesIO()).run()


def test_job_survives_the_pipe() -> None:
    log = MadeLog()
    log.put((b"a", b"1"))
    log.roll()
    job = log.job(active_producers={7: (1, None)})
    body = pack(("clean", "/d", job))[HEADER.size :]
    request = unpack_request(body)
    assert len(request) == 3
    assert request[:2] == ("clean", "/d")
    assert isinstance(request[2], CleaningJob)
    assert attrs.evolve(job) == request[2]


# The rate ------------------------------------------------------------------------------------
def test_bytes_of_any_size_are_reported_once_they_are_worth_a_message() -> None:
    reported = list[int]()
    pace = Pace(reported.append, lambda: False, lambda: 0.0)
    pace.bytes_per_second = 1000.0
    for size in (10, 500, 1, 2000, *[7] * 100):
        pace(size)
    assert 10 + 500 + 1 + 2000 + 700 - sum(reported) < 1000 * CHECK_S
    assert len(reported) <= 2 + 700 / (1000 * CHECK_S)


def test_no_limit_reports_nothing_but_sees_the_end_of_the_pipe() -> None:
    reported, now, has_ended = list[int](), 0.0, False
    pace = Pace(reported.append, lambda: has_ended, lambda: now)
    for _ in range(100):
        pace(1 << 20)
    assert not reported
    now, has_ended = 1.0, True
    with pytest.raises(Closed):
        pace(1)


async def test_processes_share_one_rate_which_a_single_one_may_use_alone(autojump_clock) -> None:
    limit = IoLimit(1000.0)

    async def use(count: int) -> None:
        for _ in range(count):
            await limit.wait(100)

    await use(10)
    assert trio.current_time() == pytest.approx(1.0 - CREDIT_S)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(use, 10)
    assert trio.current_time() == pytest.approx(5.0 - CREDIT_S)


async def test_time_in_which_a_process_works_counts_for_the_rate(autojump_clock) -> None:
    limit = IoLimit(1000.0)
    for _ in range(100):
        await trio.sleep(0.04)
        await limit.wait(50)
    assert trio.current_time() == pytest.approx(5.0, abs=CREDIT_S)


async def test_rate_of_zero_stops_all_processes(autojump_clock) -> None:
    limit = IoLimit(0.0)
    with trio.move_on_after(1e6) as scope:
        await limit.wait(1)
    assert scope.cancelled_caught


async def test_time_without_work_is_not_made_up_for(autojump_clock) -> None:
    limit = IoLimit(1000.0)
    await trio.sleep(100)
    for _ in range(2):
        await limit.wait(1000)
    assert trio.current_time() == pytest.approx(102.0 - CREDIT_S)
