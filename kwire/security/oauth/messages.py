"""The messages of OAUTHBEARER (RFC 7628), as bytes.

A client sends its access token, and extensions, which kwire ignores. The answer to a rejected token
is a JSON object, which the client acknowledges with one byte before the login fails. Apache Kafka's
rules decide whether a message is well-formed. Parsing is linear in the length of a message, and
messages longer than :data:`MESSAGE_BYTES_MAX` are not parsed at all.
"""

import json
import re
from typing import Final, NamedTuple

from kwire.security.exchange import AuthenticationFailed
from kwire.security.scram import decode_name

OAUTHBEARER: Final = "OAUTHBEARER"
LOGIN_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MESSAGE_BYTES_MAX: Final = 64 << 10
"""The longest message that is parsed; the tokens of identity providers have 1 to 8 KB."""
ACKNOWLEDGEMENT: Final = b"\x01"
"""The client's answer to the error object."""
_KEY: Final = re.compile("[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH: Final = re.compile(r"([A-Za-z0-9_]+) +([-_~+/.A-Za-z0-9]+=*)")


class TokenRejected(Exception):
    """An access token is not accepted; the reason is for the log and never shows the token."""

    def __init__(self, reason: str, scope: str = "") -> None:
        super().__init__(reason)
        self.scope = scope
        """The scope that the token lacks; empty for any other reason."""


class ClientMessage(NamedTuple):
    """A client's first message."""

    token: str
    authorization_id: str
    """The user whom the client names; empty if it names none."""


def parse_client_message(message: bytes) -> ClientMessage:
    """Return the token in a client's first message; raise AuthenticationFailed."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationFailed(f"an OAUTHBEARER message of {len(message)} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise _format_error("it is not UTF-8") from None
    header, separator, rest = text.partition("\x01")
    parts = header.split(",")
    if not separator or len(parts) != 3 or parts[0] != "n" or parts[2]:
        raise _format_error("its header is not n,,")
    if parts[1] and not parts[1].startswith("a="):
        raise _format_error("its header has no authorization id")
    pairs = {}
    *texts, end, last = rest.split("\x01") if rest.count("\x01") > 1 else ("", "x", "x")
    if end or last:
        raise _format_error("its end is missing")
    for pair in texts:
        key, equals, value = pair.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise _format_error("a pair of key and value is not valid")
        pairs[key] = value
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth[1].lower() != "bearer":
        raise _format_error("it has no bearer token")
    return ClientMessage(auth[2], decode_name(parts[1].removeprefix("a=")))


def _format_error(why: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"a malformed OAUTHBEARER message: {why}")


def client_message(token: str, extensions: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return the message with which a client logs in; raise ValueError for invalid values."""
    if not _AUTH.fullmatch(f"Bearer {token}"):
        raise ValueError("the access token has a character that no token may have")
    pairs = [f"auth=Bearer {token}"]
    for key, value in extensions:
        if key == "auth" or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise ValueError(f"the extension {key} is not valid")
        pairs.append(f"{key}={value}")
    return ("n,,\x01" + "\x01".join(pairs) + "\x01\x01").encode()


def error_object(rejected: TokenRejected) -> str:
    """Return the JSON object that tells a client why its token was rejected."""
    if rejected.scope:
        return f'{{"status":"insufficient_scope", "scope":{json.dumps(rejected.scope)}}}'
    return '{"status":"invalid_token"}'
