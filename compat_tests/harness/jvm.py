"""One JVM for all Java tools and scenarios of a test session, because each start costs a second.

``Driver.java`` reads one JSON command a line, runs the named class's main method and answers with
its exit code and output. Rules: the Java sources are compiled once per content into the cache, by
one process at a time; a command that hangs takes the JVM down and fails the test, and the next one
gets a new JVM.
"""

from __future__ import annotations

import hashlib
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs

from compat_tests.harness.broker import kafka

SOURCES = Path(__file__).resolve().parents[1] / "java" / "src"
TOOL_SECONDS = 120


@attrs.frozen
class Ran:
    """The exit code and the output of a tool."""

    code: int
    out: str
    err: str

    def ok(self) -> str:
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self.out


def compile_sources() -> Path:
    """Return the folder of the compiled Java sources; compile them first if needed."""
    return compile_classes(sorted(SOURCES.glob("*.java")), "compat-java", "Driver")


def compile_classes(sources: Sequence[Path], name: str, main: str) -> Path:
    """Return the folder of these sources' classes, in the cache; compile them first if needed.

    The folder's name begins with ``name``; ``main`` is the class that shows that it is complete.
    """
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    classes = Path(kafka.cache_dir()).parent / f"{name}-{digest}"
    if not (classes / f"{main}.class").exists():
        with kafka.hold_lock(classes.parent / f"{name}-compiling"):
            if not (classes / f"{main}.class").exists():
                _compile(sources, classes)
    return classes


def _compile(sources: Sequence[Path], classes: Path) -> None:
    """Compile sources into a new folder, which appears when it is complete."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise RuntimeError("`javac` is missing: install a JDK (Debian: openjdk-17-jdk-headless)")
    with tempfile.TemporaryDirectory(dir=classes.parent) as scratch:
        target = Path(scratch) / "classes"
        command = [compiler, "-nowarn", "-cp", f"{kafka.fetch()}/*", "-d", str(target)]
        result = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"the Java sources do not compile:\n{result.stderr}")
        shutil.rmtree(classes, ignore_errors=True)
        target.rename(classes)


@attrs.define
class Jvm:
    """The running JVM; ``tool`` and ``scenario`` run one class each and wait for its end."""

    directory: Path
    process: subprocess.Popen[str]
    answers: queue.Queue[str]

    @classmethod
    def start(cls, directory: Path) -> Jvm:
        machine = cls(directory, *_launch(directory))
        return machine

    def tool(self, name: str, *arguments: str, stdin: str = "") -> Ran:
        """Run Apache's tool ``name``, a class such as org.apache.kafka.tools.TopicCommand."""
        if self.process.poll() is not None:
            self.process, self.answers = _launch(self.directory)
        command = {"main": name, "arguments": list(arguments), "stdin": stdin}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        try:
            answer = json.loads(self.answers.get(timeout=TOOL_SECONDS))
        except queue.Empty:
            self.close()
            raise AssertionError(f"{name} {arguments} did not end in {TOOL_SECONDS} s") from None
        if answer is None:
            raise AssertionError(f"the JVM ended while it ran {name} {arguments}")
        return Ran(code=answer["code"], out=answer["out"], err=answer["err"])

    def scenario(self, name: str, *arguments: str) -> dict[str, object]:
        """Run one of our own Java programs; it prints one JSON object."""
        printed = self.tool(name, *arguments).ok()
        result = json.loads(printed.strip().splitlines()[-1])
        assert isinstance(result, dict)
        return result

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _launch(directory: Path) -> tuple[subprocess.Popen[str], queue.Queue[str]]:
    command = kafka.java_command("Driver", classpath=[str(compile_sources())])
    command[1:1] = ["--add-opens", "java.base/java.lang=ALL-UNNAMED"]
    command[1:1] = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return launch(command, directory / "jvm.log")


def launch(command: Sequence[str], log: Path) -> tuple[subprocess.Popen[str], queue.Queue[str]]:
    """Start a program that answers each line with a line; return the queue of its answers too.

    What the program logs is appended to ``log``. The last answer, at its end, is ``null``.
    """
    with log.open("a") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    answers: queue.Queue[str] = queue.Queue()

    def pump() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put("null")

    threading.Thread(target=pump, daemon=True).start()
    return process, answers
