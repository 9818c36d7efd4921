"""Records how Apache Kafka answers the table of requests, for the test of kwire's answers.

Usage: ``python -m compat_tests.authorization.record`` writes ``tests/vectors/authorization.json``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from compat_tests.harness.broker import ROOT, Broker, make_broker
from tests.support.authorization.matrix import SETTINGS, Matrix

RECORDED = ROOT / "tests" / "vectors" / "authorization.json"


def matrix_of(broker: Broker) -> Matrix:
    """Return the table's runner for a broker that is also the controller."""
    lines = (broker.directory / "server.properties").read_text().splitlines()
    listeners = next(line for line in lines if line.startswith("listeners="))
    return Matrix(broker.port, int(listeners.rsplit(":", 1)[1]))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        broker = make_broker("kafka", Path(directory), SETTINGS)
        try:
            answers = matrix_of(broker).answers()
        finally:
            broker.close()
    RECORDED.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
