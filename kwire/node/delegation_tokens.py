"""The SCRAM credentials of delegation tokens, computed when their bearers first log in.

A credential takes a few thousand HMACs, so a thread computes it, once for each token and mechanism.
An expired token has no credential: Apache Kafka lets its bearer log in, but disconnects it at its
next request.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial

import attrs
import trio

from kwire.codec.messages.metadata_records import DelegationTokenRecord
from kwire.net.node_login import RandomBytes
from kwire.security.delegation_tokens import is_expired, token_hmac
from kwire.security.exchange import Unready
from kwire.security.scram import (
    ITERATIONS_MIN,
    NONCE_BYTES,
    Credential,
    ScramMechanism,
    TokenCredential,
    make_credential,
    salt_password,
    secret_text,
)


@attrs.define(kw_only=True, eq=False, repr=False)
class TokenCredentials:
    """The credentials of delegation tokens for one mechanism of one listener."""

    mechanism: ScramMechanism
    secret: bytes
    records: Callable[[], Mapping[str, DelegationTokenRecord]]
    """Returns the tokens in the metadata, by id."""
    now_ms: Callable[[], int]
    random_bytes: RandomBytes
    _credentials: dict[str, Credential] = attrs.field(factory=dict)
    _underway: dict[str, trio.Event] = attrs.field(factory=dict)
    """Set when a token's credential is computed, or when the login that computed it has ended."""
    _thread: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    def find(self, token_id: str) -> TokenCredential | None:
        """Return the credential of a token; None if the token does not exist; raise Unready."""
        record = self.records().get(token_id)
        if record is None or is_expired(record, self.now_ms()):
            return None
        credential = self._credentials.get(token_id)
        if credential is None:
            raise Unready(partial(self._prepare, token_id))
        owner = record.owner.partition(":")[2]
        return TokenCredential(credential, owner, record.expiration_timestamp)

    async def _prepare(self, token_id: str) -> None:
        """Compute the credential of a token, or wait for another login that is computing it."""
        if (underway := self._underway.get(token_id)) is not None:
            await underway.wait()
            return
        is_over = self._underway[token_id] = trio.Event()
        try:
            await self._make(token_id)
        finally:
            del self._underway[token_id]
            is_over.set()

    async def _make(self, token_id: str) -> None:
        salt = secret_text(self.random_bytes(NONCE_BYTES)).encode()
        password = b64encode(token_hmac(self.secret, token_id)).decode()
        salted = await trio.to_thread.run_sync(
            salt_password, self.mechanism, password, salt, ITERATIONS_MIN, limiter=self._thread
        )
        if len(self._credentials) > 2 * len(self.records()):
            self._credentials.clear()  # Most of the credentials belong to removed tokens.
        self._credentials[token_id] = make_credential(self.mechanism, salted, salt, ITERATIONS_MIN)
