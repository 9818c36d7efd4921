"""Modules and classes that a fresh node must not have loaded once it has started and stopped.

Times differ from machine to machine; the modules and classes that are loaded do not.  A module that
this test refuses belongs into the function that needs it.
"""

import json
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

from kwire.handlers import SERVED

PROGRAM = """
import json, sys
import attrs
import kwire.cli

kwire.cli.main(["serve", "--port", "0", "--ephemeral"])
slow_classes = [
    f"{name}.{key}"
    for name, module in sys.modules.items()
    for key, value in vars(module).items()
    if isinstance(value, type) and name == value.__module__ and name.startswith("kwire.")
    if any(isinstance(field, attrs.Attribute) for field in getattr(value, "__attrs_attrs__", ()))
]
print(json.dumps([sorted(sys.modules), slow_classes]))
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
MODULES_OF_KWIRE_AT_MOST = 264
"""A dozen of them are packages without code."""
CLASSES_OF_ATTRS_AT_MOST = 25
"""Each takes half a millisecond; those of :mod:`kwire.attrs` take a tenth of that."""


class Loaded(NamedTuple):
    """The modules of a node, and the classes of kwire that attrs itself made."""

    modules: set[str]
    classes: list[str]


@pytest.fixture(scope="module")
def fresh_node() -> Loaded:
    """Return the modules and classes of a node that started on an empty directory, and stopped."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as node:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("kwire ready on ")
        node.send_signal(signal.SIGTERM)
        modules, classes = json.loads(node.stdout.read())
    assert node.returncode == 0
    return Loaded(set(modules), classes)


@pytest.fixture(scope="module")
def modules(fresh_node: Loaded) -> set[str]:
    return fresh_node.modules


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


def test_few_classes_are_made_by_attrs_itself(fresh_node: Loaded) -> None:
    assert len(fresh_node.classes) <= CLASSES_OF_ATTRS_AT_MOST, sorted(fresh_node.classes)
