"""The controller decides what Apache Kafka's active controllers decided, request by request.

Every request that reached a controller of the recorded clusters goes to kwire's in its place.
The answer has to have the same fields, at once or when the recorded one came; the records
written have to be the same, byte for byte, and all that the recorded controller wrote.
"""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from kwire.raftmeta.metadata.publisher import snapshot_contents
from kwire.raftmeta.raft.log_state import SnapshotId
from kwire.raftmeta.storage.records import SnapshotReader, pack
from tests.support.raftmeta.controller_log import snapshots
from tests.support.raftmeta.controller_replay import DIFFERENCES, Play, Scene, play
from tests.support.raftmeta.controller_scenes import COUNTS, ELSEWHERE, REQUESTS, SCENES
from tests.support.raftmeta.conversations import CLUSTERS, recording

__all__ = ["DIFFERENCES"]

PAGE = Path(__file__).parents[3] / "docs" / "quorum-differences.md"


@cache
def play_scene(scene: Scene) -> Play:
    return play(scene)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_decides_as_recorded(scene: Scene) -> None:
    player = play_scene(scene)
    print(scene, dict(player.compared))
    assert player.wrong == []
    assert sum(player.compared.values()) == COUNTS[str(scene)]


def test_every_difference_occurs_and_is_documented() -> None:
    met: Counter[str] = Counter()
    for scene in SCENES:
        met += play_scene(scene).differing
    assert set(met) == set(DIFFERENCES)
    page = " ".join(PAGE.read_text().split())
    assert [line for line in DIFFERENCES if f"- {line}" not in page] == []


def test_every_request_is_played() -> None:
    """Nothing that a controller was asked is left out silently."""
    here = {(scene.number, f"controller-{scene.node}") for scene in SCENES}
    count = 0
    for number in (number for numbers in CLUSTERS.values() for number in numbers):
        for frame in recording(number).frames:
            is_request = frame.is_request and frame.target.startswith("controller-")
            if is_request and frame.api not in ELSEWHERE:
                assert (number, frame.target) in here, (number, frame)
                count += 1
    assert count == REQUESTS
    assert sum(len(play_scene(scene).requests) for scene in SCENES) == count


def test_a_first_boot_that_only_a_snapshot_shows() -> None:
    """The writes of a lone controller were not recorded; its snapshot has what was in force."""
    (scene,) = (scene for scene in SCENES if scene.number == "06a")
    image = play_scene(scene).controller.state.image
    ours = [pack(record) for group in snapshot_contents(image) for record in group]
    name = SnapshotId(51, 1)
    recorded = SnapshotReader(name, snapshots("second")[name]).records()
    assert sorted(ours) == sorted(pack(record) for record in recorded)
