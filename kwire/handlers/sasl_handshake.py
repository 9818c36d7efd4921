"""SaslHandshake (API key 17): refused, for no listener asks for authentication yet."""

from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.errors import IllegalSaslState, KafkaError
from kwire.handlers.dispatch import Context, handles


def failed(request: SaslHandshakeRequest, error: KafkaError) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error.code)


@handles(SaslHandshakeRequest, failed=failed)
async def sasl_handshake(context: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    raise IllegalSaslState
