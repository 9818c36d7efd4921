"""Compare the controller's decisions with those of Apache Kafka's, request by request.

Every request that a controller of the recorded clusters received is sent to kwire's controller.
Its response must have the same fields, at once or when the recorded one was sent; its records must
be those of the recorded controller, byte for byte, and none may be missing.
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

PAGE = Path(__file__).parents[3] / "docs" / "quorum-differences.md"


@cache
def play_scene(scene: Scene) -> Play:
    return play(scene)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_controller_answers_and_writes_as_recorded(scene: Scene) -> None:
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
    """No recorded request to a controller is left out silently."""
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


def test_first_boot_of_a_lone_controller_matches_its_snapshot() -> None:
    """The writes of a lone controller were not recorded; its snapshot has the same metadata."""
    (scene,) = (scene for scene in SCENES if scene.number == "06a")
    image = play_scene(scene).controller.state.image
    ours = [pack(record) for group in snapshot_contents(image) for record in group]
    name = SnapshotId(51, 1)
    recorded = SnapshotReader(name, snapshots("second")[name]).records()
    assert sorted(ours) == sorted(pack(record) for record in recorded)
