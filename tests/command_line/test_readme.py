"""The README's shell commands, pasted into a shell with other ports.

The examples that need clients or Spark are run by `compat_tests/readme`; here they are only read.
"""

import codeop
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.command_line.process import ROOT, api_versions_error, free_port

BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "sh"]
PYTHON = [text for language, text in BLOCKS if language == "python"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Make a clone whose scripts and environment are this tree's."""
    for name in ("scripts", ".venv", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def block(marker: str) -> str:
    example: str
    (example,) = (text for text in SHELL if marker in text)
    return example


@contextmanager
def shell_in(clone: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a shell that reads from a pipe; its processes end with the test or in two minutes."""
    with subprocess.Popen(
        ["bash"],
        cwd=clone,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        end = threading.Timer(120, kill, [shell.pid])
        end.start()
        try:
            yield shell
        finally:
            end.cancel()
            kill(shell.pid)


def kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def paste(shell: "subprocess.Popen[str]", text: str) -> None:
    assert shell.stdin is not None
    shell.stdin.write(text)
    shell.stdin.flush()


def ready_ports(shell: "subprocess.Popen[str]", clone: Path) -> list[int]:
    """Wait for the ready line; return the ports in it."""
    assert shell.stdout is not None
    for line in shell.stdout:
        if line.startswith("kwire ready on "):
            return [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", line)]
    logs = {str(path): path.read_text() for path in clone.glob("kwire-cluster/*/*.log")}
    raise AssertionError((shell.communicate(), logs))


def untracked_files(clone: Path) -> set[str]:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    return {line[3:] for line in status.stdout.splitlines()}


@pytest.mark.parametrize("text", PYTHON, ids=range(len(PYTHON)))
def test_python_examples_can_be_pasted_into_python(text: str) -> None:
    """Before Python 3.13 the prompt ends a loop only at an empty line."""
    pending: list[str] = []
    for line in text.splitlines():
        pending.append(line)
        if codeop.compile_command("\n".join(pending) + "\n" * (not line)) is not None:
            pending = []
    assert pending == []


def test_only_the_first_broker_has_the_default_ports() -> None:
    first, *others = [text for text in SHELL if re.search(r"kwire (serve|cluster)", text)]
    assert first == "scripts/kwire serve\n"
    for text in others:
        assert re.search("--port (0|19092)|listeners=", text)
        assert not re.search(r"(?<!\d)909[23]", text)


@pytest.mark.slow
@pytest.mark.parametrize("marker", ["--ephemeral", "cat > server.properties"])
def test_other_ways_to_start_a_broker(clone: Path, marker: str) -> None:
    before = untracked_files(clone)
    text = block(marker)
    for port in ("29092", "29093"):
        text = text.replace(port, str(free_port()))
    with shell_in(clone) as shell:
        paste(shell, text)
        (port_of_node,) = ready_ports(shell, clone)
        assert api_versions_error(port_of_node) == 0
        os.killpg(shell.pid, signal.SIGINT)  # what Ctrl-C does
        _, errors = shell.communicate("echo status $? >&2\n", timeout=60)
    assert errors.endswith("status 0\n")
    assert untracked_files(clone) == before


@pytest.mark.slow
def test_protected_broker_serves_the_client_of_the_example(clone: Path) -> None:
    before = untracked_files(clone)
    (program,) = (text for text in PYTHON if "client.json" in text)
    with shell_in(clone) as shell:
        paste(shell, block("--secure"))
        ready_ports(shell, clone)
        assert shell.stdout is not None
        assert shell.stdout.readline().startswith("client files: ")
        python = [clone / ".venv" / "bin" / "python", "-c", program]
        done = subprocess.run(python, cwd=clone, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"[\w-]{22}\n", done.stdout)
        os.killpg(shell.pid, signal.SIGINT)  # what Ctrl-C does
        _, errors = shell.communicate("echo status $? >&2\n", timeout=60)
    assert errors.endswith("status 0\n")
    assert untracked_files(clone) == before


@pytest.mark.slow
def test_three_nodes_start_and_stop(clone: Path) -> None:
    before = untracked_files(clone)
    text = block("kwire cluster").replace("--port 19092", "--port 0")
    with shell_in(clone) as shell:
        paste(shell, text)
        assert [api_versions_error(port) for port in ready_ports(shell, clone)] == [0, 0, 0]
        assert (clone / "kwire-cluster" / "node-3" / "server.log").exists()
        os.killpg(shell.pid, signal.SIGINT)  # what Ctrl-C does
        _, errors = shell.communicate("echo status $? >&2\n", timeout=60)
    assert errors.endswith("status 0\n")
    assert untracked_files(clone) == before
