"""Requests to identity providers: for keys, and for the tokens of a node."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from kwire.clock import SystemClock
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateResponse
from kwire.net.oauth.documents import DOCUMENT_BYTES_MAX, Documents, Unavailable
from kwire.net.oauth.issuer_keys import EARLY_S, FetchTimes, IssuerKeys
from kwire.net.oauth.own_token import ProvidedToken, TokenProof
from kwire.security.exchange import AuthenticationFailed
from kwire.security.oauth.messages import TokenRejected, parse_client_message
from kwire.security.oauth.signed import UnknownKey
from tests.support.security.issuer import Issuer
from tests.support.security.issuer_server import IssuerServer, serve_issuer

FIRST, SECOND = (Issuer.create("ES256", name) for name in ("first", "second"))
CLAIMS = {"sub": "alice"}
TIMES = FetchTimes(refresh_s=3600, backoff_s=0.1, backoff_max_s=10)


@attrs.define(eq=False)
class Provider(Documents):
    """An identity provider whose answers the test chooses."""

    url: str = "https://issuer/keys"
    timeout_s: float = 10.0
    answer: bytes | None = None
    fetched_at: list[float] = attrs.field(factory=list)

    async def get(self) -> bytes:
        self.fetched_at.append(trio.current_time())
        await trio.sleep(0.01)
        if self.answer is None:
            raise Unavailable("not now")
        return self.answer


@asynccontextmanager
async def keys_of(provider: Documents) -> AsyncIterator[IssuerKeys]:
    keys = IssuerKeys("L", provider, TIMES, SystemClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keys.run)
        await trio.sleep(0.1)
        yield keys
        nursery.cancel_scope.cancel()


async def test_keys_are_fetched_at_the_start_and_at_an_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    provider = Provider(answer=FIRST.key_set())
    async with keys_of(provider) as keys:
        assert keys.verify(FIRST.sign(CLAIMS)) == CLAIMS
        await trio.sleep(2 * 3600 + 60)
    assert len(provider.fetched_at) == 3


async def test_unknown_keys_cannot_make_a_node_fetch_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Invariant 105: a client that invents keys costs the issuer one request in ten seconds."""
    provider = Provider(answer=FIRST.key_set())
    async with keys_of(provider) as keys:
        stranger = Issuer.create("ES256", "stranger").sign(CLAIMS)
        for _ in range(600):
            with pytest.raises(UnknownKey):
                keys.verify(stranger)
            await trio.sleep(0.1)
    gaps = [b - a for a, b in zip(provider.fetched_at, provider.fetched_at[1:], strict=False)]
    assert 4 <= len(gaps) <= 6
    assert min(gaps) >= EARLY_S


async def test_new_key_is_found_when_a_token_uses_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    provider = Provider(answer=FIRST.key_set())
    async with keys_of(provider) as keys:
        provider.answer = SECOND.key_set()
        await trio.sleep(60)
        with pytest.raises(UnknownKey):
            keys.verify(SECOND.sign(CLAIMS))
        await trio.sleep(1)
        assert keys.verify(SECOND.sign(CLAIMS)) == CLAIMS
        with pytest.raises(UnknownKey):
            keys.verify(FIRST.sign(CLAIMS))


async def test_provider_that_is_out_of_reach_is_retried_and_old_keys_stay(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider()
    async with keys_of(provider) as keys:
        with pytest.raises(TokenRejected, match="not known yet"):
            keys.verify(FIRST.sign(CLAIMS))
        await trio.sleep(60)
        assert len(provider.fetched_at) < 15
        provider.answer = FIRST.key_set()
        await trio.sleep(11)
        assert keys.verify(FIRST.sign(CLAIMS)) == CLAIMS
        provider.answer = b"<html>"
        await trio.sleep(3660)
        assert keys.verify(FIRST.sign(CLAIMS)) == CLAIMS
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "logins with tokens fail" in warnings[0]
    assert "the previous keys stay in use" in warnings[-1]
    assert len(warnings) <= 6


async def test_key_file_is_read_again_when_clients_log_in(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(FIRST.key_set())
    documents = Documents(path.as_uri(), 10.0)
    keys = IssuerKeys("L", documents, TIMES, SystemClock())
    keys.load_file()
    assert keys.verify(FIRST.sign(CLAIMS)) == CLAIMS
    path.write_text("not keys")
    with pytest.raises(ValueError, match="not a JSON Web Key Set"):
        keys.load_file()
    path.unlink()
    with pytest.raises(Unavailable, match="No such file"):
        keys.load_file()


async def test_documents_come_over_http() -> None:
    with serve_issuer({}) as server:
        document = await Documents(server.keys_url, 10.0).get()
        assert document == server.issuer.key_set()
        with pytest.raises(Unavailable, match="status 404"):
            await Documents(f"{server.url}/other", 10.0).get()
        url = server.keys_url
    with pytest.raises(Unavailable, match="refused"):
        await Documents(url, 10.0).get()


async def test_redirect_is_not_followed() -> None:
    """The secret of a node goes to the configured address only, and keys come only from there."""
    with serve_issuer({"node": "node-secret"}) as other, serve_issuer({}) as server:
        server.redirects_to = other.url
        with pytest.raises(AuthenticationFailed, match="answered with status 302"):
            await proof_of(server, "node-secret").prove(Peer().send)
        with pytest.raises(Unavailable, match="answered with status 302"):
            await Documents(server.keys_url, 10.0).get()
        assert server.requests == ["/tokens", "/keys"]
        assert other.requests == []


async def test_document_that_is_too_large_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(DOCUMENT_BYTES_MAX + 1))
    with pytest.raises(Unavailable, match="more than"):
        await Documents(path.as_uri(), 10.0).get()


async def test_provider_that_hangs_delays_nothing_but_its_own_request() -> None:
    """Nor does its thread keep the node from ending."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    documents = Documents(f"http://127.0.0.1:{port}/keys", 0.05)
    with trio.fail_after(10), pytest.raises(Unavailable):
        await documents.get()
    await listeners[0].aclose()


class Peer:
    """Another node, at which this one logs in."""

    def __init__(self, error: bytes = b"") -> None:
        self.error = error
        self.tokens: list[bytes] = []

    async def send(self, token: bytes) -> SaslAuthenticateResponse:
        self.tokens.append(token)
        if self.error and len(self.tokens) > 1:
            raise AuthenticationFailed("the error of the other node")
        return SaslAuthenticateResponse(auth_bytes=self.error, session_lifetime_ms=5)


def proof_of(server: IssuerServer, secret: str) -> TokenProof:
    documents = Documents(server.tokens_url, 10.0)
    return TokenProof(ProvidedToken(documents, SystemClock(), "node", secret, "all"))


async def test_node_logs_in_with_a_token_of_its_provider_and_keeps_the_token() -> None:
    with serve_issuer({"node": "node-secret"}) as server:
        proof, peer = proof_of(server, "node-secret"), Peer()
        assert await proof.prove(peer.send) == 5
        assert await proof.prove(peer.send) == 5
        assert server.requests == ["/tokens"]
        first, second = (parse_client_message(token).token for token in peer.tokens)
        assert first == second
        server.lifetime_s = 0
        for _ in range(2):
            await proof_of(server, "node-secret").prove(peer.send)
        assert server.requests == ["/tokens"] * 3


async def test_node_without_a_token_does_not_log_in() -> None:
    with serve_issuer({"node": "node-secret"}) as server:
        with pytest.raises(AuthenticationFailed, match="answered with status 401") as caught:
            await proof_of(server, "wrong").prove(Peer().send)
        assert "wrong" not in str(caught.value)


async def test_node_whose_token_is_rejected_acknowledges_the_error() -> None:
    with serve_issuer({"node": "node-secret"}) as server:
        peer = Peer(b'{"status":"invalid_token"}')
        with pytest.raises(AuthenticationFailed, match="error of the other node"):
            await proof_of(server, "node-secret").prove(peer.send)
        assert peer.tokens[1] == b"\x01"
