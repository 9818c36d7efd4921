"""Envelope (API key 58): a request that a broker forwards for its client (KIP-590).

The inner request is answered as if the client had sent it to the controller; the broker returns the
response to the client without parsing it. Only APIs that brokers forward are accepted, and only by
the active controller. If it resigns meanwhile, the response is NOT_CONTROLLER and the broker asks
the next one. A request that cannot be parsed is assumed to have an unknown version: the response is
UNSUPPORTED_VERSION, and the broker closes the client's connection.
"""

import ipaddress

import attrs

from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.compile import decode
from kwire.codec.frame import read_header
from kwire.codec.messages.envelope import EnvelopeRequest, EnvelopeResponse
from kwire.codec.messages.principal import DefaultPrincipal
from kwire.codec.primitives import MalformedError
from kwire.errors import (
    InvalidRequest,
    NotController,
    PrincipalDeserializationFailure,
    UnsupportedVersion,
)
from kwire.handlers.dispatch import Dispatcher
from kwire.handlers.shared.context import CLUSTER, Context, Principal
from kwire.handlers.shared.handler import handles
from kwire.net.framing import Disconnect


@handles(EnvelopeRequest)
async def envelope(context: Context, request: EnvelopeRequest) -> EnvelopeResponse:
    context.check_allowed("ClusterAction", "Cluster", CLUSTER)
    if not context.quorum.leader().is_active:
        raise NotController
    stored, host = _principal(request), _host(request)
    try:
        head, _ = read_header(request.request_data)
    except MalformedError as error:
        raise UnsupportedVersion(str(error)) from error
    if not BY_KEY[head.api_key].forwarded:
        raise InvalidRequest
    dispatcher = Dispatcher(context.services, ListenerType.CONTROLLER)
    requests = dispatcher.for_connection(context.listener, host)
    requests.context = attrs.evolve(
        requests.context,
        principal=Principal(stored.type, stored.name),
        by_token=stored.token_authenticated,
        may_forward=True,
    )
    try:
        parts = await requests.answer(memoryview(request.request_data))
    except Disconnect as error:
        raise UnsupportedVersion(str(error)) from error
    return EnvelopeResponse(response_data=b"".join(parts)[4:] if parts is not None else None)


def _host(request: EnvelopeRequest) -> str:
    try:
        return str(ipaddress.ip_address(bytes(request.client_host_address)))
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def _principal(request: EnvelopeRequest) -> DefaultPrincipal:
    """Decode the client's principal, which follows its two-byte version."""
    data = request.request_principal or b""
    try:
        return decode(DefaultPrincipal, data[2:], int.from_bytes(data[:2], "big"))
    except (MalformedError, ValueError) as error:
        raise PrincipalDeserializationFailure(str(error)) from error
