"""The figures of a run for Prometheus, served by a thread of the client library.

The figures belong to this process: counters start at zero in each run.
"""

from threading import Thread
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from kwire_pipeline.engine.reporting.figures import Batch
from kwire_pipeline.errors import Refusal

PREFIX: Final = "kwire_pipeline_"


class Metrics:
    """The counters and gauges of one pipeline."""

    def __init__(self, pipeline: str) -> None:
        self._registry = CollectorRegistry()
        self._server: tuple[WSGIServer, Thread] | None = None

        def counter(name: str, text: str) -> Counter:
            family = Counter(f"{PREFIX}{name}", text, ["pipeline"], registry=self._registry)
            return family.labels(pipeline)

        def gauge(name: str, text: str) -> Gauge:
            family = Gauge(f"{PREFIX}{name}", text, ["pipeline"], registry=self._registry)
            return family.labels(pipeline)

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
        self._unmet = Counter(
            f"{PREFIX}unmet",
            "Rows that did not meet an expectation.",
            ["pipeline", "expectation"],
            registry=self._registry,
        )
        self._lag = gauge("lag", "Offsets that are still to read; NaN if the lag is not known.")
        self._batch_id = gauge("last_batch", "The id of the last batch.")
        self._time = gauge("last_batch_timestamp_seconds", "The time of the last batch's end.")
        self._lag.set(float("nan"))
        self._pipeline = pipeline

    def start(self, host: str, port: int) -> str:
        """Serve at an address (port 0: any free port) and return it; Refusal if it is in use."""
        try:
            self._server = start_http_server(port, host, self._registry)
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

    def on_restart(self) -> None:
        """Count a failure after which the run tries again."""
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
