"""One page with the metrics of all nodes of a machine, and one that shows whether all are ready.

Rules: each sample has its node's id as the label ``node``; a family's description appears once,
before the samples of all nodes. The samples of a node that does not answer are missing, and its
``kwire_node_up`` is 0. A separate thread serves the page, so that its clients never delay the
supervisor.
"""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import trio

from kwire.cluster.folders import CannotStartError
from kwire.net.http_pages import Page, Pages, serve_pages

HOST: Final = "127.0.0.1"
ANSWER_S: Final = 5.0
"""The time after which a node that does not answer is reported as down."""
_UP: Final = "kwire_node_up"
_DOWN: Final = (0, "")


def serve_metrics(host: str, port: int, ports: Mapping[int, int]) -> None:
    """Serve the pages until the process ends; ``ports`` are those of the nodes' pages by node id.

    Raises CannotStartError if the address cannot be used.
    """
    started = threading.Event()
    failures: list[OSError | ValueError] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(serve_pages, host, port, pages(ports))
            except (OSError, ValueError) as error:
                failures.append(error)
                nursery.cancel_scope.cancel()
            finally:
                started.set()

    threading.Thread(target=trio.run, args=[main], daemon=True, name="metrics").start()
    started.wait()
    if failures:
        reason = getattr(failures[0], "strerror", None) or failures[0]
        raise CannotStartError(
            f"cannot show metrics on {host}:{port}: {reason}; choose another address with "
            "--metrics-port and --metrics-host"
        )


def pages(ports: Mapping[int, int]) -> Pages:
    """Return the pages of a machine, merged from the pages of its nodes."""

    async def metrics() -> Page:
        answers = await _fetch_all(ports, "/metrics")
        up = [node for node in ports if answers.get(node, _DOWN)[0] == 200]
        return Page(200, merge({node: answers[node][1] for node in up}, ports))

    async def live() -> Page:
        return Page(200, ["ok"])

    async def ready() -> Page:
        answers = await _fetch_all(ports, "/readyz")
        waiting = [node for node in ports if answers.get(node, _DOWN)[0] != 200]
        if waiting:
            return Page(503, [f"not ready: {', '.join(map(str, waiting))}"])
        return Page(200, ["ok"])

    return {"/metrics": metrics, "/livez": live, "/readyz": ready}


def merge(texts: Mapping[int, str], nodes: Iterable[int]) -> Iterator[str]:
    """Merge the pages of several nodes, in Prometheus' text format; yield the lines."""
    yield f"# HELP {_UP} Whether the node answered."
    yield f"# TYPE {_UP} gauge"
    for node in nodes:
        yield f'{_UP}{{node="{node}"}} {int(node in texts)}'
    descriptions: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for node, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                lines = descriptions.setdefault(family, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                samples.setdefault(family, []).append(_with_node(line, node))
    for family, lines in descriptions.items():
        yield from lines
        yield from samples.get(family, ())


def _with_node(sample: str, node: int) -> str:
    """Return a sample with the label ``node`` added before its other labels."""
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{node="{node}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{node="{node}"}} {value}'


async def _fetch_all(ports: Mapping[int, int], path: str) -> dict[int, tuple[int, str]]:
    """Fetch a page from each node; return the status and text for the nodes that answer in time."""
    answers: dict[int, tuple[int, str]] = {}

    async def fetch(node: int, port: int) -> None:
        with trio.move_on_after(ANSWER_S):
            try:
                answers[node] = await _fetch(port, path)
            except (OSError, trio.BrokenResourceError, ValueError, IndexError):
                return  # The node has ended meanwhile.

    async with trio.open_nursery() as nursery:
        for node, port in ports.items():
            nursery.start_soon(fetch, node, port)
    return answers


async def _fetch(port: int, path: str) -> tuple[int, str]:
    request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
    async with await trio.open_tcp_stream(HOST, port) as stream:
        await stream.send_all(request.encode())
        answer = bytearray()
        async for data in stream:
            answer += data
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if length is None or int(length[1]) != len(body):
        raise ValueError("the response is incomplete")
    return int(head.split(b" ", 2)[1]), body.decode()
