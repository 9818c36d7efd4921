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
import kwire.cli

kwire.cli.main(["serve", "--port", "0", "--ephemeral"])
classes = {
    f"{name}.{key}": value
    for name, module in sys.modules.items()
    for key, value in vars(module).items()
    if isinstance(value, type) and name == value.__module__ and name.startswith("kwire.")
    if "__attrs_attrs__" in vars(value)
}
slow_classes = [
    name
    for name, cls in classes.items()
    if any("<attrs " in vars(cls)[method].__code__.co_filename
           for method in ("__eq__", "__repr__") if method in vars(cls))
]
print(json.dumps([sorted(sys.modules), list(classes), slow_classes]))
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

MESSAGE_MODULES_AT_MOST = 8
MODULES_OF_KWIRE_AT_MOST = 266
"""A dozen of them are packages without code."""
CLASSES_OF_ATTRS_AT_MOST = 177
"""Each takes 0.1 to 0.3 ms, because attrs compiles its ``__init__``."""
SLOW_CLASSES_AT_MOST = 23
"""A class for which attrs also writes ``__eq__`` or ``__repr__`` takes twice that time."""
LATER = (
    *("kwire.group", "kwire.transaction", "kwire.coordinator", "kwire.testing", "kwire.net.tls"),
    *(
        f"kwire.security.{name}"
        for name in ("authorizer", "conversation", "jaas", "plain", "scram")
    ),
)
"""Packages that only some requests or settings need, and the one that no node needs."""


class Loaded(NamedTuple):
    """The modules of a node, and the classes of kwire that attrs made."""

    modules: set[str]
    classes: list[str]
    slow_classes: list[str]
    """Those with an ``__eq__`` or a ``__repr__`` that attrs wrote."""


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
        modules, classes, slow_classes = json.loads(node.stdout.read())
    assert node.returncode == 0
    return Loaded(set(modules), classes, slow_classes)


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
    assert not {name for name in own if name.startswith(LATER)}


def test_attrs_compiles_few_methods(fresh_node: Loaded) -> None:
    assert len(fresh_node.classes) <= CLASSES_OF_ATTRS_AT_MOST, len(fresh_node.classes)
    assert len(fresh_node.slow_classes) <= SLOW_CLASSES_AT_MOST, sorted(fresh_node.slow_classes)
