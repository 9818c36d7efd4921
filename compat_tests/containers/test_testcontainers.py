"""Testcontainers' Kafka modules start kwire in place of Apache's and Confluent's images."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from compat_tests.containers.libraries import LIBRARIES, start_module
from compat_tests.containers.podman import IMAGE, Podman
from compat_tests.containers.round_trip import round_trip

pytestmark = [pytest.mark.long, pytest.mark.single]

SECONDS = 180


@pytest.mark.parametrize("library", LIBRARIES)
def test_module_takes_kwire_for_kafka(
    library: str, docker: Mapping[str, str], podman: Podman, unique: Callable[[str], str]
) -> None:
    process = start_module(library, docker, IMAGE)
    assert process.stdout is not None
    try:
        ready = re.fullmatch(r"ready (\S+) (?:PLAINTEXT://)?(\S+)\n", process.stdout.readline())
        assert ready is not None, podman.logs("--latest")
        print(f"{library}: ready after {ready[1]} s")
        round_trip(ready[2], unique("topic"), unique("group"))
        process.communicate("", SECONDS)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
