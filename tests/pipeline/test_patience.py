"""A run at an interval outlives a restart of its brokers."""

from collections.abc import Callable

import attrs
import pytest
from py4j.protocol import Py4JError

from kwire_pipeline.engine import query
from kwire_pipeline.engine.query import Control, Run
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.patience import Outage, patiently
from tests.support.pipeline.runs import CheckpointFolder, run_without_spark


class Time:
    """A clock that only waiting moves."""

    now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def answer_after(time: Time, until_s: float, error: Exception) -> Callable[[], str]:
    def ask() -> str:
        if time.now_s < until_s:
            raise error
        return "topics"

    return ask


def test_brokers_may_be_away_for_a_while() -> None:
    time = Time()
    ask = answer_after(time, 40, Failure("no broker answers"))
    assert patiently(ask, 300, clock=time.clock, sleep=time.sleep) == "topics"
    assert time.now_s == 40


@pytest.mark.parametrize(
    ("error", "patience_s", "waited_s"),
    [
        (Failure("no broker answers"), 300, 300),
        (Failure("no"), 0, 0),
        (Refusal("no topic"), 300, 0),
    ],
)
def test_patience_ends(error: Exception, patience_s: float, waited_s: float) -> None:
    """A refusal is not waited for, since another answer would be the same."""
    time = Time()
    with pytest.raises(type(error)):
        patiently(answer_after(time, 1000, error), patience_s, clock=time.clock, sleep=time.sleep)
    assert time.now_s == waited_s


def test_waits_of_an_outage_grow_and_end_with_the_patience() -> None:
    outage = Outage(patience_s=300)
    now_s = 0.0
    waits: list[float] = []
    while (wait_s := outage.on_failure(now_s)) is not None:
        assert outage.is_first_failure == (not waits)
        waits.append(wait_s)
        now_s += wait_s
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 57]
    assert now_s == 300


def test_batch_ends_an_outage() -> None:
    outage = Outage(patience_s=300)
    assert outage.on_success(0) is None
    for now_s in (10, 20, 40):
        outage.on_failure(now_s)
    assert outage.on_success(70) == 60
    assert outage.on_success(80) is None
    assert outage.on_failure(900) == 1


def test_attempts_that_take_minutes_to_fail_belong_to_one_outage() -> None:
    """Spark's Kafka client and S3's retry for minutes, so each attempt fails that late."""
    outage = Outage(patience_s=3600)
    now_s, waits = 0.0, []
    while (wait_s := outage.on_failure(now_s)) is not None:
        waits.append(wait_s)
        assert len(waits) < 100, "it ends"
        now_s += wait_s + 300
    assert waits[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert 3600 <= now_s <= 4000


# A run at an interval ------------------------------------------------------------------------
@attrs.define
class Query:
    """A streaming query that fails after some seconds, or waits for records until a stop."""

    scene: "Scene"
    fails_after_s: float | None
    isActive: bool = True

    @property
    def status(self) -> dict[str, object]:
        """A short interval leaves no time between two looks, in which the query would wait."""
        message = "Getting offsets from Kafka"
        return {"message": message, "isTriggerActive": self.scene.now_s < self.scene.end_s}

    @property
    def lastProgress(self) -> dict[str, object] | None:
        return {"batchId": 0} if self.fails_after_s is None else None

    def awaitTermination(self, timeout: float) -> bool:
        if self.fails_after_s is None:
            self.scene.sleep(timeout)
            return False
        self.scene.sleep(self.fails_after_s)
        self.isActive = False
        raise Py4JError("the brokers are away")

    def stop(self) -> None:
        self.isActive = False


@attrs.define
class Scene:
    """A run whose queries fail one after the other, each after its seconds."""

    failures: list[float | None]
    """The seconds until each query fails; None for one that finds no records until the stop."""
    now_s: float = 0.0
    starts_s: list[float] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)
    alerts: list[str] = attrs.field(factory=list)
    end_s: float = 1e9

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def start(self) -> Query:
        self.starts_s.append(self.now_s)
        return Query(self, self.failures.pop(0))

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(query, "time", self)
        monkeypatch.setattr(query, "log_errors", lambda *_, **__: None)
        monkeypatch.setattr(Run, "_start", lambda _: self.start())
        control = Control(
            warn=self.warnings.append,
            alert=self.alerts.append,
            is_stopping=lambda: self.now_s >= self.end_s,
        )
        run_without_spark(CheckpointFolder(), control).run()


def test_run_gives_up_when_slow_attempts_have_used_up_its_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene([120.0] * 100)
    with pytest.raises(Py4JError, match="the brokers are away"):
        scene.run(monkeypatch)
    assert 3600 <= scene.now_s < 4000
    assert scene.warnings == ["Spark failed: the brokers are away; the run will retry"]
    assert scene.alerts == scene.warnings


def test_look_that_finds_no_records_ends_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user reads that the run goes on, and the next outage gets the whole patience again."""
    scene = Scene([120.0, 120.0, None], end_s=5000)
    scene.run(monkeypatch)
    assert scene.warnings == [
        "Spark failed: the brokers are away; the run will retry",
        "the run continues after 124 seconds",
    ]
