"""A standalone cluster of Spark, started and used as docs/pipeline.md says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from compat_tests.harness.broker import ROOT, Broker
from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually

PAGE = (ROOT / "docs" / "pipeline.md").read_text()
RECIPE = PAGE[PAGE.index("**A standalone cluster.**") : PAGE.index("**Kubernetes.**")]
START, CLIENT, SUBMIT, CLUSTER = re.findall(r"```sh\n(.*?)```", RECIPE, re.DOTALL)
FILE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
MASTER, BROKER = "127.0.0.1:7077", "127.0.0.1:9092"
REFUSAL = "Cluster deploy mode is currently not supported for python applications on standalone"
COUNT = 1000
"""The records of each run."""
TEN_DAYS_S = 864_000


@attrs.define
class Standalone:
    """A master and two workers, a folder with a pipeline's file, and a broker."""

    folder: Path
    broker: Broker
    master: str
    """The master's host and port."""
    status_url: str
    """The page of the master's status."""
    topic: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_WEBUI_PORT": self.status_url.rsplit(":", 1)[1].split("/")[0],
            "SPARK_WORKER_WEBUI_PORT": "0",
            "SPARK_WORKER_DIR": str(self.folder / "work"),
        }

    def status(self) -> dict[str, object]:
        try:
            with urllib.request.urlopen(self.status_url, timeout=10) as answer:
                status: dict[str, object] = json.load(answer)
        except OSError:
            return {}
        return status

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run lines of the page with the addresses of this cluster."""
        text = script.replace(MASTER, self.master)
        return subprocess.run(
            ["bash", "-ec", text],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )

    def run(self, script: str) -> str:
        done = self.shell(script)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def produce(self) -> None:
        events = ROOT / "examples" / "orders" / "events.py"
        count = f"--count {COUNT} --topic {self.topic}"
        self.run(f"python {events} --bootstrap-servers {self.broker.address} {count}")

    def work(self, pattern: str) -> set[Path]:
        return set((self.folder / "work").glob(pattern))


@pytest.fixture
def standalone(broker: Broker, topic: str, tmp_path: Path) -> Iterator[Standalone]:
    port, page_port = new_ports(2)
    cluster = Standalone(
        tmp_path, broker, f"127.0.0.1:{port}", f"http://127.0.0.1:{page_port}/json/", topic
    )
    text = FILE.replace(BROKER, broker.address).replace("[orders]", f"[{topic}]")
    (tmp_path / "orders.yaml").write_text(text)
    processes = []
    try:
        for number, line in enumerate(START.replace(MASTER, cluster.master).splitlines()):
            command = line.replace("--port 7077", f"--port {port}").removesuffix(" &")
            with (tmp_path / f"process-{number}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        ["bash", "-c", f"exec {command}"],
                        cwd=tmp_path,
                        env=cluster.environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        eventually(lambda: cluster.status().get("aliveworkers") == 2, "two workers", 240)
        yield cluster
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.long
@pytest.mark.usefixtures("patience")
def test_recipe_writes_each_record_once_in_every_mode(standalone: Standalone) -> None:
    """The warehouse of the page's file is relative, and executors run in other folders."""
    for mode, script in enumerate((CLIENT, SUBMIT)):
        standalone.produce()
        assert f"of {COUNT:,} offsets" in standalone.run(script)
        assert len(standalone.work("app-*")) == mode + 1
    assert standalone.work("driver-*") == set()

    refused = standalone.shell(SUBMIT.replace("spark-submit", "spark-submit --deploy-mode cluster"))
    assert refused.returncode != 0
    assert REFUSAL in refused.stderr
    assert standalone.work("driver-*") == set()

    standalone.produce()
    variables = SUBMIT.splitlines()[1]
    assert variables.startswith("main=")
    standalone.run(f"{variables}\n{CLUSTER}")
    (driver,) = standalone.work("driver-*")
    assert f"of {COUNT:,} offsets" in (driver / "stdout").read_text()
    assert standalone.work("*/**/*.parquet") == set()

    # After days of rest, maintenance leaves the table's own files where they are.
    old_s = (standalone.folder / "orders.yaml").stat().st_mtime - TEN_DAYS_S
    for path in (standalone.folder / "lake").rglob("*"):
        os.utime(path, (old_s, old_s))
    standalone.run("kwire-pipeline maintain orders.yaml --spark.master 'local[1]'")
    proof = standalone.run("kwire-pipeline verify orders.yaml --spark.master 'local[1]'")
    assert f"{3 * COUNT:,} committed records in the topics: {3 * COUNT:,} once" in proof
