"""The link of a node with the process that started it."""

import os
from typing import Any

import pytest
import trio

from kwire.node import supervisor_link


async def test_node_whose_supervisor_has_ended_stops_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor requested figures and ended before it read them."""

    class Server:
        class config:
            node_id = 1

        stop_count = 0

        def stop(self) -> None:
            self.stop_count += 1

    async def collect_figures(_: Any) -> dict[str, int]:
        return {"records": 1}

    def write(_: str) -> None:
        raise BrokenPipeError

    reader, writer = os.pipe()
    monkeypatch.setattr(supervisor_link, "STDIN", reader)
    monkeypatch.setattr(supervisor_link, "collect_figures", collect_figures)
    os.write(writer, b"figures\n")
    os.close(writer)
    server: Any = Server()
    try:
        with trio.fail_after(30):
            await supervisor_link.follow_supervisor(server, write)
    finally:
        os.close(reader)
    assert server.stop_count == 1
