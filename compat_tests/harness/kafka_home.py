"""A folder like a release of Kafka, whose scripts start the tools of Maven's jars.

Suites that call Kafka's shell scripts find them here.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from compat_tests.harness.broker import kafka
from compat_tests.harness.suite import cache

SCRIPTS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-verifiable-consumer.sh": "org.apache.kafka.tools.VerifiableConsumer",
}


def make_kafka_home() -> Path:
    """Return a folder like a release of Kafka: its jars, and shell scripts in `bin`."""
    folder = cache("kafka-scripts")
    (folder / "bin").mkdir(exist_ok=True)
    jars = kafka.fetch()
    if not (folder / "libs").exists():
        (folder / "libs").symlink_to(jars)
    commands = {
        name: shlex.join(kafka.java_command("-XX:TieredStopAtLevel=1", main_class))
        for name, main_class in SCRIPTS.items()
    }
    commands["kafka-run-class.sh"] = f'java -XX:TieredStopAtLevel=1 -cp "$CLASSPATH:{jars}/*"'
    for name, command in commands.items():
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o755)
    return folder
