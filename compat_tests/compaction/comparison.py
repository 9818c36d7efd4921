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
from compat_tests.compaction.apache import Answer, ApacheCleaner, ApacheError
from compat_tests.compaction.inputs import History, Pass, make_history
from compat_tests.compaction.shapes import Shape
from compat_tests.compaction.view import View, committed_values, find_differences, read_directory
from kwire.records.header import CONTROL

Clean = Callable[[Path, Pass, Answer], Answer]
"""Clean a directory; the last argument is Apache Kafka's answer for the same directory."""
INDEX_LIMIT = "full time index"
"""Apache Kafka's cleaner fails if a new segment needs more entries in an index than its sources."""
LINES_MAX, LINE_MAX = 20, 600
CHOICE = ("uncleanable", "clean_bytes", "cleanable_bytes", "clean_end")
COUNTERS = (*CHOICE, "records_read", "records_kept", "keyless_dropped")


@attrs.frozen
class Cleaned:
    """The result of a pass, for checks across many histories."""

    history: History
    job: Pass
    before: View
    after: View
    answer: Answer
    directory: Path
    """The directory that the other cleaner has cleaned."""


def compare(
    name: str, seed: int, root: Path, apache: ApacheCleaner, clean: Clean, *, opens: bool = True
) -> list[Cleaned]:
    """Compare ``clean`` with Apache Kafka's cleaner over the history of a shape and a seed.

    Raises AssertionError at the first difference. ``opens``: both brokers open the last results.
    """
    history = make_history(name, seed, root / "input")
    passes: list[Cleaned] = []
    for number in range(history.shape.rounds):
        job = history.write_round()
        before = read_directory(history.directory)
        theirs = _copy(history.directory, root / f"apache-{number}")
        ours = _copy(history.directory, root / f"other-{number}")
        try:
            expected = apache.clean(theirs, job)
        except ApacheError as error:
            if INDEX_LIMIT in str(error):
                break
            raise
        actual = clean(ours, job, expected)
        if "clean_end" not in expected:
            assert "clean_end" not in actual
            continue
        text = f"{name}, seed {seed}, round {number}"
        _check(text, history.shape, before, (theirs, ours), expected, actual)
        passes.append(Cleaned(history, job, before, read_directory(ours), expected, ours))
        _continue_from(history, history.source.choice((theirs, ours)), expected)
        is_last = number == history.shape.rounds - 1
        if opens and is_last:
            points: dict[str, int | None] = {"stopped": None}
            if not history.start_offset:
                # After a crash, Apache Kafka forgets which transactions began below the log start.
                points |= {"crashed": 0, "crashed late": expected["clean_end"]}
            for stop, point in points.items():
                folder = root / f"{stop}-{number}"
                check_opening(folder, history.shape, (theirs, ours), job, point, apache)
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
    name: str,
    shape: Shape,
    before: View,
    directories: tuple[Path, Path],
    expected: Answer,
    actual: Answer,
) -> None:
    start_offset = expected["start_offset"]
    reference, after = (_readable(read_directory(path), start_offset) for path in directories)
    counters = COUNTERS if not start_offset else CHOICE
    lines = [
        f"{counter}: {expected[counter]} / {actual[counter]}"
        for counter in counters
        if expected[counter] != actual[counter]
    ]
    if shape.has_own_groups:
        lines += find_differences(_without_groups(reference), _without_groups(after))
    else:
        lines += find_differences(reference, after)
    short = [
        line if len(line) < LINE_MAX else f"{line[:LINE_MAX]}..." for line in lines[:LINES_MAX]
    ]
    text = f"{name}: {len(lines)} differences (Apache Kafka / other):"
    assert not lines, "\n".join([text, *short])
    end_offset = expected["stable_offset"]
    values = committed_values(_readable(before, start_offset), end_offset)
    assert committed_values(after, end_offset) == values, f"{name}: other values"


def _readable(view: View, start_offset: int) -> View:
    """Leave out what lies below the log start.

    Apache Kafka ignores aborted transactions that ended there, and so removes the markers of others
    than kwire; as it opens a log, it also removes the snapshots up to the log start.
    """
    return view._replace(
        batches={
            base: [batch for batch in batches if batch.last_offset >= start_offset]
            for base, batches in view.batches.items()
        },
        aborted={
            base: readable
            for base, entries in view.aborted.items()
            if (readable := [entry for entry in entries if entry.last_offset >= start_offset])
        },
        snapshots=[offset for offset in view.snapshots if offset > start_offset],
    )


def _without_groups(view: View) -> View:
    """Return a view of the same batches as if they were in one segment."""
    entries = sorted(entry for part in view.aborted.values() for entry in part)
    return view._replace(batches={0: list(view.all_batches())}, aborted={0: entries}, snapshots=[])


def check_opening(
    root: Path,
    shape: Shape,
    directories: tuple[Path, Path],
    job: Pass,
    point: int | None,
    apache: ApacheCleaner,
) -> None:
    """Check that both brokers open both directories to the same state.

    ``point``: the recovery point after a crash; None after a clean stop.
    """
    loads, states = [], []
    for name, directory in zip(("theirs", "ours"), directories, strict=True):
        load = apache.load(_copy(directory, root / f"{name}-by-apache"), job, point)
        load["segments"] = [base for base, _ in load["segments"]]
        state = kwires.load(_copy(directory, root / f"{name}-by-kwire"), job, point)
        _check_state(state, load, directory)
        if shape.has_own_groups:
            load["segments"], state = [], state._replace(bases=[])
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
