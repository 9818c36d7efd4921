"""One run at a time writes with a checkpoint."""

import threading
from typing import Any, NoReturn, cast

import attrs
import pytest
from py4j.protocol import Py4JError

from kwire_pipeline.engine import lease as lease_module
from kwire_pipeline.engine import query
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.lease import BEAT_S, FILE, PATIENCE_S, Holder, Lease, hold
from kwire_pipeline.errors import Failure, Refusal
from tests.support.pipeline.files import Files
from tests.support.pipeline.orders import ORDERS

ELSEWHERE = Holder(lease_id="other", host="elsewhere", process=1, process_start="5")


def no_sleep(seconds: float) -> None:
    raise AssertionError("waits")


def test_second_run_on_the_same_host_is_refused_at_once() -> None:
    files = Files()
    lease = Lease.take(files, sleep=no_sleep)
    with pytest.raises(Refusal, match="is using the checkpoint lake/checkpoint"):
        Lease.take(files, sleep=no_sleep)
    lease.release()
    Lease.take(files, sleep=no_sleep)


@pytest.mark.parametrize("was_there", [False, True])
def test_folder_of_a_refused_run_is_there_only_if_it_was_before(was_there: bool) -> None:
    """A checkpoint that is restored is moved to this name."""
    files = Files()
    files.is_there = was_there
    Lease.take(files).release()
    assert files.is_there is was_there


def test_folder_in_which_a_run_has_written_stays() -> None:
    files = Files()
    lease = Lease.take(files)
    files.write("pipeline.json", "{}")
    lease.release()
    assert files.is_there


def test_lease_of_a_killed_process_is_taken_over_at_once() -> None:
    files = Files()
    this = Holder.this_process()
    files.texts[FILE] = attrs.evolve(this, lease_id="x", process_start="1").dump()
    Lease.take(files, holder=this, sleep=no_sleep).check()


def test_one_of_two_newcomers_takes_over_a_dead_lease() -> None:
    """Both have found it; the second one finds its successor, not the file that it has read."""
    first, second = Holder.this_process(), Holder.this_process()
    dead = attrs.evolve(first, lease_id="dead", process_start="1").dump()

    class Overtaken(Files):
        def swap(self, name: str, old: str, new: str) -> bool:
            if old == dead:
                super().swap(name, old, first.dump())
            return super().swap(name, old, new)

    files = Overtaken()
    files.texts[FILE] = dead
    with pytest.raises(Refusal, match="is using the checkpoint"):
        Lease.take(files, holder=second, sleep=no_sleep)
    assert files.texts[FILE] == first.dump()


def test_paused_run_does_not_beat_over_its_successors_lease() -> None:
    """Its pause begins after its look at the file."""
    successor = Holder.this_process().dump()

    class Paused(Files):
        def swap(self, name: str, old: str, new: str) -> bool:
            self.texts[name] = successor
            return super().swap(name, old, new)

    files = Paused()
    now_s = 0.0
    lease = Lease.take(files, clock=lambda: now_s)
    now_s = BEAT_S
    with pytest.raises(Failure, match="has taken over"):
        lease.beat()
    assert files.texts[FILE] == successor


def test_run_whose_beat_was_written_without_an_answer_keeps_its_lease() -> None:
    """The store then has a later beat than the run knows of, but of the same lease."""

    class Late(Files):
        is_late = False

        def swap(self, name: str, old: str, new: str) -> bool:
            is_written = super().swap(name, old, new)
            if self.is_late:
                raise Py4JError("no answer in time")
            return is_written

    files = Late()
    now_s = 0.0
    lease = Lease.take(files, clock=lambda: now_s)
    now_s = BEAT_S
    files.is_late = True
    with pytest.raises(Py4JError):
        lease.beat()
    files.is_late = False
    for _ in range(2):  # An outage may have been long, so the beat that was found is not enough.
        lease.beat()
    assert Holder.parse(files.texts[FILE]).beat == 2
    lease.check()


@pytest.mark.parametrize("text", ["", "null", '{"lease_id": "x"}'])
def test_damaged_lease_is_refused_with_advice(text: str) -> None:
    """A machine that lost its power can leave an empty file."""
    files = Files()
    files.texts[FILE] = text
    with pytest.raises(Refusal, match=r"writer\.json .* is damaged: remove it when"):
        Lease.take(files, sleep=no_sleep)


@pytest.mark.parametrize("machine", ["", "boot pid:[2]"])
def test_run_in_another_container_of_the_same_host_name_keeps_its_lease(machine: str) -> None:
    """Its process is not visible here, nor is any process without a /proc."""
    this = attrs.evolve(Holder.this_process(), machine=machine and "boot pid:[1]")
    other = attrs.evolve(this, lease_id="x", process_start="1", machine=machine)
    files = Files()
    files.texts[FILE] = other.dump()

    def sleep(seconds: float) -> None:
        files.texts[FILE] = attrs.evolve(other, beat=1).dump()

    with pytest.raises(Refusal, match="is using the checkpoint"):
        Lease.take(files, holder=this, sleep=sleep)
    Lease.take(files, holder=this, sleep=lambda seconds: None).check()


def test_lease_from_an_earlier_version_is_waited_for() -> None:
    this = Holder.this_process()
    other = attrs.evolve(this, lease_id="x", machine="")
    text = other.dump().replace(', "machine": ""', "")
    assert "machine" not in text
    assert not this.sees(Holder.parse(text))


def test_run_on_another_host_is_refused_while_the_other_beats() -> None:
    files = Files()
    files.texts[FILE] = ELSEWHERE.dump()

    def sleep(seconds: float) -> None:
        assert seconds == PATIENCE_S > 2 * BEAT_S
        files.texts[FILE] = attrs.evolve(ELSEWHERE, beat=1).dump()

    with pytest.raises(Refusal, match="process 1 on elsewhere"):
        Lease.take(files, sleep=sleep)


def test_lease_without_a_beat_is_taken_over_and_its_run_ends_itself() -> None:
    files = Files()
    now_s = 0.0
    first = Lease.take(files, holder=ELSEWHERE, sleep=no_sleep, clock=lambda: now_s)
    Lease.take(files, sleep=lambda seconds: None)
    with pytest.raises(Failure, match="another run has taken over"):
        first.check()
    now_s = BEAT_S
    with pytest.raises(Failure):
        first.beat()
    first.release()
    assert FILE in files.texts


def test_a_beat_is_written_every_few_seconds() -> None:
    files = Files()
    now_s = 0.0
    lease = Lease.take(files, clock=lambda: now_s)
    before = files.texts[FILE]
    lease.beat()
    assert files.texts[FILE] == before
    now_s = BEAT_S
    lease.beat()
    assert Holder.parse(files.texts[FILE]).beat == 1
    lease.check()


def test_lease_beats_while_a_block_is_busy() -> None:
    """A run on another host waits for two beats before it takes a lease over."""
    files = Files()
    now_s = 0.0
    beats = threading.Event()

    def pause(ended: threading.Event) -> bool:
        nonlocal now_s
        now_s += BEAT_S
        if Holder.parse(files.texts[FILE]).beat >= 3:
            beats.set()
        return ended.is_set()

    with hold(files, clock=lambda: now_s, pause=pause):
        assert beats.wait(60)
    assert FILE not in files.texts


def test_lease_beats_while_a_run_looks_at_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find the offsets of a large table takes minutes, and another host waits for seconds."""
    beats = threading.Event()

    class Beaten(Files):
        def swap(self, name: str, old: str, new: str) -> bool:
            if Holder.parse(new).beat >= 3:
                beats.set()
            return super().swap(name, old, new)

    def open_run(*_: object) -> NoReturn:
        assert beats.wait(60)
        raise Refusal("the table was dropped")

    files = Beaten()
    monkeypatch.setattr(lease_module, "BEAT_S", 0.0)
    monkeypatch.setattr(lease_module, "POLL_S", 0.001)
    monkeypatch.setattr(query, "set_session", lambda _: None)
    monkeypatch.setattr(query, "Folder", lambda *_: files)
    monkeypatch.setattr(query, "open_run", open_run)
    nothing = cast(Any, object())
    with pytest.raises(Refusal, match="the table was dropped"):
        query.run_pipeline(nothing, ORDERS, Intent.ADOPT, query.Control(), shared=nothing)
    assert FILE not in files.texts


def test_block_notices_that_its_lease_was_taken_over() -> None:
    files = Files()
    looked = threading.Event()

    def pause(ended: threading.Event) -> bool:
        looked.set()
        return ended.wait(60)

    with hold(files, pause=pause) as lease:
        assert looked.wait(60)
        files.texts[FILE] = ELSEWHERE.dump()
        with pytest.raises(Failure, match="has taken over"):
            lease.check()
    assert files.texts[FILE] == ELSEWHERE.dump()


class Away(Files):
    """A store that answers nothing once it is away."""

    is_away = False

    def read(self, name: str) -> str | None:
        if self.is_away:
            raise Py4JError("the store is away")
        return super().read(name)


def test_error_of_a_block_takes_precedence_over_that_of_the_release() -> None:
    """A run that is refused while the store is away still ends with the refusal's exit code."""
    files, warnings = Away(), list[str]()

    def refuse() -> NoReturn:
        files.is_away = True
        raise Refusal("the table was dropped")

    with pytest.raises(Refusal, match="the table was dropped"), hold(files, warn=warnings.append):
        refuse()
    assert warnings == [
        "the lease of the checkpoint is not released, so a run waits for it: the store is away"
    ]


def test_release_that_fails_after_a_block_that_did_not_is_an_error() -> None:
    files = Away()
    with pytest.raises(Py4JError, match="the store is away"), hold(files):
        files.is_away = True


def test_process_takes_over_its_own_lease_whose_release_failed() -> None:
    """A run of many tables tries a table again; without this, it would wait for itself."""
    files = Away()
    lease = Lease.take(files, sleep=no_sleep)
    files.is_away = True
    with pytest.raises(Py4JError):
        lease.release()
    files.is_away = False
    Lease.take(files, sleep=no_sleep).check()


@pytest.mark.parametrize("was_held", [False, True])
def test_process_takes_over_its_own_lease_of_which_the_store_has_told_it_nothing(
    was_held: bool,
) -> None:
    """The store has written it, but its answer came too late."""

    class Late(Files):
        is_late = True

        def _answer(self, is_written: bool) -> bool:
            if is_written and self.is_late:
                raise Py4JError("no answer in time")
            return is_written

        def create(self, name: str, text: str) -> bool:
            return self._answer(super().create(name, text))

        def swap(self, name: str, old: str, new: str) -> bool:
            return self._answer(super().swap(name, old, new))

    files = Late()
    if was_held:
        files.texts[FILE] = attrs.evolve(Holder.this_process(), process_start="1").dump()
    with pytest.raises(Py4JError):
        Lease.take(files, sleep=no_sleep)
    files.is_late = False
    Lease.take(files, sleep=no_sleep).check()


def test_refused_run_keeps_its_refusal_though_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, warnings = Away(), list[str]()

    def open_run(*_: object) -> NoReturn:
        files.is_away = True
        raise Refusal("the table was dropped")

    monkeypatch.setattr(query, "set_session", lambda _: None)
    monkeypatch.setattr(query, "Folder", lambda *_: files)
    monkeypatch.setattr(query, "open_run", open_run)
    control = query.Control(warn=warnings.append)
    nothing = cast(Any, object())
    with pytest.raises(Refusal, match="the table was dropped"):
        query.run_pipeline(nothing, ORDERS, Intent.CONTINUE, control, shared=nothing)
    assert len(warnings) == 1
