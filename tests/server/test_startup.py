"""Modules that a fresh node must not have imported once it has started and stopped.

Times differ from machine to machine; the modules that are loaded do not.  A module that this
test refuses belongs into the function that needs it.
"""

import signal
import subprocess
import sys

import pytest

from kwire.handlers import SERVED

PROGRAM = """
import sys
import kwire.cli

kwire.cli.main(["serve", "--port", "0", "--ephemeral"])
print(*sorted(sys.modules))
"""

HEAVY = {
    "asyncio",
    "concurrent.futures",
    "csv",
    "dataclasses",
    "decimal",
    "email",
    "http",
    "importlib.metadata",
    "multiprocessing",
    "prometheus_client",
    "pytest",
    "unittest",
    "urllib.request",
    "uuid",
    "xml",
    "zipfile",
}
"""Each takes milliseconds and imports others."""

MESSAGE_MODULES_AT_MOST = 20
MODULES_OF_KWIRE_AT_MOST = 245
"""A dozen of them are packages without code."""


@pytest.fixture(scope="module")
def modules() -> set[str]:
    """Return the modules of a node that started on an empty directory, and stopped."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as node:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("kwire ready on ")
        node.send_signal(signal.SIGTERM)
        loaded = set(node.stdout.read().split())
    assert node.returncode == 0
    return loaded


def test_slow_modules_are_not_imported(modules: set[str]) -> None:
    assert modules & HEAVY == set()


def test_few_message_tables_are_imported(modules: set[str]) -> None:
    """A message's table is imported with its first request; one request needs only its own."""
    tables = {name for name in modules if name.startswith("kwire.codec.messages.")}
    assert len(tables) <= MESSAGE_MODULES_AT_MOST, sorted(tables)
    clients = ("produce", "fetch", "metadata", "api_versions", "create_topics", "list_offsets")
    assert not tables & {f"kwire.codec.messages.{name}" for name in clients}


def test_no_handler_is_imported(modules: set[str]) -> None:
    assert not modules & {f"kwire.handlers.{api.module}" for api in SERVED}


def test_unused_modules_are_not_imported(modules: set[str]) -> None:
    own = {name for name in modules if name.partition(".")[0] == "kwire"}
    assert len(own) <= MODULES_OF_KWIRE_AT_MOST, len(own)
    assert not {name for name in own if name.startswith("kwire.testing")}
