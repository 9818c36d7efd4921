"""Programs in other languages that log in over TLS, write a record and read it again.

Each of them carries out many attempts at the same time, because its start costs more than an
attempt. It reads a JSON list of attempts (:func:`attempt`) from standard input. For each, it prints
the name, a tab, and in one line the value of the record that came back, or what the client library
reported.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from compat_tests.go_clients.run import binary
from compat_tests.harness.jvm import Jvm
from compat_tests.kafkajs.run import need, with_scripts
from compat_tests.security.encrypted import Login

Attempt = Mapping[str, str]
SECONDS = 180


def attempt(name: str, client: str, address: str, topic: str, login: Login) -> Attempt:
    """Return an attempt to log in at ``address`` and to write ``name`` as a record to ``topic``."""
    return {
        "name": name,
        "client": client,
        "address": address,
        "topic": topic,
        "mechanism": login.mechanism,
        "user": login.user,
        "secret": login.secret,
        "trusted": login.trusted,
    }


def run_attempts(
    client: str, attempts: Sequence[Attempt], get_jvm: Callable[[], Jvm]
) -> dict[str, str]:
    """Run the program of a client's language; return what happened by the attempts' names."""
    text = json.dumps(attempts)
    if client == "Java":
        printed = get_jvm().tool("LogIns", stdin=text).ok()
    elif client == "kafkajs":
        printed = _run([need("node"), "attempts.cjs"], text, with_scripts())
    else:
        printed = _run([str(binary()), "attempts"], text)
    return dict(line.split("\t", 1) for line in printed.splitlines() if "\t" in line)


def _run(command: Sequence[str], text: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        command,
        input=text,
        cwd=folder,
        env={**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
