"""A process with a --control-port, and calls of its verbs as any language makes them."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

# Any: values of JSON, which a test knows.
Json: TypeAlias = Any


class Controlled(NamedTuple):
    """A process of kwire and the ports that it has printed."""

    process: subprocess.Popen[str]
    port: int
    control_port: int

    def request(
        self,
        method: str,
        path: str,
        values: Json = None,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, Json]:
        """Return the status and the body of an answer; send ``values`` as JSON, or ``body``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.control_port, timeout=30)
        body = body if values is None else json.dumps(values).encode()
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer

    def call(self, verb: str, **values: Json) -> Json:
        """Call a verb that succeeds and return its result."""
        status, answer = self.request("POST", f"/v1/{verb}", values)
        assert status == 200, answer
        return answer


@contextmanager
def run_controlled(*arguments: str) -> Iterator[Controlled]:
    """Run a command of kwire that prints both of its addresses."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kwire", *arguments, "--log-level", "ERROR"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        control, ready = (process.stdout.readline().strip() for _ in range(2))
        assert control.startswith("kwire control on http://127.0.0.1:"), control
        yield Controlled(process, *(int(line.rpartition(":")[2]) for line in (ready, control)))
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
