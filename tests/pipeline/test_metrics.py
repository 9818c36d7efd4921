"""The figures of a run, as Prometheus reads them."""

from urllib.error import URLError
from urllib.request import urlopen

import pytest

from kwire_pipeline.engine.reporting.figures import Batch
from kwire_pipeline.engine.reporting.metrics import Metrics, Server
from kwire_pipeline.errors import Refusal


def batch(batch_id: int, lag: int | None) -> Batch:
    return Batch(
        batch_id=batch_id,
        rows=7,
        dead_letters=2,
        dropped=1,
        unmet={"positive": 3},
        omitted=3,
        bytes=100,
        offsets=10,
        lag=lag,
        elapsed_s=0.5,
    )


def values(address: str) -> dict[str, str]:
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_counters_grow_with_each_batch_and_gauges_have_the_last() -> None:
    server = Server()
    metrics = Metrics("orders", server)
    address = server.start("127.0.0.1", 0)
    try:
        assert values(address)['kwire_pipeline_rows_total{pipeline="orders"}'] == "0.0"
        assert values(address)['kwire_pipeline_lag{pipeline="orders"}'] == "NaN"
        metrics.on_batch(batch(4, lag=50))
        metrics.on_batch(batch(5, lag=40))
        metrics.on_restart()
        figures = values(address)
        expected = {
            "batches_total": 2,
            "rows_total": 14,
            "dead_letters_total": 4,
            "dropped_total": 2,
            "omitted_total": 6,
            "offsets_total": 20,
            "bytes_total": 200,
            "batch_seconds_total": 1,
            "restarts_total": 1,
            "lag": 40,
            "last_batch": 5,
        }
        for name, value in expected.items():
            assert float(figures[f'kwire_pipeline_{name}{{pipeline="orders"}}']) == value, name
        unmet = 'kwire_pipeline_unmet_total{expectation="positive",pipeline="orders"}'
        assert float(figures[unmet]) == 6
        metrics.on_batch(batch(6, lag=None))
        assert values(address)['kwire_pipeline_lag{pipeline="orders"}'] == "NaN"
    finally:
        server.stop()
    with pytest.raises(URLError):
        values(address)


def test_port_in_use_is_refused() -> None:
    first, second = Server(), Server()
    address = first.start("127.0.0.1", 0)
    try:
        with pytest.raises(Refusal, match=r"metrics\.port: .* choose another port"):
            second.start("127.0.0.1", int(address.rpartition(":")[2]))
    finally:
        first.stop()
        second.stop()
