"""The hook of a pipeline: a command and a URL that are notified when a run fails or has to wait.

Rules of this file: a hook that fails or hangs causes a warning and never affects the run; the text
contains no secrets; the command runs without a shell; a redirect is a failure, because following it
would get a page instead of posting. During a run, a thread calls the hook; events that occur
meanwhile are sent together afterwards, so that a slow hook delays nothing.
"""

import json
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Final

import attrs

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import redact, secrets_of
from kwire_pipeline.errors import EXIT_FAILURE, EXIT_REFUSAL, Failure, Refusal

FAILED: Final = "failed"
"""The event of a run that has ended with an error."""
WAITING: Final = "waiting"
"""The event of a run at an interval that continues without a table, or retries."""
MOST_REASONS: Final = 3


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error."""

    def redirect_request(self, *_: object) -> None:
        pass


@attrs.frozen(kw_only=True)
class Hook:
    """The hook of one file."""

    pipeline: str
    words: tuple[str, ...] = ()
    """The command and its arguments; empty if there is none."""
    url: str | None = None
    timeout_s: float
    secrets: frozenset[str] = frozenset()
    warn: Callable[[str], None]

    @classmethod
    def of(cls, pipeline: Pipeline, warn: Callable[[str], None]) -> "Hook":
        """Return the hook of a pipeline; ``warn`` gets the problems of the hook itself."""
        settings = pipeline.on_failure
        return cls(
            pipeline=pipeline.name,
            words=tuple(shlex.split(settings.command or "")),
            url=settings.url,
            timeout_s=settings.timeout.total_seconds(),
            secrets=secrets_of(pipeline),
            warn=warn,
        )

    @property
    def is_set(self) -> bool:
        return bool(self.words) or self.url is not None

    def tell(self, event: str, reason: str, exit_code: int | None = None) -> None:
        """Notify the command and the URL, each with the time limit; a problem is a warning."""
        reason = redact(" ".join(reason.split()), self.secrets)
        message = {
            "pipeline": self.pipeline,
            "event": event,
            "reason": reason,
            "exit_code": exit_code,
            "text": f"pipeline {self.pipeline} {event}: {reason}",
        }
        steps = {
            "command": self._run if self.words else None,
            "url": self._post if self.url else None,
        }
        for key, step in steps.items():
            if step is None:
                continue
            try:
                step(message)
            except Exception as error:  # noqa: BLE001 a hook must not change how the run ends
                self.warn(f"on_failure.{key}: {self._reason(error)}")

    def _reason(self, error: Exception) -> str:
        """Return why the hook failed, without any part of the command or the URL: of either, a part
        may be secret.
        """
        match error:
            case subprocess.CalledProcessError():
                return f"exit status {error.returncode}"
            case subprocess.TimeoutExpired():
                return f"it took longer than {self.timeout_s:g} s"
            case urllib.error.HTTPError():
                return f"HTTP status {error.code}"
            case urllib.error.URLError(reason=OSError() as cause):
                return cause.strerror or type(cause).__name__
            case OSError():
                return error.strerror or type(error).__name__
        return type(error).__name__

    def _run(self, message: Mapping[str, object]) -> None:
        """Run the command with the message as JSON on its standard input."""
        subprocess.run(
            self.words,
            input=json.dumps(message).encode() + b"\n",
            stdout=subprocess.DEVNULL,
            timeout=self.timeout_s,
            check=True,
        )

    def _post(self, message: Mapping[str, object]) -> None:
        """Post the message as JSON."""
        request = urllib.request.Request(
            self.url or "",
            data=json.dumps(message).encode(),
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(NoRedirects)
        with opener.open(request, timeout=self.timeout_s):
            pass

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Notify the hook of the error with which a block ends, and raise that error."""
        try:
            yield
        except (Refusal, Failure) as error:
            code = EXIT_REFUSAL if isinstance(error, Refusal) else EXIT_FAILURE
            self.tell(FAILED, str(error), code)
            raise
        except Exception as error:
            self.tell(FAILED, f"{type(error).__name__}: {error}", EXIT_FAILURE)
            raise


class Alerts:
    """The outages of a continuing run, of which a thread notifies the hook."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._reasons: SimpleQueue[str] = SimpleQueue()
        self._thread: Thread | None = None

    def add(self, reason: str) -> None:
        """Schedule a notification of the hook; return at once."""
        if not self._hook.is_set:
            return
        self._reasons.put(reason)
        if self._thread is None:
            self._thread = Thread(target=self._work, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            reasons = [self._reasons.get()]
            while not self._reasons.empty():
                reasons.append(self._reasons.get())
            text = "; ".join(reasons[:MOST_REASONS])
            if len(reasons) > MOST_REASONS:
                text += f"; and {len(reasons) - MOST_REASONS} more"
            self._hook.tell(WAITING, text)
