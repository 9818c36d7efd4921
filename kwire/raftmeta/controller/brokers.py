"""Registration, heartbeats, fencing and controlled shutdown of brokers and controllers.

Rules: registration and fencing are metadata records; sessions exist only on the active controller,
and a decision changes them by effects, once its records are appended. A broker that is removed from
many partitions is fenced before the first slice of them, so that it cannot rejoin their ISRs.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Final, TypeVar

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.codec.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kwire.codec.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kwire.codec.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kwire.raftmeta.controller.leader_updates import (
    bring_in,
    elect_for_leaderless,
    slice_without,
    take_out,
)
from kwire.raftmeta.controller.state import (
    ControllerDecision,
    ControllerState,
    Deciding,
    Effect,
)
from kwire.raftmeta.metadata.image import BrokerImage, PartitionImage
from kwire.raftmeta.metadata.image_loader import Steps
from kwire.raftmeta.metadata.image_records import endpoint_structures
from kwire.raftmeta.storage.levels import (
    CONTROLLERS,
    DIRECTORIES,
    describe_unsupported,
    level_of,
)
from kwire.types import RESERVED_UUIDS, uuid_text

UNKNOWN_OFFSET: Final = -1
"""The metadata offset of a heartbeat that gives none."""
_NEVER_BEHIND: Final = 1 << 63
"""Greater than any offset: a broker in this process has always applied everything."""

RequestFeature = BrokerRegistrationRequest.Feature | ControllerRegistrationRequest.Feature
F = TypeVar("F", r.RegisterBrokerRecord.BrokerFeature, r.RegisterControllerRecord.ControllerFeature)


def decide_register_controller(
    state: ControllerState, request: ControllerRegistrationRequest
) -> ControllerDecision[ControllerRegistrationResponse]:
    """Register a controller with its addresses and supported features."""
    if level_of(state.image.features) < CONTROLLERS:
        raise errors.UnsupportedVersion(
            "The current MetadataVersion is too old to support controller registrations."
        )
    record = r.RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=endpoint_structures(
            r.RegisterControllerRecord.ControllerEndpoint, request.listeners
        ),
        features=_feature_structures(
            r.RegisterControllerRecord.ControllerFeature, request.features
        ),
    )
    return ControllerDecision((record,), ControllerRegistrationResponse(error_message=""))


def decide_on_broker(
    state: ControllerState, request: BrokerRegistrationRequest | BrokerHeartbeatRequest
) -> Deciding[BrokerRegistrationResponse | BrokerHeartbeatResponse]:
    """Decide on a request that a broker sends about itself."""
    if isinstance(request, BrokerHeartbeatRequest):
        return decide_heartbeat(state, request)
    return decide_register_broker(state, request)


def decide_register_broker(
    state: ControllerState, request: BrokerRegistrationRequest
) -> Steps[ControllerDecision[BrokerRegistrationResponse]]:
    """Register a broker, fenced until its heartbeats show that it has caught up."""
    if request.cluster_id != state.cluster_id:
        raise errors.InconsistentClusterId(
            f"Expected cluster ID {state.cluster_id}, but got cluster ID {request.cluster_id}"
        )
    existing = state.image.brokers.get(request.broker_id)
    returns = existing is not None and existing.incarnation_id == request.incarnation_id
    if existing is not None and not returns:
        _check_previous_incarnation(state, existing, request)
    if request.is_migrating_zk_broker:
        raise errors.BrokerIdNotRegistered("Controller does not support registering ZK brokers.")
    _check_directories(state, request)
    _check_features(state, request)
    effects: list[Effect] = []
    records: list[r.MetadataRecord] = []
    is_more_left = False
    if not returns:
        records, is_more_left = yield from _out_of_isr(state, existing, request, effects)
    if is_more_left:
        records = [*_fencing_records(state, existing, effects), *records]
        return ControllerDecision(tuple(records), _UNREGISTERED, again=True, effects=tuple(effects))
    record = _registration(state, request, existing if returns else None)
    sessions, broker_id = state.sessions, request.broker_id
    if not returns:
        effects.append(partial(sessions.forget, broker_id))
    effects.append(
        partial(sessions.touch, broker_id, state.now, fenced=record.fenced, metadata_offset=-1)
    )
    reply = BrokerRegistrationResponse(broker_epoch=record.broker_epoch)
    return ControllerDecision((*records, record), reply, effects=tuple(effects))


_UNREGISTERED: Final = BrokerRegistrationResponse()


def _fencing_records(
    state: ControllerState, existing: BrokerImage | None, effects: list[Effect]
) -> list[r.BrokerRegistrationChangeRecord]:
    """Fence a broker before slices remove it from its partitions, so it cannot rejoin ISRs.

    The leader updates continue even if the request for the next slice never comes.
    """
    if existing is None or existing.fenced:
        return []
    partitions = list(state.index.with_member(existing.id))
    effects.append(partial(state.leader_update_queue.put, existing.id, partitions))
    return [_fencing_record(existing)]


def _fencing_record(broker: BrokerImage) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=1
    )


def _check_previous_incarnation(
    state: ControllerState, existing: BrokerImage, request: BrokerRegistrationRequest
) -> None:
    """Reject a second live broker with the same id; a cleanly stopped broker has no session.

    A registration with the same directories is accepted, because a live broker would hold their
    locks.
    """
    if existing.log_dirs and set(existing.log_dirs) == set(request.log_dirs):
        return
    if state.sessions.is_valid(existing.id, state.now):
        raise errors.DuplicateBrokerRegistration(
            f"Another broker is registered with that broker id. (id {existing.id})"
        )


def _check_directories(state: ControllerState, request: BrokerRegistrationRequest) -> None:
    directories = request.log_dirs
    if level_of(state.image.features) < DIRECTORIES:
        return  # Brokers before 3.7 have no ids for their directories, and none are stored.
    if not directories:
        raise errors.InvalidRegistration("No directories specified in request")
    if any(int.from_bytes(directory) < RESERVED_UUIDS for directory in directories):
        raise errors.InvalidRegistration("Reserved directory ID in request")
    if len(set(directories)) != len(directories):
        raise errors.InvalidRegistration("Duplicate directory ID in request")
    for broker in state.image.brokers.values():
        shared = set(broker.log_dirs) & set(directories)
        if broker.id != request.broker_id and shared:
            raise errors.InvalidRegistration(
                f"Broker {broker.id} is already registered with directory {uuid_text(min(shared))}"
            )


def _check_features(state: ControllerState, request: BrokerRegistrationRequest) -> None:
    """Reject a broker that does not support every finalized level."""
    offered = {
        feature.name: (feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    if text := describe_unsupported(state.image.features, offered):
        raise errors.UnsupportedVersion(text)


def _out_of_isr(
    state: ControllerState,
    existing: BrokerImage | None,
    request: BrokerRegistrationRequest,
    effects: list[Effect],
) -> Steps[tuple[list[r.MetadataRecord], bool]]:
    """Remove a new incarnation from the ISRs, because it has to catch up first.

    A broker that did not stop cleanly may have lost unflushed records, and a broker that returns
    without one of its log directories has lost the records in it. With ELR, it is then no longer
    eligible for those partitions either. Without ELR, the last member of an ISR stays in it and
    leads once the broker is unfenced.
    """
    clean = existing is not None and request.previous_broker_epoch == existing.epoch

    def is_lost(partition: PartitionImage) -> bool:
        if not clean:
            return True
        directory = partition.directory(request.broker_id)
        is_named = directory is not None and int.from_bytes(directory) >= RESERVED_UUIDS
        return is_named and directory not in request.log_dirs

    if not state.elr_enabled:
        return slice_without(state, request.broker_id, effects)
    return slice_without(state, request.broker_id, effects, is_lost=is_lost)


def _registration(
    state: ControllerState, request: BrokerRegistrationRequest, existing: BrokerImage | None
) -> r.RegisterBrokerRecord:
    record = r.RegisterBrokerRecord(
        broker_id=request.broker_id,
        is_migrating_zk_broker=False,
        incarnation_id=request.incarnation_id,
        broker_epoch=state.next_offset,
        end_points=endpoint_structures(r.RegisterBrokerRecord.BrokerEndpoint, request.listeners),
        features=_feature_structures(r.RegisterBrokerRecord.BrokerFeature, request.features),
        rack=request.rack,
        log_dirs=list(request.log_dirs),
    )
    if existing is not None:
        record.broker_epoch = existing.epoch
        record.fenced = existing.fenced
        record.in_controlled_shutdown = existing.in_controlled_shutdown
    return record


def _feature_structures(kind: type[F], features: Iterable[RequestFeature]) -> list[F]:
    """Convert the features of a registration request to the structures of its record."""
    return [
        kind(
            name=feature.name,
            min_supported_version=feature.min_supported_version,
            max_supported_version=feature.max_supported_version,
        )
        for feature in features
    ]


def decide_heartbeat(
    state: ControllerState, request: BrokerHeartbeatRequest
) -> Deciding[BrokerHeartbeatResponse]:
    """Renew a broker's session and decide its fencing, shutdown and directories.

    Offline directories are processed first, so that the broker leads nothing from them. A heartbeat
    without a metadata offset asks whether the broker was fenced. The answer "not fenced" needs a
    record committed by the other voters, because this controller may have been replaced.
    """
    broker = state.broker(request.broker_id, request.broker_epoch)
    removed = set(request.offline_log_dirs) & set(broker.log_dirs)
    if removed:
        return _decide_without(state, broker, request, removed)
    return _decide_heartbeat(state, broker, request, [], [])


def _decide_without(
    state: ControllerState,
    broker: BrokerImage,
    request: BrokerHeartbeatRequest,
    removed: set[bytes],
) -> Steps[ControllerDecision[BrokerHeartbeatResponse]]:
    """Decide on a heartbeat that reports directories which have failed since the last one."""
    effects: list[Effect] = []
    moved, is_more_left = yield from _offline_directories(state, broker, removed, effects)
    if is_more_left:
        unfinished = BrokerHeartbeatResponse(should_shut_down=False)
        return ControllerDecision(tuple(moved), unfinished, again=True, effects=tuple(effects))
    return _decide_heartbeat(state, broker, request, moved, effects)


def _decide_heartbeat(
    state: ControllerState,
    broker: BrokerImage,
    request: BrokerHeartbeatRequest,
    moved: list[r.MetadataRecord],
    effects: list[Effect],
) -> ControllerDecision[BrokerHeartbeatResponse]:
    """Decide on a heartbeat, with the records that ``moved`` partitions from failed directories."""
    caught_up = request.current_metadata_offset >= broker.epoch
    state = state.supposing(moved, request.offline_log_dirs)
    records: list[r.MetadataRecord] = []
    fenced, should_stop = broker.fenced, False
    if request.want_shut_down:
        should_stop = _may_stop(state, broker, request)
        if should_stop and not fenced:
            records = fencing(state, broker, effects)
            fenced = True
        elif not should_stop:
            records = _controlled_shutdown(state, broker, effects)
    elif request.want_fence and not fenced:
        records = fencing(state, broker, effects)
        fenced = True
    elif not request.want_fence and fenced and caught_up:
        records = unfencing(state, broker, effects)
        fenced = False
    records = [*moved, *records, *_cordon_records(broker, request)]
    if not (fenced or records) and request.current_metadata_offset == UNKNOWN_OFFSET:
        records = [r.NoOpRecord()]
    sessions = state.sessions
    effects.append(
        partial(
            sessions.touch,
            broker.id,
            state.now,
            fenced=fenced,
            metadata_offset=request.current_metadata_offset,
            failed_dirs=request.offline_log_dirs,
        )
    )
    if should_stop:
        effects.append(partial(sessions.forget, broker.id))
    elif request.want_shut_down:
        last_offset = state.next_offset + len(records) - 1
        effects.append(partial(_wait_for_others, state, broker.id, last_offset))
    reply = BrokerHeartbeatResponse(
        is_caught_up=caught_up, is_fenced=fenced, should_shut_down=should_stop
    )
    return ControllerDecision(tuple(records), reply, effects=tuple(effects))


def _wait_for_others(state: ControllerState, broker_id: int, last_offset: int) -> None:
    """Once all leaders of a stopping broker have moved, record the offset of the last move."""
    session = state.sessions.get(broker_id)
    is_known = session is None or session.shutdown_offset >= 0
    if not is_known and broker_id not in state.leader_update_queue:
        state.sessions.wait_for_others(broker_id, last_offset)


def _may_stop(state: ControllerState, broker: BrokerImage, request: BrokerHeartbeatRequest) -> bool:
    """Return whether a broker may stop: it is fenced, or leads nothing and all others know."""
    if broker.fenced or request.want_fence:
        return True
    if state.index.led_by(broker.id):
        return False
    session = state.sessions.get(broker.id)
    if session is None or session.shutdown_offset < 0:
        return not broker.in_controlled_shutdown
    lowest = state.sessions.lowest_active_offset()
    return lowest is None or session.shutdown_offset <= lowest


def _controlled_shutdown(
    state: ControllerState, broker: BrokerImage, effects: list[Effect]
) -> list[r.MetadataRecord]:
    """Begin a controlled shutdown: no new leaderships; existing ones are moved in slices."""
    if broker.in_controlled_shutdown:
        return []
    change = r.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=1
    )
    return [change, *take_out(state, broker.id, effects)]


def _cordon_records(
    broker: BrokerImage, request: BrokerHeartbeatRequest
) -> list[r.BrokerRegistrationChangeRecord]:
    """Return the record that changes the broker's cordoned directories, if any (KIP-1066)."""
    cordoned, registered = request.cordoned_log_dirs, broker.cordoned_log_dirs
    if cordoned is None or (registered is not None and set(registered) == set(cordoned)):
        return []
    return [
        r.BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
        )
    ]


def _offline_directories(
    state: ControllerState, broker: BrokerImage, removed: set[bytes], effects: list[Effect]
) -> Steps[tuple[list[r.MetadataRecord], bool]]:
    """Remove replicas in failed directories from ISRs, and finally the directories."""
    records, is_more_left = yield from slice_without(
        state, broker.id, effects, where=lambda p: p.directory(broker.id) in removed
    )
    if is_more_left:
        return records, True
    remaining = [directory for directory in broker.log_dirs if directory not in removed]
    change = r.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=remaining
    )
    return [*records, change], False


def fencing(
    state: ControllerState, broker: BrokerImage, effects: list[Effect], *, early: bool = False
) -> list[r.MetadataRecord]:
    """Fence a broker and remove it from the ISRs; ``early``: before its session ends."""
    if early:
        effects.append(partial(state.sessions.end_early, broker.id))
    return [*take_out(state, broker.id, effects, early=early), _fencing_record(broker)]


def unfencing(
    state: ControllerState, broker: BrokerImage, effects: list[Effect]
) -> list[r.MetadataRecord]:
    """Unfence a broker, and let it lead leaderless partitions where it may."""
    change = r.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=-1
    )
    return [change, *bring_in(state, broker.id, effects)]


def decide_fence_stale(state: ControllerState, request: None) -> ControllerDecision[bool]:
    """Fence the broker with the oldest expired session; the reply says whether to call again.

    If a session cut short by early fencing would be over by now, this first holds the unclean
    elections that waited for its end.
    """
    del request
    sessions, effects = state.sessions, list[Effect]()
    stale = sessions.stale(state.now)
    if sessions.has_passed_early_ends(state.now):
        records = elect_for_leaderless(state, effects)
        effects.append(partial(sessions.drop_early_ends, state.now))
        return ControllerDecision(tuple(records), bool(stale), effects=tuple(effects))
    if not stale:
        return ControllerDecision((), False)
    broker = state.image.brokers.get(stale[0])
    if broker is None or broker.fenced:
        return ControllerDecision((), len(stale) > 1, effects=(partial(sessions.forget, stale[0]),))
    records = fencing(state, broker, effects)
    effects.append(partial(sessions.on_fenced, broker.id))
    return ControllerDecision(tuple(records), len(stale) > 1, effects=tuple(effects))


def begin_sessions(state: ControllerState, own: int | None = None) -> None:
    """Give every serving broker a whole new session, because the controller became active.

    ``own`` is the broker in this process, which needs no heartbeats. A former controller may have
    fenced other brokers early, except those that shut down cleanly.
    """
    for broker in state.image.brokers.values():
        if broker.id == own:
            continue
        if not broker.fenced:
            state.sessions.begin(broker.id, state.now)
        elif state.config.broker_early_fencing_enable and not broker.in_controlled_shutdown:
            state.sessions.begin_fenced(broker.id, state.now)


def keep_session(state: ControllerState, broker_id: int) -> None:
    """Keep the session of the broker in this process forever; its metadata is never behind."""
    state.sessions.touch(broker_id, math.inf, fenced=False, metadata_offset=_NEVER_BEHIND)


def decide_unregister_broker(
    state: ControllerState, request: UnregisterBrokerRequest
) -> Steps[ControllerDecision[UnregisterBrokerResponse]]:
    """Remove a broker's registration."""
    broker = state.image.brokers.get(request.broker_id)
    if broker is None:
        raise errors.BrokerIdNotRegistered(
            f"Broker ID {request.broker_id} is not currently registered"
        )
    effects: list[Effect] = []
    records, is_more_left = yield from slice_without(state, broker.id, effects)
    if is_more_left:
        records = [*_fencing_records(state, broker, effects), *records]
        reply = UnregisterBrokerResponse()
        return ControllerDecision(tuple(records), reply, again=True, effects=tuple(effects))
    removal = r.UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch)
    effect = partial(state.sessions.forget, broker.id)
    return ControllerDecision((*records, removal), UnregisterBrokerResponse(), effects=(effect,))
