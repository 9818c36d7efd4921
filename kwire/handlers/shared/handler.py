"""A handler: the function that answers the requests of one API, and its responses to errors.

A handler sees only the newest shape of a request, raises :class:`~kwire.errors.KafkaError` for
errors that have a code in the protocol, and returns ``None`` if no response must be sent. Any other
exception is a bug: it is logged with its traceback and answered as UnknownServerError.

A handler is one of three kinds of functions. An ``async def`` is awaited for each request. If most
requests do not have to wait, the handler can be a generator, which yields what a request has to
await (:data:`kwire.waits.Steps`), or a plain function, which returns the response or a
:class:`~kwire.waits.Slow`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import Final, Generic, TypeAlias, TypeVar

import attrs

from kwire.codec.apis import BY_KEY
from kwire.codec.emit_flat import Values
from kwire.codec.frame import Body
from kwire.codec.schema import fields, spec_of
from kwire.errors import KafkaError, NotController, UnknownServerError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.shared_response import SharedResponse
from kwire.net.framing import Disconnect
from kwire.net.waiting_answers import Unfinished
from kwire.waits import Slow, Steps, run_until_wait

logger = logging.getLogger(__name__)

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Result: TypeAlias = Slow[Resp | Unfinished[Resp] | None] | Resp | None
"""The response of a handler, None if there must not be one, or what the request has to wait for."""
Function = Callable[[Context, Req], Result[Resp]]


_NO_FIELDS: Final[Mapping[str, object]] = {}


def _discard_nothing(response: object) -> None:
    """Do nothing, because most responses hold only memory."""


@attrs.frozen(eq=False, repr=False)
class Flat:
    """A second form of a handler, for requests in the usual shape (:mod:`kwire.codec.emit_flat`).

    It takes a request's values and returns the response's values, without message objects. It has
    no rules of its own: it shares them with the handler.
    """

    function: Callable[..., Values | Slow[Body] | Body]
    """Returns the values of the response, the response itself, or what the request has to wait for.
    Before it has any effect, it may instead return None or raise KafkaError to have the handler
    answer.
    """
    since: int
    """The first version whose values are the function's arguments."""
    request_ones: tuple[str, ...] = ()
    """The arrays of the request that have one element."""
    request_few: tuple[str, ...] = ()
    """The arrays of the request that have a few elements."""
    request_texts: tuple[str, ...] = ()
    """The string fields of the request that may be null or not."""
    response_few: tuple[str, ...] = ()
    """The arrays of the response for which the function returns lists of tuples."""
    response_fields: tuple[str, ...] = ()
    """The fields of the response whose values the function returns; the last field is the throttle
    time, which the function leaves out. Empty if the function returns responses.
    """
    needs_request: bool = True
    """True if the response to an error depends on the request."""
    takes_version: bool = False
    """True if the function has a last argument ``version``, the version of the request."""
    request_optional: tuple[str, ...] = ()
    """The fields that some versions lack, or have as the structure's tagged field."""


@attrs.frozen(eq=False, repr=False)
class Handler(Generic[Req, Resp]):
    """One API: its request type, its function, and its responses to errors."""

    request_type: type[Req]
    function: Function[Req, Resp]
    refuse: Callable[[Req, KafkaError], Resp | None]
    """Builds the response to a request that fails as a whole."""
    discard: Callable[[Resp], None] = _discard_nothing
    """Releases the resources of a response, or of its values, that will not be sent."""
    calls_controller: bool = False
    """True if the handler itself calls the active controller, so no frame is forwarded."""
    flat: Flat | None = None

    async def __call__(self, context: Context, request: Req) -> Resp | None:
        """Return the response, or None if none must be sent."""
        result = self.begin(context, request)
        try:
            while isinstance(result, Slow):
                result = await result.finish()
        except Exception as error:  # noqa: BLE001  A bug is logged.
            return self.answer_to(error, context, request)
        return result.build() if isinstance(result, SharedResponse) else result

    def begin(self, context: Context, request: Req) -> Result[Resp]:
        """Return the response, or what the request still has to wait for."""
        try:
            return self.function(context, request)
        except Exception as error:  # noqa: BLE001  A bug is logged.
            return self.answer_to(error, context, request)

    def answer_to(self, error: Exception, context: Context, request: Req) -> Resp | None:
        """Return the response to a failed request; raise errors for the connection to handle."""
        if isinstance(error, Disconnect):
            raise error
        if isinstance(error, KafkaError):
            if context.may_forward and isinstance(error, NotController):
                raise error
            return self.refuse(request, error)
        logger.error("request failed api=%s", self.request_type.__name__, exc_info=error)
        return self.refuse(request, UnknownServerError())


def handles(
    request_type: type[Req],
    *,
    refuse: Callable[[Req, KafkaError], Body] | None = None,
    refused: Mapping[str, object] = _NO_FIELDS,
    discard: Callable[[Body], None] = _discard_nothing,
    calls_controller: bool = False,
    flat: Flat | None = None,
) -> Callable[[Callable[[Context, Req], object]], Handler[Req, Body]]:
    """Make a function the handler of one API.

    ``refuse`` builds the response to a request that fails as a whole. Without it, such a response
    consists of the error code, the error message if it has one, and the fields ``refused``.
    """
    refuse_request = refuse or _refuse_with_error_code(request_type, refused)

    def decorate(function: Callable[[Context, Req], object]) -> Handler[Req, Body]:
        begin = function
        if iscoroutinefunction(function):
            begin = partial(_begin_slow, function)
        elif isgeneratorfunction(function):
            begin = partial(_begin_steps, function)
        return Handler(request_type, begin, refuse_request, discard, calls_controller, flat)

    return decorate


def _begin_steps(
    function: Callable[[Context, Req], Steps[Resp]], context: Context, request: Req
) -> Resp | Slow[Resp]:
    return run_until_wait(function(context, request))


def _begin_slow(
    function: Callable[[Context, Req], Awaitable[Resp]], context: Context, request: Req
) -> Slow[Resp]:
    return Slow(partial(function, context, request))


def _refuse_with_error_code(
    request_type: type, others: Mapping[str, object]
) -> Callable[[object, KafkaError], Body]:
    """Return a function whose responses contain an error code, if possible its text, and others."""
    key = spec_of(request_type).api_key
    assert key is not None, "only requests have handlers"
    response_type: Callable[..., Body] = BY_KEY[key].response
    if any(field.name == "error_message" for field in fields(BY_KEY[key].response)):
        return lambda request, error: response_type(
            error_code=error.code, error_message=error.text, **others
        )
    return lambda request, error: response_type(error_code=error.code, **others)
