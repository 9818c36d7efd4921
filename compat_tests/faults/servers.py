"""Servers whose requests go wrong as a test wants: kwire, and a proxy in front of a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.request import Request, urlopen


class Faulty(NamedTuple):
    """The address for clients, and the verbs."""

    address: str
    control: str

    def call(self, verb: str, **values: object) -> Any:
        body = json.dumps(values).encode()
        with urlopen(Request(f"{self.control}/v1/{verb}", body), timeout=60) as answer:
            return json.load(answer)


@contextmanager
def serving(kind: str, target: str, *options: str) -> Iterator[Faulty]:
    """Run kwire, or with ``kind`` "proxy" a proxy in front of the broker at ``target``."""
    words = ("serve", "--ephemeral", "--port=0")
    if kind == "proxy":
        words = ("proxy", f"--target={target}", "--listen=0")
    options = ("--control-port=0", "--log-level=ERROR", *options)
    command = [sys.executable, "-m", "kwire", *words, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().split()[-1] for _ in range(2)]
        yield Faulty(address=lines[1], control=lines[0])
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
