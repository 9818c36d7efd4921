"""librdkafka's own tests. Needs a C compiler, make, npm and curl; part of ``scripts/test --all``.

    python -m compat_tests.librdkafka.run --broker kwire|kafka|HOST:PORT

The source with its tests comes from npm, in the package of Confluent's JavaScript client, which
contains a whole release of librdkafka. Each test runs in a process of its own, in quick mode:
one that crashes or hangs fails alone. Tests of one number share a process. 0081_admin is one test
upstream; here its parts are separate tests, so that failures about ACLs do not hide the others.
Tests that call Kafka's shell scripts get scripts that start the same classes from Maven's jars.
RapidJSON, which some tests parse statistics with, is taken from the source of a package on PyPI.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from compat_tests.harness.kafka_home import make_kafka_home
from compat_tests.harness.logins import login_addresses
from compat_tests.harness.programs import need
from compat_tests.harness.suite import (
    AUTHORIZING,
    REPLICATED,
    SAFELY,
    Suite,
    Variant,
    cache,
    main,
    running,
    running_cluster,
)
from compat_tests.librdkafka.provider import OF_PASSWORDS, OF_TOKENS, Clients, prepare

FOLDER = Path(__file__).resolve().parent
PACKAGE, VERSION = "@confluentinc/kafka-javascript@1.10.1", "2.15.1"
RAPIDJSON = "python-rapidjson==1.20"
TREE = "package/deps/librdkafka/"
DEBIAN = (
    "npm, g++, make and the headers of curl and OpenSSL "
    "(Debian: apt-get install npm g++ make zlib1g-dev libcurl4-openssl-dev libssl-dev)"
)
SECONDS = 1200
AT_ONCE = 3
# The suite's own limits are for an idle machine: 0059 needs nine of its ten seconds even there.
CONF = "bootstrap.servers={}\ntest.timeout.multiplier=4\n"
SPLIT = "0081_admin"
WHOLE = {"0082", "0098", "0103", "0126", "0129", "0142"}
"""Numbers of tests that quick mode would skip, as a whole or in part."""
REPLICAS = (
    "0098_consumer_txn",
    "0101_fetch_from_follower",
    "0103_transactions",
)
"""Tests that make topics of three replicas."""
REPLICAS_AND_NO_AUTO_CREATION = ("0107_topic_recreate", "0111_delay_create_topics")
WITH_ACLS = (
    "0081_admin/do_test_CreateAcls",
    "0081_admin/do_test_DescribeAcls",
    "0081_admin/do_test_DeleteAcls",
    "0109_auto_create_topics",
    "0115_producer_auth",
    "0119_consumer_auth",
)
WITH_LOGINS = ("0135_sasl_credentials", "0142_reauthentication")
WITH_TOKENS = ("0126_oauthbearer_oidc",)
NO_AUTO_CREATION = {"auto.create.topics.enable": "false"}


def runner() -> Path:
    """Return the path of the compiled test runner; compile it first if needed."""
    folder = cache(f"librdkafka-{VERSION}-tls")
    tests = folder / TREE / "tests"
    if (tests / "test-runner").exists():
        return tests / "test-runner"
    for program in ("npm", "g++", "make", "curl-config"):
        need(program, DEBIAN)
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        members = [member for member in packed.getmembers() if member.name.startswith(TREE)]
        packed.extractall(folder, members=members, **SAFELY)
    leave_out = [f"--disable-{part}" for part in ("gssapi", "zstd")]
    shutil.copytree(_rapidjson(), folder / TREE / "src" / "rapidjson", dirs_exist_ok=True)
    leave_out.append(f"--CPPFLAGS=-I{folder / TREE / 'src'}")
    log = folder / "build.log"
    with log.open("w") as output:
        for command, where in (
            (["bash", "./configure", *leave_out], folder / TREE),
            (["make", "-j2", "libs"], folder / TREE),
            (["make", "-j2", "test-runner"], tests),
        ):
            done = subprocess.run(command, cwd=where, stdout=output, stderr=output, check=False)
            if done.returncode != 0:
                raise SystemExit(f"librdkafka does not build; see {log}")
    return tests / "test-runner"


def _rapidjson() -> Path:
    """Return the folder of RapidJSON's headers; fetch them first if needed."""
    folder = cache("rapidjson")
    headers = folder / "rapidjson"
    if (headers / "schema.h").exists():
        return headers
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as scratch:
        selection = ["--no-deps", "--no-binary", ":all:", RAPIDJSON, "-d", scratch]
        subprocess.run([*pip, *selection], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, **SAFELY)
        (schema,) = Path(scratch).rglob("include/rapidjson/schema.h")
        shutil.copytree(schema.parent, headers, dirs_exist_ok=True)
    return headers


def upstream() -> list[str]:
    """Return every test of the suite by its name, 0081_admin by its parts."""
    names = [name for name, _ in _tests() if name != SPLIT]
    source = (runner().parent / "0081-admin.c").read_text()
    apis = source[source.index("static void do_test_apis(") :]
    parts = dict.fromkeys(re.findall(r"\b(do_test_\w+)\(", apis))
    return [*names, *(f"{SPLIT}/{part}" for part in parts if part != "do_test_apis")]


def without_auto_creation() -> Iterable[str]:
    """Return the tests that the suite runs in its scenario `noautocreate` only."""
    return [name for name, scenario in _tests() if scenario == "noautocreate"]


def _tests() -> list[tuple[str, str]]:
    """Return the rows of the suite's table: a name and its scenario."""
    table = (runner().parent / "test.c").read_text()
    rows = []
    for row in re.split(r"^ {4}_TEST\(", table, flags=re.MULTILINE)[1:]:
        scenario = re.search(r'\.scenario\s*=\s*"([\w,]+)"', row)
        rows.append((row.partition(",")[0], scenario[1] if scenario else "default"))
    return rows


@contextmanager
def start(
    kind: str, settings: Mapping[str, str], node_count: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Run brokers; yield the address of the listener that the tests use, and a reader of logs.

    Where clients must log in, they do so at a listener of their own: the harness uses the other.
    """
    if "LOGIN" not in settings.get("listeners", ""):
        with running(kind, settings, node_count) as brokers:
            yield brokers
        return
    with (
        prepare(settings) as (own, clients),
        running_cluster(kind, own, node_count) as cluster,
    ):
        address = ",".join(login_addresses(cluster))
        _clients[address] = clients
        yield address, cluster.tails


_clients: Final[dict[str, Clients]] = {}
"""The clients of listeners that are not for anybody, by their addresses."""


@attrs.frozen
class Process:
    """One run of the test program: the tests of one number, or one part of a test."""

    number: str
    part: str = ""
    scenario: str = "default"
    protocol: str = ""
    """The protocol of groups; empty for the suite's default, the classic protocol."""

    @property
    def log(self) -> str:
        parts = (self.number, self.part, self.scenario, self.protocol)
        return "-".join(filter(None, parts)) + ".log"


def run(address: str, names: Sequence[str], protocol: str = "") -> Mapping[str, bool]:
    """Run tests with a protocol of groups; return whether each test that ran has passed."""
    program = runner()
    logs = program.parent / "logs" / address.replace(":", "-").replace(",", "+")
    logs.mkdir(parents=True, exist_ok=True)
    clients = _clients.get(address, Clients())
    (logs / "test.conf").write_text(CONF.format(address) + clients.conf)
    noautocreate = set(without_auto_creation())
    processes: dict[Process, list[str]] = {}
    for name in names:
        scenario = "noautocreate" if name in noautocreate else "default"
        process = Process(name[:4], name.partition("/")[2], scenario, protocol)
        processes.setdefault(process, []).append(name)
    run_process = functools.partial(_one, program, logs, address)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(run_process, processes))
    results: dict[str, bool] = {}
    for tests, passed in zip(processes.values(), outcomes, strict=True):
        for name in tests:
            row = name.partition("/")[0]
            if row in passed:
                results[name] = passed[row]
    return results


def _one(program: Path, logs: Path, address: str, process: Process) -> dict[str, bool]:
    """Run one process; return whether each test that the suite did not skip has passed."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{program.parent}/../src:{program.parent}/../src-cpp",
        "RDKAFKA_TEST_CONF": str(logs / "test.conf"),
        "TEST_KAFKA_VERSION": "4.3.0",
        "TESTS": process.number,
        "KAFKA_PATH": str(make_kafka_home()),
        "BROKERS": address,
        **_clients.get(address, Clients()).environment,
    }
    if process.part:
        environment["SUBTESTS"] = f"{process.part}:"
    if process.protocol:
        environment["TEST_CONSUMER_GROUP_PROTOCOL"] = process.protocol
    quick = [] if process.number in WHOLE else ["-Q"]
    log = logs / process.log
    with log.open("w") as output:
        try:
            code = subprocess.run(
                [str(program), *quick, "-L", "-p1", "-s", process.scenario],
                cwd=program.parent,
                env=environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    return _judge(log.read_text(errors="replace"), process, code)


def _judge(log: str, process: Process, code: int) -> dict[str, bool]:
    """Return the results in the summary; without one, every test that had begun has failed."""
    rows = re.findall(r"\|[^|]*?(\d{4}_\w+)[^|]*\|\s*(PASSED|FAILED|SKIPPED)", log)
    if not rows:
        started = re.findall(r"=+ Running test (\d{4}_\w+)", log)
        return dict.fromkeys(started, False)
    if process.part and f"[ {process.part}:" not in log:
        return {}
    passed = {name: outcome == "PASSED" for name, outcome in rows if outcome != "SKIPPED"}
    if code != 0 and all(passed.values()):
        return dict.fromkeys(passed, False)
    return passed


SUITE = Suite(
    "librdkafka",
    FOLDER,
    run,
    upstream,
    variants=[
        Variant(REPLICATED, lambda: REPLICAS, node_count=3),
        Variant(
            {**REPLICATED, **NO_AUTO_CREATION}, lambda: REPLICAS_AND_NO_AUTO_CREATION, node_count=3
        ),
        Variant(NO_AUTO_CREATION, without_auto_creation),
        Variant(AUTHORIZING, lambda: WITH_ACLS),
        Variant({**REPLICATED, **OF_PASSWORDS}, lambda: WITH_LOGINS, node_count=3),
        Variant({**REPLICATED, **OF_TOKENS}, lambda: WITH_TOKENS, node_count=3),
    ],
    start=start,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
