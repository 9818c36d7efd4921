"""Mistakes in changes of voters and of feature levels; the simulation must catch them."""

from collections.abc import Mapping
from typing import Final

from kwire.raftmeta.controller import controller as controller_module
from kwire.raftmeta.controller import feature_updates
from kwire.raftmeta.raft.voters import VoterHistory, VoterSet
from kwire.raftmeta.storage.levels import NEWEST
from simulation.raft.mutations import Mutation


def _half(voters: VoterSet) -> int:
    return (len(voters) + 1) // 2


def _first_voters(history: VoterHistory) -> VoterSet:
    return history.sets[0][1] if history.sets else VoterSet()


def _support_all(*_: object) -> None:
    """Accept every level."""


def _newest_level(features: Mapping[str, int]) -> int:
    return NEWEST


MUTATIONS: Final = (
    Mutation(
        "half-of-the-voters-commits",
        "half of an even number of voters counts as a majority",
        ((VoterSet, "majority", property(_half)),),
        (43, 46),
    ),
    Mutation(
        "first-voters-for-ever",
        "a node goes on with the first voters of its log when the voters have changed",
        ((VoterHistory, "latest", property(_first_voters)),),
        (43, 46),
    ),
    Mutation(
        "levels-without-support",
        "the level of a feature is raised above what a node of the cluster supports",
        ((feature_updates, "_check_supported", _support_all),),
        (),
    ),
    Mutation(
        "records-of-the-newest-level",
        "records have fields that nodes of the cluster's metadata.version cannot read",
        ((controller_module, "level_of", _newest_level),),
        (),
    ),
)
