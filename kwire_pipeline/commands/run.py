"""`kwire-pipeline run`: write records to tables until the end, or continuously at an interval."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import attrs
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kwire_pipeline.commands.show import warner
from kwire_pipeline.commands.tables import check_name
from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import redact, secrets_of
from kwire_pipeline.config.template import Loaded, Template, common_of
from kwire_pipeline.engine import identity
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.losses import GIVE_UP, parse_given_up
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.query import Control, run_pipeline
from kwire_pipeline.engine.reporting.figures import Batch, Tally
from kwire_pipeline.engine.reporting.metrics import Metrics, Server
from kwire_pipeline.engine.reporting.reports import Reporter
from kwire_pipeline.engine.session import open_session
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.engine.upkeep import Claims
from kwire_pipeline.errors import Failure, Held, Overtaken, Refusal
from kwire_pipeline.explain import explain, is_lost_jvm
from kwire_pipeline.hook import Alerts, Hook
from kwire_pipeline.many.engine import SparkEngine
from kwire_pipeline.many.notes import PROBLEMS, dump_problems
from kwire_pipeline.many.runs import Order, Outcome, Outside, TableRuns
from kwire_pipeline.many.state import Problem
from kwire_pipeline.signals import StopRequest, exit_code, handle_with, stop_line


def run(
    loaded: Loaded,
    *,
    adopt: bool = False,
    from_start: bool = False,
    give_up: str | None = None,
    table: str | None = None,
) -> int:
    """Run a pipeline in its own session, and print its progress and tally.

    Return 0, even if a signal stopped a run at an interval, which normally ends that way. Return
    the signal's exit code if a run to the end of the topics left offsets unread. Raise a pipeline's
    problem; with many tables, raise their problems at the end.
    """
    intent = intent_of(adopt=adopt, from_start=from_start)
    order = Order(table, intent, given_up_of(give_up, intent))
    common = common_of(loaded)
    if isinstance(loaded, Pipeline):
        check_name(loaded, table)
    secrets = secrets_of(common)
    reporter = Reporter(common.progress, sys.stdout, lambda text: redact(text, secrets))
    request = StopRequest()
    warn = warner(common)

    with ExitStack() as closing:
        server = None
        if common.metrics.port is not None:
            server = closing.enter_context(serve_metrics(common, common.metrics.port))
        controls = Controls(
            reporter,
            warn,
            request.is_stopping,
            server,
            alert=Alerts(Hook.of(common, warn)).add,
            is_many=isinstance(loaded, Template),
        )
        spark = open_session(common)
        closing.enter_context(handle_with(request.on_signal))
        closing.callback(spark.stop)
        if isinstance(loaded, Pipeline):
            with noting(spark, loaded, controls.control_of(loaded)) as control:
                tally = run_pipeline(spark, loaded, order.intent, control, order.given_up)
            reporter.on_end(tally)
            return end_of(request, tally)
        outcome = run_tables(spark, loaded, order, controls)
        reporter.on_end(outcome.tally)
    if (error := outcome.error()) is not None:
        raise error
    return end_of(request, outcome.tally)


@attrs.define
class Controls:
    """The connections of runs to the outside: one control for each pipeline of the process."""

    reporter: Reporter
    warn: Callable[[str], None]
    is_stopping: Callable[[], bool]
    server: Server | None
    alert: Callable[[str], None] = attrs.field(kw_only=True)
    is_many: bool = attrs.field(kw_only=True)
    _metrics: dict[str, Metrics] = attrs.field(factory=dict)
    _claims: Claims = attrs.field(factory=Claims)

    def control_of(self, pipeline: Pipeline) -> Control:
        """Return the control of a pipeline's run."""
        table = pipeline.table.name if self.is_many else None
        metrics = self._metrics.get(pipeline.name)
        if metrics is None and self.server is not None:
            metrics = self._metrics[pipeline.name] = Metrics(pipeline.name, self.server)

        def report(batch: Batch) -> None:
            if metrics is not None:
                metrics.on_batch(batch)
            self.reporter.on_batch(batch, table)

        def warn(text: str) -> None:
            self.warn(text if table is None else f"{table}: {text}")

        return Control(
            report=report,
            warn=warn,
            alert=self.alert,
            on_restart=(lambda: None) if metrics is None else metrics.on_restart,
            is_stopping=self.is_stopping,
            claims=self._claims,
        )


@contextmanager
def noting(spark: SparkSession, pipeline: Pipeline, control: Control) -> Iterator[Control]:
    """Store why a run fails, for `status`, until a run has written a batch or ended well.

    A run stores nothing if another one holds the checkpoint or has taken it over, or if there is no
    checkpoint.
    """
    folder = Folder(spark, pipeline.checkpoint)
    has_written = False

    def forget() -> None:
        with suppress(Py4JError):
            if folder.exists(PROBLEMS):
                folder.delete(PROBLEMS)

    def report(batch: Batch) -> None:
        nonlocal has_written
        if not has_written:
            forget()
        has_written = True
        control.report(batch)

    try:
        yield attrs.evolve(control, report=report)
    except Exception as error:
        cause = None if is_lost_jvm(error) else explain(error, pipeline.transform)
        if cause is not None and not isinstance(cause, Held | Overtaken):
            noted = {pipeline.name: (pipeline.table.name, Problem.of(cause))}
            with suppress(Py4JError, Failure):
                if folder.exists(identity.FILE):
                    folder.write(PROBLEMS, dump_problems(noted, secrets_of(pipeline)))
        raise
    forget()


def run_tables(
    spark: SparkSession, template: Template, order: Order, controls: Controls
) -> Outcome:
    """Run the tables of a file, several at the same time."""
    with closing(SparkEngine(spark, template)) as engine:
        return TableRuns(
            template=template,
            engine=engine,
            outside=Outside(
                control_of=controls.control_of,
                warn=controls.warn,
                alert=controls.alert,
                is_stopping=controls.is_stopping,
            ),
            executor=ThreadPoolExecutor(template.common.limits.parallel_tables),
            order=order,
        ).run()


def end_of(request: StopRequest, tally: Tally) -> int:
    """Print which signal stopped a run, if any, and return the run's exit code."""
    if request.number is None or not tally.is_stopped:
        return 0
    rest = " before the end of the topics; the next run continues" if tally.is_cut_short else ""
    print(stop_line(request.number, rest), file=sys.stderr)
    return exit_code(request.number) if tally.is_cut_short else 0


@contextmanager
def serve_metrics(pipeline: Pipeline, port: int) -> Iterator[Server]:
    """Serve figures for Prometheus while the block runs."""
    server = Server()
    address = server.start(pipeline.metrics.host, port)
    print(f"kwire-pipeline: metrics on http://{address}/metrics", file=sys.stderr)
    try:
        yield server
    finally:
        server.stop()


def intent_of(*, adopt: bool, from_start: bool) -> Intent:
    """Return how the user answered a refusal; raise Refusal if there are two answers."""
    if adopt and from_start:
        raise Refusal("--adopt and --from-start cannot be used together: choose one")
    if adopt:
        return Intent.ADOPT
    return Intent.FROM_START if from_start else Intent.CONTINUE


def given_up_of(text: str | None, intent: Intent) -> Ranges:
    """Return the offsets that the user gives up; raise Refusal if a run could not use them."""
    if text is not None and intent is Intent.CONTINUE:
        raise Refusal(f"{GIVE_UP} is for --adopt and --from-start: add one of them")
    return parse_given_up(text)
