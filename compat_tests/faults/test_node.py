"""A program in Node arranges faults over HTTP, at brokers of an older release too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compat_tests.faults.servers import serving
from compat_tests.kafkajs.run import install, need

SCRIPT = Path(__file__).with_name("faults.cjs")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["proxy", "kwire"])
@pytest.mark.parametrize("release", ["2.8", "4.3"])
def test_kafkajs_survives_faults(kind: str, release: str, broker: Any, topic: str) -> None:
    """Faults that a program in Node arranges for kafkajs"""
    folder = install()
    shutil.copy(SCRIPT, folder)
    with serving(kind, broker.address, f"--max-versions={release}") as server:
        done = subprocess.run(
            [need("node"), SCRIPT.name, server.address, server.control, topic],
            cwd=folder,
            env={**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["values"] == ["once", "end"]
    assert report["produce_count"] == 3
