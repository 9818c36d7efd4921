"""Start the image again and again with each testcontainers module, and report the times.

    python -m compat_tests.containers.starts [TIMES]

A start fails if the module does not consider the container ready, or if no record can be produced
and read. The time of the module includes its own work and podman's; the time of the node is from
the container's start to the line that says that it is ready. Needs podman (podman.py).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from compat_tests.containers.libraries import LIBRARIES, start_module
from compat_tests.containers.podman import IMAGE, Podman, build_image, open_podman, serving
from compat_tests.containers.round_trip import round_trip


def main(times: int) -> int:
    podman = open_podman()
    with tempfile.TemporaryDirectory() as scratch:
        build_image(podman, Path(scratch))
    of_modules: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    of_nodes: list[float] = []
    failures = 0
    with serving(podman) as environment:
        for number in range(times):
            for name, seconds in of_modules.items():
                try:
                    ready, node = start(name, environment, podman, f"starts-{number}")
                except (AssertionError, subprocess.SubprocessError) as error:
                    failures += 1
                    print(f"{name}, start {number}: {error}", flush=True)
                else:
                    print(f"{name}, start {number}: {ready:.1f} s, node {node:.2f} s", flush=True)
                    seconds.append(ready)
                    of_nodes.append(node)
    for name, seconds in of_modules.items():
        print(f"{name}: {describe(seconds)}")
    print(f"node: {describe(of_nodes)}\nfailures: {failures}")
    return 1 if failures else 0


def start(
    name: str, environment: Mapping[str, str], podman: Podman, topic: str
) -> tuple[float, float]:
    """Start one container; return the seconds until the module, and the node, were ready."""
    process = start_module(name, environment, IMAGE)
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        assert words[:1] == ["ready"], "the module did not take the container for ready"
        node = seconds_of_node(podman)
        round_trip(words[2].removeprefix("PLAINTEXT://"), topic, topic)
        process.communicate("", 60)
        assert process.returncode == 0, f"exit code {process.returncode}"
        return float(words[1]), node
    finally:
        process.kill()
        process.communicate()
        podman("rm", "--all", "--force", "--volumes")


def seconds_of_node(podman: Podman) -> float:
    container = podman("ps", "--quiet", "--latest")
    began = podman("inspect", "--format={{.State.StartedAt.UnixMilli}}", container)
    lines = podman("logs", "--timestamps", container).splitlines()
    (ready,) = [line for line in lines if "kwire ready on" in line]
    return datetime.fromisoformat(ready.split()[0]).timestamp() - int(began) / 1000


def describe(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    if not ordered:
        return "no start"
    middle, late = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"{len(ordered)} starts, p50 {middle:.2f} s, p99 {late:.2f} s, max {ordered[-1]:.2f} s"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
