"""Mistakes in moves of replicas between the log directories of their brokers."""

from typing import Final

from kwire.log.directories.log_move import LogMove
from simulation.raft.mutations import Mutation


def _has_moved(move: LogMove) -> bool:
    return move.future.writer.written_offset == move.future.end_offset


async def _copy_once(move: LogMove, *, is_throttled: bool = True) -> None:
    if not move.future.end_offset:
        await move._copy_slice(move.log.clean_state.removal_count)


MUTATIONS: Final = (
    Mutation(
        "moves-end-early",
        "a log moves to its copy although that lacks the last records",
        ((LogMove, "copy", _copy_once), (LogMove, "_is_equal", _has_moved)),
        invariants=(1,),
    ),
)
