"""The README's shell commands, pasted into a shell with other ports.

The examples that need clients or Spark are run by `compat_tests/readme`; here they are only read.
"""

import codeop
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.command_line.test_contract import ROOT, api_versions_error, free_port

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


def ready_port(shell: "subprocess.Popen[str]", clone: Path) -> int:
    """Wait until the next node is ready; return its port."""
    assert shell.stdout is not None
    for line in shell.stdout:
        if match := re.fullmatch(r"kwire ready on 127\.0\.0\.1:(\d+)\n", line):
            return int(match[1])
    logs = {str(path): path.read_text() for path in clone.glob("cluster/*.log")}
    raise AssertionError((shell.communicate(), logs))


def untracked_files(clone: Path) -> set[str]:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    return {line[3:] for line in status.stdout.splitlines()}


def prefixes(count: int) -> list[str]:
    """Return prefixes whose ports that end in 1, 2 and 3 are free."""
    result: list[str] = []
    prefix = 1100 + free_port() % 1000
    while len(result) < count:
        prefix += 1
        try:
            for last in (1, 2, 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", prefix * 10 + last))
        except OSError:
            continue
        result.append(str(prefix))
    return result


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
    first, *others = [text for text in SHELL if "kwire serve" in text]
    assert first == "scripts/kwire serve\n"
    for text in others:
        assert "--port 0" in text or "listeners=" in text
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
        assert api_versions_error(ready_port(shell, clone)) == 0
        os.killpg(shell.pid, signal.SIGINT)  # what Ctrl-C does
        _, errors = shell.communicate("echo status $? >&2\n", timeout=60)
    assert errors.endswith("status 0\n")
    assert untracked_files(clone) == before


@pytest.mark.slow
def test_three_nodes_start_and_stop(clone: Path) -> None:
    before = untracked_files(clone)
    text = block("for node in 1 2 3")
    other = dict(zip(("1909", "1919", "1929"), prefixes(3), strict=True))
    text = re.sub("|".join(other), lambda match: other[match[0]], text)
    with shell_in(clone) as shell:
        paste(shell, text)
        assert [api_versions_error(ready_port(shell, clone)) for _ in range(3)] == [0, 0, 0]
        assert untracked_files(clone) == before
        _, errors = shell.communicate(block("kill $(cat cluster/running)"), timeout=60)
    assert (shell.returncode, errors) == (0, "")
    assert not (clone / "cluster").exists()
