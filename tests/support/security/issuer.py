"""An issuer of access tokens: its private key, its key set, and tokens that it signs."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import get_default_algorithms

PrivateKey: TypeAlias = Any  # Any: a key of one of several kinds.


@attrs.frozen
class Issuer:
    """An issuer with one key."""

    algorithm: str
    key_id: str
    private: PrivateKey

    @classmethod
    def create(cls, algorithm: str, key_id: str, *, rsa_bits: int = 2048) -> "Issuer":
        """Return an issuer with a new key."""
        if algorithm == "EdDSA":
            return cls(algorithm, key_id, ed25519.Ed25519PrivateKey.generate())
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}
        if algorithm in curves:
            return cls(algorithm, key_id, ec.generate_private_key(curves[algorithm]))
        return cls(algorithm, key_id, rsa.generate_private_key(65537, rsa_bits))

    def key_set(self) -> bytes:
        """Return the public key as a JSON Web Key Set."""
        kind = get_default_algorithms()[self.algorithm]
        key = kind.to_jwk(self.private.public_key(), as_dict=True)
        return json.dumps({"keys": [{**key, "kid": self.key_id, "use": "sig"}]}).encode()

    def sign(self, claims: Mapping[str, object]) -> str:
        """Return a signed token."""
        header = {"kid": self.key_id}
        return jwt.encode(dict(claims), self.private, self.algorithm, headers=header)

    def sign_texts(self, header: str, claims: str) -> str:
        """Return a token with these sections, which need not be what a JSON library writes."""
        texts = (header.encode(), claims.encode())
        signed = ".".join(urlsafe_b64encode(text).decode().rstrip("=") for text in texts)
        signature = get_default_algorithms()[self.algorithm].sign(signed.encode(), self.private)
        return f"{signed}.{urlsafe_b64encode(signature).decode().rstrip('=')}"

    def private_key(self) -> str:
        """Return the private key as PEM, in PKCS#8."""
        form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        return str(self.private.private_bytes(*form).decode())
