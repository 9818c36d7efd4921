"""A schema registry of the tests' own: Confluent's paths, over HTTP on this machine."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs


@attrs.define
class RegistryServer:
    """The schemas, and how the registry answers."""

    schemas: dict[int, str] = attrs.field(factory=dict)
    subjects: dict[str, list[int]] = attrs.field(factory=dict)
    """The schema ids of a subject's versions."""
    kinds: dict[int, str] = attrs.field(factory=dict)
    """The type of schemas that are not Avro."""
    login: str | None = None
    """The user and password that are asked for, with a colon."""
    failures: int = 0
    """The next requests are answered 503."""
    requests: list[str] = attrs.field(factory=list)
    url: str = ""

    def register(self, subject: str, schema_id: int, schema: str) -> None:
        self.schemas[schema_id] = schema
        self.subjects.setdefault(subject, []).append(schema_id)

    def answer(self, path: str, login: str | None) -> tuple[int, object]:
        """Return the status and the body for a path."""
        self.requests.append(path)
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50301, "message": "not now"}
        if self.login is not None and login != self.login:
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        match path.strip("/").split("/"):
            case ["schemas", "ids", number]:
                return self._schema(int(number))
            case ["subjects", subject, "versions", "latest"]:
                ids = self.subjects.get(subject)
                if not ids:
                    return 404, {"error_code": 40401, "message": "Subject not found."}
                status, body = self._schema(ids[-1])
                about = {"subject": subject, "version": len(ids), "id": ids[-1]}
                return status, {**body, **about}
        return 404, "<html>Not Found</html>"

    def _schema(self, schema_id: int) -> tuple[int, dict[str, object]]:
        if schema_id not in self.schemas:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        body: dict[str, object] = {"schema": self.schemas[schema_id]}
        if schema_id in self.kinds:
            body["schemaType"] = self.kinds[schema_id]
        return 200, body


@contextmanager
def serve(registry: RegistryServer, port: int = 0) -> Iterator[RegistryServer]:
    """Serve a registry for the time of a block, and set its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            credentials = self.headers.get("Authorization", "").removeprefix("Basic ")
            login = base64.b64decode(credentials).decode() if credentials else None
            status, body = registry.answer(self.path, login)
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
