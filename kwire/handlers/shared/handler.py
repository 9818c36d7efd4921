"""A handler: the function that answers the requests of one API, and its responses to errors.

A handler sees only the newest shape of a request, raises :class:`~kwire.errors.KafkaError` for
errors that have a code in the protocol, and returns ``None`` if no response must be sent. Any other
exception is a bug: it is logged with its traceback and answered as UnknownServerError.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, overload

import attrs

from kwire.codec.apis import BY_KEY
from kwire.codec.frame import Body
from kwire.codec.schema import fields, spec_of
from kwire.errors import KafkaError, NotController, UnknownServerError
from kwire.handlers.shared.context import Context
from kwire.net.framing import Disconnect
from kwire.net.waiting_answers import Unfinished

logger = logging.getLogger(__name__)

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Function = Callable[[Context, Req], Awaitable[Resp | Unfinished[Resp] | None]]


def _discard_nothing(response: object) -> None:
    """Do nothing: most responses hold only memory."""


@attrs.frozen(eq=False, repr=False)
class Handler(Generic[Req, Resp]):
    """One API: its request type, its function, and its responses to errors."""

    request_type: type[Req]
    function: Function[Req, Resp]
    refuse: Callable[[Req, KafkaError], Resp | None]
    """Builds the response to a request that fails as a whole."""
    discard: Callable[[Resp], None] = _discard_nothing
    """Releases the resources of a response that will not be sent."""
    calls_controller: bool = False
    """True if the handler itself calls the active controller, so no frame is forwarded."""

    async def __call__(self, context: Context, request: Req) -> Resp | None:
        """Return the response, or None if none must be sent."""
        result = await self.begin(context, request)
        if isinstance(result, Unfinished):
            return await self.finish(context, request, result)
        return result

    async def begin(self, context: Context, request: Req) -> Resp | Unfinished[Resp] | None:
        """Return the response, or the wait that is left after the request's work is done."""
        try:
            return await self.function(context, request)
        except Exception as error:  # noqa: BLE001  A bug is logged.
            return self._answer_to(error, context, request)

    async def finish(
        self, context: Context, request: Req, unfinished: Unfinished[Resp]
    ) -> Resp | None:
        """Wait and return the response."""
        try:
            return await unfinished.finish()
        except Exception as error:  # noqa: BLE001  A bug is logged.
            return self._answer_to(error, context, request)

    def _answer_to(self, error: Exception, context: Context, request: Req) -> Resp | None:
        """Return the response to a failed request; raise what the connection has to handle."""
        if isinstance(error, Disconnect):
            raise error
        if isinstance(error, KafkaError):
            if context.may_forward and isinstance(error, NotController):
                raise error
            return self.refuse(request, error)
        logger.error("request failed api=%s", self.request_type.__name__, exc_info=error)
        return self.refuse(request, UnknownServerError())


@overload
def handles(
    request_type: type[Req],
) -> Callable[
    [Callable[[Context, Req], Awaitable[Resp | Unfinished[Resp] | None]]], Handler[Req, Resp]
]: ...


@overload
def handles(
    request_type: type[Req], *, discard: Callable[[Resp], None]
) -> Callable[
    [Callable[[Context, Req], Awaitable[Resp | Unfinished[Resp] | None]]], Handler[Req, Resp]
]: ...


@overload
def handles(
    request_type: type[Req],
    *,
    refuse: Callable[[Req, KafkaError], Resp | None],
    calls_controller: bool = False,
) -> Callable[
    [Callable[[Context, Req], Awaitable[Resp | Unfinished[Resp] | None]]], Handler[Req, Resp]
]: ...


def handles(
    request_type: type[Req],
    *,
    refuse: Callable[[Req, KafkaError], Body] | None = None,
    discard: Callable[[Body], None] = _discard_nothing,
    calls_controller: bool = False,
) -> Callable[[Callable[[Context, Req], Awaitable[Body]]], Handler[Req, Body]]:
    """Make an ``async def`` the handler of one API.

    ``refuse`` builds the response to a request that fails as a whole. It is needed only if that is
    more than the response's own error code and, if it has one, error message.
    """
    refuse_request = _refuse_with_error_code(request_type) if refuse is None else refuse

    def decorate(function: Callable[[Context, Req], Awaitable[Body]]) -> Handler[Req, Body]:
        return Handler(request_type, function, refuse_request, discard, calls_controller)

    return decorate


def _refuse_with_error_code(request_type: type) -> Callable[[object, KafkaError], Body]:
    """Return a function whose responses contain only an error code, and its text if possible."""
    key = spec_of(request_type).api_key
    assert key is not None, "only requests have handlers"
    response_type: Callable[..., Body] = BY_KEY[key].response
    if any(field.name == "error_message" for field in fields(BY_KEY[key].response)):
        return lambda request, error: response_type(error_code=error.code, error_message=error.text)
    return lambda request, error: response_type(error_code=error.code)
