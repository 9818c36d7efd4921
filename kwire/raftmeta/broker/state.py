"""What a broker says to the controller, and when: register, be unfenced, live, leave.

A stepper: the caller brings the answers and the time, and asks for the next request when it is
``due``. Rules: one request is under way at a time; a request that failed is followed by another
after a heartbeat interval, by a new one, for the metadata has gone on; the states are Kafka's.
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
"""Between heartbeats of a broker that starts."""
LEAVING_SECONDS: Final = 0.05
"""Between the first two heartbeats of a broker that leaves: its leaderships may be gone by then."""
INSISTING_SECONDS: Final = 0.1
"""Between heartbeats of a broker that leaves and is not heard: others wait for it to end."""
_TRANSIENT: Final = (
    errors.NotController,
    errors.RequestTimedOut,
    errors.DuplicateBrokerRegistration,
)
"""What a registration may fail with and be taken later."""

Request = BrokerRegistrationRequest | BrokerHeartbeatRequest
Answer = BrokerRegistrationResponse | BrokerHeartbeatResponse


class State(enum.Enum):
    """Where in its life a broker is."""

    STARTING = enum.auto()
    """It has not heard yet that it knows all the metadata up to its own registration."""
    RECOVERY = enum.auto()
    """It has, but is fenced."""
    RUNNING = enum.auto()
    PENDING_CONTROLLED_SHUTDOWN = enum.auto()
    """It wants to leave; its leaderships are handed over."""
    SHUTTING_DOWN = enum.auto()


@attrs.define(kw_only=True)
class BrokerState:
    """One incarnation of a broker, as its controller sees it."""

    registration: BrokerRegistrationRequest
    interval: float
    """``broker.heartbeat.interval.ms``, in seconds."""
    state: State = State.STARTING
    epoch: int = -1
    due: float = 0.0
    """When to speak next."""
    offline_dirs: list[bytes] = attrs.field(factory=list)
    """Log directories that have failed; each heartbeat names them."""
    registered: bool = False
    _is_ready: bool = False
    _sent_dirs: int = 0
    """How many offline directories the last heartbeat named."""
    _told_dirs: int = 0
    """How many of them the controller knows."""
    _was_asked: bool = False
    """Whether the controller has answered the wish to leave."""

    def request(self, metadata_offset: int, *, cordons: bool = True) -> Request:
        """What to say now. ``cordons``: whether controllers know of closed directories."""
        if not self.registered:
            return self.registration
        self._sent_dirs = len(self.offline_dirs)
        told = cordons and self.state is not State.STARTING
        return BrokerHeartbeatRequest(
            broker_id=self.registration.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=metadata_offset,
            want_fence=not self._is_ready,
            want_shut_down=self.state is State.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=list(self.offline_dirs),
            cordoned_log_dirs=[] if told else None,
        )

    def answered(self, answer: Answer, now: float) -> None:
        """The controller took the last request."""
        if isinstance(answer, BrokerRegistrationResponse):
            self.epoch, self.registered, self.due = answer.broker_epoch, True, now
            self._told_dirs = 0
            return
        self._told_dirs = self._sent_dirs
        self.due = now + self.interval
        match self.state:
            case State.STARTING:
                if answer.is_caught_up:
                    self.state = State.RECOVERY
                self.due = now + CATCHING_UP_SECONDS
            case State.RECOVERY if not answer.is_fenced:
                self.state = State.RUNNING
            case State.PENDING_CONTROLLED_SHUTDOWN if answer.should_shut_down:
                self.state = State.SHUTTING_DOWN
            case State.PENDING_CONTROLLED_SHUTDOWN if not self._was_asked:
                self.due = now + LEAVING_SECONDS
                self._was_asked = True
            case _:
                pass

    def failed(self, error: KafkaError, now: float) -> None:
        """It did not, or nobody answered; raises what will not be better later."""
        self.due = now + self.interval
        if not self.registered:
            if not isinstance(error, _TRANSIENT):
                raise error
        elif self.state is State.PENDING_CONTROLLED_SHUTDOWN:
            self.due = now + INSISTING_SECONDS
            if isinstance(error, errors.StaleBrokerEpoch):  # nothing is left to hand over
                self.state = State.SHUTTING_DOWN
        elif isinstance(error, errors.StaleBrokerEpoch):
            self.registered, self.due = False, now

    @property
    def has_news(self) -> bool:
        """Whether a directory has failed that the controller does not know of."""
        return self._told_dirs < len(self.offline_dirs)

    def directory_failed(self, directory_id: bytes, now: float) -> None:
        """A log directory went offline: the next heartbeat, which is due now, says so."""
        if directory_id not in self.offline_dirs:
            self.offline_dirs.append(directory_id)
            self.due = now

    def ready_to_unfence(self, now: float) -> None:
        """Clients can be served."""
        self._is_ready, self.due = True, now

    def begin_controlled_shutdown(self, now: float) -> None:
        """The broker is to leave; one that never served just goes."""
        if self.state is State.RUNNING:
            self.state, self.due = State.PENDING_CONTROLLED_SHUTDOWN, now
        elif self.state is not State.PENDING_CONTROLLED_SHUTDOWN:
            self.state = State.SHUTTING_DOWN
