"""The container image: its size and user, its defaults, a read-only root, its end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.containers.podman import IMAGE, Podman
from compat_tests.containers.round_trip import RECORDS, round_trip
from compat_tests.harness.ports import new_ports

pytestmark = [pytest.mark.long, pytest.mark.single]

MEGABYTE = 1_000_000
READY = "kwire ready,"
READ_ONLY = ("--read-only", "--read-only-tmpfs=false")
OWN_SETTINGS = (
    "--env=KAFKA_NODE_ID=1",
    "--env=KAFKA_PROCESS_ROLES=broker,controller",
    "--env=KAFKA_CONTROLLER_LISTENER_NAMES=CONTROLLER",
    "--env=KAFKA_CONTROLLER_QUORUM_VOTERS=1@localhost:9093",
    "--env=KAFKA_LISTENERS=PLAINTEXT://:9092,CONTROLLER://:9093",
    "--env=KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR=1",
)


def test_image_is_small_and_not_root(podman: Podman) -> None:
    size, user = podman("image", "inspect", "--format={{.Size}} {{.User}}", IMAGE).split()
    print(f"image: {int(size) / MEGABYTE:.1f} MB")
    assert int(size) < 100 * MEGABYTE
    assert user == "1000:0"


def test_defaults_are_those_of_apaches_image(podman: Podman) -> None:
    began = time.monotonic()
    with podman.run("--publish=127.0.0.1::9092", *READ_ONLY, "--tmpfs=/tmp") as container:
        podman.wait_for(container, READY)
        print(f"ready after {time.monotonic() - began:.1f} s")
        address = f"127.0.0.1:{podman.port(container, 9092)}"
        cluster = AdminClient({"bootstrap.servers": address}).list_topics(timeout=60)
        assert cluster.cluster_id == "5L6g3nShT-eMCtK--X86sw"
        assert [str(broker) for broker in cluster.brokers.values()] == ["localhost:9092/1"]


def test_volume_keeps_the_data_of_a_read_only_container(
    podman: Podman, unique: Callable[[str], str]
) -> None:
    volume = podman("volume", "create")
    topic = unique("topic")
    (port,) = new_ports(1)
    arguments = (
        *READ_ONLY,
        *OWN_SETTINGS,
        f"--volume={volume}:/var/lib/kafka/data",
        "--env=KAFKA_LOG_DIRS=/var/lib/kafka/data",
        f"--env=KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:{port}",
        f"--publish=127.0.0.1:{port}:9092",
    )
    for starts in (1, 2):
        with podman.run(*arguments) as container:
            podman.wait_for(container, READY)
            assert round_trip(f"127.0.0.1:{port}", topic, unique("group")) == starts * RECORDS
            assert podman.code("healthcheck", "run", container) == 0
            podman("stop", "--time=30", container)
            code = podman("inspect", "--format={{.State.ExitCode}}", container)
            assert code == "0", podman.logs(container)
    podman("volume", "rm", volume)


def test_wrong_setting_ends_the_container_with_its_reason(podman: Podman) -> None:
    command = ("/etc/kafka/docker/run", "KAFKA_NUM_PARTITIONS=many")
    with podman.run(*OWN_SETTINGS, command=command) as container:
        assert podman("wait", container) == "1"
        assert "kwire: Invalid value many for configuration num.partitions" in podman.logs(
            container
        )


def test_data_on_a_read_only_root_are_refused_with_the_remedy(podman: Podman) -> None:
    with podman.run(*READ_ONLY) as container:
        assert podman("wait", container) == "2"
        assert "Read-only file system; make the file system writable" in podman.logs(container)
