"""kwire's wheel and source distribution, installed as users install them from an index.

A server of the test's own is the index that has kwire; everything else comes from PyPI, as wheels
only. Rules: every tool gets folders of its own, and the tests share downloads only with each other,
so that neither an earlier build of the same version nor the environment of these tests is what
runs.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from compat_tests.confluent_kafka.clients import consumer, producer

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
READY = re.compile(r"^kwire ready on (\S+:\d+)$")
SECONDS = 300
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.14t")


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command to its end and return what it printed; fail with its errors."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    run(TOOLS / "uv", "build", "--quiet", "--out-dir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (wheel,) = distributions.glob("kwire-*.whl")
    return wheel


@pytest.fixture(scope="module")
def index(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve an index of the one package; return its URL."""
    folder = tmp_path_factory.mktemp("index")
    shutil.copytree(distributions, folder / "simple" / "kwire")
    (folder / "simple" / "kwire" / ".gitignore").unlink(missing_ok=True)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *parts: object) -> None:
            """Requests are not news."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of uv, which has no build of kwire but that of this run."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture
def environment(index: str, downloads: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of an installer: its own folders, and kwire's index before PyPI."""
    folders = ("UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "PIPX_HOME", "PIPX_BIN_DIR")
    return {
        **os.environ,
        **{name: str(tmp_path / name.lower()) for name in folders},
        "UV_CACHE_DIR": str(downloads),
        "UV_INDEX": index,
        "UV_NO_BUILD": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "1",
        "PIP_EXTRA_INDEX_URL": index,
        "PIP_ONLY_BINARY": ":all:",
    }


@contextmanager
def serve(*command: str | Path, env: dict[str, str]) -> Iterator[str]:
    """Run a broker for the length of the block; return its address. It must end cleanly."""
    with subprocess.Popen(
        [*command, "serve", "--ephemeral", "--port", "0"],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        match = READY.match(process.stdout.readline().strip())
        assert match, process.stderr.read()
        yield match[1]
        process.terminate()
        assert process.wait(SECONDS) == 0


def find_python(version: str) -> Path | None:
    """Return an interpreter of this version, on the path or among those that pyenv built."""
    built = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for python in (shutil.which(f"python{version}"), *built):
        if python and not subprocess.run([python, "--version"], capture_output=True).returncode:
            return Path(python)
    return None


def check_serves(address: str) -> None:
    sending = producer(address)
    sending.produce("packages", b"from a wheel")
    assert sending.flush(SECONDS) == 0
    with consumer(address, "group") as reading:
        reading.subscribe(["packages"])
        assert reading.poll(SECONDS).value() == b"from a wheel"


def test_index_accepts_the_metadata(distributions: Path) -> None:
    run(TOOLS / "twine", "check", "--strict", *distributions.glob("kwire-*"))


def test_wheel_has_the_packages_their_types_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names} == {"kwire", "kwire_pipeline", info}
    assert {"kwire/py.typed", "kwire_pipeline/py.typed", "kwire/_speedups.abi3.so"} <= {*names}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_source_distribution_builds_without_the_repository(distributions: Path) -> None:
    (source,) = distributions.glob("kwire-*.tar.gz")
    with tarfile.open(source) as archive:
        folders = {name.split("/")[1] for name in archive.getnames()}
    assert {"kwire", "kwire_pipeline", "packaging", "hatch_build.py", "LICENSE"} <= folders
    assert not folders & {"tests", "compat_tests", "simulation", "benchmarks"}


def test_pages_of_the_index_name_the_licence_and_every_extra(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"pipeline", "test", "testing"} <= {*(metadata.get_all("Provides-Extra") or [])}
    assert str(metadata.get_payload()).startswith("# kwire")


def test_uvx_runs_a_broker(environment: dict[str, str]) -> None:
    with serve(TOOLS / "uvx", "kwire", env=environment) as address:
        check_serves(address)


def test_uv_tool_installs_the_command(environment: dict[str, str]) -> None:
    run(TOOLS / "uv", "tool", "install", "--quiet", "kwire", env=environment)
    command = Path(environment["UV_TOOL_BIN_DIR"]) / "kwire"
    assert run(command, "--version", env=environment).startswith("kwire ")


def test_pipx_runs_a_broker(environment: dict[str, str]) -> None:
    with serve(TOOLS / "pipx", "run", "kwire", env=environment) as address:
        check_serves(address)


@pytest.mark.parametrize("version", PYTHONS)
def test_broker_runs_on_every_python_of_this_machine(
    environment: dict[str, str], version: str
) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    command: list[str | Path] = [TOOLS / "uvx", "--python", python, "kwire"]
    with serve(*command, env=environment) as address:
        check_serves(address)


@pytest.mark.long
def test_release_has_packages_of_its_version_and_a_list_of_components(tmp_path: Path) -> None:
    tree, target = tmp_path / "tree", tmp_path / "release"
    for name in ("kwire", "kwire_pipeline", "packaging", "scripts"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CHANGELOG.md", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tree / name)
    init = tree / "kwire" / "__init__.py"
    init.write_text(re.sub('__version__ = ".*"', '__version__ = "7.8.9"', init.read_text()))
    command: list[str | Path] = [sys.executable, tree / "scripts" / "release.py", target]
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr == "CHANGELOG.md has no section for 7.8.9\n"
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## 7.8.9\n")
    run(*command, env=environment)
    (wheel,), (components,) = target.glob("*.whl"), target.glob("*.json")
    assert wheel.name.startswith("kwire-7.8.9-")
    assert (target / "kwire-7.8.9.tar.gz").exists()
    listed = {part["name"]: part for part in json.loads(components.read_text())["components"]}
    assert {"kwire", "trio", "attrs", "cramjam", "crc32c", "immutables"} <= {*listed}
    assert not {"pytest", "pyspark"} & {*listed}
    assert listed["kwire"]["version"] == "7.8.9"
