"""SaslHandshake (API key 17): its request and its response."""

from kwire.codec.schema import Array, Int16, Request, String, field, message


@message(api_key=17, versions="0-1")
class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    mechanism: String = field("0+")


@message(api_key=17, versions="0-1")
class SaslHandshakeResponse:
    error_code: Int16 = field("0+", default=0)
    mechanisms: Array[String] = field("0+", factory=list)
