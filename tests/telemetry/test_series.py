"""The clients' lines of the metrics page, and their limits."""

import pytest

from kwire.metrics import Metrics
from kwire.telemetry import series
from kwire.telemetry.series import ClientSeries, Numbered, Sample, add_labels

DROPPED = "kwire_telemetry_series_dropped_total"


def values(store: ClientSeries, now: float = 1.0) -> list[str]:
    return [line for line in store.lines(now) if line[0] != "#"]


def some(client: str, *names: str, kind: str = "gauge", value: float = 1.0) -> list[Numbered]:
    return [Numbered(name, kind, f'{{client_id="{client}"}}', value) for name in names]


def test_push_replaces_what_its_client_pushed_before() -> None:
    store = ClientSeries(100, Metrics())
    store.replace(b"a", some("a", "x", "y"), 0.0, 10.0)
    store.replace(b"b", some("b", "x", value=2.5), 0.0, 10.0)
    assert list(store.lines(1.0)) == [
        *("# HELP x Pushed by clients (KIP-714).", "# TYPE x gauge"),
        *('x{client_id="a"} 1', 'x{client_id="b"} 2.5'),
        *("# HELP y Pushed by clients (KIP-714).", "# TYPE y gauge", 'y{client_id="a"} 1'),
    ]
    store.replace(b"a", some("a", "z"), 0.0, 10.0)
    assert values(store) == ['x{client_id="b"} 2.5', 'z{client_id="a"} 1']


def test_series_of_silent_clients_vanish() -> None:
    metrics = Metrics()
    store = ClientSeries(100, metrics)
    store.replace(b"a", some("a", "x"), 0.0, 10.0)
    store.replace(b"b", some("b", "x"), 0.0, 20.0)
    assert values(store, 9.9) == ['x{client_id="a"} 1', 'x{client_id="b"} 1']
    assert values(store, 10.0) == ['x{client_id="b"} 1']
    assert values(store, 20.0) == []
    assert "kwire_telemetry_series 0\n" in metrics.text()


def test_series_of_a_client_vanish_although_an_older_one_keeps_its_own() -> None:
    """A client with a short interval comes after one with a long interval."""
    store = ClientSeries(100, Metrics())
    store.replace(b"a", some("a", "x"), 0.0, 100.0)
    store.replace(b"b", some("b", "x"), 1.0, 10.0)
    assert values(store, 10.0) == ['x{client_id="a"} 1']


def test_clients_that_pushed_longest_ago_make_room() -> None:
    metrics = Metrics()
    store = ClientSeries(3, metrics)
    store.replace(b"a", some("a", "x"), 0.0, 10.0)
    store.replace(b"b", some("b", "x"), 0.0, 10.0)
    store.replace(b"a", some("a", "x"), 1.0, 10.0)
    store.replace(b"c", some("c", "x", "y"), 2.0, 10.0)
    assert values(store, 2.0) == [
        *('x{client_id="a"} 1', 'x{client_id="c"} 1', 'y{client_id="c"} 1')
    ]
    store.replace(b"d", some("d", *"klmnop"), 3.0, 10.0)
    assert values(store, 3.0) == [f'{name}{{client_id="d"}} 1' for name in "klm"]
    assert f"{DROPPED} 7\n" in metrics.text()


def test_one_client_keeps_its_first_series_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "CLIENT_SERIES_MAX", 2)
    store = ClientSeries(100, Metrics())
    store.replace(b"a", some("a", "x", "y", "z"), 0.0, 10.0)
    assert values(store) == ['x{client_id="a"} 1', 'y{client_id="a"} 1']


def test_a_name_has_one_type_and_a_series_one_value() -> None:
    """Prometheus rejects a page with a name of two types, or with a series twice."""
    metrics = Metrics()
    store = ClientSeries(100, metrics)
    store.replace(b"a", some("a", "x", "x"), 0.0, 10.0)
    store.replace(b"b", some("b", "x", kind="counter"), 0.0, 10.0)
    assert values(store) == ['x{client_id="a"} 1']
    assert f"{DROPPED} 2\n" in metrics.text()


def test_clients_cannot_pose_as_others_in_labels() -> None:
    sample = Sample("x", "gauge", (("client_id", "other"), ("topic", 'a"b\n')), 1.0)
    shown = add_labels(sample, (("client_id", "c"), ("user", "alice")))
    assert shown is not None
    assert shown.labels == '{client_id="c",user="alice",topic="a\\"b\\n"}'


def test_series_with_long_labels_are_not_kept() -> None:
    client = (("client_id", "c"),)
    assert add_labels(Sample("x", "gauge", (("t", "a" * 2000),), 1.0), client) is not None
    assert add_labels(Sample("x", "gauge", (("t", '"' * 2000),), 1.0), client) is None
