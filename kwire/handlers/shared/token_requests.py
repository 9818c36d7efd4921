"""The shared rules of requests about delegation tokens: who may send them, and who decides.

A client that authenticated with a token cannot use these requests, nor can an anonymous client. The
client's broker checks that, because the active controller, which decides, sees only the client's
principal.
"""

from functools import partial
from typing import Protocol, TypeVar

from kwire.codec.apis import ListenerType
from kwire.errors import DelegationTokenRequestNotAllowed
from kwire.handlers.shared.context import ANONYMOUS, Context
from kwire.raftmeta.controller.delegation_tokens import TokenCaller
from kwire.raftmeta.controller.state import ControllerState, Deciding

Req = TypeVar("Req")
Req_contra = TypeVar("Req_contra", contravariant=True)
Resp = TypeVar("Resp")
Resp_co = TypeVar("Resp_co", covariant=True)


class TokenDecider(Protocol[Req_contra, Resp_co]):
    """A function of the controller that decides on a client's request."""

    def __call__(
        self, state: ControllerState, request: Req_contra, *, caller: TokenCaller
    ) -> Deciding[Resp_co]: ...


def check_token_requests(context: Context) -> None:
    """Raise DelegationTokenRequestNotAllowed if the client may not send requests about tokens."""
    is_forwarded = context.may_forward and context.listener_type is ListenerType.CONTROLLER
    protocol = context.config.protocols.get(context.listener, "PLAINTEXT")
    is_unknown = protocol == "PLAINTEXT" or (protocol == "SSL" and context.principal == ANONYMOUS)
    if context.by_token or (is_unknown and not is_forwarded):
        raise DelegationTokenRequestNotAllowed


async def decide(context: Context, decider: TokenDecider[Req, Resp], request: Req) -> Resp:
    """Return the active controller's response to a request."""
    caller = TokenCaller(*context.principal, context.clock.now_ms())
    deciding = partial(decider, caller=caller)
    if context.listener_type is not ListenerType.BROKER:
        return await context.decide(deciding, request)
    active = context.services.active_controller
    return await active.call(deciding, request, context.requester, in_force=True)
