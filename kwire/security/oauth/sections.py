"""The sections of an access token (JWT) before anything about it is verified."""

import json
from base64 import urlsafe_b64decode

from kwire.security.oauth.messages import TokenRejected


def decode_section(section: str) -> dict[str, object]:
    """Return the JSON object in a section of a token; raise TokenRejected."""
    try:
        decoded = json.loads(urlsafe_b64decode(section + "=" * (-len(section) % 4)))
    except (ValueError, RecursionError):
        raise TokenRejected("a section of the token is malformed") from None
    if not isinstance(decoded, dict):
        raise TokenRejected("a section of the token is not a JSON object")
    return decoded
