"""The state machine of a broker's registration, heartbeats and controlled shutdown.

The caller passes in answers and the time, and sends the next request when it is ``due``. Rules: one
request is in flight at a time; after a failed request, a newly built one is sent one heartbeat
interval later, because the metadata may have changed; the states are Kafka's.
"""

import enum
from typing import Final

import attrs

from kwire import errors
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.errors import KafkaError

CATCHING_UP_SECONDS: Final = 0.01
"""Seconds between the heartbeats of a starting broker."""
LEAVING_SECONDS: Final = 0.05
"""Seconds between a leaving broker's first two heartbeats; by then it may lead nothing."""
INSISTING_SECONDS: Final = 0.1
"""Seconds between retries of a leaving broker without an answer: others wait for it to stop."""
_TRANSIENT: Final = (
    errors.NotController,
    errors.RequestTimedOut,
    errors.DuplicateBrokerRegistration,
)
"""Errors after which a registration is retried."""

Request = BrokerRegistrationRequest | BrokerHeartbeatRequest
Answer = BrokerRegistrationResponse | BrokerHeartbeatResponse


class BrokerStage(enum.Enum):
    """The stage of a broker's life cycle."""

    STARTING = enum.auto()
    """The controller has not yet confirmed that the broker's metadata include its registration."""
    RECOVERY = enum.auto()
    """The broker has caught up, but is fenced."""
    RUNNING = enum.auto()
    PENDING_CONTROLLED_SHUTDOWN = enum.auto()
    """The broker is leaving; its leaderships are being handed over."""
    SHUTTING_DOWN = enum.auto()


@attrs.define(kw_only=True, eq=False, repr=False)
class BrokerState:
    """One incarnation of a broker, with the state that it reports to the controller."""

    registration: BrokerRegistrationRequest
    interval: float
    """``broker.heartbeat.interval.ms``, in seconds."""
    state: BrokerStage = BrokerStage.STARTING
    epoch: int = -1
    due: float = 0.0
    """The time of the next request."""
    offline_dirs: list[bytes] = attrs.field(factory=list)
    """Log directories that have failed; every heartbeat lists them."""
    registered: bool = False
    _is_outdated: bool = False
    """True if the metadata lack the registration's directories, which have to be sent again."""
    _is_ready: bool = False
    _sent_dirs: int = 0
    """The number of offline directories in the last heartbeat."""
    _acknowledged_dirs: int = 0
    """The number of offline directories that the controller has acknowledged."""
    _was_fenced: bool = False
    """True if the broker was fenced after the last request was sent."""
    _was_asked: bool = False
    """True if the controller has answered a request to shut down."""

    def request(self, metadata_offset: int, *, cordons: bool = True) -> Request:
        """Return the request to send now. ``cordons``: controllers store cordoned directories."""
        if not self.registered or self._is_outdated:
            return self.registration
        self._sent_dirs, self._was_fenced = len(self.offline_dirs), False
        has_cordons = cordons and self.state is not BrokerStage.STARTING
        return BrokerHeartbeatRequest(
            broker_id=self.registration.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=metadata_offset,
            want_fence=not self._is_ready,
            want_shut_down=self.state is BrokerStage.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=list(self.offline_dirs),
            cordoned_log_dirs=[] if has_cordons else None,
        )

    def on_answer(self, answer: Answer, now: float) -> None:
        """Process the controller's answer to the last request."""
        if isinstance(answer, BrokerRegistrationResponse):
            self.epoch, self.registered, self.due = answer.broker_epoch, True, now
            self._acknowledged_dirs, self._is_outdated = 0, False
            return
        self._acknowledged_dirs = self._sent_dirs
        self.due = now + self.interval
        match self.state:
            case BrokerStage.STARTING:
                if answer.is_caught_up:
                    self.state = BrokerStage.RECOVERY
                self.due = now + CATCHING_UP_SECONDS
            case BrokerStage.RECOVERY if not answer.is_fenced:
                self.state = BrokerStage.RUNNING
            case BrokerStage.PENDING_CONTROLLED_SHUTDOWN if answer.should_shut_down:
                self.state = BrokerStage.SHUTTING_DOWN
            case BrokerStage.PENDING_CONTROLLED_SHUTDOWN if not self._was_asked:
                self.due = now + LEAVING_SECONDS
                self._was_asked = True
            case BrokerStage.RUNNING if self._was_fenced:
                self.due = now
            case _:
                pass
        if self.has_unreported_directory:  # It failed after the request was sent.
            self.due = now

    def on_error(self, error: KafkaError, now: float) -> None:
        """Schedule a retry after an error or a missing answer; raise final errors."""
        self.due = now + self.interval
        if not self.registered:
            if not isinstance(error, _TRANSIENT):
                raise error
        elif self.state is BrokerStage.PENDING_CONTROLLED_SHUTDOWN:
            self.due = now + INSISTING_SECONDS
            if isinstance(error, errors.StaleBrokerEpoch):  # No leadership is left to hand over.
                self.state = BrokerStage.SHUTTING_DOWN
        elif isinstance(error, errors.StaleBrokerEpoch):
            self.registered, self.due = False, now

    @property
    def has_unreported_directory(self) -> bool:
        """True if the controller has not yet acknowledged a failed directory."""
        return self._acknowledged_dirs < len(self.offline_dirs)

    def directory_failed(self, directory_id: bytes, now: float) -> None:
        """Add an offline log directory and make a heartbeat that reports it due now."""
        if directory_id not in self.offline_dirs:
            self.offline_dirs.append(directory_id)
            self.due = now

    def on_fenced(self, now: float) -> None:
        """Make a heartbeat due now: the broker is alive, so the controller will unfence it."""
        self._was_fenced, self.due = True, now

    def amend_registration(self, now: float) -> None:
        """Make a repetition of the registration due now, which keeps the broker's epoch."""
        self._is_outdated, self.due = True, now

    def ready_to_unfence(self, now: float) -> None:
        """Ask to be unfenced from now on, because the broker can serve clients."""
        self._is_ready, self.due = True, now

    def begin_controlled_shutdown(self, now: float) -> None:
        """Begin the controlled shutdown; a broker that never served skips it."""
        if self.state is BrokerStage.RUNNING:
            self.state, self.due = BrokerStage.PENDING_CONTROLLED_SHUTDOWN, now
        elif self.state is not BrokerStage.PENDING_CONTROLLED_SHUTDOWN:
            self.state = BrokerStage.SHUTTING_DOWN
