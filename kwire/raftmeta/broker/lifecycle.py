"""The task that sends a broker's registration, heartbeats and shutdown requests.

:mod:`kwire.raftmeta.broker.state` decides which request is due. If the only controller runs in the
broker's own process, the two live and die together, so an idle broker sends nothing. Otherwise the
broker sends a heartbeat to the active controller every ``broker.heartbeat.interval.ms``.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from kwire import errors
from kwire.clock import NodeClock
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatResponse
from kwire.configs.broker import BrokerConfig
from kwire.configs.listeners import ListenerEndpoint
from kwire.errors import raise_for_code
from kwire.raftmeta.broker.registration import broker_registration
from kwire.raftmeta.broker.session_lease import SessionLease
from kwire.raftmeta.broker.state import INSISTING_SECONDS, Answer, BrokerStage, BrokerState, Request
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.storage.levels import DIRECTORIES, METADATA_VERSION, describe_unsupported
from kwire.waits import Signal

if TYPE_CHECKING:
    from kwire.codec.messages.allocate_producer_ids import AllocateProducerIdsRequest

logger = logging.getLogger(__name__)

IsGone = Callable[[], Awaitable[bool]]
"""Returns True if no remaining node could be the active controller."""
HasNoActive = Callable[[], Awaitable[bool]]
"""Returns True if no controller was active at some time since the call."""
Ask = Callable[[Request], Awaitable[Answer]]
"""Sends a request to the active controller; raises KafkaError."""


async def _never() -> bool:
    return False


GIVE_UP_SECONDS: Final = 4.0
"""Longer than an election takes."""
LOOK_SECONDS: Final = 0.1
"""Seconds without an answer after which a leaving broker checks whether any controller can answer.
"""
NOT_CAUGHT_UP: Final = -1
"""The metadata offset in a heartbeat that must not unfence the broker."""
CORDONS_SINCE: Final = 30
"""4.3-IV0, the first metadata.version with cordoned directories in registrations (KIP-1066)."""


class LocalController(Protocol):
    """The controller in the broker's own process, whose package this one does not import."""

    @property
    def may_wait_for_voters(self) -> bool:
        """True if this controller is active, but other voters must acknowledge its records."""

    def keep_session(self, broker_id: int) -> bool:
        """Keep a broker's session open without heartbeats; return whether that is possible.

        It is possible while this controller is active and no other node can become active.
        """

    async def wait_replaceable(self) -> None:
        """Wait until this controller is not active, or another node could become active."""


@attrs.define(kw_only=True, eq=False, repr=False)
class BrokerLifecycle:
    """One incarnation of this node's broker."""

    config: BrokerConfig
    cluster_id: str
    incarnation_id: bytes
    endpoints: Sequence[ListenerEndpoint]
    """The advertised endpoints, with the ports that are actually bound."""
    features: Mapping[str, tuple[int, int]]
    log_dirs: Sequence[bytes]
    publisher: MetadataPublisher
    ask: Ask
    clock: NodeClock
    local: LocalController | None = None
    """The controller in this process, if there is one."""
    is_gone: IsGone = _never
    has_no_active: HasNoActive = _never
    broker: BrokerState = attrs.field(init=False)
    """The state machine that decides which request is due."""
    lease: SessionLease = attrs.field(init=False)
    """The time until which this broker may serve as leader of the partitions it leads."""
    _has_registered: trio.Event = attrs.field(factory=trio.Event)
    _running: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _sooner: Signal = attrs.field(factory=Signal)
    """Set when the next heartbeat becomes due earlier."""
    _unanswered_since: float | None = None
    """The time of the oldest request without an answer; None if none is outstanding."""
    _was_over: bool = False
    """True if the lease was over after the last request."""
    _last_refusal: str = ""
    """The last logged error; a repeated error is logged only once."""

    def __attrs_post_init__(self) -> None:
        registration = broker_registration(
            self.config,
            cluster_id=self.cluster_id,
            incarnation_id=self.incarnation_id,
            endpoints=self.endpoints,
            features=self.features,
            log_dirs=self.log_dirs,
        )
        interval = self.config.broker_heartbeat_interval_ms / 1000
        self.broker = BrokerState(registration=registration, interval=interval)
        self.lease = SessionLease(
            self.config.broker_session_timeout_ms / 1000, self.clock.suspended_s
        )

    @property
    def epoch(self) -> int:
        return self.broker.epoch

    def producer_ids(self) -> "AllocateProducerIdsRequest":
        """Return the request for a block of producer ids."""
        from kwire.codec.messages.allocate_producer_ids import AllocateProducerIdsRequest

        return AllocateProducerIdsRequest(broker_id=self.config.node_id, broker_epoch=self.epoch)

    async def start(self, previous_epoch: int = -1) -> None:
        """Register the broker and return once it is unfenced and can serve clients.

        ``previous_epoch`` is the epoch of the previous incarnation, if that one stopped cleanly.
        Raises BrokerIdNotRegistered after ``initial.broker.registration.timeout.ms``.
        """
        broker = self.broker
        broker.registration.previous_broker_epoch = previous_epoch
        limit_s = self.config.initial_broker_registration_timeout_ms / 1000
        with trio.move_on_after(limit_s):
            while not broker.registered:
                await self._exchange()
        if not broker.registered:
            raise errors.BrokerIdNotRegistered(
                f"no controller has registered broker {self.config.node_id} within {limit_s:g} s "
                "(initial.broker.registration.timeout.ms): check that a majority of the "
                "controllers is running and reachable from this node"
            )
        self._has_registered.set()
        while broker.state is BrokerStage.STARTING:
            await self._exchange()
        broker.ready_to_unfence(self.clock.now())
        while broker.state is not BrokerStage.RUNNING:
            await self._exchange()
        self._keep_session()
        logger.info("broker unfenced id=%d epoch=%d", self.config.node_id, self.epoch)

    async def wait_registered(self) -> None:
        """Wait until this broker has an epoch: controllers reject its requests without one."""
        await self._has_registered.wait()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send heartbeats until cancelled or stopped; an unfenced single node sends none."""
        with self._running:
            task_status.started()
            while True:
                if (
                    self.local is not None
                    and not self.broker.has_unreported_directory
                    and self._serves(self.publisher.image)
                    and self._keep_session()
                ):
                    await self._wait_session_end(self.local)
                    if not self._keep_session():
                        self.lease.begin_request()
                        now = self.clock.now()
                        self.lease.renew(now, now)
                await self._exchange()

    def directory_failed(self, directory_id: bytes) -> None:
        """Report an offline log directory to the controller at once, in an extra heartbeat."""
        self.broker.directory_failed(directory_id, self.clock.now())
        if self.broker.has_unreported_directory:
            self._sooner.set()

    def on_image_published(self, image: MetadataImage) -> None:
        """Send a heartbeat at once if this broker was fenced while serving.

        If an upgrade has just made room for log directories in the metadata, register again to add
        them: otherwise the controller would ignore reports of failed directories.
        """
        own = image.brokers.get(self.config.node_id)
        if own is None or own.epoch != self.epoch:
            return
        if own.fenced and self.broker.state is BrokerStage.RUNNING:
            self.broker.on_fenced(self.clock.now())
            self._sooner.set()
        if not own.log_dirs and image.features.get(METADATA_VERSION, 0) >= DIRECTORIES:
            self.broker.amend_registration(self.clock.now())
            self._sooner.set()

    async def _wait_session_end(self, local: LocalController) -> None:
        """Wait while this broker serves and no other node can be the active controller.

        Also returns when a heartbeat becomes due earlier.
        """
        async with trio.open_nursery() as nursery:

            async def end_after(waiting: Callable[[], Awaitable[None]]) -> None:
                await waiting()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_after, local.wait_replaceable)
            nursery.start_soon(end_after, self._wait_put_out)
            nursery.start_soon(end_after, self._sooner.wait)

    async def _wait_put_out(self) -> None:
        """Wait until this incarnation is fenced or unregistered."""
        await self.publisher.wait_for(lambda image: not self._serves(image))

    def _serves(self, image: MetadataImage) -> bool:
        own = image.brokers.get(self.config.node_id)
        return own is not None and own.epoch == self.epoch and not own.fenced

    def _keep_session(self) -> bool:
        """Keep the session without heartbeats if possible; return whether it is kept."""
        is_kept = self.local is not None and self.local.keep_session(self.config.node_id)
        if is_kept:
            self.lease.keep(self.clock.now())
        return is_kept

    async def stop(self) -> bool:
        """Run the controlled shutdown: hand over leaderships, then get fenced.

        Return whether that succeeded. Stops trying at once if too few controller processes run to
        form a majority, otherwise after ``GIVE_UP_SECONDS`` without an answer.
        """
        self._running.cancel()
        broker = self.broker
        broker.begin_controlled_shutdown(self.clock.now())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_gone, nursery.cancel_scope)
            while broker.state is not BrokerStage.SHUTTING_DOWN:
                await self._exchange()
            nursery.cancel_scope.cancel()
        went = broker.state is BrokerStage.SHUTTING_DOWN
        if not went:
            logger.warning("stopping without a controller id=%d", self.config.node_id)
        return went

    async def _cancel_when_gone(self, attempts: trio.CancelScope) -> None:
        """Cancel the attempts once no controller can be expected to answer."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            since = self._unanswered_since
            if since is None:
                continue
            if self.clock.now() >= since + GIVE_UP_SECONDS or await self.is_gone():
                attempts.cancel()

    async def _exchange(self) -> None:
        """Wait until the next request is due, send it and process the answer."""
        self._sooner.clear()
        with trio.move_on_after(max(0.0, self.broker.due - self.clock.now())):
            await self._sooner.wait()
        self.lease.begin_request()
        sent_at = self.clock.now()
        knows_fencing = not self._serves(self.publisher.applied)
        if self._unanswered_since is None:
            self._unanswered_since = sent_at
        try:
            answer = await self._send(sent_at, knows_fencing=knows_fencing)
        except errors.KafkaError as error:
            if repr(error) != self._last_refusal:
                self._log_refusal(error)
            self._last_refusal = repr(error)
            self._check_incarnation(error)
            self._check_features(error)
            await self._extend_lease(error)
            self.broker.on_error(error, self.clock.now())
        else:
            self._unanswered_since = None
            if isinstance(answer, BrokerHeartbeatResponse) and not answer.is_fenced:
                self.lease.on_unfenced(sent_at, self.clock.now(), knows_fencing=knows_fencing)
            self.broker.on_answer(answer, self.clock.now())
        if self.broker.state is BrokerStage.RUNNING:
            self._insist_without_lease()

    async def _extend_lease(self, error: errors.KafkaError) -> None:
        """Extend the lease if the request timed out because no controller leads."""
        self.lease.begin_request()
        asked_at = self.clock.now()
        if isinstance(error, errors.RequestTimedOut) and await self.has_no_active():
            self.lease.on_controllers_ended(asked_at, self.clock.now())

    def _insist_without_lease(self) -> None:
        """Send heartbeats sooner while the lease is over; log its end and its renewal."""
        is_over = self.lease.is_over(self.clock.now())
        if is_over:
            self.broker.due = min(self.broker.due, self.clock.now() + INSISTING_SECONDS)
        if is_over and not self._was_over:
            text = "lease over: clients are refused until a controller answers id=%d epoch=%d"
            logger.warning(text, self.config.node_id, self.epoch)
        elif self._was_over and not is_over:
            logger.info("lease renewed id=%d epoch=%d", self.config.node_id, self.epoch)
        self._was_over = is_over

    def _check_incarnation(self, error: errors.KafkaError) -> None:
        """Raise DuplicateBrokerRegistration if a newer incarnation uses this broker id.

        A broker that is no longer registered may register again.
        """
        own = self.publisher.image.brokers.get(self.config.node_id)
        leaves = self.broker.state is BrokerStage.PENDING_CONTROLLED_SHUTDOWN
        if own is None or leaves or not isinstance(error, errors.StaleBrokerEpoch):
            return
        if own.epoch > self.epoch and own.incarnation_id != self.incarnation_id:
            raise errors.DuplicateBrokerRegistration(
                f"Another broker has registered with the id {own.id} meanwhile."
            )

    def _check_features(self, error: errors.KafkaError) -> None:
        """Raise UnsupportedVersion that names the level; the controller's answer has only a code.

        A cluster of a newer release may have finalized a level that this one does not support.
        """
        if isinstance(error, errors.UnsupportedVersion) and not self.broker.registered:
            reason = describe_unsupported(self.publisher.image.features, self.features)
            raise errors.UnsupportedVersion(reason or error.text) from error

    def _log_refusal(self, error: errors.KafkaError) -> None:
        if isinstance(error, errors.DuplicateBrokerRegistration):
            text = "another broker with this node.id is alive, or was a moment ago: retrying id=%d"
            logger.warning(text, self.config.node_id)
        else:
            logger.info("the controller rejects the broker state=%s reason=%r", self._name, error)

    @property
    def _name(self) -> str:
        return self.broker.state.name if self.broker.registered else "UNREGISTERED"

    async def _send(self, now: float, *, knows_fencing: bool) -> Answer:
        """Send the due request and return the active controller's answer.

        A local controller may have lost the other voters. The broker then waits only one heartbeat
        interval for the answer, or one session timeout for the answer to a registration, because a
        repeated registration gets a new epoch.
        """
        image = self.publisher.applied
        cordons = image.features.get(METADATA_VERSION, 0) >= CORDONS_SINCE
        may_unfence = self.lease.may_unfence(now, knows_fencing=knows_fencing)
        offset = image.applied.offset if may_unfence else NOT_CAUGHT_UP
        request = self.broker.request(offset, cordons=cordons)
        may_hang = self.local is not None and self.local.may_wait_for_voters
        session_s = self.config.broker_session_timeout_ms / 1000
        limit_s = self.broker.interval if self.broker.registered else session_s
        with trio.move_on_after(limit_s if may_hang else math.inf):
            answer = await self.ask(request)
            raise_for_code(answer.error_code)
            return answer
        raise errors.RequestTimedOut("no answer from the controller")
