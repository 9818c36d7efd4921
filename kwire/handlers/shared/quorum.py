"""Passes requests to the metadata quorum, which answers them.

Nothing is decided here: the raft node receives the requests in the order of arrival.
"""

from typing import TYPE_CHECKING, TypeVar

from kwire.handlers.shared.context import Context

if TYPE_CHECKING:  # An alias for type checking only.
    from kwire.raftmeta.raft.events import RaftRequest

Resp = TypeVar("Resp")


async def ask_quorum(context: Context, request: "RaftRequest", response_type: type[Resp]) -> Resp:
    """Return the raft node's response, after checking that it is a ``response_type``."""
    response = await context.quorum.handle(request, context.listener)
    assert isinstance(response, response_type)
    return response
