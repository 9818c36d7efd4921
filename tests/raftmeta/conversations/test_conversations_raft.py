"""Compare the messages of kwire's raft with those of Apache Kafka's nodes in the recordings.

Each scene replays one node. Its messages are compared field by field with those of the recorded
node, and the batches that a leader writes byte by byte; any difference must be in the table of
differences. The tests also compare how many messages each scene has, and how often each difference
occurs, so that one additional request fails.
"""

import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from kwire.codec.messages.control_records import LeaderChangeMessage
from kwire.raftmeta.raft.control_records import control_records
from kwire.records.header import parse
from tests.support.raftmeta import broker_replay, controller_replay
from tests.support.raftmeta.conversations import CLUSTERS, name_of, recording
from tests.support.raftmeta.differences import CHANCE, DIFFERENCES, OURS, excuse
from tests.support.raftmeta.replay import Replay
from tests.support.raftmeta.scenes import SCENES, Scene
from tests.support.raftmeta.stage import play, standalone

PAGE = Path(__file__).parents[3] / "docs" / "quorum-differences.md"
COUNTED = Path(__file__).parents[2] / "golden" / "conversations.txt"


@cache
def play_scene(scene: Scene) -> Replay:
    return play(scene)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_raft_messages_match_the_recording(scene: Scene) -> None:
    replay = play_scene(scene)
    unexcused = [deviation for deviation in replay.deviations if excuse(deviation) is None]
    assert not unexcused, unexcused[0]


def tally(scene: Scene) -> str:
    """Return the number of comparisons, and of the deviations that each difference excuses."""
    replay = play_scene(scene)
    met = Counter(
        f"{row.name} ({deviation.api.split()[0]})"
        for deviation in replay.deviations
        if (row := excuse(deviation))
    )
    lines = [f"{times:4} {name}" for name, times in sorted(met.items())]
    return "\n".join([f"{scene}: {sum(replay.compared.values())} compared", *lines, ""])


def test_counts_of_differences_match_the_golden_file() -> None:
    """``KWIRE_REWRITE=1`` counts anew; the difference is then read in review."""
    counts = "".join(tally(scene) for scene in SCENES)
    if os.environ.get("KWIRE_REWRITE"):
        COUNTED.write_text(counts)
    assert COUNTED.read_text() == counts


def test_every_listed_difference_occurs() -> None:
    met = {excuse(deviation) for scene in SCENES for deviation in play_scene(scene).deviations}
    assert set(DIFFERENCES) <= met


def test_every_scenario_is_played() -> None:
    numbers = {number for listed in CLUSTERS.values() for number in listed}
    assert {scene.number for scene in SCENES} == numbers


def test_documents_have_the_current_counts() -> None:
    total = sum(sum(play_scene(scene).compared.values()) for scene in SCENES)
    for page in (PAGE, PAGE.with_name("testing.md")):
        text = " ".join(page.read_text().split())
        assert f"{len(SCENES)} scenes of one node each" in text
        assert f"{total} " in text


def test_every_frame_is_compared_or_accounted_for() -> None:
    """No frame of the quorum is left out: its sender was replayed, and its outcome is known.

    Clients are not replayed, and a node answers ApiVersions without its raft.
    """
    frames = [
        frame
        for number in {scene.number for scene in SCENES}
        for frame in recording(number).frames
        if frame.is_raft and frame.source != "client"
        if frame.is_request or frame.api != "ApiVersions"
    ]
    kinds: Counter[str] = Counter()
    for scene in SCENES:
        replay = play_scene(scene)
        kinds["compared"] += sum(replay.compared.values()) - replay.compared["batch"]
        own = f" {name_of(scene.node)}>"
        kinds.update(deviation.kind for deviation in replay.deviations if own in deviation.where)
    passed = ("itself", "busy re-fetch", "overtaken", "asked before", "of an earlier life")
    assert len(frames) == kinds["compared"] + sum(kinds[kind] for kind in passed)


def test_lone_controller_leads_at_once_and_writes_its_voters() -> None:
    """06a: it leads at once, sends no request, and its voters move from the format into the log."""
    (scene,) = (scene for scene in SCENES if scene.alone)
    replay = play_scene(scene)
    assert replay.raft.state.leader_id == scene.node
    assert replay.raft.state.epoch == 1
    formatted = [message for _, message in control_records(standalone(), 0, parse(standalone()))]
    ((base, following, data),) = replay.disk.batches
    written = [message for _, message in control_records(data, 0, parse(data))]
    assert (base, following) == (0, 3)
    assert written[1:] == formatted[1:]
    change = written[0]
    assert isinstance(change, LeaderChangeMessage)
    assert change.leader_id == 1
    assert [v.voter_id for v in change.voters] == [v.voter_id for v in change.granting_voters]


def test_the_page_lists_every_difference() -> None:
    text = " ".join(PAGE.read_text().split())
    listed = [f"- **{row.name}.** {row.reason}" for row in (*OURS, *CHANCE)]
    assert [line for line in listed if line not in text] == []
    others = (controller_replay, broker_replay)
    assert text.count("- **") == len(listed) + sum(len(other.DIFFERENCES) for other in others)
