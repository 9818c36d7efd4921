"""A handler: the function that answers the requests of one API, and its answers to errors.

A handler sees only the newest shape of a request, raises :class:`~kwire.errors.KafkaError` for
errors that the protocol has a code for, and returns ``None`` when no answer is to be sent.  Any
other exception is a bug: logged once with its traceback, answered as UnknownServerError.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, overload

import attrs

from kwire.codec.apis import BY_KEY
from kwire.codec.schema import fields, spec_of
from kwire.errors import KafkaError, NotController, UnknownServerError
from kwire.handlers.shared.context import Context
from kwire.net.framing import Disconnect

log = logging.getLogger(__name__)

Req = TypeVar("Req")
Resp = TypeVar("Resp")


def _keep(response: Any) -> None:
    """Do nothing: most answers hold only memory."""


@attrs.frozen
class Handler(Generic[Req, Resp]):
    """One API: its request type, its function, and its answer to errors."""

    request_type: type[Req]
    function: Callable[[Context, Req], Awaitable[Resp | None]]
    failed: Callable[[Req, KafkaError], Resp | None]
    """Makes the answer to a request that fails as a whole."""
    refused: Callable[[Context, Req], list[Any]] | None = None
    """Removes from a request the resources that a broker refuses itself before it forwards the
    rest; returns the results for them."""
    discard: Callable[[Resp], None] = _keep
    """Releases the resources of an answer that will not be sent."""

    async def __call__(self, context: Context, request: Req) -> Resp | None:
        try:
            return await self.function(context, request)
        except KafkaError as error:
            if context.may_forward and isinstance(error, NotController):
                raise
            return self.failed(request, error)
        except Disconnect:
            raise
        except Exception:
            log.exception("request failed api=%s", self.request_type.__name__)
            return self.failed(request, UnknownServerError())


@overload
def handles(
    request_type: type[Req], *, discard: Callable[[Any], None] = _keep
) -> Callable[[Callable[[Context, Req], Awaitable[Resp | None]]], Handler[Req, Resp]]: ...


@overload
def handles(
    request_type: type[Req],
    *,
    failed: Callable[[Req, KafkaError], Resp | None],
    refused: Callable[[Context, Req], list[Any]] | None = None,
    discard: Callable[[Resp], None] = _keep,
) -> Callable[[Callable[[Context, Req], Awaitable[Resp | None]]], Handler[Req, Resp]]: ...


def handles(
    request_type: type[Any],
    *,
    failed: Callable[[Any, KafkaError], Any] | None = None,
    refused: Callable[[Context, Any], list[Any]] | None = None,
    discard: Callable[[Any], None] = _keep,
) -> Callable[[Callable[[Context, Any], Awaitable[Any]]], Handler[Any, Any]]:
    """Make an ``async def`` the handler of one API.

    ``failed`` makes its answer to an error, where that is more than the response's own error code
    and, if it has one, error message.
    """
    answer = _failed_as_a_whole(request_type) if failed is None else failed

    def decorate(function: Callable[[Context, Any], Awaitable[Any]]) -> Handler[Any, Any]:
        return Handler(request_type, function, answer, refused, discard)

    return decorate


def _failed_as_a_whole(request_type: type[Any]) -> Callable[[Any, KafkaError], Any]:
    """Return the function that answers with an error code and nothing else but its text."""
    key = spec_of(request_type).api_key
    assert key is not None, "only requests have handlers"
    response_type = BY_KEY[key].response
    if any(field.name == "error_message" for field in fields(response_type)):
        return lambda request, error: response_type(error_code=error.code, error_message=error.text)
    return lambda request, error: response_type(error_code=error.code)
