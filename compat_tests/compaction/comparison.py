"""One history, cleaned by Apache Kafka and by another cleaner, round by round.

Each round's directory is copied twice and cleaned once by each; the copies must be equal in all
that :mod:`view` shows, and each broker must open what either cleaner made, after a clean stop and
after a crash, to the same state. The next round goes on with one of the two copies, by the seed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import attrs

from compat_tests.compaction import kwires
from compat_tests.compaction.apache import Answer, ApacheCleaner
from compat_tests.compaction.inputs import History, Pass, make_history
from compat_tests.compaction.view import View, committed_values, find_differences, read_directory
from kwire.records.header import CONTROL

Clean = Callable[[Path, Pass, Answer], Answer]
"""Clean a directory; the last argument is Apache Kafka's answer for the same directory."""
LINES_MAX, LINE_MAX = 20, 600
COUNTERS = ("clean_end", "records_read", "records_kept", "keyless_dropped")


@attrs.frozen
class Cleaned:
    """What a pass made, for checks across many histories."""

    history: History
    job: Pass
    before: View
    after: View
    answer: Answer
    directory: Path
    """The directory that the other cleaner has cleaned."""


def compare(
    seed: int, root: Path, apache: ApacheCleaner, clean: Clean, *, opens: bool = True
) -> list[Cleaned]:
    """Compare ``clean`` with Apache Kafka's cleaner over the history of a seed.

    Raises AssertionError at the first difference. ``opens``: both brokers open the last results.
    """
    history = make_history(seed, root / "input")
    passes: list[Cleaned] = []
    for number in range(history.shape.rounds):
        job = history.write_round()
        before = read_directory(history.directory)
        theirs = _copy(history.directory, root / f"apache-{number}")
        ours = _copy(history.directory, root / f"other-{number}")
        expected = apache.clean(theirs, job)
        if "clean_end" not in expected:
            continue
        actual = clean(ours, job, expected)
        _check(f"seed {seed}, round {number}", before, theirs, ours, expected, actual)
        passes.append(Cleaned(history, job, before, read_directory(ours), expected, ours))
        _continue_from(history, history.source.choice((theirs, ours)), expected)
        is_last = number == history.shape.rounds - 1
        if opens and (is_last or history.may(0.2)):
            points = {"stopped": None, "crashed": 0, "crashed late": expected["clean_end"]}
            for name, point in points.items():
                check_opening(root / f"{name}-{number}", theirs, ours, job, point, apache)
    return passes


def _copy(directory: Path, parent: Path) -> Path:
    target = parent / directory.name
    shutil.copytree(directory, target)
    return target


def _continue_from(history: History, directory: Path, answer: Answer) -> None:
    shutil.rmtree(history.directory)
    shutil.copytree(directory, history.directory)
    history.clean_end = answer["clean_end"]
    history.start_offset = max(history.start_offset, answer["start_offset"])


def _check(
    name: str, before: View, theirs: Path, ours: Path, expected: Answer, actual: Answer
) -> None:
    after = read_directory(ours)
    lines = [
        f"{counter}: {expected[counter]} / {actual[counter]}"
        for counter in COUNTERS
        if expected[counter] != actual[counter]
    ]
    lines += find_differences(read_directory(theirs), after)
    short = [
        line if len(line) < LINE_MAX else f"{line[:LINE_MAX]}..." for line in lines[:LINES_MAX]
    ]
    text = f"{name}: {len(lines)} differences (Apache Kafka / other):"
    assert not lines, "\n".join([text, *short])
    end_offset = expected["stable_offset"]
    values = committed_values(before, end_offset)
    assert committed_values(after, end_offset) == values, f"{name}: other values"


def check_opening(
    root: Path, theirs: Path, ours: Path, job: Pass, point: int | None, apache: ApacheCleaner
) -> None:
    """Check that both brokers open both directories to the same state.

    ``point``: the recovery point after a crash; None after a clean stop.
    """
    loads, states = [], []
    for name, directory in (("theirs", theirs), ("ours", ours)):
        load = apache.load(_copy(directory, root / f"{name}-by-apache"), job, point)
        load["segments"] = [base for base, _ in load["segments"]]
        state = kwires.load(_copy(directory, root / f"{name}-by-kwire"), job, point)
        _check_state(state, load, directory)
        loads.append(load)
        states.append(state._replace(aborted=[]))
    assert loads[0] == loads[1], f"Apache Kafka's state in {root}"
    assert states[0] == states[1], f"kwire's state in {root}"


def _check_state(state: kwires.State, load: Answer, directory: Path) -> None:
    """Check kwire's state of a directory against Apache Kafka's."""
    assert state.start_offset == load["start_offset"]
    assert state.end_offset == load["end_offset"]
    assert state.stable_offset == load["stable_offset"]
    # kwire removes segments that a cleaner has emptied.
    assert set(state.bases) <= set(load["segments"])
    assert {str(key): list(value) for key, value in state.producers.items()} == load["producers"]
    aborted = {tuple(entry) for entry in load["aborted"]}
    assert aborted <= set(state.aborted)
    # kwire rebuilds an index from the markers if its mark says that there were aborted
    # transactions; Apache Kafka's cleaner leaves the mark. Their data must be gone.
    batches = list(read_directory(directory).all_batches())
    for entry in set(state.aborted) - aborted:
        for batch in batches:
            if batch.producer_id == entry.producer_id and not batch.attributes & CONTROL:
                is_inside = entry.first_offset <= batch.last_offset < entry.last_offset
                assert not (is_inside and batch.entries), (entry, batch)
