"""A broker's lifecycle with controllers that refuse, hang or are not there."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing
from immutables import Map

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatResponse
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationResponse,
)
from kwire.raftmeta.broker.lifecycle import GIVE_UP_SECONDS
from kwire.raftmeta.broker.state import BrokerStage, BrokerState
from kwire.raftmeta.metadata.image import BrokerImage, MetadataImage
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.storage.records import CommittedBatch
from tests.support.raftmeta.lifecycle import (
    UP,
    Controllers,
    heartbeat_response,
    make_lifecycle,
    no,
    registration_response,
    yes,
)

Clock = trio.testing.MockClock
DUPLICATE = errors.DuplicateBrokerRegistration.code
UNKNOWN = errors.StaleBrokerEpoch.code
STOP = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True, should_shut_down=True)


def error_response(code: int) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code=code, is_fenced=True, should_shut_down=False)


def publisher_at(offset: int, level: int) -> MetadataPublisher:
    publisher = MetadataPublisher()
    record = r.FeatureLevelRecord(name="metadata.version", feature_level=level)
    publisher.on_commit([CommittedBatch(offset, offset, 1, 0, (record,))])
    return publisher


@pytest.mark.parametrize(("level", "cordoned"), [(29, None), (30, [])])
async def test_registration_and_heartbeats_send_offset_and_directories(
    autojump_clock: Clock, level: int, cordoned: list[bytes] | None
) -> None:
    """The broker sends its applied offset, and its directories in Kafka's order.

    Cordoned directories go only to controllers whose metadata version has them.
    """
    controllers = Controllers(*UP)
    await make_lifecycle(controllers, publisher=publisher_at(41, level)).start(previous_epoch=5)
    (_, first), (_, second), (_, third) = controllers.requests
    assert first.previous_broker_epoch == 5
    assert first.log_dirs == [b"\xff" * 16, b"a" * 16]
    assert (second.current_metadata_offset, second.broker_epoch) == (41, 7)
    assert second.cordoned_log_dirs is None
    assert third.cordoned_log_dirs == cordoned


async def test_failed_directory_is_reported_at_once_and_in_each_later_heartbeat(
    autojump_clock: Clock,
) -> None:
    """Invariant 89: else the controller lets the broker lead what it cannot write."""
    controllers = Controllers(*UP, *[heartbeat_response()] * 9)
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(2.5)
        before = len(controllers.requests)
        for _ in range(2):
            lifecycle.directory_failed(b"a" * 16)
            await trio.sleep(0.1)
        assert len(controllers.requests) == before + 1
        assert controllers.requests[-1][1].offline_log_dirs == [b"a" * 16]
        await trio.sleep(2.1)
        assert len(controllers.requests) == before + 2
        assert controllers.requests[-1][1].offline_log_dirs == [b"a" * 16]
        nursery.cancel_scope.cancel()


async def test_directory_that_fails_during_a_heartbeat_is_reported_with_the_next_one_at_once(
    autojump_clock: Clock,
) -> None:
    """Invariant 89: two disks of one controller fail together."""
    controllers = Controllers(*UP, *[heartbeat_response()] * 9)
    answer_at_once = controllers.ask

    async def answer_later(request: object) -> object:
        answer = await answer_at_once(request)
        await trio.sleep(0.05)
        return answer

    controllers.ask = answer_later  # type: ignore[method-assign]
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(2.5)
        before = len(controllers.requests)
        lifecycle.directory_failed(b"a" * 16)
        await trio.sleep(0.01)
        lifecycle.directory_failed(b"\xff" * 16)
        await trio.sleep(0.2)
        reported = [request.offline_log_dirs for _, request in controllers.requests[before:]]
        assert reported == [[b"a" * 16], [b"a" * 16, b"\xff" * 16]]
        nursery.cancel_scope.cancel()


async def test_failed_directory_is_reported_until_a_heartbeat_is_accepted(
    autojump_clock: Clock,
) -> None:
    controllers = Controllers(
        *UP, error_response(UNKNOWN), registration_response(9), *[heartbeat_response()] * 9
    )
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    lifecycle.directory_failed(b"a" * 16)
    with trio.move_on_after(1):
        await lifecycle.run()
    assert controllers.letters == ["R", "F", "U", "U", "R", "U"]
    assert controllers.requests[-1][1].offline_log_dirs == [b"a" * 16]
    assert not lifecycle.broker.has_unreported_directory


def image_with_own_broker(*, fenced: bool, epoch: int = 7) -> MetadataImage:
    return MetadataImage(
        brokers=Map({1: BrokerImage(id=1, epoch=epoch, incarnation_id=b"i" * 16, fenced=fenced)})
    )


async def test_broker_that_is_fenced_while_it_serves_sends_a_heartbeat_at_once(
    autojump_clock: Clock,
) -> None:
    """The controller was wrong to fence it, and learns so with the heartbeat."""
    controllers = Controllers(*UP, *[heartbeat_response()] * 9)
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(2.5)
        before = len(controllers.requests)
        lifecycle.on_image_published(image_with_own_broker(fenced=False))
        lifecycle.on_image_published(image_with_own_broker(fenced=True, epoch=6))
        await trio.sleep(0.1)
        assert len(controllers.requests) == before
        lifecycle.on_image_published(image_with_own_broker(fenced=True))
        await trio.sleep(0.1)
        assert len(controllers.requests) == before + 1
        await trio.sleep(1.5)
        assert len(controllers.requests) == before + 1, "then the interval holds again"
        nursery.cancel_scope.cancel()


async def test_broker_registers_again_once_the_metadata_have_room_for_its_directories(
    autojump_clock: Clock,
) -> None:
    """Otherwise the controller ignores reports of directories that fail after an upgrade."""
    answers = [heartbeat_response(), registration_response(), *[heartbeat_response()] * 9]
    controllers = Controllers(*UP, *answers)
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    lifecycle.directory_failed(b"a" * 16)
    old = image_with_own_broker(fenced=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(0.1)
        lifecycle.on_image_published(attrs.evolve(old, features=Map({"metadata.version": 16})))
        await trio.sleep(0.1)
        assert controllers.letters == ["R", "F", "U", "U"]
        lifecycle.on_image_published(attrs.evolve(old, features=Map({"metadata.version": 17})))
        await trio.sleep(0.1)
        assert controllers.letters == ["R", "F", "U", "U", "R", "U"]
        assert controllers.requests[-1][1].offline_log_dirs == [b"a" * 16]
        assert (lifecycle.epoch, lifecycle.broker.state) == (7, BrokerStage.RUNNING)
        nursery.cancel_scope.cancel()


def test_broker_that_is_fenced_after_it_sent_a_heartbeat_sends_another() -> None:
    """The answer that is under way may be older than the fencing."""
    broker = make_lifecycle(Controllers()).broker
    broker.on_answer(registration_response(), 0.0)
    broker.state = BrokerStage.RUNNING
    broker.request(41)
    broker.on_fenced(5.0)
    broker.on_answer(heartbeat_response(), 5.1)
    assert broker.due == 5.1
    broker.request(41)
    broker.on_answer(heartbeat_response(), 5.2)
    assert broker.due == 5.2 + broker.interval


async def test_registration_is_retried_while_another_broker_has_the_id(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    duplicate = BrokerRegistrationResponse(error_code=DUPLICATE)
    controllers = Controllers(duplicate, duplicate, *UP)
    await make_lifecycle(controllers).start()
    assert controllers.letters == ["R", "R", "R", "F", "U"]
    assert [round(t) for t, _ in controllers.requests][:3] == [0, 2, 4]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "another broker with this node.id is alive, or was a moment ago: retrying id=1"
    ]


async def test_registration_refused_for_good_ends_the_start(autojump_clock: Clock) -> None:
    wrong = BrokerRegistrationResponse(error_code=errors.InconsistentClusterId.code)
    with pytest.raises(errors.InconsistentClusterId):
        await make_lifecycle(Controllers(wrong)).start()


async def test_broker_of_an_older_release_names_the_level_it_does_not_support(
    autojump_clock: Clock,
) -> None:
    """The controller's answer only has a code."""
    refusal = BrokerRegistrationResponse(error_code=errors.UnsupportedVersion.code)
    lifecycle = make_lifecycle(Controllers(refusal), publisher=publisher_at(41, 33))
    lifecycle.features = {"metadata.version": (7, 30)}
    with pytest.raises(errors.UnsupportedVersion, match=r"version 33 of metadata.* 7 and 30"):
        await lifecycle.start()


async def test_broker_that_no_controller_registers_in_time_says_so(autojump_clock: Clock) -> None:
    start = trio.current_time()
    with pytest.raises(errors.BrokerIdNotRegistered, match=r"broker 1 within 60 s \(initial"):
        await make_lifecycle(Controllers()).start()
    assert trio.current_time() - start == pytest.approx(60)


async def test_broker_unknown_to_the_controller_registers_again(autojump_clock: Clock) -> None:
    controllers = Controllers(
        *UP, error_response(UNKNOWN), registration_response(9), heartbeat_response()
    )
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    with trio.move_on_after(5):
        await lifecycle.run()
    assert controllers.letters == ["R", "F", "U", "U", "R", "U", "U"]
    assert lifecycle.epoch == 9


async def test_broker_ends_after_another_incarnation_registered(autojump_clock: Clock) -> None:
    """Two brokers on copies of the same directories would replace each other for ever."""
    controllers = Controllers(
        *UP,
        heartbeat_response(),
        error_response(UNKNOWN),
        registration_response(9),
        heartbeat_response(),
    )
    publisher = publisher_at(41, 30)
    lifecycle = make_lifecycle(controllers, publisher=publisher)
    await lifecycle.start()
    other_registration = r.RegisterBrokerRecord(
        broker_id=lifecycle.config.node_id, incarnation_id=b"j" * 16, broker_epoch=42, rack=None
    )
    publisher.on_commit([CommittedBatch(42, 42, 1, 0, (other_registration,))])
    with pytest.raises(errors.DuplicateBrokerRegistration), trio.fail_after(30):
        await lifecycle.run()
    assert controllers.letters == ["R", "F", "U", "U", "U"]


async def test_controlled_shutdown_repeats_heartbeats_until_it_is_granted(
    autojump_clock: Clock,
) -> None:
    """The heartbeats of the shutdown follow each other at Kafka's intervals."""
    controllers = Controllers(*UP, heartbeat_response(), heartbeat_response(), STOP)
    lifecycle = make_lifecycle(controllers, yes)
    await lifecycle.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run)
        await trio.sleep(1)
        assert await lifecycle.stop()
    assert controllers.letters == ["R", "F", "U", "L", "L", "L"]
    times = [t for t, _ in controllers.requests][3:]
    assert [round(t - times[0], 2) for t in times] == [0, 0.05, 2.05]


@pytest.mark.parametrize(("is_gone", "longest"), [(yes, 0.2), (no, GIVE_UP_SECONDS + 0.2)])
async def test_shutdown_ends_soon_when_no_controller_answers(
    autojump_clock: Clock, is_gone: Callable[[], Awaitable[bool]], longest: float
) -> None:
    """At once if their processes have ended, else after the time that an election takes."""
    lifecycle = make_lifecycle(Controllers(*UP), is_gone)
    await lifecycle.start()
    began = trio.current_time()
    assert not await lifecycle.stop()
    took = trio.current_time() - began
    assert longest / 2 <= took <= longest


async def test_shutdown_waits_through_an_election(autojump_clock: Clock) -> None:
    """Errors and silence do not end the stop while controllers are there."""
    controllers = Controllers(*UP, *[error_response(errors.NotController.code)] * 30, STOP)
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    assert await lifecycle.stop()


async def test_unregistered_broker_stops_without_waiting(autojump_clock: Clock) -> None:
    controllers = Controllers(*UP, error_response(UNKNOWN))
    lifecycle = make_lifecycle(controllers)
    await lifecycle.start()
    assert await lifecycle.stop()


def test_broker_that_never_served_stops_without_waiting() -> None:
    state = BrokerState(
        registration=make_lifecycle(Controllers()).broker.registration, interval=2.0
    )
    state.begin_controlled_shutdown(0.0)
    assert state.state is BrokerStage.SHUTTING_DOWN
