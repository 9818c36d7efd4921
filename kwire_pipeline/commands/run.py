"""`kwire-pipeline run`: write records to the table until the end, or for ever at an interval."""

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import redact, secrets_of
from kwire_pipeline.engine.figures import Batch
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.metrics import Metrics
from kwire_pipeline.engine.query import Control, run_pipeline
from kwire_pipeline.engine.reports import Reporter
from kwire_pipeline.engine.session import open_session
from kwire_pipeline.errors import Refusal


class StopRequest:
    """The request to stop after the batch, by SIGTERM."""

    def __init__(self) -> None:
        self._requests = 0

    def is_stopping(self) -> bool:
        return self._requests > 0

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Finish the batch; a second signal ends the process at once."""
        self._requests += 1
        if self._requests > 1:
            raise SystemExit(128 + number)

    @contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Listen to SIGTERM for the time of a block."""
        before = signal.signal(signal.SIGTERM, self.on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def run(pipeline: Pipeline, *, adopt: bool = False, from_start: bool = False) -> int:
    """Run a pipeline in a session of its own, and print its progress and tally."""
    intent = intent_of(adopt=adopt, from_start=from_start)
    secrets = secrets_of(pipeline)
    reporter = Reporter(pipeline.progress, sys.stdout, lambda text: redact(text, secrets))
    request = StopRequest()
    with ExitStack() as closing:
        metrics = None
        if pipeline.metrics.port is not None:
            metrics = closing.enter_context(serve_metrics(pipeline, pipeline.metrics.port))

        def report(batch: Batch) -> None:
            if metrics is not None:
                metrics.on_batch(batch)
            reporter.on_batch(batch)

        def warn(text: str) -> None:
            print(f"kwire-pipeline: {redact(text, secrets)}", file=sys.stderr)

        spark = open_session(pipeline)
        closing.callback(spark.stop)
        with request.on_sigterm():
            control = Control(report=report, warn=warn, is_stopping=request.is_stopping)
            reporter.on_end(run_pipeline(spark, pipeline, intent, control))
    return 0


@contextmanager
def serve_metrics(pipeline: Pipeline, port: int) -> Iterator[Metrics]:
    """Serve figures for Prometheus for the time of a block."""
    metrics = Metrics(pipeline.name)
    address = metrics.start(pipeline.metrics.host, port)
    print(f"kwire-pipeline: metrics on http://{address}/metrics", file=sys.stderr)
    try:
        yield metrics
    finally:
        metrics.stop()


def intent_of(*, adopt: bool, from_start: bool) -> Intent:
    """Return the user's answer to a refusal; raise Refusal for two answers."""
    if adopt and from_start:
        raise Refusal("--adopt and --from-start exclude each other: choose one")
    if adopt:
        return Intent.ADOPT
    return Intent.FROM_START if from_start else Intent.CONTINUE
