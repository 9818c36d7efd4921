"""The JSON objects in the sections of an access token (JWT).

As in Apache Kafka, an object with a name twice is rejected: another reader of the token, such as a
proxy, may take the other value. So are the numbers NaN and Infinity, which JSON does not have.
"""

import json
from base64 import urlsafe_b64decode
from typing import NoReturn

from kwire.security.oauth.messages import TokenRejected


def decode_section(section: str) -> dict[str, object]:
    """Return the JSON object in a section of a token; raise TokenRejected."""
    try:
        return parse_object(urlsafe_b64decode(section + "=" * (-len(section) % 4)))
    except ValueError:
        raise TokenRejected("a section of the token is malformed") from None


def parse_object(text: bytes) -> dict[str, object]:
    """Return the JSON object in a decoded section; raise TokenRejected."""
    try:
        decoded = json.loads(text, object_pairs_hook=_members, parse_constant=_reject)
    except (ValueError, RecursionError):
        raise TokenRejected("a section of the token is malformed") from None
    if not isinstance(decoded, dict):
        raise TokenRejected("a section of the token is not a JSON object")
    return decoded


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise TokenRejected("the token has a name twice")
    return members


def _reject(constant: str) -> NoReturn:
    raise ValueError(constant)
