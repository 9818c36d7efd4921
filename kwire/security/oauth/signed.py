"""Verifies the signature of access tokens (JWT) with the public keys of their issuer (JWKS).

The key, and never the token, decides which algorithms may be used with it: a token without a
signature (``none``), and one whose "signature" is an HMAC with the public key, are rejected.
Symmetric keys in a key set are ignored, because anyone who can verify with them can also sign.
PyJWT checks signatures; the claims are checked in :mod:`kwire.security.oauth.claims`, with the
node's clock.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
from jwt import PyJWS
from jwt.algorithms import get_default_algorithms
from jwt.exceptions import PyJWTError

from kwire.security.oauth.claims import Claims
from kwire.security.oauth.messages import TokenRejected
from kwire.security.oauth.sections import decode_section, parse_object

PublicKey: TypeAlias = Any  # Any: a key of the package cryptography, which only PyJWT uses.
KEYS_MAX: Final = 100
"""The most keys of a set; providers have two to ten."""
RSA_BITS_MIN: Final = 2048
KEY_ID_LENGTH_MAX: Final = 1000
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
_FAMILIES: Final = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}
"""For each type of key, an algorithm whose keys have the same form."""
_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")
"""The members of a public key; private members that are published by mistake are not read."""


class UnknownKey(TokenRejected):
    """A token is signed with a key that the key set lacks; its issuer may have a new key."""


class VerificationKey(NamedTuple):
    """One public key of an issuer."""

    id: str | None
    algorithms: tuple[str, ...]
    """The algorithms that may be used with this key."""
    key: PublicKey


@attrs.frozen(eq=False, repr=False)
class KeySet:
    """The public keys of an issuer."""

    keys: tuple[VerificationKey, ...] = ()

    @classmethod
    def parse(cls, text: bytes) -> "KeySet":
        """Return the verification keys in a JSON Web Key Set; raise ValueError if malformed."""
        try:
            members = json.loads(text)["keys"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError("it is not a JSON Web Key Set") from None
        if not isinstance(members, list):
            raise ValueError("it is not a JSON Web Key Set")
        keys = [key for each in members[:KEYS_MAX] if (key := _parse_key(each)) is not None]
        if not keys:
            raise ValueError("it has no key that can verify signatures")
        return cls(tuple(keys))

    def verify(self, token: str) -> Claims:
        """Return the claims of a token with a valid signature; raise TokenRejected."""
        algorithm, key_id = _read_header(token)
        key = next((k for k in self.keys if _fits(k, algorithm, key_id)), None)
        if key is None:
            raise UnknownKey("the token is signed with a key or an algorithm that its issuer lacks")
        try:
            verifier = PyJWS(algorithms=[algorithm])
            parts = verifier.decode_complete(token, key=key.key, algorithms=[algorithm])
        except (PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise TokenRejected(f"the token cannot be verified ({type(error).__name__})") from None
        return parse_object(parts["payload"])


def _fits(key: VerificationKey, algorithm: str, key_id: str | None) -> bool:
    return algorithm in key.algorithms and key_id in (None, key.id)


def _read_header(token: str) -> tuple[str, str | None]:
    """Return the algorithm and the key's id in the header of a token."""
    sections = token.split(".", 3)
    if len(sections) != 3 or not all(sections):
        raise TokenRejected("the token does not have the three sections of a signed one")
    header = decode_section(sections[0])
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise TokenRejected("the header of the token names no algorithm")
    if key_id is not None and len(key_id) > KEY_ID_LENGTH_MAX:
        raise TokenRejected(f"the header of the token has a key id of {len(key_id)} characters")
    return algorithm, key_id


def _parse_key(member: object) -> VerificationKey | None:
    """Return the key that a member of a set describes; None if it cannot verify signatures."""
    if not isinstance(member, Mapping) or member.get("use", "sig") != "sig":
        return None
    kind, key_id = member.get("kty"), member.get("kid")
    algorithms = _RSA if kind == "RSA" else _CURVES.get((str(kind), str(member.get("crv"))), ())
    named = member.get("alg")
    chosen = tuple(each for each in algorithms if named in (None, each))
    if not chosen or not isinstance(key_id, str | None):
        return None
    public = {name: member[name] for name in _PUBLIC if name in member}
    try:
        key = get_default_algorithms()[_FAMILIES[str(kind)]].from_jwk(public)
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    if kind == "RSA" and key.key_size < RSA_BITS_MIN:
        return None
    return VerificationKey(key_id, chosen, key)
