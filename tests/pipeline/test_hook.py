"""A hook learns of runs that fail, and never changes how they end."""

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, NoReturn

import pytest

from kwire_pipeline import cli
from kwire_pipeline.config.document import ConfigError
from kwire_pipeline.config.load import Flag, load
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.hook import Alerts, Hook
from tests.support.pipeline.orders import SMALLEST

PASS = "opensesame"
COPY = "import pathlib, sys; pathlib.Path('told.json').write_text(sys.stdin.read())"
LATE = "import time; time.sleep(60)"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pipeline whose brokers are away, with a password that their error repeats."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PASS", PASS)

    def fail(*_: object, **__: object) -> NoReturn:
        raise Failure(f"no broker answers\nto {PASS}")

    monkeypatch.setattr(cli, "preflight", fail)
    (tmp_path / "orders.yaml").write_text(SMALLEST)
    return "orders.yaml"


def run(file: str, *flags: str, command: str = "run") -> int:
    return cli.main([command, file, "--spark.conf", "spark.x.token=${PASS}", *flags])


def python(code: str) -> tuple[str, str]:
    return "--on_failure.command", f'{sys.executable} -c "{code}"'


class Receiver(BaseHTTPRequestHandler):
    """Takes messages, and answers with the status that the path names."""

    received: Queue[Any]

    def do_POST(self) -> None:
        self.received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(int(self.path.rpartition("/")[2]))
        self.send_header("Location", "/200")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Receiver.received = Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_command_learns_why_a_run_failed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, *python(COPY)) == 1
    assert json.loads(Path("told.json").read_text()) == {
        "pipeline": "orders",
        "event": "failed",
        "reason": "no broker answers to ***",
        "exit_code": 1,
        "text": "pipeline orders failed: no broker answers to ***",
    }
    assert capsys.readouterr().err == "kwire-pipeline: no broker answers to ***\n"


def test_url_learns_of_a_refusal_and_of_a_defect(
    file: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_with(error: Exception) -> Any:
        def preflight(*_: object, **__: object) -> NoReturn:
            raise error

        return preflight

    monkeypatch.setattr(cli, "preflight", end_with(Refusal("the table is gone")))
    assert run(file, "--on_failure.url", f"{url}/204") == 2
    message = Receiver.received.get(timeout=60)
    assert (message["reason"], message["exit_code"]) == ("the table is gone", 2)
    monkeypatch.setattr(cli, "preflight", end_with(KeyError("x")))
    with pytest.raises(KeyError):
        run(file, "--on_failure.url", f"{url}/204")
    assert Receiver.received.get(timeout=60)["reason"] == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (python("raise SystemExit(3)"), "on_failure.command: exit status 3"),
        (("--on_failure.command", "./none"), "on_failure.command: No such file"),
        (
            (*python(LATE), "--on_failure.timeout", "1 ms"),
            "on_failure.command: it took longer than ",
        ),
        (("--on_failure.url", "http://127.0.0.1:1/"), "on_failure.url: Connection refused"),
        (("--on_failure.url", "http://[bad"), "on_failure.url: ValueError"),
    ],
)
def test_hook_that_fails_changes_nothing(
    file: str, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    assert run(file, *flags) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"kwire-pipeline: {words}")
    assert last == "kwire-pipeline: no broker answers to ***"


@pytest.mark.parametrize("status", [301, 302, 303, 500])
def test_answer_of_the_url_that_is_an_error_is_a_warning(
    file: str, url: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A redirect that is followed gets a page, and nobody has learned of the failure."""
    assert run(file, "--on_failure.url", f"{url}/{status}") == 1
    assert f"on_failure.url: HTTP status {status}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ("--on_failure.command", f"{sys.executable} -c 'raise SystemExit(3)' --key ${{KEY}}"),
        (
            "--on_failure.command", f"{sys.executable} -c '{LATE}' --key ${{KEY}}",
            "--on_failure.timeout", "1 ms",
        ),
        ("--on_failure.command", "./${KEY}"),
        ("--on_failure.url", "http://127.0.0.1:1/${KEY} b"),
        ("--on_failure.url", "http://127.0.0.1:1/a ${KEY}\n"),
    ],
)  # fmt: skip
def test_hook_that_fails_shows_no_secret(
    file: str, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("KEY", "sesame-key")
    assert run(file, *flags) == 1
    error = capsys.readouterr().err
    assert f"kwire-pipeline: {flags[0][2:]}: " in error
    assert "sesame-key" not in error


def test_only_runs_have_a_hook(file: str) -> None:
    assert run(file, *python(COPY), command="status") == 1
    assert not Path("told.json").exists()


def test_url_is_hidden(file: str) -> None:
    pipeline = load(file, [Flag("on_failure.url", "https://x/secret")], {})
    assert "secret" not in repr(pipeline.on_failure)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("url", "file:///etc/passwd", "on_failure.url: expected http"),
        ("command", "page 'x", "on_failure.command: it is not a command with arguments"),
        ("timeout", "1 s", "on_failure.timeout: it has no effect without on_failure.command"),
    ],
)
def test_hook_that_could_never_be_told_is_refused(
    file: str, key: str, value: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(file, [Flag(f"on_failure.{key}", value)], {})


def test_slow_hook_delays_no_run_and_gets_the_rest_at_once(url: str) -> None:
    """The first message is taken, and those that come meanwhile are one."""
    messages, begun, hook_may_go_on = Queue[str](), Queue[None](), Queue[None]()

    class Slow(Hook):
        def tell(self, event: str, reason: str, exit_code: int | None = None) -> None:
            begun.put(None)
            hook_may_go_on.get(timeout=60)
            messages.put(f"{event}: {reason}")

    alerts = Alerts(Slow(pipeline="orders", url=url, timeout_s=1, warn=print))
    alerts.add("a is away")
    begun.get(timeout=60)
    for name in "bcdef":
        alerts.add(f"{name} is away")
    hook_may_go_on.put(None)
    hook_may_go_on.put(None)
    assert messages.get(timeout=60) == "waiting: a is away"
    assert messages.get(timeout=60) == "waiting: b is away; c is away; d is away; and 2 more"


def test_run_without_a_hook_starts_no_thread() -> None:
    alerts = Alerts(Hook(pipeline="orders", timeout_s=1, warn=print))
    alerts.add("a is away")
    assert alerts._thread is None
