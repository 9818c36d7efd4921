"""The fencing of a broker whose process has ended, before its session ends.

A session limits how long a broker may be silent, but there is no need to wait for a process that
has ended. Fencing is always safe: leader epochs protect what acks=all has acknowledged, and a
wrongly fenced broker sends a heartbeat at once, which unfences it. Limits
(docs/decisions/0020-early-fencing.md):

* A heartbeat after the first refusal disproves that the process has ended.
* At most half of the serving brokers are fenced early; the others wait for their sessions. If more
  than that seem to have ended, the likelier cause is this node's own network. For one session,
  a new active controller also counts the brokers that it found fenced and silent.
* Until the session would also have ended, partitions where only this broker was in sync get no
  unclean leader.
"""

from kwire.raftmeta.controller.brokers import fencing
from kwire.raftmeta.controller.process_probe import EndedProcess
from kwire.raftmeta.controller.state import ControllerDecision, ControllerState, Effect


def decide_fence_ended(state: ControllerState, request: EndedProcess) -> ControllerDecision[bool]:
    """Fence a broker whose process has ended; the reply says whether it is fenced."""
    broker = state.image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch or broker.fenced:
        return ControllerDecision((), True)
    session = state.sessions.get(broker.id)
    if not state.config.broker_early_fencing_enable or session is None:
        return ControllerDecision((), False)
    if session.request_at >= request.refused_at or not _may_fence_another(state):
        return ControllerDecision((), False)
    effects: list[Effect] = []
    records = fencing(state, broker, effects, early=True)
    return ControllerDecision(tuple(records), True, effects=tuple(effects))


def _may_fence_another(state: ControllerState) -> bool:
    """Return whether, after fencing one more, early-fenced brokers are no majority."""
    serving_count = sum(not broker.fenced for broker in state.image.brokers.values())
    return state.sessions.count_ended_early(state.now) + 1 <= serving_count - 1
