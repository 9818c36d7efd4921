"""The registry for tests as an HTTP server: ``with SchemaRegistry() as registry: ...``.

Rules: it listens on the loopback address only. One thread answers one request after another, so
that its state needs no lock; a connection has one request.
"""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final, Self

from kwire.testing.errors import BrokerError
from kwire.testing.registry.compatibility import AVRO, Schema
from kwire.testing.registry.errors import RegistryError
from kwire.testing.registry.routes import Json, answer
from kwire.testing.registry.subjects import Subjects

HOST: Final = "127.0.0.1"
BODY_BYTES_MAX: Final = 1 << 20
PATIENCE_S: Final = 5.0
"""The time limit for a request's bytes."""
_POLL_S: Final = 0.02
_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """A schema registry of a test; its schemas are in memory and last as long as the object.

    ``port`` 0 means any free port. ``login`` is the login that clients must send, as
    ``user:password``. Raises BrokerError if the port is taken.
    """

    def __init__(self, *, port: int = 0, login: str | None = None) -> None:
        self.login = login
        self.failures = 0
        """The number of following requests to answer with 503."""
        self.requests: list[str] = []
        """The paths of all requests so far."""
        self.url = ""
        """The address for clients, as in ``schema.registry.url``."""
        self._port = port
        self._subjects = Subjects()
        self._server: HTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        try:
            self._server = _Server(self, self._port)
        except OSError as error:
            raise BrokerError(f"cannot listen on {HOST}:{self._port}: {error.strerror}") from error
        self.url = f"http://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="kwire registry", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def register(
        self, subject: str, schema: str, schema_type: str = AVRO, *, schema_id: int | None = None
    ) -> int:
        """Store a schema as the newest version of a subject, unchecked, and return its id."""
        return self._subjects.store(subject, Schema(schema, schema_type), schema_id)

    def respond(self, method: str, target: str, login: str | None, data: bytes) -> tuple[int, Json]:
        """Return the status and the body of an answer."""
        self.requests.append(target)
        try:
            if self.failures:
                self.failures -= 1
                raise RegistryError(50301, "the test makes this request fail")
            if self.login is not None and login != self.login:
                raise RegistryError(40101, "Unauthorized")
            body = json.loads(data or b"{}")
            if not isinstance(body, dict):
                raise RegistryError(422, "the body is not a JSON object")
            return 200, answer(self._subjects, method, target, body)
        except RegistryError as error:
            return error.status, {"error_code": error.code, "message": str(error)}
        except ValueError as error:
            return 422, {"error_code": 422, "message": f"the body is not valid: {error}"}


class _Server(HTTPServer):
    """The listening socket of a registry."""

    def __init__(self, registry: SchemaRegistry, port: int) -> None:
        super().__init__((HOST, port), _Handler)
        self.registry = registry


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    timeout = PATIENCE_S
    server: _Server

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def do_PUT(self) -> None:
        self._respond()

    def do_DELETE(self) -> None:
        self._respond()

    def _respond(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        credentials = self.headers.get("Authorization", "").removeprefix("Basic ")
        login = base64.b64decode(credentials).decode() if credentials else None
        data = self.rfile.read(min(size, BODY_BYTES_MAX))
        status, body = self.server.registry.respond(self.command, self.path, login, data)
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Do not log: the test knows which requests it sends."""
