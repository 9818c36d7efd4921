"""Assertions: tokens (JWT) that a node signs to prove who it is to an identity provider (RFC 7523).

The claims come from Kafka's settings: claims from the template file, overridden by individual
settings, overridden by the times. Private keys are PKCS#8, as PEM, as DER, or as the bare Base64
that Kafka 4.1 requires. Pure; PyJWT signs.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key

PrivateKey: TypeAlias = Any  # Any: a key of the package cryptography, which only PyJWT uses.
_PEM: Final = b"-----BEGIN"


class Template(NamedTuple):
    """The sections of an assertion that never change."""

    header: Mapping[str, object]
    claims: Mapping[str, object]


class AssertionRules(NamedTuple):
    """The algorithm and the claims of assertions."""

    algorithm: str
    claims: Mapping[str, str]
    """The issuer, subject and audience, if they are configured."""
    lifetime_s: int
    early_s: int
    """The time before its creation from which an assertion is valid, because clocks differ."""


def parse_template(text: bytes) -> Template:
    """Return the sections in a template file; raise ValueError if it is not one."""
    try:
        sections = json.loads(text)
        header, claims = sections.get("header", {}), sections.get("payload", {})
    except (ValueError, AttributeError, RecursionError):
        raise ValueError("it is not a JSON object") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise ValueError("its header or its payload is not a JSON object")
    return Template(header, claims)


def parse_private_key(text: bytes, passphrase: str | None) -> PrivateKey:
    """Return a private key; raise ValueError if there is none, or if the passphrase is wrong."""
    password = None if passphrase is None else passphrase.encode()
    try:
        if text.lstrip().startswith(_PEM):
            return load_pem_private_key(text, password)
        try:
            der = b64decode(b"".join(text.split()), validate=True)
        except ValueError:
            der = text
        return load_der_private_key(der, password)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("it is not a private key in PKCS#8, or its passphrase is wrong") from None


def sign_assertion(
    rules: AssertionRules, template: Template, key: PrivateKey, now_s: int, jti: str
) -> str:
    """Return an assertion; ``jti`` is its id, or empty for none. Raises ValueError if the key
    does not fit the algorithm."""
    claims: dict[str, object] = {
        **template.claims,
        **rules.claims,
        "iat": now_s,
        "exp": now_s + rules.lifetime_s,
        "nbf": now_s - rules.early_s,
    }
    if jti:
        claims["jti"] = jti
    header = {name: value for name, value in template.header.items() if name != "alg"}
    try:
        return jwt.encode(claims, key, rules.algorithm, headers=header)
    except (jwt.PyJWTError, TypeError, ValueError, AttributeError):
        raise ValueError(f"the private key cannot sign with {rules.algorithm}") from None
