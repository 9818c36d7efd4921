"""Podman for the tests of the container image: its own storage, its Docker API, and the image.

No image registry is needed: the base image is a folder of Debian packages, made once for the
cache. Rules: the storage is the suite's own, so that all of its containers can be removed at the
end; limits of processes are not raised, which some machines do not allow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from compat_tests.harness.broker import ROOT
from compat_tests.harness.suite import cache
from compat_tests.harness.wait import eventually

IMAGE = "localhost/kwire:8.0.0"
"""The tag is a version of Confluent's images, which two of the container libraries read."""
BASE = "localhost/debian-python"
PACKAGES = (
    "base-files,bash,coreutils,dash,hostname,libc-bin,python3,python3-distutils,python3-pip,sed"
)
HOOKS = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
"""/bin is a link to /usr/bin, as in every image of today's Debian."""
PYTHON = "3.11"
"""The Python of Debian 12."""
MISSING = "{} is missing (Debian: apt-get install podman netavark runc mmdebstrap)"
SECONDS = 600


def reason_to_skip() -> str | None:
    """Return why no container can run here; None if one can."""
    for program in ("podman", "runc", "mmdebstrap"):
        if shutil.which(program) is None:
            return MISSING.format(program)
    return None if os.geteuid() == 0 else "containers are run as root here"


@attrs.frozen
class Podman:
    """Runs podman with the configuration and the storage of a folder."""

    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    @property
    def socket(self) -> Path:
        return self.folder / "podman.sock"

    def configure(self) -> None:
        self.folder.joinpath("containers.conf").write_text(
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            # Each command in a container leaves a process for that time, by default 300 s. One
            # second is too short for Node's library, which then asks for the exit code in vain.
            "exit_command_delay = 20\n"
            '[network]\nnetwork_backend = "netavark"\n'
            '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        )
        self.folder.joinpath("storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/storage"\n'
            f'runroot = "{self.folder}/run"\n'
        )

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """Run a command of podman and return its output, without the log of podman itself."""
        result = subprocess.run(
            ["podman", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if check and result.returncode != 0:
            raise AssertionError(f"podman {' '.join(arguments)}: {result.stdout}{result.stderr}")
        return result.stdout.strip()

    def code(self, *arguments: str) -> int:
        """Run a command of podman and return its exit code."""
        command = ["podman", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, timeout=SECONDS, check=False
        ).returncode

    def logs(self, container: str) -> str:
        """Return what a container has printed."""
        result = subprocess.run(
            ["podman", "logs", container],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return result.stdout

    def wait_for(self, container: str, words: str) -> None:
        """Wait until a container has printed the words."""
        eventually(lambda: words in self.logs(container), lambda: self.logs(container))

    def port(self, container: str, port: int) -> int:
        """Return the port of this machine that leads to a port of the container."""
        return int(self("port", container, f"{port}/tcp").rpartition(":")[2])

    @contextmanager
    def run(self, *arguments: str, command: Sequence[str] = ()) -> Iterator[str]:
        """Run a container of the image for the length of the block; yield its id."""
        container = self("run", "--detach", *arguments, IMAGE, *command)
        try:
            yield container
        finally:
            self("rm", "--force", "--volumes", container)


def build_image(podman: Podman, scratch: Path) -> None:
    """Build the image as docs/containers.md says, from the wheel of this tree."""
    wheels = scratch / "dist"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", f"--wheel-dir={wheels}", str(ROOT)], check=True)
    (wheel,) = wheels.glob("kwire-*.whl")
    target = [f"--python-version={PYTHON}", "--only-binary=:all:", f"--dest={wheels}"]
    subprocess.run([*pip, "download", *target, str(wheel)], check=True)
    shutil.copytree(ROOT / "packaging", scratch / "packaging")
    _import_base(podman)
    arguments = [f"BASE={BASE}", "PIP_NO_INDEX=1"]
    podman(
        "build",
        "--format=docker",
        *(f"--build-arg={argument}" for argument in arguments),
        f"--tag={IMAGE}",
        f"--file={scratch}/packaging/Containerfile",
        str(scratch),
    )


def _import_base(podman: Podman) -> None:
    """Make the base image from Debian's packages, which are unpacked but not configured."""
    if podman.code("image", "exists", BASE) == 0:
        return
    archive = podman.folder / "base.tar"
    make = [
        "mmdebstrap",
        "--quiet",
        "--variant=extract",
        f"--include={PACKAGES}",
        HOOKS,
        "bookworm",
    ]
    subprocess.run([*make, str(archive)], check=True, timeout=SECONDS)
    podman("import", str(archive), BASE)
    archive.unlink()


@contextmanager
def serving(podman: Podman) -> Iterator[Mapping[str, str]]:
    """Serve Docker's API for the length of the block; yield the environment for its clients."""
    address = f"unix://{podman.socket}"
    process = subprocess.Popen(
        ["podman", "system", "service", "--time=0", address],
        env=podman.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: podman.code("--url", address, "version") == 0, "podman's API answers")
        yield {
            **os.environ,
            "DOCKER_HOST": address,
            # The libraries would start a helper from a registry, which removes containers.
            "TESTCONTAINERS_RYUK_DISABLED": "true",
            # Inside a sandbox the Python library would ask this old podman for a gateway.
            "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
        }
    finally:
        process.kill()
        process.wait()


def open_podman() -> Podman:
    podman = Podman(cache("containers"))
    podman.configure()
    return podman
