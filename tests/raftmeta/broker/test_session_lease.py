"""The lease of a broker's session: how long it may act as the leader that its metadata name."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.raftmeta.broker.lifecycle import NOT_CAUGHT_UP
from kwire.raftmeta.broker.session_lease import WITHOUT_CONTROLLERS_MAX_S, SessionLease
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.storage.records import CommittedBatch
from tests.support.raftmeta.clusters import registration
from tests.support.raftmeta.lifecycle import (
    UP,
    Controllers,
    heartbeat_response,
    make_lifecycle,
    no,
    yes,
)

Clock = trio.testing.MockClock
SESSION_S = 9.0


def publish_own(publisher: MetadataPublisher, offset: int, *, fenced: bool) -> None:
    """Publish the registration of broker 1 with epoch 7."""
    record = registration(1, fenced=fenced)
    record.broker_epoch = 7
    publisher.on_commit([CommittedBatch(offset, offset, 1, 0, (record,))])


def test_lease_ends_a_session_after_the_last_answered_heartbeat_was_sent() -> None:
    """Invariant 34."""
    lease = SessionLease(SESSION_S)
    assert not lease.is_over(1e9)
    lease.renew(100.0, 100.0)
    assert (lease.is_over(108.9), lease.is_over(109.0)) == (False, True)
    lease.renew(120.0, 120.0)
    assert not lease.is_over(128.9)


def test_lease_that_holds_is_renewed_while_no_controller_can_be_active() -> None:
    lease = SessionLease(SESSION_S)
    lease.renew(100.0, 100.0)
    lease.on_controllers_ended(108.0, 108.0)
    assert lease.end == 117.0
    lease.on_controllers_ended(118.0, 118.0)
    assert lease.is_over(118.0), "before they ended they may have fenced the broker"
    lease.keep(118.0)
    assert lease.end == math.inf


def test_time_without_a_lease_is_summed_up() -> None:
    lease = SessionLease(SESSION_S)
    assert lease.over_s(1e9) == 0.0
    lease.renew(100.0, 101.0)
    assert [lease.over_s(now) for now in (109.0, 112.0)] == [0.0, 3.0]
    lease.renew(112.0, 113.0)
    assert [lease.over_s(now) for now in (113.0, 121.0, 122.0)] == [4.0, 4.0, 5.0]
    lease.keep(123.0)
    assert lease.over_s(1e9) == 6.0


async def test_answered_heartbeats_renew_the_lease(autojump_clock: Clock) -> None:
    controllers = Controllers(*UP, *[heartbeat_response()] * 20)
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    with trio.move_on_after(30):
        await lifecycle.run()
    assert lifecycle.lease.end == pytest.approx(controllers.requests[-1][0] + SESSION_S)


async def test_answer_as_fenced_renews_nothing(autojump_clock: Clock) -> None:
    controllers = Controllers(*UP, *[heartbeat_response(fenced=True)] * 20)
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    end = lifecycle.lease.end
    with trio.move_on_after(5):
        await lifecycle.run()
    assert lifecycle.lease.end == end


async def test_first_heartbeat_after_a_pause_unfences_no_broker(autojump_clock: Clock) -> None:
    """Its answer says whether the broker was fenced; a fenced one first learns what changed."""
    publisher = MetadataPublisher()
    publish_own(publisher, 8, fenced=False)
    fenced, unfenced = heartbeat_response(fenced=True), heartbeat_response()
    controllers = Controllers(*UP, *[fenced] * 2, *[unfenced] * 9)
    lifecycle = make_lifecycle(controllers, publisher=publisher)
    await lifecycle.start()
    publisher.subscribe(lambda image, _: lifecycle.on_image_published(image))
    autojump_clock.jump(60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(0.05)
        assert controllers.requests[-1][1].current_metadata_offset == NOT_CAUGHT_UP
        assert lifecycle.lease.is_over(trio.current_time())
        publish_own(publisher, 9, fenced=True)
        await trio.sleep(0.01)
        assert controllers.requests[-1][1].current_metadata_offset == 9
        assert len(controllers.requests) == len(UP) + 2
        await trio.sleep(0.2)
        assert not lifecycle.lease.is_over(trio.current_time())
        nursery.cancel_scope.cancel()


async def test_session_that_held_over_a_pause_is_taken_up_at_once(autojump_clock: Clock) -> None:
    publisher = MetadataPublisher()
    publish_own(publisher, 8, fenced=False)
    controllers = Controllers(*UP, *[heartbeat_response()] * 9)
    lifecycle = make_lifecycle(controllers, publisher=publisher)
    await lifecycle.start()
    autojump_clock.jump(60)
    with trio.move_on_after(1):
        await lifecycle.run()
    assert [r.current_metadata_offset for _, r in controllers.requests[3:]] == [NOT_CAUGHT_UP]
    assert not lifecycle.lease.is_over(trio.current_time())


class PausedController(Controllers):
    """A controller that answers the fourth request only at ``wakes_at``."""

    wakes_at = 0.0

    async def ask(self, request: Any) -> Any:
        answer = await super().ask(request)
        if len(self.requests) == len(UP) + 1:
            await trio.sleep(self.wakes_at - trio.current_time())
        return answer


async def test_late_answer_that_may_have_unfenced_the_broker_renews_no_lease(
    autojump_clock: Clock,
) -> None:
    """Invariant 34: the session ended before the controller got the heartbeat."""
    publisher = MetadataPublisher()
    publish_own(publisher, 8, fenced=False)
    controllers = PausedController(*UP, heartbeat_response(), heartbeat_response())
    lifecycle = make_lifecycle(controllers, publisher=publisher)
    await lifecycle.start()
    controllers.wakes_at = lifecycle.lease.end + 0.5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(controllers.wakes_at - trio.current_time() + 0.01)
        assert lifecycle.lease.is_over(trio.current_time())
        await trio.sleep(0.5)
        assert controllers.requests[-1][1].current_metadata_offset == NOT_CAUGHT_UP
        assert not lifecycle.lease.is_over(trio.current_time()), "this answer proves it"
        nursery.cancel_scope.cancel()


class StoppedControllers(Controllers):
    """Controllers that answer no more after these answers."""

    async def ask(self, request: Any) -> Any:
        if self.answers:
            return await super().ask(request)
        await trio.sleep(2)
        raise errors.RequestTimedOut


@pytest.mark.parametrize(("is_gone", "is_over"), [(yes, False), (no, True)])
async def test_broker_serves_on_only_if_the_controllers_have_ended(
    autojump_clock: Clock, is_gone: Callable[[], Awaitable[bool]], is_over: bool
) -> None:
    """A broker that is cut off from controllers that run may have been fenced by them."""
    lifecycle = make_lifecycle(StoppedControllers(*UP), is_gone)
    await lifecycle.start()
    with trio.move_on_after(WITHOUT_CONTROLLERS_MAX_S - 20):
        await lifecycle.run()
    assert lifecycle.lease.is_over(trio.current_time()) == is_over


async def test_broker_serves_without_controllers_for_a_limited_time(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Invariant 34: a firewall may refuse connections to controllers that run."""
    lifecycle = make_lifecycle(StoppedControllers(*UP), yes)
    await lifecycle.start()
    answered_at = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(WITHOUT_CONTROLLERS_MAX_S - 20)
        assert not lifecycle.lease.is_over(trio.current_time())
        assert not [r for r in caplog.records if r.getMessage().startswith("lease over")]
        await trio.sleep(60)
        assert lifecycle.lease.is_over(trio.current_time())
        nursery.cancel_scope.cancel()
    assert lifecycle.lease.end == pytest.approx(answered_at + WITHOUT_CONTROLLERS_MAX_S, abs=1)
    assert len([r for r in caplog.records if r.getMessage().startswith("lease over")]) == 1


def test_broker_serves_a_minute_at_the_longest_while_all_controllers_refuse_connections() -> None:
    """Invariant 34: a firewall may refuse them while a controller fences the broker."""
    lease = SessionLease(SESSION_S)
    lease.renew(100.0, 100.0)
    for asked_at in range(101, 160):
        lease.on_controllers_ended(float(asked_at), float(asked_at))
    assert not lease.is_over(159.9)
    assert lease.is_over(160.0)


def test_lease_longer_than_the_limit_without_controllers_is_not_shortened() -> None:
    lease = SessionLease(3600.0)
    lease.renew(100.0, 100.0)
    lease.on_controllers_ended(110.0, 110.5)
    assert lease.end == 3700.0


def test_lease_without_controllers_counts_from_the_question() -> None:
    """A controller may have become active before the last host refused."""
    lease = SessionLease(9.0)
    lease.renew(100.0, 100.0)
    lease.on_controllers_ended(108.0, 108.5)
    assert lease.end == 117.0


async def test_lease_that_ends_before_the_controllers_are_seen_to_have_ended_is_over(
    autojump_clock: Clock,
) -> None:
    """An active controller may have fenced the broker until then."""

    async def is_gone() -> bool:
        await trio.sleep(max(0.0, first_end - trio.current_time()))
        return True

    lifecycle = make_lifecycle(StoppedControllers(*UP), is_gone)
    await lifecycle.start()
    first_end = lifecycle.lease.end
    with trio.move_on_after(60):
        await lifecycle.run()
    assert lifecycle.lease.end == first_end


class GrowingQuorum:
    """The only controller at first; another node becomes a voter later."""

    may_wait_for_voters = False

    def __init__(self) -> None:
        self.has_grown = trio.Event()

    def keep_session(self, broker_id: int) -> bool:
        return not self.has_grown.is_set()

    async def wait_replaceable(self) -> None:
        await self.has_grown.wait()


async def test_lease_has_an_end_once_another_node_can_be_the_active_controller(
    autojump_clock: Clock,
) -> None:
    """Invariant 34."""
    publisher = MetadataPublisher()
    publish_own(publisher, 8, fenced=False)
    controllers = Controllers(*UP, *[heartbeat_response()] * 3)
    lifecycle = make_lifecycle(controllers, publisher=publisher)
    lifecycle.local = quorum = GrowingQuorum()
    await lifecycle.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(60)
        assert len(controllers.requests) == len(UP), "alone it sends no heartbeats"
        assert lifecycle.lease.end == math.inf
        quorum.has_grown.set()
        await trio.sleep(0.1)
        assert lifecycle.lease.end == pytest.approx(60 + SESSION_S, abs=1)
        assert len(controllers.requests) == len(UP) + 1
        await trio.sleep(20)
        assert lifecycle.lease.is_over(trio.current_time()), "the other node may be active"
        nursery.cancel_scope.cancel()


def test_lease_goes_on_while_the_machine_is_suspended() -> None:
    """Invariant 34: the clock of its deadlines stops, the controller's does not."""
    suspended_s = 3.0
    lease = SessionLease(SESSION_S, lambda: suspended_s)
    lease.begin_request()
    lease.renew(100.0, 100.0)
    suspended_s += 8.0
    assert not lease.is_over(100.5)
    suspended_s += 60.0
    assert lease.is_over(100.5)
    lease.begin_request()
    lease.on_controllers_ended(100.5, 100.6)
    assert lease.is_over(100.6)
    lease.on_unfenced(100.7, 100.8, knows_fencing=False)
    assert not lease.is_over(109.6)
    assert lease.is_over(109.8)


async def test_broker_stops_to_serve_when_its_machine_was_suspended_for_a_session(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 34: the boot clock goes on meanwhile, the monotonic one does not."""
    suspended_s = 0.0

    def gettime(clock: int) -> float:
        return 1000.0 + (suspended_s if clock == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", gettime)
    lifecycle = make_lifecycle(Controllers(*UP))
    async with trio.open_nursery() as nursery:
        await lifecycle.start()
        nursery.start_soon(lifecycle.run)
        await trio.sleep(0.1)
        assert not lifecycle.lease.is_over(trio.current_time())
        suspended_s = SESSION_S
        assert lifecycle.lease.is_over(trio.current_time())
        nursery.cancel_scope.cancel()


def test_time_of_deadlines_does_not_go_back_after_a_suspension() -> None:
    """A member that died before an hour's suspension would stay in its group for an hour."""
    suspended_s = 0.0
    lease = SessionLease(SESSION_S, lambda: suspended_s)
    lease.begin_request()
    lease.renew(100.0, 100.0)
    times = [101.0 - lease.over_s(101.0)]
    suspended_s = 3600.0
    times.append(101.0 - lease.over_s(101.0))
    lease.begin_request()
    lease.on_unfenced(101.5, 101.6, knows_fencing=False)
    times += [now - lease.over_s(now) for now in (101.6, 105.0)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(105.0, abs=SESSION_S)


def test_time_of_deadlines_does_not_go_back_with_a_late_answer() -> None:
    lease = SessionLease(SESSION_S)
    lease.renew(100.0, 100.0)
    times = [140.0 - lease.over_s(140.0)]
    lease.on_unfenced(110.0, 140.0, knows_fencing=False)  # Sent after the end, then a pause.
    times += [now - lease.over_s(now) for now in (140.0, 150.0)]
    assert times == [109.0, 109.0, 109.0]


def test_heartbeat_sent_before_a_suspension_that_ended_the_lease_renews_nothing() -> None:
    """Invariant 34: it may have unfenced a broker that was fenced during the suspension."""
    suspended_s = 0.0
    lease = SessionLease(SESSION_S, lambda: suspended_s)
    lease.begin_request()
    lease.renew(100.0, 100.0)
    lease.begin_request()
    suspended_s = 6.0
    lease.on_unfenced(104.0, 104.1, knows_fencing=False)
    assert lease.is_over(104.1)


def test_suspension_before_the_answer_counts_from_the_request() -> None:
    suspended_s = 0.0
    lease = SessionLease(SESSION_S, lambda: suspended_s)
    lease.begin_request()
    suspended_s = 5.0
    lease.renew(100.0, 100.1)
    assert (lease.is_over(103.9), lease.is_over(104.0)) == (False, True)


def test_limit_without_controllers_includes_the_time_of_a_suspension() -> None:
    suspended_s = 0.0
    lease = SessionLease(SESSION_S, lambda: suspended_s)
    lease.begin_request()
    lease.renew(100.0, 100.0)
    for asked_at in range(104, 157, 4):
        lease.begin_request()
        lease.on_controllers_ended(float(asked_at), float(asked_at))
        suspended_s += 4.0
    end_at = 100.0 + WITHOUT_CONTROLLERS_MAX_S - suspended_s
    assert lease.is_over(end_at)
