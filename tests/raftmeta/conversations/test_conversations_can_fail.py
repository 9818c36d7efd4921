"""The replay of the recorded conversations detects mistakes that are made here on purpose."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from kwire.raftmeta.raft import messages, progress, quorum_epochs, replication, voting
from kwire.raftmeta.raft.state import RaftState
from tests.support.raftmeta.differences import excuse
from tests.support.raftmeta.scenes import SCENES
from tests.support.raftmeta.stage import play

poll_fetch = replication.poll_fetch
preferred_candidates = progress.preferred_candidates


def fetch_from_non_leader(state: RaftState) -> None:
    """Send a second Fetch, to a voter that does not lead."""
    poll_fetch(state)
    for node in state.other_voters:
        if node.id != state.leader_id:
            state.send(node, messages.fetch_request(state))


MISTAKES: Final[dict[str, tuple[str, Any, str, Callable[..., Any]]]] = {
    "pre-votes while the leader answers": ("04-n2", voting, "_would_vote", lambda _: True),
    "a second vote in an epoch": ("15-n3", voting, "_may_vote", lambda *_: True),
    "candidates in reverse order": (
        "13-n2",
        progress,
        "preferred_candidates",
        lambda *args: preferred_candidates(*args)[::-1],
    ),
    "EndQuorumEpoch without end": ("13-n2", quorum_epochs, "on_end_answer", lambda *_: None),
    "no pause after a refusal": ("06f-n2", RaftState, "pause_fetching", lambda *_: None),
    "one Fetch too many": ("02-n1", replication, "poll_fetch", fetch_from_non_leader),
    "a broker asks one node too many": ("03-n11", replication, "poll_fetch", fetch_from_non_leader),
    "no truncation": ("04-n11", replication, "_truncate", lambda *_: None),
    "the high watermark is not sent": (
        "07-n2",
        messages,
        "own_high_watermark",
        lambda state: None,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_replay_notices_the_mistake(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, where, function, wrong = MISTAKES[mistake]
    (scene,) = (scene for scene in SCENES if str(scene) == name)
    assert not [deviation for deviation in play(scene).deviations if excuse(deviation) is None]
    monkeypatch.setattr(where, function, wrong)
    assert [deviation for deviation in play(scene).deviations if excuse(deviation) is None]
