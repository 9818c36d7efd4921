"""Mistakes with leases that suspended machines and firewalls reveal."""

from typing import Final

from kwire.net.controller_channel import ControllerChannel
from kwire.raftmeta.broker.session_lease import SessionLease
from kwire.raftmeta.raft import progress
from kwire.raftmeta.raft.roles import Leader
from kwire.raftmeta.raft.state import RaftState
from simulation.raft.mutations import Mutation

_may_be_replaced = progress.may_be_replaced


def _miss_nothing(lease: SessionLease) -> float:
    return 0.0


async def _refuses_any(channel: ControllerChannel) -> bool:
    refused = set[int]()
    for node in channel._quorum.voter_nodes:
        await channel._probe(node, refused)
    return bool(refused)


def _is_in_office_after_resigning(state: RaftState, now: float) -> bool:
    return isinstance(state.role, Leader) and _may_be_replaced(state, now)


MUTATIONS: Final = (
    Mutation(
        "leases-stand-still-with-the-machine",
        "a lease does not include the time for which the machine was suspended",
        ((SessionLease, "_missed_s", _miss_nothing),),
        (34,),
        stage="suspend-leader",
    ),
    Mutation(
        "one-refusal-ends-all-controllers",
        "a broker takes all controllers for ended when one refuses its connections",
        ((ControllerChannel, "is_gone", _refuses_any),),
        (34,),
        stage="refuse-leader",
    ),
    Mutation(
        "resigned-controllers-answer",
        "a controller that has resigned answers from its own state until it hears of that",
        ((progress, "may_be_replaced", _is_in_office_after_resigning),),
        (34, 48),
    ),
)
