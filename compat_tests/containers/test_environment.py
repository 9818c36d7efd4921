"""The properties that Apache Kafka's image writes for an environment are those that kwire reads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from compat_tests.harness.broker import kafka
from kwire.configs.properties import parse_properties
from kwire.container.environment import settings

ENVIRONMENT = {
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_NODE_ID": "1",
    "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:9092",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_A_B__C___D____E_____F": "1",
    "KAFKA_X_KAFKA_Y": "2",
    "KAFKA_Mixed_Case": "3",
    "KAFKA_BACKSLASHES": r"a\tb\\c",
    "KAFKA_EMPTY": "",
    "KAFKA_SPACED": "  v ",
    "KAFKA_LINES": "4\nsecond.line=5",
    "KAFKA_HEAP_OPTS": "-Xmx200m",
    "KAFKA_OPTS": "-Da=b",
    "KAFKA_JMX_OPTS": "-Dc=d",
    "KAFKA_JMX_HOSTNAME": "localhost",
    "KAFKA_JVM_PERFORMANCE_OPTS": "-server",
    "KAFKA_GC_LOG_OPTS": "-Xlog:gc",
    "KAFKA_LOG4J_OPTS": "-De=f",
    "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN",
    "KAFKA_LOG4J_LOGGERS": "kafka=WARN",
    "KAFKA_TOOLS_LOG4J_LOGLEVEL": "WARN",
    "KAFKA_VERSION": "4.3.1",
    "kafka_lower": "6",
}
MOUNTED = "node.id=7\nnum.partitions=3\nlog.dirs=/elsewhere\n"


@pytest.mark.parametrize("mounted", [None, MOUNTED], ids=["environment", "mounted file"])
def test_environment_becomes_the_properties_of_apaches_image(
    mounted: str | None, tmp_path: Path
) -> None:
    environment = {**ENVIRONMENT, "KAFKA_LOG_DIRS": str(tmp_path / "data")}
    for name in ("default", "mounted", "final"):
        (tmp_path / name).mkdir()
    (tmp_path / "default" / "server.properties").write_text("default=true\n")
    if mounted is not None:
        (tmp_path / "mounted" / "server.properties").write_text(mounted)
    arguments = [
        "setup",
        f"--default-configs-dir={tmp_path}/default",
        f"--mounted-configs-dir={tmp_path}/mounted",
        f"--final-configs-dir={tmp_path}/final",
    ]
    java = ["java", "-Xmx200m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    classes = ["-cp", f"{kafka.fetch()}/*", "kafka.docker.KafkaDockerWrapper"]
    subprocess.run(
        [*java, *classes, *arguments],
        env={"PATH": os.environ["PATH"], "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw", **environment},
        check=True,
        capture_output=True,
        timeout=120,
    )
    written = parse_properties((tmp_path / "final" / "server.properties").read_text())
    assert settings(environment, mounted) == written
    assert (tmp_path / "data" / "meta.properties").exists(), "Kafka accepts the properties"
