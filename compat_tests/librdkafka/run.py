"""librdkafka's own tests. Needs a C compiler, make and npm; part of ``scripts/test --all``.

    python -m compat_tests.librdkafka.run --broker kwire|kafka|HOST:PORT

The source with its tests comes from npm, in the package of Confluent's JavaScript client, which
carries a release of librdkafka whole. Each test runs in a process of its own, in quick mode:
one that crashes or hangs fails alone. What is left out, and why, is in FINDINGS.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compat_tests.harness.suite import SAFELY, Suite, cache, main

FOLDER = Path(__file__).resolve().parent
PACKAGE, VERSION = "@confluentinc/kafka-javascript@1.10.1", "2.15.1"
TREE = "package/deps/librdkafka/"
SECONDS = 240
AT_ONCE = 3
# The suite's own limits suit an idle machine: 0059 needs nine of its ten seconds even there.
CONF = "bootstrap.servers={}\ntest.timeout.multiplier=4\n"


def _need(program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise SystemExit(f"`{program}` is missing: install {package}")


def runner() -> Path:
    """The compiled test runner."""
    folder = cache(f"librdkafka-{VERSION}")
    tests = folder / TREE / "tests"
    if (tests / "test-runner").exists():
        return tests / "test-runner"
    for program, package in (("npm", "npm"), ("g++", "g++"), ("make", "make")):
        _need(program, f"{package} (Debian: apt-get install {package} zlib1g-dev)")
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        members = [member for member in packed.getmembers() if member.name.startswith(TREE)]
        packed.extractall(folder, members=members, **SAFELY)
    leave_out = [f"--disable-{part}" for part in ("ssl", "gssapi", "curl", "zstd")]
    log = folder / "build.log"
    with log.open("w") as output:
        for command, where in (
            (["sh", "./configure", *leave_out], folder / TREE),
            (["make", "-j2", "libs"], folder / TREE),
            (["make", "-j2", "test-runner"], tests),
        ):
            done = subprocess.run(command, cwd=where, stdout=output, stderr=output, check=False)
            if done.returncode != 0:
                raise SystemExit(f"librdkafka does not build; see {log}")
    return tests / "test-runner"


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    program = runner()
    logs = program.parent / "logs"
    logs.mkdir(exist_ok=True)
    (program.parent / "kwire.conf").write_text(CONF.format(address))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = pool.map(lambda name: _one(program, logs, name), names)
        return {
            name: passed for name, passed in zip(names, outcomes, strict=True) if passed in (0, 1)
        }


def _one(program: Path, logs: Path, name: str) -> bool | None:
    """Whether it passed; None when the suite itself skipped it."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{program.parent}/../src:{program.parent}/../src-cpp",
        "RDKAFKA_TEST_CONF": "kwire.conf",
        "TEST_KAFKA_VERSION": "4.3.0",
        "TESTS": name[:4],
    }
    log = logs / f"{name}.log"
    with log.open("w") as output:
        try:
            code = subprocess.run(
                [str(program), "-Q", "-E", "-L", "-p1"],
                cwd=program.parent,
                env=environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            return False
    return _judge(log.read_text(errors="replace"), name[:4]) if code == 0 else False


def _judge(log: str, number: str) -> bool | None:
    """One number may stand for several tests; at least one must have run and none failed."""
    rows = re.findall(r"\|[^|]*?(\d{4})_[^|]*\|\s*(PASSED|FAILED|SKIPPED)", log)
    outcomes = {outcome for found, outcome in rows if found == number} - {"SKIPPED"}
    return outcomes == {"PASSED"} if outcomes else None


SUITE = Suite("librdkafka", FOLDER, run)

if __name__ == "__main__":
    sys.exit(main(SUITE))
