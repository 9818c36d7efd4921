"""An identity provider over HTTP on this machine: its keys, and tokens for those who prove a right.

A client proves who it is by its secret, or by an assertion that it signs (RFC 7523).
"""

import json
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import attrs
import jwt

from tests.support.security.issuer import Issuer

AUDIENCE = "kafka"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@attrs.define
class IssuerServer:
    """The issuer, the accounts of its clients, and the requests that it got."""

    issuer: Issuer
    secrets: dict[str, str]
    """The secrets of clients; a client's id is also the user in its tokens."""
    lifetime_s: int = 600
    url: str = ""
    redirects_to: str = ""
    """Another server to which every request is redirected; empty for none."""
    requests: list[str] = attrs.field(factory=list)
    signers: dict[str, Issuer] = attrs.field(factory=dict)
    """The keys with which clients sign assertions, by the issuer that these name."""
    assertions: list[dict[str, Any]] = attrs.field(factory=list)
    """The claims of the assertions that were accepted."""
    forms: list[dict[str, str]] = attrs.field(factory=list)

    @property
    def keys_url(self) -> str:
        return f"{self.url}/keys"

    @property
    def tokens_url(self) -> str:
        return f"{self.url}/tokens"

    def token(self, user: str, **claims: object) -> str:
        """Return a token for a user; ``claims`` replace the usual ones."""
        now = int(time.time())
        usual = {
            "sub": user,
            "iss": self.url,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + self.lifetime_s,
            "scope": "all",
        }
        return self.issuer.sign({**usual, **claims})

    def answer(self, path: str, login: str, form: str) -> tuple[int, bytes]:
        """Return the status and the body for a request."""
        self.requests.append(path)
        if self.redirects_to:
            return 302, b"{}"
        if path == "/keys":
            return 200, self.issuer.key_set()
        if path != "/tokens":
            return 404, b"{}"
        fields = {name: values[0] for name, values in parse_qs(form).items()}
        self.forms.append(fields)
        user = self._prove(login, fields)
        if not user:
            return 401, b'{"error": "invalid_client"}'
        body = {"access_token": self.token(user), "token_type": "Bearer", "expires_in": 600}
        return 200, json.dumps(body).encode()

    def _prove(self, login: str, fields: dict[str, str]) -> str:
        """Return who asks for a token; empty if nothing proves it."""
        if login:
            user, _, secret = b64decode(login.removeprefix("Basic ")).decode().partition(":")
            is_right = secret and self.secrets.get(user) == secret
            return user if is_right and fields["grant_type"] == "client_credentials" else ""
        if fields["grant_type"] == JWT_BEARER:
            assertion = fields["assertion"]
        elif fields["grant_type"] == "client_credentials":
            assert fields["client_assertion_type"] == CLIENT_ASSERTION
            assertion = fields["client_assertion"]
        else:
            return ""
        try:
            claimed = jwt.decode(assertion, options={"verify_signature": False})
            signer = self.signers[claimed["iss"]]
            key, algorithm = signer.private.public_key(), signer.algorithm
            claims = jwt.decode(assertion, key, [algorithm], audience=self.tokens_url)
        except (jwt.PyJWTError, KeyError):
            return ""
        self.assertions.append(claims)
        return str(claims["sub"])


@contextmanager
def serve_issuer(secrets: dict[str, str]) -> Iterator[IssuerServer]:
    """Run an identity provider on a free port."""
    server = IssuerServer(Issuer.create("RS256", "first"), secrets)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*server.answer(self.path, "", ""))

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._send(*server.answer(self.path, self.headers["Authorization"] or "", form))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if status == 302:
                self.send_header("Location", server.redirects_to + self.path)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
