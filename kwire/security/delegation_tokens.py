"""Delegation tokens (KIP-48): their passwords, and who may use them how.

A token's password is an HMAC of its id with the cluster's secret key, so the metadata contain no
secrets. Principals have Kafka's form in records, such as ``User:alice``.
"""

from hmac import digest

from kwire.codec.messages.metadata_records import DelegationTokenRecord

USER: str = "User"


def token_hmac(secret: bytes, token_id: str) -> bytes:
    """Return the HMAC that is a token's password, in base64, and its proof of possession."""
    return digest(secret, token_id.encode(), "sha512")


def is_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    """Return whether a token can no longer be used or renewed."""
    return min(token.max_timestamp, token.expiration_timestamp) < now_ms


def may_renew(token: DelegationTokenRecord, principal: str) -> bool:
    """Return whether a principal may renew and expire a token: its owner and its renewers."""
    return principal == token.owner or principal in token.renewers


def may_know(token: DelegationTokenRecord, principal: str) -> bool:
    """Return whether a principal may see a token and its password without any ACL."""
    return principal == token.requester or may_renew(token, principal)
