"""kwire's raft says what Apache Kafka's nodes said, in their recorded conversations.

Each scene replays one node. Everything it says is compared field by field with what the
recorded node said, batches that a leader writes byte by byte; what differs must stand in the
table of differences. How many messages each scene compares, and how often it meets each of the
differences, is part of the test: one request too many is noticed.
"""

import gzip
import json
import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.raftmeta import test_conversations_controller
from tests.raftmeta.conversations import CLUSTERS, VECTORS
from tests.raftmeta.differences import CHANCE, DIFFERENCES, OURS, excuse
from tests.raftmeta.replay import Replay
from tests.raftmeta.scenes import ELSEWHERE, SCENES, Scene
from tests.raftmeta.stage import play

PAGE = Path(__file__).parent.parent.parent / "docs" / "quorum-differences.md"
COUNTED = Path(__file__).parent.parent / "golden" / "conversations.txt"


@cache
def played(scene: Scene) -> Replay:
    return play(scene)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_says_what_was_recorded(scene: Scene) -> None:
    replay = played(scene)
    unexcused = [found for found in replay.deviations if excuse(found) is None]
    assert not unexcused, unexcused[0]


def tally(scene: Scene) -> str:
    """How much was compared, and how often which difference was met."""
    replay = played(scene)
    met = Counter(
        f"{row.name} ({found.api.split()[0]})"
        for found in replay.deviations
        if (row := excuse(found))
    )
    lines = [f"{times:4} {name}" for name, times in sorted(met.items())]
    return "\n".join([f"{scene}: {sum(replay.compared.values())} compared", *lines, ""])


def test_as_much_differs_as_was_counted() -> None:
    """``KWIRE_REWRITE=1`` counts anew; the difference is then read in review."""
    told = "".join(tally(scene) for scene in SCENES)
    if os.environ.get("KWIRE_REWRITE"):
        COUNTED.write_text(told)
    assert COUNTED.read_text() == told


def test_every_difference_is_met() -> None:
    met = {excuse(found) for scene in SCENES for found in played(scene).deviations}
    assert set(DIFFERENCES) <= met


def test_every_scenario_is_played_or_accounted_for() -> None:
    numbers = {number for listed in CLUSTERS.values() for number in listed}
    here = {scene.number for scene in SCENES}
    assert here | set(ELSEWHERE) == numbers
    assert len(list(VECTORS.glob("*.jsonl.gz"))) == len(numbers)


def test_the_page_lists_every_difference() -> None:
    text = " ".join(PAGE.read_text().split())
    listed = [f"- **{row.name}.** {row.reason}" for row in (*OURS, *CHANCE)]
    assert [line for line in listed if line not in text] == []
    assert text.count("- **") == len(listed) + len(test_conversations_controller.DIFFERENCES)


def test_recordings_count_their_frames() -> None:
    """The copies are whole: each says how many frames it has."""
    total: Counter[str] = Counter()
    for path in VECTORS.glob("*.jsonl.gz"):
        with gzip.open(path, "rt") as lines:
            head = json.loads(next(lines))
            frames = sum("api" in json.loads(line) for line in lines)
        assert frames <= head["frames_seen"]
        total["frames"] += frames
    assert total["frames"] > 3000
