"""Metrics and their text."""

from kwire.metrics import Metrics, counter, gauge, histogram

SEEN = counter("seen_total", "Things seen.", "kind")
ROOM = gauge("room", "Room left.")
TOOK = histogram("took_seconds", "How long.", bounds=(0.1, 1.0))

SIZES = gauge("sizes", "How large.", "of")
NONE_YET = counter("none_yet_total", "Of things that may come.", "kind")
QUIET = counter("quiet_total", "Nothing happened.")
SLOW = histogram("slow_seconds", "Nothing took long.", bounds=(1.0,))


def some() -> Metrics:
    metrics = Metrics()
    cell = metrics.cell(SEEN, 'a "b"')
    cell.value += 2
    metrics.cell(SEEN, "c").value += 1
    metrics.register_function(ROOM, lambda: 7)
    for value in (0.1, 0.5, 3):
        metrics.histogram(TOOK).observe(value)
    return metrics


EXPECTED = r"""
# HELP seen_total Things seen.
# TYPE seen_total counter
seen_total{kind="a \"b\""} 2
seen_total{kind="c"} 1
# HELP room Room left.
# TYPE room gauge
room 7
# HELP took_seconds How long.
# TYPE took_seconds histogram
took_seconds_bucket{le="0.1"} 1
took_seconds_bucket{le="1.0"} 2
took_seconds_bucket{le="+Inf"} 3
took_seconds_sum 3.6000000000000001
took_seconds_count 3
"""


def test_text_has_the_format_of_prometheus() -> None:
    assert some().text() == EXPECTED.lstrip()


def test_cells_are_shared_and_can_be_removed() -> None:
    metrics = some()
    assert metrics.cell(SEEN, "c") is metrics.cell(SEEN, "c")
    metrics.forget(SEEN, "c")
    assert 'kind="c"' not in metrics.text()


def test_declared_metrics_are_shown_without_values() -> None:
    metrics = some()
    metrics.register_label_function(SIZES, lambda: [(("a",), 1), (("b",), 2)])
    metrics.declare((SEEN, ROOM, TOOK, SIZES, NONE_YET, QUIET, SLOW))
    text = metrics.text()
    assert text.startswith(EXPECTED.lstrip()[: EXPECTED.index("# HELP room") - 1])
    assert text.count("# TYPE") == 7
    for line in ('sizes{of="a"} 1', 'sizes{of="b"} 2', "quiet_total 0", "slow_seconds_count 0"):
        assert line in text.splitlines()
    assert "\nnone_yet_total{" not in text
