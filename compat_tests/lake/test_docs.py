"""The first table of docs/object-stores.md, word for word except for addresses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.harness.broker import ROOT, Broker
from compat_tests.harness.ports import new_ports
from compat_tests.lake.install import readers_python, reason_to_skip
from compat_tests.lake.servers import PASSWORD, USER, StoreKind, object_store

PAGE = (ROOT / "docs" / "object-stores.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
COUNT = 10_000
ROWS = 9_908
"""The events that are not damaged; they are the same each time."""


def example(marker: str) -> str:
    """Return the one code block that contains ``marker``."""
    (block,) = [str(text) for _, text in BLOCKS if marker in text]
    return block


@pytest.mark.long
def test_first_table_is_written_and_read_as_the_page_says(broker: Broker, tmp_path: Path) -> None:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    (port,) = new_ports(1)
    addresses = {"127.0.0.1:9092": broker.address, "127.0.0.1:7070": f"127.0.0.1:{port}"}

    def here(text: str) -> str:
        for old, new in addresses.items():
            text = text.replace(old, new)
        return text

    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "LAKE_USER": USER,
        "LAKE_PASSWORD": PASSWORD,
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        assert PASSWORD not in done.stdout + done.stderr
        return done.stdout

    store = object_store(tmp_path, port, StoreKind.VERSITYGW)
    store.start()
    try:
        (tmp_path / "orders.yaml").write_text(here(example("jdbc:sqlite")))
        commands = example("events.py").replace("../examples", str(ROOT / "examples")).splitlines()
        answers = [
            run("sh", "-c", f"{command} --bootstrap-servers {broker.address}")
            if "events.py" in command
            else run("sh", "-c", command)
            for command in commands
        ]
        assert f"{COUNT:,} committed records in the topics: {COUNT:,} once" in answers[-1]
        answer = run(str(readers_python()), "-c", here(example("load_catalog")))
        assert answer == f"{ROWS} rows\n"
    finally:
        store.kill()
