"""The HTTP server of the verbs, for tests in other languages.

``POST /v1/VERB`` takes a JSON object of arguments and returns JSON: 200 with the result; 400 for
wrong arguments, 409 for a failure and 500 for a bug of kwire, each with ``{"error": reason}``.
``GET /v1/openapi.json`` describes all verbs. Rules: it listens on the loopback address, except
inside a container, whose user decides who reaches the port. Requests from a web page are rejected,
because the verbs destroy data; on the loopback address also requests for another host, as after DNS
rebinding. The standard library's server answers each connection in a thread, and the verbs run in
the node's loop.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Final, Generic, TypeVar

import trio

from kwire.testing.control.table import Json, Verb, openapi
from kwire.testing.errors import BrokerError, WrongArgument

logger = logging.getLogger(__name__)

T = TypeVar("T")

HOST: Final = "127.0.0.1"
CLIENTS_MAX: Final = 64
"""The most connections at a time; further ones are closed at once."""
BODY_BYTES_MAX: Final = 1 << 20
PREFIX: Final = "/v1/"
PATIENCE_S: Final = 60.0
"""The time limit for a request's bytes, and for an idle connection."""
_POLL_S: Final = 0.05
_OWN_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


class BadRequest(Exception):
    """A request that is rejected before any verb is called, with its HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler, Generic[T]):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S
    server: "_Server[T]"

    def do_POST(self) -> None:
        self._answer(self._call)

    def do_GET(self) -> None:
        self._answer(self._describe)

    def _answer(self, answer: Callable[[], Json]) -> None:
        try:
            self._check_origin()
            status, result = 200, answer()
        except BadRequest as error:
            self.close_connection = True  # The body may not have been read.
            status, result = error.status, {"error": str(error)}
        except WrongArgument as error:
            status, result = 400, {"error": str(error)}
        except BrokerError as error:
            status, result = 409, {"error": str(error)}
        except (trio.RunFinishedError, trio.Cancelled):
            self.close_connection = True
            status, result = 503, {"error": "the broker is shutting down"}
        except (ConnectionError, TimeoutError):  # The client has gone, or sends too slowly.
            raise
        except Exception as error:
            logger.exception("verb failed path=%s", self.path)
            status, result = 500, {"error": f"kwire has failed: {error!r}"}
        data = json.dumps(result).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _check_origin(self) -> None:
        host = self.headers.get("Host", "")
        is_own = host.rpartition(":")[0] in _OWN_HOSTS or host in _OWN_HOSTS
        if self.server.host == HOST and not is_own:
            raise BadRequest(403, f"this server answers only for {HOST}, not for {host}")
        if "Origin" in self.headers or self.headers.get("Sec-Fetch-Site", "none") != "none":
            raise BadRequest(403, "this server rejects requests of web pages")

    def _describe(self) -> Json:
        if self.path != f"{PREFIX}openapi.json":
            raise BadRequest(404, f"GET only {PREFIX}openapi.json; verbs are POST {PREFIX}VERB")
        return self.server.document

    def _call(self) -> Json:
        verb = self.server.verbs.get(self.path.removeprefix(PREFIX))
        if verb is None or not self.path.startswith(PREFIX):
            raise BadRequest(404, f"no verb {self.path}; GET {PREFIX}openapi.json lists them")
        size = self.headers.get("Content-Length", "0")
        if not size.isdecimal() or int(size) > BODY_BYTES_MAX:
            raise BadRequest(413, f"the arguments need a Content-Length up to {BODY_BYTES_MAX}")
        try:
            values = json.loads(self.rfile.read(int(size)) or b"{}")
        except (ValueError, RecursionError) as error:
            raise BadRequest(400, f"the arguments are not valid JSON: {error}") from error
        verb.check(values)
        call = partial(verb.call, self.server.target, values)
        return trio.from_thread.run(call, trio_token=self.server.token)

    def log_message(self, format: str, *arguments: object) -> None:
        """Do not log: the test knows which requests it sends."""


class _Server(ThreadingHTTPServer, Generic[T]):
    """The listening socket, and the state that its connections share."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, title: str, verbs: Mapping[str, Verb[T]], target: T
    ) -> None:
        super().__init__((host, port), _Handler)
        self.host = host
        self.verbs = verbs
        self.target = target
        self.document = openapi(title, version("kwire"), verbs)
        self.token = trio.lowlevel.current_trio_token()
        self._places = threading.BoundedSemaphore(CLIENTS_MAX)

    def process_request_thread(self, request: Json, client_address: Json) -> None:
        """Serve one connection, or close it if there are too many."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


async def serve_verbs(
    port: int,
    title: str,
    verbs: Mapping[str, Verb[T]],
    target: T,
    host: str = HOST,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the verbs of a broker until cancelled; report the port. Raises OSError."""
    server = _Server(host, port, title, verbs, target)
    thread = threading.Thread(
        target=server.serve_forever, args=(_POLL_S,), name="kwire control", daemon=True
    )
    thread.start()
    try:
        task_status.started(server.server_address[1])
        await trio.sleep_forever()
    finally:
        server.shutdown()
        server.server_close()
