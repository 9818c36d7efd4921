"""A broker's life towards controllers that refuse, hang or are not there."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from kwire import errors
from kwire.clock import SystemClock
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.configs.listeners import Endpoint
from kwire.raftmeta.broker.lifecycle import GIVE_UP_SECONDS, BrokerLifecycle
from kwire.raftmeta.broker.state import BrokerState, State
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.storage.records import CommittedBatch
from tests.support.raftmeta.clusters import CLUSTER, node_config

Clock = trio.testing.MockClock
ENDPOINTS = (Endpoint("PLAINTEXT", "localhost", 9092),)
TWIN = errors.DuplicateBrokerRegistration.code
UNKNOWN = errors.StaleBrokerEpoch.code
STOP = BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True, should_shut_down=True)


def served(*, fenced: bool = False, caught_up: bool = True) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=False)


def registered(epoch: int = 7) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(broker_epoch=epoch)


def refused(code: int) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(error_code=code, is_fenced=True, should_shut_down=False)


class Controllers:
    """Controllers that give these answers in order, and after the last one none."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[float, Any]] = []

    async def ask(self, request: Any) -> Any:
        self.heard.append((trio.current_time(), request))
        if not self.answers:
            await trio.sleep_forever()
        return self.answers.pop(0)

    @property
    def said(self) -> list[str]:
        """A letter for each request: registration, Fenced, Unfenced, Leaving."""
        return [letter(request) for _, request in self.heard]


def letter(request: Any) -> str:
    if isinstance(request, BrokerRegistrationRequest):
        return "R"
    assert isinstance(request, BrokerHeartbeatRequest)
    return "L" if request.want_shut_down else "F" if request.want_fence else "U"


async def no() -> bool:
    return False


async def yes() -> bool:
    return True


def lifecycle(
    controllers: Controllers,
    is_gone: Callable[[], Awaitable[bool]] = no,
    publisher: MetadataPublisher | None = None,
) -> BrokerLifecycle:
    return BrokerLifecycle(
        config=node_config(),
        cluster_id=CLUSTER,
        incarnation_id=b"i" * 16,
        endpoints=ENDPOINTS,
        features={},
        log_dirs=[b"a" * 16, b"\xff" * 16],
        publisher=publisher or MetadataPublisher(),
        ask=controllers.ask,
        clock=SystemClock(),
        is_gone=is_gone,
    )


UP = (registered(), served(fenced=True), served())
"""Answers of the controller to a broker that it unfences without delay."""


def published(offset: int, level: int) -> MetadataPublisher:
    made = MetadataPublisher()
    record = r.FeatureLevelRecord(name="metadata.version", feature_level=level)
    made.on_commit([CommittedBatch(offset, offset, 1, 0, (record,))])
    return made


@pytest.mark.parametrize(("level", "cordoned"), [(29, None), (30, [])])
async def test_what_is_told(
    autojump_clock: Clock, level: int, cordoned: list[bytes] | None
) -> None:
    """The broker sends its applied offset, and its directories in Kafka's order.

    Cordoned directories go only to controllers whose metadata version has them.
    """
    controllers = Controllers(*UP)
    await lifecycle(controllers, publisher=published(41, level)).start(previous_epoch=5)
    (_, first), (_, second), (_, third) = controllers.heard
    assert first.previous_broker_epoch == 5
    assert first.log_dirs == [b"\xff" * 16, b"a" * 16]
    assert (second.current_metadata_offset, second.broker_epoch) == (41, 7)
    assert second.cordoned_log_dirs is None
    assert third.cordoned_log_dirs == cordoned


async def test_failed_directory_is_told_at_once_and_ever_after(autojump_clock: Clock) -> None:
    """Invariant 89: else the controller lets the broker lead what it cannot write."""
    controllers = Controllers(*UP, *[served()] * 9)
    made = lifecycle(controllers)
    await made.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.sleep(2.5)
        before = len(controllers.heard)
        for _ in range(2):
            made.directory_failed(b"a" * 16)
            await trio.sleep(0.1)
        assert len(controllers.heard) == before + 1
        assert controllers.heard[-1][1].offline_log_dirs == [b"a" * 16]
        await trio.sleep(2.1)
        assert len(controllers.heard) == before + 2
        assert controllers.heard[-1][1].offline_log_dirs == [b"a" * 16]
        nursery.cancel_scope.cancel()


async def test_failed_directory_is_told_again_until_it_is_heard(autojump_clock: Clock) -> None:
    controllers = Controllers(*UP, refused(UNKNOWN), registered(9), *[served()] * 9)
    made = lifecycle(controllers)
    await made.start()
    made.directory_failed(b"a" * 16)
    with trio.move_on_after(1):
        await made.run()
    assert controllers.said == ["R", "F", "U", "U", "R", "U"]
    assert controllers.heard[-1][1].offline_log_dirs == [b"a" * 16]
    assert not made.broker.has_unreported_directory


async def test_a_twin_is_waited_for(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    twin = BrokerRegistrationResponse(error_code=TWIN)
    controllers = Controllers(twin, twin, *UP)
    await lifecycle(controllers).start()
    assert controllers.said == ["R", "R", "R", "F", "U"]
    assert [round(t) for t, _ in controllers.heard][:3] == [0, 2, 4]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [
        "another broker with this node.id lives, or did a moment ago: asking again id=1"
    ]


async def test_a_registration_refused_for_good_ends_the_start(autojump_clock: Clock) -> None:
    wrong = BrokerRegistrationResponse(error_code=errors.InconsistentClusterId.code)
    with pytest.raises(errors.InconsistentClusterId):
        await lifecycle(Controllers(wrong)).start()


async def test_a_broker_that_is_forgotten_registers_again(autojump_clock: Clock) -> None:
    controllers = Controllers(*UP, refused(UNKNOWN), registered(9), served())
    made = lifecycle(controllers)
    await made.start()
    with trio.move_on_after(5):
        await made.run()
    assert controllers.said == ["R", "F", "U", "U", "R", "U", "U"]
    assert made.epoch == 9


async def test_a_broker_whose_place_was_taken_ends(autojump_clock: Clock) -> None:
    """Two on copies of the same directories would take the id from each other for ever."""
    controllers = Controllers(*UP, served(), refused(UNKNOWN), registered(9), served())
    publisher = published(41, 30)
    made = lifecycle(controllers, publisher=publisher)
    await made.start()
    twin = r.RegisterBrokerRecord(
        broker_id=made.config.node_id, incarnation_id=b"j" * 16, broker_epoch=42, rack=None
    )
    publisher.on_commit([CommittedBatch(42, 42, 1, 0, (twin,))])
    with pytest.raises(errors.DuplicateBrokerRegistration), trio.fail_after(30):
        await made.run()
    assert controllers.said == ["R", "F", "U", "U", "U"]


async def test_a_stop_in_order(autojump_clock: Clock) -> None:
    """Heartbeats end, and the last ones follow each other as Kafka's do."""
    controllers = Controllers(*UP, served(), served(), STOP)
    made = lifecycle(controllers, yes)
    await made.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.sleep(1)
        assert await made.stop()
    assert controllers.said == ["R", "F", "U", "L", "L", "L"]
    times = [t for t, _ in controllers.heard][3:]
    assert [round(t - times[0], 2) for t in times] == [0, 0.05, 2.05]


@pytest.mark.parametrize(("is_gone", "longest"), [(yes, 0.2), (no, GIVE_UP_SECONDS + 0.2)])
async def test_nobody_waits_for_controllers_that_are_gone(
    autojump_clock: Clock, is_gone: Callable[[], Awaitable[bool]], longest: float
) -> None:
    """At once where their processes are gone, in the time of an election where one may come."""
    made = lifecycle(Controllers(*UP), is_gone)
    await made.start()
    began = trio.current_time()
    assert not await made.stop()
    took = trio.current_time() - began
    assert longest / 2 <= took <= longest


async def test_a_stop_waits_through_an_election(autojump_clock: Clock) -> None:
    """Errors and silence do not end the stop while controllers are there."""
    controllers = Controllers(*UP, *[refused(errors.NotController.code)] * 30, STOP)
    made = lifecycle(controllers)
    await made.start()
    assert await made.stop()


async def test_a_broker_that_is_not_known_just_goes(autojump_clock: Clock) -> None:
    controllers = Controllers(*UP, refused(UNKNOWN))
    made = lifecycle(controllers)
    await made.start()
    assert await made.stop()


def test_a_broker_that_never_served_just_goes() -> None:
    state = BrokerState(registration=lifecycle(Controllers()).broker.registration, interval=2.0)
    state.begin_controlled_shutdown(0.0)
    assert state.state is State.SHUTTING_DOWN
