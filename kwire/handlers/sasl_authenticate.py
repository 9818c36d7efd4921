"""SaslAuthenticate (API key 36): rejected where the client does not have to authenticate.

Listeners with SASL answer it before a request gets here (:mod:`kwire.net.log_in`).
"""

from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.errors import IllegalSaslState, KafkaError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


def refuse(request: SaslAuthenticateRequest, error: KafkaError) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=error.code, error_message=error.text, auth_bytes=b"")


@handles(SaslAuthenticateRequest, refuse=refuse)
async def sasl_authenticate(
    context: Context, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    raise IllegalSaslState("SaslAuthenticate request received after successful authentication")
