"""`kwire-pipeline run`: write records to the table until the end, or forever at an interval."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import redact, secrets_of
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.losses import GIVE_UP, parse_given_up
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.query import Control, run_pipeline
from kwire_pipeline.engine.reporting.figures import Batch, Tally
from kwire_pipeline.engine.reporting.metrics import Metrics
from kwire_pipeline.engine.reporting.reports import Reporter
from kwire_pipeline.engine.session import open_session
from kwire_pipeline.errors import Refusal
from kwire_pipeline.signals import StopRequest, exit_code, handle_with, stop_line


def run(
    pipeline: Pipeline,
    *,
    adopt: bool = False,
    from_start: bool = False,
    give_up: str | None = None,
) -> int:
    """Run a pipeline in its own session, and print its progress and tally.

    Return 0, also after a requested stop of a run at an interval, which normally ends that way.
    Return the signal's code if a run until the end of the topics has left offsets unread.
    """
    intent = intent_of(adopt=adopt, from_start=from_start)
    given_up = given_up_of(give_up, intent)
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
        closing.enter_context(handle_with(request.on_signal))
        closing.callback(spark.stop)
        on_restart = (lambda: None) if metrics is None else metrics.on_restart
        control = Control(
            report=report, warn=warn, on_restart=on_restart, is_stopping=request.is_stopping
        )
        tally = run_pipeline(spark, pipeline, intent, control, given_up)
        reporter.on_end(tally)
    return end_of(request, tally)


def end_of(request: StopRequest, tally: Tally) -> int:
    """Print which signal stopped a run, if any, and return the run's exit code."""
    if request.number is None or not tally.is_stopped:
        return 0
    rest = " before the end of the topics; the next run continues" if tally.is_cut_short else ""
    print(stop_line(request.number, rest), file=sys.stderr)
    return exit_code(request.number) if tally.is_cut_short else 0


@contextmanager
def serve_metrics(pipeline: Pipeline, port: int) -> Iterator[Metrics]:
    """Serve figures for Prometheus while the block runs."""
    metrics = Metrics(pipeline.name)
    address = metrics.start(pipeline.metrics.host, port)
    print(f"kwire-pipeline: metrics on http://{address}/metrics", file=sys.stderr)
    try:
        yield metrics
    finally:
        metrics.stop()


def intent_of(*, adopt: bool, from_start: bool) -> Intent:
    """Return the user's answer to a refusal; raise Refusal if there are two."""
    if adopt and from_start:
        raise Refusal("--adopt and --from-start exclude each other: choose one")
    if adopt:
        return Intent.ADOPT
    return Intent.FROM_START if from_start else Intent.CONTINUE


def given_up_of(text: str | None, intent: Intent) -> Ranges:
    """Return the offsets that the user gives up; raise Refusal if nothing could use them."""
    if text is not None and intent is Intent.CONTINUE:
        raise Refusal(f"{GIVE_UP} is for --adopt and --from-start: add one of them")
    return parse_given_up(text)
