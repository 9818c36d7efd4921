"""SaslHandshake (API key 17): rejected where the client does not have to authenticate.

Listeners with SASL answer it before a request gets here (:mod:`kwire.net.log_in`).
"""

from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.errors import IllegalSaslState
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles


@handles(SaslHandshakeRequest)
async def sasl_handshake(context: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    raise IllegalSaslState
