"""Scenarios that must fail, each because of a mistake that is made on purpose."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from simulation.raft.mutations import MUTATIONS
from tests.quorum import test_elections as elections
from tests.quorum import test_log as log
from tests.quorum import test_voters as voters
from tests.support.quorum.cluster import Cluster, Shape
from tests.support.quorum.simulated import SimulatedCluster

MISTAKES: Final = {mutation.name: mutation for mutation in MUTATIONS}
NOTICED_BY: Final[dict[str, Callable[[Any], None]]] = {
    "no-truncation": log.test_uncommitted_records_of_an_isolated_leader_are_truncated,
    "no-divergence-check": log.test_uncommitted_records_of_an_isolated_leader_are_truncated,
    "send-before-fsync": log.test_a_crash_of_all_loses_nothing_acknowledged,
    "never-resign": elections.test_a_leader_without_a_majority_resigns,
    "skip-pre-vote": elections.test_voter_cut_off_from_its_leader_alone_disturbs_no_other,
    "pre-vote-always": elections.test_voter_cut_off_from_its_leader_alone_disturbs_no_other,
    "ignore-directory-id": voters.test_a_voter_without_its_disk_does_not_vote_as_itself,
}


def make(
    ids: tuple[int, ...] = (1, 2, 3),
    others: tuple[int, ...] = (),
    *,
    is_dynamic: bool = False,
    **settings: Any,
) -> Cluster:
    return SimulatedCluster(Shape(ids, others, is_dynamic, settings), files=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTICED_BY)
def test_a_scenario_notices(name: str) -> None:
    scenario = NOTICED_BY[name]
    takes_cluster = "cluster" in scenario.__code__.co_varnames[: scenario.__code__.co_argcount]
    scenario(make() if takes_cluster else make)
    with MISTAKES[name].active(), pytest.raises(Exception, match=r"(?s).*"):
        scenario(make() if takes_cluster else make)
