"""Brokers and an identity provider for librdkafka's tests of logins.

The provider issues access tokens over HTTP: to a client with the right secret, to one that signs an
assertion (RFC 7523), and to a machine that asks as those of a cloud do, with certain query
parameters and without a secret. All tokens are for the user alice.
"""

from __future__ import annotations

import json
import tempfile
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import attrs
import jwt
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from compat_tests.security.brokers import LOGIN_LISTENERS, MECHANISMS
from compat_tests.security.tokens import run_issuer
from tests.support.security.issuer import Issuer
from tests.support.security.issuer_server import JWT_BEARER, IssuerServer

USER, SECRET, SCOPE = "alice", "alice-secret", "all"
LOGIN_CONF: Final = (
    "security.protocol=sasl_plaintext\nsasl.mechanism=PLAIN\n"
    f"sasl.username={USER}\nsasl.password={SECRET}\n"
)
PASSWORD: Final = "secret of the key"
LIFETIME_S: Final = 30
MACHINE: Final = {
    "__metadata_authentication_type": "azure_imds",
    "api-version": "2025-04-07",
    "resource": "api://external_resource_id",
    "client_id": "client_id",
}
"""The query parameters with which a machine in a cloud gets a token."""
OF_PASSWORDS: Final = {**LOGIN_LISTENERS, **MECHANISMS, "connections.max.reauth.ms": "5000"}
OF_TOKENS: Final = {**LOGIN_LISTENERS, "sasl.enabled.mechanisms": "OAUTHBEARER"}
"""Settings of brokers; :func:`prepare` adds those that depend on the run."""


@attrs.frozen
class Clients:
    """The settings of the tests' clients at a broker's listener."""

    conf: str = ""
    """Lines of the file with the clients' settings."""
    environment: Mapping[str, str] = attrs.field(factory=dict)


@contextmanager
def prepare(settings: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], Clients]]:
    """Yield the whole settings of the brokers, and those of their clients."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if settings.items() >= OF_TOKENS.items():
            with run_issuer() as (issuer, of_tokens), serve_provider(issuer) as provider:
                yield {**settings, **of_tokens}, provider.write(folder)
        else:
            yield settings, Clients(LOGIN_CONF)


@attrs.frozen
class Provider:
    """A provider whose tokens brokers verify with the keys of ``issuer``."""

    issuer: IssuerServer
    signer: Issuer
    """The key with which clients sign assertions."""
    url: str

    def write(self, folder: Path) -> Clients:
        """Write the clients' keys; return the clients."""
        key = folder / "assertion.pem"
        key.write_text(self.signer.private_key())
        encrypted = folder / "encrypted.pem"
        how = BestAvailableEncryption(PASSWORD.encode())
        encrypted.write_bytes(
            self.signer.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)
        )
        conf = (
            "security.protocol=sasl_plaintext\nsasl.mechanisms=OAUTHBEARER\n"
            f"sasl.oauthbearer.method=OIDC\nsasl.oauthbearer.client.id={USER}\n"
            f"sasl.oauthbearer.client.secret={SECRET}\nsasl.oauthbearer.scope={SCOPE}\n"
            f"sasl.oauthbearer.token.endpoint.url={self.url}/tokens\n"
        )
        environment = {
            "VALID_OIDC_URL": f"{self.url}/tokens",
            "INVALID_OIDC_URL": f"{self.url}/nothing",
            "EXPIRED_TOKEN_OIDC_URL": f"{self.url}/expired",
            "OAUTHBEARER_CLIENT_PRIVATE_KEY": str(key),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED": str(encrypted),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD": PASSWORD,
        }
        return Clients(conf, environment)

    def answer(self, path: str, login: str, form: str) -> tuple[int, dict[str, object]]:
        """Return the status and the answer to a request."""
        parts = urlsplit(path)
        fields = {name: values[0] for name, values in parse_qs(form or parts.query).items()}
        if parts.path not in ("/tokens", "/expired") or not self._is_proved(login, fields):
            return 401, {"error": "invalid_client"}
        if fields.get("scope", SCOPE) != SCOPE:
            return 400, {"error": "invalid_scope"}
        self.issuer.lifetime_s = LIFETIME_S if parts.path == "/tokens" else -600
        token = self.issuer.token(USER, client_id=USER)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME_S}

    def _is_proved(self, login: str, fields: Mapping[str, str]) -> bool:
        if login:
            user, _, secret = b64decode(login.removeprefix("Basic ")).decode().partition(":")
            return (unquote(user), unquote(secret)) == (USER, SECRET)
        if fields.get("grant_type") == JWT_BEARER:
            key = self.signer.private.public_key()
            try:
                jwt.decode(fields["assertion"], key, ["RS256"], options={"verify_aud": False})
            except jwt.PyJWTError:
                return False
            return True
        return fields == MACHINE


@contextmanager
def serve_provider(issuer: IssuerServer) -> Iterator[Provider]:
    """Run a provider on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send("")

        def do_POST(self) -> None:
            self._send(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def _send(self, form: str) -> None:
            login = self.headers["Authorization"] or ""
            status, answer = provider.answer(self.path, login, form)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{http.server_address[1]}"
    provider = Provider(issuer, Issuer.create("RS256", "client"), url)
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield provider
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
