"""The figures of a run for Prometheus, served by a thread of the client library.

The figures belong to this process: counters start at zero in each run.
"""

from collections.abc import Sequence
from threading import Thread
from typing import Final, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from kwire_pipeline.engine.reporting.figures import Batch
from kwire_pipeline.errors import Refusal

T = TypeVar("T", Counter, Gauge)
PREFIX: Final = "kwire_pipeline_"


class Server:
    """The Prometheus endpoint: the figures of all pipelines of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._families: dict[str, Counter | Gauge] = {}
        self._server: tuple[WSGIServer, Thread] | None = None

    def family(self, kind: type[T], name: str, text: str, labels: Sequence[str]) -> T:
        """Return the metric family of that name, which all pipelines share."""
        family = self._families.get(name)
        if family is None:
            family = kind(f"{PREFIX}{name}", text, labels, registry=self.registry)
            self._families[name] = family
        assert isinstance(family, kind)
        return family

    def start(self, host: str, port: int) -> str:
        """Serve at an address (port 0: any free port), and return it; raise Refusal if taken."""
        try:
            self._server = start_http_server(port, host, self.registry)
        except OSError as error:
            raise Refusal(
                f"metrics.port: {host}:{port} cannot be listened on ({error.strerror}): choose "
                "another port"
            ) from error
        return f"{host}:{self._server[0].server_port}"

    def stop(self) -> None:
        """Stop serving, and wait until the thread ends."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()


class Metrics:
    """The counters and gauges of one pipeline."""

    def __init__(self, pipeline: str, server: Server) -> None:
        def counter(name: str, text: str) -> Counter:
            return server.family(Counter, name, text, ["pipeline"]).labels(pipeline)

        def gauge(name: str, text: str) -> Gauge:
            return server.family(Gauge, name, text, ["pipeline"]).labels(pipeline)

        self._batches = counter("batches", "Batches written.")
        self._rows = counter("rows", "Rows written to the table.")
        self._dead_letters = counter("dead_letters", "Records written to the dead letters.")
        self._dropped = counter("dropped", "Records dropped by an expectation.")
        self._omitted = counter("omitted", "Records of which the transform made no row.")
        self._deletions = counter("deletions", "Records that delete the row of their key.")
        self._offsets = counter("offsets", "Offsets read.")
        self._bytes = counter("bytes", "Bytes of keys and values read.")
        self._seconds = counter("batch_seconds", "Seconds that batches took.")
        self._restarts = counter("restarts", "Tries after failures that a rerun may cure.")
        self._unmet = server.family(
            Counter,
            "unmet",
            "Rows that did not meet an expectation.",
            ["pipeline", "expectation"],
        )
        self._lag = gauge("lag", "Offsets that are still to read; NaN if the lag is not known.")
        self._batch_id = gauge("last_batch", "The id of the last batch.")
        self._time = gauge("last_batch_timestamp_seconds", "The time of the last batch's end.")
        self._lag.set(float("nan"))
        self._pipeline = pipeline

    def on_restart(self) -> None:
        """Count a failure after which the run retries."""
        self._restarts.inc()

    def on_batch(self, batch: Batch) -> None:
        """Count a written batch."""
        self._batches.inc()
        self._rows.inc(batch.rows)
        self._dead_letters.inc(batch.dead_letters)
        self._dropped.inc(batch.dropped)
        self._omitted.inc(batch.omitted)
        self._deletions.inc(batch.deletions)
        self._offsets.inc(batch.offsets)
        self._bytes.inc(batch.bytes)
        self._seconds.inc(batch.elapsed_s)
        for expectation, count in batch.unmet.items():
            self._unmet.labels(self._pipeline, expectation).inc(count)
        self._lag.set(float("nan") if batch.lag is None else batch.lag)
        self._batch_id.set(batch.batch_id)
        self._time.set_to_current_time()
