"""Parses the argument of ``kwire format --add-scram``, which has the form of Kafka's storage tool.

For example ``SCRAM-SHA-256=[name=alice,password=secret]``; ``iterations`` and a ``salt`` in base64
may be given, and a ``saltedpassword`` in base64 instead of the password. Errors never show a value.
"""

import re
from base64 import b64decode
from typing import Final

from kwire.codec.messages.metadata_records import UserScramCredentialRecord
from kwire.security.scram import (
    BY_NAME,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    make_credential,
    salt_password,
)

_NAMES: Final = ("name", "password", "saltedpassword", "salt", "iterations")
_EXAMPLE: Final = "SCRAM-SHA-256=[name=alice,password=SECRET]"


def parse_credential(text: str, new_salt: bytes) -> UserScramCredentialRecord:
    """Return the record of a credential; raise ValueError.

    ``new_salt`` is used unless the text has a salt.
    """
    name, equals, values = text.strip().partition("=")
    if name not in BY_NAME or not equals:
        raise ValueError(f"write {_EXAMPLE}, with one of {', '.join(BY_NAME)}")
    if not re.fullmatch(r"\[.*\]", values, re.DOTALL):
        raise ValueError(f"the credential must be in brackets; write {_EXAMPLE}")
    parts = _parts(values[1:-1])
    if not parts.get("name"):
        raise ValueError(f"the user's name is missing; write {_EXAMPLE}")
    mechanism = BY_NAME[name]
    salt = _bytes(parts, "salt") if "salt" in parts else new_salt
    iterations = _iterations(parts.get("iterations", str(ITERATIONS_MIN)))
    if "password" in parts:
        salted = salt_password(mechanism, parts["password"], salt, iterations)
    elif "saltedpassword" in parts and "salt" in parts:
        salted = _bytes(parts, "saltedpassword")
    else:
        raise ValueError("a password is missing, or a saltedpassword and its salt")
    credential = make_credential(mechanism, salted, salt, iterations)
    return UserScramCredentialRecord(
        name=parts["name"],
        mechanism=mechanism.number,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def _parts(text: str) -> dict[str, str]:
    parts = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if name not in _NAMES or not equals:
            raise ValueError(f"write the credential as NAME=VALUE pairs of {', '.join(_NAMES)}")
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        parts[name] = value
    return parts


def _bytes(parts: dict[str, str], name: str) -> bytes:
    try:
        return b64decode(parts[name], validate=True)
    except ValueError:
        raise ValueError(f"{name} is not base64") from None


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("iterations is not a number")
    if not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
        raise ValueError(f"iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return int(text)
