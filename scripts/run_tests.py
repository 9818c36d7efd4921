"""Run the test stages and report them: ``scripts/test [--all] [--only NAME,...] [--lanes N]``.

Rules: a stage that could not run is a failure, never a skip; every stage runs even when an
earlier one failed, so that one run shows all failures; a failed stage leaves its files; a run
names the stages left out. With several lanes, as many stages run at the same time, the last
ones of the list first because they take longest, and the output of each comes at its end: many of
the long stages wait for most of their time.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
PYTEST = [str(BIN / "python"), "-m", "pytest", "--durations=60", "--durations-min=5"]
"""Each run names its slowest tests, so that the whole stays short."""
PROCESSES = os.cpu_count() or 1
LEFT_OUT_VARIABLES = {"PYTHONDONTWRITEBYTECODE"}
"""Compiled modules are kept beside their sources, as by `scripts/kwire`. Otherwise every process
that a test starts compiles what it imports, and every run compiles all tests in each process."""
TEST_MODULES = r"/(test_\w+|conftest)\.py$"
"""The modules that pytest compiles itself, because it rewrites their assertions."""
PARALLEL = ["-n", str(PROCESSES), "--dist", "worksteal"]
"""Each process takes a run of neighbours in the files' order, and later what the others lack time
for, so that most fixtures of a session or a module are made once in each process."""


@attrs.frozen
class Stage:
    """One command of the test run; ``long`` stages run only with ``--all``."""

    name: str
    command: list[str]
    long: bool = False
    by_name: bool = False
    """True if only ``--only`` runs the stage: a machine for tests may lack what the stage asks, or
    the stage says something about the tests and nothing about kwire."""


@attrs.frozen
class Outcome:
    """The result of one stage's run."""

    stage: Stage
    passed: bool
    summary: str
    """The last line of the output."""
    seconds: float
    cpu_seconds: float
    """The CPU time of the command and of the processes that it waited for."""

    @property
    def line(self) -> str:
        """The stage's line in the report of the whole run."""
        times = f"{self.seconds:6.1f} s ({self.cpu_seconds:6.1f} s CPU)"
        return f"{'ok  ' if self.passed else 'FAIL'} {self.stage.name:14} {times}  {self.summary}"


WAITING = ["-n", str(PROCESSES + 1), *PARALLEL[2:]]
"""One process more than there are cores: tests of real clients and of the command line wait for
much of their time, and the last stage of a run has the cores to itself."""
PYTHON = [str(BIN / "python")]
WITH_SPARK = [f"compat_tests/{name}" for name in ("lake", "pipeline", "spark")]
"""Tests that share one session of Spark, in one process: each session takes half a minute of
processor time to start and to warm up, and 2 GB of memory."""
NO_PIPELINE = ["--ignore=tests/pipeline"]
"""The tests of the pipeline's functions share a session of Spark too, in a stage of their own."""
WITHOUT_SPARK = [f"--ignore={path}" for path in WITH_SPARK]
STAGES = [
    Stage("lint", [str(BIN / "ruff"), "check", "."]),
    Stage("format", [str(BIN / "ruff"), "format", "--check", "."]),
    Stage("types", [str(BIN / "mypy")]),
    Stage("layers", [str(BIN / "lint-imports"), "--no-cache"]),
    Stage("docs", [*PYTHON, "scripts/gen_docs.py", "--check"]),
    Stage("audit", [*PYTHON, "scripts/audit.py"], by_name=True),
    Stage("long unit", [*PYTEST, *PARALLEL, "tests", *NO_PIPELINE, "-m", "long"], long=True),
    Stage("simulation", [*PYTHON, "scripts/sim.py", "--seconds", "600", "--total", "300000"]),
    Stage(
        "ISR simulation",
        [*PYTHON, "scripts/sim.py", "--isr", "--rotate", "--seconds", "120"],
        long=True,
    ),
    Stage(
        "log simulation",
        [*PYTHON, "scripts/sim.py", "--logs", "--rotate", "--seconds", "300"],
        long=True,
    ),
    Stage(
        "replication simulation",
        [*PYTHON, "scripts/sim.py", "--replication", "--rotate", "--seconds", "600"],
        long=True,
    ),
    Stage("pipeline", [*PYTEST, "tests/pipeline"]),
    Stage("unit", [*PYTEST, *WAITING, "tests", *NO_PIPELINE, "-m", "not long"]),
    Stage("compat spark", [*PYTEST, *WITH_SPARK, "--broker=kwire", "-m", "not long"]),
    Stage(
        "compat kwire",
        [
            *PYTEST,
            *WAITING,
            "compat_tests",
            "--broker=kwire",
            "-m",
            "not long and not with_apache",
            *WITHOUT_SPARK,
        ],
    ),
    *(
        Stage(
            f"nemesis {mode}",
            [
                *PYTHON,
                "-m",
                "compat_tests.nemesis.trial",
                f"--mode={mode}",
                "--seconds=600",
                *cluster,
            ],
            long=True,
        )
        for mode, *cluster in (
            ("idempotent", "--separate", "--dynamic"),
            ("transactions",),
            ("consumer", "--brokers=4"),
            ("share", "--dynamic"),
        )
    ),
    Stage(
        "nemesis directories",
        [
            *PYTHON,
            "-m",
            "compat_tests.nemesis.trial",
            "--mode=transactions",
            "--directories=4",
            "--seconds=300",
        ],
        long=True,
    ),
    Stage("mutants", [*PYTHON, "scripts/mutants.py"], long=True),
    # Each starts JVMs that need seconds of processor time; together, minutes on two cores.
    Stage(
        "with Apache",
        [*PYTEST, "compat_tests", "--broker=kwire", "-m", "with_apache", *WITHOUT_SPARK],
        long=True,
    ),
    Stage(
        "librdkafka", [*PYTHON, "-m", "compat_tests.librdkafka.run", "--broker=kwire"], long=True
    ),
    Stage(
        "librdkafka consumer groups",
        [*PYTHON, "-m", "compat_tests.librdkafka_consumer.run", "--broker=kwire"],
        long=True,
    ),
    Stage("franz-go", [*PYTHON, "-m", "compat_tests.franz_go.run", "--broker=kwire"], long=True),
    Stage("kfake", [*PYTHON, "-m", "compat_tests.kfake.run", "--broker=kwire"], long=True),
    Stage(
        "go clients", [*PYTHON, "-m", "compat_tests.go_clients.run", "--broker=kwire"], long=True
    ),
    Stage("kafka-go", [*PYTHON, "-m", "compat_tests.kafka_go.run", "--broker=kwire"], long=True),
    Stage("sarama", [*PYTHON, "-m", "compat_tests.sarama.run", "--broker=kwire"], long=True),
    Stage("rskafka", [*PYTHON, "-m", "compat_tests.rskafka.run", "--broker=kwire"], long=True),
    Stage("node clients", [*PYTHON, "-m", "compat_tests.kafkajs.run", "--broker=kwire"], long=True),
    Stage(
        "java clients", [*PYTHON, "-m", "compat_tests.java_old.run", "--broker=kwire"], long=True
    ),
    Stage(
        "Apache tests",
        [*PYTHON, "-m", "compat_tests.apache_tests.run", "--broker=kwire"],
        long=True,
    ),
    Stage(
        "long compat",
        [
            *PYTEST,
            *PARALLEL,
            "compat_tests",
            "--broker=kwire",
            "-m",
            "long and not with_apache",
            *WITHOUT_SPARK,
        ],
        long=True,
    ),
    Stage(
        "long compat spark",
        [*PYTEST, *WITH_SPARK, "--broker=kwire", "--store=versitygw", "-m", "long"],
        long=True,
    ),
    Stage(
        "compat kafka spark",
        [*PYTEST, *WITH_SPARK, "--broker=kafka", "--store=versitygw", "-m", "not long"],
        long=True,
    ),
    Stage(
        "compat kafka",
        [*PYTEST, *WAITING, "compat_tests", "--broker=kafka", "-m", "not long", *WITHOUT_SPARK],
        long=True,
    ),
    # Hours in which only Apache Kafka is tested; for those who change a long test.
    Stage(
        "long compat kafka",
        [*PYTEST, *PARALLEL, "compat_tests", "--broker=kafka", "-m", "long"],
        by_name=True,
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--all", action="store_true", help="also what takes long or needs a compiler"
    )
    parser.add_argument("--only", default="", help="comma-separated stage names")
    parser.add_argument("--lanes", type=int, default=1, help="stages at the same time")
    arguments = parser.parse_args()
    only = [name for name in arguments.only.split(",") if name]
    chosen = [s for s in STAGES if (s.name in only if only else is_usual(s, arguments.all))]
    if unknown := set(only) - {stage.name for stage in STAGES}:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are: " + stage_names())
    subprocess.run([*PYTHON, "scripts/speedups.py"], cwd=ROOT, check=False)
    compile_modules()
    started = time.monotonic()
    live = arguments.lanes == 1
    started_in_order = chosen if live else chosen[::-1]
    with ThreadPoolExecutor(arguments.lanes) as lanes:
        outcomes = list(lanes.map(lambda stage: run(stage, live=live), started_in_order))
    print(f"\nwhat ran, in {time.monotonic() - started:.0f} s:")
    for outcome in outcomes:
        print(f"  {outcome.line}")
    left_out = [stage for stage in STAGES if stage not in chosen]
    if names := [stage.name for stage in left_out if not stage.by_name]:
        print(f"left out (scripts/test --all runs them): {', '.join(names)}")
    if names := [stage.name for stage in left_out if stage.by_name]:
        print(f"left out (scripts/test --only NAME runs them): {', '.join(names)}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def compile_modules() -> None:
    """Compile all modules once; otherwise the processes of a stage would all do it."""
    folders = ("compat_tests", "kwire", "kwire_pipeline", "simulation", "tests")
    environment = child_environment()
    for command in (
        [*PYTHON, "-m", "compileall", "-q", "-j", "0", "-x", TEST_MODULES, *folders],
        [*PYTEST, "-p", "tests.support.compile_tests", "tests", "compat_tests"],
    ):
        subprocess.run(command, cwd=ROOT, check=False, env=environment)


def child_environment() -> dict[str, str]:
    """Return the environment of the processes that this run starts."""
    variables = {name: text for name, text in os.environ.items() if name not in LEFT_OUT_VARIABLES}
    return {**variables, "PATH": f"{BIN}:{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}


def is_usual(stage: Stage, with_long: bool) -> bool:
    """Return whether a run that names no stages runs this one."""
    return not stage.by_name and (with_long or not stage.long)


def stage_names() -> str:
    return ", ".join(stage.name for stage in STAGES)


def run(stage: Stage, *, live: bool) -> Outcome:
    """Run one stage; print its output as it comes if ``live`` is true, else at the end."""
    output: list[str] = []

    def show(line: str) -> None:
        output.append(line)
        if live:
            print(line, end="", flush=True)

    show(f"\n=== {stage.name}: {' '.join(stage.command)}\n")
    started = time.monotonic()
    last = ""
    scratch = tempfile.mkdtemp(prefix=f"kwire-{stage.name.replace(' ', '-')}-")
    process = subprocess.Popen(
        stage.command,
        cwd=ROOT,
        env={**child_environment(), "TMPDIR": scratch},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    for line in process.stdout:
        show(line)
        if line.strip():
            last = line.strip()
    _, status, usage = os.wait4(process.pid, 0)  # With the processes that it waited for.
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code == 0:
        shutil.rmtree(scratch, ignore_errors=True)
    else:
        show(f"what the stage left behind: {scratch}\n")
    if not live:
        print("".join(output), end="", flush=True)
    return Outcome(
        stage,
        passed=code == 0,
        summary=re.sub(r"^=+ | =+$", "", last),
        seconds=time.monotonic() - started,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
    )


if __name__ == "__main__":
    sys.exit(main())
