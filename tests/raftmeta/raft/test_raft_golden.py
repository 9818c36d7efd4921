"""Transcripts of an election, a divergence, a snapshot and a voter change.

``KWIRE_REWRITE=1 pytest tests/raftmeta/raft/test_raft_golden.py`` writes them anew; the difference
is then read in review.
"""

import os
from pathlib import Path

import pytest

from simulation.raft.script import play

STORIES = sorted((Path(__file__).parents[2] / "golden" / "raft").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_transcript(story: Path) -> None:
    transcript = play(story.read_text())
    if os.environ.get("KWIRE_REWRITE"):
        story.write_text(transcript)
    assert story.read_text() == transcript


def test_there_are_transcripts() -> None:
    assert {story.stem for story in STORIES} >= {"election", "divergence", "snapshot", "voters"}
