"""kwire's raft says what Apache Kafka's nodes said, in their recorded conversations.

Each scene replays one node. Everything it says is compared field by field with what the
recorded node said, batches that a leader writes byte by byte; what differs must stand in the
table of differences. The number of messages compared is part of the test.
"""

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.raftmeta import test_conversations_controller
from tests.raftmeta.conversations import CLUSTERS, VECTORS
from tests.raftmeta.differences import CHANCE, DIFFERENCES, OURS, excuse
from tests.raftmeta.replay import Replay
from tests.raftmeta.scenes import COUNTS, ELSEWHERE, SCENES, Scene, play

PAGE = Path(__file__).parent.parent.parent / "docs" / "quorum-differences.md"


@cache
def played(scene: Scene) -> Replay:
    return play(scene)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_says_what_was_recorded(scene: Scene) -> None:
    replay = played(scene)
    unexcused = [found for found in replay.deviations if excuse(found) is None]
    assert not unexcused, unexcused[0]
    total = sum(replay.compared.values())
    print(f"{scene}: {total} compared: {dict(sorted(replay.compared.items()))}")
    assert total == COUNTS[str(scene)]


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
