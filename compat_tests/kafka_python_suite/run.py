"""kafka-python's own integration tests, from its source distribution on PyPI.

    python -m compat_tests.kafka_python_suite.run --broker kwire|kafka|HOST:PORT

The distribution carries its tests; they run with the installed client of the same version. Its unit
tests need no broker and are not counted. The tests of SASL and TLS would start brokers of their
own; a plugin (``secured.py``) gives them one that runs already.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from compat_tests.harness import logins
from compat_tests.harness.broker import ROOT, kafka
from compat_tests.harness.kafka_home import make_kafka_home
from compat_tests.harness.logins import LOGINS
from compat_tests.harness.suite import AUTHORIZING, SAFELY, Suite, Variant, cache, main
from compat_tests.kafka_python_suite.secured import write_template
from compat_tests.security.brokers import LOGIN_LISTENERS
from compat_tests.tls.stores import write_store, write_trusted

FOLDER = Path(__file__).resolve().parent
SECONDS = 900
VERSION = "4.3.0"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:trio"]
PYTEST += ["-p", "no:faulthandler"]

# The distribution lacks the module that starts brokers; with a running one, its names are enough.
SERVICE = '''"""A stand-in for the module that starts brokers: here one runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        """It is open."""

    close = stop = dump_logs = open


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("these tests use a broker that runs already")
'''


def source() -> Path:
    """Return the folder of the unpacked tests of the installed version."""
    number = version("kafka-python")
    folder = cache(f"kafka-python-{number}")
    tree = folder / "tree"
    if not (tree / "ok").exists():
        with kafka.hold_lock(folder / "unpacking"):
            if not (tree / "ok").exists():
                _unpack(number, folder, tree)
    return tree


def _unpack(number: str, folder: Path, tree: Path) -> None:
    """Fetch the source distribution and lay its tests out for a run."""
    shutil.rmtree(tree, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    selection = ["--no-deps", "--no-binary", ":all:", f"kafka-python=={number}", "-d", str(folder)]
    subprocess.run([*pip, *selection], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        members = [m for m in packed.getmembers() if "/test/" in m.name]
        packed.extractall(folder, members=members, **SAFELY)
    (unpacked,) = [
        path for path in folder.iterdir() if path.name.endswith(number) and path.is_dir()
    ]
    unpacked.rename(tree)
    (tree / "test" / "__init__.py").touch()  # Hides the standard library's package.
    (tree / "test" / "service.py").write_text(SERVICE)
    (tree / "servers" / VERSION / "kafka-bin").mkdir(parents=True)  # Must exist, is never used.
    (tree / "ok").touch()


def stores() -> Path:
    """Return the folder of this process for the certificates of a broker with TLS."""
    return source() / f"ssl-{os.getpid()}"


def upstream() -> list[str]:
    """Return every integration test, with its parameters."""
    tree = source()
    command = [*PYTEST, "--collect-only", "-c", os.devnull, f"--rootdir={tree}", "test/integration"]
    listed = subprocess.run(
        command, cwd=tree, env=_environment("127.0.0.1:9092"), capture_output=True, text=True
    )
    return re.findall(r"^test/integration/(\S+::\S+)$", listed.stdout, re.MULTILINE)


def _environment(address: str) -> dict[str, str]:
    return {
        **os.environ,
        "KAFKA_VERSION": VERSION,
        "KAFKA_URI": f"kafka://{address.partition(',')[0]}",
        "PYTHONPATH": str(source()),
    }


def _secured_environment(address: str) -> dict[str, str]:
    """Return the environment of the tests of SASL and TLS, which a running broker would skip."""
    write_template(source() / "servers" / VERSION / "resources")
    shared = {k: v for k, v in _environment(address).items() if k != "KAFKA_URI"}
    return {
        **shared,
        "KAFKA_ROOT": str(make_kafka_home()),
        "KWIRE_PORT": address.partition(",")[0].rpartition(":")[2],
        "KWIRE_SSL": str(stores()),
        "PYTHONPATH": f"{source()}{os.pathsep}{ROOT}",
        "PYTEST_PLUGINS": "compat_tests.kafka_python_suite.secured",
    }


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    tree = source()
    is_secured = any(name in (*SASL, *TLS) for name in names)
    environment = (_secured_environment if is_secured else _environment)(address)
    report = tree / f"report-{os.getpid()}.xml"
    tests = sorted({name.split("::")[0] for name in names})
    selected = [f"test/integration/{test}" for test in tests] if names else ["test/integration"]
    command = [*PYTEST, "-c", os.devnull, f"--rootdir={tree}"]
    command += ["--tb=short", f"--junitxml={report}", *selected]
    if names:
        command += ["-k", " or ".join(sorted({_bare(name) for name in names}))]
    subprocess.run(command, cwd=tree, env=environment, check=False, timeout=SECONDS)
    if not report.exists():
        return {}
    try:
        return _results(report)
    finally:
        report.unlink()


def _bare(name: str) -> str:
    return name.rsplit("::", maxsplit=1)[-1].split("[", maxsplit=1)[0]


def _results(report: Path) -> dict[str, bool]:
    results: dict[str, bool] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        module, *classes = str(case.get("classname")).partition("integration.")[2].split(".")
        bad = any(case.find(kind) is not None for kind in ("failure", "error"))
        if case.find("skipped") is None:
            name = "::".join([f"{module}.py", *classes, str(case.get("name"))])
            results[name] = not bad and results.get(name, True)
    return results


# The suite configures its own brokers like this.
SETTINGS = {"node.id": "0", "group.min.session.timeout.ms": "2000"}
WITH_ACLS = ("test_admin_integration.py::test_create_describe_delete_acls",)
SASL = [
    f"test_sasl_integration.py::{test}[{mechanism}]"
    for test in ("test_admin", "test_produce_and_consume", "test_client")
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
]
TLS = [
    f"test_ssl_integration.py::TestSSLConnection::{test}"
    for test in ("test_ssl_handshake", "test_legacy_kafka_client_ssl")
]
OF_TLS = {
    **LOGIN_LISTENERS,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SSL,CONTROLLER:PLAINTEXT",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": str(stores() / "server.pem"),
}


@contextmanager
def start(
    kind: str, settings: Mapping[str, str], node_count: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Run brokers, with the certificates that they need."""
    folder = stores()
    folder.mkdir(exist_ok=True)
    try:
        write_store(folder, "server")
        write_trusted(folder).rename(folder / "ca-cert")
        with logins.start(kind, settings, node_count) as brokers:
            yield brokers
    finally:
        shutil.rmtree(folder)


SUITE = Suite(
    "kafka_python_suite",
    FOLDER,
    run,
    upstream,
    SETTINGS,
    [
        Variant(AUTHORIZING, lambda: WITH_ACLS),
        Variant({"node.id": "1", **LOGINS}, lambda: SASL),
        Variant({"node.id": "1", **OF_TLS}, lambda: TLS),
    ],
    start=start,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
