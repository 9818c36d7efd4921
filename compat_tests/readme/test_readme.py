"""The README's examples, run unchanged except for the broker's address."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.spark import quick_start

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:9092"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def example(marker: str) -> str:
    """Return the one code block that contains ``marker``."""
    (block,) = [str(text) for _, text in BLOCKS if marker in text]
    return block


def run(command: list[str], folder: Path, broker: Broker) -> str:
    environment = {
        **os.environ,
        **quick_start(folder),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [part.replace(ADDRESS, broker.address) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def python(text: str, folder: Path, broker: Broker) -> str:
    return run([sys.executable, "-c", text], folder, broker)


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("from kafka import", "b'en' b'hello'"),
        ("from confluent_kafka import", "b'fr' b'au revoir'"),
        ("numbers = spark.range", "1000"),
    ],
)
def test_example(broker: Broker, tmp_path: Path, marker: str, expected: str) -> None:
    assert re.search(expected, python(example(marker), tmp_path, broker))


@pytest.mark.long
def test_from_a_topic_to_a_table(broker: Broker, tmp_path: Path) -> None:
    """The pipeline section's commands work, and its query gives the documented answer."""
    (tmp_path / "orders.yaml").write_text(example("name: orders").replace(ADDRESS, broker.address))
    script = example("kwire-pipeline run orders.yaml")
    lines = [shlex.split(line, comments=True) for line in script.splitlines()]
    commands = [words for words in lines if words]
    names = [" ".join([Path(name).name, *arguments[:1]]) for name, *arguments in commands]
    assert names == [
        "python examples/orders/events.py",
        "kwire-pipeline check",
        "kwire-pipeline run",
        "kwire-pipeline verify",
    ]
    output = ""
    for name, *arguments in commands:
        if Path(name).name == "python":
            place = ["--bootstrap-servers", broker.address]
            command = [sys.executable, str(ROOT / arguments[0]), *arguments[1:], *place]
        else:
            command = [sys.executable, "-m", "kwire_pipeline", *arguments]
        output += run(command, tmp_path, broker)
    assert "text after the JSON value" in output
    answer = python(example("AS revenue"), tmp_path, broker)
    assert {"desk", "chair", "kettle", "lamp", "rug"} <= set(re.findall(r"\w+", answer))
    assert "order_id is missing" in answer
